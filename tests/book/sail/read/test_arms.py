"""Starts at equal cost, on numbers that can be worked out by hand."""

from typing import Any

import pandas as pd
import pytest

from mergebook.sail.read import arms

GOAL = {("GPT", "twice", ""): {"easy": 2.5}}


@pytest.fixture(autouse=True)
def distances(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Scratch, a source alone that costs a step more, and SAIL at twice the cost of a step."""
    losses = {
        "scratch, tuned": (4, 3, 2, 1),
        "nearest source": (3, 2, 1, 1),
        "SAIL": (2.5, 2, 2, 1),
    }
    kinds = {"scratch, tuned": ("shared", 10, 0), "nearest source": ("shared", 10, 10)}
    kinds["SAIL"] = ("own", 20, 10)
    curves: list[dict[str, Any]] = []
    costs: list[dict[str, Any]] = []
    for arm, (start, step, added) in kinds.items():
        where = {"seed": 0, "start": start, "size": "twice", "arm": arm}
        flops = {"step_flops": step, "added_flops": added, "source_flops": 70}
        costs.append({**where, **flops})
        for place, loss in enumerate(losses[arm]):
            row = {**where, "step": 20 * place, "judge": loss, "choose": loss}
            curves.append({**row, "accuracy": 0.5})
    cell = {"seed": 0, "start": "own", "size": "twice"}
    distances = [{**cell, "first": 1.0, "second": 2.0}]
    tables = {"curves": curves, "costs": costs, "distances": distances}

    monkeypatch.setattr(arms, "load_table", lambda name, part: pd.DataFrame(tables[part]))
    monkeypatch.setattr(arms, "goals_for", lambda *cell: GOAL[cell])
    return distances


def test_losses_are_those_that_scratch_s_cost_buys() -> None:
    table = arms.starts()
    own = table[table["start"] == "own"].set_index("arm")
    bought = {"scratch": 1, "nearest source": 1, "SAIL": 2}  # 600: 59 steps and 29.5 of SAIL's
    assert own["loss"].to_dict() == pytest.approx(bought)
    assert set(table.loc[table["start"] == "shared", "arm"]) == {"scratch", "nearest source"}
    assert own["easy"].to_dict() == {"scratch": 30, "nearest source": 10, "SAIL": 0}


def test_a_second_source_of_its_own_start_is_not_the_shared_one(
    distances: list[dict[str, Any]],
) -> None:
    distances[0]["first"] = 3.0
    table = arms.starts()
    assert set(table.loc[table["start"] == "own", "arm"]) == {"scratch", "SAIL"}


def test_speed_is_told_in_flops() -> None:
    """The nearest source: 20 steps of 10 and 10 before; SAIL: 20 of 20 and 10; scratch: 30.

    Both starts are there at the first reading or before, which counts as that reading.
    """
    table = arms.starts()
    rows = arms.speed_ups(table, "easy", "B", "SAIL", "nearest source")
    assert 2 ** rows["speed"].item() == pytest.approx(210 / 410)
    rows = arms.speed_ups(table, "easy", "C", "SAIL", "nearest source")
    assert 2 ** rows["speed"].item() == pytest.approx(280 / 480)
    rows = arms.speed_ups(table, "easy", "A", "SAIL")
    assert 2 ** rows["speed"].item() == pytest.approx(300 / 400)
    sides = rows[["reached", "rival_reached", "early", "rival_early"]]
    assert sides.iloc[0].tolist() == [True, True, True, False]


def test_the_best_baseline_is_chosen_on_the_half_that_chooses() -> None:
    names = ("scratch", "nearest source", "uniform", "SAIL")
    table = pd.DataFrame(
        {"arm": arm, "seed": seed, "choose": choose[seed], "loss": -choose[seed]}
        for arm, choose in zip(names, ((3, 3), (1, 4), (2, 2), (0, 0)), strict=True)
        for seed in range(2)
    )
    assert arms.best_baseline(table) == "uniform", "no arm of SAIL, and the mean over seeds"
