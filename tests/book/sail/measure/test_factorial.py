"""The factorial of starts: every cell is what its words say, and only one thing differs.

On texts of random letters, and on pictures of six shades.
"""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch

from mergebook.lab.results import Tables
from mergebook.sail.measure import arms as module
from mergebook.sail.measure import sources
from mergebook.sail.measure.arms import CELLS, MAPS, SCRATCH, Cell, factorial
from mergebook.sail.measure.grounds import text_transfer
from mergebook.sail.measure.sources import Sources
from mergebook.sail.measure.training import Texts
from mergebook.sail.measure.transfers import TARGET, Schedule, Transfer
from mergelib.align import git_rebasin
from mergelib.statedict import lerp
from tests.book.sail.measure.test_arms import few_pictures, judged_by, quick
from tests.book.sail.measure.test_text import words

CELL = ["sources", "start", "maps"]
SETTINGS: dict[str, Any] = {"steps": 2, "longer": 2}
SETTINGS["rates"] = {maps: [3e-3, 1e-2] for maps in (*MAPS, SCRATCH)}
LEARNED = {Cell(1, "shared", "LiGO alone"), Cell(2, "re-basin", "LiGO joint")}  # those tried here
FEW = {cell: arm for cell, arm in CELLS.items() if not arm.mode or cell in LEARNED}


@pytest.fixture(autouse=True, scope="module")
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """One for all tests here, so that sources are trained once; small networks, few steps."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "CELLS", FEW)
        yield from quick(tmp_path_factory.mktemp("sources"))


@pytest.fixture(scope="module")
def text() -> Transfer:
    made = text_transfer(Texts(0, {"a": words(0) * 10, "b": words(1) * 10}))
    return replace(judged_by(made, 2), schedule=Schedule(8, 3e-3, 4))


@pytest.fixture(scope="module")
def tables(text: Transfer) -> Tables:
    return factorial(text, size="twice", **SETTINGS)


@pytest.fixture(scope="module")
def pictures() -> Transfer:
    return few_pictures()


def begun(tables: Tables) -> "pd.Series[float]":
    curves = pd.DataFrame(tables["curves"])
    first: pd.Series[float] = curves[curves["step"] == 0].set_index(CELL)["judge"]
    return first


def test_cells_of_a_text(tables: Tables) -> None:
    assert json.loads(json.dumps(tables, allow_nan=False)) == tables
    assert {*begun(tables).index} == {*FEW}
    assert len(CELLS) == 1 + 4 + 3 * 5
    ends = pd.DataFrame(tables["curves"]).groupby(CELL)["step"].max()
    assert ends.pop(Cell(0, "", SCRATCH)) == 4, "scratch goes on"
    assert set(ends) == {2}


def test_maps_that_keep_the_function_begin_at_the_small_networks_loss(
    text: Transfer, tables: Tables
) -> None:
    """Of the source, of the average, and of the average of what was matched."""
    first = begun(tables)
    pairs = {kind: Sources(text, kind, "twice") for kind in ("shared", "own")}
    small = pairs["own"].nets[0]
    one, two = (net.state_dict() for net in pairs["own"].nets)
    gamma = pairs["own"].distances["gamma"]
    wanted = {
        (1, "shared"): one,
        (2, "shared"): lerp(pairs["shared"].nets[1].state_dict(), one, gamma),
        (2, "own"): lerp(two, one, gamma),
        (2, "re-basin"): lerp(git_rebasin(one, two, small).state, one, gamma),
    }
    losses = {where: text.judged(small, state)["judge"] for where, state in wanted.items()}
    assert len({round(loss, 3) for loss in losses.values()}) == 4
    for where, loss in losses.items():
        for maps in ("mean", "replicate"):
            assert first[(*where, maps)] == pytest.approx(loss, abs=1e-4)
        assert abs(first[(*where, "svd_random")] - loss) > 1e-2, "which keeps nothing"


def test_learned_maps_are_of_matched_sources(
    text: Transfer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Plain stacks are taken, whose average tells which second source was grown."""
    monkeypatch.setattr(sources, "loop_flops", lambda run, steps: 0)  # half of the time
    pair = Sources(text, "own", "twice")
    states = {}
    for start in ("own", "re-basin"):
        arm = CELLS[Cell(2, start, "LiGO joint")]
        net = text.network("twice", TARGET)
        states[start], _ = pair._learned(net, arm, 1e-12, [0.0, 1.0])
        plain = pair._grown(net, arm)[1]
        key = next(key for key in plain if key.startswith("blocks.0.") and plain[key].dim() == 2)
        assert torch.allclose(states[start][key], plain[key], atol=1e-2)
    assert not torch.allclose(states["own"][key], states["re-basin"][key], atol=1e-2)


def test_costs_are_those_of_sources_and_maps(tables: Tables) -> None:
    def costs(kind: str) -> dict[Cell, int]:
        return {Cell(*map(row.get, CELL)): int(row[kind]) for row in tables["costs"]}  # type: ignore[arg-type]

    added, paid = costs("added_flops"), costs("source_flops")
    scratch, one = Cell(0, "", SCRATCH), Cell(1, "shared", "mean")
    assert added[scratch] == paid[scratch] == 0
    assert {paid[cell] for cell in FEW if cell.sources == 2} == {2 * paid[one]}
    plain = {cost for cell, cost in added.items() if cell.maps in ("mean", "svd_random")}
    assert plain == {added[one]}
    assert added[Cell(1, "shared", "LiGO alone")] < added[Cell(2, "re-basin", "LiGO joint")]


def test_cells_of_pictures(pictures: Transfer, monkeypatch: pytest.MonkeyPatch) -> None:
    """All are there where stages are wider, and learned maps alone are missing where not."""
    with pytest.MonkeyPatch.context() as patch:
        some = {cell: arm for cell, arm in FEW.items() if not cell.maps.startswith(("rep", "svd"))}
        patch.setattr(module, "CELLS", some)
        tables = factorial(pictures, size="half wider", **SETTINGS)
    first = begun(tables)
    assert {row["target"] for row in tables["costs"]} == {"shades"}
    costs = pd.DataFrame(tables["costs"]).set_index(CELL)
    added, step = costs["added_flops"], int(costs["step_flops"].iloc[0])
    alone, joint = (cell for cell in FEW if cell.maps.startswith("LiGO"))
    for cell in (alone, joint):
        more = added[cell] - added[cell._replace(maps="mean")]
        assert more > 2 * step, "two steps of learning maps"
        assert first[cell] != first[cell._replace(maps="mean")]
    monkeypatch.setattr(
        module, "trained", lambda trials: {"cells": [words for words, *_ in trials]}
    )
    for size, missing in (("half wider", set()), ("deeper", {alone, joint})):
        cells = factorial(pictures, size=size, **SETTINGS)["cells"]
        assert {Cell(*(row[key] for key in CELL)) for row in cells} == {*FEW} - missing


def test_learned_maps_of_pictures_are_of_width_alone(pictures: Transfer) -> None:
    """They begin as mean padding does, but for the statistics, which are the target's."""
    pair, cell = Sources(pictures, "shared", "half wider"), Cell(1, "shared", "LiGO alone")
    net = pictures.network("half wider", TARGET)
    learned, flops = pair._learned(net, CELLS[cell], 1e-12, [1.0])
    plain = pair._grown(net, CELLS[cell._replace(maps="mean")])[pair.nearest]
    assert flops > 0
    assert {*learned} == {*plain}
    for key, value in learned.items():
        rest = "running_" in key or not value.is_floating_point()
        assert torch.allclose(value, plain[key], atol=1e-6) is not rest, key


def test_matching_leaves_a_residual_network_s_answers(pictures: Transfer) -> None:
    """Batch norms, their statistics and shortcuts go along with the channels."""
    pair = Sources(pictures, "own", "half wider")
    before, after = pair.nets[1], pair._matched(CELLS[Cell(2, "re-basin", "mean")])[1]
    inputs = pictures.transform(pictures.judge.inputs) + torch.randn(12, 3, 32, 32)
    with torch.no_grad():
        one, two = (net.eval()(inputs) for net in (before, after))
    assert torch.allclose(one, two, atol=1e-4)
    state = after.state_dict()
    moved = [key for key, old in before.state_dict().items() if not torch.equal(state[key], old)]
    assert any("running_mean" in key for key in moved)


def test_unknown_rates_are_refused(text: Transfer) -> None:
    with pytest.raises(ValueError, match="no rates of 'scratch' are known for GPT, other"):
        factorial(replace(text, name="GPT, other"), size="twice")
