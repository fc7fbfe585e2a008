"""Warn once, after the last tensor, about models that are copies or unrelated."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from mergelib.inspection.kinship import Kinship
from mergelib.messages.warned import warn


class Copies:
    """Groups of models that were equal in every merged tensor so far."""

    def __init__(self, names: Sequence[str], *, pretrained: bool) -> None:
        self.names, self.pretrained = list(names), pretrained
        self.seen = False
        self.groups = [list(range(len(self.names)))]

    def add(self, samples: Sequence[Tensor], read: Callable[[int], Tensor]) -> None:
        """Compare one tensor of every model: samples first, then whole tensors from ``read``."""
        self.seen = self.seen or samples[0].numel() > 0
        self.groups = [part for group in self.groups for part in _split(group, samples, read)]

    def tell(self) -> None:
        """Warn about experts that equal the pretrained model or one another."""
        for group in self.groups if self.seen else []:
            names = " and ".join(self.names[i] for i in group)
            experts = [
                self.names[i] for i in group if not (self.pretrained and i == len(self.names) - 1)
            ]
            if len(experts) < len(group):
                are = "is" if len(experts) == 1 else "are"
                warn(
                    f"{' and '.join(experts)} {are} the pretrained model itself, equal to it in "
                    "every merged tensor, and has learned nothing to merge: leave it out"
                )
            else:
                warn(
                    f"{names} are one model, equal in every merged tensor, which therefore counts "
                    f"{len(group)} times: pass each expert once"
                )


def _split(
    group: list[int], samples: Sequence[Tensor], read: Callable[[int], Tensor]
) -> list[list[int]]:
    """Split a group into subgroups of at least two equal tensors."""
    parts: list[list[int]] = []
    for i in group:
        for part in parts:
            j = part[0]
            if _equal(samples[j], samples[i]) and _equal(read(j), read(i)):
                part.append(i)
                break
        else:
            parts.append([i])
    return [part for part in parts if len(part) > 1]


def _equal(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors are equal at the precision of the coarser one."""
    if one.dtype != other.dtype:
        kind = min(one.dtype, other.dtype, key=lambda dtype: (dtype.itemsize, str(dtype)))
        one, other = one.to(kind), other.to(kind)
    return torch.equal(one, other.to(one.device))


class Watch:
    """Everything that is checked in the weights while models are merged."""

    def __init__(self, names: Sequence[str], *, pretrained: bool) -> None:
        everyone = [*names, "pretrained"] if pretrained else names
        self._kinship = Kinship(everyone, pretrained=pretrained)
        self._copies = Copies(everyone, pretrained=pretrained)

    def add(self, experts: Sequence[Tensor], pretrained: Tensor | None) -> None:
        """Check one weight of every model."""
        tensors = [*experts, *([] if pretrained is None else [pretrained])]
        samples = [self.sample(tensor) for tensor in tensors]
        self.add_samples(samples, tensors[0].dim(), tensors.__getitem__)

    def sample(self, tensor: Tensor) -> Tensor:
        """Return a copy of some entries, for `add_samples`."""
        return self._kinship.sample(tensor)

    def add_samples(
        self, samples: Sequence[Tensor], dimensions: int, read: Callable[[int], Tensor]
    ) -> None:
        """Check one weight by samples, the base's last; ``read`` returns whole tensors."""
        self._copies.add(samples, read)
        if dimensions > 1:
            self._kinship.add_samples(samples)

    def tell(self) -> None:
        """Warn about models that are unrelated or equal."""
        self._kinship.tell()
        self._copies.tell()
