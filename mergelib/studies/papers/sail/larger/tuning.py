"""Rates and goals for starts of a larger network, found on seeds that no study uses."""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from statistics import median

from mergelib.studies.papers.sail.larger.arms import ARMS, EVERY, Arm, Sources
from mergelib.studies.papers.sail.larger.rates import Rates
from mergelib.studies.papers.sail.larger.transfers import Transfer

GRID = (3e-4, 1e-3, 3e-3)  # rates of retraining that are tried
MAPS = (1e-3, 1e-2, 1e-1)  # rates of maps; the last since LiGO's best, as published, is 1e-2
ALONE = {name: (arm,) for name, arm in ARMS.items()}  # what has rates of its own


def tuned_rates(
    transfers: Sequence[Transfer],
    start: str,
    size: str,
    steps: int,
    arms: Mapping[str, Sequence[Arm]] = ALONE,
) -> dict[str, Rates]:
    """By name the rates with the least ``choose`` loss after some steps, on tuning seeds.

    Args:
        transfers: of one modality; their losses are summed.
        start: of the second source.
        size: of the larger network.
        steps: of retraining.
        arms: by name; those under one name that are allowed get the rates of their least sum.
    """
    losses: dict[str, dict[Rates, float]] = defaultdict(lambda: defaultdict(float))
    for transfer in transfers:
        pair = Sources(transfer, start, size)
        named = ((name, arm) for name, group in arms.items() for arm in group)
        for name, arm in named:
            if pair.refusal(arm):
                continue
            for maps in MAPS if arm.mode else (0.0,):
                begun = pair.start(arm, maps)
                for rate in GRID:
                    (*_, last) = transfer.retrained(begun.net, (0, steps), rate, begun.split)
                    losses[name][Rates(rate, maps)] += last["choose"]
    return {name: min(sums, key=sums.__getitem__) for name, sums in losses.items()}


def tuned_goals(
    transfers: Sequence[Transfer], size: str, steps: int, arms: Sequence[str] = ("scratch",)
) -> dict[str, float]:
    """Median over tuning seeds of the least loss so far, of one target.

    Args:
        transfers: of one modality and target.
        size: of the larger network.
        steps: of retraining.
        arms: ``scratch``, which gives ``easy`` and ``hard``, its losses after half and nine tenths
            of the steps, and ``nearest source``, which gives ``late``, what it has after half of
            them, and no source begins with.
    """
    goals = {"easy": ("scratch", steps // 2), "hard": ("scratch", 9 * steps // 10)}
    goals["late"] = ("nearest source", steps // 2)
    found: dict[str, list[float]] = defaultdict(list)
    for transfer in transfers:
        pair = Sources(transfer, "shared", size)
        for arm in arms:
            reads = {step: goal for goal, (name, step) in goals.items() if name == arm}
            net, rate = pair.start(ARMS[arm]).net, pair.rates(arm).training
            least = math.inf
            for row in transfer.retrained(
                net, sorted({*reads, *range(0, max(reads), EVERY)}), rate
            ):
                least = min(least, row["judge"])
                if row["step"] in reads:
                    found[reads[row["step"]]].append(least)
    return {goal: round(median(losses), 3) for goal, losses in found.items()}
