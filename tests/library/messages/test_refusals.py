"""LoRA factors and quantised weights are refused by name, and only where they would be merged."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import mergelib as ml
from mergelib.messages.refusals import check_device

State = dict[str, Tensor]
FACTORS = [
    "base_model.model.q_proj.lora_A.weight",
    "base_model.model.q_proj.lora_B.default.weight",
    "embed.lora_embedding_A.default",
    "embed.lora_embedding_B",
    "q_proj.lora_magnitude_vector.default.weight",
    "unet.to_q.lora_down.weight",
    "lora_unet_mid_to_k.lora_up.weight",
    "attn.processor.to_q_lora.down.weight",
    "layers.0.attn.q_proj.lora_a.weight",
    "proj.hada_w1_a",
    "proj.lokr_w2",
]


def with_key(key: str, tensor: Tensor | None = None) -> list[State]:
    """Two experts that hold such a key besides a weight."""
    extra = torch.ones(2, 3) if tensor is None else tensor
    return [{"fc.weight": torch.full((3, 3), 1.0 + i), key: extra.clone()} for i in range(2)]


def saved(folder: Path, states: list[State]) -> list[Path]:
    files = [folder / f"{i}.safetensors" for i in range(len(states))]
    for file, state in zip(files, states, strict=True):
        ml.save_state_dict(state, file)
    return files


BASE = {"fc.weight": torch.ones(3, 3)}
Door = Callable[[list[State], Path], Any]
DOORS: dict[str, Door] = {
    "merge": lambda states, folder: ml.merge("average", states),
    "merge_files": lambda states, folder: ml.merge_files(
        "average", saved(folder, states), folder / "out.safetensors"
    ),
    "adapt": lambda states, folder: ml.adapt("uniform_soup", states, pretrained=BASE),
    "compress": lambda states, folder: ml.compress("cart_indexing", states),
}


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("key", FACTORS)
def test_factors_of_adapters_are_refused(door: str, key: str, tmp_path: Path) -> None:
    message = f"expert 0 holds adapters ({key!r}), whose tensors cannot be merged one by one"
    with pytest.raises(ValueError, match=re.escape(message)) as caught:
        DOORS[door](with_key(key), tmp_path)
    assert "model.merge_and_unload()" in str(caught.value)
    assert ("exclude=" in str(caught.value)) == (door != "compress"), "which has no such argument"
    assert not (tmp_path / "out.safetensors").exists()


def test_their_average_would_be_wrong() -> None:
    """The average of the factors' product is far from the average of the products."""
    torch.manual_seed(0)
    a, b = torch.randn(2, 4, 64), torch.randn(2, 64, 4)
    right = (b @ a).mean(0)
    wrong = b.mean(0) @ a.mean(0)
    assert (wrong - right).norm() > 0.6 * right.norm()


def test_factors_that_are_left_out_do_no_harm(tmp_path: Path) -> None:
    states = with_key("q.lora_A.weight")
    for merged in (
        ml.merge("average", states, exclude="*lora_*"),
        ml.merge("average", states, include="fc.*"),
        ml.load_state_dict(
            ml.merge_files("average", saved(tmp_path, states), tmp_path / "o", exclude="*lora_*")
        ),
    ):
        assert torch.equal(merged["fc.weight"], torch.full((3, 3), 1.5))
    base = {"fc.weight": torch.ones(3, 3)}
    with pytest.raises(ValueError, match="holds adapters"):
        ml.merge("average", states, pretrained=base, missing="skip")


@pytest.mark.parametrize(
    "key", ["explorer.weight", "lora.weight", "flora_A.weight", "colora_bias", "decoder.up.weight"]
)
def test_names_that_only_look_alike(key: str) -> None:
    assert key in ml.merge("average", with_key(key))


@pytest.mark.parametrize("door", ["merge", "merge_files", "adapt", "compress"])
def test_an_adapters_folder(door: str, tmp_path: Path) -> None:
    folder = tmp_path / "adapter"
    folder.mkdir()
    (folder / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA"}))
    ml.save_state_dict({"q.lora_A.weight": torch.ones(2, 2)}, folder / "adapter_model.safetensors")
    calls: dict[str, Callable[[], Any]] = {
        "merge": lambda: ml.merge("average", [folder]),
        "merge_files": lambda: ml.merge_files("average", [folder], tmp_path / "out.safetensors"),
        "adapt": lambda: ml.adapt("uniform_soup", [folder]),
        "compress": lambda: ml.compress("cart_indexing", [folder]),
    }
    with pytest.raises(ValueError, match="an adapter but no model: pass the base as pretrained"):
        calls[door]()
    ml.save_state_dict(BASE, folder / "model.safetensors")
    if door == "adapt":
        ml.adapt("uniform_soup", [folder], pretrained=BASE)
    else:
        calls[door]()


QUANTISED = [
    ("fc.qweight", torch.ones(4, 4, dtype=torch.int32)),
    ("fc.qzeros", torch.ones(4, 1, dtype=torch.int32)),
    ("head.weight", torch.ones(8, 1, dtype=torch.uint8)),
    ("head.weight", torch.ones(4, 4, dtype=torch.int8)),
    ("head.weight_packed", torch.ones(4, 4, dtype=torch.int32)),
    ("odd", torch.ones(4, 4, dtype=torch.int8)),
    ("fc2.weight", torch.quantize_per_tensor(torch.ones(2, 2), 0.1, 0, torch.qint8)),
]


@pytest.mark.parametrize(("key", "tensor"), QUANTISED)
def test_quantised_weights_are_refused(key: str, tensor: Tensor, tmp_path: Path) -> None:
    """They were copied from the first model, as counters are."""
    states = with_key(key, tensor)
    doors = ["merge", "adapt", "compress"] + ([] if tensor.is_quantized else ["merge_files"])
    for door in doors:
        with pytest.raises(ValueError, match=re.escape(f"expert 0[{key!r}] holds quantised")):
            DOORS[door](states, tmp_path)
    if not tensor.is_quantized:
        merged = ml.merge("average", states, exclude=key)
        assert torch.equal(merged[key], tensor)


def test_counters_indices_and_masks_are_copied() -> None:
    integers = {
        "bn.num_batches_tracked": torch.tensor(3),
        "embeddings.position_ids": torch.arange(8)[None],
        "attn.bias": torch.ones(1, 1, 4, 4, dtype=torch.uint8),
        "attn.mask": torch.ones(4, 4, dtype=torch.bool),
        "relative_position_index": torch.ones(4, 4, dtype=torch.int64),
        "weight": torch.tensor(7),
    }
    states = [{"fc.weight": torch.ones(2, 2), **integers} for _ in range(2)]
    merged = ml.merge("average", states)
    assert all(torch.equal(merged[key], value) for key, value in integers.items())


def test_devices_that_there_are_not(tmp_path: Path) -> None:
    states = with_key("b")
    module = nn.Linear(3, 3)
    calls: list[Callable[[], Any]] = [
        lambda: ml.merge("average", states, device="abacus"),
        lambda: ml.merge_files("average", saved(tmp_path, states), tmp_path / "o", device="abacus"),
        lambda: ml.adapt("uniform_soup", [module], device="abacus"),
        lambda: ml.compress("cart_indexing", states, device="abacus"),
    ]
    for call in calls:
        with pytest.raises(ValueError, match=r"^device 'abacus' cannot be used: ") as caught:
            call()
        assert "\n" not in str(caught.value)
    check_device(None)
    check_device("cpu")


def test_a_long_error_of_a_device_becomes_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise RuntimeError("CUDA error: invalid device ordinal\nCUDA kernel errors might be …\n")

    monkeypatch.setattr(torch, "empty", refuse)
    with pytest.raises(ValueError, match=r"^device 'cuda:9' cannot be used: CUDA error: invalid"):
        check_device("cuda:9")


def test_several_patterns_in_one_text() -> None:
    with pytest.raises(ValueError, match=r"'fc.\*,b' matches no key; several are a list, not one"):
        ml.merge("average", with_key("b"), include="fc.*,b")


def test_heads_that_differ_are_told_what_to_do() -> None:
    """In the words of who was asked: compressions have no parts."""
    experts = [{"body": torch.ones(2, 2), "head": torch.ones(2 + i)} for i in range(2)]
    for call in (
        lambda: ml.merge("average", experts),
        lambda: ml.adapt("uniform_soup", experts, pretrained=experts[0]),
    ):
        with pytest.raises(ValueError, match=r"as in \w.*; .* out with exclude=\['head'\]$"):
            call()
    noted: Any = [{**experts[0], "note": torch.ones(1)}, {**experts[1], "note": "a text"}]
    with pytest.raises(ValueError, match=r"out with exclude=\['head', 'note'\]$"):
        ml.merge("average", noted)
    with pytest.raises(ValueError, match=r"expected \(2,\) as in expert 0$"):
        ml.compress("cart_indexing", experts)
