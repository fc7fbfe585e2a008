"""Configurations that disagree are refused or warned of by file and entry, and only these."""

import re
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import mergelib as ml
from mergelib.inspection.configurations import check_configurations
from tests.library.inspection.cases import BERT, edit, make_bert, make_llama, transformers

Door = Callable[[list[Path], Path], Any]
DOORS: dict[str, Door] = {
    "merge": lambda models, out: ml.merge("ties", models[1:], pretrained=models[0]),
    "files": lambda models, out: ml.merge_files("ties", models[1:], out, pretrained=models[0]),
    "single": lambda models, out: ml.merge_files(
        "ties", models[1:], out.with_suffix(".safetensors"), pretrained=models[0]
    ),
    "adapt": lambda models, out: ml.adapt("uniform_soup", models[1:], pretrained=models[0]),
    "compress": lambda models, out: ml.compress("emr", models[1:], pretrained=models[0]),
}


@pytest.fixture
def llamas(tmp_path: Path) -> list[Path]:
    return [make_llama(tmp_path / name, i) for i, name in enumerate(("base", "a", "b"))]


@pytest.fixture
def berts(tmp_path: Path) -> list[Path]:
    return [make_bert(tmp_path / name, i) for i, name in enumerate(("base", "a", "b"))]


REFUSED = [
    ("num_attention_heads", 4),
    ("num_key_value_heads", 1),
    ("head_dim", 2),
    ("model_type", "mistral"),
    ("text_config", {"n_head": 4}),
]


@pytest.mark.parametrize(("entry", "value"), REFUSED)
@pytest.mark.parametrize("door", DOORS)
def test_another_meaning_of_weights_is_refused(
    llamas: list[Path], tmp_path: Path, door: str, entry: str, value: Any
) -> None:
    if isinstance(value, dict):
        edit(llamas[0] / "config.json", text_config={"n_head": 8})
        edit(llamas[1] / "config.json", text_config={"n_head": 8})
    edit(llamas[2] / "config.json", **{entry: value})
    with pytest.raises(ValueError, match=rf"config.json says {entry}.* in expert 1 and .* in pret"):
        DOORS[door](llamas, tmp_path / "out")
    assert not list(tmp_path.glob("out*"))


WARNED = [
    ("rope_parameters", {"rope_theta": 1e6, "rope_type": "default"}, "rope_theta = 1000000.0"),
    ("rope_scaling", {"type": "linear", "factor": 2.0}, "rope_scaling.factor = 2.0"),
    ("hidden_act", "gelu", "hidden_act = 'gelu'"),
    ("rms_norm_eps", 1e-3, "rms_norm_eps = 0.001"),
    ("sliding_window", 4, "sliding_window = 4"),
    ("logit_softcapping", 30.0, "logit_softcapping = 30.0"),
]


@pytest.mark.parametrize(("entry", "value", "text"), WARNED)
@pytest.mark.parametrize("door", DOORS)
def test_another_function_is_warned_of(
    llamas: list[Path], tmp_path: Path, door: str, entry: str, value: Any, text: str
) -> None:
    edit(llamas[2] / "config.json", **{entry: value})
    with pytest.warns(
        UserWarning, match=rf"config.json disagrees: .*{re.escape(text)} in expert 1"
    ):
        DOORS[door](llamas, tmp_path / "out")


@pytest.mark.parametrize("door", DOORS)
def test_honest_models_pass_in_silence(berts: list[Path], tmp_path: Path, door: str) -> None:
    for i, folder in enumerate(berts):
        edit(
            folder / "config.json",
            _name_or_path=f"somebody/model-{i}",
            transformers_version=f"4.{i}.0",
            torch_dtype=["float32", "bfloat16", "float16"][i],
            hidden_dropout_prob=0.1 * i,
            classifier_dropout=0.1 * i,
            use_cache=bool(i),
            architectures=["BertForSequenceClassification", "BertModel", "BertForMaskedLM"][
                i : i + 1
            ],
            initializer_range=0.01 * (i + 1),
            eos_token_id=None,
        )
    edit(berts[1] / "config.json", position_embedding_type="absolute", is_decoder=None)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        DOORS[door](berts, tmp_path / "out")


def test_versions_write_rotary_positions_in_two_ways() -> None:
    old = {"transformers_version": "4.40.0", "rope_theta": 10000.0, "rope_scaling": None}
    new = {"transformers_version": "5.0.0", "rope_parameters": {"rope_theta": 10000.0}}
    new["rope_parameters"]["rope_type"] = "default"  # type: ignore[index]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_configurations({"a": {"config.json": old}, "b": {"config.json": new}})
        clip = {"config.json": {"model_type": "clip"}}
        check_configurations({"a": clip, "b": {"config.json": {"model_type": "clip"}}})
    with pytest.warns(UserWarning, match="model_type = 'clip_vision_model' in b and 'clip' in a"):
        check_configurations({"a": clip, "b": {"config.json": {"model_type": "clip_vision_model"}}})


def test_modules_say_what_their_folders_would() -> None:
    models = [
        transformers.BertModel(transformers.BertConfig(**{**BERT, "num_attention_heads": n}))
        for n in (2, 4)
    ]
    with pytest.raises(ValueError, match="num_attention_heads = 4 in expert 1 and 2 in expert 0"):
        ml.merge("average", models)


def test_a_layer_that_the_configuration_says_exists(berts: list[Path], tmp_path: Path) -> None:
    """It would begin at random in the result."""
    state = ml.load_state_dict(berts[2])
    layer = "bert.encoder.layer.1.output.dense.weight"
    ml.save_state_dict(
        {k: v for k, v in state.items() if k != layer}, berts[2] / "model.safetensors"
    )
    for door in (
        lambda: ml.merge("average", berts[1:], pretrained=berts[0], missing="skip"),
        lambda: ml.merge_files(
            "average", berts[1:], tmp_path / "out", pretrained=berts[0], missing="skip"
        ),
    ):
        with (
            pytest.warns(UserWarning, match="leaves 1 of"),
            pytest.raises(ValueError, match=f"{layer}'.* says num_hidden_layers = 2.* exclude="),
        ):
            door()
    ml.merge_files("average", berts[1:], tmp_path / "out", pretrained=berts[0], exclude=layer)
    for folder in berts:  # a model that was cut, and says so
        edit(folder / "config.json", num_hidden_layers=1)
    with pytest.warns(UserWarning, match="leaves 1 of"):
        ml.merge("average", berts[1:], pretrained=berts[0], missing="skip")


def test_labels_of_heads(berts: list[Path], tmp_path: Path) -> None:
    def label(*rows: list[str]) -> None:
        for folder, names in zip(berts[1:], rows, strict=True):
            edit(folder / "config.json", id2label={str(i): name for i, name in enumerate(names)})

    def merge(**options: Any) -> Any:
        return ml.merge("average", berts[1:], pretrained=berts[0], **options)

    label(["negative", "positive"], ["positive", "negative"])
    with pytest.raises(ValueError, match=r"row 0 of 'classifier.*' is 'positive' in expert 1 and"):
        merge()
    label(["negative", "positive"], ["unacceptable", "acceptable"])
    with pytest.warns(UserWarning, match=r"'unacceptable' in expert 1 and 'negative' in expert 0"):
        merge()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        merge(exclude="classifier.*")
        label(["LABEL_0", "LABEL_1"], ["negative", "positive"])
        merge()
        out = ml.merge_files("average", berts[1:], tmp_path / "out", pretrained=berts[0])
        transformers.AutoModelForSequenceClassification.from_pretrained(out)


def test_a_file_of_a_model_folder_has_its_companions(berts: list[Path]) -> None:
    edit(berts[2] / "config.json", num_attention_heads=4)
    files = [folder / "model.safetensors" for folder in berts]
    with pytest.raises(ValueError, match="num_attention_heads = 4"):
        ml.merge("average", files[1:], pretrained=files[0])
