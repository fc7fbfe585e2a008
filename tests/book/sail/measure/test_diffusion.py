"""The arms of the study of diffusion: where they start, what they share, what they cost."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from mergebook.sail.distances import frechet_distance
from mergebook.sail.measure import diffusion
from mergebook.sail.measure.diffusion import (
    ALIGNED,
    ALONE,
    ARMS,
    AVERAGED,
    GROWN,
    PLAIN,
    REPA,
    SOURCE,
    TRAININGS,
    Arm,
    Parts,
    arms,
    step_flops,
    trained,
)
from mergebook.sail.measure.latents import Plan, World, drawn, quality
from mergebook.sail.networks.diffusion import SiT, velocity_loss

PLAN = Plan(32, 2, (16, 1), steps=4, aligned=3, batch_size=8, rates=dict.fromkeys(TRAININGS, 1e-2))


def weights(parts: Parts) -> torch.Tensor:
    return torch.cat([value.detach().flatten() for value in parts.network.state_dict().values()])


def test_where_arms_start(world: World) -> None:
    of = {arm.name: arm.parts for arm in arms(world, PLAN)}
    assert list(of) == list(ARMS)
    assert torch.equal(weights(of[PLAIN]), weights(of[REPA]))
    moved = {
        name.split(".")[1] if "blocks" in name else name
        for name, value in of[ALIGNED].network.state_dict().items()
        if not torch.equal(value, of[PLAIN].network.state_dict()[name])
    }
    assert "0" in moved, "the first third of blocks is aligned"
    assert not {"1", "out.weight"} & moved, "alignment reaches no other block"


def test_the_grown_arm_computes_what_its_source_does(world: World) -> None:
    (grown,) = (arm.parts.network for arm in arms(world, PLAN) if arm.name == GROWN)
    small = Parts(world, *PLAN.source)
    state = trained(small, world, SOURCE, PLAN, {4})[4]
    small.network.load_state_dict(state)
    x, times, labels = world.latents[:5], torch.linspace(0.1, 0.9, 5), torch.tensor([0, 1, 2, 0, 1])
    expected = small.network(x, times, labels)
    assert float(expected.detach().abs().max()) > 1e-3
    assert torch.allclose(grown(x, times, labels), expected, atol=1e-5)


def test_all_arms_see_the_same_batches_times_and_noise(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[float] = []

    def recorded(*arguments: Any) -> torch.Tensor:
        seen.append((value := velocity_loss(*arguments)).item())
        return value

    monkeypatch.setattr(diffusion, "velocity_loss", recorded)
    still = replace(PLAN, rates=dict.fromkeys(TRAININGS, 0.0))
    for name in (PLAIN, REPA, ALIGNED):
        trained(Parts(world, 32, 2), world, name, still, {PLAN.steps})
    assert seen == 3 * seen[: PLAN.steps]
    assert len(set(seen)) == PLAN.steps


def test_averages_follow_the_weights_and_forget_their_start(world: World) -> None:
    parts = Parts(world, 32, 2)
    start = weights(parts)
    kept = trained(parts, world, PLAIN, PLAN, {0, 1})
    once = torch.cat([value.flatten() for value in kept[1].values()])
    assert torch.equal(torch.cat([value.flatten() for value in kept[0].values()]), start)
    assert torch.allclose(once, 0.1 * start + 0.9 * weights(parts), atol=1e-6)
    left = torch.tensor([min(AVERAGED, (step + 1) / (step + 10)) for step in range(200)]).prod()
    assert float(left) < 1e-3, "0.99 alone would keep an eighth of it"


def test_costs_count_the_start(world: World) -> None:
    of = {arm.name: arm for arm in arms(world, PLAN)}
    parts = Parts(world, 32, 2)
    step = {name: step_flops(parts, world, name, PLAN) for name in ARMS}
    alone = step_flops(parts, world, ALONE, PLAN)
    assert {name: arm.step for name, arm in of.items()} == step
    assert step[PLAIN] < step[REPA] == step[GROWN] < step[ALIGNED]
    assert of[PLAIN].before == of[REPA].before == 0
    assert of[ALIGNED].before == 1000 + 3 * alone
    small = step_flops(Parts(world, 16, 1), world, PLAIN, PLAN)
    assert of[GROWN].before == 4 * small


def test_an_arm_by_itself_is_as_among_all(world: World) -> None:
    (alone,) = arms(world, replace(PLAN, only=[ALIGNED]))
    (among,) = (arm for arm in arms(world, PLAN) if arm.name == ALIGNED)
    assert torch.equal(weights(alone.parts), weights(among.parts))
    assert alone._replace(parts=among.parts) == among
    with pytest.raises(ValueError, match="unknown arm 'DiT'; known: SiT; REPA; REPA"):
        diffusion.diffusion(None, only=[REPA, "DiT"])  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="unknown training 'DiT'; known: SiT; REPA"):
        diffusion.diffusion(None, rates={"DiT": 1e-3})  # type: ignore[arg-type]


def test_rates_are_those_of_each_training(world: World) -> None:
    """An arm that does not move keeps its start; its source and its alignment have their own."""
    for still, name in ((SOURCE, GROWN), (ALONE, ALIGNED)):
        plan = replace(PLAN, only=[name])
        starts = [
            weights(next(arms(world, replace(plan, rates={**PLAN.rates, **rates}))).parts)
            for rates in ({}, {name: 0.0}, {still: 0.0})
        ]
        assert torch.equal(starts[0], starts[1])
        assert not torch.equal(starts[0], starts[2])


def test_equal_cost_buys_fewer_steps(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """REPA's step costs 10: of 20, 50 and 100, a start of 30 leaves nothing, 20/12 and 70/12."""
    shared = {"step": 10, "before": 0}
    costs = {PLAIN: {"step": 8, "before": 0}, REPA: shared}
    costs[ALIGNED] = {"step": 12, "before": 30}

    def made(world: World, plan: Plan) -> Any:
        return (
            Arm(name, Parts(world, plan.width, plan.depth), **cost) for name, cost in costs.items()
        )

    monkeypatch.setattr(diffusion, "prepare", lambda *_, **__: world)
    monkeypatch.setattr(diffusion, "arms", made)
    monkeypatch.setattr(diffusion, "step_flops", lambda *_: 10)
    tables = diffusion.diffusion(
        None,  # type: ignore[arg-type]
        width=16,
        depth=1,
        steps=10,
        batch_size=4,
        samples=4,
        euler=1,
    )
    read = {(row["arm"], row["account"], row["read"]): row["step"] for row in tables["quality"]}
    assert [read[ALIGNED, "cost", share] for share in (0.2, 0.5, 1.0)] == [0, 1, 5]
    assert [read[ALIGNED, "A", share] for share in (0.2, 0.5, 1.0)] == [1, 4, 8]
    assert [read[PLAIN, "A", share] for share in (0.2, 0.5, 1.0)] == [2, 6, 12]
    assert {account for arm, account, _ in read if arm == PLAIN} == {"steps", "A"}
    assert [read[ALIGNED, "steps", share] for share in (0.2, 0.5, 1.0)] == [2, 5, 10]
    assert {account for arm, account, _ in read if arm == REPA} == {"steps"}
    assert tables["cost"][2] == {"arm": ALIGNED, **costs[ALIGNED]}


def test_a_start_without_velocities_draws_its_noise(world: World) -> None:
    """A fresh SiT moves nothing, so what it draws is the noise, equal for all networks."""
    networks = SiT(16, 1, 1, classes=2), SiT(32, 2, 2, classes=2)
    labels = torch.arange(6) % 2
    pictures = [drawn(world, network, labels, 3) for network in networks]
    assert torch.equal(*pictures)
    assert all(network.training for network in networks)
    found = quality(world, networks[0], replace(PLAN, samples=40, euler=2))
    features = drawn(world, networks[0], torch.arange(40) % 2, 2).mean((2, 3))
    assert found["frechet"] == pytest.approx(frechet_distance(features, world.real))
