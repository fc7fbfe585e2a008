"""SAIL's claim on diffusion: made-up results for and against it, and none."""

from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from mergebook.ledger import Claim, judge
from mergebook.sail import claims as sail
from mergebook.sail.measure.diffusion import ALIGNED, ARMS, GROWN, REPA
from mergebook.sail.read import diffusion

CLAIM = next(claim for claim in sail.CLAIMS if claim.key == "S8")


def tables() -> dict[str, pd.DataFrame]:
    """Distances of five seeds as if the arm did nothing."""
    draws = np.random.default_rng(0)
    quality, floor = [], []
    for seed in range(5):
        floor.append({"seed": seed, "pictures": "real", "count": 1000, "frechet": 2.0})
        for arm in ARMS:
            accounts = ["steps"] if arm == REPA else ["steps", "cost" if arm == GROWN else "A"]
            for account in [*accounts, "cost"] if arm == ALIGNED else accounts:
                for read in (0.2, 0.5, 1.0):
                    row = {"seed": seed, "arm": arm, "account": account, "read": read}
                    frechet = float(np.exp(draws.normal(3, 0.05)))
                    quality.append({**row, "frechet": frechet, "kernel": float(draws.normal())})
    return {"quality": pd.DataFrame(quality), "floor": pd.DataFrame(floor)}


@pytest.fixture
def results(monkeypatch: pytest.MonkeyPatch) -> None:
    made = tables()
    monkeypatch.setattr(diffusion, "load_table", lambda _, part: made[part])


def test_made_up_results_decide(results: None) -> None:
    assert judge([CLAIM])[0]["verdict"].tolist() == ["undecided"]


def test_each_read_and_account_counts(results: None) -> None:
    """One that is worse than REPA spoils the claim, and the floor is a control."""
    table = diffusion.judged()
    table = table.assign(log=table["log"] + 10.0 * (table["arm"] == REPA))
    floor = diffusion.floor()
    ledger, checks = judge([told(table, floor)])
    assert ledger["verdict"].item() == "holds"
    assert checks["role"].value_counts().to_dict() == {"primary": 3, "secondary": 27, "control": 1}
    ends = checks["what"][checks["what"].str.startswith(GROWN)].str.partition("%, ")[2]
    assert {*ends} == {"equal steps (A, B)", "equal cost (C)"}, "its source is paid for in C alone"
    for read in (0.2, 0.5, 1.0):
        for account, verdict in (("steps", "mixed"), ("cost", "holds")):
            rows = (table["arm"] == ALIGNED) & (table["account"] == account)
            worse = table.assign(log=table["log"] + 100.0 * (rows & (table["read"] == read)))
            assert judge([told(worse, floor)])[0]["verdict"].item() == verdict


def told(table: pd.DataFrame, floor: pd.DataFrame) -> Claim:
    """The claim on these tables."""
    tables = {"judged": table, "floor": floor}

    def load(name: Any) -> pd.DataFrame:
        made = tables.get(getattr(name, "__name__", ""))
        return name() if made is None else made

    return replace(CLAIM, test=lambda _: CLAIM.checks(load))
