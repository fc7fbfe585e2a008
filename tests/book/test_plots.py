"""Figures: every method has its colour, and what is drawn is what the table says."""

from collections.abc import Iterator
from typing import Any

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from matplotlib.collections import LineCollection
from matplotlib.colors import to_hex, to_rgb

from mergebook.plots import (
    BLUE,
    COLOURS,
    GREEN,
    LABELS,
    accuracy_by_task,
    colour,
    curve,
    heat_map,
    intervals,
    label,
    legend_outside,
    points,
    series,
    use_style,
)
from mergelib.registry import method_names

mpl.use("Agg")
FAMILIES = ("rule", "procedure", "compression")


@pytest.fixture(autouse=True)
def _tidy() -> Iterator[None]:
    with mpl.rc_context():
        yield
        plt.close("all")


def test_every_label_and_colour_is_of_a_method_and_its_own() -> None:
    assert set(COLOURS) <= set(LABELS)
    assert set(LABELS) <= {
        *(n for f in FAMILIES for n in method_names(f)),
        "pretrained",
        "individual",
    }
    assert len({colour(name) for name in COLOURS}) == len(COLOURS)
    assert len({label(name) for name in LABELS}) == len(LABELS)
    assert label("some_new_method") == "some new method"
    assert colour("some_new_method") not in COLOURS.values()


def test_colours_are_told_apart_and_stand_out_on_white() -> None:
    def brightness(name: str) -> float:
        red, green, blue = to_rgb(name)
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue

    rgb = np.array([to_rgb(name) for name in COLOURS.values()])
    gaps = np.linalg.norm(rgb[:, None] - rgb[None], axis=-1)
    assert gaps[~np.eye(len(rgb), dtype=bool)].min() > 0.15
    assert max(map(brightness, COLOURS.values())) < 0.7


def test_use_style() -> None:
    use_style()
    assert mpl.rcParams["figure.facecolor"] == "white", "readable in dark mode"
    assert mpl.rcParams["font.size"] >= 11
    _, ax = plt.subplots()
    (line,) = ax.plot([0, 1])
    assert line.get_color() == COLOURS["average"]


TABLE = pd.DataFrame(
    [
        ("pretrained", "cars", 0.2),
        ("pretrained", "birds", 0.5),
        ("average", "cars", 0.6),
        ("average", "birds", 0.55),
        ("cart", "cars", 0.7),
        ("cart", "birds", 0.8),
        ("individual", "cars", 0.8),
        ("individual", "birds", 0.9),
    ],
    columns=["method", "task", "accuracy"],
)


def test_accuracy_by_task() -> None:
    """The average keeps 0.61 of birds and 0.75 of cars: birds come first."""
    (drawn,) = accuracy_by_task(TABLE).axes
    assert [tick.get_text() for tick in drawn.get_yticklabels()] == ["birds", "cars"]
    dots = {points.get_label(): points for points in drawn.collections[1:]}
    assert list(dots) == ["pretrained", "average", "CART", "individual"]
    np.testing.assert_allclose(np.asarray(dots["CART"].get_offsets()), [[80, 0], [70, 1]])
    assert to_hex(np.asarray(dots["CART"].get_facecolor())[0]) == COLOURS["cart"]
    gaps = drawn.collections[0]
    assert isinstance(gaps, LineCollection)
    np.testing.assert_allclose(gaps.get_segments(), [[[50, 0], [90, 0]], [[20, 1], [80, 1]]])
    legend = drawn.get_legend()
    assert legend is not None
    assert [text.get_text() for text in legend.get_texts()] == list(dots)


def test_accuracy_by_task_without_an_average() -> None:
    """The pretrained model keeps 0.25 of cars and 0.56 of birds."""
    figure = accuracy_by_task(TABLE[TABLE["method"] != "average"])
    assert [tick.get_text() for tick in figure.axes[0].get_yticklabels()] == ["cars", "birds"]


def test_heat_map() -> None:
    values = pd.DataFrame([[0.1, 0.9], [0.5, 0.75]], index=["a", "b"], columns=["x", "y"])
    figure, ax = plt.subplots()
    heat_map(values, ax, low=0, high=1, digits=2, bar="cosine")
    (mesh,) = ax.collections
    shown = mesh.get_array()
    assert shown is not None
    np.testing.assert_allclose(np.ravel(shown), np.ravel(values))
    assert mesh.get_clim() == (0, 1)
    written = {text.get_text(): text for text in ax.texts}
    assert set(written) == {"0.10", "0.90", "0.50", "0.75"}
    assert written["0.90"].get_position() == (1.5, 0.5)
    dark, bright = (mpl.colors.to_rgb(written[text].get_color())[0] for text in ("0.90", "0.10"))
    assert dark < 0.2 < 0.9 < bright, "ink that stands out from its cell"
    assert [tick.get_text() for tick in ax.get_xticklabels()] == ["x", "y"]
    assert [tick.get_text() for tick in ax.get_yticklabels()] == ["a", "b"]
    assert figure.axes[1].get_ylabel() == "cosine"


SEEDS = pd.DataFrame(
    [
        (kind, x, seed, x + seed + (10 if kind == "b" else 0))
        for kind in ("a", "b")
        for x in (4, 2)
        for seed in (0, 1, 2)
    ],
    columns=["kind", "x", "seed", "y"],
)
LOOKS = {"b": ("second", GREEN, "s-"), "c": ("absent", BLUE, "o-"), "a": ("first", BLUE, "o-")}


@pytest.mark.parametrize("band", [False, True])
def test_series(band: bool) -> None:
    """Means and 95 % intervals over seeds 0, 1, 2, with x in order and groups as in the looks."""
    ax: Any = plt.subplots()[1]
    series(ax, SEEDS, x="x", y="y", by="kind", looks=LOOKS, band=band)
    assert ax.get_legend_handles_labels()[1] == ["second", "first"]
    half = 4.302653 * (1 / 3) ** 0.5
    if band:
        line = ax.lines[1]
        ends = ax.collections[1].get_paths()[0].vertices[:, 1]
        np.testing.assert_allclose([ends.min(), ends.max()], [3 - half, 5 + half], atol=1e-5)
    else:
        line, _, (bars,) = ax.containers[1]
        ends = np.array(bars.get_segments())[:, :, 1]
        np.testing.assert_allclose(ends, [[3 - half, 3 + half], [5 - half, 5 + half]], atol=1e-5)
    np.testing.assert_allclose(line.get_xydata(), [[2, 3], [4, 5]])
    assert line.get_color() == BLUE


def test_series_without_seeds_and_looks() -> None:
    ax: Any = plt.subplots()[1]
    series(ax, SEEDS[SEEDS["seed"] == 0], x="x", y="y", by="kind")
    assert [line.get_label() for line in ax.lines] == ["a", "b"]
    np.testing.assert_allclose(ax.lines[1].get_xydata(), [[2, 12], [4, 14]])


@pytest.mark.parametrize("upright", [False, True])
def test_intervals(upright: bool) -> None:
    ax: Any = plt.subplots()[1]
    names = {2: "two", 3: "three", 4: "four"}
    at: Any = {"value": "y", "at": "x", "by": "kind", "looks": LOOKS, "names": names}
    intervals(ax, SEEDS, **at, upright=upright)
    line, _, _ = ax.containers[1]
    place, mean = [0.1, 2.1], [3, 5]
    order = np.argsort(line.get_xdata())
    np.testing.assert_allclose(
        line.get_xydata()[order], np.transpose([place, mean] if upright else [mean, place])
    )
    axis = ax.xaxis if upright else ax.yaxis
    assert [tick.get_text() for tick in axis.get_ticklabels()] == ["two", "three", "four"]


def test_points_draw_rows_as_they_are() -> None:
    ax: Any = plt.subplots()[1]
    points(ax, SEEDS, x="x", y="y", by="kind", looks=LOOKS)
    rows = SEEDS[SEEDS["kind"] == "a"]
    np.testing.assert_allclose(ax.lines[1].get_xydata(), rows[["x", "y"]].to_numpy(float))


def test_ends_of_their_own_and_one_legend() -> None:
    figure, axes = plt.subplots(1, 2)
    rows = pd.DataFrame({"mean": [1.0], "low": [0.5], "high": [3.0]}, index=[7])
    for ax in axes:
        curve(ax, rows, ("one", BLUE, "o"))
    (bar,) = axes[0].containers[0][2][0].get_segments()
    np.testing.assert_allclose(bar, np.array([[7, 0.5], [7, 3]]))
    legend_outside(figure)
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["one"]
