"""Hugging Face models whose heads differ, merged as folders and loaded again."""

import ast
from pathlib import Path
from typing import Any

import pytest
import torch

from mergelib.io import Checkpoint, load_state_dict, save_state_dict
from mergelib.merging import merge
from mergelib.streaming import merge_files
from tests.library.streaming.cases import assert_same

transformers = pytest.importorskip("transformers")


def save_classifier(folder: Path, labels: int, seed: int) -> Path:
    torch.manual_seed(seed)
    config = transformers.BertConfig(
        vocab_size=30,
        hidden_size=8,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        max_position_embeddings=12,
        num_labels=labels,
    )
    transformers.BertForSequenceClassification(config).save_pretrained(folder)
    return folder


@pytest.fixture
def folders(tmp_path: Path) -> list[Path]:
    """A pretrained model of two labels, and experts of two and three."""
    labels = {"base": 2, "sst2": 2, "mnli": 3}
    return [save_classifier(tmp_path / n, count, i) for i, (n, count) in enumerate(labels.items())]


@pytest.mark.parametrize("options", [{"missing": "base"}, {"include": "bert.*"}])
def test_classifiers_of_two_and_three_labels(
    tmp_path: Path, folders: list[Path], options: dict[str, Any]
) -> None:
    base, *experts = folders
    with pytest.raises(ValueError, match=r"expert 1\['classifier\.bias'\] has shape \(3,\)"):
        merge_files("task_arithmetic", experts, tmp_path / "out", pretrained=base)
    out = merge_files("task_arithmetic", experts, tmp_path / "out", pretrained=base, **options)
    model, report = transformers.BertForSequenceClassification.from_pretrained(
        out, output_loading_info=True
    )
    assert not any(report[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    merged, states = model.state_dict(), [load_state_dict(folder) for folder in folders]
    assert torch.equal(merged["classifier.weight"], states[0]["classifier.weight"])
    key = "bert.encoder.layer.0.attention.self.query.weight"
    origin, one, two = (state[key] for state in states)
    torch.testing.assert_close(merged[key], origin + 0.3 * (one - origin + two - origin))
    modules = [
        transformers.BertForSequenceClassification.from_pretrained(folder) for folder in folders
    ]
    assert_same(merge("task_arithmetic", modules[1:], pretrained=modules[0], **options), merged)


def test_an_encoder_alone(tmp_path: Path, folders: list[Path]) -> None:
    """Of experts with heads and no pretrained classifier, the encoder under its own head."""
    out = merge_files("average", folders[1:], tmp_path / "out", missing="skip")
    assert {key.partition(".")[0] for key in Checkpoint(out)} == {"bert"}
    model = transformers.BertModel.from_pretrained(out)
    expected = merge("average", folders[1:], include="bert.*")
    assert_same(
        {f"bert.{key}": value for key, value in model.state_dict().items()},
        {key: value for key, value in expected.items() if key.startswith("bert.")},
    )


def test_tied_embeddings_of_a_language_model(tmp_path: Path) -> None:
    """In memory two names of one tensor, in a file one."""
    config = transformers.GPT2Config(n_layer=1, n_head=2, n_embd=8, vocab_size=30, n_positions=12)
    models = [transformers.GPT2LMHeadModel(config) for _ in range(3)]
    for i, model in enumerate(models):
        model.save_pretrained(tmp_path / str(i))
    paths = [tmp_path / str(i) for i in range(3)]
    out = merge_files("ties", paths[1:], tmp_path / "out", pretrained=paths[0])
    merged = transformers.GPT2LMHeadModel.from_pretrained(out)
    state = merge("ties", models[1:], pretrained=models[0])
    assert state["lm_head.weight"] is state["transformer.wte.weight"]
    assert_same(merged.state_dict(), state)
    mixed = merge("ties", paths[1:], pretrained=models[0], missing="base")
    assert_same(mixed, state)
    assert mixed["lm_head.weight"] is mixed["transformer.wte.weight"]


def test_heads_that_a_masked_language_model_lacks(tmp_path: Path, folders: list[Path]) -> None:
    """The folder is that of a classifier, with the experts' configuration and mean head."""
    one, two = folders[0], save_classifier(tmp_path / "other", 2, 5)
    config = transformers.BertConfig.from_pretrained(one)
    base = tmp_path / "masked"
    transformers.BertForMaskedLM(config).save_pretrained(base)
    out = merge_files("ties", [one, two], tmp_path / "out", pretrained=base, missing="experts")
    model, report = transformers.AutoModelForSequenceClassification.from_pretrained(
        out, output_loading_info=True
    )
    assert not report["missing_keys"]
    heads = [load_state_dict(folder)["classifier.weight"] for folder in (one, two)]
    torch.testing.assert_close(model.classifier.weight.data, (heads[0] + heads[1]) / 2)


SMALL: dict[str, Any] = {
    "vocab_size": 30,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 16,
}
GPT2: dict[str, Any] = {
    "n_layer": 1,
    "n_head": 2,
    "n_embd": 8,
    "vocab_size": 30,
    "n_positions": 12,
    "bos_token_id": 0,
    "eos_token_id": 0,
}
SPEECH: dict[str, Any] = {
    "conv_dim": (8, 8),
    "conv_kernel": (3, 3),
    "conv_stride": (2, 2),
    "num_conv_pos_embeddings": 4,
    "num_conv_pos_embedding_groups": 2,
}
NORM = "parametrizations.weight.original"
# The model, the one that an expert's file comes from, its configuration, and names in that file.
NAMES: dict[str, tuple[str, str, dict[str, Any], dict[str, str]]] = {
    "old BERT": (
        *("BertForSequenceClassification", "BertForSequenceClassification", SMALL),
        {"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"},
    ),
    "old BERT with the head that it was trained with": (
        *("BertForPreTraining", "BertForPreTraining", SMALL),
        {"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"},
    ),
    "GPT-2 without transformer.": ("GPT2LMHeadModel", "GPT2Model", GPT2, {}),
    "weight normalisation": (
        *("Wav2Vec2Model", "Wav2Vec2Model", {**SMALL, **SPEECH}),
        {f"{NORM}0": "weight_g", f"{NORM}1": "weight_v"},
    ),
}


@pytest.mark.parametrize("case", NAMES)
def test_other_names_as_from_pretrained_reads_them(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The proposed renaming gives what transformers makes of the expert's folder by itself."""
    kind, source, settings, names = NAMES[case]
    monkeypatch.chdir(tmp_path)
    for seed, (folder, name) in enumerate({"base": kind, "expert": source}.items()):
        torch.manual_seed(seed)
        model = getattr(transformers, name)
        model(model.config_class(**settings)).save_pretrained(folder)
    state = load_state_dict("expert")
    for new, old in names.items():
        state = {key.replace(new, old): value for key, value in state.items()}
    save_state_dict(state, "expert/model.safetensors")
    with pytest.raises(ValueError, match=r"all \d+ keys of expert 0 match") as caught:
        merge_files("average", ["expert"], "out", pretrained="base")
    rename = ast.literal_eval(str(caught.value).partition("rename=")[2])
    merge_files("average", ["expert"], "out", pretrained="base", rename=rename)
    model = getattr(transformers, kind)
    loaded, report = model.from_pretrained("out", output_loading_info=True)
    assert not any(report[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    assert_same(loaded.state_dict(), model.from_pretrained("expert").state_dict())


def test_a_module_whose_names_are_not_those_of_its_file(tmp_path: Path) -> None:
    """Vision-language models are saved under the names of an older version, with other prefixes."""
    text = {**SMALL, "num_key_value_heads": 2, "bos_token_id": 0, "eos_token_id": 0}
    text["rope_scaling"] = {"type": "mrope", "mrope_section": [1, 1, 2]}
    vision = {"depth": 1, "embed_dim": 16, "hidden_size": 16, "num_heads": 2}
    config = transformers.Qwen2VLConfig(text_config=text, vision_config=vision)
    model = transformers.Qwen2VLForConditionalGeneration(config)
    model.save_pretrained(tmp_path)
    named = set(model.state_dict()), set(Checkpoint(tmp_path))
    for experts, base, keys in (([tmp_path], model, named[0]), ([model], tmp_path, named[1])):
        with pytest.raises(ValueError, match=r"all \d+ keys of expert 0 match") as caught:
            merge("average", experts, pretrained=base)
        rename = ast.literal_eval(str(caught.value).partition("rename=")[2])
        assert len(rename) == 2
        merged = merge("average", experts, pretrained=base, rename=rename)
        assert merged.keys() == keys
        states = load_state_dict(base) if isinstance(base, Path) else base.state_dict()
        assert_same(merged, {key: states[key] for key in merged})
