"""Breadcrumbs, Consensus and DELLA against numbers worked out by hand and against numpy."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import mergelib as ml
from mergelib.merging.applying import own_seed
from mergelib.rules.arithmetic import task_arithmetic
from mergelib.rules.masks import breadcrumbs, consensus, della, prune_by_rank, uses


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def family(*shape: int, count: int = 3) -> tuple[list[Tensor], Tensor]:
    base = draw(*shape, seed=99)
    return [base + draw(*shape, seed=i) for i in range(count)], base


def crumbs(task_vector: Tensor, density: float, gamma: float) -> Tensor:
    zero = torch.zeros_like(task_vector)
    return breadcrumbs([task_vector], zero, density=density, gamma=gamma, scale=1.0)


def test_breadcrumbs_by_hand() -> None:
    task_vector = torch.tensor([9.0, -8.0, 0.5, 4.0, -0.1, 3.0, 2.0, -1.0, 5.0, 7.0])
    # floor(0.2 · 10) = 2 outliers go (9, 8), then ceil(0.4 · 10) = 4 stay (7, 5, 4, 3).
    expected = torch.tensor([0, 0, 0, 4.0, 0, 3.0, 0, 0, 5.0, 7.0])
    assert torch.equal(crumbs(task_vector, 0.4, 0.2), expected)


@given(st.integers(1, 60), st.floats(0.05, 1.0), st.floats(0, 0.9), st.integers(0, 5))
def test_breadcrumbs_keep_their_share(n: int, density: float, gamma: float, seed: int) -> None:
    """Distinct magnitudes: sorted with numpy, the middle ones are the ones that stay."""
    values = draw(n, seed=seed)
    order = np.argsort(-np.abs(values.numpy()), kind="stable")
    first = int(gamma * n)
    last = min(n, first + max(1, int(np.ceil(round(density * n, 6)))))
    expected = np.zeros(n, dtype=np.float32)
    expected[order[first:last]] = values.numpy()[order[first:last]]
    np.testing.assert_array_equal(crumbs(values, density, gamma).numpy(), expected)


def test_breadcrumbs_never_empty_a_tensor() -> None:
    for task_vector in (torch.ones(3), torch.ones(200), torch.tensor([2.0])):
        assert torch.equal(crumbs(task_vector, 0.9, 0.4), task_vector)


def test_breadcrumbs_bounds_are_those_of_a_tensor() -> None:
    """A tensor of small entries keeps its share, too."""
    base = {"large": torch.zeros(1000), "small": torch.zeros(1000)}
    expert = {"large": draw(1000), "small": 1e-3 * draw(1000, seed=1)}
    merged = ml.merge("breadcrumbs", [expert], pretrained=base, density=0.5, gamma=0.1)
    assert [int((merged[key] != 0).sum()) for key in base] == [500, 500]


def test_breadcrumbs_without_trimming_is_task_arithmetic() -> None:
    experts, base = family(6, 7)
    merged = breadcrumbs(experts, base, density=1.0, gamma=0.0, scale=0.4)
    torch.testing.assert_close(merged, task_arithmetic(experts, base, scale=0.4))


def test_breadcrumbs_with_an_election_by_hand() -> None:
    """Kept are 4 and 3 of 9, 4, 3, 1, and −5 and 2 of −8, −5, 2, 0.5; weights 1 and 2."""
    vectors = [torch.tensor([9.0, 4, 3, 1]), torch.tensor([-8.0, -5, 2, 0.5])]
    options: dict[str, Any] = {"density": 0.5, "gamma": 0.25, "combine": "ties", "scale": 1.0}
    added = breadcrumbs(vectors, torch.zeros(4), weights=[1, 2], reduce="sum", **options)
    assert added.tolist() == [0, -10, 7, 0], "the second column: 4 − 10 elects minus"
    mean = breadcrumbs(vectors, torch.zeros(4), weights=[1, 2], **options)
    assert mean.tolist() == pytest.approx([0, -5, 7 / 3, 0])


def test_della_that_adds_up_by_hand() -> None:
    """The masks of a known generator, each entry divided by its own probability of being kept."""
    experts, base = [torch.tensor([1.0, -2.0, 3.0]), torch.tensor([6.0, 5.0, -4.0])], torch.zeros(3)
    draws = torch.rand(2, 3, generator=torch.Generator().manual_seed(0))
    dropped = torch.tensor([[0.6, 0.5, 0.4], [0.4, 0.5, 0.6]])  # the smallest most often
    kept = (draws >= dropped) / (1 - dropped)
    assert 0 < kept.count_nonzero() < 6, "a seed worth testing"
    rates: dict[str, Any] = {"drop_rate": 0.5, "epsilon": 0.2, "seed": 0}
    rows = [expert[None] for expert in experts]
    merged = della(rows, base[None], combine="task_arithmetic", scale=[0.5, 2.0], **rates)
    torch.testing.assert_close(merged[0], 0.5 * kept[0] * experts[0] + 2 * kept[1] * experts[1])


def test_della_that_drops_nothing() -> None:
    experts, base = family(6, 7)
    merged = della(experts, base, drop_rate=0.0, combine="task_arithmetic", scale=0.4)
    torch.testing.assert_close(merged, task_arithmetic(experts, base, scale=0.4))


@pytest.mark.parametrize("rule", [breadcrumbs, della])
def test_scales_and_weights_belong_to_one_way_of_combining(rule: Any) -> None:
    experts, base = family(6, 7)
    with pytest.raises(ValueError, match="expected one number with 'ties': set weights"):
        rule(experts, base, combine="ties", scale=[1, 2, 3])
    with pytest.raises(ValueError, match="which only 'ties' has: set scale per expert"):
        rule(experts, base, combine="task_arithmetic", weights=[1, 2, 3])


def test_consensus_by_hand() -> None:
    base = torch.zeros(5)
    experts = [torch.tensor([4.0, 4, 1, 0, 3]), torch.tensor([3.0, -4, 0.1, 0, 1])]
    # Σ = 7, 0, 1.1, 0, 4; with mask_scale 1/2 expert 1 uses |τ_1| > |τ_2| / 2, and so on.
    total = experts[0] + experts[1]
    assert uses(experts[0], total, 0.5).tolist() == [True, True, True, False, True]
    assert uses(experts[1], total, 0.5).tolist() == [True, True, False, False, False]
    both = consensus(experts, base, mask_scale=0.5, min_tasks=2, scale=1.0)
    assert both.tolist() == [7, 0, 0, 0, 0]
    one = consensus(experts, base, mask_scale=0.5, min_tasks=1, scale=1.0)
    assert one.tolist() == pytest.approx([7, 0, 1.1, 0, 4])


def test_consensus_of_all_is_task_arithmetic() -> None:
    experts, base = family(6, 7)
    expected = task_arithmetic(experts, base, scale=0.3)
    torch.testing.assert_close(consensus(experts, base, min_tasks=0), expected)
    torch.testing.assert_close(consensus(experts, base, mask_scale=0, min_tasks=3), expected)
    assert torch.equal(consensus(experts, base, mask_scale=1e9, min_tasks=1), base)


def test_masks_are_nearest_to_the_task_vector() -> None:
    """mask_scale 1 minimises |mask · Σ − τ_t|_1 over all masks, coordinate by coordinate."""
    experts, base = family(200)
    task_vector, total = experts[0] - base, sum(experts) - 3 * base
    mask = uses(task_vector, total, 1.0)
    chosen = (mask * total - task_vector).abs()
    assert torch.equal(chosen, torch.minimum((total - task_vector).abs(), task_vector.abs()))


def test_drop_probabilities_follow_the_magnitudes() -> None:
    """Over many draws each rank drops as often as it should, and expectations stay."""
    row = torch.tensor([[0.1, -3.0, 1.0, 2.0, -0.5]])
    generator = torch.Generator().manual_seed(0)
    runs = 20_000
    draws = torch.stack([prune_by_rank(row, 0.5, 0.4, generator)[0] for _ in range(runs)])
    dropped = (draws == 0).float().mean(0)
    expected = torch.tensor([0.7, 0.3, 0.5, 0.4, 0.6])
    torch.testing.assert_close(dropped, expected, atol=5 * 0.5 / runs**0.5, rtol=0)
    spread = row[0].abs() * (expected / (1 - expected)).sqrt() / runs**0.5
    assert ((draws.mean(0) - row[0]).abs() < 5 * spread).all()
    kept = draws[:, 1][draws[:, 1] != 0]
    torch.testing.assert_close(kept, torch.full_like(kept, -3 / 0.7))


def test_della_limits() -> None:
    experts, base = family(6, 7, count=1)
    whole = della(experts, base, drop_rate=0.0, epsilon=0.0)
    torch.testing.assert_close(whole, experts[0])
    experts, base = family(300, 100)
    assert torch.equal(della(experts, base, seed=3), della(experts, base, seed=3))
    assert not torch.equal(della(experts, base, seed=3), della(experts, base, seed=4))


def test_della_by_rows() -> None:
    """Rows of tensors of any shape, a vector as one row, chunks that do not show."""
    shapes = {"conv": (4, 3, 5), "bias": (7,), "scalar": (), "empty": (0, 3), "wide": (3, 20_000)}
    base = {key: torch.zeros(shape) for key, shape in shapes.items()}
    experts = [{key: draw(*shape, seed=i) for key, shape in shapes.items()} for i in range(2)]
    whole = ml.merge("della", experts[:1], pretrained=base, drop_rate=0.0, epsilon=0.0)
    assert all(torch.equal(whole[key], experts[0][key]) for key in shapes)
    merged = ml.merge("della", experts, pretrained=base, seed=5)
    seed = own_seed(5, "conv")
    rows = [expert["conv"].reshape(4, 15) for expert in experts]
    expected = della(rows, torch.zeros(4, 15), seed=seed).reshape(4, 3, 5)
    assert torch.equal(merged["conv"], expected)
    rows = [expert["wide"] for expert in experts]
    second = della(
        [r[1:2] for r in rows], torch.zeros(1, 20_000), seed=own_seed(own_seed(5, "wide"), 1)
    )
    assert torch.equal(merged["wide"][1:2], second), "each chunk has draws of its own"


def test_ranks_are_taken_within_rows() -> None:
    """A row of small entries keeps as many as a row of large ones."""
    base = torch.zeros(2, 4000)
    expert = torch.stack([draw(4000), 1e-3 * draw(4000, seed=1)])
    merged = della([expert], base, drop_rate=0.5)
    shares = (merged != 0).float().mean(1)
    torch.testing.assert_close(shares, torch.full((2,), 0.5), atol=0.05, rtol=0)


@pytest.mark.parametrize(
    ("method", "options", "match"),
    [
        ("breadcrumbs", {"gamma": 1.0}, "gamma is 1.0, expected at least 0 and below 1"),
        ("breadcrumbs", {"density": 0.0}, "density is 0.0"),
        ("consensus", {"mask_scale": -1.0}, "mask_scale is -1.0, expected at least 0"),
        ("della", {"drop_rate": 0.95}, "0.95"),
        ("della", {"drop_rate": 0.05}, "0.05"),
        ("della", {"reduce": "median"}, "median"),
    ],
)
def test_out_of_range(method: str, options: dict[str, Any], match: str) -> None:
    experts, base = family(4, 5)
    with pytest.raises(ValueError, match=match):
        ml.merge(method, [{"w": expert} for expert in experts], pretrained={"w": base}, **options)
