"""Hugging Face folders, grown and loaded again; what does not fit is named and nothing written."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import mergelib as ml
from mergelib.io import Checkpoint
from tests.library.align.families import bert, gpt2
from tests.library.sail.families import perturbed

transformers = pytest.importorskip("transformers")
IDS = torch.arange(1, 25).view(2, 12)


def changed(model: Any, **options: Any) -> Any:
    return type(model.config)(**{**model.config.to_dict(), **options})


def saved(model: Any, folder: Path) -> Path:
    model.save_pretrained(folder)
    (folder / "vocab.txt").write_text("words\n")
    return folder


def read(model: Any, folder: Path) -> Any:
    again, report = type(model).from_pretrained(folder, output_loading_info=True)
    assert not any(report[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    return again.eval()


@pytest.mark.parametrize("given", ["object", "file", "folder"])
def test_gpt2(tmp_path: Path, given: str) -> None:
    model: Any = perturbed(gpt2("GPT2LMHeadModel")).float()
    source = saved(model, tmp_path / "source")
    config = target = changed(model, n_embd=48, n_layer=3, n_head=6)
    if given != "object":
        config.save_pretrained(tmp_path / "larger")
        target = tmp_path / "larger" / ("config.json" if given == "file" else "")
    out = ml.grow_files(source, target, tmp_path / "out", width="mean", seed=4)
    torch.manual_seed(4)
    large = transformers.GPT2LMHeadModel(config)
    expected = ml.grow(model, large, width="mean")
    grown = read(model, out)
    assert all(torch.equal(grown.state_dict()[key], value) for key, value in expected.items())
    assert (grown(IDS).logits - model(IDS).logits).abs().max() < 1e-4
    assert (out / "vocab.txt").read_text() == "words\n"
    assert Checkpoint(out).metadata["mergelib.method"] == "grow"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_bert(tmp_path: Path, dtype: torch.dtype) -> None:
    model: Any = perturbed(bert("BertForMaskedLM")).to(dtype)
    source = saved(model, tmp_path / "source")
    config = changed(model, hidden_size=64, intermediate_size=96)
    before = torch.random.get_rng_state()
    out = ml.grow_files(source, config, tmp_path / "out", noise=0.1, seed=2)
    assert torch.equal(torch.random.get_rng_state(), before)
    generator = torch.Generator().manual_seed(2)
    expected = ml.grow(model, type(model)(config), noise=0.1, generator=generator)
    state = Checkpoint(out).load()
    assert all(torch.equal(state[key], value) for key, value in expected.items())
    if dtype == torch.float32:
        assert (read(model, out)(IDS).logits - model(IDS).logits).abs().max() < 1e-4


def test_an_output_in_the_way(tmp_path: Path) -> None:
    model: Any = gpt2("GPT2Model")
    source = saved(model, tmp_path / "source")
    config = changed(model, n_layer=3)
    out = ml.grow_files(source, config, tmp_path / "out")
    with pytest.raises(ValueError, match="exists; pass overwrite=True"):
        ml.grow_files(source, config, out)
    ml.grow_files(source, changed(model, n_layer=4), out, overwrite=True)
    assert read(model, out).config.n_layer == 4
    with pytest.raises(ValueError, match="is or holds source"):
        ml.grow_files(source, config, source, overwrite=True)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"vocab_size": 60}, "50 entries in the source and 60.*fixed"),
        ({"n_positions": 32}, "16 entries in the source and 32.*fixed"),
        (
            {"n_embd": 64, "n_head": 16},
            "keys' has 4 units in the target, fewer",
        ),
        ({"n_embd": 36, "n_head": 8}, "divisible"),
        ({"n_embd": 48, "n_head": 6}, "no whole multiple"),
        ({"activation_function": "relu"}, "activation_function is 'gelu_new' in the source and"),
        ({"tie_word_embeddings": False}, "tie_word_embeddings is True in the source and False"),
        ({"n_layer": 1}, "has 1 layers in the target, fewer"),
    ],
)
def test_configurations_that_do_not_fit(
    tmp_path: Path, options: dict[str, Any], message: str
) -> None:
    model: Any = gpt2("GPT2LMHeadModel")
    source = saved(model, tmp_path / "source")
    with pytest.raises(ValueError, match=message):
        ml.grow_files(source, changed(model, **options), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_other_families_and_no_configuration(tmp_path: Path) -> None:
    source = saved(gpt2("GPT2Model"), tmp_path / "source")
    other: Any = bert("BertModel")
    with pytest.raises(ValueError, match="model_type is 'gpt2' in the source"):
        ml.grow_files(source, other.config, tmp_path / "out")
    with pytest.raises(FileNotFoundError, match="there is no configuration at"):
        ml.grow_files(source, tmp_path / "nowhere.json", tmp_path / "out")
    config = transformers.DistilBertConfig(vocab_size=20, dim=16, n_layers=1, n_heads=2)
    folder = saved(transformers.DistilBertModel(config), tmp_path / "distilled")
    with pytest.raises(ValueError, match=r"DistilBert.*which has no description"):
        ml.grow_files(folder, config, tmp_path / "out")


def test_code_of_a_folder_is_not_run(tmp_path: Path) -> None:
    """Neither what ``auto_map`` names, nor anything in transformers that is not a model."""
    model: Any = gpt2("GPT2LMHeadModel")
    source = saved(model, tmp_path / "source")
    (source / "own.py").write_text(f"import os\nos.mkdir({str(tmp_path / 'TRAP')!r})\n")
    file = source / "config.json"
    entries = json.loads(file.read_text())
    own = {"auto_map": {"AutoConfig": "own.Config", "AutoModelForCausalLM": "own.Model"}}
    file.write_text(json.dumps({**entries, **own}))
    ml.grow_files(source, source, tmp_path / "out")
    file.write_text(json.dumps({**entries, **own, "model_type": "own"}))
    with pytest.raises(ValueError, match="is not a configuration of transformers"):
        ml.grow_files(source, source, tmp_path / "other")
    for name in ("pipeline", "AutoModel", "GPT2Config", "own.Model"):
        file.write_text(json.dumps({**entries, "architectures": [name]}))
        with pytest.raises(ValueError, match=f"architectures are .*{name}.*, expected one model"):
            ml.grow_files(source, source, tmp_path / "other")
    assert not (tmp_path / "TRAP").exists()
