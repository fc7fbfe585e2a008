"""What chapter 56 shows live, where the answer is known."""

import math
from dataclasses import replace

import pandas as pd
import pytest
import torch
from torch import Tensor, nn

from mergebook.sail.measure.diffusion import ALIGNED, ARMS, GROWN, PLAIN, REPA, TRAININGS
from mergebook.sail.measure.latents import Plan, World
from mergebook.sail.networks.diffusion.alignment import LatentToRepresentation
from mergebook.sail.read import diffusion as analysis

PLAN = Plan(16, 1, (16, 1), steps=10, aligned=2, batch_size=8, rates=dict.fromkeys(TRAININGS, 1e-2))


class Straight(nn.Module):
    """The velocity towards one latent, from wherever one is."""

    def __init__(self, latent: Tensor) -> None:
        super().__init__()
        self.latent = latent

    def forward(self, x: Tensor, times: Tensor, labels: Tensor) -> Tensor:
        return (x - self.latent) / times.view(-1, 1, 1, 1)


@pytest.mark.parametrize("euler", [4, 20])
def test_the_way_back_to_a_known_latent_is_the_way_there(world: World, euler: int) -> None:
    network = Straight(world.latents[3])
    there, back = analysis.paths(world, network, 3, euler=euler)  # type: ignore[arg-type]
    assert torch.equal(there[0], world.latents[3])
    assert torch.allclose(back, there, atol=1e-5)


def test_what_f_p_explains(world: World) -> None:
    """All of its own tokens at t = 0, and at t = 1 what two strangers have in common, twice off."""
    own = replace(world, wanted=world.represent(world.latents))
    shares = analysis.explained(own, (0.0, 0.5, 1.0))
    assert shares[0.0] == pytest.approx(1)
    assert shares[0.0] > shares[0.5] > shares[1.0]
    assert shares[1.0] == pytest.approx(-1, abs=0.2)
    silent = LatentToRepresentation(6, 8)
    for parameter in silent.parameters():
        nn.init.zeros_(parameter)
    middle = world.wanted - world.wanted.mean(0)
    nothing = analysis.explained(replace(world, wanted=middle, represent=silent), (0.0,))
    assert nothing[0.0] == pytest.approx(0, abs=0.05)


def test_arms_are_compared(world: World) -> None:
    compared = analysis.compare(world, replace(PLAN, samples=8, euler=2))
    assert {*compared.networks} == {*compared.judged.index} == {*ARMS, analysis.LONGER}
    costs = compared.costs
    assert costs.loc[REPA].to_dict() == {"step": 1, "A": 10, "B": 10, "C": 10}
    assert costs["A"].to_numpy() == pytest.approx(10 * costs["step"].to_numpy())
    dear, grown = costs.loc[ALIGNED], costs.loc[GROWN]
    assert dear["A"] < dear["B"] == dear["C"], "there are no sources"
    assert grown["A"] == grown["B"] == 10 < grown["C"], "growing takes nothing, its source does"
    told = compared.losses.groupby("arm")["step"].max()
    assert told.drop(REPA).tolist() == 3 * [10]
    assert told[REPA] == 10 * (round(dear["C"]) // 10)
    early, late = (compared.networks[name] for name in (REPA, analysis.LONGER))
    assert not torch.equal(early.out.weight, late.out.weight)
    step = costs["step"].to_dict()
    assert step[PLAIN] < 1 < step[ALIGNED]


def test_against_repa_of_the_same_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    """REPA's cost is the unit, so its one account stands for both."""
    rows = [
        {"seed": seed, "read": 1.0, "account": account, "arm": arm, "frechet": distance * scale}
        for seed, scale in ((0, 1.0), (1, 5.0))
        for arm, account, distance in (
            (REPA, "steps", 2.0),
            (PLAIN, "steps", 4.0),
            (ALIGNED, "steps", 1.0),
            (ALIGNED, "cost", 8.0),
        )
    ]
    monkeypatch.setattr(analysis, "load_table", lambda *_: pd.DataFrame(rows))
    table = analysis.against_repa()
    found = table.set_index(["arm", "account", "seed"])["nearer"].div(math.log(2)).to_dict()
    for seed in (0, 1):
        assert found[REPA, "cost", seed] == 0
        assert found[PLAIN, "steps", seed] == pytest.approx(-1)
        assert found[ALIGNED, "steps", seed] == pytest.approx(1)
        assert found[ALIGNED, "cost", seed] == pytest.approx(-2)
