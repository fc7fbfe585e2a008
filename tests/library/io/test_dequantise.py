"""FP8 and MXFP4 weights against their formulas, worked by hand, and against transformers."""

import json
import re
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import mergelib as ml
from mergelib.io import Checkpoint, hashing
from mergelib.io.files import InputFile
from tests.library.faults.test_pickles import pack_again
from tests.library.streaming.cases import assert_same

State = dict[str, Tensor]
FP8 = torch.float8_e4m3fn
SIZES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)  # of E2M1, with the sign in the fourth bit
BF16 = {"embed.weight": torch.ones(300, 200, dtype=torch.bfloat16)}


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def read(folder: Path, state: State) -> State:
    ml.save_state_dict(state, folder / "model.safetensors")
    return ml.load_state_dict(folder, dequantise=True)


@pytest.mark.parametrize("shape", [(256, 384), (130, 300), (64, 64), (2, 130, 257)])
def test_blocks_of_128(shape: tuple[int, ...], tmp_path: Path) -> None:
    """The entry (i, j) has the scale of the block (⌊i/128⌋, ⌊j/128⌋); those at the end are cut."""
    codes = draw(*shape).mul(50).to(FP8)
    grid = [*shape[:-2], *(-(-n // 128) for n in shape[-2:])]
    scales = draw(*grid, seed=1).exp()
    expected = codes.float()
    for i in range(grid[-2]):
        for j in range(grid[-1]):
            block = (..., slice(128 * i, 128 * i + 128), slice(128 * j, 128 * j + 128))
            expected[block] *= scales[..., i, j, None, None]
    found = read(tmp_path, BF16 | {"w.weight": codes, "w.weight_scale_inv": scales})
    assert_same(found, BF16 | {"w.weight": expected.bfloat16()})


@pytest.mark.parametrize("shape", [(), (1,), (1, 1), (6, 1)])
def test_one_scale_or_one_per_row(shape: tuple[int, ...], tmp_path: Path) -> None:
    """As compressed-tensors has them, with scales of activations and caches, which are left out."""
    codes, scales = draw(6, 5).mul(100).to(FP8), draw(*shape, seed=1).exp().half()
    one = torch.ones(1)
    state = {"a.weight": codes, "a.weight_scale": scales, "a.input_scale": one, "b": draw(9, 9)}
    found = read(tmp_path, state | {"attn.k_scale": one, "attn.v_scale": one})
    factors = [float(scales if scales.numel() == 1 else scales[i, 0]) for i in range(6)]
    expected = torch.stack([codes[i].float() * factors[i] for i in range(6)])
    assert_same(found, {"a.weight": expected.half(), "b": state["b"]})  # float16, as the scales


def test_blocks_of_another_size(tmp_path: Path) -> None:
    codes, scales = draw(64, 64).to(FP8), draw(2, 1, seed=1).exp()
    found = read(tmp_path, BF16 | {"w": codes, "w_scale_inv": scales})["w"]
    expected = torch.cat([codes[:32].float() * scales[0], codes[32:].float() * scales[1]])
    assert torch.equal(found, expected.bfloat16())


@pytest.mark.parametrize("shape", [(3, 2), (6,), (1, 5, 1), (7, 1), (2, 6, 5)])
def test_scales_that_do_not_fit(shape: tuple[int, ...], tmp_path: Path) -> None:
    message = f"scales 'w.weight_scale' of shape {[*shape]} do not fit 'w.weight' of shape [6, 5]"
    with pytest.raises(ValueError, match=re.escape(message)):
        read(tmp_path, {"w.weight": draw(6, 5).to(FP8), "w.weight_scale": torch.ones(shape)})


def mxfp4(experts: int, rows: int, groups: int, seed: int = 0) -> State:
    generator = torch.Generator().manual_seed(seed)
    codes = torch.randint(256, (experts, rows, groups, 16), generator=generator).byte()
    scales = torch.randint(100, 150, (experts, rows, groups), generator=generator).byte()
    return {"experts.down_proj_blocks": codes, "experts.down_proj_scales": scales}


def test_mxfp4_by_hand(tmp_path: Path) -> None:
    """Entry (e, 32 g + k, row): the lower half of byte ⌊k/2⌋ for even k, times 2^(s - 127)."""
    state = mxfp4(2, 3, 2)
    codes, scales = state.values()
    expected = torch.empty(2, 64, 3)
    for e, row, g, k in torch.cartesian_prod(*map(torch.arange, (2, 3, 2, 32))).tolist():
        byte = int(codes[e, row, g, k // 2])
        bits = byte >> 4 if k % 2 else byte & 15
        size = SIZES[bits & 7] * (-1) ** (bits >> 3)
        expected[e, 32 * g + k, row] = size * 2.0 ** (int(scales[e, row, g]) - 127)
    found = read(tmp_path, BF16 | state)
    assert_same(found, BF16 | {"experts.down_proj": expected.bfloat16()})
    assert torch.equal(found["experts.down_proj"].float(), expected), "nothing is rounded"


def test_all_powers_are_exact(tmp_path: Path) -> None:
    codes = torch.full((1, 255, 1, 16), 0x22, dtype=torch.uint8)  # 1 and 1
    scales = torch.arange(255, dtype=torch.uint8).reshape(1, 255, 1)
    found = read(tmp_path, {"w_blocks": codes, "w_scales": scales})["w"]
    expected = torch.tensor([2.0 ** (n - 127) for n in range(255)]).expand(32, 255)
    assert torch.equal(found[0].float(), expected)


def test_transformers_computes_the_same(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    theirs = pytest.importorskip("transformers.integrations.mxfp4")
    if not hasattr(theirs, "convert_moe_packed_tensors"):
        pytest.skip("another version of transformers")
    state = mxfp4(3, 8, 4)
    expected = theirs.convert_moe_packed_tensors(*state.values())
    assert_same(read(tmp_path, BF16 | state), BF16 | {"experts.down_proj": expected})

    fp8 = pytest.importorskip("transformers.integrations.finegrained_fp8")
    if not hasattr(fp8, "Fp8Dequantize"):
        pytest.skip("another version of transformers")
    for shape, grid in (((256, 384), (2, 3)), ((64, 32), (1, 1))):
        codes, scales = draw(*shape).mul(50).to(FP8), draw(*grid, seed=1).exp()
        found = read(tmp_path, BF16 | {"w.weight": codes, "w.weight_scale_inv": scales})
        theirs = fp8.Fp8Dequantize(None)._dequantize_one(codes, scales, torch.bfloat16)
        assert_same(found, BF16 | {"w.weight": theirs})


def deepseek(folder: Path, seed: int) -> Path:
    """A sharded folder whose scales lie in another shard than their weights."""
    state = BF16 | {"layers.0.w.weight": draw(256, 128, seed=seed).to(FP8)}
    state |= mxfp4(2, 4, 1, seed)
    scales = {"layers.0.w.weight_scale_inv": draw(2, 1, seed=seed + 9).exp()}
    scales["experts.down_proj_scales"] = state.pop("experts.down_proj_scales")
    files = dict(zip(("one.safetensors", "two.safetensors"), (state, scales), strict=True))
    for name, part in files.items():
        ml.save_state_dict(part, folder / name)
    index = {"weight_map": {key: name for name, part in files.items() for key in part}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    config: dict[str, Any] = {"model_type": "tiny", "torch_dtype": "bfloat16"}
    quantised = {"quant_method": "fp8", "weight_block_size": [128, 128]}
    config |= {"quantization_config": quantised, "text_config": {"quantization_config": quantised}}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def test_files_are_merged_as_if_they_had_been_dequantised(tmp_path: Path) -> None:
    folders = [deepseek(tmp_path / name, seed) for seed, name in enumerate("pab")]
    plain = []
    for folder in folders:
        plain.append(tmp_path / "plain" / folder.name)
        ml.save_state_dict(
            ml.load_state_dict(folder, dequantise=True), plain[-1] / "model.safetensors"
        )
    out = ml.merge_files(
        "ties", folders[1:], tmp_path / "out", pretrained=folders[0], dequantise=True
    )
    expected = ml.merge("ties", plain[1:], pretrained=plain[0])
    assert_same(ml.load_state_dict(out), expected)
    assert {tensor.dtype for tensor in expected.values()} == {torch.bfloat16}
    mixed = ml.merge_files(
        "ties", folders[1:], tmp_path / "mixed", pretrained=plain[0], dequantise=True
    )
    assert_same(ml.load_state_dict(mixed), expected)
    config = json.loads((out / "config.json").read_text())
    assert config == {"model_type": "tiny", "torch_dtype": "bfloat16", "text_config": {}}
    noted = json.loads(Checkpoint(out).metadata["mergelib.inputs"])
    stored = {name: Checkpoint(folder) for name, folder in zip(noted, folders, strict=True)}
    with hashing(stored) as hashes:
        assert noted == json.loads(hashes()["mergelib.inputs"]), "of the files as they are"


def test_a_model_of_gpt_oss_loads(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    if not hasattr(transformers, "GptOssConfig"):
        pytest.skip("another version of transformers")
    sizes = {"hidden_size": 64, "intermediate_size": 32, "num_hidden_layers": 1, "head_dim": 16}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "num_local_experts": 2}
    config = transformers.GptOssConfig(vocab_size=20, **sizes, **heads)
    torch.manual_seed(0)
    model = transformers.GptOssForCausalLM(config).bfloat16()
    model.save_pretrained(tmp_path / "a")
    state = ml.load_state_dict(tmp_path / "a")
    experts = "model.layers.0.mlp.experts"
    for name, (rows, groups) in {"gate_up_proj": (64, 2), "down_proj": (64, 1)}.items():
        codes, scales = mxfp4(2, rows, groups).values()
        del state[f"{experts}.{name}"]
        state |= {f"{experts}.{name}_blocks": codes, f"{experts}.{name}_scales": scales}
    ml.save_state_dict(state, tmp_path / "a" / "model.safetensors")
    text = json.loads((tmp_path / "a" / "config.json").read_text())
    text["quantization_config"] = {"quant_method": "mxfp4"}
    (tmp_path / "a" / "config.json").write_text(json.dumps(text))
    out = ml.merge_files("average", [tmp_path / "a"], tmp_path / "out", dequantise=True)
    loaded = transformers.GptOssForCausalLM.from_pretrained(out, dtype="auto").state_dict()
    assert_same(loaded, ml.load_state_dict(tmp_path / "a", dequantise=True))
    assert loaded.keys() == model.state_dict().keys()


def test_it_is_streamed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A header is enough to open a file; every access computes one tensor."""
    opened = Checkpoint(deepseek(tmp_path / "a", 0), dequantise=True)
    shape = {"embed.weight": (300, 200), "layers.0.w.weight": (256, 128)}
    layout = {key: tuple(kind.shape) for key, kind in opened.layout.items()}
    assert layout == shape | {"experts.down_proj": (2, 32, 4)}
    assert [key for keys in opened.shards.values() for key in keys] == [*opened]
    reads: list[int] = []
    inner = InputFile.read

    def noted(file: InputFile, start: int, size: int) -> Tensor:
        reads.append(size)
        return inner(file, start, size)

    monkeypatch.setattr(InputFile, "read", noted)
    assert opened["layers.0.w.weight"].dtype == torch.bfloat16
    assert reads == [256 * 128, 2 * 4]


def test_an_adapter_on_a_quantised_base(tmp_path: Path) -> None:
    base, lora = deepseek(tmp_path / "base", 0), tmp_path / "lora"
    module = "base_model.model.layers.0.w"
    factors = {f"{module}.lora_A.weight": draw(2, 128), f"{module}.lora_B.weight": draw(256, 2)}
    ml.save_state_dict(factors, lora / "adapter_model.safetensors")
    (lora / "adapter_config.json").write_text('{"peft_type": "LORA", "r": 2, "lora_alpha": 2}')
    out = ml.merge_files("average", [lora], tmp_path / "out", pretrained=base, dequantise=True)
    start = ml.load_state_dict(base, dequantise=True)["layers.0.w.weight"]
    expected = start.float() + draw(256, 2) @ draw(2, 128)
    assert torch.equal(ml.load_state_dict(out)["layers.0.w.weight"], expected.bfloat16())


REFUSED: dict[str, tuple[State, str]] = {
    "w.weight": (
        {"w.weight": torch.zeros(2, 2).to(FP8), "w.weight_scale": torch.ones(1)},
        "torch.float8_e4m3fn), which cannot be merged: pass dequantise=True",
    ),
    "w_blocks": (
        {"w_blocks": torch.zeros(1, 2, 1, 16).byte(), "w_scales": torch.zeros(1, 2, 1).byte()},
        "torch.uint8), which cannot be merged: pass dequantise=True",
    ),
}
OTHERS: dict[str, tuple[State, str]] = {
    "l.qweight": ({"l.qweight": torch.ones(4, 4).int()}, "GPTQ or AWQ, torch.int32"),
    "l.weight": (
        {"l.weight": torch.ones(8, 1).byte(), "l.weight.absmax": torch.ones(1)},
        "bitsandbytes, torch.uint8",
    ),
    "m.weight": (
        {"m.weight": torch.ones(8, 2, dtype=torch.int8), "m.SCB": torch.ones(8)},
        "bitsandbytes, torch.int8",
    ),
    "l.W_q": ({"l.W_q": torch.ones(8, 4).byte(), "l.scale": torch.ones(8, 1)}, "HQQ, torch.uint8"),
    "l.weight_packed": (
        {"l.weight_packed": torch.ones(4, 4).byte(), "l.weight_scale": torch.ones(4, 1).to(FP8)},
        "compressed-tensors, torch.uint8",
    ),
}


@pytest.mark.parametrize("key", [*REFUSED, *OTHERS])
def test_what_is_refused(key: str, tmp_path: Path) -> None:
    state, text = {**REFUSED, **OTHERS}[key]
    files = [tmp_path / f"{name}.safetensors" for name in "ab"]
    for file in files:
        ml.save_state_dict(BF16 | state, file)
    options: dict[str, Any] = {"dequantise": True} if key in OTHERS else {}
    with pytest.raises(
        ValueError, match=re.escape(f"expert 0[{key!r}] holds quantised weights (")
    ) as raised:
        ml.merge_files("average", files, tmp_path / "out", **options)
    assert text in str(raised.value)
    assert ("dequantise the models first" in str(raised.value)) == (key in OTHERS)
    assert not (tmp_path / "out").exists()
    if key in REFUSED:
        ml.merge_files("average", files, tmp_path / "out", dequantise=True)


def test_files_without_quantised_weights(tmp_path: Path) -> None:
    """Scales of other weights are tensors like all."""
    state = {"w.weight": draw(3, 3), "w.weight_scale": draw(3, 1), "a.input_scale": draw(1)}
    assert_same(read(tmp_path, state), state)


QUANTISED = BF16 | {"w.weight": draw(130, 6).to(FP8), "w.weight_scale_inv": draw(2, 1).exp()}
QUANTISED |= mxfp4(2, 3, 1)


def test_state_dicts_in_memory(tmp_path: Path) -> None:
    """As a file that holds them; the input is left as it is, and a merge takes the result."""
    before = {key: value.clone() for key, value in QUANTISED.items()}
    found = ml.dequantise(QUANTISED)
    assert_same(found, read(tmp_path, QUANTISED))
    assert found["embed.weight"] is QUANTISED["embed.weight"]
    assert_same(ml.dequantise(found), found)
    with pytest.raises(ValueError, match=r"in memory, mergelib\.dequantise does it"):
        ml.merge("average", [QUANTISED, QUANTISED])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert_same(ml.merge("average", [found, found]), found)
    assert_same(QUANTISED, before)
    with pytest.raises(ValueError, match="state: scales 'w_scale' of shape"):
        ml.dequantise({"w": draw(6, 5).to(FP8), "w_scale": torch.ones(3, 2)})


@pytest.mark.parametrize("deflated", [[], ["data/1"], ["data/2"], ["data/1", "data/2"]])
def test_pickles_that_are_compressed(deflated: list[str], tmp_path: Path) -> None:
    """Whose codes, scales or both are in memory once the file is open."""
    torch.save(QUANTISED, tmp_path / "a.pt")
    pack_again(tmp_path / "a.pt", lambda name: name.partition("/")[2] in deflated)
    found = ml.load_state_dict(tmp_path / "a.pt", dequantise=True)
    assert_same(found, ml.dequantise(QUANTISED))


ALONE: dict[str, State] = {
    "w.weight": {"w.weight": draw(2, 2).to(FP8), "w.weight_scale_inv": torch.ones(1, 1)},
    "w.weight ": {"w.weight ": draw(2, 2).to(torch.float8_e5m2), "w.weight_scale": torch.ones(1)},
    "w_blocks": {"w_blocks": torch.zeros(1, 2, 1, 16).byte(), "w_scales": torch.ones(1, 2, 1)},
    "l.qweight": {"l.qweight": torch.ones(4, 4).int(), "l.scales": torch.ones(1, 4)},
    "l.weight": {"l.weight": torch.ones(8, 1).byte(), "l.weight.absmax": torch.ones(1)},
    "m.weight": {"m.weight": torch.ones(8, 2, dtype=torch.int8), "m.SCB": torch.ones(8)},
    "l.W_q": {"l.W_q": torch.ones(8, 4).byte(), "l.zero": torch.ones(8, 1)},
}


@pytest.mark.parametrize("key", ALONE)
def test_scales_are_not_merged_without_their_weights(key: str, tmp_path: Path) -> None:
    """To leave out what a message names would average the scales alone."""
    states = [{**BF16, **ALONE[key], "l.bias": draw(4, seed=seed)} for seed in (0, 1)]
    (scales,) = ALONE[key].keys() - {key}
    message = re.escape(f"expert 0[{scales!r}] belongs to the quantised weights {key!r}")
    with pytest.raises(ValueError, match=message):
        ml.merge("average", states, exclude=key)
    merged = ml.merge("average", states, exclude=[key, scales])
    assert torch.equal(merged["l.bias"], (draw(4, seed=0) + draw(4, seed=1)) / 2)
