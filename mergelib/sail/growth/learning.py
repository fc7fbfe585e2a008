"""Learn the maps of growth on the target's data, with frozen sources: `learn_growth`.

SAIL's Eqs. 8 and 9 in the words of appendix F: W̃ = E_out W R_inᵀ and θ̃^k = Σ_i softmax(s_k)_i
θ^i, where E, R and s descend the loss of the grown network. Each group of units has one E and one
R, and each list of layers one s.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mergelib.activations import normalising_by_batch, recalibrate_batchnorm
from mergelib.messages.brief import Brief
from mergelib.messages.kinds import Count, Positive, Size, annotations_of, check_fits
from mergelib.problems.calling import call_with, evaluating
from mergelib.problems.examples import Examples, read_examples
from mergelib.progress import progress
from mergelib.sail.growth.depth import Depth
from mergelib.sail.growth.ligo import PublishedLiGO
from mergelib.sail.growth.maps import Maps, Transformation
from mergelib.sail.growth.width import Width
from mergelib.statedict import is_statistic, memory_aliases
from mergelib.training import make_optimiser, shuffled, train

if TYPE_CHECKING:
    import pandas as pd

Mode = Literal["joint", "alone"]
Criterion = Callable[[Tensor, Tensor], Tensor]
COUNTER = "num_batches_tracked"  # of a batch norm
MEASURED = 500  # examples, at most, to re-estimate batch-norm statistics


@dataclass(frozen=True, repr=False)
class LearnedGrowth(Brief):
    """Result of `learn_growth`."""

    state: dict[str, Tensor]  # Σ γ_i T_i(θ_i), the initial weights of the target
    states: dict[str, dict[str, Tensor]]  # source to T_i(θ_i)
    history: "pd.DataFrame"  # loss before every step; a column per source, or one called "joint"


@dataclass(frozen=True, repr=False)
class Descent(Brief):
    """Learns maps by Adam at a constant rate, with the target in evaluation mode.

    Batch norms use each batch's statistics; the target's running ones stay.
    """

    target: nn.Module
    data: Any
    steps: int
    batch_size: int
    learning_rate: float
    loss: Criterion
    seed: int

    @cached_property
    def examples(self) -> Examples:
        """The data in memory; ``ValueError`` without labels."""
        examples = read_examples("target", self.data)
        if examples.labels is None:
            raise ValueError("learning a growth needs labels; pass (inputs, labels) as data")
        return examples

    def learn(self, moving: Sequence[Maps], shares: Sequence[float]) -> list[float]:
        """Minimise the loss of Σ γ_i T_i(θ_i) over the maps; return the loss before every step."""

        def risk(rows: Tensor) -> Tensor:
            state = _averaged([maps() for maps in moving], shares)
            batch = self.examples[rows].to(next(iter(state.values())).device)
            outputs, labels = batch.rows_of(call_with(self.target, state, batch.inputs))
            assert labels is not None
            return self.loss(outputs, labels)

        modules = nn.ModuleList(moving)
        optimiser = make_optimiser(modules, "adam", self.learning_rate)
        order = torch.Generator().manual_seed(self.seed)
        batches = shuffled(len(self.examples), self.batch_size, order, steps=self.steps)
        bar = progress(batches, "growth", self.steps, leave=False)
        with evaluating(self.target), normalising_by_batch(self.target):
            return train(modules, bar, risk, optimiser)

    def settled(self, state: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return weights with batch-norm statistics re-estimated on at most `MEASURED` examples."""
        if not any(map(is_statistic, state)):
            return state
        order = torch.Generator().manual_seed(self.seed)
        rows = torch.randperm(len(self.examples), generator=order)[:MEASURED]
        parts = rows.tensor_split(math.ceil(len(rows) / self.batch_size))
        device = next(iter(state.values())).device
        batches = (self.examples[part].to(device).inputs for part in parts)
        measured = recalibrate_batchnorm(self.target, state, batches)
        statistics = (key for key in state if is_statistic(key) or key.endswith(COUNTER))
        return {**state, **{key: measured[key] for key in statistics}}


def learn_growth(
    sources: Mapping[str, nn.Module] | Sequence[nn.Module],
    target: nn.Module,
    data: Any,
    *,
    maps: Literal["sail", "ligo"] = "sail",
    mode: Mode = "joint",
    weights: Sequence[float] | Tensor | None = None,
    width: Width = "mean",
    depth: Depth = "identity",
    gap: float = 6.0,
    noise: float = 0.0,
    steps: Count = 100,
    batch_size: Size = 64,
    learning_rate: Positive = 1e-3,
    loss: Criterion = F.cross_entropy,
    seed: int = 0,
) -> LearnedGrowth:
    """Grow networks by maps that are learned on the target's data (SAIL, appendices F.1 and F.2).

    Adam moves E and R of every group that grows and the logits of every mixed list, beginning with
    `mergelib.grow`. The sources and the target stay as they are. The target runs in evaluation
    mode, except that batch norms use batch statistics; their running ones are re-estimated
    afterwards on at most `MEASURED` examples.

    Args:
        sources: the smaller networks, by name or as a list, of the target's family; sizes may
            differ.
        target: the larger network.
        data: inputs with labels, in any format that `mergelib.adapt` accepts for a task.
        maps: ``"sail"``, or ``"ligo"`` for LiGO as published (`mergelib.sail.growth.ligo`), which
            ignores ``width``, ``depth``, ``gap`` and ``noise``.
        mode: ``"joint"`` minimises the loss of Σ γ_i T_i(θ_i), ``"alone"`` each T_i's own loss,
            after which the T_i may lack a common basis for averaging.
        weights: γ, one per source, of sum 1 (possibly negative); uniform by default.
        width: initial maps, as in `mergelib.grow`, except ``"svd_random"``. Combine copies with
            noise, because they get equal gradients; otherwise there is a warning.
        depth: initial depth weights; ``"identity"`` has none to learn.
        gap: of the softmax over the pattern of other depths, finite.
        noise: as in `mergelib.grow`; drawn once and fixed.
        steps: of Adam; per source with ``"alone"``.
        batch_size: examples per step.
        learning_rate: of Adam, constant.
        loss: from outputs ``(M, C)`` and labels ``(M,)`` to a scalar; positions of sequences are
            rows.
        seed: seed of noise and batches; with ``"alone"`` all sources see the same batches.

    Returns:
        A `LearnedGrowth`; with 0 steps its states are those of `mergelib.grow` except for
        batch-norm statistics.

    Raises:
        ValueError: networks, data, weights or settings do not fit.
        FloatingPointError: the loss is not finite.
    """
    import pandas as pd

    check_fits(annotations_of(learn_growth), locals())
    descent = Descent(target, data, steps, batch_size, learning_rate, loss, seed)
    if not isinstance(sources, Mapping):
        sources = {f"source {number}": source for number, source in enumerate(sources)}
    count = len(sources)
    if not count:
        raise ValueError("sources is empty: pass at least one network to grow")
    gamma = [1 / count] * count if weights is None else [float(weight) for weight in weights]
    if len(gamma) != count or not abs(sum(gamma) - 1) < 1e-6:
        raise ValueError(f"weights are {gamma}, expected {count} numbers (one per source) of sum 1")
    options: dict[str, Any] = {"width": width, "depth": depth, "gap": gap, "noise": noise}
    options = {} if maps == "ligo" else options
    options["generator"] = torch.Generator().manual_seed(seed)
    kind = PublishedLiGO if maps == "ligo" else Transformation
    learned = {name: kind(network, target, **options) for name, network in sources.items()}
    if mode == "joint":
        history = {"joint": descent.learn(list(learned.values()), gamma)}
    else:
        history = {name: descent.learn([one], [1.0]) for name, one in learned.items()}
    with torch.no_grad():
        grown = {name: one() for name, one in learned.items()}
        average = _averaged(list(grown.values()), gamma)
    states = {name: descent.settled(state) for name, state in grown.items()}
    return LearnedGrowth(
        descent.settled(average) if len(states) > 1 else next(iter(states.values())),
        states,
        pd.DataFrame(history),
    )


def _averaged(states: Sequence[dict[str, Tensor]], gamma: Sequence[float]) -> dict[str, Tensor]:
    """Return Σ γ_i θ_i; integers are the first's, and ties are kept."""
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
