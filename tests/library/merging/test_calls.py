"""How rules are called: chunks, whole tensors, matrices, statistics and draws."""

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from mergelib.merging import applying, merge
from mergelib.registry import get_method, rule
from mergelib.statedict import is_kernel
from tests.library.merging.cases import State, make_family


@pytest.mark.usefixtures("spare_registry")
def test_elementwise_rules_see_flat_chunks_in_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(applying, "CHUNK", 10)
    seen = []

    @rule(paper="none", elementwise=True)
    def second(experts: Sequence[Tensor], pretrained: Tensor) -> Tensor:
        seen.append((len(experts), pretrained.shape, {t.dtype for t in [*experts, pretrained]}))
        return experts[1] + 0 * pretrained

    pretrained, experts = make_family(torch.bfloat16)
    merged = merge("second", experts, pretrained=pretrained)
    assert all(torch.equal(merged[k], v) for k, v in experts[1].items() if k != "steps")
    assert {n for n, _, _ in seen} == {2}
    assert [shape[0] for _, shape, _ in seen[:2]] == [10, 10], "pos_embed has 20 entries"
    assert [shape[0] for _, shape, _ in seen[2:13]] == [10] * 10 + [8], "layer.weight has 108"
    assert {dtype for _, _, dtypes in seen for dtype in dtypes} == {torch.float32}


@pytest.mark.usefixtures("spare_registry")
def test_other_rules_see_whole_tensors_and_double_stays_double() -> None:
    seen = []

    @rule(paper="none")
    def first(experts: Sequence[Tensor]) -> Tensor:
        seen.append((experts[0].shape, experts[0].dtype))
        return experts[0].clone()

    pretrained, experts = make_family(torch.float64)
    merge("first", experts, pretrained=pretrained)
    assert seen == [(v.shape, torch.float64) for v in pretrained.values() if v.is_floating_point()]


@given(chunk=st.integers(1, 200), name=st.sampled_from(["average", "task_arithmetic", "ties"]))
def test_chunks_do_not_show(chunk: int, name: str) -> None:
    pretrained, experts = make_family()
    expected = merge(name, experts, pretrained=pretrained)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(applying, "CHUNK", chunk)
        patch.setattr(applying, "LONG", chunk)
        merged = merge(name, experts, pretrained=pretrained)
    assert all(torch.equal(merged[key], expected[key]) for key in expected)


def test_is_matrix_can_be_told() -> None:
    """What is none gets the average, or task arithmetic."""
    pretrained, experts = make_family(experts=3)
    average = merge("average", experts)
    merged = merge("cart", experts, rank_ratio=0.3)
    differing = {k for k in average if not torch.equal(merged[k], average[k])}
    assert differing == {"layer.weight", "turned"}
    merged = merge("cart", experts, rank_ratio=0.3, is_matrix=lambda key, tensor: "pos" in key)
    assert {k for k in average if not torch.equal(merged[k], average[k])} == {"pos_embed"}
    merged = merge(
        "low_rank_task_arithmetic", experts, pretrained=pretrained, is_matrix=lambda *_: False
    )
    expected = merge("task_arithmetic", experts, pretrained=pretrained)
    assert all(torch.equal(merged[key], expected[key]) for key in expected)


@pytest.mark.parametrize("name", ["cart", "low_rank_task_arithmetic", "tsv", "iso_c", "iso_cts"])
def test_convolutions_fold_to_one_row_per_filter(name: str) -> None:
    torch.manual_seed(0)
    origin, *experts = (
        {"conv.weight": torch.randn(8, 3, 2, 2), "bn.bias": torch.randn(4)} for _ in range(4)
    )

    def run(fold: bool, **options: Any) -> State:
        states = [
            {
                key: value.flatten(1) if fold and value.dim() > 2 else value
                for key, value in s.items()
            }
            for s in (origin, *experts)
        ]
        base = states[0] if get_method(name).needs_pretrained else None
        return merge(name, states[1:], pretrained=base, **options)

    told, expected = run(False, is_matrix=is_kernel), run(True)
    assert told["conv.weight"].shape == (8, 3, 2, 2)
    assert torch.equal(told["conv.weight"].flatten(1), expected["conv.weight"])
    assert torch.equal(told["bn.bias"], expected["bn.bias"])
    assert not torch.equal(run(False)["conv.weight"], told["conv.weight"])


@pytest.mark.parametrize("name", ["task_arithmetic", "ties", "cart", "average"])
def test_running_statistics_are_averaged(name: str) -> None:
    """Else a scaled task vector takes a variance below zero."""
    pretrained = {"bn.running_var": torch.ones(3), "bn.weight": torch.ones(3)}
    experts = [{key: value * size for key, value in pretrained.items()} for size in (0.1, 0.3)]
    options: dict[str, Any] = {} if name == "average" else {"scale": 3.0}
    base = pretrained if get_method(name).needs_pretrained else None
    merged = merge(name, experts, pretrained=base, **options)
    torch.testing.assert_close(merged["bn.running_var"], torch.full((3,), 0.2))
    if name == "task_arithmetic":
        assert (merged["bn.weight"] < 0).all()


def test_running_statistics_do_not_count_where_the_whole_model_is_trimmed() -> None:
    pretrained = {"w": torch.zeros(4), "bn.running_mean": torch.zeros(4)}
    expert = {"w": torch.tensor([1.0, 2, 3, 4]), "bn.running_mean": torch.full((4,), 99.0)}
    merged = merge("ties", [expert], pretrained=pretrained, density=0.5)
    assert merged["w"].tolist() == [0, 0, 3, 4]


def test_draws_differ_between_tensors_and_repeat_with_a_seed() -> None:
    pretrained = {"a": torch.zeros(400), "b": torch.zeros(400)}
    expert = {"a": torch.ones(400), "b": torch.ones(400)}

    def dare(seed: int) -> State:
        return merge("dare", [expert], pretrained=pretrained, drop_rate=0.5, seed=seed)

    once, again, other = dare(1), dare(1), dare(2)
    assert torch.equal(once["a"], again["a"])
    assert 0.35 < (once["a"] == other["a"]).float().mean() < 0.65, "independent fair draws"
    assert 0.35 < (once["a"] == once["b"]).float().mean() < 0.65
