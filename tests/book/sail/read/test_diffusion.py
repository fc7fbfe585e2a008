"""What chapter 56 and the ledger read, where the answer is known."""

import math
from dataclasses import replace

import pandas as pd
import pytest
from torch import nn

from mergebook.sail.measure.diffusion import ALIGNED, PLAIN, REPA
from mergebook.sail.measure.latents import World
from mergebook.sail.networks.diffusion import LatentToRepresentation
from mergebook.sail.read import diffusion as analysis


def test_what_f_p_explains(world: World) -> None:
    """All of its own tokens at t = 0, and at t = 1 what two unrelated sets share, twice off."""
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
