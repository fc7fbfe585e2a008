"""Growth whose maps are learned on the target's data, with frozen sources: `learn_growth`.

SAIL's Eq. 8 and 9 in appendix F's words: W̃ = E_out W R_inᵀ, θ̃^k = Σ_i softmax(s_k)_i θ^i, and E, R
and s descend the loss of the grown network. LiGO (Wang et al., 2023) is this for one source; as it
was published it is in `mergelib.sail.growth.ligo`. A group of units has one E and one R in the
whole network, and a list of layers one s.

Batch norms take the statistics of each batch while maps are learned. Running ones are not mapped:
they are measured anew, in every state that is given back.
"""

import copy
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from mergelib.activations import normalising_by_batch, recalibrate
from mergelib.messages.brief import Brief
from mergelib.messages.warned import warn
from mergelib.problems.calling import call_with, evaluating
from mergelib.problems.checks import check_choice, check_positive, check_steps
from mergelib.problems.examples import Examples, read_examples
from mergelib.progress import progress
from mergelib.sail.growth.depth import Depth
from mergelib.sail.growth.growing import Plan, grow, planned
from mergelib.sail.growth.width import COPYING, Width
from mergelib.statedict import is_statistic, memory_aliases
from mergelib.training import make_optimiser, shuffled, train

if TYPE_CHECKING:
    import pandas as pd

Mode = Literal["joint", "alone"]
Criterion = Callable[[Tensor, Tensor], Tensor]
COUNTER = "num_batches_tracked"  # of a batch norm
MEASURED = 500  # examples, at most, on which statistics of batch norms are measured anew


@dataclass(frozen=True, repr=False)
class LearnedGrowth(Brief):
    """What `learn_growth` gives back.

    Attributes:
        state: Σ γ_i T_i(θ_i), for the target to be trained on from.
        states: source to T_i(θ_i).
        history: the loss before every step; a column for each source, or one called ``joint``.
        passes: forward and backward passes of the target through a batch, over all sources.
        learned: how many numbers were learned.
    """

    state: dict[str, Tensor]
    states: dict[str, dict[str, Tensor]]
    history: "pd.DataFrame"
    passes: int
    learned: int


class Maps(nn.Module, ABC):
    """What makes a larger network's entries of a smaller one's, with what is learned as parameters.

    Args:
        plan: how the entries are made.
        start: all of them at the start; what no map reaches stays: running statistics, counters,
            and new layers.
    """

    def __init__(self, plan: Plan, start: dict[str, Tensor]) -> None:
        super().__init__()
        self._plan, self._start = plan, start
        self._reached = [
            key
            for key, value in start.items()
            if plan.origins[key] and value.is_floating_point()
            if key not in plan.ties and not is_statistic(key)
        ]

    @abstractmethod
    def mapping(self) -> Callable[[str], Tensor]:
        """What makes an entry that is reached, by its key, with a graph; float32 at least."""

    def forward(self) -> dict[str, Tensor]:
        """T(θ), a state dict with a graph; in the dtypes of the source."""
        mapped, reached = self.mapping(), {*self._reached}
        state: dict[str, Tensor] = {}
        for key, start in self._start.items():
            first = self._plan.ties.get(key)
            if first is not None:
                state[key] = state[first]
            else:
                state[key] = mapped(key).to(start.dtype) if key in reached else start
        return state


class Transformation(Maps):
    """T of one source, with the maps E and R and the depth logits s as parameters.

    It begins at what `grow` makes. What no map reaches there is fixed: noise, what ``"mean"``
    leaves free, and new layers that are closed.

    Args:
        source: the smaller network, which is left alone.
        target: the larger one, which is left alone too.
        width: a scheme of `grow`, but ``"svd_random"``.
        depth: a pattern of `grow`; ``"identity"`` has no logits.
        gap: of the softmax at the start, finite; not for ``"identity"``.
        noise: see `grow`.
        generator: see `grow`.

    Raises:
        ValueError: what `grow` refuses; running statistics of other norms than batch norms, naming
            the key; ``"svd_random"``; rows of depth that no softmax gives; a target without a wider
            group or a longer list.
    """

    def __init__(
        self,
        source: nn.Module,
        target: nn.Module,
        *,
        width: Width = "mean",
        depth: Depth = "identity",
        gap: float = 6.0,
        noise: float = 0.0,
        generator: torch.Generator | None = None,
    ) -> None:
        if width == "svd_random":
            raise ValueError("'svd_random' has directions of each weight, and no maps of groups")
        how: dict[str, Any] = {"width": width, "depth": depth}
        how["gap"] = math.inf if depth == "identity" else gap
        plan = planned(source, target, state=None, **how)
        super().__init__(plan, grow(source, target, **how, noise=noise, generator=generator))
        for key in filter(is_statistic, self._start):
            if not isinstance(target.get_submodule(key.rpartition(".")[0]), _BatchNorm):
                raise ValueError(
                    f"{key!r} is a running statistic, and of no batch norm: it can be neither "
                    "learned nor measured anew; use grow"
                )
        self._rest: dict[str, Tensor] = {}
        for key in self._reached:
            mapped = plan.mapped(key)
            self._rest[key] = self._start[key].to(mapped) - mapped
        device = next(iter(self._start.values())).device
        self._maps = {use: matrix.to(device) for use, matrix in plan.widening.maps.items()}
        self._uses = [use for use in self._maps if plan.widening.grows(use[0])]
        self.maps = nn.ParameterList(self._maps[use].clone() for use in self._uses)
        lists = {path: grown.rows for path, grown in plan.lists.items()}
        mixed = {path: rows for path, rows in lists.items() if _is_mixed(rows)}
        for path, rows in mixed.items():
            if not rows.all():
                raise ValueError(f"rows of {path!r} hold a 0, which no softmax gives: lower gap")
        self._lists = list(mixed)
        self.logits = nn.ParameterList(rows.log().to(device) for rows in mixed.values())
        if not self._uses and not self._lists:
            raise ValueError("nothing to learn: no group of the target is wider, no list mixed")
        if self._uses and width in COPYING and not noise:
            warn(
                "copies of units get equal gradients, and so do their maps: they remain copies, "
                "with the rank of the source; pass noise, e.g. 0.05"
            )

    def mapping(self) -> Callable[[str], Tensor]:
        """By the maps and logits as they are, with what is fixed added."""
        lists = dict(self._plan.lists)
        for path, logits in zip(self._lists, self.logits, strict=True):
            lists[path] = replace(lists[path], rows=torch.softmax(logits, 1))
        maps = {**self._maps, **dict(zip(self._uses, self.maps, strict=True))}
        plan = replace(self._plan, lists=lists, widening=self._plan.widening.replaced(maps))
        return lambda key: plan.mapped(key) + self._rest[key]


@dataclass(frozen=True, repr=False)
class Descent(Brief):
    """How maps are learned: Adam at a constant rate, the target in evaluation mode.

    Batch norms alone take each batch's statistics; the target's running ones stay.

    Attributes:
        target: the larger network.
        data: of the target, inputs with labels.
        steps: of Adam.
        batch_size: examples of a step.
        learning_rate: of every step.
        loss: from outputs ``(M, C)`` and labels ``(M,)`` to a scalar.
        seed: of batches, and of the examples on which statistics are measured.

    Raises:
        ValueError: settings out of range.
    """

    target: nn.Module
    data: Any
    steps: int
    batch_size: int
    learning_rate: float
    loss: Criterion
    seed: int

    def __post_init__(self) -> None:
        check_steps(self.steps, self.batch_size)
        check_positive("learning_rate", self.learning_rate)

    @cached_property
    def examples(self) -> Examples:
        """The data in memory.

        Raises:
            ValueError: data without labels.
        """
        examples = read_examples("target", self.data)
        if examples.labels is None:
            raise ValueError("learning a growth needs labels: pass (inputs, labels) as data")
        return examples

    def learn(self, moving: Sequence[Maps], shares: Sequence[float]) -> list[float]:
        """Move maps by the loss of Σ γ_i T_i(θ_i); the loss before every step."""

        def risk(rows: Tensor) -> Tensor:
            state = _averaged([maps() for maps in moving], shares)
            batch = self.examples[rows].to(next(iter(state.values())).device)
            outputs, labels = batch.rows_of(call_with(self.target, state, batch.inputs))
            assert labels is not None
            return self.loss(outputs, labels)

        together = nn.ModuleList(moving)
        optimiser = make_optimiser(together, "adam", self.learning_rate)
        order = torch.Generator().manual_seed(self.seed)
        batches = shuffled(len(self.examples), self.batch_size, order, steps=self.steps)
        bar = progress(batches, "growth", self.steps, leave=False)
        with evaluating(self.target), normalising_by_batch(self.target):
            return train(together, bar, risk, optimiser)

    def settled(self, state: dict[str, Tensor]) -> dict[str, Tensor]:
        """Weights with the statistics of batch norms, if there are any, measured anew.

        They are plain means over batches of about one size, of `MEASURED` examples that are drawn,
        or of all where there are fewer.
        """
        if not any(map(is_statistic, state)):
            return state
        order = torch.Generator().manual_seed(self.seed)
        rows = torch.randperm(len(self.examples), generator=order)[:MEASURED]
        parts = rows.tensor_split(math.ceil(len(rows) / self.batch_size))
        device = next(iter(state.values())).device
        batches = (self.examples[part].to(device).inputs for part in parts)
        network = copy.deepcopy(self.target)  # with the state's dtypes and devices
        network.load_state_dict({k: value.clone() for k, value in state.items()}, assign=True)
        measured = recalibrate(network, state, batches)
        counted = (key for key in state if is_statistic(key) or key.endswith(COUNTER))
        return {**state, **{key: measured[key] for key in counted}}


def learn_growth(
    sources: Mapping[str, nn.Module] | Sequence[nn.Module],
    target: nn.Module,
    data: Any,
    *,
    mode: Mode = "joint",
    weights: Sequence[float] | Tensor | None = None,
    width: Width = "mean",
    depth: Depth = "identity",
    gap: float = 6.0,
    noise: float = 0.0,
    steps: int = 100,
    batch_size: int = 64,
    learning_rate: float = 1e-3,
    loss: Criterion = F.cross_entropy,
    seed: int = 0,
) -> LearnedGrowth:
    """Grow networks by maps that are learned on the target's data (SAIL, appendices F.1 and F.2).

    Adam moves E and R of every group that grows, and the logits of every list of layers that is
    mixed, from where `mergelib.grow` begins; sources and target stay. The target runs in evaluation
    mode, so there is no dropout; batch norms alone take the statistics of each batch. Their running
    ones are measured anew afterwards, on the inputs of at most `MEASURED` examples.

    Args:
        sources: the smaller networks, by name or as a list; each of the target's family, their
            sizes may differ.
        target: the larger network, whose shapes are wanted.
        data: of the target, inputs with labels, as `mergelib.adapt` reads those of a task.
        mode: ``"joint"`` learns all T_i by the loss of Σ γ_i T_i(θ_i), ``"alone"`` each by that of
            T_i(θ_i), which may leave the T_i without a common basis for the average.
        weights: γ, one for each source, of sum 1 (some may be negative); uniform by default.
        width: where the maps begin, see `mergelib.grow`; all schemes but ``"svd_random"``. Copies
            get equal gradients and so do their maps: give ``"replicate"``, ``"svd"`` and ``"aki"``
            some ``noise``, or they remain copies, which is warned of.
        depth: where the logits begin; ``"identity"`` has none, as its new layers are no mixtures.
        gap: of the softmax over the pattern of another ``depth``, finite.
        noise: see `mergelib.grow`; it is drawn once and stays.
        steps: of Adam, for each source in the mode ``"alone"``.
        batch_size: examples of a step.
        learning_rate: of Adam, constant.
        loss: from outputs ``(M, C)`` and labels ``(M,)`` to a scalar; positions of sequences are
            rows of their own.
        seed: of noise and batches; each source alone sees the same batches.

    Returns:
        See `LearnedGrowth`; without steps its states are those of `mergelib.grow`, but for the
        statistics of batch norms.

    Raises:
        ValueError: what `mergelib.grow` refuses, and `Transformation`; no sources, data without
            labels, weights that do not fit; settings out of range; by PyTorch, a batch in which a
            batch norm sees a single value of a unit.
        FloatingPointError: a loss that is not finite.
    """
    import pandas as pd

    check_choice("mode", mode, ("joint", "alone"))
    descent = Descent(target, data, steps, batch_size, learning_rate, loss, seed)
    given = sources if isinstance(sources, Mapping) else dict(_numbered(sources))
    gamma = _checked_weights(weights, len(given))
    options: dict[str, Any] = {"width": width, "depth": depth, "gap": gap, "noise": noise}
    options["generator"] = torch.Generator().manual_seed(seed)
    maps = {name: Transformation(net, target, **options) for name, net in given.items()}
    if mode == "joint":
        history = {"joint": descent.learn(list(maps.values()), gamma)}
    else:
        history = {name: descent.learn([own], [1.0]) for name, own in maps.items()}
    with torch.no_grad():
        grown = {name: own() for name, own in maps.items()}
        average = _averaged(list(grown.values()), gamma)
    states = {name: descent.settled(own) for name, own in grown.items()}
    state = descent.settled(average) if len(states) > 1 else next(iter(states.values()))
    return LearnedGrowth(
        state,
        states,
        pd.DataFrame(history),
        passes=sum(map(len, history.values())),
        learned=sum(p.numel() for own in maps.values() for p in own.parameters()),
    )


def _is_mixed(rows: Tensor) -> bool:
    """Whether layers are averages of several, so that their rows can be learned."""
    return rows.shape[1] > 1 and bool(rows.any(1).all())


def _numbered(sources: Sequence[nn.Module]) -> Iterator[tuple[str, nn.Module]]:
    return ((f"source {number}", source) for number, source in enumerate(sources))


def _checked_weights(weights: Sequence[float] | Tensor | None, count: int) -> list[float]:
    """γ as numbers, uniform where there are none."""
    if not count:
        raise ValueError("nothing to grow: there are no sources")
    if weights is None:
        return [1 / count] * count
    gamma = [float(weight) for weight in weights]
    if len(gamma) != count or not abs(sum(gamma) - 1) < 1e-6:
        raise ValueError(f"weights are {gamma}, expected {count}, one per source, of sum 1")
    return gamma


def _averaged(states: Sequence[dict[str, Tensor]], gamma: Sequence[float]) -> dict[str, Tensor]:
    """Σ γ_i θ_i; integers are the first's, and ties stay."""
    if len(states) == 1:
        return states[0]
    mixed: dict[str, Tensor] = {}
    ties = memory_aliases(states[0])
    for key, tensor in states[0].items():
        if key in ties:
            mixed[key] = mixed[ties[key]]
        elif tensor.is_floating_point():
            parts = (share * state[key] for share, state in zip(gamma, states, strict=True))
            mixed[key] = torch.stack([*parts]).sum(0)
        else:
            mixed[key] = tensor
    return mixed
