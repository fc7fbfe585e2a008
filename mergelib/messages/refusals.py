"""Refuse inputs that would merge into wrong weights without an error, and unusable devices.

With LoRA the update is a product ``B A``, and the average of products is not the product of
averages. Quantised weights are integers whose scale is stored elsewhere; a merge would copy them
like counters.
"""

import re
from collections.abc import Mapping, Set
from typing import Any

import torch
from torch import Tensor

from mergelib.messages.adapters import factors_of

_MERGED_FIRST = (
    "pass the folder with its adapter_config.json, which is applied to the base if it is LoRA, or "
    "merge each adapter into its base first (with PEFT: model.merge_and_unload(), then "
    "save_pretrained)"
)
_LEAVE_OUT = "; or leave them out with exclude="
_FIRST = "dequantise the models first"
_OPTION = (
    "pass dequantise=True (to merge_files or load_state_dict; in memory, mergelib.dequantise does "
    "it)"
)
_SIGNS = {".qweight": "GPTQ or AWQ, ", ".W_q": "HQQ, ", ".weight_packed": "compressed-tensors, "}
_SIGNS |= {".absmax": "bitsandbytes, ", ".SCB": "bitsandbytes, "}
_SCALES = re.compile(r"(^|[._])(scales?(_inv)?|zeros?|zero_point|absmax|quant_map|SCB)$")


def check_mergeable(
    models: Mapping[str, Mapping[str, Tensor]], selected: Set[str], *, parts: bool
) -> None:
    """Raise ``ValueError`` for adapters, quantised weights and their scales among the keys.

    With ``parts`` the message may suggest ``exclude=``.
    """
    otherwise = _LEAVE_OUT if parts else ""
    first = next(iter(models.values()))
    for name, model in models.items():
        tensors = {key: t for key, t in model.items() if isinstance(t, Tensor)}
        for key in [key for key in tensors if key in selected]:
            option = scales_of(key, tensors)
            if option or is_quantised(key, tensors[key]):
                kind = next((t for s, t in _SIGNS.items() if any(k.endswith(s) for k in model)), "")
                raise ValueError(
                    f"{name}[{key!r}] holds quantised weights ({kind}{tensors[key].dtype}), which "
                    f"cannot be merged: {_OPTION if option else _FIRST}{otherwise}"
                )
        apart = {k: k for k in tensors.keys() - selected if _is_code(k, tensors)}
        apart |= {key.rpartition(".")[0]: key for key in apart}  # by what comes before a scale
        for key in (key for key in tensors if key in selected and _SCALES.search(key)):
            if codes := apart.get(key.rpartition(".")[0]):
                raise ValueError(
                    f"{name}[{key!r}] belongs to the quantised weights {codes!r}, which are not "
                    "merged: leave both out with exclude="
                )
        factors = factors_of(model, {} if model is first else first, selected)
        if factors:
            more = f" and {len(factors) - 1} more" if len(factors) > 1 else ""
            raise ValueError(
                f"{name} holds adapters ({factors[0]!r}{more}), whose tensors cannot be merged one "
                f"by one: {_MERGED_FIRST}{otherwise}"
            )


def is_quantised(key: str, tensor: Tensor) -> bool:
    """Whether integers are weights, judged by dtype and name, not counters, indices or masks."""
    if tensor.is_quantized:
        return True
    if tensor.is_floating_point() or tensor.is_complex() or tensor.dtype == torch.bool:
        return False
    if tensor.dtype == torch.int8 and tensor.dim() > 1:
        return True
    last = key.rpartition(".")[2]
    return tensor.dim() > 0 and re.search(r"weight(_packed)?$|^qzeros$|^W_q$", last) is not None


def _is_code(key: str, tensors: Mapping[str, Tensor]) -> bool:
    tensor = tensors[key]
    short = tensor.is_floating_point() and tensor.itemsize == 1
    return short or is_quantised(key, tensor) or bool(scales_of(key, tensors))


def scales_of(key: str, kinds: Mapping[str, Any]) -> str:
    """Return the key of the scales of an FP8 or MXFP4 weight, or "" for other tensors."""
    kind, scales = kinds[key], [f"{key.removesuffix('_blocks')}_scales"]
    if kind.dtype == torch.float8_e4m3fn:
        scales = [f"{key}_scale_inv", f"{key}_scale"]
    elif not (key.endswith("_blocks") and kind.dtype == torch.uint8 and len(kind.shape) == 4):
        return ""
    return next((name for name in scales if name in kinds), "")


def check_device(device: torch.device | str | None) -> None:
    """Raise a one-line ``ValueError`` unless PyTorch can compute on the device."""
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:  # the latter where PyTorch has no CUDA
        reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise ValueError(f"device {str(device)!r} cannot be used: {reason}") from None


def as_dtype(dtype: torch.dtype | str | None) -> torch.dtype | None:
    """Return the dtype of a name; ``ValueError`` for one that a merge is not written in."""
    kinds = (None, torch.float32, torch.float16, torch.bfloat16)
    known = {str(kind).removeprefix("torch."): kind for kind in kinds}
    name = str(dtype).removeprefix("torch.")
    if name not in known:
        raise ValueError(f"dtype is {name!r}, expected 'float32', 'float16' or 'bfloat16'")
    return known[name]
