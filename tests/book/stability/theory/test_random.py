"""R1 to R4, the bounds that are proved in chapter 40, each on 10,000 random cases or more.

Expectations are exact: sums over all data sets, orders of batches or signs of noise that there are,
or the recursion of mean and covariance. So a bound that is violated once is wrong. Every test also
says how close the tightest case comes, without which none of them could fail.
"""

import math
from collections.abc import Iterator
from itertools import combinations, permutations, product

import pytest
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from mergebook.stability.theory import bounds
from mergebook.stability.theory.bounds import Losses
from mergebook.stability.theory.steps import Training
from tests.book.stability.theory.quadratics import weighted_descent_bound

ROOM = 1e-9  # for rounding, relative
CASES = 10_000
TRAININGS = 100
EACH = CASES // TRAININGS  # losses for every training


def draw(generator: torch.Generator, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def spread(generator: torch.Generator, low: float, high: float, *shape: int) -> Tensor:
    """Uniform in the logarithm, from 10^low to 10^high."""
    return 10 ** (low + (high - low) * torch.rand(shape, generator=generator, dtype=torch.float64))


def simplex(generator: torch.Generator, *shape: int) -> Tensor:
    shares = torch.rand(*shape, generator=generator, dtype=torch.float64)
    return shares / shares.sum(-1, keepdim=True)


def all_true(values: Tensor) -> bool:
    return bool(values.all())


# R1 and R3: how a merge generalises


@pytest.mark.parametrize(
    ("tasks", "examples"), [(1, 1), (1, 2), (1, 4), (2, 1), (2, 2), (2, 3), (3, 1), (3, 2)]
)
def test_r1_and_r3_hold_for_every_data_set_that_can_be_drawn(tasks: int, examples: int) -> None:
    """1,250 cases, eight times: SGD at any rate on waves, with two possible examples of each task.

    An example's loss is A (1 − cos ν(θ − c)) / ν², nearly a parabola where ν is small. For one
    example that is learned by heart R1 is an equality; with more of them and small moves only √½ of
    √(S V) is ever used, as a redrawn example pulls in one direction and the old one in another.
    """
    cases, longest = CASES // 8, 6
    generator = torch.Generator().manual_seed(10 * tasks + examples)
    draws = torch.tensor(list(product([0, 1], repeat=tasks * examples)))
    draws = draws.view(-1, tasks, examples)  # all data sets
    height = torch.rand(cases, tasks, 2, generator=generator, dtype=torch.float64)
    smooth = height.amax((1, 2))
    pitch = spread(generator, -2, 1, cases, tasks, 2)
    centre, start = draw(generator, cases, tasks, 2), draw(generator, cases)
    chance = torch.rand(cases, tasks, generator=generator, dtype=torch.float64)
    odds = torch.stack([chance, 1 - chance], 2)  # of either example
    count = torch.randint(1, longest + 1, (cases, tasks), generator=generator)
    rate = spread(generator, -1, 0.5, cases) / smooth
    weights = simplex(generator, cases, tasks)

    def slope(point: Tensor, t: int, example: Tensor) -> Tensor:
        wide = [part[:, t].gather(1, example) for part in (height, pitch, centre)]
        return wide[0] * (wide[1] * (point - wide[2])).sin() / wide[1]

    def loss(point: Tensor, t: int, example: int) -> Tensor:
        wide = [part[:, t, example, None] for part in (height, pitch, centre)]
        return 2 * wide[0] * (wide[1] * (point - wide[2]) / 2).sin().square() / wide[1] ** 2

    experts = torch.zeros(cases, tasks, len(draws), dtype=torch.float64)
    for t in range(tasks):
        point = start[:, None].expand(-1, len(draws))
        for k in range(longest):
            order = torch.randint(examples, (cases,), generator=generator)  # the same for all draws
            pace = torch.where(k < count[:, t], rate, 0)[:, None]
            point = point - pace * slope(point, t, draws[:, t].T[order])
        experts[:, t] = point
    merged = torch.einsum("ct,ctn->cn", weights, experts)

    likely = torch.ones(cases, len(draws), dtype=torch.float64)
    for t, j in product(range(tasks), range(examples)):
        likely = likely * odds[:, t, draws[:, t, j]]
    error, moment, train = (torch.zeros(cases, dtype=torch.float64) for _ in range(3))
    local, stability = torch.zeros(cases, tasks, dtype=torch.float64), 0 * error
    for t in range(tasks):
        both = torch.stack([loss(merged, t, example) for example in (0, 1)], 2)
        expected = torch.einsum("cne,ce->cn", both, odds[:, t])
        for j in range(examples):
            seen = draws[:, t, j].expand(cases, -1)
            own = both.gather(2, seen[..., None])[..., 0]
            train += (likely * own).sum(1)
            error += (likely * (expected - own)).sum(1)
            moment += (likely * slope(merged, t, seen).square()).sum(1)
            other = torch.arange(len(draws)) ^ 2 ** (tasks * examples - 1 - t * examples - j)
            chances = likely * odds[:, t].gather(1, 1 - seen)  # else the same is drawn again
            local[:, t] += (chances * (experts[:, t] - experts[:, t, other]).square()).sum(1)
            stability += (chances * (merged - merged[:, other]).square()).sum(1)
    error, moment, train, stability = (
        part / (tasks * examples) for part in (error, moment, train, stability)
    )

    assert all_true(moment <= 2 * smooth * train * (1 + ROOM))
    known = zip(stability.tolist(), moment.tolist(), smooth.tolist(), strict=True)
    limit = torch.tensor([bounds.generalisation_bound(*case) for case in known]).double()
    assert all_true(error <= limit * (1 + ROOM))
    tightest = float((error / limit).max())
    assert tightest > (0.99 if tasks == examples == 1 else 0.6)
    ones = torch.ones(tasks, dtype=torch.float64)
    for case in range(cases):  # R3 is an equality
        plan = Training(1.0, [ones[:1]] * tasks, ones, examples * ones, weights[case])
        found = bounds.merged_stability(plan, local[case] / examples)
        assert found == pytest.approx(float(stability[case]), rel=1e-6, abs=1e-18)


# R2: how stable an expert is

DRAWN = [(2, 1, 1), (2, 1, 2), (2, 1, 7), (3, 1, 2), (3, 1, 5), (3, 2, 4), (4, 1, 4), (4, 2, 3)]
EPOCHS = [(2, 1, 1), (2, 1, 4), (2, 2, 5), (3, 1, 1), (3, 1, 3), (4, 1, 1), (4, 2, 1), (4, 2, 3)]


def orders(examples: int, batch: int, length: int, *, epochs: bool) -> Tensor:
    """All equally likely sequences of batches, ``(orders, steps, batch)``."""
    if not epochs:
        one = torch.tensor(list(combinations(range(examples), batch)))[:, None]
    else:
        one = torch.tensor(list(permutations(range(examples))))
        one = one.view(-1, examples // batch, batch).sort(2).values.unique(dim=0)
    parts = [list(range(len(one)))] * length
    return torch.stack([one[list(part)].flatten(0, 1) for part in product(*parts)])


@pytest.mark.parametrize("epochs", [False, True])
@pytest.mark.parametrize("convex", [False, True])
def test_r2_holds_for_every_order_of_batches(epochs: bool, convex: bool) -> None:
    """10,000 pairs of data sets for either: θz plus cos θ, or √(1 + θ²), which has η ≤ 2/L.

    Tight where the redrawn example goes from one side of the others to the other one.
    """
    generator, tightest = torch.Generator().manual_seed(2), 0.0
    for examples, batch, length in EPOCHS if epochs else DRAWN:
        cases = CASES // 8
        order = orders(examples, batch, length, epochs=epochs)
        rate = spread(generator, -3, math.log10(2), cases)
        width = spread(generator, -3, 0, cases, 1)
        place = torch.randint(examples, (cases, 1), generator=generator)
        before = width * draw(generator, cases, examples)
        before = before.scatter_add(1, place, torch.ones(cases, 1, dtype=torch.float64))
        redrawn = width * draw(generator, cases, 1) - 1
        pair = torch.stack([before, before.scatter(1, place, redrawn)])
        point = spread(generator, -3, 0.5, cases, 1).expand(2, -1, len(order))
        for k in range(order.shape[1]):
            bend = point / (1 + point.square()).sqrt() if convex else -point.sin()
            point = point - rate[:, None] * (pair[:, :, order[:, k]].mean(3) + bend)
        moved = (point[0] - point[1]).square().mean(1)
        noise = (pair - pair.mean(2, keepdim=True)).abs().amax((0, 2))
        ones = torch.ones(cases, dtype=torch.float64)
        vectors = [pace.expand(order.shape[1]) for pace in rate]
        plan = Training(1.0, vectors, batch * ones, examples * ones, ones / cases)
        losses = Losses(1.0, noise, 0 * noise)
        limit = bounds.local_stability(losses, plan, epochs=epochs, convex=convex)
        assert all_true(moved <= limit * (1 + ROOM))
        tightest = max(tightest, float((moved / limit).max()))
    assert tightest > 0.95


# R4: how far a merge lowers the loss


def plans(seed: int, tasks: int, longest: int) -> Iterator[tuple[Training, Tensor, Losses]]:
    """A hundred trainings for L = 1: steps, rates, noise and weights of each expert's own.

    η L ‖a‖₁ is between a tenth of the domain and all of it. A quarter is without noise.

    Yields:
        The training, its η a_t with zeros at the end, ``(tasks, longest)``, and the constants.
    """
    generator = torch.Generator().manual_seed(seed)
    for number in range(TRAININGS):
        vectors = [
            0.1
            + draw(generator, int(torch.randint(1, longest + 1, (1,), generator=generator))).abs()
            for _ in range(tasks)
        ]
        reach = bounds.REPAIRED_DOMAIN * (1 - ROOM) * float(spread(generator, -1, 0))
        rate = reach / max(float(vector.sum()) for vector in vectors)
        batch = torch.randint(1, 5, (tasks,), generator=generator).double()
        plan = Training(rate, vectors, batch, batch, simplex(generator, tasks))
        paces = rate * pad_sequence(vectors, batch_first=True)
        noise = spread(generator, -1, 0.5, tasks) * (number % 4 > 0)
        losses = Losses(1.0, noise, 0 * noise)
        assert bounds.in_domain(losses, plan)
        yield plan, paces, losses


def allowed_rise(plan: Training, losses: Losses, squared: Tensor, apart: Tensor) -> Tensor:
    """By which `descent_bound` lets f̃ rise, for many losses at once: it is linear in these two."""
    parts = bounds.descent_bound((0.0, 1.0, 1.0), losses, plan)
    falls, pulls = parts.pop("descent"), parts.pop("tasks pull apart")
    return falls * squared + pulls * apart + sum(parts.values())


def shares_used(rise: Tensor, allowed: Tensor) -> tuple[float, float]:
    """How much of an allowed rise is used at most, and of a real fall promised."""
    used = torch.where(allowed > 0, rise / allowed, 0)
    promised = torch.where(allowed < 0, allowed / rise, 0)
    return float(used.max()), float(promised.max())


def test_r4_and_the_weighted_bound_hold_with_noise_on_losses_that_are_not_convex() -> None:
    """10,000 cases: three indefinite quadratics each, noise in one direction of its own each.

    The mean of an expert follows the slopes, its covariance P ← A P Aᵀ + (η a_k)² noise.
    """
    size, tasks = 2, 3
    generator, eye = torch.Generator().manual_seed(0), torch.eye(size, dtype=torch.float64)
    rises, limits = [], []
    for plan, paces, losses in plans(0, tasks, 6):
        own = draw(generator, EACH, tasks, size, size) * spread(generator, -2, 1, EACH, 1, 1, 1)
        halves = own + draw(generator, EACH, 1, size, size)
        hessians = halves + halves.mT
        hessians = (
            hessians / torch.linalg.eigvalsh(hessians).abs().amax((1, 2))[:, None, None, None]
        )
        centres = draw(generator, EACH, tasks, size) * spread(generator, -2, 0.5, EACH, 1, 1)
        arrows = draw(generator, EACH, tasks, size, 1)
        arrows = arrows / arrows.norm(dim=2, keepdim=True)
        noise = (losses.noise**2 / plan.batch)[:, None, None] * arrows @ arrows.mT
        points, moved = torch.zeros(EACH, tasks, size, 1, dtype=torch.float64), 0 * noise
        away = -centres[..., None]
        opening = (hessians @ away)[..., 0]
        for pace in paces.T[..., None, None]:
            points = points - pace * hessians @ (points + away)
            keep = eye - pace * hessians
            moved = keep @ moved @ keep.mT + pace**2 * noise
        merged = torch.einsum("t,ctde->cde", plan.weights, points)
        spread_out = torch.einsum("t,ctde->cde", plan.weights**2, moved)
        there = merged[:, None] + away
        rise = there.mT @ hessians @ there - away.mT @ hessians @ away
        rise = 0.5 * (rise[..., 0, 0] + torch.einsum("ctde,ced->ct", hessians, spread_out))
        _, surrogate = plan.surrogate
        mean, pulled = opening.mean(1), torch.einsum("t,ctd->cd", surrogate, opening)
        second = opening.square().sum(2) @ surrogate
        squared, off = pulled.square().sum(1), (mean - pulled).square().sum(1)
        rows = torch.stack([mean.square().sum(1), off, second], 1).tolist()
        weighted = [
            sum(weighted_descent_bound((0.0, first, other, last), losses, plan).values())
            for first, other, last in rows
        ]
        rises.append(torch.stack([rise @ surrogate, rise.mean(1)]))
        limit = allowed_rise(plan, losses, squared, second - squared)
        limits.append(torch.stack([limit, torch.tensor(weighted, dtype=torch.float64)]))
    rise, allowed = torch.cat(rises, 1), torch.cat(limits, 1)
    assert rise.shape[1] >= CASES
    assert all_true(rise <= allowed + ROOM * allowed.abs())
    used, promised = shares_used(rise[0], allowed[0])
    assert used > 0.45  # noise alone uses ½ of its term at most, as ‖h + e‖² ≤ 2‖h‖² + 2‖e‖²
    assert promised > 0.28  # ¼ / (1 − uL/2) in one step without noise or difference of tasks
    used, promised = shares_used(rise[1], allowed[1])
    assert used > 0.65
    assert promised > 0.7


def test_r4_holds_for_every_sign_of_noise_on_waves() -> None:
    """10,000 cases: two losses A cos(ν θ + φ) / ν² on a line each, and noise ±σ at every step."""
    tasks, longest = 2, 3
    generator = torch.Generator().manual_seed(1)
    signs = torch.tensor(list(product([-1.0, 1.0], repeat=tasks * longest))).double()
    signs = signs.view(-1, tasks, longest)
    rises, limits = [], []
    for plan, paces, losses in plans(1, tasks, longest):
        height = torch.rand(EACH, tasks, 1, generator=generator, dtype=torch.float64).sqrt()
        pitch = spread(generator, -1, 0.5, EACH, tasks, 1)
        phase = draw(generator, EACH, tasks, 1) * spread(generator, -2, 0.5, EACH, 1, 1)
        phase = phase + math.pi * torch.randint(2, (EACH, 1, 1), generator=generator)
        point = torch.zeros(EACH, tasks, len(signs), dtype=torch.float64)
        noise = losses.noise / plan.batch.sqrt()
        opening = -height * phase.sin() / pitch
        for k, pace in enumerate(paces.T):
            slope = -height * (pitch * point + phase).sin() / pitch
            point = point - pace[:, None] * (slope + noise[:, None] * signs[:, :, k].T)
        merged = torch.einsum("t,ctn->cn", plan.weights, point)[:, None]
        # cos x − cos y, without the difference of large numbers
        half = pitch * merged / 2
        rise = -2 * height * half.sin() * (half + phase).sin() / pitch**2
        _, surrogate = plan.surrogate
        pulled = opening[..., 0] @ surrogate
        apart = (opening[..., 0] - pulled[:, None]).square() @ surrogate
        rises.append(rise.mean(2) @ surrogate)
        limits.append(allowed_rise(plan, losses, pulled.square(), apart))
    rise, allowed = torch.cat(rises), torch.cat(limits)
    assert len(rise) >= CASES
    assert all_true(rise <= allowed + ROOM * allowed.abs())
    used, promised = shares_used(rise, allowed)
    assert used > 0.45
    assert promised > 0.28
