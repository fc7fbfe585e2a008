"""Adapters merged into an adapter: products by hand, PEFT's outputs, and what must be refused."""

import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import mergelib as ml

State = dict[str, Tensor]
PREFIX = "base_model.model."
SHAPES = {"q": (16, 12), "v": (16, 12), "wide": (12, 40), "head": (3, 12)}


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed + 7 * sum(shape)))


@pytest.fixture
def base(tmp_path: Path) -> State:
    state = {f"{name}.weight": draw(*shape, seed=9) for name, shape in SHAPES.items()}
    ml.save_state_dict(state, tmp_path / "base.safetensors")
    return state


def adapter(
    folder: Path, ranks: dict[str, int], seed: int, more: State | None = None, **config: Any
) -> Path:
    """Write an adapter with a rank for each module, as PEFT does."""
    state = dict(more or {})
    for name, rank in ranks.items():
        rows, columns = SHAPES[name]
        state[f"{PREFIX}{name}.lora_A.weight"] = draw(rank, columns, seed=seed)
        state[f"{PREFIX}{name}.lora_B.weight"] = draw(rows, rank, seed=seed)
    ml.save_state_dict(state, folder / "adapter_model.safetensors")
    text = {"peft_type": "LORA", "lora_alpha": 16, "rank_pattern": ranks, **config}
    (folder / "adapter_config.json").write_text(json.dumps(text))
    return folder


def read(folder: Path) -> tuple[State, dict[str, Any]]:
    return (
        ml.load_state_dict(folder / "adapter_model.safetensors"),
        json.loads((folder / "adapter_config.json").read_text()),
    )


def product(folder: Path, name: str) -> Tensor:
    """B A in float64, without its scale."""
    state, _ = read(folder)
    b, a = (state[f"{PREFIX}{name}.lora_{part}.weight"].double() for part in "BA")
    return b.flatten(1) @ a.flatten(1)


def close(actual: Tensor, expected: Tensor, tolerance: float = 1e-6) -> None:
    assert (actual - expected).norm() <= tolerance * expected.norm()


def two(folder: Path, seed: int = 2) -> tuple[Path, Path]:
    """Adapters of ranks 4 and 8, of different modules, with their own scales: 0.5, 2 and √2, 4."""
    one = adapter(folder / "one", {"q": 4, "v": 8}, 1, alpha_pattern={"q": 2})
    other = adapter(folder / "two", {"v": 8, "wide": 4}, seed, use_rslora=True, lora_alpha=4)
    return one, other


def test_weighted_sums_are_exact(tmp_path: Path) -> None:
    """Each module has its own rank and scale, and a missing module counts as zero."""
    one, other = two(tmp_path)
    q, v = 2 / 4 * product(one, "q"), 16 / 8 * product(one, "v")
    v2, wide = 4 / 8**0.5 * product(other, "v"), 4 / 4**0.5 * product(other, "wide")
    for method, options, (w, w2) in (
        ("average", {}, (1 / 2, 1 / 2)),
        ("average", {"weights": [1.0, -1.0]}, (1, -1)),
        ("task_arithmetic", {"scale": 0.7}, (0.7, 0.7)),
        ("fednova", {"steps": [100, 300]}, (1, 1 / 3)),
        ("wsm", {"decay": "linear"}, (1 / 2, 1 / 2)),
    ):
        table = ml.merge_adapters(method, [one, other], tmp_path / "out", overwrite=True, **options)
        assert table["rank"].to_dict() == {"q": 4, "v": 12, "wide": 4}, "the rank of 16 rows is 12"
        assert (table["relative error"] < 1e-7).all()
        for name, expected in {"q": w * q, "v": w * v + w2 * v2, "wide": w2 * wide}.items():
            close(product(tmp_path / "out", name), expected)
    state, config = read(tmp_path / "out")
    assert torch.equal(state[f"{PREFIX}q.lora_A.weight"], read(one)[0][f"{PREFIX}q.lora_A.weight"])
    assert (config["r"], config["lora_alpha"]) == (4, 4)
    assert config["rank_pattern"] == config["alpha_pattern"] == {"^v": 12}
    assert config["target_modules"] == ["q", "v", "wide"]


def test_factors_are_concatenated_below_full_rank(tmp_path: Path) -> None:
    folders = [adapter(tmp_path / str(i), {"q": 3}, i, lora_alpha=3) for i in range(3)]
    ml.merge_adapters("average", folders, tmp_path / "out", weights=[1.0, -2.0, 0.0])
    state, parts = read(tmp_path / "out")[0], [read(folder)[0] for folder in folders[:2]]
    for letter, signs, dim in (("A", (1, 1), 0), ("B", (1, -2), 1)):
        key = f"{PREFIX}q.lora_{letter}.weight"
        expected = torch.cat([s * p[key] for s, p in zip(signs, parts, strict=True)], dim)
        assert torch.equal(state[key], expected), "an adapter of weight 0 adds no rank"


@pytest.mark.parametrize("rank", [None, 3])
def test_weighted_sums_form_no_full_matrix(
    rank: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(ml.io.WithAdapter, "update")
    table = ml.merge_adapters("average", two(tmp_path), tmp_path / "out", rank=rank)
    assert len(table) == 3
    with pytest.raises(AttributeError, match="update"):
        ml.merge_adapters("ties", two(tmp_path), tmp_path / "full", rank=3)


def test_a_merged_adapter_is_an_adapter(base: State, tmp_path: Path) -> None:
    """Merged again, or applied to the base, it is the sum of its parts."""
    one, other = two(tmp_path)
    ml.merge_adapters("average", [one, other], tmp_path / "sum", weights=[1.0, 1.0])
    ml.merge_adapters("average", [tmp_path / "sum", other], tmp_path / "less", weights=[1.0, -1.0])
    close(product(tmp_path / "less", "v"), 2 * product(one, "v"))
    merged = ml.merge("average", [tmp_path / "sum"], pretrained=base)
    expected = ml.merge("task_arithmetic", [one, other], pretrained=base, scale=1.0)
    for key, tensor in expected.items():
        close(merged[key], tensor)


@pytest.mark.parametrize("rank", [1, 5, 11])
def test_truncation_is_the_best_of_its_rank(rank: int, tmp_path: Path) -> None:
    """Against a singular value decomposition of the full matrix."""
    one, other = two(tmp_path)
    table = ml.merge_adapters("task_arithmetic", [one, other], tmp_path / "out", rank=rank, scale=1)
    whole = 16 / 8 * product(one, "v") + 4 / 8**0.5 * product(other, "v")
    u, s, vh = torch.linalg.svd(whole, full_matrices=False)
    close(product(tmp_path / "out", "v"), (u[:, :rank] * s[:rank]) @ vh[:rank])
    expected = float((s[rank:].square().sum() / s.square().sum()).sqrt())
    assert table.loc["v", "relative error"] == pytest.approx(expected, rel=1e-5)
    assert table["rank"].to_dict() == {"q": min(4, rank), "v": rank, "wide": min(4, rank)}


def test_knots_needs_no_more_than_the_sum_of_ranks(tmp_path: Path) -> None:
    folders = [adapter(tmp_path / f"{rank}", {"v": rank}, seed=rank) for rank in (2, 3)]
    error = {
        method: ml.merge_adapters(method, folders, tmp_path / method, rank=5)["relative error"]
        for method in ("knots", "ties")
    }
    assert error["knots"].item() < 1e-5
    assert error["ties"].item() > 0.1


@pytest.mark.parametrize(
    ("method", "options"),
    [
        ("ties", {"density": 0.4}),
        ("dare", {"seed": 3}),
        ("tsv", {}),
        ("task_arithmetic+svc", {"scale": 0.9}),
        ("cart", {"rank_ratio": 0.2}),
        ("model_stock", {}),
        ("consensus", {}),
    ],
)
def test_other_rules_merge_as_full_models_do(
    method: str, options: dict[str, Any], base: State, tmp_path: Path
) -> None:
    one, other = two(tmp_path, seed=1)
    adapted = ["q.weight", "v.weight", "wide.weight"]
    full = ml.merge(method, [one, other], pretrained=base, include=adapted, **options)
    out = tmp_path / "out"
    table = ml.merge_adapters(method, [one, other], out, rank=12, **options)
    assert (table["relative error"] < 1e-5).all(), "12 is the full rank"
    changed = [key for key in adapted if not torch.allclose(full[key], base[key], atol=1e-6)]
    assert [f"{module}.weight" for module in table.index] == changed
    for key in changed:
        close(product(out, key[:-7]), (full[key] - base[key]).double(), 1e-5)
    table = ml.merge_adapters(method, [one, other], out, rank=2, overwrite=True, **options)
    for key in changed:
        update = (full[key] - base[key]).double()
        s = torch.linalg.svdvals(update)
        expected = float((s[2:].square().sum() / s.square().sum()).sqrt())
        assert table.loc[key[:-7], "relative error"] == pytest.approx(expected, rel=1e-3)
        error = (update - product(out, key[:-7])).norm() / update.norm()
        assert float(error) == pytest.approx(expected, rel=1e-3)


def test_dora_is_truncated(base: State, tmp_path: Path) -> None:
    norm = {f"{PREFIX}q.lora_magnitude_vector": draw(16).abs()}
    dora = adapter(tmp_path / "dora", {"q": 2}, 1, norm, use_dora=True)
    file = tmp_path / "base.safetensors"
    for options in ({}, {"rank": 12}, {"pretrained": file}):
        with pytest.raises(ValueError, match=r"is a DoRA adapter \('q\.weight'\).*pass rank= and"):
            ml.merge_adapters("average", [dora], tmp_path / "out", **options)
    ml.merge_adapters("average", [dora], tmp_path / "out", rank=12, pretrained=file)
    applied = ml.merge("average", [dora], pretrained=base)
    close(product(tmp_path / "out", "q"), (applied["q.weight"] - base["q.weight"]).double())


def test_modules_that_were_trained_whole(base: State, tmp_path: Path) -> None:
    """They merge as in full models; one adapter lacks the head."""
    heads = [{f"{PREFIX}head.weight": draw(3, 12, seed=i).bfloat16()} for i in range(2)]
    saved = {"modules_to_save": ["head"]}
    a, b = (adapter(tmp_path / str(i), {"q": 2}, i, heads[i], **saved) for i in range(2))
    none = adapter(tmp_path / "none", {"q": 2}, 5)
    file, out = tmp_path / "base.safetensors", tmp_path / "out"
    ml.merge_adapters("average", [a, b], out, weights=[0.75, 0.25])
    state, config = read(out)
    mean = 0.75 * heads[0][f"{PREFIX}head.weight"] + 0.25 * heads[1][f"{PREFIX}head.weight"]
    assert state[f"{PREFIX}head.weight"].dtype == torch.bfloat16
    close(state[f"{PREFIX}head.weight"].float(), mean.float(), 0.01)
    assert config["modules_to_save"] == ["head"]
    assert config["target_modules"] == ["q"]
    for method, rank in (("task_arithmetic", None), ("ties", 12)):
        options: dict[str, Any] = {"pretrained": file, "rank": rank, "overwrite": True}
        ml.merge_adapters(method, [a, b, none], out, **options)
        full = ml.merge(method, [a, b, none], pretrained=base, include=["q.weight", "head.weight"])
        close(read(out)[0][f"{PREFIX}head.weight"], full["head.weight"])
    refused: list[tuple[list[Path], dict[str, Any], str]] = [
        ([a, b], {"weights": [1, 1]}, "'head.weight' was trained whole, .* needs the pretrained"),
        ([a, none], {}, "none lacks 'head.weight', which was trained whole"),
        ([a], {"method": "task_arithmetic"}, "needs the pretrained tensor: pass the base"),
    ]
    for experts, options, message in refused:
        with pytest.raises(ValueError, match=message):
            ml.merge_adapters(adapters=experts, output="never", **{"method": "average"} | options)
    ml.merge_adapters("average", [a, b], out, weights=[1, -1], pretrained=file, overwrite=True)
    difference = heads[0][f"{PREFIX}head.weight"].float() - heads[1][f"{PREFIX}head.weight"].float()
    close(read(out)[0][f"{PREFIX}head.weight"].float(), base["head.weight"] + difference, 0.01)
    ml.merge_adapters("average", [a], out, overwrite=True)
    assert torch.equal(read(out)[0][f"{PREFIX}head.weight"], heads[0][f"{PREFIX}head.weight"])
    ml.merge_adapters("average", [a, none], out, exclude="head*", overwrite=True)
    assert not any("head" in key for key in read(out)[0])
    assert read(out)[1]["modules_to_save"] is None


def of_kind(folder: Path) -> list[Path]:
    return [adapter(folder / "a", {"q": 2}, 1, peft_type="IA3")]


def with_tokens(folder: Path) -> list[Path]:
    return [adapter(folder / "a", {"q": 2}, 1, trainable_token_indices=[3])]


def of_bases(folder: Path) -> list[Path]:
    names = ("org/model", "org/other")
    return [adapter(folder / n[-5:], {"q": 2}, 1, base_model_name_or_path=n) for n in names]


def of_tasks(folder: Path) -> list[Path]:
    return [adapter(folder / n, {"q": 2}, 1, task_type=n) for n in ("CAUSAL_LM", "SEQ_CLS")]


def with_bias(folder: Path) -> list[Path]:
    bias = {f"{PREFIX}q.lora_B.bias": torch.ones(16)}
    return [adapter(folder / "a", {"q": 2}, 1, bias, lora_bias=True)]


def of_shapes(folder: Path) -> list[Path]:
    other = {f"{PREFIX}q.lora_{n}.weight": torch.ones(s) for n, s in (("A", (2, 7)), ("B", (5, 2)))}
    return [adapter(folder / "a", {"q": 2}, 1), adapter(folder / "b", {}, 1, other)]


def trained_otherwise(folder: Path) -> list[Path]:
    whole = {f"{PREFIX}q.weight": torch.ones(16, 12)}
    return [adapter(folder / "a", {"q": 2}, 1), adapter(folder / "b", {"v": 2}, 1, whole)]


def half(folder: Path) -> list[Path]:
    return [adapter(folder / "a", {}, 1, {f"{PREFIX}q.lora_A.weight": torch.ones(2, 12)})]


def not_finite(folder: Path) -> list[Path]:
    factors = {"A": torch.full((2, 12), torch.nan), "B": torch.ones(16, 2)}
    state = {f"{PREFIX}q.lora_{name}.weight": factor for name, factor in factors.items()}
    return [adapter(folder / "a", {}, 1, state)]


def a_model(folder: Path) -> list[Path]:
    ml.save_state_dict({"q.weight": torch.ones(2, 2)}, folder / "model.safetensors")
    return [folder / "model.safetensors"]


def large(folder: Path) -> list[Path]:
    state = {
        f"{PREFIX}q.lora_{n}.weight": torch.full(s, 3e38)
        for n, s in (("A", (2, 12)), ("B", (16, 2)))
    }
    return [adapter(folder / "a", {}, 1, state)]


@pytest.mark.parametrize(
    ("make", "options", "message"),
    [
        (of_kind, {}, "of the kind IA3, not LoRA: merge it into its base"),
        (with_tokens, {}, "trainable_token_indices"),
        (of_bases, {}, "adapters of different bases .*'org/other'.* pass its file or folder as"),
        (of_tasks, {}, r"adapters of different tasks \(CAUSAL_LM, SEQ_CLS\).*pass the base"),
        (with_bias, {}, r"lora_bias \('q.bias'\).*merge into a full model"),
        (of_shapes, {}, r"'q.weight' has shape \[5, 7\], expected \[16, 12\]"),
        (trained_otherwise, {}, "or was trained whole in one of them"),
        (half, {}, "has no two factors that fit for 'q.weight', only A"),
        (not_finite, {}, r"a factor of expert 0\['q.weight'\] holds NaN in 24 of 24"),
        (a_model, {}, "is not the folder of an adapter .* full models are merged by merge_files"),
        (large, {}, "merging 'q.weight' overflowed"),
        (two, {"method": "ties"}, "ties is not a weighted sum .* pass rank= .* add up to 16"),
        (two, {"method": "average+svc"}, "average\\+svc is not a weighted sum"),
        (two, {"rank": 0}, "rank is 0, expected an integer of at least 1"),
        (two, {"weights": [0, 0]}, "nothing to write: all updates that average gives are zero"),
        (two, {"weights": [1]}, "weights has 1 entries, expected 2"),
        (two, {"include": "k*"}, "include pattern 'k\\*' matches no key"),
        (two, {"output": "one"}, "output .*one is or holds expert 0"),
        (two, {"output": "out.pt"}, "written as safetensors only"),
        (two, {"output": "full"}, "is a folder that no merge wrote"),
    ],
)
def test_refusals(
    make: Callable[[Path], list[Path]], options: dict[str, Any], message: str, tmp_path: Path
) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "notes.txt").write_text("mine")
    options = {"method": "average", "output": "out", "overwrite": True, **options}
    options["output"] = tmp_path / options["output"]
    with pytest.raises(ValueError, match=message):
        ml.merge_adapters(adapters=make(tmp_path), **options)
    assert not (tmp_path / "out").exists()


def test_a_missing_folder_and_an_unknown_hyperparameter(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="no such file or folder"):
        ml.merge_adapters("average", [tmp_path / "absent"], tmp_path / "out")
    with pytest.raises(TypeError, match="average has no hyperparameter 'density'"):
        ml.merge_adapters("average", two(tmp_path), tmp_path / "out", density=0.5)


def test_outputs(tmp_path: Path) -> None:
    """A dtype, provenance, the tokenizer, and an output that exists."""
    one, other = two(tmp_path)
    (one / "tokenizer_config.json").write_text("{}")
    out = tmp_path / "out"
    table = ml.merge_adapters("average", {"a": one, "b": other}, out, dtype="bfloat16")
    assert {tensor.dtype for tensor in read(out)[0].values()} == {torch.bfloat16}
    assert 1e-4 < table["relative error"].max() < 1e-2, "the rounding is measured too"
    assert {file.name for file in out.iterdir()} == {
        "README.md",
        "adapter_config.json",
        "adapter_model.safetensors",
        "tokenizer_config.json",
    }
    notes = ml.Checkpoint(out / "adapter_model.safetensors").metadata
    assert json.loads(notes["mergelib.files"]) == {"a": "one", "b": "two"}
    with pytest.raises(ValueError, match="exists; pass overwrite=True"):
        ml.merge_adapters("average", [one], out)


def test_a_search_notices_a_change_of_the_base_that_adapters_name(tmp_path: Path) -> None:
    folder = tmp_path / "named"
    one = adapter(tmp_path / "a", {"q": 2}, 1, base_model_name_or_path=str(folder))

    def write(value: float) -> float:
        weights = {f"{name}.weight": draw(*shape) + value for name, shape in SHAPES.items()}
        ml.save_state_dict(weights, folder / "model.safetensors")
        return value

    write(0.0)
    how: dict[str, Any] = {"grid": {"scale": [0.3, 0.5]}}
    ml.search("task_arithmetic", [one], score=lambda _: 0.0, **how)
    with pytest.raises(ValueError, match="changed"):
        ml.search("task_arithmetic", [one], score=lambda _: write(1.0), **how)


def test_bases_are_compared_and_named(base: State, tmp_path: Path) -> None:
    place = str(tmp_path / "base.safetensors")
    one = adapter(tmp_path / "a", {"q": 2}, 1, base_model_name_or_path="org/model")
    ml.merge_adapters("average", [one], tmp_path / "out", pretrained=place)
    assert read(tmp_path / "out")[1]["base_model_name_or_path"] == "org/model"
    other = adapter(tmp_path / "b", {"q": 2}, 1, base_model_name_or_path="./model")
    ml.merge_adapters("average", [one, other], tmp_path / "two", pretrained=place)
    assert read(tmp_path / "two")[1]["base_model_name_or_path"] == place
    unfit = {name: tensor for name, tensor in base.items() if name != "q.weight"}
    ml.save_state_dict(unfit, tmp_path / "other.safetensors")
    with pytest.raises(ValueError, match="0 of 1 adapted tensors are in the base"):
        ml.merge_adapters("average", [one], "never", pretrained=tmp_path / "other.safetensors")


def test_a_bottleneck_without_biases_is_merged(tmp_path: Path) -> None:
    """Its updates have the shapes of an adapter's factors."""
    factors = {}
    for name in ("l.0.up", "l.0.down", "l.1.up", "l.1.down"):
        rows, columns = (64, 16) if name.endswith("up") else (16, 64)
        factors[f"{PREFIX}{name}.lora_A.weight"] = draw(2, columns)
        factors[f"{PREFIX}{name}.lora_B.weight"] = draw(rows, 2)
    folders = [adapter(tmp_path / n, {}, 1, factors, r=2) for n in "ab"]
    for method, rank in (("average", None), ("ties", 2)):
        table = ml.merge_adapters(method, folders, tmp_path / method, rank=rank)
        assert len(table) == 4


# ------------------------------------------------------------------------------------ against PEFT


class Small(nn.Module):
    """A table, a convolution and two linear layers."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table, self.conv = nn.Embedding(10, 8), nn.Conv2d(1, 6, 3)
        self.linear, self.head = nn.Linear(36, 8), nn.Linear(8, 3)

    def forward(self, tokens: Tensor) -> Tensor:
        hidden = self.conv(self.table(tokens)[:, None]).flatten(1)[:, :36]
        result: Tensor = self.head(self.linear(hidden))
        return result


TOKENS = torch.randint(10, (5, 8), generator=torch.Generator().manual_seed(1))


Make = Callable[[], Any]


def trained(make: Make, folder: Path, seed: int, **settings: Any) -> Path:
    """Save an adapter with random factors, as after training."""
    peft = pytest.importorskip("peft", reason="writes and reads the same adapters")
    model = peft.get_peft_model(make(), peft.LoraConfig(**settings))
    for key, parameter in model.named_parameters():
        if "lora_" in key or "modules_to_save" in key:
            parameter.data += 0.1 * draw(*parameter.shape, seed=seed)
    model.save_pretrained(folder)
    return folder


def outputs(make: Make, folder: Path | None = None) -> Tensor:
    """The outputs of a model, with an adapter that PEFT loads."""
    peft = pytest.importorskip("peft")
    model = make() if folder is None else peft.PeftModel.from_pretrained(make(), folder)
    result: Any = model.eval()(TOKENS)
    logits: Tensor = getattr(result, "logits", result).detach()
    return logits


def with_weights(make: Make, state: State) -> Make:
    def made() -> nn.Module:
        model: nn.Module = make()
        model.load_state_dict(state)
        return model

    return made


def test_peft_computes_the_sum(tmp_path: Path) -> None:
    """A table, a convolution, a linear layer and a head, against the weights applied by hand."""
    settings = {"rank_pattern": {"conv": 3}, "alpha_pattern": {"linear": 5}}
    one = trained(
        Small,
        tmp_path / "a",
        1,
        r=2,
        target_modules=["table", "conv", "linear"],
        modules_to_save=["head"],
        **settings,
    )
    other = trained(
        Small,
        tmp_path / "b",
        2,
        r=4,
        target_modules=["linear", "conv"],
        use_rslora=True,
        modules_to_save=["head"],
    )
    out = tmp_path / "out"
    ml.merge_adapters("average", [one, other], out, weights=[1.5, -0.5])
    base = Small().state_dict()
    first, second = (ml.io.as_state(folder, base=base) for folder in (one, other))
    weights = {
        key: base[key] + 1.5 * (first[key] - base[key]) - 0.5 * (second[key] - base[key])
        for key in base
    }
    expected = outputs(with_weights(Small, weights))
    assert torch.allclose(outputs(Small, out), expected, atol=1e-5)
    assert not torch.allclose(outputs(Small), expected, atol=1e-2)
    trained_keys = [key for key in base if not torch.equal(first[key], base[key])]
    weights = ml.merge("ties", [first, second], pretrained=base, include=trained_keys)
    ml.save_state_dict(base, tmp_path / "base.safetensors")
    file = tmp_path / "base.safetensors"
    ml.merge_adapters("ties", [one, other], out, pretrained=file, rank=36, overwrite=True)
    assert torch.allclose(outputs(Small, out), outputs(with_weights(Small, weights)), atol=1e-5)


def llama() -> Any:
    transformers = pytest.importorskip("transformers")
    sizes = {"num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": 2}
    torch.manual_seed(0)
    config = transformers.LlamaConfig(vocab_size=10, hidden_size=32, intermediate_size=48, **sizes)
    return transformers.LlamaForCausalLM(config)


def gpt() -> Any:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    sizes = {"n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 16}
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(vocab_size=10, **sizes))


CASES: dict[str, tuple[Make, dict[str, Any], dict[str, Any]]] = {
    "ranks and patterns": (
        llama,
        {"r": 4, "lora_alpha": 16, "target_modules": ["q_proj", "v_proj"],
         "rank_pattern": {"layers.1.self_attn.v_proj": 8}, "alpha_pattern": {"q_proj": 2}},
        {"r": 8, "target_modules": ["v_proj", "up_proj"], "use_rslora": True},
    ),
    "columns per output": (
        gpt,
        {"r": 2, "target_modules": ["c_attn"], "fan_in_fan_out": True},
        {"r": 3, "target_modules": ["c_attn", "c_fc"], "fan_in_fan_out": True},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_peft_computes_the_difference(name: str, tmp_path: Path) -> None:
    """Weights 1 and −1, on different modules, have no cross terms."""
    make, *settings = CASES[name]
    folders = [
        trained(make, tmp_path / str(i), i, task_type="CAUSAL_LM", **kinds)
        for i, kinds in enumerate(settings)
    ]
    ml.merge_adapters("average", folders, tmp_path / "out", weights=[1.0, -1.0])
    base = make().state_dict()
    one, other = (ml.io.as_state(folder, base=base) for folder in folders)
    weights = {key: base[key] + (one[key] - base[key]) - (other[key] - base[key]) for key in base}
    expected = outputs(with_weights(make, weights))
    assert torch.allclose(outputs(make, tmp_path / "out"), expected, atol=1e-5)
    assert not torch.allclose(outputs(make), expected, atol=1e-2)
    adapted = [key for key in base if not torch.equal(weights[key], base[key])]
    ml.merge_adapters("ties", folders, tmp_path / "ties", rank=48)
    weights = ml.merge("ties", folders, pretrained=base, include=adapted)
    expected = outputs(with_weights(make, weights))
    assert torch.allclose(outputs(make, tmp_path / "ties"), expected, atol=1e-5)


def test_one_adapter_comes_back(tmp_path: Path) -> None:
    """Also one whose scale is α/√r, which PEFT's own function does not give back."""
    make, _, settings = CASES["ranks and patterns"]
    folder = trained(make, tmp_path / "a", 1, task_type="CAUSAL_LM", **settings)
    ml.merge_adapters("average", [folder], tmp_path / "out")
    assert torch.allclose(outputs(make, tmp_path / "out"), outputs(make, folder), atol=1e-6)
    assert not torch.allclose(outputs(make), outputs(make, folder), atol=1e-2)


def test_heads_of_another_class_of_the_model(tmp_path: Path) -> None:
    """An adapter of the inner model and one of the model with its head name modules differently."""
    base = llama().state_dict()
    ml.save_state_dict(base, tmp_path / "base.safetensors")
    settings = {"r": 2, "target_modules": ["q_proj"]}
    inner = trained(lambda: llama().model, tmp_path / "inner", 1, **settings)
    outer = trained(llama, tmp_path / "outer", 2, **settings)
    for order in ([inner, outer], [outer, inner]):
        out = tmp_path / order[0].name / "out"
        ml.merge_adapters("average", order, out, pretrained=tmp_path / "base.safetensors")
        merged = ml.merge("average", order, pretrained=base)
        assert torch.allclose(outputs(llama, out), outputs(with_weights(llama, merged)), atol=1e-5)


def test_a_table_that_peft_saves_beside_its_factors(tmp_path: Path) -> None:
    """It does so for every table of tokens. Equal ones are kept, others refused."""
    settings = {"r": 2, "target_modules": ["embed_tokens", "q_proj"], "task_type": "CAUSAL_LM"}
    folders = [trained(llama, tmp_path / str(i), i, **settings) for i in range(2)]
    key = f"{PREFIX}model.embed_tokens.base_layer.weight"
    assert key in read(folders[0])[0]
    out = tmp_path / "out"
    ml.merge_adapters("average", folders, out)
    assert torch.equal(read(out)[0][key], read(folders[0])[0][key])
    merged = ml.merge("average", folders, pretrained=llama().state_dict())
    assert torch.allclose(outputs(llama, out), outputs(with_weights(llama, merged)), atol=1e-5)
    state = read(folders[1])[0]
    ml.save_state_dict(state | {key: state[key] + 1}, folders[1] / "adapter_model.safetensors")
    with pytest.raises(ValueError, match=r"stores a table '.*embed_tokens.*' that differs"):
        ml.merge_adapters("average", folders, out, overwrite=True)


def bert() -> Any:
    transformers = pytest.importorskip("transformers")
    sizes = {"num_attention_heads": 2, "num_hidden_layers": 1, "max_position_embeddings": 16}
    torch.manual_seed(0)
    config = transformers.BertConfig(vocab_size=10, hidden_size=16, intermediate_size=16, **sizes)
    return transformers.BertForSequenceClassification(config)


@pytest.mark.parametrize("exclude", [None, "classifier.*"])
def test_heads_of_classifiers(exclude: str | None, tmp_path: Path) -> None:
    """PEFT requires the head of an adapter for classification, which may be left out here."""
    settings = {"r": 2, "target_modules": ["query"], "task_type": "SEQ_CLS"}
    folders = [trained(bert, tmp_path / str(i), i, **settings) for i in range(2)]
    base = bert().state_dict()
    ml.merge_adapters("average", folders, tmp_path / "out", exclude=exclude)
    merged = ml.merge("average", folders, pretrained=base, exclude=exclude)
    expected = outputs(with_weights(bert, merged))
    assert torch.allclose(outputs(bert, tmp_path / "out"), expected, atol=1e-6)
    assert torch.equal(merged["classifier.bias"], base["classifier.bias"]) is bool(exclude)


@pytest.mark.parametrize("count", [2, 3])
def test_an_adapter_that_is_passed_twice_is_warned_of(
    count: int, base: State, tmp_path: Path
) -> None:
    name = next(iter(SHAPES))
    one, other = (adapter(tmp_path / str(i), {name: 2}, i) for i in range(2))
    named = {f"copy {i}": one for i in range(count)} | {"other": other}
    listed = " and ".join([*named][:-1])
    match = f"^{listed} are one adapter, which therefore counts {count} times: pass each adapter"
    with pytest.warns(UserWarning, match=match):
        ml.merge_adapters("average", named, tmp_path / "out")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ml.merge_adapters("average", [one, other], tmp_path / "apart")
