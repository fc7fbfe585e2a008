"""Texts as a suite: the way from files to experts that are judged by loss."""

import hashlib
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

import mergelib as ml
from mergebook import load_suite, load_zoo
from mergebook.cart.measure.experiments import compression
from mergebook.lab.comparison import best_of, compare, individual, score_grid
from mergebook.suites.backbones import build_model, write_backbone
from mergebook.suites.data import texts
from mergebook.suites.families.texts import pretraining_texts
from mergebook.suites.models import to_tokens
from mergebook.suites.pretraining import pretrain_text
from mergebook.suites.training import Recipe
from mergebook.suites.types import (
    LabelledSet,
    Zoo,
)
from mergelib.evaluation.loops import SplitName
from mergelib.evaluation.tasks import (
    LOSS,
)


def test_suite_of_texts(text_folder: Path) -> None:
    suite = load_suite("text4", profile="smoke", data=text_folder)
    assert suite.metric == LOSS
    assert set(suite.transforms.values()) == {to_tokens}
    assert list(suite.tasks) == list(texts.TASKS)
    task = suite.tasks["don_quijote_es"]
    assert "Mancha" in "".join(texts.CHARACTERS[code] for code in task.train.inputs[0].tolist())
    assert 0 not in task.train.inputs
    assert torch.equal(task.test.inputs[:, 1:].long(), task.test.labels[:, :-1])
    raw = (text_folder / "text" / "names.txt").read_bytes()
    assert suite.sources["text/names"] == hashlib.sha256(raw).hexdigest()


def test_language_model_learns_and_is_written(
    text_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MERGELIB_DATA", str(text_folder))
    sets = pretraining_texts()
    assert [part.name for part in sets] == ["wikitext2_valid"]
    short = LabelledSet("a", ("?",), sets[0].train, sets[0].test, sets[0].sha256)
    torch.manual_seed(0)
    log = pretrain_text(
        build_model("gpt"), [short], Recipe(learning_rate=3e-3, epochs=8, batch_size=8)
    )
    assert log[0]["loss/a"] < 0.7 * math.log(128)
    write_backbone(tmp_path / "gpt.safetensors", "gpt", epochs=1)
    state = ml.load_state_dict(tmp_path / "gpt.safetensors")
    assert state.keys() == build_model("gpt").state_dict().keys()


def _zoo(text_folder: Path) -> Zoo:
    suite = load_suite(
        "text4", profile="smoke", data=text_folder, tasks=["names", "tinyshakespeare"]
    )
    return load_zoo(suite, recipe=Recipe(learning_rate=2e-3, epochs=4, batch_size=8))


def test_experts_are_merged_and_judged_by_loss(
    text_folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("MERGELIB_CACHE", str(tmp_path / "cache"))
    zoo = _zoo(text_folder)
    table = compare(zoo, {"average": {}}).set_index(["method", "task"])
    losses = table["loss"]
    for name, task in zoo.suite.tasks.items():
        zoo.model.load_state_dict(zoo.experts[name])
        with torch.no_grad():
            logits = zoo.model(task.transform(task.test.inputs))
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), task.test.labels.flatten())
        assert losses["individual", name] == pytest.approx(loss.item(), rel=1e-4)
        assert losses["individual", name] < losses["pretrained", name]
        assert table.loc[("average", name), "n"] == task.test.labels.numel()
    grid = {"scale": [0.0, 0.5, 3.0]}
    searched = score_grid(zoo, "task_arithmetic", grid)
    best = best_of(zoo, "task_arithmetic", grid, autocast=False)
    assert list(searched.columns) == ["scale", "loss"]
    assert best["scale"] == searched["scale"].iloc[searched["loss"].argmin()] == 0.5


def test_masks_of_experts_on_texts_are_chosen_by_loss(
    text_folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("MERGELIB_CACHE", str(tmp_path / "cache"))
    zoo = _zoo(text_folder)
    rows = compression(zoo, rank_ratios=[1.0], mask_scales=[0.2, 0.4, 1.5])["test"]
    judged = pd.DataFrame(rows).query("setting == 'base=task_arithmetic'").set_index("task")["loss"]
    for task in zoo.experts:
        losses: dict[SplitName, list[float]] = {"validation": [], "test": []}
        for scale in (0.2, 0.4, 1.5):
            parts = ml.compress(
                "tall_masks", zoo.experts, pretrained=zoo.pretrained, mask_scale=scale
            )
            for split, kept in losses.items():
                own = replace(zoo, experts={task: parts.expert(task)})
                kept.append(individual(own, split, autocast=True)["loss"].item())
        assert len(set(losses["validation"])) == 3
        assert judged[task] == losses["test"][np.argmin(losses["validation"])]


def test_models_read_their_own_kind(text_folder: Path) -> None:
    suite = load_suite("text4", profile="smoke", data=text_folder, tasks=["names"])
    with pytest.raises(ValueError, match="unknown model 'vit' for text4; known: gpt"):
        load_zoo(suite, model="vit")
    with pytest.raises(ValueError, match="unknown model 'gpt' for digits2; known: vit, vit_small"):
        load_zoo(load_suite("digits2"), model="gpt")
