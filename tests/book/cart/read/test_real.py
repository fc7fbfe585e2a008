"""What chapter 11 reads of real networks, on a made-up plane whose answer is known."""

from collections.abc import Callable

import numpy as np
import pandas as pd
import pytest

from mergebook.cart.paper import EXPERTS, TABLE
from mergebook.cart.read import real
from mergebook.lab.results import load_table

RATIOS, SCALES = (0.04, 0.08, 0.16), (1.0, 2.0, 3.0)


def made_up(name: str, part: str = "test") -> pd.DataFrame:
    """Accuracy falls with the task's own error, whose best point is another one for each task."""
    generator = np.random.default_rng(0)
    rows = []
    for seed in range(3):
        for task, centre in (("x", 0.08), ("y", 0.04), ("z", 0.16)):
            for ratio in RATIOS:
                for scale in SCALES:
                    error = np.log(ratio / centre) ** 2 + (scale - 2) ** 2 / 10
                    row = {"seed": seed, "task": task, "method": "cart", "count": 8}
                    row |= {"rank_ratio": ratio, "scale": scale, "accuracy": np.exp(-error)}
                    noise = {name: generator.random() for name in real.TOLD}
                    rows.append(row | noise | {"error": error, "signal": -error})
    return pd.DataFrame(rows)


@pytest.fixture
def plane(monkeypatch: pytest.MonkeyPatch) -> Callable[..., pd.DataFrame]:
    monkeypatch.setattr(real, "load_table", made_up)
    return made_up


def test_a_quantity_that_orders_points_perfectly_is_found(plane: object) -> None:
    found = real.correlations("any")
    assert list(found.index) == list(real.TOLD)
    assert found["own"]["error"] == pytest.approx(1)
    assert found["own_low"]["signal"] == pytest.approx(1)
    assert found["apart"]["error"] > 0.3, "it knows where this task differs from the others"
    assert found["own"].abs()["entropy"] < 0.5
    for kind in ("own", "apart"):
        assert (found[f"{kind}_low"] <= found[kind] + 1e-9).all()
        assert (found[kind] <= found[f"{kind}_high"] + 1e-9).all()


def test_what_all_tasks_share_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """A quantity that is the same for all tasks orders the plane and knows of none."""
    table = made_up("any")
    means = table.groupby(["seed", "rank_ratio", "scale"])["accuracy"].transform("mean")
    monkeypatch.setattr(real, "load_table", lambda name: table.assign(agreement=means))
    found = real.correlations("any")
    assert found["own"]["agreement"] > 0.3
    assert found["apart"]["agreement"] == pytest.approx(0)


def test_plane_and_what_is_picked(plane: object) -> None:
    wide = real.plane("any")
    assert wide.shape == (3, 3)
    assert wide.max().idxmax() == 2.0
    assert wide[2.0].idxmax() == 0.08
    lost = real.picked("any")["mean"]
    assert lost["error"] == pytest.approx(0, abs=3)
    assert (lost >= 0).all()
    assert lost["entropy"] > 0


def test_shares_are_of_the_experts() -> None:
    rows = real.normalised("vision8-baselines")
    table = load_table("vision8-baselines").query("method == 'cart'")
    assert TABLE["vision8"][-1] / EXPERTS == pytest.approx(0.936, abs=5e-4), "the paper's"
    assert rows["mean"]["cart"] == pytest.approx(100 * table["normalised"].mean())


def test_gains_are_read_by_granularity(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [
        {"seed": seed, "task": task, "method": method, "granularity": fine, "accuracy": accuracy}
        for seed in range(3)
        for task in ("x", "y")
        for method, fine, accuracy in (
            ("cart", "", 0.5),
            ("adamerging+cart", "task", 0.51),
            ("adamerging+cart", "layer", 0.53 + 0.001 * seed),
        )
    ]
    monkeypatch.setattr(real, "load_table", lambda name: pd.DataFrame(rows))
    gains = real.adapted_gains("any", ["cart"])
    assert [gains[name]["mean"].item() for name in gains] == pytest.approx([3.1, 1.0])
    without = pd.DataFrame(rows).query("granularity != 'task'").drop(columns="granularity")
    monkeypatch.setattr(real, "load_table", lambda name: without.copy())
    assert list(real.adapted_gains("any", ["cart"])) == ["by layer"]


def test_recalibration_is_read_from_the_results() -> None:
    table = load_table("imagenet8-batch_norm").query("method == 'average'")
    means = 100 * table.groupby("statistics")["accuracy"].mean()
    assert real.recalibrated()["mean"]["average"] == pytest.approx(
        means["measured"] - means["merged"]
    )
