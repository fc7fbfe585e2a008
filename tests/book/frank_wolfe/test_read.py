"""Tables of the chapters on FW-Merging: worked by hand, and against the results they read."""

import pytest

from mergebook.frank_wolfe import read as fw


@pytest.mark.parametrize(
    ("method", "name"),
    [
        ("frank_wolfe soft, by layer, from cart", "FW soft, per tensor, from CART"),
        ("surgery+cart", "Surgery + CART"),
        ("labels", "λ on CART, all labels"),
        ("average", "average"),
    ],
)
def test_names(method: str, name: str) -> None:
    assert fw.short(method) == name


def test_irrelevant_experts_do_not_change_a_walk_with_labels() -> None:
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
