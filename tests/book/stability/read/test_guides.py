"""Bounds beside measured settings, on constants and merges with known answers."""

from itertools import product
from typing import Any

import pandas as pd
import pytest
import torch

from mergebook.stability.read import guides
from mergebook.stability.read.quadratics import HABIT
from mergebook.stability.theory.bounds import Losses
from mergebook.stability.theory.steps import Training

NONE = torch.zeros(2, dtype=torch.float64)


def test_bounds_without_noise_and_differences_are_what_is_left_of_them() -> None:
    """With f = 3, ‖∇f‖² = 2, L = 1, so C = 1.5; 25 steps of 0.04, so ηK = 1."""
    known = Losses(1.0, NONE, NONE + 1e-9)  # γ* needs some stability
    start = guides.Start(known, known, loss=3.0, squared=2.0, unbiased=1.5, dissimilarity=4.0)
    found = guides.totals(start, Training.alike(2, 25, 0.04, batch=4, examples=100))
    gradient = 2 * 4 * 3.0  # 2 · 4Δ/(ηK)
    assert found["theorem_3"] == pytest.approx((0.5 + 1.5) * gradient)
    assert found["best_gamma"] == pytest.approx(1.5 * gradient)  # γ* is large
    assert found["printed"] == pytest.approx((0.5 + 1.5) * gradient / (2 / 25) ** 0.5 / 25)
    assert found["repaired"] == pytest.approx(3 - 1.5 / 4 + 3 * 0.04**2 * 4 * 25 * 24)


def record(smoothness: float = 2.0) -> dict[str, pd.DataFrame]:
    curvature = [("example", smoothness), ("example", smoothness / 2), ("mean", smoothness / 10)]
    gradients = [(4.0, 5.0, 1.0), (8.0, 1.0, -3.0)]  # the last is an unbiased estimate below 0
    where = {"seed": 0, "point": "pretrained"}
    return {
        "curvature": pd.DataFrame([{**where, "of": of, "smoothness": v} for of, v in curvature]),
        "gradients": pd.DataFrame(
            [{**where, "noise": a, "largest": b, "heterogeneity": c} for a, b, c in gradients]
        ),
        "points": pd.DataFrame(
            [{**where, "loss": 3.0, "squared": 2.0, "unbiased": -1.0, "dissimilarity": 4.0}]
        ),
    }


def test_every_task_has_the_mean_constants() -> None:
    start = guides.starts(record(), 5)[0]
    assert start.losses.smoothness == 2.0
    assert guides.starts(record(), 5, "mean")[0].losses.smoothness == pytest.approx(0.2)
    for vector, square in (
        (start.losses.noise, 6.0),
        (start.largest.noise, 13.0),
        (start.losses.heterogeneity, 0.5),
    ):
        torch.testing.assert_close(vector**2, torch.full((5,), square, dtype=torch.float64))
    assert (start.unbiased, start.dissimilarity) == (0.0, 4.0)


def measured(accuracies: dict[tuple[float, int], list[float]]) -> pd.DataFrame:
    """Settings of ``rate`` and steps with a value for each seed; the guides rise with ηK."""
    rows: list[dict[str, Any]] = []
    for ((rate, steps), values), seed in product(accuracies.items(), range(3)):
        progress = rate * steps
        where = {"seed": seed, "learning_rate": rate, "batch_size": 32, "share": 1.0}
        own = {"accuracy": values[seed], "train_accuracy": -values[seed], "loss": -values[seed]}
        own |= {"validation_accuracy": steps, "validation_loss": steps, "moved": progress}
        said = dict.fromkeys(guides.GUIDES, progress)
        rows.append(
            {**where, "steps": steps, "progress": progress, "distance": 1 / progress} | own | said
        )
    return pd.DataFrame(rows)


def test_regrets_by_hand() -> None:
    """The best of seed 2 is another; ηK of 0.4 is at two places, and the guides take the least."""
    table = measured(
        {
            (4e-4, 100): [50.0, 50.0, 50.0],
            (4e-4, 400): [60.0, 64.0, 60.0],
            (4e-4, 1000): [70.0, 70.0, 62.0],
            (4e-3, 100): [66.0, 66.0, 66.0],
        }
    )
    found = guides.regrets(table)
    assert found["theorem_3"].tolist() == [20.0, 20.0, 16.0]
    assert found["default"].tolist() == [10.0, 6.0, 6.0]
    assert found["random"].tolist() == [8.5, 7.5, 6.5]
    assert found["search"].tolist() == [20.0, 20.0, 16.0]
    assert found["experts"].tolist() == [0.0, 0.0, 4.0]  # most steps
    assert found["experts_loss"].tolist() == [12.0, 12.0, 8.0]  # fewest, in two places
    assert found["elsewhere"].tolist() == [2.0, 2.0, 4.0]  # two places are equally good elsewhere
    assert found[HABIT].tolist() == [2.0, 2.0, 2.0]  # (70 + 66)/2, and (62 + 66)/2


def test_a_search_on_validation_examples_takes_the_merge_that_is_best_there() -> None:
    table = measured({(4e-4, 100): [50.0] * 3, (4e-4, 400): [60.0] * 3, (4e-4, 25): [55.0] * 3})
    right = {100: 0.5, 400: 0.6, 25: 0.7}  # by validation, the second best
    rows = [
        {"seed": seed, "learning_rate": 4e-4, "batch_size": 32, "share": 1.0, "steps": steps}
        | {"method": method, "group": group, "validation_accuracy": value + shift}
        for seed, (steps, value) in product((0, 2), right.items())
        for method, group, shift in (("average", 0, -0.01), ("average", 1, 0.01), ("ties", 0, 0.3))
    ]
    again = guides.validated(table, pd.DataFrame(rows))
    assert sorted(again["seed"].unique()) == [0, 2], "the others were not judged"
    assert again.set_index("steps")["merge_validation"].loc[100].tolist() == pytest.approx([50, 50])
    assert guides.regrets(again)["validated"].tolist() == [5.0, 5.0]
    assert "validated" not in guides.regrets(table)


def test_less_data_is_no_choice() -> None:
    table = measured({(4e-4, 100): [50.0] * 3, (4e-4, 400): [60.0] * 3})
    less = measured({(4e-4, 50): [90.0] * 3}).assign(share=0.5)
    both = pd.concat([table, less])
    pd.testing.assert_frame_equal(guides.regrets(both), guides.regrets(table))


def test_a_rival_takes_its_direction_from_other_seeds() -> None:
    """In seed 2 alone loss rises with ηK, so there its direction is wrong; a bound's is fixed."""
    table = measured(
        {
            (4e-4, 100): [50.0, 50.0, 70.0],
            (4e-4, 400): [60.0, 60.0, 60.0],
            (4e-4, 800): [70.0, 70.0, 50.0],
        }
    )
    found = guides.correlations(table)
    assert found["theorem_3"].tolist() == pytest.approx([-1.0, -1.0, 1.0])
    assert found["progress"].tolist()[2] == pytest.approx(-1.0)
    assert found["distance"].tolist() == pytest.approx(found["progress"].tolist())


def test_the_rule_from_a_record() -> None:
    """With ‖∇f‖ = 3, κ = 4 and L = 2 it is 1/16; then with ησ²/b = 0.01 · 6, five tasks."""
    tables = record()
    tables["points"]["unbiased"] = 9.0
    tables["points"]["dissimilarity"] = 16.0
    known = guides.starts(tables, 5)
    assert guides.predicted(known).loc[[0]].to_numpy()[0] == pytest.approx([1 / 16, 3 / 16])
    noisy = float(guides.predicted(known, noise_share=0.01)["progress"][0])
    assert 9 * 4 * 16 * noisy**2 + 3 * 4 * 0.06 * noisy == pytest.approx(9 / 4 - 2 * 0.06 / 5)


def test_costs_by_hand() -> None:
    """Two tasks, one group, two seeds; less data and the rivals do not count."""
    settings = [(4e-4, 32, 1.0, 100), (4e-4, 32, 1.0, 200), (4e-4, 8, 1.0, 50), (4e-4, 32, 0.5, 50)]
    keys = ["seed", "learning_rate", "batch_size", "share", "steps", "task"]
    rows = pd.DataFrame(
        [(seed, *own, task) for seed, own, task in product((0, 1), settings, "ab")], columns=keys
    )
    start = rows[rows["steps"] == 100].assign(steps=0)
    merged = pd.concat([rows.assign(group=0, method=name) for name in ("average", "ties")])
    swept, known = {"seen": 10, "pictures": 20}, {"pictures": 30, "singles": 3, "products": 8}
    found = guides.costs(merged, pd.concat([start, rows]), swept, known)
    training = 2 * (200 * 32 + 50 * 8)
    assert found.T.to_dict("list") == {
        "bounds": [2 * 30, 2 * 3 * 4, 0, 0],
        "search": [training, 0, 3, 3 * 2 * 10],
        "experts": [training, 0, 0, 3 * 2 * 20],
    }


def test_theorem_3_in_closed_form_is_the_one_of_the_package() -> None:
    table = measured({(4e-4, 25): [1.0] * 3, (1.6e-3, 400): [2.0] * 3}).query("seed == 0")
    start = guides.starts(record(), 5)
    for smooth in (0.1, 1.0, 30.0):
        known = guides.starts(record(), 5, smooth)[0]
        plans = [
            Training.alike(5, int(steps), float(rate), batch=32, examples=3700)
            for steps, rate in table[["steps", "learning_rate"]].to_numpy()
        ]
        said = [guides.totals(known, plan) for plan in plans]
        given = table.assign(stability=[own["stability"] for own in said])
        found = guides.with_smoothness(given, start, smooth)
        for name in ("theorem_3", "optimisation"):
            assert found[name].tolist() == pytest.approx([own[name] for own in said])


def test_the_constant_is_fitted_to_other_seeds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seed 0 alone likes L = 100; what it gets is what seeds 1 and 2 like, and the reverse."""
    monkeypatch.setattr(guides, "FITTED", (1.0, 100.0))
    table = measured({(4e-4, 25): [1.0] * 3}).assign(stability=1.0)
    known = {seed: guides.starts(record(), 5)[0] for seed in range(3)}
    likes = {1.0: [0.0, 1.0, 1.0], 100.0: [5.0, 0.9, 0.9]}

    def score(rows: pd.DataFrame) -> pd.Series:
        return pd.Series(likes[float(rows["smoothness"].iloc[0])])

    chosen = guides.fitted(table, known, score).groupby("seed")["smoothness"].first()
    assert chosen.tolist() == [1.0, 100.0, 100.0]
