"""The ground of SAIL's studies in text: models of parts D_1 and D_2, averaged, trained on D_t."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeVar

import torch
from torch import Tensor, nn

from mergebook.sail.thirds import cut_blocks, held_stretch
from mergebook.suites.data.texts import CHARACTERS, encode, encode_pairs
from mergebook.suites.models import GPT, to_tokens
from mergebook.suites.training import checkpoints
from mergelib.evaluation.tasks import Split, as_stored, cross_entropy
from mergelib.hashing import stable_seed
from mergelib.messages.brief import Brief
from mergelib.problems import calling
from mergelib.statedict import StateDict, lerp
from mergelib.training import seeded

GAMMAS = tuple(round(-1 + 0.1 * i, 1) for i in range(31))  # the paper's, with 0, ½ and 1
FINE = (-0.5, -0.25, 0.0, 0.125, 0.25, 0.375, 0.5, 0.625, 0.75, 0.875, 1.0, 1.25, 1.5)
_MODEL = {"width": 384, "depth": 6, "heads": 6, "context": 256}  # nanoGPT's, of characters
# 400 such steps see a training set of half a megabyte about 20 times.
_TRAINING = {"batch_size": 64, "source_steps": 400, "judged": 100}
_RATES = dict.fromkeys(("source_rate", "rate"), 1e-3)
PROFILES: dict[str, dict[str, Any]] = {"default": {}, "full": {**_MODEL, **_TRAINING, **_RATES}}
State = dict[str, Tensor]
States = dict[int, State]  # of a network on the way, by step
Part = TypeVar("Part")


@dataclass(frozen=True)
class Plan:
    """Sizes of models, texts and trainings."""

    width: int = 32  # of the GPT
    depth: int = 2  # its blocks
    heads: int = 4  # of each
    context: int = 64  # tokens that it sees
    batch_size: int = 8  # windows of a step, of `context` tokens each
    source_steps: int = 300  # of Adam, for each source
    source_rate: float = 3e-3  # of every such step, and of scratch's; the rate is constant
    rate: float = 3e-3  # of every step from trained weights
    factors: Sequence[float] = (1.0,)  # of that rate, or of scratch's
    reads: Sequence[int] = (0, 50, 100, 200)
    gammas: Sequence[float] = GAMMAS  # weights of θ_1, 0, ½ and 1 among them
    pairs: int = 0  # size of a vocabulary of byte pairs; 0 for characters
    block: int = 1024  # tokens of a block
    held: float = 0.2  # share of the text that is held out, one stretch
    judged: int = 80  # windows at most of each half of it

    def __post_init__(self) -> None:
        if not {0.0, 0.5, 1.0} <= {*self.gammas}:
            raise ValueError(f"gammas are {[*self.gammas]}, expected 0, 0.5 and 1 among them")
        if self.block <= self.context:
            raise ValueError(f"a block of {self.block} tokens holds no window of {self.context}")

    @property
    def vocabulary(self) -> int:
        """Rows of the token table."""
        return self.pairs or len(CHARACTERS)


@dataclass(frozen=True, repr=False)
class Texts(Brief):
    """What a study of texts works on."""

    seed: int  # of all that is drawn
    texts: Mapping[str, str]  # by name, the suite's first
    profile: str = "default"  # one of `PROFILES`
    device: str = "cpu"  # of networks


class Parted(NamedTuple, Generic[Part]):
    """Rows of blocks, or windows, to train on, to choose γ by, and to judge the choice."""

    train: Part
    choose: Part
    judge: Part


Rows = Parted[Tensor]
Target = Parted[Split]


@dataclass(frozen=True, repr=False)
class Corpus(Brief):
    """Texts as blocks."""

    plan: Plan  # the sizes
    blocks: Tensor  # of tokens, `(n, block)`, int64, one text after the other
    texts: tuple[Tensor, ...]  # rows of each text
    held: Tensor  # which blocks are held out, bool `(n,)`, one stretch of each text
    seed: int  # of all that is drawn
    device: str = "cpu"  # of networks; data stay where they are

    def parted(self, rows: Tensor) -> Rows:
        """Rows of a part, those that are held out apart, cut in the middle."""
        held = rows[self.held[rows]].sort().values
        if len(held) < 2:
            raise ValueError(
                f"{len(held)} blocks of a part are held out, expected at least 2: take smaller "
                "blocks, or hold out more"
            )
        middle = len(held) // 2
        return Rows(rows[~self.held[rows]], held[:middle], held[middle:])

    def windows(self, rows: Tensor, at_most: int | None = None) -> Split:
        """Windows of some blocks with the tokens that come next, evenly spread if not all."""
        length = self.plan.context + 1
        blocks = self.blocks[rows]
        each = blocks.shape[1] // length
        cut = blocks[:, : each * length].reshape(-1, length)
        if at_most is not None:
            cut = cut[:: -(-len(cut) // at_most)]
        return Split(cut[:, :-1].contiguous(), cut[:, 1:].contiguous())

    def target(self, rows: Rows) -> Target:
        """What there is to train on and to judge by."""
        few = self.plan.judged
        halves = (self.windows(part, few) for part in (rows.choose, rows.judge))
        return Target(self.windows(rows.train), *halves)

    def model(self, *names: object) -> nn.Module:
        """A GPT at a random start of that name."""
        plan = self.plan
        with seeded(stable_seed("start", *names, self.seed)):
            size = {"vocabulary": plan.vocabulary, "context": plan.context}
            return GPT(plan.width, plan.depth, plan.heads, **size).to(self.device)

    def source(self, model: nn.Module, rows: Tensor, *names: object) -> State:
        """A source: a model after training on some blocks, in an order of that name."""
        steps, rate = self.plan.source_steps, self.plan.source_rate
        return self.trained(model, self.windows(rows), [steps], rate, *names)[steps]

    def trained(
        self, model: nn.Module, split: Split, steps: Sequence[int], rate: float, *names: object
    ) -> States:
        """A model after some steps on windows, see `by_adam`, in an order of that name."""
        seed, size = stable_seed("order", *names, self.seed), self.plan.batch_size
        return by_adam(model, split, steps, rate, batch_size=size, transform=to_tokens, seed=seed)

    def from_scratch(self, target: Target) -> Iterator[dict[str, Any]]:
        """`retrained` from a random start, at the rate of sources."""
        return self.retrained(self.model("scratch").state_dict(), target, self.plan.source_rate)

    def retrained(
        self, start: StateDict, target: Target, rate: float | None = None
    ) -> Iterator[dict[str, Any]]:
        """``step``, ``choose`` and ``judge`` (nats per token) of a start and after some steps."""
        model = self.model("shared")
        model.load_state_dict(dict(start))
        later = [step for step in self.plan.reads if step > 0]
        runs = []
        for factor in self.plan.factors:
            pace = factor * (rate or self.plan.rate)
            after = self.trained(model, target.train, later, pace, "retraining")
            states = ((step, after.get(step, start)) for step in self.plan.reads)
            runs.append([{"step": step, **_losses(model, at, target)} for step, at in states])
        yield from min(runs, key=lambda rows: rows[-1]["choose"])

    def swept(self, one: StateDict, two: StateDict, target: Target) -> Iterator[dict[str, Any]]:
        """`retrained` from γ θ_1 + (1 − γ) θ_2, for every ``gamma``."""
        for gamma in self.plan.gammas:
            for row in self.retrained(lerp(two, one, gamma), target):
                yield {"gamma": gamma, **row}


def by_adam(
    net: nn.Module, split: Split, steps: Sequence[int], rate: float, **options: Any
) -> States:
    """`checkpoints` by Adam, of a network that has its head and trains it, too."""
    options = {"optimiser": "adam", "learning_rate": rate, "transform": as_stored, **options}
    return checkpoints(net, nn.Identity(), split, steps, **options)


def load_corpus(source: Texts, changes: Mapping[str, Any] = {}, **usual: Any) -> Corpus:
    """Texts as blocks of tokens, a stretch of each held out; byte pairs are learned on them all."""
    plan = Plan(**{**usual, **PROFILES[source.profile], **changes})
    texts, seed = [*source.texts.values()], source.seed
    codes = encode_pairs(texts, plan.pairs) if plan.pairs else [encode(text) for text in texts]
    tables = [cut_blocks(tokens, plan.block).long() for tokens in codes]
    drawn = stable_seed("held", seed)
    held = torch.cat([held_stretch(len(table), plan.held, drawn) for table in tables])
    rows = torch.arange(len(held)).split([len(table) for table in tables])
    return Corpus(plan, torch.cat(tables), rows, held, seed, source.device)


def _losses(model: nn.Module, state: StateDict, target: Target) -> dict[str, float]:
    losses = {}
    for name, split in {"choose": target.choose, "judge": target.judge}.items():
        rows = calling.features(model, state, split.inputs, batch_size=80, transform=to_tokens)
        losses[name] = cross_entropy(rows.cpu(), split.labels).item()
    return losses
