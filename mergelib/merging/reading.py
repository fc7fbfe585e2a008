"""Read the weights of a source, one parameter of all models at a time."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from mergelib.io.names import Renamed
from mergelib.merging.applying import dtypes, precision
from mergelib.progress import progress
from mergelib.registry import parameters_of
from mergelib.statedict import FLOATS, StateDict, is_finite, is_statistic

if TYPE_CHECKING:
    from mergelib.merging import Source

Group = tuple[list[Tensor], Tensor | None]  # one parameter: the experts' tensors, the pretrained


class Filled(Renamed):
    """A model whose ``filled`` tensors have the base's entries, else 0, in place of NaN and Inf."""

    def __init__(self, model: StateDict, base: StateDict, filled: Set[str]) -> None:
        super().__init__(model)
        self.start, self.filled = base, filled

    def __getitem__(self, key: str) -> Tensor:
        tensor = super().__getitem__(key)
        if key not in self.filled or tensor.dtype not in FLOATS or is_finite(tensor):
            return tensor
        base = self.start[key].nan_to_num(0, 0, 0).to(tensor.device)
        return tensor.where(tensor.isfinite(), base)

    def restored(self, key: str, merged: Tensor) -> Tensor:
        """Return a merged tensor with the NaN and Inf of this model."""
        own = super().__getitem__(key)
        return merged.where(own.isfinite(), own).to(merged.dtype)


def is_weight(key: str, tensor: Tensor) -> bool:
    """Whether a tensor is floating, so that it is merged; ValueError for unsupported dtypes."""
    if not (tensor.is_floating_point() or tensor.is_complex()):
        return False
    if tensor.dtype not in FLOATS:
        raise ValueError(
            f"{key!r} has dtype {tensor.dtype}, expected float16, bfloat16, float32 or float64: "
            "dequantise or cast the models first"
        )
    return True


def weights_of(
    source: "Source",
    device: torch.device | str | None = None,
    *,
    wide: bool = True,
    label: str = "",
) -> Iterator[tuple[str, Group]]:
    """Yield every weight that is merged, tied ones once, in float32 or wider if ``wide``."""
    for key in passed(source, label):
        if key not in source.selection.merged or key in source.aliases:
            continue
        experts, pretrained = source.load(key)
        if is_weight(key, experts[0]):
            target = experts[0].device if device is None else device
            convert = wide or len(dtypes(experts, pretrained)) > 1
            dtype = precision(experts, pretrained) if convert else None
            moved = None if pretrained is None else pretrained.to(target, dtype)
            yield key, ([expert.to(target, dtype) for expert in experts], moved)


def first_pass(
    source: "Source", device: torch.device | str | None = None, label: str = ""
) -> Iterator[tuple[str, Group]]:
    """Yield the weights that a first pass reads, which casts them piece by piece."""
    for key, group in weights_of(source, device, wide=False, label=label):
        if group[0][0].numel() and not is_statistic(key):
            yield key, group


@dataclass(frozen=True)
class PerTensor:
    """A first pass: a rule's argument of this name, from a tensor and hyperparameters."""

    name: str
    compute: Callable[..., Any]

    def __call__(
        self, tensors: Callable[[], Iterable[tuple[str, Group]]], at: Mapping[str, dict[str, Any]]
    ) -> dict[str, dict[str, Any]]:
        known = parameters_of(self.compute).keys()
        own = {key: {name: at[key][name] for name in known & at[key].keys()} for key in at}
        return {key: {self.name: self.compute(*group, **own[key])} for key, group in tensors()}


def passed(source: "Source", label: str) -> Iterator[str]:
    """Yield the keys of a source, with a progress bar in bytes if there is a label."""
    if not label:
        yield from source
        return
    layout = source.layout
    sizes = {key: layout[key].nbytes for key in source}
    with progress(desc=label, total=sum(sizes.values()), unit="B", unit_scale=True) as bar:
        for key, size in sizes.items():
            yield key
            bar.update(size)
