"""Tables of the chapters on FW-Merging: worked by hand, and against the results they read."""

from collections.abc import Iterator

import matplotlib as mpl
import pytest
from matplotlib import pyplot as plt

from mergebook.frank_wolfe import read as fw
from mergebook.frank_wolfe.draw import pool_curves


@pytest.fixture(autouse=True)
def no_window() -> Iterator[None]:
    with mpl.rc_context({"backend": "agg"}):
        yield
    plt.close("all")


@pytest.mark.parametrize(
    ("method", "name"),
    [
        ("frank_wolfe soft, by layer, from cart", "FW soft, by layer, from CART"),
        ("surgery+cart", "Surgery + CART"),
        ("labels", "λ on CART, all labels"),
        ("average", "average"),
    ],
)
def test_names(method: str, name: str) -> None:
    assert fw.short(method) == name


def test_labels_make_a_walk_indifferent_to_strangers() -> None:
    wide = fw.pools("irrelevant")
    labelled = wide.xs("frank_wolfe, labels", level="method").groupby("suite")
    assert (labelled.nunique() == 1).to_numpy().all()
    ends = fw.pool_ends("irrelevant")
    assert ends.index.tolist() == [text for text, _, _ in fw.POOLED.values()]
    assert all(" → " in text for text in ends.to_numpy().ravel())


def test_gains_are_of_the_targets_only() -> None:
    gains = fw.entropy_gains()
    assert gains.groupby("suite").size().tolist() == [5, 5]
    assert (gains.notna().sum(axis=1) == 4).all()


def test_pools_are_drawn_for_every_suite_and_method() -> None:
    _, panels = plt.subplots(2)
    pool_curves("relevant", panels, "experts")
    assert [len(ax.containers) for ax in panels] == [6, 6]
