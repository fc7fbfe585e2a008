"""Steps saved, and effects at equal cost, on numbers that can be worked out by hand."""

import math
from collections.abc import Iterator
from itertools import product
from typing import Any

import pandas as pd
import pytest

from mergebook.sail.measure.arms import CELLS, SCRATCH, Cell
from mergebook.sail.read import factorial as module

SEEDS = (0, 1)
OFFSETS = {(1, "shared"): 0.0, (2, "shared"): 0.1, (2, "own"): 0.5, (2, "re-basin"): 0.3}
STEEP = {"mean": 0.0, "replicate": 0.01, "LiGO alone": -0.02, "LiGO joint": -0.02, "svd_random": 1}


def losses(cell: Cell, step: int, seed: int) -> float:
    """Scratch falls from 4 by 0.02 a step; others begin at 2, and above by what their cell adds."""
    if cell.maps == SCRATCH:
        return 4 - 0.02 * step + seed
    return 2 + OFFSETS[cell.sources, cell.start] + STEEP[cell.maps] - 0.005 * step + seed


def random(rows: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Scratch at its best, 0.5 nats lower, and random weights of the grown network's scale.

    Rows of another size are none of the factorial.
    """
    for row in rows:
        if row["maps"] != SCRATCH:
            continue
        for size, arm in product(("twice", "half wider"), ("scratch, tuned", module.ALIKE)):
            less = 0.5 if arm == "scratch, tuned" else 0.25
            lower = {"judge": row["judge"] - less} if "judge" in row else {}
            yield {**row, **lower, "size": size, "start": "shared", "arm": arm}


@pytest.fixture(autouse=True)
def results(monkeypatch: pytest.MonkeyPatch) -> None:
    rows: list[dict[str, Any]] = []
    costs: list[dict[str, Any]] = []
    for seed, cell in product(SEEDS, CELLS):
        where = {"seed": seed, **cell._asdict()}
        added = {"LiGO alone": 400, "LiGO joint": 400}.get(cell.maps, 20) if cell.sources else 0
        flops = {"step_flops": 10, "added_flops": added, "source_flops": 150 * cell.sources}
        costs.append({**where, **flops})
        for step in range(0, (200 if cell.sources == 0 else 40) + 1, 20):
            worse = 0.5 * (cell.maps == SCRATCH)  # than scratch at its best, which is the rival
            rows.append({**where, "step": step, "judge": losses(cell, step, seed) + worse})
    tables = {"curves": rows, "costs": costs}
    scales = {part: [*random(table)] for part, table in tables.items()}
    monkeypatch.setattr(
        module,
        "load_table",
        lambda name, part: pd.DataFrame((scales if name == module.SCALES else tables)[part]),
    )
    monkeypatch.setattr(module, "RESULTS", {"GPT": "made up"})
    monkeypatch.setattr(module, "GOALS", 8)


def test_steps_saved_and_factors() -> None:
    """Seed 0, goal 1.85: scratch 107.5 steps, one source by mean maps 30, of 10 FLOPs each."""
    table = module.saved()
    assert set(table["goal"].round(6)) == {round(4.1 - 3.6 * k / 7, 6) for k in range(8)}
    one = table[(table["seed"] == 0) & (table["maps"] == "mean") & (table["sources"] == 1)]
    goals, own = one["goal"].to_numpy(), one.set_index("goal")
    begun = goals[goals >= 2][-1]
    slow = (4 - begun) / 0.02
    assert own["saved"][begun] == pytest.approx(slow)
    assert own["A"][begun] == pytest.approx(math.log2(slow / 20)), "no less than a reading counts"
    assert own["B"][begun] == pytest.approx(math.log2(10 * slow / 220))
    assert own["C"][begun] == pytest.approx(math.log2(10 * slow / 370))
    assert own["begun"].to_dict() == {goal: goal >= 1.9 for goal in goals}, "one reading is lost"
    assert own["saved"].isna().to_dict() == {goal: goal < 1.8 for goal in goals}


def test_random_weights_are_cells_of_their_own() -> None:
    """Both begin 0.5 and 0.25 above scratch, which loses 0.02 a step, and never catch up."""
    table = module.saved()
    for maps, late in ((module.USUAL, 25), (module.ALIKE, 12.5)):
        own = table[(table["maps"] == maps) & table["saved"].notna()]
        assert [own["saved"].min(), own["saved"].median()] == pytest.approx([-late, -late])
        assert set(own["sources"]) == {0}
    curves = module.curves()
    assert {*curves.loc[curves["sources"] == 0, "maps"]} == {SCRATCH, module.USUAL, module.ALIKE}
    assert not curves.duplicated(["seed", *Cell._fields, "step"]).any()


def test_a_start_is_so_far_on_scratch_s_way() -> None:
    """It begins at 2, where scratch is after 100 steps, and ends at 1.8, of 110 and of its 40."""
    table = module.leads()
    one = table[(table["maps"] == "mean") & (table["sources"] == 1)]
    assert one["lead"].to_numpy() == pytest.approx(100)
    assert one["saved"].to_numpy() == pytest.approx(110 - 40)
    random = table[(table["maps"] == "svd_random") & (table["sources"] == 1)]
    assert random["lead"].to_numpy() == pytest.approx(50)


def test_goals_that_few_seeds_reach_are_left_out() -> None:
    table = module.saved()
    often = table[table["often"]]
    cell = ["sources", "start", "maps"]
    shares = table.groupby([*cell, "goal"])["saved"].apply(lambda column: column.notna().mean())
    assert set(shares) == {0.0, 0.5, 1.0}
    kept = often.set_index([*cell, "goal"]).index
    assert set(kept) == set(shares.index[shares == 1.0])


def test_losses_at_equal_cost() -> None:
    """Scratch's 40 steps cost 400: 38 are left of them after 20, none after 400, of B."""
    table = module.ends()
    first = table[table["seed"] == 0]

    def at(*cell: object) -> dict[str, float]:
        row = first[(first[[*Cell._fields]] == list(cell)).all(axis=1)]
        return {account: row[account].item() for account in ("A", "B", "C")}

    assert at(0, "", SCRATCH) == pytest.approx({"A": 3.2, "B": 3.2, "C": 3.2})
    assert at(1, "shared", "mean") == pytest.approx({"A": 1.8, "B": 1.81, "C": 1.885})
    learned = {"A": 1.78, "B": 1.98, "C": math.nan}
    assert at(1, "shared", "LiGO joint") == pytest.approx(learned, nan_ok=True)


def test_effects_are_paired_over_what_all_have() -> None:
    found = module.effects()
    means = found.groupby(["factor", "effect"])["loss"].mean()
    assert means["merging"].to_dict() == pytest.approx({"shared": 0.1, "own": 0.5, "re-basin": 0.3})
    assert means["start"]["own less shared"] == pytest.approx(0.4)
    assert means["start"]["re-basin less own"] == pytest.approx(-0.2)
    assert means["maps", "LiGO joint"] == pytest.approx(-0.02 + 0.19)
    assert set(module.effects("C").loc[lambda rows: rows["factor"] == "maps", "effect"]) == {
        *("replicate", "svd_random")
    }, "of those that can be paid"
