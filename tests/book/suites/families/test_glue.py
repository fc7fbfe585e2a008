"""GLUE on tiny random RoBERTas and sentences made on the spot; no network."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import mergebook as mb
import mergelib as ml
from mergebook.lab.comparison import choose, compare
from mergebook.suites.families import glue
from mergebook.suites.types import (
    Zoo,
)
from mergelib.evaluation.tasks import (
    Suite,
)

transformers = pytest.importorskip("transformers")
datasets = pytest.importorskip("datasets")
pytestmark = pytest.mark.usefixtures("offline")

TASKS = ("cola", "stsb", "mnli")
MODEL = "roberta-tiny"
CLASSES = {"cola": 2, "stsb": 1, "mnli": 3}
SEEDS = {"cola": 11, "stsb": 7, "mnli": 8}  # whose classifiers do not say the same of all sentences


def make_classifier(seed: int, classes: int) -> Any:
    torch.manual_seed(seed)
    config = transformers.RobertaConfig(
        vocab_size=40,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=140,
        type_vocab_size=1,
        num_labels=classes,
        bos_token_id=0,
        pad_token_id=1,
        eos_token_id=2,
    )
    model = transformers.RobertaForSequenceClassification(config).eval()
    for parameter in model.parameters():  # RoBERTa's own start hardly tells sentences apart
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=0.3)
    return model


def save_tokenizer(folder: Path) -> None:
    words = ["<s>", "<pad>", "</s>", "<unk>", "<mask>", "Ġ", *"abcdefghijklmnopqrstuvwxyz."]
    (folder / "vocab.json").write_text(json.dumps({word: i for i, word in enumerate(words)}))
    (folder / "merges.txt").write_text("#version: 0.2\n")
    (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "RobertaTokenizer"}')


def save_sentences(folder: Path) -> None:
    generator = np.random.default_rng(0)
    for task in TASKS:
        (folder / task / "data").mkdir(parents=True)
        for part, count in (("train", 40), (glue.SOURCES[task].test, 30)):
            lines = []
            for i in range(count):
                row: dict[str, Any] = {
                    column: " ".join(
                        "".join(generator.choice(list("abcdefgh"), 3))
                        for _ in range(generator.integers(1, 6))
                    )
                    for column in glue.SOURCES[task].sentences
                }
                label = i % CLASSES[task] if task != "stsb" else 5 * generator.random()
                lines.append(json.dumps({**row, "label": label}))
            file = folder / task / "data" / f"{part}-00000-of-00001.jsonl"  # as the hub names them
            file.write_text("\n".join(lines))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("glue")
    save_sentences(folder)
    base = make_classifier(0, 2)
    base.roberta.save_pretrained(folder / MODEL)  # bare, as transformers saves an encoder
    save_tokenizer(folder / MODEL)
    for task in TASKS:
        make_classifier(SEEDS[task], CLASSES[task]).save_pretrained(folder / f"{MODEL}-{task}")
    return folder


def load_suite(folder: Path, **options: Any) -> Suite:
    given = {"tasks": TASKS, "data": folder, "tokenizer": folder / MODEL, **options}
    return mb.load_suite("glue8", **given)


def load_zoo(folder: Path, suite: Suite | None = None, **options: Any) -> Zoo:
    return mb.load_zoo(suite or load_suite(folder), **{"model": str(folder / MODEL), **options})


def outputs(zoo: Zoo, task: str) -> torch.Tensor:
    """What transformers' own classifier says of a task's test rows, one by one and unpadded."""
    model, rows = make_classifier(SEEDS[task], CLASSES[task]), zoo.suite.tasks[task].test.inputs
    with torch.no_grad():
        return torch.cat([model(row[row != 1][None]).logits for row in rows])


def test_tasks(folder: Path) -> None:
    suite = load_suite(folder, train_size=20)
    task = suite.tasks["mnli"]
    assert [len(split) for split in (task.train, task.validation, task.test)] == [20, 8, 30]
    assert task.test.inputs.dtype == task.test.labels.dtype == torch.int64
    assert task.test.labels.bincount().tolist() == [10, 10, 10]
    assert (task.test.inputs[:, 0] == 0).all()  # <s>
    assert ((task.test.inputs == 2).sum(1) == 3).all()  # a pair: <s> a </s></s> b </s>
    assert ((suite.tasks["cola"].test.inputs == 2).sum(1) == 1).all()
    labels = suite.tasks["stsb"].test.labels
    assert labels.dtype == torch.float32
    assert 0 <= labels.min() < 1 < 4 < labels.max() <= 5
    assert list(glue.SOURCES) == ["cola", "sst2", "mrpc", "stsb", "qqp", "mnli", "qnli", "rte"]


def test_encoder_and_head_are_the_whole_classifier(folder: Path) -> None:
    zoo = load_zoo(folder)
    for task in TASKS:
        with torch.no_grad():
            features = torch.func.functional_call(
                zoo.model, zoo.experts[task], (zoo.suite.tasks[task].test.inputs,)
            )
            logits = zoo.heads[task](features)
        torch.testing.assert_close(logits, outputs(zoo, task), atol=1e-5, rtol=1e-5)
        assert logits.shape == (30, CLASSES[task])


def test_scores_by_hand(folder: Path) -> None:
    zoo = load_zoo(folder)
    table = compare(zoo, {"average": {}}).set_index(["method", "task"])
    own = table.loc["individual"]
    assert own["metric"].to_dict() == {
        "cola": "matthews",
        "stsb": "correlation",
        "mnli": "accuracy",
    }

    labels = {task: zoo.suite.tasks[task].test.labels for task in TASKS}
    said = {task: outputs(zoo, task) for task in TASKS}
    accuracy = (said["mnli"].argmax(1) == labels["mnli"]).float().mean()
    assert own["score"]["mnli"] == own["accuracy"]["mnli"] == pytest.approx(float(accuracy))

    guess, truth = said["cola"].argmax(1).double(), labels["cola"].double()
    assert 0 < guess.sum() < 30
    phi = torch.corrcoef(torch.stack([guess, truth]))[0, 1]  # for two classes that is Matthews'
    assert own.loc["cola", "score"] == pytest.approx(float(phi))
    assert own.loc["cola", "correct"] == (guess == truth).sum()

    guess, truth = said["stsb"][:, 0].double(), labels["stsb"].double()
    ranks = torch.stack([column.argsort().argsort().double() for column in (guess, truth)])
    both = torch.corrcoef(torch.stack([guess, truth]))[0, 1] + torch.corrcoef(ranks)[0, 1]
    assert own.loc["stsb", "score"] == pytest.approx(float(both) / 2, abs=1e-6)
    assert own.loc["stsb", "loss"] == pytest.approx(float(((guess - truth) ** 2).mean()), rel=1e-5)
    assert own.loc["stsb", ["accuracy", "correct"]].isna().all()

    merged = ml.merge("average", zoo.experts)
    again = ml.evaluate(zoo.model, merged, zoo.heads, zoo.suite).set_index("task")["score"]
    assert table["score"]["average"].to_dict() == pytest.approx(again.to_dict())


def test_hyperparameters_are_chosen_by_the_tasks_scores(folder: Path) -> None:
    zoo = load_zoo(folder)
    best, table = choose(zoo, "task_arithmetic", {"scale": [0.0, 0.4, 1.0]})
    assert list(table.columns) == ["scale", "score"]
    assert best["scale"] == table["scale"].iloc[table["score"].argmax()]


def test_bad_input(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "cola").mkdir()
    (tmp_path / "cola" / "train.jsonl").write_text('{"text": "a", "label": 0}\n')
    (tmp_path / "cola" / "validation.jsonl").write_text('{"text": "a", "label": 0}\n')
    config = transformers.BertConfig(
        vocab_size=40, hidden_size=32, num_hidden_layers=1, num_attention_heads=2
    )
    transformers.BertForSequenceClassification(config).save_pretrained(tmp_path / "bert")
    (tmp_path / MODEL).symlink_to(folder / MODEL)
    one = load_suite(folder, tasks=["cola"])
    cases: list[tuple[Callable[..., Any], dict[str, Any], str]] = [
        (load_suite, {"test_size": 0}, "test_size must be at least 1, got 0"),
        (load_suite, {"tasks": ["wnli"]}, "unknown task 'wnli' of glue8"),
        (
            load_suite,
            {"tokenizer": "none"},
            "'none' is neither a folder nor to be had from the hub",
        ),
        (
            load_suite,
            {"tasks": ["cola"], "data": tmp_path},
            "'cola': no column 'sentence' among text, label",
        ),
        (
            load_suite,
            {"tasks": ["cola"], "data": "nowhere"},
            "data of task 'cola': no 'train' in the hub's",
        ),
        (
            load_zoo,
            {"suite": one, "model": tmp_path / "bert"},
            "bert holds a model of type 'bert', expected 'roberta'",
        ),
        (
            load_zoo,
            {"model": tmp_path / MODEL},
            f"{MODEL}-cola' is neither a folder nor to be had from the hub",
        ),
    ]
    for load, options, message in cases:
        with pytest.raises(ValueError) as caught:  # noqa: PT011, the message is looked at below
            load(folder, **options)
        assert message in str(caught.value)
        assert "\n" not in str(caught.value)
