"""What is read out of SAIL's sweeps in text, on tables made by hand."""

import math
from collections.abc import Sequence
from typing import Any

import pandas as pd
import pytest

from mergebook.sail.costs import Account
from mergebook.sail.read import sweeps
from mergebook.sail.read.reached import speed_ups

CELL = {"seed": 0, "start": "own"}


@pytest.fixture
def tables(monkeypatch: pytest.MonkeyPatch) -> dict[str, pd.DataFrame]:
    """Tables by result and part, empty, in place of files."""
    found: dict[str, pd.DataFrame] = {}
    monkeypatch.setattr(sweeps, "load_table", lambda name, part: found[f"{name} {part}"])
    return found


def curve(losses: Sequence[tuple[float, float, float]], **cell: Any) -> list[dict[str, Any]]:
    """Rows of γ, and losses on both halves, after the last of two steps; lower ones before."""
    return [
        {**CELL, **cell, "gamma": gamma, "step": step, "choose": choose - more, "judge": judge}
        for step, more in ((0, 9.0), (100, 0.0))
        for gamma, choose, judge in losses
    ]


def test_mixtures(tables: dict[str, pd.DataFrame]) -> None:
    rows, distances = [], []
    for share, least in ((0.0, 0.0), (0.5, 0.5), (1.0, 0.5)):
        losses = [(gamma, abs(gamma - least), 2 + gamma) for gamma in (0.0, 0.5, 1.0)]
        rows += curve(losses, share=share, method="sweep")
        rows += curve([(share, -1.0, 7.0)], share=share, method="theorem")
        distances.append({**CELL, "share": share, "first": 1 - share, "second": 0.6})
    (texts, matched), (thirds,) = sweeps.MIXTURES.values()
    for name, start in ((texts, "own"), (thirds, "own"), (matched, "re-basin")):
        tables[f"{name} curves"] = pd.DataFrame(rows).assign(start=start)
        tables[f"{name} distances"] = pd.DataFrame(distances).assign(start=start)
    tables[f"{thirds} curves"] = pd.DataFrame(rows).assign(choose=-1.0)
    both = sweeps.mixed()
    assert sweeps.slopes(both, "own", "thirds").tolist() == [pytest.approx(0)]
    assert sweeps.slopes(both, "re-basin").tolist() == [pytest.approx(0.5)]
    weights = both[(both["parts"] == "texts") & (both["start"] == "own")]
    wide = weights.pivot(index="share", columns="method", values="gamma")[["best", "theorem"]]
    assert wide.to_numpy().tolist() == [*([0.0, 0.0], [0.5, 0.5], [0.5, 1.0])]
    assert sweeps.slopes(both, "own").tolist() == [pytest.approx(0.5)]
    mixed = (
        sweeps.mixed()
        .query("parts == 'texts' and start == 'own'")
        .pivot(index="share", columns="method", values="loss")
    )
    assert mixed["theorem"].tolist() == [7, 7, 7], "never chosen as the best"
    assert mixed["best"].tolist() == [2, 2.5, 2.5], "judged on the other half"
    assert mixed["uniform"].tolist() == [2.5, 2.5, 2.5]
    assert mixed["nearest source"].tolist() == [2, 3, 3], "θ_1 where its data are nearer"


def test_asymmetry(tables: dict[str, pd.DataFrame]) -> None:
    """Curves at −½, 0, ½, 1, 1½; the range is that of both, 4."""
    rows = []
    for alpha, beta, losses in (
        (0.0, 0.0, (5.0, 4.0, 1.0, 2.0, 1.0)),
        (0.5, 0.0, (4.0, 2.0, 1.0, 2.0, 2.0)),
        (0.5, 0.5, (3.0, 2.0, 1.0, 2.0, 3.0)),
        (1.0, 0.5, (1.5, 2.0, 1.0, 2.0, 3.0)),
    ):
        for gamma, loss in zip((-0.5, 0.0, 0.5, 1.0, 1.5), losses, strict=True):
            row = {**CELL, "alpha": alpha, "beta": beta, "gamma": gamma, "step": 50}
            rows.append({**row, "judge": loss, "choose": 0.0})
    lone = [{**row, "start": "shared"} for row in rows if row["gamma"] in (0.0, 0.5, 1.0)]
    tables[f"{sweeps.OVERLAP} curves"] = pd.DataFrame([*rows, *lone])
    found = sweeps.asymmetries().set_index(["start", "alpha", "beta"])["asymmetry"]
    assert found["own"].tolist() == [0.6, 0.2, 0, 0.15]
    assert found["shared"].tolist() == pytest.approx([4 / 9, 0, 0, 0]), "over its own γ and range"
    falls = sweeps.falls(found.reset_index().assign(seed=0, step=50), "own", 50)
    assert falls.to_numpy().tolist() == [[pytest.approx(0.8), pytest.approx(0.4)]], "α < 1 alone"


def test_another_corpus(tables: dict[str, pd.DataFrame], monkeypatch: pytest.MonkeyPatch) -> None:
    goal = 2.5
    monkeypatch.setattr(sweeps, "goals_of_text", lambda _: {"easy": goal, "hard": 0.0})
    hours = {"scratch": 40, "theorem": 10, "nearest source": 20, "uniform": 99}
    for name in sweeps.SOURCES:
        cell = {**CELL, "target": "don_quijote_es"}
        arms = [
            {**cell, "method": method, "step": step, "judge": goal + (step < reached)}
            for method, reached in hours.items()
            for step in range(70, -10, -10)
        ]
        costs = {"step_flops": 100.0, "distance_flops": 600.0, "source_flops": 3000.0}
        losses = [(0.0, 2.0, 1.5), (0.25, 1.5, 1.75), (1.0, 3.0, 0.1), (1.5, 0.0, 0.0)]
        tables[f"{name}-cross_corpus arms"] = pd.DataFrame(arms)
        tables[f"{name}-cross_corpus costs"] = pd.DataFrame([{**cell, **costs}])
        tables[f"{name}-cross_corpus curves"] = pd.DataFrame(curve(losses, target="don_quijote_es"))
    table = sweeps.crossed()
    steps = table[table["source"] == "wikitext2_test"].set_index("method")["easy"]
    assert steps.to_dict() == pytest.approx({**hours, "uniform": math.nan}, nan_ok=True)

    def speed(account: Account, method: str) -> list[float]:
        return list(speed_ups(table, "easy", account, method)["speed"])

    assert speed("A", "theorem") == [2.0, 2.0]
    assert speed("B", "theorem") == [pytest.approx(math.log2(4000 / 1600))] * 2
    assert speed("C", "theorem") == [pytest.approx(math.log2(4000 / 7600))] * 2
    assert speed("C", "nearest source") == [pytest.approx(math.log2(4000 / 5600))] * 2
    assert speed("B", "uniform") == [pytest.approx(math.log2(4 / 7))] * 2
    found = sweeps.interiors().query("source == 'tinyshakespeare'").set_index("place")
    assert found[["gamma", "loss"]].to_dict("index") == {
        "interior": {"gamma": 0.25, "loss": 1.75},
        "end": {"gamma": 0.0, "loss": 1.5},
    }
