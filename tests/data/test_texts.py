"""Texts: characters and codes, windows, files, downloads, and the way to an expert."""

import hashlib
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

import mergelib as ml
from mergelib.data import texts
from mergelib.studies.cart import compression
from mergelib.studies.comparison import choose, compare, individual
from mergelib.testbed.models import build_model, normalise
from mergelib.testbed.pretraining import pretrain_text, write_backbone
from mergelib.testbed.suites import pretraining_texts
from mergelib.testbed.tasks import PretrainingSet
from mergelib.testbed.training import Recipe
from mergelib.testbed.zoo import Zoo

SAMPLES = {
    "tinyshakespeare": "To be, or not to be: that is the question.\n",
    "wikitext2_test": " = Lobster = \n The lobster is a large <unk> .\n",
    "don_quijote_es": "En un lugar de la Mancha, ¿qué añadir?\n",
    "names": "emma\nolivia\n",
    "wikitext2_valid": " = Homarus = \n It may grow to a length of 60 cm .\n",
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "text").mkdir()
    for name, line in SAMPLES.items():
        file = tmp_path / "text" / f"{name}.txt"
        file.write_text(line * (6000 // len(line)), encoding="utf-8", newline="\n")
    return tmp_path


def test_vocabulary_fits_the_model() -> None:
    assert len(set(texts.CHARACTERS)) == len(texts.CHARACTERS)
    assert len(texts.CHARACTERS) <= build_model("gpt").token_embed.num_embeddings


def test_characters_and_codes() -> None:
    line = "¿Qué\nsé yo? ~"
    assert texts.decode(texts.encode(line)) == line
    assert texts.encode("a☃").tolist() == [texts.CHARACTERS.index("a"), 0]
    assert texts.encode("").shape == (0,)


def test_windows_by_hand() -> None:
    text = "".join(chr(32 + i % 90) for i in range(2 * 129 + 128))
    inputs, labels = texts.windows(text)
    assert inputs.shape == labels.shape == (2, 128)
    assert (inputs.dtype, labels.dtype) == (torch.uint8, torch.int64)
    assert texts.decode(inputs[1]) == text[129 : 129 + 128]
    assert texts.decode(labels[1]) == text[130 : 130 + 128]
    with pytest.raises(ValueError, match="a text of 128 characters is shorter"):
        texts.windows(text[:128])


def test_splits_are_disjoint_windows_of_the_text() -> None:
    text = "".join(chr(32 + (i // 129) % 90) for i in range(60 * 129))  # window i is one character
    parts = texts.split_windows(text, (30, 5, 10), seed=3)
    seen = [set(inputs[:, 0].tolist()) for inputs, _ in parts]
    assert [len(part) for part in seen] == [30, 5, 10]
    assert len(set.union(*seen)) == 45
    again = texts.split_windows(text, (30, 5, 10), seed=3)
    assert all(torch.equal(a[0], b[0]) for a, b in zip(parts, again, strict=True))
    other = texts.split_windows(text, (30, 5, 10), seed=4)
    assert not torch.equal(parts[0][0], other[0][0])
    sizes = [len(labels) for _, labels in texts.split_windows(text, (1000, 1000, 1000), seed=0)]
    assert sizes == [36, 12, 12]


def test_suite_of_texts(folder: Path) -> None:
    suite = ml.load_suite("text4", profile="smoke", data=folder)
    assert suite.is_text
    assert not ml.load_suite("digits2").is_text
    assert list(suite.tasks) == list(texts.TASKS)
    task = suite.tasks["don_quijote_es"]
    assert "Mancha" in texts.decode(task.train.inputs[0])
    assert 0 not in task.train.inputs
    assert torch.equal(task.test.inputs[:, 1:].long(), task.test.labels[:, :-1])
    raw = (folder / "text" / "names.txt").read_bytes()
    assert suite.sources["text/names"] == hashlib.sha256(raw).hexdigest()


def test_text_that_cannot_be_had(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "text" / "names.txt").write_bytes(b"\xff\xfe\xff")
    with pytest.raises(ValueError, match=r"names\.txt is no UTF-8 text"):
        texts.load_text("names", folder)
    (folder / "text" / "names.txt").unlink()
    monkeypatch.setenv("MERGELIB_CACHE", str(folder / "cache"))

    def offline(url: str, timeout: float) -> None:
        raise OSError("no route to host")

    monkeypatch.setattr(texts.urllib.request, "urlopen", offline)
    with pytest.raises(
        ValueError, match=r"text 'names' is not .*names.txt cannot be read: no route"
    ):
        texts.load_text("names", folder)
    assert not (folder / "cache").exists()


def test_download_keeps_the_book_alone(
    folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    lines = ["Licence", "*** START ***", "", "¡Qué libro!", "Fin", "", "*** END ***", "", "More"]
    source = tmp_path / "book.txt"
    source.write_bytes("\r\n".join(lines).encode("latin-1"))
    monkeypatch.setenv("MERGELIB_CACHE", str(tmp_path / "cache"))
    there = texts.Text(source.as_uri(), "latin-1")
    monkeypatch.setitem(texts.TEXTS, "don_quijote_es", there)
    (folder / "text" / "don_quijote_es.txt").unlink()
    text, digest = texts.load_text("don_quijote_es", folder)
    assert text == "¡Qué libro!\nFin"
    source.unlink()
    assert texts.load_text("don_quijote_es", folder) == (text, digest), "kept in the cache"


def test_language_model_learns_and_is_written(folder: Path, tmp_path: Path) -> None:
    sets = pretraining_texts(folder)
    assert [each.name for each in sets] == ["wikitext2_valid"]
    short = PretrainingSet("a", ("?",), sets[0].train, sets[0].test, sets[0].sha256)
    torch.manual_seed(0)
    log = pretrain_text(
        build_model("gpt"), [short], Recipe(learning_rate=3e-3, epochs=8, batch_size=8)
    )
    assert log[0]["loss/a"] < 0.7 * math.log(128)
    write_backbone(tmp_path / "gpt.safetensors", "gpt", sets, Recipe(epochs=1))
    state = ml.load_state_dict(tmp_path / "gpt.safetensors")
    assert state.keys() == build_model("gpt").state_dict().keys()


def _zoo(folder: Path) -> Zoo:
    suite = ml.load_suite("text4", profile="smoke", data=folder, tasks=["names", "tinyshakespeare"])
    return ml.load_zoo(suite, recipe=Recipe(learning_rate=2e-3, epochs=4, batch_size=8))


def test_experts_are_merged_and_judged_by_loss(
    folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("MERGELIB_CACHE", str(tmp_path / "cache"))
    zoo = _zoo(folder)
    table = compare(zoo, {"average": {}}).set_index(["method", "task"])
    for name, task in zoo.suite.tasks.items():
        zoo.model.load_state_dict(zoo.experts[name])
        with torch.no_grad():
            logits = zoo.model(normalise(task.test.inputs))
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), task.test.labels.flatten())
        assert table.loc[("individual", name), "loss"] == pytest.approx(loss.item(), rel=1e-4)
        assert table.loc[("individual", name), "loss"] < table.loc[("pretrained", name), "loss"]
        assert table.loc[("average", name), "n"] == task.test.labels.numel()
    best, searched = choose(zoo, "task_arithmetic", {"scale": [0.0, 0.5, 3.0]})
    assert list(searched.columns) == ["scale", "loss"]
    assert best["scale"] == searched.loc[searched["loss"].idxmin(), "scale"] == 0.5


def test_masks_of_experts_on_texts_are_chosen_by_loss(
    folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("MERGELIB_CACHE", str(tmp_path / "cache"))
    zoo = _zoo(folder)
    rows = compression(zoo, rank_ratios=[1.0], mask_scales=[0.2, 0.4, 1.5])["test"]
    found = pd.DataFrame(rows).query("setting == 'base=task_arithmetic'").set_index("task")["loss"]
    for task in zoo.experts:
        losses = {"validation": [], "test": []}
        for scale in (0.2, 0.4, 1.5):
            parts = ml.compress(
                "tall_masks", zoo.experts, pretrained=zoo.pretrained, mask_scale=scale
            )
            for split, kept in losses.items():
                mine = replace(zoo, experts={task: parts.expert(task)})
                kept.append(individual(mine, split, autocast=True)["loss"].item())
        assert len(set(losses["validation"])) == 3
        assert found[task] == losses["test"][np.argmin(losses["validation"])]


def test_models_read_their_own_kind(folder: Path) -> None:
    suite = ml.load_suite("text4", profile="smoke", data=folder, tasks=["names"])
    with pytest.raises(ValueError, match="model is 'vit', but text4 is of texts, expected gpt"):
        ml.load_zoo(suite, model="vit")
    with pytest.raises(ValueError, match="model is 'gpt', but digits2 is of pictures"):
        ml.load_zoo(ml.load_suite("digits2"), model="gpt")
