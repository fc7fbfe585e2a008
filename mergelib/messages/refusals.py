"""Refuse inputs that would merge into wrong weights without an error, and unusable devices.

With LoRA the update is a product ``B A``, and the average of products is not the product of
averages. Quantised weights are integers whose scale is stored elsewhere; a merge would copy them
like counters.
"""

import re
from collections.abc import Mapping, Set

import torch
from torch import Tensor

from mergelib.messages.adapters import factors_of

_MERGED_FIRST = (
    "pass the folder with its adapter_config.json, which is applied to the base if it is LoRA, or "
    "merge each adapter into its base first (with PEFT: model.merge_and_unload(), then "
    "save_pretrained)"
)
_LEAVE_OUT = "; or leave them out with exclude="


def check_mergeable(
    models: Mapping[str, Mapping[str, Tensor]], selected: Set[str], *, parts: bool
) -> None:
    """Raise ``ValueError`` for adapters and quantised weights among the selected keys.

    With ``parts`` the message may suggest ``exclude=``.
    """
    otherwise = _LEAVE_OUT if parts else ""
    first = next(iter(models.values()))
    for name, model in models.items():
        for key, tensor in model.items():
            if key in selected and isinstance(tensor, Tensor) and is_quantised(key, tensor):
                raise ValueError(
                    f"{name}[{key!r}] holds quantised weights ({tensor.dtype}), which cannot be "
                    f"merged: dequantise the models first{otherwise}"
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
    return tensor.dim() > 0 and re.search(r"weight(_packed)?$|^qzeros$", last) is not None


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
