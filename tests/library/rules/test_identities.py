"""Identities that tie the methods to one another, over shapes, names, dtypes, ranks and counts."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from mergelib import flatten, merge, subtract
from mergelib.registry import get_method, method_names, rule

State = dict[str, Tensor]
Family = tuple[State, list[State]]

# A rounding unit for values up to about 4, with some room for sums over experts.
ROUNDING = {torch.float32: 1e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}
KEYS = st.text(max_size=9)
SHAPES = st.lists(st.integers(0, 6), max_size=3).map(tuple)
RATIOS = st.floats(0, 1)


@st.composite
def families(draw: st.DrawFn, fewest: int = 1, most: int = 5) -> Family:
    """A pretrained model and experts: a matrix, and up to four tensors of any shape and name."""
    dtype = draw(st.sampled_from(list(ROUNDING)))
    matrix = (draw(st.integers(2, 9)), draw(st.integers(2, 9)))
    shapes = {**draw(st.dictionaries(KEYS, SHAPES, max_size=4)), "layer.weight": matrix}
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**32)))
    base = {key: torch.randn(shape, generator=generator) for key, shape in shapes.items()}
    states = [base] + [
        {k: v + 0.2 * torch.randn(v.shape, generator=generator) for k, v in base.items()}
        for _ in range(draw(st.integers(fewest, most)))
    ]
    pretrained, *experts = [{k: v.to(dtype) for k, v in state.items()} for state in states]
    return pretrained, experts


def in_double(family: Family) -> Family:
    pretrained, *experts = [
        {key: value.double() for key, value in state.items()} for state in (family[0], *family[1])
    ]
    return pretrained, experts


def assert_near(actual: State, expected: State, room: float = 1) -> None:
    """Equal but for rounding, of which there may be ``room`` times the usual."""
    assert actual.keys() == expected.keys()
    for key, tensor in expected.items():
        bound = room * ROUNDING[tensor.dtype]
        torch.testing.assert_close(actual[key], tensor, rtol=bound, atol=bound)


@settings(max_examples=20)
@given(family=families(), count=st.integers(1, 5), ratio=RATIOS, t=st.floats(0, 1))
def test_equal_experts_give_themselves(family: Family, count: int, ratio: float, t: float) -> None:
    pretrained, (expert, *_) = family
    same = [expert] * count
    assert_near(merge("average", same), expert)
    assert_near(merge("cart", same, rank_ratio=ratio, scale=2.0), expert)
    assert_near(merge("slerp", [expert, expert], t=t), expert)
    assert_near(merge("nuslerp", [expert, expert], weights=[1 - t, t]), expert)
    for name, options in (
        ("task_arithmetic", {"scale": 1 / count}),
        ("low_rank_task_arithmetic", {"scale": 1 / count, "rank_ratio": 1.0}),
        ("dare", {"scale": 1 / count, "drop_rate": 0}),
        ("dare", {"drop_rate": 0, "combine": "ties"}),
        ("fednova", {}),
        ("wsm", {}),
        ("karcher", {}),
        ("karcher", {"steps": 0}),
        ("sce", {}),
        ("ram", {"epsilon": 0}),
        ("nearswap", {"t": 99}),
        ("ties", {"density": 1.0}),
        ("ties", {"density": 1.0, "trim": "tensor"}),
        ("ties", {"density": 1.0, "reduce": "sum", "scale": 1 / count}),
        ("wudi", {}),
        ("knots", {"density": 1.0}),
    ):
        merged = merge(name, same, pretrained=pretrained, **options)
        assert_near(merged, expert)


@given(family=families(), scale=st.floats(0, 3))
def test_cart_without_and_with_full_rank_is_the_average(family: Family, scale: float) -> None:
    _, experts = family
    average = merge("average", experts)
    for ratio in (0, 1):
        assert_near(merge("cart", experts, rank_ratio=ratio, scale=scale), average)


@given(family=families(), ratio=RATIOS)
def test_cart_at_scale_0_is_the_average(family: Family, ratio: float) -> None:
    _, experts = family
    assert_near(merge("cart", experts, rank_ratio=ratio, scale=0), merge("average", experts))


ORDERLESS: list[tuple[str, dict[str, Any]]] = [
    ("average", {}),
    ("task_arithmetic", {"scale": 0.7}),
    ("ties", {"density": 0.5}),
    ("ties", {"density": 0.5, "trim": "tensor", "reduce": "sum"}),
    ("cart", {"rank_ratio": 0.4}),
    ("low_rank_task_arithmetic", {"rank_ratio": 0.4, "scale": 0.7}),
    ("fednova", {"scale": 0.7}),
    ("karcher", {}),
    ("ram", {"r": 0.1, "epsilon": 0.1}),
    ("nearswap", {"t": 0.1}),
    ("wudi", {"ridge": 0.01}),
    ("doge", {"density": 0.5, "steps": 3}),
]


@pytest.mark.parametrize(("name", "options"), ORDERLESS)
@settings(max_examples=20)
@given(family=families(fewest=2), data=st.data())
def test_order_of_experts_is_irrelevant(
    name: str, options: dict[str, Any], family: Family, data: st.DataObject
) -> None:
    # An election may turn on the last bit of a sum, so sums had better be exact.
    pretrained, experts = in_double(family) if name in ("ties", "ram") else family
    shuffled = data.draw(st.permutations(experts))
    merged = merge(name, shuffled, pretrained=pretrained, **options)
    expected = merge(name, experts, pretrained=pretrained, **options)
    for key, tensor in expected.items():
        bound = 10 * ROUNDING.get(tensor.dtype, 1e-9)
        torch.testing.assert_close(merged[key], tensor, rtol=bound, atol=bound)


SCALED: list[tuple[str, dict[str, Any]]] = [
    ("task_arithmetic", {}),
    ("fednova", {}),
    ("ties", {}),
    ("ties", {"trim": "tensor", "reduce": "sum"}),
    ("dare", {}),
    ("dare", {"combine": "ties"}),
    ("low_rank_task_arithmetic", {"rank_ratio": 0.5}),
]


@pytest.mark.parametrize(("name", "options"), SCALED)
@settings(max_examples=20)
@given(family=families())
def test_scale_0_gives_the_base_to_the_bit(
    name: str, options: dict[str, Any], family: Family
) -> None:
    pretrained, experts = family
    merged = merge(name, experts, pretrained=pretrained, scale=0, **options)
    assert all(torch.equal(merged[key], tensor) for key, tensor in pretrained.items())


@pytest.mark.parametrize(("name", "options"), SCALED)
@settings(max_examples=20)
@given(family=families(), scale=st.floats(-2, 2))
def test_scale_stretches_the_merged_task_vector(
    name: str, options: dict[str, Any], family: Family, scale: float
) -> None:
    pretrained, experts = in_double(family)
    once = merge(name, experts, pretrained=pretrained, scale=1, **options)
    merged = merge(name, experts, pretrained=pretrained, scale=scale, **options)
    for key, origin in pretrained.items():
        expected = origin + scale * (once[key] - origin)
        torch.testing.assert_close(merged[key], expected, rtol=1e-9, atol=1e-9)


@given(family=families())
def test_task_arithmetic_at_1_over_t_is_the_average(family: Family) -> None:
    pretrained, experts = family
    merged = merge("task_arithmetic", experts, pretrained=pretrained, scale=1 / len(experts))
    assert_near(merged, merge("average", experts))


@given(family=families(), scale=st.floats(-1, 1))
def test_what_becomes_task_arithmetic(family: Family, scale: float) -> None:
    """Low-rank task arithmetic at full rank, DARE that drops nothing."""
    pretrained, experts = family
    expected = merge("task_arithmetic", experts, pretrained=pretrained, scale=scale)
    for name, options in (
        ("low_rank_task_arithmetic", {"rank_ratio": 1.0}),
        ("dare", {"drop_rate": 0}),
    ):
        merged = merge(name, experts, pretrained=pretrained, scale=scale, **options)
        assert_near(merged, expected, room=2)


@given(family=families())
def test_dare_that_drops_nothing_with_ties_is_ties_that_trims_nothing(family: Family) -> None:
    pretrained, experts = family
    merged = merge("dare", experts, pretrained=pretrained, drop_rate=0, combine="ties")
    assert_near(merged, merge("ties", experts, pretrained=pretrained, density=1.0), room=0)


@given(family=families(most=1), data=st.data())
def test_ties_of_one_expert_only_trims(family: Family, data: st.DataObject) -> None:
    """It keeps the k largest changes, all that equal the k-th, and undoes the others."""
    pretrained, (expert,) = in_double(family)
    entries = flatten(pretrained).numel()
    k = data.draw(st.integers(1, entries))
    merged = merge("ties", [expert], pretrained=pretrained, density=k / entries)
    change = flatten(subtract(expert, pretrained))
    kept = change.abs() >= change.abs().sort(descending=True).values[k - 1]
    actual = flatten(subtract(merged, pretrained))
    torch.testing.assert_close(actual, torch.where(kept, change, 0.0), rtol=1e-9, atol=1e-9)


@settings(max_examples=20)
@given(family=families(), shift=st.integers(-3, 3))
def test_moving_everything_moves_the_result(family: Family, shift: int) -> None:
    """Methods on task vectors do not know where the origin lies; SLERP alone does."""
    pretrained, experts = in_double(family)  # so that differences are exact, moved or not
    for name, options in [*ORDERLESS, ("dare", {}), ("dare", {"combine": "ties"})]:
        merged = merge(name, experts, pretrained=pretrained, **options)
        moved = merge(
            name,
            [{key: value + shift for key, value in expert.items()} for expert in experts],
            pretrained={key: value + shift for key, value in pretrained.items()},
            **options,
        )
        for key, tensor in merged.items():
            torch.testing.assert_close(moved[key], tensor + shift, rtol=1e-7, atol=1e-7)


AFFINE = [name for name in method_names() if get_method(name).affine_in]
VARIANTS: dict[str, list[dict[str, Any]]] = {
    "ties": [{"reduce": "sum"}, {"trim": "tensor", "density": 0.5}],
    "dare": [{"combine": "ties"}, {"drop_rate": 0.3}],
    "della": [{"reduce": "sum"}, {"combine": "task_arithmetic"}],
    "breadcrumbs": [{"combine": "ties"}],
    "iso_cts": [{"common_fraction": 0.3}],
    "fednova": [{"steps": [1, 5, 2]}],
    "wudi": [{"ridge": 0.1}, {"transposed": True}],
    "ace": [{"threshold": 0.0}, {"threshold": 1e9}, {"transposed": True}],
    "knots": [{"reduce": "sum"}],
}


@pytest.mark.parametrize("name", AFFINE)
def test_what_is_declared_affine_is_affine(name: str) -> None:
    """In every kind of tensor: three merges against the line through two others."""
    generator = torch.Generator().manual_seed(1)
    shapes = {
        "fc.weight": (9, 7),
        "fc.bias": (9,),
        "conv.weight": (4, 3, 3, 3),
        "embed.weight": (11, 5),
        "bn.running_var": (6,),
        "scalar": (),
    }
    base, *experts = (
        {k: torch.rand(s, generator=generator, dtype=torch.float64) for k, s in shapes.items()}
        for _ in range(4)
    )
    axis = get_method(name).affine_in
    for options in [{}, *VARIANTS.get(name, [])]:

        def at(value: float, options: dict[str, Any] = options) -> State:
            return merge(name, experts, pretrained=base, **{**options, axis: value})

        low, high = at(0.2), at(1.3)
        for value in (0.0, 0.7, 2.5):
            share = (value - 0.2) / 1.1
            for key, tensor in at(value).items():
                line = low[key] + share * (high[key] - low[key])
                torch.testing.assert_close(tensor, line, rtol=1e-10, atol=1e-10)


def test_every_rule_with_a_scale_declares_it() -> None:
    """None of the shipped ones uses it in another way; `merged_grid` is slow for those that do."""
    scaled = [name for name in method_names() if "scale" in get_method(name).hyperparameters]
    assert scaled == AFFINE


@pytest.mark.usefixtures("spare_registry")
def test_a_declaration_names_a_hyperparameter() -> None:
    with pytest.raises(ValueError, match=r"affine in 'scael', which is not one of its .*: scale$"):

        @rule(paper="none", affine_in="scael")
        def wrong(experts: list[Tensor], *, scale: float = 1.0) -> Tensor:
            return scale * experts[0]
