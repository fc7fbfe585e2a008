"""Pretraining: augmentation, what it learns and logs, the file it writes, the one that ships."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from mergebook.suites.backbones import build_model, shipped_backbone, write_backbone
from mergebook.suites.families import FAMILIES
from mergebook.suites.models import scale_pixels
from mergebook.suites.pretraining import augment, pretrain
from mergebook.suites.training import Recipe
from mergebook.suites.types import (
    LabelledSet,
)
from mergelib.evaluation.tasks import (
    Suite,
)

RECIPE = Recipe(learning_rate=5e-3, epochs=2, batch_size=16)


@pytest.fixture
def sets(digits: Suite) -> list[LabelledSet]:
    """Two sets, of five classes and of three."""
    low, high = (digits.tasks[name] for name in ("digits_low", "digits_high"))
    few = high.train.labels < 3
    part = type(high.train)(high.train.inputs[few], high.train.labels[few])
    return [
        LabelledSet("low", low.class_names, low.train, low.test, "01"),
        LabelledSet("high", high.class_names[:3], part, part, "23"),
    ]


def augmented(images: torch.Tensor, flips: bool, seed: int = 0) -> torch.Tensor:
    marks = torch.full((len(images),), flips)
    return augment(images, marks, torch.Generator().manual_seed(seed))


def test_augmentation_repeats_and_leaves_its_input_alone() -> None:
    images = torch.rand(6, 3, 32, 32) * 2 - 1
    kept = images.clone()
    once = augmented(images, flips=True)
    assert once.shape == images.shape
    assert torch.equal(once, augmented(images, flips=True))
    assert not torch.equal(once, augmented(images, flips=True, seed=1))
    assert torch.equal(images, kept)
    assert len({tuple(change.flatten()[:3].tolist()) for change in once}) == 6


def test_only_marked_pictures_are_mirrored() -> None:
    images = torch.rand(40, 3, 32, 32) * 2 - 1
    plain, mixed = augmented(images, flips=False), augmented(images, flips=True)
    as_is = torch.isclose(mixed, plain, atol=1e-4).flatten(1).all(1)
    mirrored = torch.isclose(mixed, plain.flip(3), atol=1e-4).flatten(1).all(1)
    assert (as_is ^ mirrored).all()
    assert 8 < mirrored.sum() < 32, "a fair coin"


def test_augmentation_changes_little() -> None:
    """Flat grey stays flat, and keeps its channels together but for a tint."""
    grey = augmented(torch.zeros(200, 3, 32, 32), flips=False)
    assert grey.flatten(2).std(2).max() < 1e-5
    assert grey.abs().max() < 0.5
    assert 0.02 < grey[..., 0, 0].std(1).mean() < 0.08


def test_pretraining_learns_and_logs(tiny: str, sets: list[LabelledSet]) -> None:
    logs, states = [], []
    for seed in (0, 0, 1):
        torch.manual_seed(0)
        model = build_model(tiny)
        logs.append(pretrain(model, sets, RECIPE, seed=seed))
        states.append({key: value.clone() for key, value in model.state_dict().items()})
    first, last = logs[0]
    assert (first["epoch"], last["epoch"]) == (1, 2)
    assert last["loss"] < first["loss"]
    assert set(last) == {"epoch", "loss", "accuracy/low", "accuracy/high", "seconds"}
    assert 0 <= last["accuracy/high"] <= 1
    assert last["accuracy/low"] > 0.3, "guessing gives 0.2"
    assert all(torch.equal(states[0][key], states[1][key]) for key in states[0])
    assert not torch.equal(states[0]["norm.weight"], states[2]["norm.weight"])


def test_write_backbone(
    tiny: str, sets: list[LabelledSet], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    family = FAMILIES["digits"]
    assert family.pretraining is not None
    told = replace(family.pretraining, sets=lambda: sets, recipe=RECIPE)
    monkeypatch.setitem(FAMILIES, "digits", replace(family, pretraining=told))
    path = tmp_path / "new" / "tiny.safetensors"
    write_backbone(path, tiny, epochs=None)
    weights = load_file(path)
    assert {value.dtype for value in weights.values()} == {torch.float16}
    build_model(tiny).load_state_dict(weights)
    log = json.loads(path.with_suffix(".json").read_text())
    assert log["sources"] == {"low": "01", "high": "23"}
    assert log["recipe"]["epochs"] == 2
    assert [record["epoch"] for record in log["log"]] == [1, 2]
    assert torch.__version__.startswith(log["versions"]["torch"])


def test_the_shipped_backbone_tells_pictures_apart(digits: Suite) -> None:
    weights = shipped_backbone("vit")
    assert weights is not None
    assert all(
        value.dtype == torch.float32 and value.isfinite().all() for value in weights.values()
    )
    model = build_model("vit").eval()
    model.load_state_dict(weights)
    task = digits.tasks["digits_low"].train
    with torch.no_grad():
        z = torch.nn.functional.normalize(model(scale_pixels(task.inputs[:100])), dim=1)
    alike = task.labels[:100, None] == task.labels[None, :100]
    cosines = z @ z.T
    assert cosines[alike].mean() > cosines[~alike].mean() + 0.05


def test_other_backbones_do_not_ship() -> None:
    assert shipped_backbone("mlp") is None
