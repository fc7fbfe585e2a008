"""Figures: every method has its colour, and what is drawn is what the table says."""

from collections.abc import Iterator

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from matplotlib.collections import LineCollection
from matplotlib.colors import to_hex, to_rgb

from mergebook.plots import (
    COLOURS,
    LABELS,
    accuracy_by_task,
    colour,
    heat_map,
    label,
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


@pytest.mark.parametrize("given", [False, True])
def test_accuracy_by_task(given: bool) -> None:
    """The average keeps 0.61 of birds and 0.75 of cars: birds come first."""
    ax = plt.subplots()[1] if given else None
    figure = accuracy_by_task(TABLE, ax)
    (drawn,) = figure.axes
    assert ax is None or drawn is ax
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
