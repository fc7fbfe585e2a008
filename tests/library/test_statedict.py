"""State dicts as vectors: the axioms, the checks and what they say, and what counts as a matrix."""

import math
import re
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from mergelib.io import Checkpoint, save_state_dict
from mergelib.statedict import (
    add,
    check_compatible,
    flatten,
    is_finite,
    is_matrix,
    lerp,
    name_experts,
    nbytes,
    scale,
    subtract,
    unflatten,
)

State = dict[str, Tensor]
SHAPES = st.lists(st.lists(st.integers(0, 4), max_size=3), min_size=1, max_size=4)


def draw_state(shapes: list[list[int]], seed: int, dtype: torch.dtype = torch.float64) -> State:
    """Small integers, so that sums and differences are exact, and one counter."""
    generator = torch.Generator().manual_seed(seed)
    state = {
        f"part {i}": torch.randint(-9, 10, shape, generator=generator).to(dtype)
        for i, shape in enumerate(shapes)
    }
    return {**state, "steps": torch.tensor(seed)}


def same(a: State, b: State) -> bool:
    return a.keys() == b.keys() and all(
        a[key].dtype == b[key].dtype and torch.equal(a[key], b[key]) for key in a
    )


@given(
    shapes=SHAPES,
    seed=st.integers(0, 1000),
    dtype=st.sampled_from([torch.float16, torch.bfloat16, torch.float32]),
)
def test_the_axioms_of_a_vector_space(
    shapes: list[list[int]], seed: int, dtype: torch.dtype
) -> None:
    a, b = draw_state(shapes, seed, dtype), draw_state(shapes, seed + 1, dtype)
    kept = {key: value.clone() for key, value in a.items()}
    assert same(add(subtract(a, b), b), a)
    assert same(add(a, b, alpha=-1), subtract(a, b))
    assert same(add(a, a), scale(a, 2))
    assert same(lerp(a, b, 0), a)
    assert torch.equal(flatten(lerp(a, b, 1)), flatten(b))
    assert same(lerp(a, b, 0.5), scale(add(a, b), 0.5))
    assert not flatten(scale(a, 0)).any()
    assert same(a, kept)


def test_counters_are_copied_from_the_first() -> None:
    a, b = draw_state([[2]], seed=3), draw_state([[2]], seed=5)
    for result in (subtract(a, b), add(a, b), scale(a, 2), lerp(a, b, 0.5)):
        assert result["steps"] == 3
        assert result["steps"].data_ptr() != a["steps"].data_ptr()


def test_flatten_keeps_the_order_of_keys_and_leaves_counters_out() -> None:
    state = {"b": torch.tensor([[1.0, 2], [3, 4]]).T, "n": torch.tensor(7), "a": torch.tensor(5.0)}
    assert flatten(state).tolist() == [1, 3, 2, 4, 5]


def test_nbytes_counts_tied_tensors_once() -> None:
    tensor = torch.zeros(3, 5, dtype=torch.float16)
    assert nbytes({"a": tensor, "b": tensor, "c": tensor.clone(), "n": torch.tensor(1)}) == 68


def test_nbytes_counts_views_as_a_file_holds_them(tmp_path: Path) -> None:
    """At one address, of other shape, strides or dtype: these were counted as one."""
    whole = torch.arange(16.0)
    state = {
        "square": whole.view(4, 4),
        "turned": whole.view(4, 4).T,
        "bits": whole.view(torch.int32),
        "head": whole[:4],
        "again": whole[:4],
        "repeated": whole[:1].expand(4),
    }
    assert nbytes(state) == 3 * 64 + 2 * 16
    save_state_dict(state, tmp_path / "a.safetensors")
    assert nbytes(Checkpoint(tmp_path / "a.safetensors")) == nbytes(state)


@pytest.mark.parametrize("kind", ["safetensors", "pt"])
def test_nbytes_of_a_file_is_that_of_its_tensors(kind: str, tmp_path: Path) -> None:
    """Read one after the other, they lie at one address; and reading none will do."""
    state = {f"w{i}": torch.randn(64, 64) for i in range(20)}
    state["tied"] = state["w3"]
    file = tmp_path / f"a.{kind}"
    save_state_dict(state, file) if kind == "safetensors" else torch.save(state, file)
    assert nbytes(Checkpoint(file)) == nbytes(state) == 20 * 64 * 64 * 4


@pytest.mark.parametrize(
    ("key", "shape", "expected"),
    [
        ("blocks.0.attn.qkv.weight", (12, 4), True),
        ("model.layers.3.self_attn.q_proj.weight", (4, 4), True),
        ("composer.weight", (4, 4), True),
        ("weight", (2, 2), True),
        ("bias", (4,), False),
        ("conv.weight", (4, 3, 3, 3), False),
        ("row.weight", (1, 9), False),
        ("column.weight", (9, 1), False),
        ("pos_embed", (16, 8), False),
        ("embed_tokens.weight", (50, 8), False),
        ("model.encoder.token_embedding.weight", (50, 8), False),
        ("transformer.wte.weight", (50, 8), False),
        ("transformer.wpe.weight", (50, 8), False),
        ("visual.positional_embedding", (50, 8), False),
        ("shared.weight", (50, 8), False),
        ("mlp.shared_experts.up_proj.weight", (50, 8), True),
        ("mlp.shared_expert.up_proj.weight", (50, 8), True),
        ("encoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight", (32, 4), False),
        ("attn.relative_position_bias_table", (49, 4), False),
        ("mlp.experts.0.up_proj.weight", (50, 8), True),
        ("mlp.experts.up_proj_bias", (8, 50), False),
        ("bert.embeddings.LayerNorm.weight", (8, 8), False),
    ],
)
def test_what_counts_as_a_matrix(key: str, shape: tuple[int, ...], expected: bool) -> None:
    assert is_matrix(key, torch.zeros(shape)) is expected
    assert not is_matrix(key, torch.zeros(shape, dtype=torch.int64))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_is_finite(dtype: torch.dtype) -> None:
    assert is_finite(torch.zeros(0, dtype=dtype))
    assert is_finite(torch.tensor(3.0, dtype=dtype))
    assert is_finite(torch.full((9,), torch.finfo(dtype).max, dtype=dtype)), (
        "only the sum overflows"
    )
    for value in (math.nan, math.inf, -math.inf):
        tensor = torch.zeros(1000, dtype=dtype)
        tensor[617] = value
        assert not is_finite(tensor)
    assert not is_finite(torch.tensor([math.inf, -math.inf], dtype=dtype))


def test_experts_get_names() -> None:
    a, b = {"w": torch.zeros(1)}, {"w": torch.ones(1)}
    assert name_experts({"cars": a, "birds": b}) == {"cars": a, "birds": b}
    assert list(name_experts([a, b])) == ["expert 0", "expert 1"]
    assert list(name_experts(iter((a, b)))) == ["expert 0", "expert 1"]  # type: ignore[arg-type]


@pytest.mark.parametrize("nothing", [[], {}, ()])
def test_no_experts(nothing: list[State]) -> None:
    with pytest.raises(ValueError, match="nothing to merge: experts is empty"):
        name_experts(nothing)


def test_what_is_no_state_dict() -> None:
    state = {"layer.weight": torch.zeros(2)}
    with pytest.raises(TypeError, match=r"'layer.weight' is a Tensor.*single state dict\?"):
        name_experts(state)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"'expert 1' is a Linear, expected a state dict$"):
        name_experts([state, nn.Linear(1, 1)])  # type: ignore[list-item]
    with pytest.raises(TypeError, match="operand 2 is a Linear, expected a state dict"):
        add(state, nn.Linear(1, 1))  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="operand 1 is a Linear, expected a state dict"):
        scale(nn.Linear(1, 1), 2)  # type: ignore[arg-type]


GOOD = {"a": torch.zeros(2, 3), "b": torch.zeros(4), "c": torch.zeros(4)}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"b": None}, "cars lacks key 'b' compared with pretrained"),
        ({"b": None, "a": None}, "cars lacks key 'a' (and 1 more) compared with pretrained"),
        ({"z": torch.zeros(1)}, "cars has the extra key 'z' compared with pretrained"),
        ({"b": None, "z": torch.zeros(1)}, "cars lacks key 'b' compared with pretrained"),
        (
            {"a": torch.zeros(3, 2)},
            "cars['a'] has shape (3, 2), expected (2, 3) as in pretrained",
        ),
        (
            {"c": torch.zeros(4, dtype=torch.float16)},
            "cars['c'] has dtype torch.float16, expected torch.float32 as in pretrained",
        ),
        ({"b": [0, 0, 0, 0]}, "cars['b'] is a list, expected a tensor"),
    ],
)
def test_messages_name_the_first_misfit(changes: dict[str, object], message: str) -> None:
    bad = {key: value for key, value in {**GOOD, **changes}.items() if value is not None}
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        check_compatible(GOOD, {"birds": GOOD, "cars": bad}, "pretrained")  # type: ignore[dict-item]


def test_the_reference_is_checked_too() -> None:
    with pytest.raises(ValueError, match=r"pretrained\['epoch'\] is a int, expected a tensor"):
        check_compatible({"epoch": 3}, {"cars": {"epoch": torch.tensor(3)}}, "pretrained")  # type: ignore[dict-item]


def test_unflatten_turns_flatten_back() -> None:
    state = {"a": torch.randn(2, 3), "steps": torch.tensor(7), "b": torch.randn(4).double()}
    again = unflatten(flatten(state), state)
    assert all(torch.equal(again[key], state[key]) for key in state)
    assert [t.dtype for t in again.values()] == [t.dtype for t in state.values()]
    with pytest.raises(ValueError, match=r"shape \(3,\), expected \(10,\)"):
        unflatten(torch.zeros(3), state)
