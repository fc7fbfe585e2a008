"""What the chapters on CoGraM compute: by hand where a number follows, else what must hold."""

from itertools import product
from typing import Any

import numpy as np
import pandas as pd
import pytest

from mergebook.cogram import read as analysis

SEEDS = range(12)  # so many that no bootstrap draw holds one value only


def runs(**rows: tuple[str, dict[str, tuple[float, ...]]]) -> pd.DataFrame:
    """Rows of a study: levels to method and columns, three values for four seeds each."""
    return pd.DataFrame(
        [
            {"data": data, "start": start, "seed": seed, "method": method, "levels": levels}
            | {"prototypes": "arithmetic", "iterations": 1}
            | {name: values[seed % 3] for name, values in columns.items()}
            for data, start in analysis.CASES
            for levels, (method, columns) in rows.items()
            for seed in SEEDS
        ]
    )


@pytest.fixture
def source() -> analysis.Source:
    fusion = runs(
        fisher=("fisher", {"accuracy": (0.5, 0.5, 0.5), "toward_a": (0.5, 0.5, 0.5)}),
        a=("a", {"accuracy": (0.6, 0.7, 0.8), "toward_a": (1.0, 1, 1)}),
        b=("b", {"accuracy": (0.62, 0.72, 0.82), "toward_a": (0.0, 0, 0)}),
        better=("better", {"accuracy": (0.6, 0.72, 0.82), "toward_a": (1.0, 0, 0)}),
        layer=("cogram", {"accuracy": (0.4, 0.6, 0.78), "toward_a": (0.97, 0.99, 0.6)}),
        other=("cogram", {"accuracy": (0.4, 0.6, 0.77), "toward_a": (0.97, 0.9, 0.6)}),
    )
    return analysis.Source("synthetic", fusion)


def test_differences_are_paired_by_seed(source: analysis.Source) -> None:
    rows = analysis.gap(source.of("a") - source.of("b"))
    assert [*rows.index] == [*analysis.CASES]
    np.testing.assert_allclose(rows["mean"], -2)
    np.testing.assert_allclose(rows["half_width"], 0, atol=1e-9)
    with pytest.raises(ValueError, match="expected one for each data and start and seed"):
        source.of("cogram")


def test_counts_of_seeds(source: analysis.Source) -> None:
    assert set(analysis.improved(source, "arithmetic").values()) == {8}
    # of three seeds, one is near A, the better, one near A, the worse, one near none
    found = analysis.at_parent(source, 1)
    assert found["near"].tolist() == [8] * 4
    assert found["better"].tolist() == [4] * 4


@pytest.mark.parametrize("name", ["synthetic", "digits"])
def test_the_files_hold_what_the_chapters_read(name: str) -> None:
    source = analysis.Source.load(name)
    assert (100 * source.fusion["accuracy"]).between(1, 100).all()
    assert source.trained("a", "none").between(1, 100).all()


def feature_scale(scales: tuple[float, ...] = (1.0, 3.0)) -> pd.DataFrame:
    """A map where CoGraM is ahead of Fisher by the offset in points, and behind B by one."""
    rows: list[dict[str, Any]] = []
    for (data, start), scale, offset, seed in product(analysis.CASES, scales, (0.0, 2.0), (0, 1)):
        names = {"data": data, "start": start, "scale": scale, "offset": offset, "seed": seed}
        fisher = 0.5 + 0.1 * seed
        merged = fisher + offset / 100
        rows.append({**names, "method": "fisher", "accuracy": fisher})
        rows.append({**names, "method": "better", "accuracy": merged + 0.01 * (1 + seed)})
        for kind, steepness, count in product(("geometric", "arithmetic"), (1.0, 5.5), (1, 3)):
            other = 0.0 if (kind, steepness, count) == ("geometric", 5.5, 3) else 0.2
            done = {"prototypes": kind, "steepness": steepness, "iterations": count}
            rows.append({**names, "method": "cogram", **done, "accuracy": merged + other})
    return pd.DataFrame(rows)


def test_a_map_compares_one_setting_with_one_rival(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(analysis, "load_table", lambda _: feature_scale())
    found = analysis.feature_map("geometric", "fisher", iterations=3)
    assert len(found) == 4 * 2 * 2
    offsets = found.index.get_level_values("offset")
    np.testing.assert_allclose(found["mean"], offsets)
    np.testing.assert_allclose(found["half_width"], 0, atol=1e-9)
    found = analysis.feature_map("geometric", "better", iterations=3)
    np.testing.assert_allclose(found["mean"], -1.5)
    np.testing.assert_allclose(found["half_width"], 12.706 / 2, rtol=1e-3)
    fisher = analysis.feature_map(None, "better")
    np.testing.assert_allclose(fisher["mean"], -1.5 - offsets)
