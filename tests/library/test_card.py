"""Model cards: their recipes run again to the same bits, and they say where a model comes from."""

import inspect
import json
import re
from collections.abc import Sequence
from hashlib import sha256
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
import torch

import mergelib as ml
from mergelib import card, recipes
from mergelib.hashing import sha256_of
from mergelib.registry import get_method, method_names
from mergelib.statedict import is_kernel
from tests.library.streaming.cases import assert_same

yaml = pytest.importorskip("yaml", reason="recipes need PyYAML, which a bare installation lacks")


@pytest.fixture
def models(tmp_path: Path) -> list[Path]:
    """Folders of a base and two experts, whose names need quotes in YAML."""
    folders = [tmp_path / "the models" / name for name in ("base: é", "a", "b #2")]
    for seed, folder in enumerate(folders):
        generator = torch.Generator().manual_seed(seed)
        state = {f"layers.{i}.w.weight": torch.randn(6, 5, generator=generator) for i in range(3)}
        state["conv"] = torch.randn(4, 3, 2, 2, generator=generator)
        ml.save_state_dict(state, folder / "model.safetensors")
        (folder / "config.json").write_text('{"model_type": "tiny"}')
    return folders


def front(folder: Path) -> dict[str, Any]:
    text = (folder / "README.md").read_text("utf-8")
    content: dict[str, Any] = yaml.safe_load(text.split("---\n")[1])
    return content


def again(folder: Path) -> Path:
    """Run the card's recipe, and compare the bits of the weights."""
    result = ml.run_recipe(folder / "README.md", folder.parent / f"{folder.name} again")
    name = "adapter_model.safetensors" if (folder / "adapter_config.json").exists() else ""
    one, other = (ml.load_state_dict(place / name if name else place) for place in (folder, result))
    assert_same(one, other)
    assert not (result / "recipe.yml").exists()
    text = (folder / "README.md").read_text("utf-8")
    text = text.replace(f"\n# {folder.name}\n", f"\n# {folder.name} again\n")
    assert (result / "README.md").read_text("utf-8") == text
    return result


OPTIONS: dict[str, dict[str, Any]] = {"fednova": {"steps": [1, 2]}}


@pytest.mark.parametrize("method", method_names())
def test_a_recipe_runs_again_to_the_same_bits(
    method: str, models: list[Path], tmp_path: Path
) -> None:
    base = models[0]
    out = ml.merge_files(
        method, models[1:], tmp_path / "o", pretrained=base, **OPTIONS.get(method, {})
    )
    again(out)
    (document,) = recipes.read_recipe(out / "README.md")
    written = {
        name: [*v] if isinstance(v, tuple) else v for name, v in document.hyperparameters.items()
    }
    assert written == {**get_method(method).hyperparameters, **OPTIONS.get(method, {})}


CHANGED: dict[str, Any] = {
    "dtype": torch.bfloat16,
    "include": ["layers.*", "conv"],
    "exclude": "*.2.*",
    "missing": "base",
    "nan": "base",
    "max_shard_size": "100B",
    "dequantise": True,
    "is_matrix": is_kernel,
    "rename": {"module.*": "*"},
}


def test_every_option_is_in_the_recipe(models: list[Path], tmp_path: Path) -> None:
    """A new option of `merge_files` belongs into cards and recipes, too."""
    elsewhere = {"method", "experts", "output", "pretrained", "device", "overwrite"}
    elsewhere |= {"hyperparameters", "tokenizer", "chat_template"}  # the latter two below
    options = {*inspect.signature(ml.merge_files).parameters} - elsewhere
    assert options == CHANGED.keys()
    prefixed = {f"module.{key}": value for key, value in ml.load_state_dict(models[1]).items()}
    ml.save_state_dict(prefixed, models[1] / "model.safetensors")
    out = ml.merge_files(
        "tsv",
        {"one": models[1], "two": models[2]},
        tmp_path / "o",
        pretrained=models[0],
        scale=1e-5,
        **CHANGED,
    )
    text = (out / "README.md").read_text("utf-8")
    assert all(f"\n{name}: " in text for name in CHANGED)
    assert "scale: 1.0e-05" in text, "which YAML reads as a number"
    result = again(out)
    assert {file.name for file in out.iterdir()} == {file.name for file in result.iterdir()}
    plain = ml.merge_files("tsv", models[2:], tmp_path / "plain", pretrained=models[0])
    assert not any(f"\n{name}: " in (plain / "README.md").read_text("utf-8") for name in CHANGED)


def test_another_predicate_is_named_and_not_run(models: list[Path], tmp_path: Path) -> None:
    def own(key: str, tensor: torch.Tensor) -> bool:
        return False

    out = ml.merge_files("tsv", models[1:], tmp_path / "o", pretrained=models[0], is_matrix=own)
    with pytest.raises(ValueError, match=r"README.md, line 20: is_matrix is 'own', expected is_ke"):
        again(out)


def test_values_per_expert_and_layer(models: list[Path], tmp_path: Path) -> None:
    scale = [{"*.0.*": 0.25, "over_layers": [1e-7, 1], "*": 0.5}, 1e22]
    out = ml.merge_files(
        "task_arithmetic", models[1:], tmp_path / "o", pretrained=models[0], scale=scale
    )
    again(out)
    out = ml.merge_files("average", models[1:], tmp_path / "w", weights=torch.tensor([0.1, 0.9]))
    again(out)


def test_what_it_says(models: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cards = ["license: mit", 'license:\n- "apache-2.0"', "tags: [license: gpl]"]
    for folder, text in zip(models, cards, strict=True):
        (folder / "README.md").write_text(
            f"---\n{text}\n---\n# What describes one input\nlicense: x\n"
        )
    for name in ("recipe.yml", "mergekit_config.yml"):
        (models[0] / name).write_text("of the base")
    monkeypatch.setattr(card, "metadata", lambda _: Addresses())
    out = ml.merge_files(
        "low_rank_task_arithmetic", models[1:], tmp_path / "o", pretrained=models[0]
    )
    assert {file.name for file in out.iterdir()} == {
        "README.md",
        "config.json",
        "model.safetensors",
    }
    text = (out / "README.md").read_text("utf-8")
    assert front(out) == {
        "base_model": ["base: é", "a", "b #2"],
        "base_model_relation": "merge",
        "library_name": "transformers",
        "tags": ["merge", "mergelib"],
    }
    assert "describes one input" not in text
    assert f"`low_rank_task_arithmetic` of mergelib\n{ml.__version__}" in text
    assert "**The licences of the inputs differ** (apache-2.0, mit)" in text
    for folder, licence in zip(models, ("mit", "apache-2.0", "not stated"), strict=True):
        digest = sha256_of(folder / "model.safetensors")
        assert f"| `the models/{folder.name}` | `{digest}` | {licence} |" in text.replace("../", "")
    for folder in models:
        (folder / "README.md").write_text("---\r\nlicense: 'mit' # ours\r\n---\r\n")
    addresses = Addresses("Source, https://x.io/source", "Documentation, https://x.io/")
    monkeypatch.setattr(card, "metadata", {"mergelib-book": addresses}.__getitem__)
    out = ml.merge_files(
        "low_rank_task_arithmetic", models[1:], tmp_path / "p", pretrained=models[0]
    )
    text = (out / "README.md").read_text("utf-8")
    assert front(out)["license"] == "mit"
    assert "differ" not in text
    page = "https://x.io/book/methods-map.html#method-low-rank-task-arithmetic"
    assert f"[`low_rank_task_arithmetic`]({page})" in text
    anchors = (Path(ml.__file__).parents[1] / "book" / "methods-map.md").read_text("utf-8")
    assert f"({page.partition('#')[2]})=" in anchors


class Addresses:
    """The metadata of a package that was built with these addresses, or with none."""

    def __init__(self, *addresses: str) -> None:
        self.addresses = addresses

    def get_all(self, field: str) -> list[str] | None:
        assert field == "Project-URL"
        return list(self.addresses) or None


def test_a_package_that_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> None:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(card, "metadata", absent)
    assert card._page("ties") == "`ties`"


def test_names_from_the_hubs_cache_and_of_libraries(tmp_path: Path) -> None:
    folder = tmp_path / "hub" / "models--org--small-model" / "snapshots" / "0123"
    ml.save_state_dict({"w": torch.ones(2)}, folder / "model.safetensors")
    for name, config in {
        "diffusers": {"_class_name": "UNet2DModel", "_diffusers_version": "0.1"},
        "timm": {"architecture": "resnet", "pretrained_cfg": {}},
        None: {},
    }.items():
        (folder / "config.json").write_text(json.dumps(config))
        out = ml.merge_files("average", [folder], tmp_path / f"out {name}")
        assert front(out)["base_model"] == ["org/small-model"]
        assert front(out).get("library_name") == name
    (folder / "modules.json").write_text("[]")
    out = ml.merge_files("average", [folder / "model.safetensors"], tmp_path / "out")
    assert front(out)["library_name"] == "sentence-transformers"
    assert front(out)["base_model"] == ["org/small-model"]


def test_a_file_has_metadata_alone(models: list[Path], tmp_path: Path) -> None:
    ml.merge_files("average", models[1:], tmp_path / "o" / "merged.safetensors")
    notes = ml.Checkpoint(tmp_path / "o" / "merged.safetensors").metadata
    assert [file.name for file in (tmp_path / "o").iterdir()] == ["merged.safetensors"]
    assert notes["mergelib.method"] == "average"
    assert json.loads(notes["mergelib.files"]) == {"expert 0": "a", "expert 1": "b #2"}


def test_steps_of_a_recipe(models: list[Path], tmp_path: Path) -> None:
    """In mergekit's words: the card has all steps with what they were run with."""
    text = """
name: both
merge_method: linear
models:
  - {model: "the models/a", parameters: {weight: 1}}
  - {model: "the models/b #2", parameters: {weight: 3}}
---
merge_method: task_arithmetic
base_model: "the models/base: é"
dtype: bfloat16
models:
  - {model: both, parameters: {weight: [0, 0.5]}}
  - {model: "the models/a", parameters: {weight: 0.5}}
"""
    (tmp_path / "recipe.yml").write_text(text, encoding="utf-8")
    out = ml.run_recipe(tmp_path / "recipe.yml", tmp_path / "o")
    found = (out / "README.md").read_text("utf-8")
    assert found.count("merge_method: mergelib.") == 2
    assert '- model: "both"' in found
    assert ".recipe" not in found
    assert front(out)["base_model"] == ["a", "b #2", "base: é"]
    again(out)


PEFT = ("adapter_config.json", "adapter_model.safetensors")


def hashed(folder: Path, names: Sequence[str]) -> str:
    """The hash of what ``sha256sum`` prints of an adapter's files, and of its base beside it."""
    files = [folder / name if "adapter" in name else folder.parent / name for name in names]
    lines = [f"{sha256_of(file)}  {file.name}\n" for file in sorted(files)]
    return sha256("".join(lines).encode()).hexdigest()


@pytest.mark.parametrize(("method", "rank"), [("average", None), ("ties", 2)])
def test_adapters(method: str, rank: int | None, tmp_path: Path) -> None:
    for seed, name in enumerate("ab"):
        generator = torch.Generator().manual_seed(seed)
        state = {"base_model.model.q.lora_A.weight": torch.randn(2, 5, generator=generator)}
        state["base_model.model.q.lora_B.weight"] = torch.randn(4, 2, generator=generator)
        ml.save_state_dict(state, tmp_path / name / "adapter_model.safetensors")
        config = {"peft_type": "LORA", "r": 2, "base_model_name_or_path": "org/small"}
        (tmp_path / name / "adapter_config.json").write_text(json.dumps(config))
        (tmp_path / name / "README.md").write_text("---\nlicense: mit\n---\n")
    out = tmp_path / "o"
    ml.merge_adapters(method, [tmp_path / "a", tmp_path / "b"], out, rank=rank)
    again(out)
    about = front(out)
    assert (about["base_model"], about["library_name"]) == (["org/small"], "peft")
    assert about["license"] == "mit"
    assert ("\nrank: 2" in (out / "README.md").read_text()) == (rank is not None)

    ml.save_state_dict({"q.weight": torch.ones(4, 5)}, tmp_path / "base.safetensors")
    models = [f"{tmp_path / 'base.safetensors'}+{tmp_path / name}" for name in "ab"]
    whole = ml.merge_files("average", models, tmp_path / "whole")
    again(whole)
    assert front(whole)["base_model"] == ["base", "a", "b"]
    for result, names in ((out, PEFT), (whole, (*PEFT, "base.safetensors"))):
        digests = [hashed(tmp_path / name, names) for name in "ab"]
        assert all(f"| `{digest}` |" in (result / "README.md").read_text() for digest in digests)
    config["lora_alpha"] = 3
    (tmp_path / "a" / "adapter_config.json").write_text(json.dumps(config))
    other = ml.merge_files("average", models, tmp_path / "other") / "README.md"
    assert hashed(tmp_path / "a", (*PEFT, "base.safetensors")) in other.read_text()
    assert digests[0] not in other.read_text(), "of another alpha"
    assert digests[1] in other.read_text(), "of the same"
    recipe = (
        'merge_method: linear\nmodels:\n  - {model: "base.safetensors+a", parameters: {weight: 1}}'
    )
    (tmp_path / "recipe.yml").write_text(recipe)
    again(ml.run_recipe(tmp_path / "recipe.yml", tmp_path / "run"))


def test_the_hub_reads_it(models: list[Path], tmp_path: Path) -> None:
    hub = pytest.importorskip("huggingface_hub")
    out = ml.merge_files("ties", models[1:], tmp_path / "o", pretrained=models[0])
    read = hub.ModelCard.load(out / "README.md").data
    assert (read.base_model, read.tags) == (["base: é", "a", "b #2"], ["merge", "mergelib"])


def test_a_card_without_a_recipe(tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text("# A model\n")
    with pytest.raises(ValueError, match=re.escape("README.md is empty, expected a merge")):
        ml.run_recipe(tmp_path / "README.md", tmp_path / "o")
