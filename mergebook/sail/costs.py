"""Training from a start, what it is measured by, and what it costs (Anonymous, 2025, section 4).

**Steps to a loss**, as `steps_to` computes them:

1. Readings are smoothed by the median of three; the first and the last stay as they are.
2. A loss is reached where this curve, on straight lines between readings, is first as low.
3. A *goal* is the lowest value so far of that curve, of training from scratch on seeds that are
   used for nothing else (1000 and above), at the last reading no later than a fraction of the
   budget (`GOALS`, at most 0.6); the median over those seeds.
4. A run that never reaches a goal counts as if at its last step, one that is there by the first
   reading after step 0 as if at that: bounds of a speed-up, not estimates.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import combinations_with_replacement, pairwise
from typing import Literal

import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

Account = Literal["A", "B", "C"]

TUNING = 1000  # first seed of goals and rates; all other studies use lower ones
GOALS = {"easy": 0.3, "hard": 0.6}  # fractions of the budget at which scratch defines a goal


def check_tuning(seed: int) -> None:
    """Refuse a seed on which claims are judged."""
    if seed < TUNING:
        raise ValueError(
            f"seed {seed} is used by other studies: tune on seeds from {TUNING}, with "
            f"--first {TUNING}"
        )


def smoothed(losses: Tensor) -> Tensor:
    """Return the median of every reading and its neighbours; both ends are returned as they are."""
    if len(losses) < 3:
        return losses
    middle = losses.unfold(0, 3, 1).median(-1).values
    return torch.cat([losses[:1], middle, losses[-1:]])


def steps_to(steps: Sequence[int], losses: Tensor, goals: Tensor | float) -> Tensor:
    """Return the steps after which smoothed losses reach a goal: 0 at once, NaN if never."""
    lowest = smoothed(losses.double().nan_to_num(nan=torch.inf)).cummin(0).values
    aims = torch.as_tensor(goals, dtype=torch.float64)
    lowest, aims = torch.broadcast_tensors(lowest, aims)
    there = lowest <= aims
    after = there.int().argmax(0, keepdim=True)
    before = (after - 1).clamp(min=0)
    high, low = lowest.gather(0, before), lowest.gather(0, after)
    part = ((high - aims[:1]) / (high - low)).nan_to_num(nan=1.0)
    read = torch.tensor(steps, dtype=torch.float64)
    found = read[before] + part * (read[after] - read[before])
    found = torch.where(after > 0, found, 0.0)
    return torch.where(there.any(0, keepdim=True), found, torch.nan)[0]


def goals_of(
    steps: Sequence[int],  # of E readings, rising from 0
    losses: Tensor,  # `(E, ...)`, in nats
    budget: int,  # steps of the runs that are judged; those of this run may differ
    fractions: Mapping[str, float] = GOALS,  # of it
) -> dict[str, Tensor]:
    """Return the lowest smoothed losses so far at fractions of a budget, by their names."""
    lowest = smoothed(losses.double()).cummin(0).values
    found = {}
    for name, fraction in fractions.items():
        place = max(i for i, step in enumerate(steps) if step <= fraction * budget)
        if place == len(steps) - 1:
            raise ValueError(
                f"readings end at step {steps[-1]}, but the {name} goal, at {fraction} of "
                f"{budget} steps, needs a later one: train for longer"
            )
        found[name] = lowest[place]
    return found


@dataclass(frozen=True)
class Costs:
    """What a way to train costs, in FLOPs."""

    step: float  # of retraining
    added: float = 0.0  # whatever the start takes besides its sources
    sources: float = 0.0  # training the sources

    def of(self, steps: Tensor, account: Account) -> Tensor:
        """FLOPs of some steps: A counts these alone, B what is added, C the sources as well."""
        extra = {"A": 0.0, "B": self.added, "C": self.added + self.sources}[account]
        return self.step * steps + extra


ENOUGH = 0.8  # of runs that reach a goal: with fewer, a speed-up is no more than a bound


def speed_up(
    rival: Tensor,  # steps, as `steps_to` gives them
    rival_costs: Costs,  # of the rival
    own: Tensor,  # steps, shape as the rival's or one that goes with it
    costs: Costs,  # one's own
    account: Account,  # see `Costs.of`
    *,
    least: Tensor | int,  # steps that count at least: those before the first reading after step 0
) -> Tensor:
    """log₂ of the rival's FLOPs to a loss over one's own: 1 is twice as fast."""
    slow = rival_costs.of(rival.double().clamp(min=least), account)
    return (slow / costs.of(own.double().clamp(min=least), account)).log2()


def count_flops(function: Callable[[], object]) -> int:
    """FLOPs of a call by PyTorch's counter, which counts the products of matrices alone."""
    with FlopCounterMode(display=False) as counter:
        function()
    return int(counter.get_total_flops())


def loop_flops(run: Callable[[int], object], steps: int) -> int:
    """FLOPs of a loop of equal steps, from a run without steps and one with one step."""
    none, once = (count_flops(partial(run, count)) for count in (0, 1))
    return none + steps * (once - none)


def perceptron_flops(widths: Sequence[int], examples: int) -> int:
    """FLOPs of a training step of an MLP, as `count_flops` counts them, without counting."""
    sizes = [first * second for first, second in pairwise(widths)]
    return 2 * examples * (3 * sum(sizes) - sizes[0])


def mmd_flops(sizes: Sequence[int], features: int) -> int:
    """FLOPs of a table of MMD² by the same convention: an inner product for every pair of rows."""
    pairs = sum(first * second for first, second in combinations_with_replacement(sizes, 2))
    return 2 * features * pairs
