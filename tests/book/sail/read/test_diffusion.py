"""What chapter 56 and the ledger read, where the answer is known."""

import math

import pandas as pd
import pytest

from mergebook.sail.measure.diffusion import ALIGNED, PLAIN, REPA
from mergebook.sail.read import diffusion as analysis


def test_accounts_that_do_not_differ_are_filled_in(monkeypatch: pytest.MonkeyPatch) -> None:
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
    logs = analysis.judged().set_index(["arm", "account", "seed"])["log"].div(math.log(2))
    for seed, shift in ((0, 0.0), (1, math.log2(5))):
        found = logs.xs(seed, level="seed") - shift
        assert found[REPA].to_dict() == pytest.approx({"steps": 1, "cost": 1, "A": 1})
        assert found[PLAIN].to_dict() == pytest.approx({"steps": 2, "A": 2})
        assert found[ALIGNED].to_dict() == pytest.approx({"steps": 0, "cost": 3, "A": 0})
