"""Apply a rule to one tensor: cast, check, move, and split into pieces if the rule allows it."""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from typing import Any

import torch
from torch import Tensor

from mergelib.messages.kinds import is_finite_number
from mergelib.messages.warned import warn
from mergelib.registry import Method, parameters_of
from mergelib.settings import per_expert
from mergelib.statedict import is_finite

CHUNK = 2**14  # entries that an element-wise rule sees at a time: T of them fit a core's cache
LONG = 2**20  # entries at a time for rules that read their inputs once, where a cache does not help

PERCENT = (10, 100)  # factors of task vectors above the first were probably meant in percent


class NotFinite(Exception):
    """An input or the result holds NaN or infinity."""


class _Computable(Sequence[Tensor]):
    """Tensors that are cast, moved and checked on access, so that only one cast copy is held."""

    def __init__(
        self, tensors: Sequence[Tensor], dtype: torch.dtype, device: torch.device, checked: bool
    ) -> None:
        self._tensors, self._dtype, self._device = tensors, dtype, device
        self._checked = checked

    def __len__(self) -> int:
        return len(self._tensors)

    def __getitem__(self, place: Any) -> Any:
        if isinstance(place, slice):
            return _Computable(self._tensors[place], self._dtype, self._device, self._checked)
        tensor = self._tensors[place].to(device=self._device, dtype=self._dtype)
        if self._checked and not is_finite(tensor):
            raise NotFinite
        return tensor


def precision(experts: Sequence[Tensor], pretrained: Tensor | None) -> torch.dtype:
    """Return the dtype to compute in: float32, or the widest input dtype if that is wider."""
    return reduce(torch.promote_types, dtypes(experts, pretrained), torch.float32)


def dtypes(experts: Sequence[Tensor], pretrained: Tensor | None) -> set[torch.dtype]:
    """Return the dtypes of one parameter in all models."""
    return {tensor.dtype for tensor in (*experts, pretrained) if tensor is not None}


def tell_of_factors(method: Method, at: Mapping[str, dict[str, Any]], count: int) -> None:
    """Warn about weights that do not sum to 1, and about a scale that is a percentage."""
    accepted = parameters_of(method.function)
    sums = method.linear and method.elementwise and not (method.needs_pretrained or method.prepare)
    for values in at.values():
        if sums and count > 1:
            chosen = {name: value for name, value in values.items() if name in accepted}
            total = method.function([torch.ones(1)] * count, **chosen).item()
            if abs(total - 1) > 0.01:
                warn(
                    f"the weights of the experts sum to {total:.4g} and not to 1, so the result is "
                    "not an average of the experts: pass weights that sum to 1, or normalise=True"
                )
                return
        scales = per_expert("scale", values.get("scale"), count)
        most = max((abs(scale) for scale in scales if is_finite_number(scale)), default=0)
        if PERCENT[0] < most <= PERCENT[1]:
            warn(
                f"scale is {most:g}, so task vectors are multiplied by {most:g}: a scale is a "
                f"factor and not a percentage, and {most:g} % is scale={most / 100:g}"
            )
            return


def apply_rule(
    method: Method,
    applies: bool,
    experts: Sequence[Tensor],
    pretrained: Tensor | None,
    arguments: dict[str, Any],
    device: torch.device,
    out: torch.dtype,
) -> Tensor:
    """Apply the rule to one tensor, or its substitute for non-matrices unless it ``applies``.

    The result has the dtype ``out``.
    """
    function, elementwise = method.function, method.elementwise
    if not applies:
        assert method.elsewhere is not None
        function, elementwise = method.elsewhere, True
    accepted = parameters_of(function)
    arguments = {name: value for name, value in arguments.items() if name in accepted}
    reference = experts[0] if pretrained is None else pretrained
    base = [] if pretrained is None else [pretrained]
    needs_base = "pretrained" in accepted
    dtype = precision(experts, pretrained)

    def call(experts: Sequence[Tensor], base: Sequence[Tensor], **arguments: Any) -> Tensor:
        origin = tuple(_Computable(base, dtype, device, not (method.linear and needs_base)))
        if not needs_base:  # then it was only to be checked
            origin = ()
        parts = _Computable(experts, dtype, device, not method.linear)
        result: Tensor = function(parts, *origin, **arguments)
        result = rounded(result, out)  # which may overflow what float32 held
        if not is_finite(result):
            raise NotFinite
        return result

    if elementwise or method.rowwise:
        empty = torch.empty(reference.shape, dtype=out, device=reference.device)
        return _in_pieces(method, elementwise, call, (experts, base), arguments, empty, device)
    if method.elsewhere is not None and reference.dim() > 2:  # an accepted convolution
        experts, base = ([tensor.flatten(1) for tensor in group] for group in (experts, base))
    return call(experts, base, **arguments).to(reference.device).view(reference.shape)


def _in_pieces(
    method: Method,
    elementwise: bool,
    call: Callable[..., Tensor],
    inputs: tuple[Sequence[Tensor], Sequence[Tensor]],
    arguments: dict[str, Any],
    out: Tensor,
    device: torch.device,
) -> Tensor:
    """Fill ``out`` with a rule's result, in flat chunks or some rows at a time."""
    if not out.numel():
        return out
    shape: tuple[int, ...] = (-1,)
    step = out.numel()
    if method.draws or device.type == "cpu":  # draws must not depend on the device
        step = LONG if method.linear and device.type == "cpu" else CHUNK
    if not elementwise:
        width = out.numel() // (len(out) if out.dim() > 1 else 1)
        shape, step = (-1, width), max(1, step // width)
    flat = out.view(shape)
    experts, base = ([tensor.reshape(shape) for tensor in group] for group in inputs)
    seed = arguments.get("seed", 0)
    for start in range(0, len(flat), step):
        piece = slice(start, start + step)
        if "seed" in arguments:
            arguments["seed"] = own_seed(seed, start) if start else seed
        flat[piece] = call([e[piece] for e in experts], [b[piece] for b in base], **arguments)
    return out


def rounded(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """Return a tensor in a dtype, rounded once.

    PyTorch rounds float64 to float32 before it rounds to 16 bits. The last bit of the float32 is
    therefore set if it is not exact (rounding to odd), so that no value becomes a tie.
    """
    if tensor.dtype == torch.float64 and dtype.itemsize == 2:
        near = tensor.float()
        bits = near.view(torch.int32) - (near.abs() > tensor.abs()).int()
        tensor = (bits | (near != tensor).int()).view(torch.float32)
    return tensor.to(dtype)


def copied(key: str, tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """Return a copy of a tensor that is not merged; ValueError if the dtype does not hold it."""
    copy = rounded(tensor.clone(), dtype)
    if dtype != tensor.dtype and bool((copy.isinf() & tensor.isfinite()).any()):
        raise ValueError(f"copying {key!r} overflowed: it {too_large(tensor, dtype)}")
    return copy


def too_large(tensor: Tensor, dtype: torch.dtype) -> str:
    """Return the end of the error message for finite values that a dtype does not hold."""
    largest, most = tensor[tensor.isfinite()].abs().max().item(), torch.finfo(dtype).max
    advice = ": pass dtype='bfloat16' or dtype='float32'" if dtype == torch.float16 else ""
    name = str(dtype).removeprefix("torch.")
    return f"reaches {largest:.6g}, and {name} holds at most {most:.6g}{advice}"


def not_finite(what: str, tensor: Tensor) -> str:
    """Return the error message for a tensor with values that are not finite."""
    kind = "NaN" if tensor.isnan().any() else "Inf"
    holes = ~torch.isfinite(tensor)
    text = f"{what} holds {kind} in {int(holes.sum())} of {tensor.numel()} entries"
    advice = ": pass an intact checkpoint, or in a merge nan='base' if they are not used"
    if tensor.dim() < 2:
        return text + advice
    rows = [*map(str, holes.flatten(1).any(1).nonzero().flatten().tolist())]
    more = ", …" if len(rows) > 5 else ""
    return f"{text}, in row{'s'[: len(rows) - 1]} {', '.join(rows[:5])}{more}{advice}"


def own_seed(seed: int, key: str | int) -> int:
    """Return a seed for one part of the work, so that its draws do not depend on earlier parts."""
    digest = hashlib.sha256(f"{seed}/{key}".encode()).digest()
    return int.from_bytes(digest[:7], "big")
