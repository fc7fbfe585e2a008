"""The one loop that applies rules.

`merge_tensors` walks the tensors, checks them, computes in float32 at least, keeps dtypes, integer
buffers and ties, and feeds element-wise rules chunks that stay in cache. `merge` drives it over
state dicts in memory and `mergelib.streaming.merge_files` over files, so both agree bit for bit.
"""

import hashlib
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol, overload

import torch
from torch import Tensor

from mergelib.registry import Method, get_method
from mergelib.statedict import (
    Experts,
    StateDict,
    check_compatible,
    is_finite,
    is_matrix,
    is_statistic,
    name_experts,
)

CHUNK = 2**14  # entries that an element-wise rule sees at a time: T of them fit a core's cache
LONG = 2**20  # entries where a cache is no help: for rules that pass over their inputs once
DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


Group = tuple[list[Tensor], Tensor | None]  # one parameter: the experts' tensors, the pretrained


class Source(Protocol):
    """Where tensors come from: memory or files. Compatible by the time it exists."""

    names: Sequence[str]  # the experts' names, for messages
    aliases: Mapping[str, str]  # tied key -> the key it shares its memory with

    def __iter__(self) -> Iterator[str]: ...

    def load(self, key: str) -> Group: ...


class Memory:
    """State dicts in memory as a `Source`."""

    def __init__(self, experts: Mapping[str, StateDict], pretrained: StateDict | None) -> None:
        what = "pretrained" if pretrained is not None else next(iter(experts))
        self._reference = pretrained if pretrained is not None else next(iter(experts.values()))
        check_compatible(self._reference, experts, what)
        self._experts, self._pretrained = experts, pretrained
        self.names: Sequence[str] = list(experts)
        self.aliases: Mapping[str, str] = tied_keys(self._reference)

    def __iter__(self) -> Iterator[str]:
        return iter(self._reference)

    def load(self, key: str) -> Group:
        pretrained = None if self._pretrained is None else self._pretrained[key]
        return [expert[key] for expert in self._experts.values()], pretrained


def tied_keys(state: StateDict) -> dict[str, str]:
    """Keys whose tensors are one and the same memory as an earlier key's."""
    seen: dict[Any, str] = {}
    aliases = {}
    for key, tensor in state.items():
        place = (tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype)
        if tensor.numel() and place in seen:
            aliases[key] = seen[place]
        seen.setdefault(place, key)
    return aliases


@torch.no_grad()
def merge(
    method: str,
    experts: Experts,
    *,
    pretrained: StateDict | None = None,
    device: torch.device | str | None = None,
    is_matrix: Callable[[str, Tensor], bool] = is_matrix,
    **hyperparameters: Any,
) -> dict[str, Tensor]:
    """Merge experts into one state dict.

    Args:
        method: a name from `methods`.
        experts: mapping of name to state dict, or a list of state dicts; all of the same keys,
            shapes and dtypes.
        pretrained: the state dict they were fine-tuned from; needed by all but a few methods.
        device: where to compute; by default where the tensors are. The result lies where the
            inputs lie.
        is_matrix: tells from key and tensor what low-rank methods take for a matrix; by default
            two-dimensional weights that are no table. A convolution that is accepted is folded, a
            filter a row: see `mergelib.statedict.is_kernel`.
        **hyperparameters: the method's own, see `methods`.

    Returns:
        A new state dict with the keys and dtypes of the inputs. Floating tensors are merged (in
        float32 at least), running means and variances of BatchNorm are averaged by every method,
        integer buffers are the pretrained model's (else the first expert's), and tied tensors stay
        tied. No input is changed.

    Raises:
        ValueError: an unknown method; experts that are none or do not match (naming expert and
            key); a NaN or Inf (naming the tensor); a hyperparameter out of range.
        TypeError: a hyperparameter that the method does not have.
    """
    chosen = get_method(method)
    chosen.check(hyperparameters, pretrained=pretrained is not None)
    source = Memory(name_experts(experts), pretrained)
    return dict(merge_tensors(chosen, source, hyperparameters, device=device, matrices=is_matrix))


def merge_tensors(
    method: Method,
    source: Source,
    hyperparameters: Mapping[str, Any],
    *,
    device: torch.device | str | None = None,
    matrices: Callable[[str, Tensor], bool] = is_matrix,
) -> Iterator[tuple[str, Tensor]]:
    """Apply a rule to every tensor of a source; yields ``(key, merged tensor)`` in order.

    The loop behind `merge`; arguments and errors are described there.
    """
    options = {**method.hyperparameters, **hyperparameters}
    further: Mapping[str, dict[str, Any]] = {}
    if method.prepare is not None:
        further = method.prepare(lambda: _floating(source, device), **options)
    done: dict[str, Tensor] = {}
    tied = set(source.aliases.values())
    for key in source:
        if key in source.aliases:
            yield key, done[source.aliases[key]]
            continue
        experts, pretrained = source.load(key)
        reference = experts[0] if pretrained is None else pretrained
        if not is_weight(key, reference):
            merged = reference.clone()
        else:
            arguments = {**options, **further.get(key, {})}
            if method.draws:
                arguments["seed"] = _own_seed(options["seed"], key)
            where = reference.device if device is None else torch.device(device)
            chosen = get_method("average") if is_statistic(key) else method
            whole = chosen.elsewhere is None or matrices(key, reference)
            try:
                merged = _apply(chosen, whole, experts, pretrained, arguments, where)
            except _NotFinite:
                raise ValueError(culprit(key, source.names, experts, pretrained)) from None
        if key in tied:
            done[key] = merged
        yield key, merged
        del experts, pretrained, reference, merged  # else they would outlive the next load


class _NotFinite(Exception):
    """A NaN or an infinity was met."""


class _Computable(Sequence[Tensor]):
    """Tensors as a rule computes with them: each is cast, moved and checked when it is taken.

    So a rule that takes one expert at a time holds one cast copy, not one of every expert.
    """

    def __init__(
        self, tensors: Sequence[Tensor], dtype: torch.dtype, device: torch.device, checked: bool
    ) -> None:
        self._tensors, self._dtype, self._device = tensors, dtype, device
        self._checked = checked

    def __len__(self) -> int:
        return len(self._tensors)

    @overload
    def __getitem__(self, place: int) -> Tensor: ...

    @overload
    def __getitem__(self, place: slice) -> "_Computable": ...

    def __getitem__(self, place: int | slice) -> "Tensor | _Computable":
        if isinstance(place, slice):
            return _Computable(self._tensors[place], self._dtype, self._device, self._checked)
        tensor = self._tensors[place].to(device=self._device, dtype=self._dtype)
        if self._checked and not is_finite(tensor):
            raise _NotFinite
        return tensor


def is_weight(key: str, tensor: Tensor) -> bool:
    """Whether a tensor is merged, as floating ones are, and not copied, as counters are.

    Raises:
        ValueError: for floating and complex dtypes that methods do not compute with.
    """
    if not (tensor.is_floating_point() or tensor.is_complex()):
        return False
    if tensor.dtype not in DTYPES:
        kinds = ", ".join(str(dtype).removeprefix("torch.") for dtype in DTYPES)
        raise ValueError(f"{key!r} has dtype {tensor.dtype}, expected one of {kinds}")
    return True


def _floating(source: Source, device: torch.device | str | None) -> Iterator[tuple[str, Group]]:
    for key in source:
        if key not in source.aliases:
            experts, pretrained = source.load(key)
            if is_weight(key, experts[0]) and experts[0].numel() and not is_statistic(key):
                target = experts[0].device if device is None else device
                moved = None if pretrained is None else pretrained.to(target)
                yield key, ([expert.to(target) for expert in experts], moved)


def _apply(
    method: Method,
    whole: bool,
    experts: Sequence[Tensor],
    pretrained: Tensor | None,
    arguments: dict[str, Any],
    device: torch.device,
) -> Tensor:
    """One tensor through the rule (``whole``), or through what takes its place elsewhere."""
    function, elementwise = method.function, method.elementwise
    if not whole:
        assert method.elsewhere is not None
        function, elementwise = method.elsewhere, True
    accepted = inspect.signature(function).parameters
    arguments = {name: value for name, value in arguments.items() if name in accepted}
    seed = arguments.get("seed", 0)
    reference = experts[0] if pretrained is None else pretrained
    base = [] if pretrained is None else [pretrained]
    needs_base = "pretrained" in accepted
    dtype = torch.float64 if reference.dtype == torch.float64 else torch.float32

    def call(experts: Sequence[Tensor], base: Sequence[Tensor], **arguments: Any) -> Tensor:
        origin = tuple(_Computable(base, dtype, device, not (method.linear and needs_base)))
        if not needs_base:  # then it was only to be checked
            origin = ()
        parts = _Computable(experts, dtype, device, not method.linear)
        result = function(parts, *origin, **arguments)
        result = result.to(reference.dtype)  # which may overflow what float32 held
        if not is_finite(result):
            raise _NotFinite
        return result

    if not elementwise and not method.rowwise:
        if method.elsewhere is not None and reference.dim() > 2:  # a convolution, told to be one
            experts, base = ([tensor.flatten(1) for tensor in group] for group in (experts, base))
        return call(experts, base, **arguments).to(reference.device).view(reference.shape)
    out = torch.empty(reference.shape, dtype=reference.dtype, device=reference.device)
    if not out.numel():
        return out
    shape: tuple[int, ...] = (-1,)
    step = _chunk_size(method, out.numel(), device)
    if not elementwise:
        width = out.numel() // (len(out) if out.dim() > 1 else 1)
        shape, step = (-1, width), max(1, step // width)
    flat = out.view(shape)
    experts, base = ([tensor.reshape(shape) for tensor in group] for group in (experts, base))
    for start in range(0, len(flat), step):
        piece = slice(start, start + step)
        if "seed" in arguments:
            arguments["seed"] = _own_seed(seed, start) if start else seed
        flat[piece] = call([e[piece] for e in experts], [b[piece] for b in base], **arguments)
    return out


def _chunk_size(method: Method, entries: int, device: torch.device) -> int:
    """How many entries of a tensor an element-wise rule is fed at a time."""
    if method.linear and device.type == "cpu":
        return LONG
    if method.draws or device.type == "cpu":  # what is drawn shall not depend on the device
        return CHUNK
    return max(1, entries)


def culprit(
    key: str, names: Sequence[str], experts: Sequence[Tensor], pretrained: Tensor | None
) -> str:
    """What to say when merging ``key`` met something that is not finite."""
    inputs = dict(zip(names, experts, strict=True))
    if pretrained is not None:
        inputs["pretrained"] = pretrained
    for name, tensor in inputs.items():
        bad = ~torch.isfinite(tensor)
        if bad.any():
            kind = "NaN" if tensor[bad].isnan().any() else "Inf"
            return f"{name}[{key!r}] holds {kind} in {int(bad.sum())} of {bad.numel()} entries"
    return f"merging {key!r} overflowed: its inputs are finite, the result is not"


def _own_seed(seed: int, key: str | int) -> int:
    """A seed for one part of the work, whose draws then do not depend on the parts before it."""
    digest = hashlib.sha256(f"{seed}/{key}".encode()).digest()
    return int.from_bytes(digest[:7], "big")
