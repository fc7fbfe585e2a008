"""Compressions against hand-computed cases, limits, exact byte counts, and files and back."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file
from torch import Tensor

import mergelib as ml
from mergelib.compression.methods import pack, unpack
from mergelib.statedict import is_kernel

State = dict[str, Tensor]
METHODS = ["emr", "tall_masks", "cart_indexing"]


def family(count: int = 3, dtype: torch.dtype = torch.float32) -> tuple[State, dict[str, State]]:
    generator = torch.Generator().manual_seed(0)

    def draw() -> State:
        shapes = {"w": (12, 9), "bias": (5,), "embed.weight": (7, 4)}
        state = {k: torch.randn(s, generator=generator).to(dtype) for k, s in shapes.items()}
        return state | {"steps": torch.tensor(3)}

    base = draw()
    experts = {}
    for i in range(count):
        noise = draw()
        experts[f"task {i}"] = {
            k: v + 0.1 * noise[k] if v.is_floating_point() else v + i for k, v in base.items()
        }
    return base, experts


@given(st.lists(st.booleans(), max_size=70))
def test_packing_round_trip(bits: list[bool]) -> None:
    mask = torch.tensor(bits, dtype=torch.bool)
    packed = pack(mask)
    assert packed.dtype == torch.uint8
    assert len(packed) == (len(bits) + 7) // 8
    assert torch.equal(unpack(packed, mask.shape), mask)


def test_packing_by_hand() -> None:
    mask = torch.tensor([[True, False, False], [True, True, False], [False, False, True]])
    assert pack(mask).tolist() == [1 + 8 + 16, 1], "lowest bit first, the last byte half empty"
    with pytest.raises(ValueError, match="1 bytes of a mask, expected 2"):
        unpack(torch.zeros(1, dtype=torch.uint8), (3, 3))


def test_emr_by_hand() -> None:
    base = {"w": torch.zeros(4)}
    vectors = {"a": [4.0, -1.0, 2.0, 0.0], "b": [1.0, 3.0, 2.0, -5.0]}
    experts = {task: {"w": torch.tensor(v)} for task, v in vectors.items()}
    # Σ = 5, 2, 4, -5: elected 4, 3, 2, -5. a agrees at 0 and 2: 7 / 6; b everywhere: 11 / 14.
    parts = ml.compress("emr", experts, pretrained=base)
    expected = {"a": [4 * 7 / 6, 0, 2 * 7 / 6, 0], "b": [44 / 14, 33 / 14, 22 / 14, -55 / 14]}
    for task, values in expected.items():
        torch.testing.assert_close(parts.expert(task)["w"], torch.tensor(values))


def test_one_expert_is_kept_whole() -> None:
    base, experts = family(1)
    for method in METHODS:
        given_base: dict[str, Any] = {} if method == "cart_indexing" else {"pretrained": base}
        expert = ml.compress(method, experts, **given_base).expert("task 0")
        for key, value in experts["task 0"].items():
            if value.is_floating_point():
                torch.testing.assert_close(expert[key], value)


def test_tall_masks_limits() -> None:
    base, experts = family()
    total = ml.merge("task_arithmetic", experts, pretrained=base, scale=1.0)
    keep = ml.compress("tall_masks", experts, pretrained=base, mask_scale=0.0).expert("task 1")
    drop = ml.compress("tall_masks", experts, pretrained=base, mask_scale=1e9).expert("task 1")
    for key in ("w", "bias", "embed.weight"):
        torch.testing.assert_close(keep[key], total[key])
        assert torch.equal(drop[key], base[key])


def test_tall_masks_of_every_task_by_itself() -> None:
    base, experts = family()
    scales = {"task 0": 0.2, "task 1": 0.4, "task 2": 0.6}
    mixed = ml.compress("tall_masks", experts, pretrained=base, mask_scale=scales)
    for task, scale in scales.items():
        alone = ml.compress("tall_masks", experts, pretrained=base, mask_scale=scale)
        assert torch.equal(mixed.expert(task)["w"], alone.expert(task)["w"])
    parts = ml.compress("tall_masks", experts, pretrained=base, base="ties")
    merged = ml.merge("ties", experts, pretrained=base, reduce="sum")
    kept = parts.expert("task 0")["w"] != base["w"]
    torch.testing.assert_close(parts.expert("task 0")["w"][kept], merged["w"][kept])


def test_cart_indexing_is_the_experts_at_full_rank_and_the_average_at_none() -> None:
    _, experts = family()
    average = ml.merge("average", experts)
    whole = ml.compress("cart_indexing", experts, rank_ratio=1.0, rest="average")
    none = ml.compress("cart_indexing", experts, rank_ratio=0.0, rest="average")
    for task, expert in experts.items():
        torch.testing.assert_close(whole.expert(task)["w"], expert["w"], atol=1e-5, rtol=0)
        assert torch.equal(whole.expert(task)["bias"], average["bias"])
        assert torch.equal(none.expert(task)["w"], average["w"])
        assert int(whole.expert(task)["steps"]) == 3, "counters are the first expert's"
    assert none.task_nbytes("task 0") == 0


def with_norm() -> dict[str, State]:
    """Three experts with BatchNorm's statistics and counter, a table, and frozen tensors."""
    _, experts = family()
    generator = torch.Generator().manual_seed(1)
    frozen = torch.randn(40, generator=generator)
    for i, state in enumerate(experts.values()):
        state["bn.running_mean"] = torch.randn(5, generator=generator)
        state["bn.running_var"] = torch.rand(5, generator=generator)
        state["bn.num_batches_tracked"] = torch.tensor(7 + i)
        state |= {"frozen.bias": frozen.clone(), "frozen.weight": frozen.view(8, 5).clone()}
        state["frozen.count"] = torch.tensor(5)
    return experts


@pytest.mark.parametrize("ratio", [0.0, 0.3, 1.0])
def test_cart_indexing_truncates_matrices_and_leaves_each_task_its_own_rest(ratio: float) -> None:
    experts = with_norm()
    centre = sum(state["w"] for state in experts.values()) / 3
    parts = ml.compress("cart_indexing", experts, rank_ratio=ratio)
    assert parts.hyperparameters["rest"] == "own", "by default"
    rank = math.ceil(ratio * 9)
    for task, expert in experts.items():
        restored = parts.expert(task)
        assert list(restored) == list(expert)
        u, s, vh = torch.linalg.svd(expert["w"] - centre, full_matrices=False)
        expected = centre + (u[:, :rank] * s[:rank]) @ vh[:rank]
        torch.testing.assert_close(restored["w"], expected, atol=1e-5, rtol=0)
        if ratio == 1:
            torch.testing.assert_close(restored["w"], expert["w"], atol=1e-5, rtol=0)
        for key in expert.keys() - {"w"}:
            assert restored[key].dtype == expert[key].dtype
            assert restored[key].equal(expert[key]), key


def test_storage_of_the_rest_by_hand(tmp_path: Path) -> None:
    """Kept are 5 + 28 + 5 + 5 floats and two counters; the first expert's counters are shared."""
    experts = with_norm()
    own, averaged = (
        ml.compress("cart_indexing", experts, rank_ratio=0.2, rest=rest)
        for rest in ("own", "average")
    )
    factors = 4 * 2 * (12 + 9)
    assert averaged.task_nbytes("task 2") == factors
    assert [own.task_nbytes(task) - factors for task in own.tasks] == [172, 172 + 16, 172 + 16]
    kept = own.own["task 1"]["rest"].keys()
    assert kept == {key for key in experts["task 1"] if key != "w" and "frozen" not in key}
    assert own.shared_nbytes == averaged.shared_nbytes == 4 * (108 + 33 + 10 + 80) + 3 * 8
    own.save(tmp_path / "own.safetensors")
    assert ml.load_compressed(tmp_path / "own.safetensors").nbytes == own.nbytes


@pytest.mark.parametrize("rest", ["own", "average"])
def test_what_all_experts_agree_on_is_kept_once_and_exactly(rest: str) -> None:
    _, experts = family()
    same = dict.fromkeys(experts, experts["task 0"])
    with pytest.raises(ValueError, match="rank_ratio"):
        ml.compress("cart_indexing", same, rest=rest, rank_ratio=2.0)
    assert not torch.equal(ml.merge("average", same)["w"], same["task 0"]["w"]), "by a rounding"
    parts = ml.compress("cart_indexing", same, rest=rest)
    for task, expert in same.items():
        assert parts.task_nbytes(task) == 0
        assert all(torch.equal(parts.expert(task)[key], value) for key, value in expert.items())


@pytest.mark.parametrize("rest", ["own", "average"])
@pytest.mark.parametrize("left_out", [["w"], ["bias", "embed.weight", "steps"]])
def test_a_part_without_tensors_goes_through_a_file(
    tmp_path: Path, rest: str, left_out: list[str]
) -> None:
    _, experts = family()
    experts = {t: {k: v for k, v in e.items() if k not in left_out} for t, e in experts.items()}
    parts = ml.compress("cart_indexing", experts, rest=rest)
    parts.save(tmp_path / "parts.safetensors")
    again = ml.load_compressed(tmp_path / "parts.safetensors")
    for task in experts:
        restored = again.expert(task)
        assert restored.keys() == experts[task].keys()
        assert all(torch.equal(restored[k], v) for k, v in parts.expert(task).items())


def test_convolutions_that_are_told_to_be_matrices(tmp_path: Path) -> None:
    """Folded, one filter per row; by default they are part of the rest."""
    torch.manual_seed(0)
    experts = {task: {"conv.weight": torch.randn(6, 2, 3, 3)} for task in ("a", "b")}
    folded = {task: {"w": state["conv.weight"].flatten(1)} for task, state in experts.items()}
    parts = ml.compress("cart_indexing", experts, rank_ratio=0.4, is_matrix=is_kernel)
    parts.save(tmp_path / "parts.safetensors")
    expected = ml.compress("cart_indexing", folded, rank_ratio=0.4)
    plain = ml.compress("cart_indexing", experts, rank_ratio=0.4, rest="average")
    average = ml.merge("average", experts)["conv.weight"]
    for again in (parts, ml.load_compressed(tmp_path / "parts.safetensors")):
        found = again.expert("a")["conv.weight"]
        assert torch.equal(found, expected.expert("a")["w"].view(6, 2, 3, 3))
    assert torch.equal(plain.expert("a")["conv.weight"], average)
    assert "is_matrix" not in ml.methods()["hyperparameters"]["cart_indexing"]


@pytest.mark.parametrize("method", METHODS)
def test_modules_files_and_a_device(tmp_path: Path, method: str) -> None:
    torch.manual_seed(0)
    base, *tuned = (torch.nn.Linear(6, 4) for _ in range(3))
    plain = ml.compress(method, [m.state_dict() for m in tuned], pretrained=base.state_dict())
    files = [tmp_path / f"{i}.safetensors" for i in range(2)]
    for module, file in zip(tuned, files, strict=True):
        ml.save_state_dict(module.state_dict(), file)
    for experts in (tuned, files):
        parts = ml.compress(method, experts, pretrained=base, device="cpu")
        for task in plain.tasks:
            for key, value in plain.expert(task).items():
                assert torch.equal(parts.expert(task)[key], value)


def made(method: str, base: State, experts: dict[str, State], **options: Any) -> ml.Compressed:
    given_base: dict[str, Any] = {} if method == "cart_indexing" else {"pretrained": base}
    return ml.compress(method, experts, **given_base, **options)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("method", METHODS)
def test_files_hold_what_is_counted(tmp_path: Path, method: str, dtype: torch.dtype) -> None:
    base, experts = family(dtype=dtype)
    parts = made(method, base, experts)
    parts.save(tmp_path / "parts.safetensors")
    stored = load_file(tmp_path / "parts.safetensors")
    assert parts.nbytes == sum(t.numel() * t.element_size() for t in stored.values())
    assert parts.nbytes == parts.shared_nbytes + sum(map(parts.task_nbytes, parts.tasks))
    again = ml.load_compressed(tmp_path / "parts.safetensors")
    assert again.tasks == list(experts)
    assert again.hyperparameters == parts.hyperparameters
    for task, expert in experts.items():
        state, reloaded = parts.expert(task), again.expert(task)
        assert state.keys() == expert.keys()
        for key, value in expert.items():
            assert torch.equal(state[key], reloaded[key])
            assert (state[key].dtype, state[key].shape) == (value.dtype, value.shape)


def test_bytes_by_hand() -> None:
    """108 + 5 + 28 entries: masks of 14 + 1 + 4 bytes and a number; rank 2 of a 12 x 9 matrix."""
    base, experts = family()
    floats = 4 * (108 + 5 + 28)
    emr = made("emr", base, experts)
    assert emr.task_nbytes("task 0") == 14 + 1 + 4 + 4
    assert emr.shared_nbytes == 2 * floats + 8
    cart = made("cart_indexing", base, experts, rank_ratio=0.2, rest="average")
    assert cart.task_nbytes("task 0") == 4 * 2 * (12 + 9)
    assert cart.shared_nbytes == floats + 8


@pytest.mark.parametrize("method", METHODS)
def test_ties_and_counters(tmp_path: Path, method: str) -> None:
    base, experts = family()
    for state in (base, *experts.values()):
        state["tied"] = state["w"]
    parts = made(method, base, experts)
    assert parts.expert("task 0")["tied"] is parts.expert("task 0")["w"] or torch.equal(
        parts.expert("task 0")["tied"], parts.expert("task 0")["w"]
    )
    parts.save(tmp_path / "parts.safetensors")
    state = ml.load_compressed(tmp_path / "parts.safetensors").expert("task 1")
    assert state["tied"] is state["w"]
    own = method == "cart_indexing"
    assert int(state["steps"]) == (4 if own else 3), "the task's own, or the pretrained model's"


@pytest.mark.parametrize("method", METHODS)
def test_bad_input(method: str) -> None:
    base, experts = family()
    with pytest.raises(TypeError, match=f"{method} has no hyperparameter 'temperature'"):
        made(method, base, experts, temperature=1)
    broken = {**experts, "task 1": {**experts["task 1"], "w": torch.full((12, 9), torch.nan)}}
    with pytest.raises(ValueError, match=r"task 1\['w'\] holds NaN"):
        made(method, base, broken)
    with pytest.raises(ValueError, match="task 1 lacks key 'w'"):
        made(method, base, {**experts, "task 1": {"bias": torch.zeros(5)}})
    with pytest.raises(ValueError, match="no task 'mnist'; tasks are: task 0"):
        made(method, base, experts).expert("mnist")


def test_more_bad_input(tmp_path: Path) -> None:
    base, experts = family()
    with pytest.raises(ValueError, match="unknown method 'emu'; did you mean 'emr'"):
        ml.compress("emu", experts, pretrained=base)
    with pytest.raises(ValueError, match="unknown method 'ties'; it is a rule"):
        ml.compress("ties", experts, pretrained=base)
    with pytest.raises(ValueError, match="emr needs the pretrained model"):
        ml.compress("emr", experts)
    with pytest.raises(ValueError, match="mask_scale of 'task 1' is None"):
        ml.compress("tall_masks", experts, pretrained=base, mask_scale={"task 0": 0.3})
    with pytest.raises(ValueError, match="base is 'dare'"):
        ml.compress("tall_masks", experts, pretrained=base, base="dare")
    with pytest.raises(ValueError, match="rest is 'mean', expected 'own' or 'average'"):
        ml.compress("cart_indexing", experts, rest="mean")
    ml.save_state_dict(base, tmp_path / "plain.safetensors")
    with pytest.raises(ValueError, match="does not contain compressed experts"):
        ml.load_compressed(tmp_path / "plain.safetensors")
    parts = made("emr", base, experts)
    parts.save(tmp_path / "cut.safetensors")
    whole = (tmp_path / "cut.safetensors").read_bytes()
    (tmp_path / "cut.safetensors").write_bytes(whole[:-7])
    with pytest.raises(ValueError, match="truncated"):
        ml.load_compressed(tmp_path / "cut.safetensors")


def test_methods_list_them() -> None:
    table = ml.methods()
    assert table.loc["emr", "family"] == "compression"
    assert table.loc["tall_masks", "needs"] == "experts, pretrained"
    assert table.loc["cart_indexing", "needs"] == "experts"
