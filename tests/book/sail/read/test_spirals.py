"""What is read out of the study of spirals, on tables made by hand."""

import math

import pandas as pd
import pytest

from mergebook.sail.costs import Account
from mergebook.sail.read import spirals
from mergebook.sail.read.reached import speed_ups

CELL = {"seed": 0, "reading": "random", "start": "own"}


def arm(
    name: str, gamma: float | None, steps: float, loss: float, **other: object
) -> dict[str, object]:
    losses = {f"loss_{k}": loss + k for k in spirals.TIMES}
    row = {**CELL, "gamma": gamma, "arm": name, "easy": steps, "loss": loss, **losses}
    return {**row, **other}


ARMS = [
    arm("scratch", None, 200, 0.5, reading="", start="fresh"),
    arm("scratch", None, 7, 0.5, reading="", start="common"),
    arm("proximal", 0.48, 50, 0.2),
    arm("sweep", 0.0, 100, 0.4),
    arm("sweep", 0.5, math.nan, 3.0),
    arm("sweep", 1.0, 25, 0.1),
    arm("sweep", 0.5, 25, 1.0, start="re-basin"),
]
SOURCES = [
    {**CELL, "source": 1, "mmd": 0.3, "parameters": 1.0, "random": math.e},
    {**CELL, "source": 2, "mmd": 0.1, "parameters": 4.0, "random": math.e},
]


@pytest.fixture(autouse=True)
def by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    tables = {"arms": pd.DataFrame(ARMS), "sources": pd.DataFrame(SOURCES)}
    tables["matched"] = tables["sources"].assign(parameters=[4.0, 3.0]).drop(columns="start")
    monkeypatch.setattr(spirals, "load_table", lambda _, part: tables[part])


def test_the_nearest_source_is_that_of_the_nearer_data() -> None:
    table = spirals.compared().set_index("method")
    assert table["gamma"].drop("scratch").to_dict() == {
        "theorem": 0.48,
        "uniform": 0.5,
        "nearest source": 0.0,
    }
    assert table.loc["scratch", "easy"] == 200, "from a fresh start"
    assert (table["reading"] == "random").all()
    assert (table["start"] == "own").all()


def test_speed_ups_count_the_distances_in_b_and_the_sources_in_c() -> None:
    """A step is 2 · 500 · (3 · 200 − 100) FLOPs; three samples, of 500, 200 and 200 points."""
    step, own = 500_000, 200_000
    pairs = 500**2 + 2 * 500 * 200 + 3 * 200**2
    table = spirals.compared()

    def speed(account: Account, method: str) -> float:
        return float(speed_ups(table, "easy", account, method)["speed"].item())

    assert speed("A", "theorem") == 2
    extra = 4 * pairs
    assert speed("B", "theorem") == pytest.approx(math.log2(200 * step / (50 * step + extra)))
    extra += 2 * 300 * own
    assert speed("C", "theorem") == pytest.approx(math.log2(200 * step / (50 * step + extra)))
    assert speed("B", "uniform") == pytest.approx(math.log2(200 / 300))
    never = speed_ups(table, "easy", "A", "uniform")
    assert not never["reached"].any()
    assert never["rival_reached"].all()


def test_barriers_have_the_ends_of_networks_as_trained() -> None:
    table = spirals.barriers().set_index(["start", "steps", "place"])["loss"].sort_index()
    assert table["own", 0].to_dict() == {"middle": 3.0, "ends": 0.25}
    assert table["re-basin", 50].to_dict() == {"middle": 51.0, "ends": 50.25}


def test_distances_best_weights_and_links() -> None:
    table = spirals.nearness().set_index(["source", "point"])["log"]
    assert table[1, "source"] == 0
    assert table[2, "random"] == pytest.approx(1)
    best = spirals.best_weights(spirals.sweep(), "loss_50")
    assert best[["gamma", "near"]].to_numpy().tolist() == [[1.0, True]]
    assert spirals.is_near(pd.Series([-0.1, 1.1, 0.2, 0.8, 2.0])).tolist() == [
        *(True, True, False, False, False)
    ]
    chain = spirals.chain()
    values = chain.set_index(["start", "link", "cell"])["value"].sort_index()
    assert values["own", "before", "random 2"] == values["re-basin", "before", "random 2"] == 0.4
    assert values["re-basin", "parameters"].to_dict() == {"random 1": 4.0, "random 2": 3.0}
    found = spirals.rank_correlations(chain, "re-basin", ("data", "parameters"))
    assert found.tolist() == [pytest.approx(1.0)], "of own starts it is -1"
    found = spirals.rank_correlations(chain, "own", ("parameters", "before"))
    assert found.tolist() == [pytest.approx(1.0)]
    assert spirals.rank_correlations(chain, "own", ("data", "before"))[0] == pytest.approx(-1)
