"""Floating dtypes that differ: computed in the widest, given back as the pretrained model's."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from mergelib.io import save_state_dict
from mergelib.merging import merge
from mergelib.registry import get_method, method_names
from mergelib.streaming import merge_files
from tests.library.streaming.cases import assert_same, make_states

HALF, BRAIN, SINGLE, DOUBLE = torch.float16, torch.bfloat16, torch.float32, torch.float64


def test_average_by_hand() -> None:
    """Each value is exact in its own dtype, and the means are exact in float32 only."""
    half = {"w": torch.tensor([1 + 2**-10, 2.0], dtype=HALF)}  # no bfloat16
    brain = {"w": torch.tensor([2.0**20, 4.0], dtype=BRAIN)}  # no float16
    merged = merge("average", [half, brain], pretrained={"w": torch.zeros(2)})
    assert merged["w"].dtype == SINGLE
    assert merged["w"].tolist() == [2**19 + 0.5, 3.0], "2**-11 is below float32's resolution here"
    assert merge("average", [half, brain], pretrained={"w": torch.zeros(2, dtype=BRAIN)})[
        "w"
    ].tolist() == [2.0**19, 3.0]


def test_task_arithmetic_by_hand() -> None:
    """θ_0 + 0.5 · (τ_1 + τ_2) in float32, rounded once to the pretrained model's bfloat16."""
    base = {"w": torch.tensor([1.0, -3.0], dtype=BRAIN), "steps": torch.tensor(4)}
    one = {"w": torch.tensor([1.5, -3.0], dtype=SINGLE), "steps": torch.tensor(5)}
    two = {"w": torch.tensor([1.0, -2.0], dtype=HALF), "steps": torch.tensor(6)}
    merged = merge("task_arithmetic", [one, two], pretrained=base, scale=0.5)
    assert merged["w"].dtype == BRAIN
    assert merged["w"].tolist() == [1.25, -2.5]
    assert merged["steps"] == 4


def test_ties_by_hand() -> None:
    """Thresholds are taken of the same differences that are trimmed, whatever the dtypes."""
    base = {"w": torch.zeros(4, dtype=DOUBLE)}
    one = {"w": torch.tensor([1.0, 2.0, 3.0, 4.0], dtype=HALF)}
    two = {"w": torch.tensor([-8.0, 1.0, 6.0, 1.0], dtype=SINGLE)}
    merged = merge("ties", [one, two], pretrained=base, density=0.5)
    assert merged["w"].dtype == DOUBLE
    # Kept: (0, 0, 3, 4) and (-8, 0, 6, 0).
    assert merged["w"].tolist() == [-8.0, 0.0, 4.5, 4.0]


def test_double_experts_are_computed_with_as_double() -> None:
    fine = {"w": torch.tensor([1.0 + 2**-30], dtype=DOUBLE)}
    coarse = {"w": torch.tensor([-1.0])}
    assert merge("average", [coarse, fine], weights=[1, 1])["w"].tolist() == [2**-30]


def test_without_a_pretrained_model_the_first_expert_sets_the_dtype() -> None:
    half, single = {"w": torch.ones(3, dtype=HALF)}, {"w": torch.full((3,), 2.0)}
    assert merge("average", [half, single])["w"].dtype == HALF
    assert merge("average", [single, half])["w"].dtype == SINGLE


@pytest.mark.parametrize("name", method_names())
def test_every_method_as_if_all_were_float32_in_memory_and_in_files(
    tmp_path: Path, name: str
) -> None:
    dtypes = (BRAIN, SINGLE, HALF)
    states = [
        {k: v.to(dtype) if v.is_floating_point() else v for k, v in state.items()}
        for state, dtype in zip(make_states(), dtypes, strict=True)
    ]
    wide = [
        {k: v.float() if v.is_floating_point() else v for k, v in state.items()} for state in states
    ]
    merged = merge(name, states[1:], pretrained=states[0])
    expected = merge(name, wide[1:], pretrained=wide[0])
    assert_same(merged, {key: value.to(states[0][key].dtype) for key, value in expected.items()})
    files = [tmp_path / f"{i}.safetensors" for i in range(3)]
    for state, file in zip(states, files, strict=True):
        save_state_dict(state, file)
    out = merge_files(name, files[1:], tmp_path / "out.safetensors", pretrained=files[0])
    assert_same(load_file(out), merged)
    if not get_method(name).needs_pretrained:
        out = merge_files(name, files[1:], tmp_path / "alone.safetensors")
        assert_same(load_file(out), merge(name, states[1:]))


@pytest.mark.filterwarnings("error")
def test_positions_that_only_old_files_hold(tmp_path: Path) -> None:
    """Versions of transformers differ in whether they save them; the result is as the reference."""
    new, old = {"w": torch.ones(2, 2)}, {"w": torch.zeros(2, 2), "position_ids": torch.arange(5)}
    for models in ([new, old], [old, new]):
        merged = merge("average", models)
        assert_same(merged, {**models[0], "w": torch.full((2, 2), 0.5)})
        files = [tmp_path / f"{number}.safetensors" for number in range(2)]
        for file, state in zip(files, models, strict=True):
            save_state_dict(state, file)
        out = merge_files("average", files, tmp_path / "out.safetensors", overwrite=True)
        assert_same(load_file(out), merged)


def test_positions_that_an_old_file_holds_as_floats() -> None:
    """Those that are integers are copied, which a warning says; other integers are refused."""
    new = {"position_ids": torch.arange(5), "w": torch.ones(2, 2)}
    old = {"position_ids": torch.arange(5).half(), "w": 3 * torch.ones(2, 2)}
    for base, expert, owner in ((new, old, "pretrained"), (old, new, "expert 0")):
        said = f"'position_ids' is copied from {owner}, because its dtype differs"
        with pytest.warns(UserWarning, match=said):
            merged = merge("task_arithmetic", [expert, base], pretrained=base, scale=0.5)
        assert_same(merged, {"position_ids": new["position_ids"], "w": torch.full((2, 2), 2.0)})
    with pytest.warns(UserWarning, match="'position_ids' is copied from expert 0"):
        merge("average", [new, old])
    with pytest.warns(UserWarning, match="'position_ids' is copied from expert 1"):
        assert not merge("average", [old, new])["position_ids"].is_floating_point()
    swapped = [{"table": value["position_ids"], "w": value["w"]} for value in (new, old)]
    with pytest.raises(ValueError, match=r"\['table'\] has dtype torch.float16, expected torch.in"):
        merge("average", swapped)
