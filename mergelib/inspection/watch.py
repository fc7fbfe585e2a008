"""Refuse integers and ties that differ; warn, after the last tensor, of copies and strangers.

The cosine between weights of one training run and its fine-tuned descendants is usually above 0.9,
and stays well above 0.1 after long training. The cosine between two separate initialisations is 0,
because their neurons stand in another order; the average of such models has learned nothing.
"""

from collections.abc import Callable, Mapping, Sequence, Set

import torch
from torch import Tensor
from torch.nn.functional import normalize

from mergelib.messages.warned import warn
from mergelib.statedict import StateDict, layout_of

SAMPLE = (1024, 256)  # entries of a tensor that are looked at: of the first ones, and of others
FIRST = 4096  # entries that the first ones give
ENOUGH = 500  # entries in all, below which nothing is said: a chance cosine has deviation 0.045
NOTHING = 0.1  # a cosine below which two models have nothing in common
PARALLEL = 0.8  # a cosine above which task vectors share more than a start
RIGHT = 0.1  # a cosine below which two differences are at right angles
SLANTED = 0.5  # a cosine that task vectors have if the pretrained model is one of the experts
SHORT = 0.3  # times the pretrained model's length, below which it is a difference from it

# Integers that may differ: they count or number something. Single numbers may, whatever they are.
COUNTERS = frozenset({"num_batches_tracked", "position_ids"})
_LEAVE_OUT = "; if they are none, leave them out with exclude="


class Watch:
    """What is noticed about merged models, the last of which is the base if ``pretrained``."""

    def __init__(self, names: Sequence[str], *, pretrained: bool) -> None:
        self.names = [*names, "pretrained"] if pretrained else list(names)
        self.pretrained = pretrained
        count = len(self.names)
        self.groups = [list(range(count))]  # models that were equal in every tensor so far
        self.any = False  # whether a tensor had an entry
        self.seen = 0  # entries of each model that were looked at
        self.products = torch.zeros(count, count)  # entries times cosine, summed
        self.entries = torch.zeros(count, count)  # and how many entries these are
        self.squares = torch.zeros(count)  # each model's entries, squared and summed
        self.shared = torch.zeros(count, count)  # scalar products of differences from the last

    def add(self, read: Callable[[int], Tensor]) -> None:
        """Look at samples of one weight of every model; ``read`` returns a model's tensor."""
        samples, dimensions = [], 0
        for i in range(len(self.names)):
            tensor = read(i)
            samples.append(self._sample(tensor))
            dimensions = tensor.dim()
            del tensor  # before the next one is read
        self.any = self.any or samples[0].numel() > 0
        self.groups = [part for group in self.groups for part in _split(group, samples, read)]
        if dimensions > 1:  # the gains of a normalisation start at one in every model
            self._compare(samples)

    def _sample(self, tensor: Tensor) -> Tensor:
        """Return a copy of some entries; an odd step reaches all columns of a matrix."""
        flat = tensor.reshape(-1)
        return flat[:: -(-len(flat) // SAMPLE[self.seen >= FIRST]) | 1].clone()

    def _compare(self, samples: Sequence[Tensor]) -> None:
        """Add the cosines between samples of one weight; each tensor counts by its samples."""
        where = samples[0].device
        sampled = torch.stack([sample.to(where, torch.float32) for sample in samples])
        count = sampled.shape[1]
        self.seen += count
        nonzero = sampled.any(1).float()  # zeros have no direction
        self.squares = self.squares.to(where) + sampled.square().sum(1)
        apart = sampled - sampled[-1]
        self.shared = self.shared.to(where) + apart @ apart.T
        sampled = normalize(sampled)
        self.products = self.products.to(where) + count * (sampled @ sampled.T)
        self.entries = self.entries.to(where) + count * torch.outer(nonzero, nonzero)

    def unrelated(self) -> tuple[str, str, float] | None:
        """Return two unrelated models, one the base if there is one, and their cosine, or None."""
        cosines, count = self._cosines(), len(self.names)
        for i in range(count - 1):
            for j in [count - 1] if self.pretrained else range(i + 1, count):
                if cosines[i, j] < NOTHING:
                    return self.names[i], self.names[j], float(cosines[i, j])
        return None

    def parallel(self) -> float:
        """Return the least cosine of two task vectors, or 0 without enough of them."""
        own = self.shared[:-1, :-1].cpu()
        lengths = own.diag().sqrt()
        if not self.pretrained or len(own) < 2 or self.groups or self.seen < ENOUGH:
            return 0.0
        return float((own / torch.outer(lengths, lengths)).min())

    def centre(self) -> str:
        """Return the expert from which the others appear to be fine-tuned, or an empty name.

        Differences from the model where training started are nearly at right angles. If that model
        is expert i and the base is another of its descendants, all differences from i are, and
        those from the base are not: two of equal length have the cosine 1/√2 with each other. The
        same right-angled triangle comes from a base, its descendant i and a descendant of i.
        """
        own = self.shared[:-1, :-1].cpu()
        if not self.pretrained or len(own) < 2 or self.groups or self.seen < ENOUGH:
            return ""
        squares = own.diag()
        for i, name in enumerate(self.names[:-1]):
            others = torch.arange(len(own)) != i
            products, ours, theirs = own[i][others], squares[i], squares[others]
            lengths = (theirs + ours - 2 * products).sqrt()  # of differences from expert i
            right = (ours - products).abs() < RIGHT * ours.sqrt() * lengths
            slanted = products > SLANTED * (ours * theirs).sqrt()
            if bool((right & slanted).all()):
                return name
        return ""

    def _cosines(self) -> Tensor:
        """Return the cosine of every two models, NaN of those of which too little was looked at."""
        cosines = self.products / self.entries
        return cosines.where(self.entries >= ENOUGH, torch.nan).cpu()

    def tell(self) -> None:
        """Warn about two unrelated models, and about models that equal the base or one another."""
        if (pair := self.unrelated()) is not None:
            one, other, cosine = pair
            lengths = dict(zip(self.names, self.squares.sqrt().tolist(), strict=True))
            if self.pretrained and lengths[one] < SHORT * lengths[other]:
                warn(
                    f"{one} appears to be a task vector and not a fine-tuned model: its weights "
                    f"are {lengths[one] / lengths[other]:.2g} times as long as those of {other} "
                    f"and have another direction; add it to {other} first (mergelib.add)"
                )
            else:
                advice = (
                    "so they do not come from one pretrained model. Merged weights of unrelated "
                    "training runs are useless unless their neurons are matched first "
                    "(mergelib.align)"
                )
                if self.pretrained and self._cosines()[0, 1] > NOTHING:
                    advice = (
                        "but the experts are related to each other: they were probably fine-tuned "
                        f"from another model than {other}"
                    )
                warn(
                    f"unrelated models: {one} and {other} have nothing in common (the cosine of "
                    f"their weights is {cosine:.2f}), {advice}"
                )
        elif (cosine := self.parallel()) > PARALLEL:
            warn(
                f"the task vectors are nearly parallel (cosines of {cosine:.2f} or more): unless "
                "the experts come from one run or one data set, they were probably fine-tuned from "
                f"another model than {self.names[-1]}, and share their difference from it"
            )
        elif start := self.centre():
            warn(
                f"the other experts and {self.names[-1]} appear to be fine-tuned from {start}, "
                f"because their differences from it are at right angles, and those from "
                f"{self.names[-1]} are not: check that {self.names[-1]} and {start} are not "
                f"swapped, and leave {start} out if it is an earlier checkpoint of another expert"
            )
        for group in self.groups if self.any else []:
            if self.pretrained and group[-1] == len(self.names) - 1:
                are = "is" if len(group) == 2 else "are"
                warn(
                    f"{' and '.join(self.names[i] for i in group[:-1])} {are} the pretrained model "
                    "itself, equal to it in every merged tensor, and has learned nothing to merge: "
                    "leave it out"
                )
            else:
                warn(
                    f"{' and '.join(self.names[i] for i in group)} are one model, equal in every "
                    f"merged tensor, which therefore counts {len(group)} times: pass each expert "
                    "once"
                )


def _split(
    group: list[int], samples: Sequence[Tensor], read: Callable[[int], Tensor]
) -> list[list[int]]:
    """Split a group into subgroups of at least two equal tensors."""
    parts: list[list[int]] = []
    for i in group:
        for part in parts:
            j = part[0]
            if equal(samples[j], samples[i]) and equal(read(j), read(i)):
                part.append(i)
                break
        else:
            parts.append([i])
    return [part for part in parts if len(part) > 1]


def equal(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors are equal at the precision of the coarser one."""
    if one.dtype != other.dtype:
        kind = min(one.dtype, other.dtype, key=lambda dtype: (dtype.itemsize, str(dtype)))
        one, other = one.to(kind), other.to(kind)
    return torch.equal(one, other.to(one.device))


def check_integers(
    models: Mapping[str, StateDict], keys: Set[str], aliases: Set[str], *, parts: bool
) -> None:
    """Raise ``ValueError`` for integers that differ between models, except counters.

    Integers are copied from the first model, which is right only for counters. No other tensor is
    read. With ``parts`` the message may suggest ``exclude=``.
    """
    (what, reference), *others = models.items()
    for key, kind in layout_of(reference).items():
        if key not in keys or key in aliases or kind.is_floating_point() or kind.is_complex():
            continue
        if key.rpartition(".")[2] in COUNTERS or kind.numel() < 2 or not others:
            continue
        expected = reference[key]
        for name, model in others:
            if not _same_bytes(expected, model[key]):
                raise ValueError(
                    f"{name}[{key!r}] differs from that of {what}, but {kind.dtype} "
                    "cannot be merged: if these are quantised weights, dequantise the models first"
                    + (_LEAVE_OUT if parts else "")
                )


def _same_bytes(one: Tensor, other: Tensor) -> bool:
    """Whether tensors of one dtype hold the same bytes; some dtypes have no comparison."""
    raw = (t.detach().cpu().contiguous().reshape(-1).view(torch.uint8) for t in (one, other))
    return torch.equal(*raw)


def check_ties(
    models: Mapping[str, StateDict], ties: Mapping[str, Mapping[str, str]], merged: Set[str]
) -> None:
    """Raise ``ValueError`` for names that some models tie and others give two different tensors."""
    for name, ties_here in ties.items():
        for key, first in ties_here.items():
            if not {key, first} <= merged:
                continue
            for other, state in models.items():
                ties_there = ties[other]
                if ties_there.get(key, key) == ties_there.get(first, first) or not (
                    key in state and first in state
                ):
                    continue
                if not torch.equal(state[key], state[first]):
                    raise ValueError(
                        f"{name} ties {key!r} to {first!r}, but {other} holds two tensors there, "
                        f"one of which would be lost: give {name} a tensor of its own under each "
                        "name (a clone), and let the merged model's configuration not tie them "
                        "(tie_word_embeddings: false)"
                    )
