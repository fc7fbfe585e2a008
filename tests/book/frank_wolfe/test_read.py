"""Tables of the chapters on FW-Merging: worked by hand, and against the results they read."""

from collections.abc import Iterator

import matplotlib as mpl
import numpy as np
import pandas as pd
import pytest
from matplotlib import pyplot as plt

from mergebook.frank_wolfe import read as fw
from mergebook.frank_wolfe.draw import walks as figures
from mergebook.frank_wolfe.draw.hull import draw_gap, draw_hull, hard_path
from mergebook.lab.results import load_table
from mergebook.lab.statistics import both_intervals
from mergebook.plots import forest


@pytest.fixture(autouse=True)
def no_window() -> Iterator[None]:
    with mpl.rc_context({"backend": "agg"}):
        yield
    plt.close("all")


def test_the_rivals_wide_intervals_are_no_narrower_where_tasks_differ() -> None:
    table = both_intervals(fw.procedures_table(), {**fw.RIVALS, **fw.KINDS})
    assert (table["low"] <= table["mean"]).all()
    assert (table["mean"] <= table["high"]).all()
    assert (table["high"] - table["low"] > 2 * table["half_width"]).all()


def test_the_most_negative_coefficient_is_the_starts() -> None:
    """In every seed: what the steps leave of the start is the smallest of all coefficients."""
    name = "frank_wolfe soft, by task, unconstrained"
    left = fw.start_shares(load_table("vision8-procedures", "history")).loc[name]
    hull = load_table("vision8-procedures", "hull").query("method == @name").set_index("seed")
    assert list(left) == pytest.approx(hull["smallest"].tolist())
    assert (left < -1).all()


def test_what_is_left_of_the_start_by_hand() -> None:
    rows = [{"seed": 0, "method": "walk", "moved": moved} for moved in (0.5, 0.2, 0.0)]
    assert fw.start_shares(pd.DataFrame(rows)).loc["walk", 0] == pytest.approx(0.4)


def test_blocks_are_averaged() -> None:
    columns = ["patches.weight", "blocks.0.a", "blocks.0.b", "blocks.1.a"]
    table = fw.block_shares(pd.DataFrame([[1.0, 0.2, 0.4, 0.5]], columns=columns, index=["x"]))
    assert table.columns.tolist() == ["patches", "blocks.0", "blocks.1"]
    assert list(table.loc["x"]) == pytest.approx([1.0, 0.3, 0.5])


@pytest.mark.parametrize(
    ("method", "name", "kind"),
    [
        ("frank_wolfe soft, by layer, from cart", "FW soft, by layer, from CART", "labelled"),
        ("surgery+cart", "Surgery + CART", "unlabelled"),
        ("labels", "λ on CART, all labels", "labelled"),
        ("average", "average", "no data"),
        ("individual", "individual", "experts"),
    ],
)
def test_names_and_groups(method: str, name: str, kind: str) -> None:
    assert fw.short(method) == name
    assert fw.group(method) == kind


def test_labels_make_a_walk_indifferent_to_strangers() -> None:
    wide = fw.pools("irrelevant")
    labelled = wide.xs("frank_wolfe, labels", level="method").groupby("suite")
    assert (labelled.nunique() == 1).to_numpy().all()
    ends = fw.pool_ends("irrelevant")
    assert ends.index.tolist() == [text for text, _, _ in fw.POOLED.values()]
    assert all(" → " in text for text in ends.to_numpy().ravel())
    lead = fw.pool_differences("irrelevant", "frank_wolfe, labels", ["ties"])
    assert lead.index.tolist() == [(suite, "− TIES") for suite in fw.SUITES]
    assert (lead["mean"] > lead["half_width"]).all()


def test_gains_are_of_the_targets_only() -> None:
    gains = fw.entropy_gains()
    assert gains.groupby("suite").size().tolist() == [5, 5]
    assert (gains.notna().sum(axis=1) == 4).all()


def test_the_best_tuned_method_needs_the_fewest_bits() -> None:
    bits = fw.text_bits()
    best = fw.best_tuned(bits)
    tuned = bits[bits["method"].str.endswith(", tuned")]
    assert (
        bits[bits["method"] == best]["bits"].mean() == tuned.groupby("method")["bits"].mean().min()
    )


def test_figures_show_every_row() -> None:
    table = load_table("vision8-procedures")
    _, axes = plt.subplots(1, 5)
    figures.procedure_dots(table, table.groupby("method")["loss"].mean(), axes[0])
    assert len(axes[0].get_yticks()) == table["method"].nunique()
    forest({"": 100 * both_intervals(table, fw.KINDS)}, axes[1], ["k"] * len(fw.KINDS), digits=2)
    assert [text.get_text() for text in axes[1].get_yticklabels()] == list(fw.KINDS)
    figures.sample_curves(load_table("vision8-calibration"), axes[2])
    assert len(axes[2].containers) == 4
    figures.kind_curves(load_table("vision8-procedures", "history"), axes[3:])
    assert len(axes[3].lines) == len(axes[4].lines) == 4
    _, panels = plt.subplots(2)
    figures.pool_curves("relevant", panels, "experts")
    assert [len(ax.containers) for ax in panels] == [6, 6]


def test_a_hard_path_goes_from_vertex_to_vertex() -> None:
    corners = {"a": np.array([0.0, 0.0]), "b": np.array([2.0, 0.0]), "c": np.array([0.0, 4.0])}
    history = pd.DataFrame({"vertex": ["b", "c"], "moved": [0.5, 0.25]})
    assert hard_path(history, corners, "a").tolist() == [[0, 0], [1, 0], [0.75, 1]]
    _, ax = plt.subplots()
    sides = [np.array([-1.0, 3.0]), np.array([-1.0, 5.0])]
    draw_hull(ax, lambda y, x: y[:, None] ** 2 + x[None] ** 2, sides, corners, corners["b"])
    draw_gap(ax, corners["a"], np.array([1.0, 0.0]), 2.0)
    assert "b = s" in {text.get_text() for text in ax.texts}
    assert ax.get_xlim() == (-1, 3)
