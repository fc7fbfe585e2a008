"""Splits of a text: sizes recounted, brute force, and what random thirds must not show."""

from itertools import product

import pytest
import torch

from mergebook.sail import thirds as blocks
from mergebook.sail.distances import classifier_auc, residuals


def test_thirds_by_mean_are_in_order_and_disjoint() -> None:
    generator = torch.Generator().manual_seed(0)
    rows = torch.randint(100, (20, 5), generator=generator, dtype=torch.uint8)
    low, middle, high = (rows[part].double().mean(1) for part in blocks.mean_thirds(rows))
    assert len(low) == len(middle) == len(high) == 6
    assert low.max() <= middle.min()
    assert middle.max() <= high.min()
    for thirds in (blocks.mean_thirds(rows), blocks.random_thirds(20, 0)):
        assert len(torch.cat(thirds).unique()) == 18
    with pytest.raises(ValueError, match="8 blocks, expected at least 9"):
        blocks.random_thirds(8, 0)


def test_a_stretch_is_held_out() -> None:
    tokens = torch.arange(103, dtype=torch.uint8)
    table = blocks.cut_blocks(tokens, 5)
    assert table[7].tolist() == [35, 36, 37, 38, 39]
    held = blocks.held_stretch(len(table), 0.25, seed=3)
    places = held.nonzero().flatten()
    assert len(table) == 20
    assert (places - places[0]).tolist() == [0, 1, 2, 3, 4]


def count(first: torch.Tensor, second: torch.Tensor) -> int:
    return len({*first.tolist()} & {*second.tolist()})


@pytest.mark.parametrize(
    ("alpha", "beta"), list(product((0, 1 / 3, 0.5, 2 / 3, 1), (0, 0.4, 0.5, 0.8)))
)
def test_overlap_is_what_was_asked_for(alpha: float, beta: float) -> None:
    size = 30
    thirds = list(torch.arange(3 * size + 2).split([size, size + 2, size]))
    if beta > (1 + alpha) / 2:
        with pytest.raises(ValueError, match=r"beta is at most \(1 \+ alpha\)/2"):
            blocks.overlapped(thirds, alpha, beta, seed=0)
        return
    one, two, target = blocks.overlapped(thirds, alpha, beta, seed=0)
    assert all(len(part.unique()) == len(part) == size for part in (one, two, target))
    assert count(one, two) == round(alpha * size)
    assert count(one, target) == count(two, target) == round(beta * size)
    assert {*target.tolist()} == {*thirds[2].tolist()}


def test_mixtures_have_their_shares_and_no_row_twice() -> None:
    first, second = torch.arange(10), torch.arange(10, 40)
    rows = blocks.mix((first, second), (0.3, 0.7), seed=0)
    assert len(rows.unique()) == len(rows) == 10
    assert int((rows < 10).sum()) == 3
    assert blocks.mix((first, second), (1.0, 0.0), seed=0).sort().values.tolist() == first.tolist()
    assert not torch.equal(blocks.mix((first, second), (0.3, 0.7), seed=1), rows)


def test_histograms_count() -> None:
    table = blocks.histograms(torch.tensor([[0, 2, 2, 3]], dtype=torch.uint8), 5)
    assert table.tolist() == [[0.25, 0, 0.5, 0.25, 0]]


def test_what_is_taken_out_no_longer_tells_thirds_apart() -> None:
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(150, 4, generator=generator, dtype=torch.float64)
    statistic = features @ torch.tensor([1.0, -2, 0.5, 0], dtype=torch.float64)
    order = statistic.argsort()
    low, high = order[:50].sort().values, order[-50:].sort().values
    assert classifier_auc(features[low], features[high]) > 0.95
    (rest,) = residuals((features, statistic))
    assert float((rest.T @ (statistic - statistic.mean())).abs().max()) < 1e-9
    assert 0.3 < classifier_auc(rest[low], rest[high]) < 0.7
