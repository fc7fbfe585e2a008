"""LoRA adapters as inputs: products by hand, PEFT's own merge, and what must be refused."""

import json
import re
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import mergelib as ml

State = dict[str, Tensor]
RANKS = {"q": 4, "v": 8}


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed + 7 * sum(shape)))


@pytest.fixture
def base(tmp_path: Path) -> State:
    state = {f"{name}.weight": draw(16, 12, seed=i) for i, name in enumerate("qvo")}
    ml.save_state_dict(state, tmp_path / "base" / "model.safetensors")
    return state


def adapter(
    folder: Path, names: str = "qv", seed: int = 1, more: State | None = None, **config: Any
) -> Path:
    """Write an adapter as PEFT does, with ranks 4 and 8."""
    state = dict(more or {})
    for name in names:
        place = f"base_model.model.{name}"
        state[f"{place}.lora_A.weight"] = draw(RANKS[name], 12, seed=seed)
        state[f"{place}.lora_B.weight"] = draw(16, RANKS[name], seed=seed)
    ml.save_state_dict(state, folder / "adapter_model.safetensors")
    text = {"peft_type": "LORA", "r": 4, "lora_alpha": 16, "rank_pattern": {"v": 8}, **config}
    (folder / "adapter_config.json").write_text(json.dumps(text))
    return folder


def product(folder: Path, name: str, dtype: torch.dtype = torch.float64) -> Tensor:
    state = ml.load_state_dict(folder / "adapter_model.safetensors")
    place = f"base_model.model.{name}"
    b, a = (state[f"{place}.lora_{part}.weight"].to(dtype) for part in "BA")
    return b @ a


def equal(merged: State, expected: State) -> None:
    assert merged.keys() == expected.keys()
    for key, tensor in merged.items():
        assert torch.allclose(tensor.double(), expected[key].double(), atol=1e-5), key


def test_a_weighted_sum_is_exact(base: State, tmp_path: Path) -> None:
    """Each module has its own rank and alpha; there are no products of one adapter with another."""
    one = adapter(tmp_path / "one", alpha_pattern={"q": 2})
    two = adapter(tmp_path / "two", names="v", seed=2, use_rslora=True)
    start = tmp_path / "base"
    merged = ml.merge("task_arithmetic", [one, two], pretrained=start, scale=0.5)
    v = 16 / 8 * product(one, "v") + 16 / 8**0.5 * product(two, "v")
    expected = {
        "q.weight": base["q.weight"] + 0.5 * 2 / 4 * product(one, "q"),
        "v.weight": base["v.weight"] + 0.5 * v,
        "o.weight": base["o.weight"],
    }
    equal(merged, expected)
    assert torch.equal(merged["o.weight"], base["o.weight"])
    out = ml.merge_files(
        "task_arithmetic", [one, two], tmp_path / "out", pretrained=start, scale=0.5
    )
    written = ml.load_state_dict(out)
    assert all(torch.equal(written[key], merged[key]) for key in merged)
    assert not (out / "adapter_config.json").exists()


@pytest.mark.parametrize("method", ["ties", "tsv", "cart", "average"])
def test_rules_see_full_models(method: str, base: State, tmp_path: Path) -> None:
    folders = [adapter(tmp_path / str(i), seed=i) for i in range(3)]
    scales = {"q": 4, "v": 2}
    whole = [dict(base) for _ in folders]
    for state, folder in zip(whole, folders, strict=True):
        for name, scale in scales.items():
            state[f"{name}.weight"] = base[f"{name}.weight"] + scale * product(
                folder, name, torch.float32
            )
    ours = ml.merge(method, folders, pretrained=tmp_path / "base")
    equal(ours, ml.merge(method, whole, pretrained=base))
    equal(ours, ml.merge(method, folders, pretrained=base))


def test_a_rounded_base_is_rounded_once(base: State, tmp_path: Path) -> None:
    rounded = {key: tensor.bfloat16() for key, tensor in base.items()}
    folders = [adapter(tmp_path / str(i), seed=i) for i in range(2)]
    merged = ml.merge("task_arithmetic", folders, pretrained=rounded, scale=1.0)
    v = rounded["v.weight"].double() + 2 * (product(folders[0], "v") + product(folders[1], "v"))
    assert merged["v.weight"].dtype == torch.bfloat16
    assert (merged["v.weight"].double() - v).abs().max() <= (v * 2.0**-8).abs().max()
    assert torch.equal(merged["v.weight"], v.float().bfloat16())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_a_chosen_dtype_is_rounded_to_once(dtype: torch.dtype, tmp_path: Path) -> None:
    """A bfloat16 base with an adapter of whole numbers over 2⁸, whose product is exact."""
    generator = torch.Generator().manual_seed(0)
    a, b, w = (
        torch.randint(-9, 10, shape, generator=generator).double()
        for shape in ((4, 12), (16, 4), (16, 12))
    )
    ml.save_state_dict({"q.weight": w.bfloat16()}, tmp_path / "base" / "model.safetensors")
    factors = {"A": (a / 2**8).float(), "B": (b / 2**4).float()}
    more = {f"base_model.model.q.lora_{key}.weight": tensor for key, tensor in factors.items()}
    lora = adapter(tmp_path / "lora", names="", more=more)
    exact = w + 16 / 4 * (b / 2**4) @ (a / 2**8)
    assert not torch.equal(exact.bfloat16().double(), exact)
    model = f"{tmp_path / 'base'}+{lora}"
    out = ml.merge_files("average", [model], tmp_path / "out", dtype=dtype)
    for merged in (ml.load_state_dict(out), ml.merge("average", [model], dtype=dtype)):
        assert merged["q.weight"].dtype == dtype
        assert torch.equal(merged["q.weight"], exact.float().to(dtype))
        assert torch.equal(merged["q.weight"].double(), exact) == (dtype == torch.float32)


def test_the_base_is_found_in_the_configuration(base: State, tmp_path: Path) -> None:
    place = str(tmp_path / "base")
    one, two = (
        adapter(tmp_path / name, seed=i, base_model_name_or_path=place)
        for i, name in enumerate("ab")
    )
    merged = ml.merge("task_arithmetic", [one, two], scale=1.0)
    equal(merged, ml.merge("task_arithmetic", [one, two], pretrained=base, scale=1.0))
    plain = ml.load_state_dict(one)
    equal(plain, ml.load_state_dict(f"{tmp_path / 'base'}+{one}"))
    out = ml.merge_files("average", [f"{tmp_path / 'base'}+{one}"], tmp_path / "out")
    equal(ml.load_state_dict(out), plain)
    other = adapter(tmp_path / "c", base_model_name_or_path=str(one.parent / "a"))
    with pytest.raises(ValueError, match="adapters of different bases"):
        ml.merge("average", [one, other])
    with pytest.warns(UserWarning, match="trained on another base .*are applied to pretrained"):
        ml.merge("average", [one, other], pretrained=place)
    with pytest.warns(UserWarning, match=re.escape(f"another base ({other}: {one}) are applied")):
        ml.merge("average", [one, other, adapter(tmp_path / "unnamed")], pretrained=place)
    hub = adapter(tmp_path / "d", base_model_name_or_path="org/model")
    with pytest.raises(
        ValueError, match="'org/model', no folder here: pass the base as pretrained"
    ):
        ml.merge_files("average", [hub], tmp_path / "never")


@pytest.mark.parametrize(
    ("names", "warned"),
    [
        (["base", "base"], False),
        (["org/model", "org/model"], False),  # the folder may be a copy of that
        (["org/model", "org/other"], True),
        (["base", "other"], True),
        (["other", "other"], True),
        (["gone", "gone"], False),  # it may have been moved here
    ],
)
@pytest.mark.parametrize("kind", ["merge", "file", "merge_adapters"])
def test_an_adapter_of_another_base_of_equal_shapes(
    base: State, tmp_path: Path, names: list[str], warned: bool, kind: str
) -> None:
    ml.save_state_dict(base, tmp_path / "other" / "model.safetensors")
    named = [str(tmp_path / name) if "/" not in name else name for name in names]
    models = [
        adapter(tmp_path / f"adapter {seed}", seed=seed, base_model_name_or_path=name)
        for seed, name in enumerate(named)
    ]
    place = tmp_path / "base"
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        if kind == "merge_adapters":
            ml.merge_adapters("average", models, tmp_path / "out", pretrained=place)
        else:
            whole = place / "model.safetensors" if kind == "file" else place
            ml.merge("average", models, pretrained=whole)
    texts = [str(each.message) for each in caught if "another base" in str(each.message)]
    assert len(texts) == warned
    assert all(f"{models[1]}: {named[1]}" in text for text in texts if named[0] != named[1])


def test_an_adapters_folder_need_not_hold_what_the_base_holds(
    base: State, tmp_path: Path, recwarn: pytest.WarningsRecorder
) -> None:
    for name, text in {
        "config": {"pad_token_id": 1},
        "tokenizer_config": {"pad_token": "[P]"},
    }.items():
        (tmp_path / "base" / f"{name}.json").write_text(json.dumps(text))
    folders = [adapter(tmp_path / name, seed=i) for i, name in enumerate("ab")]
    out = ml.merge_files("average", folders, tmp_path / "out", pretrained=tmp_path / "base")
    assert (out / "tokenizer_config.json").exists()
    assert [str(each.message) for each in recwarn if "agree" in str(each.message)] == []


def test_an_applied_adapter_has_the_dtypes_and_order_of_its_base(tmp_path: Path) -> None:
    """Also with a head that the base lacks, which comes last."""
    rounded = {f"{name}.weight": draw(16, 12, seed=i).bfloat16() for i, name in enumerate("qvo")}
    ml.save_state_dict(rounded, tmp_path / "base" / "model.safetensors")
    plain = f"{tmp_path / 'base'}+{adapter(tmp_path / 'a')}"
    out = ml.load_state_dict(ml.merge_files("average", [plain], tmp_path / "out"))
    assert {tensor.dtype for tensor in out.values()} == {torch.bfloat16}
    equal(out, {key: tensor.bfloat16() for key, tensor in ml.load_state_dict(plain).items()})
    head = draw(3, 12)
    headed = adapter(tmp_path / "b", more={"base_model.model.score.weight": head})
    lazy = ml.io.open_model(headed, ml.Checkpoint(tmp_path / "base"))
    assert [key for keys in lazy.shards.values() for key in keys] == [*lazy]
    assert torch.equal(lazy["score.weight"], head)


def test_names_that_differ_by_leading_parts(base: State, tmp_path: Path) -> None:
    folder = adapter(tmp_path / "a", alpha_pattern={"^v": 3})
    inner = {f"model.{key}": tensor for key, tensor in base.items()}
    merged = ml.merge("average", [folder], pretrained=inner)
    expected = ml.merge("average", [folder], pretrained=base)
    equal(merged, {f"model.{key}": tensor for key, tensor in expected.items()})


def test_modules_that_were_trained_whole(base: State, tmp_path: Path) -> None:
    head = draw(16, 12, seed=9)
    folder = adapter(tmp_path / "a", more={"base_model.model.o.weight": head})
    merged = ml.merge("task_arithmetic", [folder], pretrained=base, scale=0.5)
    assert torch.allclose(merged["o.weight"], (base["o.weight"] + head) / 2, atol=1e-6)
    new = adapter(tmp_path / "b", more={"base_model.model.score.weight": head})
    with pytest.raises(ValueError, match=r"score\.weight"):
        ml.merge("average", [folder, new], pretrained=base)


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "kind": ({"peft_type": "IA3"}, "of the kind IA3, not LoRA: merge it into its base with PEFT"),
    "start": ({"init_lora_weights": "pissa_niter_4"}, "init_lora_weights=pissa_niter_4"),
    "layers": ({"layer_replication": [[0, 1], [0, 1]]}, "layer_replication"),
    "tokens": ({"trainable_token_indices": [3]}, "trainable_token_indices"),
    "future": ({"not_invented_yet": True}, "not_invented_yet, which is not computed here"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_not_computed_is_refused(case: str, base: State, tmp_path: Path) -> None:
    config, message = REFUSED[case]
    folder = adapter(tmp_path / "a", **config)
    with pytest.raises(ValueError, match=message):
        ml.merge("average", [folder], pretrained=base)
    with pytest.raises(ValueError, match=message):
        ml.merge_files("average", [folder], tmp_path / "out", pretrained=tmp_path / "base")
    assert not (tmp_path / "out").exists()


def damaged(folder: Path) -> None:
    (folder / "adapter_config.json").write_text('{"lora_alpha": 16')


def without_weights(folder: Path) -> None:
    (folder / "adapter_model.safetensors").unlink()


def of_another_model(folder: Path) -> None:
    state = ml.load_state_dict(folder / "adapter_model.safetensors")
    moved = {key.replace(".q.", ".k.").replace(".v.", ".w."): t for key, t in state.items()}
    ml.save_state_dict(moved, folder / "adapter_model.safetensors")


def half(folder: Path) -> None:
    state = ml.load_state_dict(folder / "adapter_model.safetensors")
    del state["base_model.model.q.lora_B.weight"]
    ml.save_state_dict(state, folder / "adapter_model.safetensors")


def bias_alone(folder: Path) -> None:
    state = ml.load_state_dict(folder / "adapter_model.safetensors")
    key = "base_model.model.o.lora_B.bias"
    ml.save_state_dict(state | {key: torch.ones(16)}, folder / "adapter_model.safetensors")


def narrow(folder: Path) -> None:
    state = ml.load_state_dict(folder / "adapter_model.safetensors")
    key = "base_model.model.q.lora_A.weight"
    ml.save_state_dict(state | {key: state[key][:, :5]}, folder / "adapter_model.safetensors")


def resized(a: tuple[int, ...], b: tuple[int, ...]) -> Callable[[Path], None]:
    """Factors of any shapes, which safetensors can hold."""

    def spoil(folder: Path) -> None:
        state = ml.load_state_dict(folder / "adapter_model.safetensors")
        for part, shape in (("A", a), ("B", b)):
            state[f"base_model.model.q.lora_{part}.weight"] = torch.ones(shape)
        ml.save_state_dict(state, folder / "adapter_model.safetensors")

    return spoil


def magnitude(folder: Path) -> None:
    state = ml.load_state_dict(folder / "adapter_model.safetensors")
    state["base_model.model.q.lora_magnitude_vector"] = torch.ones(1)
    ml.save_state_dict(state, folder / "adapter_model.safetensors")


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (resized((48,), (64,)), r"the adapter has A \[48\], B \[64\]"),
        (resized((), ()), r"the adapter has A \[\], B \[\]"),
        (resized((0, 12), (16, 0)), r"the adapter has A \[0, 12\], B \[16, 0\]"),
        (resized((4, 12), (16, 4, 3)), r"the adapter has A \[4, 12\], B \[16, 4, 3\]"),
        (magnitude, r"B \[16, 4\], magnitude_vector \[1\]|magnitude_vector \[1\]"),
        (damaged, r"adapter_config\.json cannot be read"),
        (without_weights, r"holds no adapter: expected adapter_model\.safetensors"),
        (of_another_model, "0 of 2 adapted tensors are in the base: .* the base has 'q.weight'"),
        (half, r"does not fit the base: 'q\.weight' has shape \[16, 12\]"),
        (bias_alone, "2 of 3 adapted tensors are in the base"),
        (narrow, r"the adapter has A \[4, 5\], B \[16, 4\]"),
    ],
)
def test_what_does_not_fit_is_refused(
    spoil: Callable[[Path], None], message: str, base: State, tmp_path: Path
) -> None:
    folder = adapter(tmp_path / "a")
    spoil(folder)
    with pytest.raises(ValueError, match=message):
        ml.merge("average", [folder], pretrained=base)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"r": "4"}, "r is '4', expected an integer"),
        ({"lora_alpha": "16"}, "lora_alpha is '16', expected a finite number"),
        ({"alpha_pattern": ["q"]}, "alpha_pattern is "),
        ({"alpha_pattern": {"q": None}}, "alpha_pattern is "),
        ({"alpha_pattern": {"(q": 3}}, "missing "),
        ({"modules_to_save": "head"}, "modules_to_save is 'head', expected a list"),
    ],
)
def test_entries_of_another_kind_are_refused(
    config: dict[str, Any], message: str, base: State, tmp_path: Path
) -> None:
    folder = adapter(tmp_path / "a", **config)
    for call in (
        lambda: ml.merge("average", [folder], pretrained=base),
        lambda: ml.merge_adapters("average", [folder], tmp_path / "out"),
    ):
        with pytest.raises(ValueError, match=rf"adapter_config\.json cannot be read: .*{message}"):
            call()


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"r": 2}, "r = 2 of 'q.weight', and the adapter's factors have the rank 4"),
        ({"rank_pattern": {}}, "r = 4 of 'v.weight', and the adapter's factors have the rank 8"),
        ({"rank_pattern": {"[qv]": 8}}, "r = 8 of 'q.weight'"),
        ({"r": 8, "rank_pattern": {"q": 4}}, None),
        ({"r": None}, None),
    ],
)
def test_a_configuration_of_another_adapter(
    config: dict[str, Any], said: str | None, base: State, tmp_path: Path
) -> None:
    """Its α/r would scale the update; PEFT does not load such a folder."""
    config = {"rank_pattern": {"v": 8}, **config}
    folder = adapter(tmp_path / "a", **config)
    calls: list[Callable[[], object]] = [
        lambda: ml.merge("average", [folder], pretrained=base),
        lambda: ml.merge_adapters("average", [folder], tmp_path / "out"),
    ]
    for call in calls:
        if said is None:
            call()
        else:
            with pytest.raises(ValueError, match=re.escape(f"config.json says {said}")):
                call()


def test_a_bias_without_its_factors_is_refused(base: State, tmp_path: Path) -> None:
    folder = adapter(tmp_path / "a")
    bias_alone(folder)
    with pytest.raises(ValueError, match=r"does not fit the base: 'o\.bias' .* has bias \[16\]"):
        ml.merge("average", [folder], pretrained=base | {"o.bias": torch.zeros(16)})


def test_a_file_that_changes_meanwhile(base: State, tmp_path: Path) -> None:
    folder = adapter(tmp_path / "a")
    lazy = ml.io.open_model(folder, base)
    adapter(folder, seed=5)
    with pytest.raises(ValueError, match="changed"):
        lazy["q.weight"]


class Small(nn.Module):
    """A table, a convolution and a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table, self.conv = nn.Embedding(10, 6), nn.Conv2d(3, 6, 3)
        self.linear, self.head = nn.Linear(6, 6), nn.Linear(6, 2)


SETTINGS: dict[str, dict[str, Any]] = {
    "plain": {"target_modules": ["linear", "conv"]},
    "patterns": {
        "target_modules": ["linear", "conv", "head"],
        "rank_pattern": {"linear": 3},
        "alpha_pattern": {"head": 5, "c.nv": 1},
    },
    "scaled by the root": {"target_modules": ["linear"], "use_rslora": True},
    "directions and norms": {"target_modules": ["linear", "conv"], "use_dora": True},
    "a table and a head": {"target_modules": ["table", "linear"], "modules_to_save": ["head"]},
    "biases": {"target_modules": ["linear"], "bias": "all", "modules_to_save": ["head"]},
    "biases of the adapter": {"target_modules": ["linear"], "lora_bias": True},
}


@pytest.mark.parametrize("name", SETTINGS)
def test_as_peft_merges_them(name: str, tmp_path: Path) -> None:
    peft = pytest.importorskip("peft", reason="merges the same adapters")
    base = Small().state_dict()
    model = peft.get_peft_model(Small(), peft.LoraConfig(r=2, **SETTINGS[name]))
    for key, parameter in model.named_parameters():
        if "lora_" in key or "modules_to_save" in key:
            parameter.data += 0.1 * draw(*parameter.shape)
    model.save_pretrained(tmp_path)
    merged = ml.io.as_state(tmp_path, base=base)
    expected = model.merge_and_unload().state_dict()
    equal(dict(merged), {key: expected[key] for key in base})
    assert any(not torch.equal(merged[key], base[key]) for key in base)
