"""Warn once, after the last tensor, about models that are copies or unrelated.

The cosine between weights of one training run and its fine-tuned descendants is usually above 0.9,
and stays well above 0.1 after long training. The cosine between two separate initialisations is 0,
because their neurons stand in another order; the average of such models has learned nothing.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn.functional import normalize

from mergelib.messages.warned import warn

SAMPLE = (1024, 256)  # entries of a tensor that are looked at: of the first ones, and of others
FIRST = 4096  # entries that the first ones give
ENOUGH = 500  # entries in all, below which nothing is said: a chance cosine has deviation 0.045
NOTHING = 0.1  # a cosine below which two models have nothing in common
SHORT = 0.3  # times the pretrained model's length, below which it is a difference from it


class Kinship:
    """Whether models have a common origin; the last is the base if ``pretrained``."""

    def __init__(self, names: Sequence[str], *, pretrained: bool) -> None:
        self.names, self.pretrained = list(names), pretrained
        self.seen = 0
        self.products: Tensor | None = None  # each model with each: entries times cosine, summed
        self.entries = torch.zeros(0)  # and how many entries these are
        self.squares = torch.zeros(0)  # each model's sampled entries, squared and summed

    def sample(self, tensor: Tensor) -> Tensor:
        """Return a copy of some entries; an odd step reaches all columns of a matrix."""
        flat = tensor.reshape(-1)
        return flat[:: -(-len(flat) // SAMPLE[self.seen >= FIRST]) | 1].clone()

    def add_samples(self, samples: Sequence[Tensor]) -> None:
        """Add the samples of one weight of every model; each tensor counts by its samples."""
        if len(samples) < 2 or not samples[0].numel():
            return
        where = samples[0].device
        sampled = torch.stack([sample.to(where, torch.float32) for sample in samples])
        self.seen += sampled.shape[1]
        nonzero = sampled.any(1).float()  # zeros have no direction
        squares = sampled.square().sum(1)
        sampled = normalize(sampled)
        if self.products is None:
            self.products = self.entries = torch.zeros(len(samples), len(samples), device=where)
            self.squares = torch.zeros(len(samples), device=where)
        self.squares = self.squares + squares
        self.products = self.products + sampled.shape[1] * (sampled @ sampled.T)
        self.entries = self.entries + sampled.shape[1] * torch.outer(nonzero, nonzero)

    def unrelated(self) -> tuple[str, str, float] | None:
        """Return two unrelated models, one the base if there is one, and their cosine, or None."""
        if self.products is None:
            return None
        cosines, entries = (self.products / self.entries).cpu(), self.entries.cpu()
        count = len(self.names)
        for i in range(count - 1):
            for j in [count - 1] if self.pretrained else range(i + 1, count):
                if entries[i, j] >= ENOUGH and cosines[i, j] < NOTHING:
                    return self.names[i], self.names[j], float(cosines[i, j])
        return None

    def tell(self) -> None:
        """Warn about two unrelated models."""
        if (pair := self.unrelated()) is not None:
            one, other, cosine = pair
            lengths = dict(zip(self.names, self.squares.sqrt().tolist(), strict=True))
            if self.pretrained and lengths[one] < SHORT * lengths[other]:
                warn(
                    f"{one} appears to be a task vector and not a fine-tuned model: its weights "
                    f"are {lengths[one] / lengths[other]:.2g} times as long as those of {other} "
                    f"and have another direction; add it to {other} first (mergelib.add)"
                )
                return
            warn(
                f"unrelated models: {one} and {other} have nothing in common (the cosine of their "
                f"weights is {cosine:.2f}), so they do not come from one pretrained model. Merged "
                "weights of unrelated training runs are useless unless their neurons are matched "
                "first (mergelib.align)"
            )


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
        if dimensions > 1:  # the gains of a normalisation start at one in every model
            self._kinship.add_samples(samples)

    def tell(self) -> None:
        """Warn about models that are unrelated or equal."""
        self._kinship.tell()
        self._copies.tell()
