"""Remark 5's five laws, of steps, batch, rate, data and tasks: the signs that the bounds do have.

Each slope is a finite difference of logarithms, of bounds with equal settings for all experts and
random constants inside the paper's domain: c x^p has the slope p.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
import pytest
import torch
from torch import Tensor

from mergebook.stability.theory import bounds
from mergebook.stability.theory.bounds import Losses, theorem_3
from mergebook.stability.theory.steps import Training, chi_square, chi_square_printed

DRAWS = 60
ROOM = 1e-6
RISES, FALLS, FLAT = (0, math.inf), (-math.inf, 0), (0, 0)  # without the ends, but for equal ones


@dataclass(frozen=True)
class Setting:
    steps: float
    rate: float
    batch: float
    examples: float
    tasks: float
    smoothness: float
    noise: float
    heterogeneity: float
    gap: float
    gradient: float
    dissimilarity: float

    @property
    def training(self) -> Training:
        ones = torch.ones(int(self.tasks), dtype=torch.float64)
        plan = Training.alike(len(ones), int(self.steps), self.rate, batch=1, examples=1)
        return replace(plan, batch=self.batch * ones, examples=self.examples * ones)

    @property
    def losses(self) -> Losses:
        ones = torch.ones(int(self.tasks), dtype=torch.float64)
        return Losses(self.smoothness, self.noise * ones, self.heterogeneity * ones)

    def moved(self, parameter: str) -> "Setting":
        """One more step or task, or a hundredth more of what is no count."""
        value = getattr(self, parameter)
        more = value + 1 if parameter in ("steps", "tasks") else value * 1.01
        return replace(self, **{parameter: more})


@cache
def settings() -> list[Setting]:
    """Inside the paper's domain, also after a step of any difference."""
    found, generator = [], torch.Generator().manual_seed(0)
    for _ in range(DRAWS):
        size = (10 ** (torch.rand(7, generator=generator).double() - 0.5)).tolist()
        steps, tasks, batch = (int(torch.randint(2, 13, (1,), generator=generator)) for _ in "123")
        reach = 0.07 * float(torch.rand(1, generator=generator)) + 0.005
        setting = Setting(
            steps=steps,
            rate=reach / (size[0] * steps),
            batch=batch,
            examples=batch * (2.1 + size[1]),
            tasks=tasks,
            smoothness=size[0],
            noise=size[2],
            heterogeneity=size[3],
            gap=size[4] ** 4,
            gradient=size[5],
            dissimilarity=size[6],
        )
        for parameter in ("steps", "batch", "rate"):
            moved = setting.moved(parameter)
            assert bounds.in_domain(moved.losses, moved.training, printed=True)
        found.append(setting)
    return found


Bound = Callable[[Setting], dict[str, float]]


def printed(setting: Setting, *, own_rate: bool = False) -> dict[str, float]:
    """The paper's bounds; with its own rate in the stability, too, or with the setting's in all."""
    plan, losses = setting.training, setting.losses
    if own_rate:
        plan = replace(plan, learning_rate=bounds.printed_rate(plan))
    terms = bounds.printed_gradient_terms(losses, plan, setting.gap, own_rate=own_rate)
    gradient = sum(bounds.printed_gradient_bound(terms, losses, plan))
    stability = bounds.printed_stability(plan, bounds.printed_local_stability(losses, plan))
    gamma = bounds.best_gamma(gradient, stability)
    known = (gradient, stability, losses.smoothness, 1 / losses.smoothness)
    theorem, best = (sum(bounds.printed_excess(*known, g).values()) for g in (1.0, gamma))
    return {**terms, "stability": stability, "gamma": gamma, "Theorem 3": theorem, "best": best}


def repaired(setting: Setting) -> dict[str, float]:
    """What holds, the descent as an amount."""
    plan, losses = setting.training, setting.losses
    opening = (setting.gap, setting.gradient, setting.dissimilarity)
    parts = bounds.descent_bound(opening, losses, plan)
    local = bounds.local_stability(losses, plan)
    epochs, convex = (
        bounds.local_stability(losses, plan, epochs=epochs, convex=True) for epochs in (True, False)
    )
    stability = bounds.merged_stability(plan, local)
    return {
        **{name: abs(value) for name, value in parts.items()},
        "expert": float(local[0]),
        "convex expert": float(convex[0]),
        "expert after epochs": float(epochs[0]),
        "merge": stability,
        "E_G": bounds.generalisation_bound(stability, 1.0, setting.smoothness),
    }


def slopes(bound: Bound, parameter: str) -> dict[str, Tensor]:
    """Of all that a bound consists of, in all settings."""
    rows = []
    for setting in settings():
        moved = setting.moved(parameter)
        ratio = math.log(getattr(moved, parameter) / getattr(setting, parameter))
        now, then = bound(setting), bound(moved)
        rows.append({name: math.log(then[name] / now[name]) / ratio for name in now})
    return {name: torch.tensor([row[name] for row in rows]).double() for name in rows[0]}


def within(values: Tensor, low: float, high: float) -> bool:
    if low == high:
        return bool((values - low).abs().max() < ROOM)
    return bool(low < values.min() <= values.max() < high)


def follow(measured: dict[str, Tensor], laws: dict[str, tuple[float, float]]) -> None:
    for name, (low, high) in laws.items():
        assert within(measured[name], low, high), name


def both_signs(values: Tensor) -> bool:
    return bool(values.min() < -ROOM < ROOM < values.max())


LAWS: dict[str, dict[str, tuple[float, float]]] = {
    "steps": {
        "start": (-1, -1),
        "noise": FLAT,
        "noise on the way": (1, 2),
        "tasks pull apart": (2, 3),
        "stability": (1, 1),
    },
    "rate": {
        "start": (-1, -1),
        "noise": (1, 1),
        "noise on the way": (2, 2),
        "tasks pull apart": (2, 2),
        "stability": (2, 2),
        "gamma": FALLS,
    },
    "batch": {
        "start": FLAT,
        "noise": (-1, -1),
        "noise on the way": (-1, -1),
        "tasks pull apart": FLAT,
        "stability": (0, 1),
        "gamma": FALLS,
    },
    "examples": {
        "start": FLAT,
        "noise": FLAT,
        "noise on the way": FLAT,
        "tasks pull apart": FLAT,
        "stability": (-1, -1),
        "gamma": (0.5, 0.5),
        "Theorem 3": FALLS,
        "best": FALLS,
    },
    # Nothing accumulates at a rate that is held fixed, against V-B5.
    "tasks": {
        "start": FLAT,
        "noise": (-1, -1),
        "noise on the way": FLAT,
        "tasks pull apart": FLAT,
        "stability": FLAT,
        "Theorem 3": FALLS,
        "best": FALLS,
    },
}


@pytest.mark.parametrize("parameter", LAWS)
def test_laws_of_the_printed_bounds_at_a_fixed_rate(parameter: str) -> None:
    follow(slopes(printed, parameter), LAWS[parameter])


def test_laws_of_the_printed_bounds_at_the_papers_own_rate() -> None:
    """S5: no law of the rate, stability ∝ T and constant in K, and tasks that pull apart ∝ T K."""

    def bound(setting: Setting) -> dict[str, float]:
        return printed(setting, own_rate=True)

    measured = {name: slopes(bound, name) for name in ("steps", "rate", "tasks")}
    assert all(within(values, 0, 0) for values in measured["rate"].values())
    for name in ("start", "noise"):
        assert within(measured["steps"][name], -0.5, -0.5)
        assert within(measured["tasks"][name], -0.5, -0.5)
    for name in ("noise on the way", "tasks pull apart", "stability"):
        assert within(measured["tasks"][name], 1, 1)
    assert within(measured["steps"]["stability"], 0, 0)
    assert within(measured["steps"]["noise on the way"], *RISES)
    assert within(measured["steps"]["tasks pull apart"], 1, 2)
    assert both_signs(measured["steps"]["Theorem 3"])


def test_s5_limits_for_many_steps() -> None:
    """ε's third term tends to 6 T L² σ²/b, its fourth to 12 T K L² ζ²; S at Lemma 3's η to 0."""
    for setting in settings()[:10]:
        for tasks in (setting.tasks, 2 * setting.tasks):
            many, more = (replace(setting, steps=k, tasks=tasks) for k in (5_000, 20_000))
            squared = tasks * setting.smoothness**2
            terms = [
                bounds.printed_gradient_terms(each.losses, each.training, setting.gap)
                for each in (many, more)
            ]
            third = 6 * squared * setting.noise**2 / setting.batch
            fourth = 12 * squared * setting.heterogeneity**2
            for each, term in zip((many, more), terms, strict=True):
                assert term["noise on the way"] == pytest.approx(third, rel=1e-3)
                assert term["tasks pull apart"] == pytest.approx(each.steps * fourth, rel=1e-3)
        moved = []
        for steps in (100, 200, 400):
            largest = bounds.PAPERS_DOMAIN / (setting.smoothness * steps)
            each = replace(setting, steps=steps, rate=largest * (1 - 1e-9))
            assert bounds.in_domain(each.losses, each.training, printed=True)
            moved.append(printed(each)["stability"])
        assert moved == pytest.approx([moved[0], moved[0] / 2, moved[0] / 4])


def falls_then_rises(values: list[float]) -> bool:
    """Never a fall after a rise."""
    rises = torch.tensor(values, dtype=torch.float64).diff() > 0
    return bool((rises.sort().values == rises).all())


def paths(setting: Setting) -> list[list[Setting]]:
    """More and more steps, and rates of any size, also beyond the domain."""
    counts = [replace(setting, steps=k) for k in (1, 2, 3, 5, 8, 13, 21, 34, 55, 89)]
    return [counts, [replace(setting, rate=setting.rate * 3.0**i) for i in range(-4, 6)]]


def test_theorem_3_has_a_valley_in_steps_and_in_the_rate() -> None:
    """V-B1 and V-B3; inside the domain, where `settings` are, it may rise or fall with both."""
    for parameter in ("steps", "rate"):
        measured = slopes(printed, parameter)
        assert both_signs(measured["Theorem 3"])
        assert both_signs(measured["best"])
    for setting in settings()[::6]:
        for path in paths(setting):
            values = [printed(place) for place in path]
            assert falls_then_rises([value["Theorem 3"] for value in values])
            assert falls_then_rises([value["best"] for value in values])


def test_the_conditional_law_of_the_batch_turns_round_with_the_best_gamma() -> None:
    """V-B2: at small rates a larger batch lowers Theorem 3, where γ is 1. It raises the γ* form.

    There √(S ‖∇f‖²), of which the batch raises S, is of order √η, and the noise of order η.
    """

    def slow(setting: Setting) -> dict[str, float]:
        return printed(replace(setting, rate=setting.rate / 1000, gap=0.01))

    def alike(setting: Setting) -> dict[str, float]:
        return printed(replace(setting, heterogeneity=1e-9))

    measured = slopes(slow, "batch")
    assert within(measured["Theorem 3"], *FALLS)
    assert within(measured["best"], *RISES)
    assert both_signs(slopes(printed, "batch")["Theorem 3"])
    for name in ("Theorem 3", "best"):
        assert within(slopes(alike, "batch")[name], *FALLS)


REPAIRED: dict[str, dict[str, tuple[float, float]]] = {
    "steps": {
        "descent": (1, 1),
        "noise": (1, 1),
        "noise on the way": (2, 3),
        "tasks pull apart": (3, 4),
        "convex expert": (1, 2),
        "expert": (1, math.inf),
        "expert after epochs": (2, 2),
        "merge": (1, math.inf),
        "E_G": RISES,
    },
    "rate": {
        "descent": (1, 1),
        "noise": (2, 2),
        "noise on the way": (3, 3),
        "tasks pull apart": (3, 3),
        "convex expert": (2, 2),
        "expert": (2, math.inf),
        "merge": (2, math.inf),
        "E_G": RISES,
    },
    "batch": {
        "descent": FLAT,
        "noise": (-1, -1),
        "noise on the way": (-1, -1),
        "tasks pull apart": FLAT,
        "expert": (-1, 0),
        "expert after epochs": FLAT,
        "merge": (-1, 0),
        "E_G": FALLS,
    },
    "examples": {
        "descent": FLAT,
        "noise": FLAT,
        "noise on the way": FLAT,
        "tasks pull apart": FLAT,
        "expert": (-math.inf, -1),
        "expert after epochs": (-math.inf, -2),
        "merge": (-math.inf, -1),
        "E_G": FALLS,
    },
    "tasks": {
        "descent": FLAT,
        "noise": (-1, -1),
        "noise on the way": FLAT,
        "tasks pull apart": FLAT,
        "expert": FLAT,
        "merge": (-2, -2),
        "E_G": FALLS,
    },
}


@pytest.mark.parametrize("parameter", REPAIRED)
def test_laws_of_the_repaired_bounds(parameter: str) -> None:
    follow(slopes(repaired, parameter), REPAIRED[parameter])


def test_the_repaired_bound_of_the_loss_has_a_valley_in_steps_and_in_the_rate() -> None:
    valleys = 0
    for setting in settings()[::6]:
        opening = (setting.gap, setting.gradient, setting.dissimilarity)
        for path in paths(setting):
            values = [
                sum(bounds.descent_bound(opening, place.losses, place.training).values())
                for place in path
            ]
            assert falls_then_rises(values)
            valleys += values[0] > min(values) < values[-1]
    assert valleys > 10


@pytest.mark.parametrize(("divergence", "power"), [(chi_square, 1), (chi_square_printed, 2)])
def test_the_bound_written_out_at_other_weights(
    divergence: Callable[[Tensor], float], power: int
) -> None:
    """Theorem 3 for four tasks and SGD, C = ½, L = σ = 1, ηK = 1/8."""
    steps, rate, batch, examples = 10, 1 / 80, 8, 200
    for weight in (0.25, 0.1):
        weights = np.array([weight] + [(1 - weight) / 3] * 3)
        apart = np.array([20.0, 1, 1, 1])
        far = ((0.25 - weights) ** 2 / weights**power).sum()
        share = (weights**2).sum() / steps
        epsilon = 4 / (rate * steps) + 4 * rate * steps / batch * share
        epsilon += 6 * rate**2 / batch * (steps - 1) + 12 * rate**2 * 20 * steps * (steps - 1)
        gradient = 2 * (far + 1) * epsilon + 2 * far * (weights @ apart)
        local = 16 * steps * rate**2 * (1 + 3 * batch * apart) / examples
        whole = (0.5 + 0.5) * (weights @ local) + (0.5 + 0.5) * gradient
        ones = torch.ones(4, dtype=torch.float64)
        known = Losses(1.0, ones, torch.from_numpy(apart).sqrt())
        alike = Training.alike(4, steps, rate, batch=batch, examples=examples)
        plan = replace(alike, weights=torch.from_numpy(weights))
        parts, *_ = theorem_3(known, plan, 1.0, 0.5, divergence=divergence)
        assert sum(parts.values()) == pytest.approx(whole)
