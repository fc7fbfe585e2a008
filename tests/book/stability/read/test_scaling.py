"""What is read off the sweep, worked by hand on small tables."""

from typing import Any

import pandas as pd
import pytest
import torch

from mergebook.stability.read import scaling as sweep
from mergebook.stability.theory import bounds


def rows(**columns: Any) -> pd.DataFrame:
    return pd.DataFrame({**sweep.USUAL, **columns})


def test_what_is_best_is_chosen_on_the_other_seeds() -> None:
    """Seed 0 is best at b, far, and the others at c; the ends do not count."""
    wide = pd.DataFrame(
        {"a": [0.0, 0.0, 0.0], "b": [9.0, 1.0, 1.0], "c": [0.0, 2.0, 2.0], "d": [99.0] * 3},
        index=pd.MultiIndex.from_tuples([(0, "t"), (1, "t"), (2, "t")], names=["seed", "task"]),
    )
    choice = sweep.chosen_elsewhere(wide, list(wide)[1:-1])
    assert choice == {0: "c", 1: "b", 2: "b"}
    assert sweep.taken(wide, choice).tolist() == [0.0, 1.0, 1.0]


def test_spread_is_a_mean_over_groups_with_high_for_good() -> None:
    table = rows(
        seed=[0, 0, 0, 0],
        task=["a", "a", "b", "a"],
        group=[0, 1, 0, 0],
        steps=[1, 1, 1, 2],
        accuracy=[0.2, 0.4, 0.6, 0.8],
        loss=[2.0, 4.0, 1.0, 0.5],
    )
    one = sweep.at(table, steps=1)
    assert sweep.spread(one, "steps")[1].to_dict() == pytest.approx({(0, "a"): 30, (0, "b"): 60})
    assert sweep.spread(one, "steps", "loss")[1].to_dict() == {(0, "a"): -3.0, (0, "b"): -1.0}
    with pytest.raises(ValueError, match="not every seed and task was measured at every steps"):
        sweep.spread(table, "steps")
    with pytest.raises(ValueError, match="not every seed"):
        sweep.spread(sweep.at(table, batch_size=8), "steps")


def test_gained_is_the_difference_on_the_same_examples() -> None:
    """Other shares of the data have other training examples, and a start of their own."""
    columns = {"seed": 0, "task": "a", "loss": [2.0, 2.0, 1.5], "train_loss": [1.8, 1.7, 1.0]}
    table = pd.DataFrame({**sweep.USUAL, **columns, "accuracy": [0.2, 0.2, 0.5]})
    table = sweep.apart(table.assign(share=[1.0, 0.5, 1.0], steps=[0, 0, 9]))
    found = sweep.gained(table[table["steps"] == 9], table).iloc[0]
    assert found["accuracy"] == pytest.approx(0.3)
    assert found["generalisation"] == pytest.approx(0.5 - 0.2)
    assert found["train_loss"] == pytest.approx(-0.8)


def test_changes_split_the_test_loss() -> None:
    seeds, tasks = [0, 0, 1, 1, 2, 2], [0, 1] * 3
    first = rows(seed=seeds, task=tasks, steps=5, loss=2.0, train_loss=1.0)
    last = rows(seed=seeds, task=tasks, steps=9, loss=[1.0, 2.0] * 3, train_loss=[0.0, 1.0] * 3)
    table = sweep.apart(pd.concat([first, last]))
    found = sweep.changes(table, {"steps": 5}, {"steps": 9})
    assert found["mean"].tolist() == pytest.approx([-0.5, -0.5, 0.0])
    assert found["half_width"].tolist() == pytest.approx([0.0, 0.0, 0.0], abs=1e-12)
    assert found["low"].tolist()[0] < -0.5 < found["high"].tolist()[0]


def test_a_curve_has_students_interval_and_losses_their_sign() -> None:
    table = rows(seed=[0, 1], task=["a", "a"], steps=[5, 5], loss=[1.0, 3.0])
    curve = sweep.curve(table, "steps", "loss")
    assert list(curve.loc[5]) == pytest.approx([2.0, 12.706], abs=1e-3)


def _swept(method: str, groups: int, signs: list[int]) -> pd.DataFrame:
    parts = []
    for group in range(groups):
        heights = [0.0]
        for sign in signs:
            heights.append(heights[-1] + sign)
        part = rows(steps=[1, 2, 4][: len(heights)], accuracy=heights[:3])
        parts.append(part.assign(method=method, group=group))
    return pd.concat(parts)


def test_agreement_counts_steps_of_equal_sign_on_the_same_groups() -> None:
    """The average rises, then falls; a method that rises twice agrees once. Others do not count."""
    average = _swept("average", 2, [1, -1]).reset_index(drop=True)
    ties = _swept("ties", 1, [1, 1])
    average.loc[average["group"] == 1, "accuracy"] = 5.0 * average["steps"]
    table = pd.concat([average, ties], ignore_index=True).assign(task="a")
    table = pd.concat([table.assign(seed=seed) for seed in (0, 1)], ignore_index=True)
    assert sweep.agreement(table, "ties").tolist() == [50.0, 50.0]
    found = sweep.sweeps(table)
    assert found.pop("steps") == {"steps": None}
    assert found == {name: {name: None, "steps": 4} for name in sweep.SETTING}


def _counts() -> pd.DataFrame:
    """Task a is in all merges; the average loses 0.1 a doubling there, TIES only 0.05."""
    table = [
        (seed, method, count, task, 0.9 - fall * step if task == "a" else 0.5)
        for seed in (0, 1)
        for method, fall in (("average", 0.1), ("ties", 0.05))
        for step, count in enumerate((4, 8, 16))
        for task in ("a", "z")[: 1 + step]
    ]
    return pd.DataFrame(table, columns=["seed", "method", "count", "task", "accuracy"])


def test_shared_tasks_are_those_of_the_smallest_merge() -> None:
    found = sweep.shared_tasks(_counts(), "average")
    assert found.loc[0].to_dict() == pytest.approx({4: 90.0, 8: 80.0, 16: 70.0})


def test_slopes_are_per_doubling() -> None:
    """Leads of 0, 2.5 and 5 points at 4, 8 and 16 tasks, as half of the tasks show them."""
    table = _counts()
    assert sweep.slopes(table[table["task"] == "a"], "ties").tolist() == pytest.approx([5.0, 5.0])
    assert sweep.slopes(table, "ties").tolist() == pytest.approx([2.5, 2.5])


@pytest.mark.parametrize(
    ("before", "after", "printed"),
    [
        ({"steps": 100}, {"steps": 800}, 8.0),
        ({"steps": 9}, {"steps": 9, "learning_rate": 4 * sweep.USUAL["learning_rate"]}, 16.0),
        ({"steps": 9, "batch_size": 8}, {"steps": 9, "batch_size": 64}, 193 / 25),
        ({"steps": 9, "share": 0.25}, {"steps": 9}, 0.25),
    ],
)
def test_stabilities_are_the_laws(
    before: dict[str, Any], after: dict[str, Any], printed: float
) -> None:
    alike = bounds.Losses(1.0, torch.ones(1), torch.ones(1))
    first, second = (sweep.stabilities({**sweep.USUAL, **own}, alike) for own in (before, after))
    law, repaired = (b / a for a, b in zip(first, second, strict=True))
    assert law == pytest.approx(printed)
    if "batch_size" in after:
        assert repaired < 1, "larger batches are more stable"
    elif "learning_rate" in after:
        assert repaired == pytest.approx(16)
    else:
        assert (repaired > 1) == (printed > 1)


def test_a_power_is_found_with_its_error() -> None:
    """E_G = a K^0.8 with another a in each seed, next to laws that are powers themselves."""
    changes: list[dict[str, Any]] = [
        *({"steps": steps} for steps in (25, 50, 100, 200)),
        *({"steps": 100, "share": share} for share in (0.25, 0.5)),
        *({"steps": 100, "batch_size": size} for size in (8, 64)),
        *({"steps": 100, "learning_rate": rate} for rate in (1e-4, 1.6e-3)),
    ]
    rows: list[dict[str, Any]] = [
        {"seed": seed, "task": "t", "group": 0, **sweep.USUAL, **own}
        | {"generalisation": a * own.get("steps", 100) ** 0.8 * own.get("share", 1.0) ** -0.5}
        for seed, a in enumerate((0.01, 0.02, 0.04))
        for own in changes
    ]
    gains = pd.DataFrame(rows).assign(method="average")
    tables = {
        "steps": pd.DataFrame(
            {law: [1.0, 2.0, 4.0, 8.0] for law in sweep.LAWS}, [25, 50, 100, 200]
        ),
        "share": pd.DataFrame({law: [4.0, 2.0, 1.0] for law in sweep.LAWS}, [0.25, 0.5, 1.0]),
        "batch_size": pd.DataFrame({law: [1.0, 1.0, 1.0] for law in sweep.LAWS}, [8, 32, 64]),
    }
    found = sweep.exponents(gains, tables)
    assert found["measured"].to_dict() == pytest.approx(
        {"steps": 0.8, "share": -0.5, "batch_size": 0.0}, abs=0.01
    )
    assert found["printed"].to_dict() == pytest.approx(
        {"steps": 1.0, "share": -1.0, "batch_size": 0.0}, abs=0.01
    )
    assert (found["half_width"] < 0.05).all()
