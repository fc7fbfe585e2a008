"""What the book's tests share: a small suite, a zoo of its tiny experts, texts, a cluster."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from mergebook.suites import models, zoo
from mergebook.suites.families import FAMILIES
from mergebook.suites.loading import load_suite
from mergebook.suites.training import Recipe
from mergebook.suites.types import LabelledSet
from mergelib.evaluation.tasks import Suite

TEXTS = {
    "tinyshakespeare": "To be, or not to be: that is the question.\n",
    "wikitext2_test": " = Lobster = \n The lobster is a large <unk> .\n",
    "don_quijote_es": "En un lugar de la Mancha, ¿qué añadir?\n",
    "names": "emma\nolivia\n",
    "wikitext2_valid": " = Homarus = \n It may grow to a length of 60 cm .\n",
}


@pytest.fixture(scope="session")
def digits() -> Suite:
    return load_suite("digits2", profile="smoke")


def make_tiny() -> models.VisionTransformer:
    return models.VisionTransformer(width=16, depth=1, heads=2)


def install(patch: pytest.MonkeyPatch, suite: Suite) -> None:
    """A model ``tiny``, and in place of the rendered scripts one set to pretrain it on."""
    low = suite.tasks["digits_low"]
    sets = [LabelledSet("glyphs", low.class_names, low.train, low.test, "0123")]
    family = FAMILIES["digits"]
    assert family.pretraining is not None
    recipe = Recipe(learning_rate=3e-3, epochs=1)
    pretraining = replace(family.pretraining, short_sets=lambda: sets, short_recipe=recipe)
    known = {**family.models, "tiny": make_tiny}
    patch.setitem(FAMILIES, "digits", replace(family, models=known, pretraining=pretraining))


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch, digits: Suite) -> str:
    install(monkeypatch, digits)
    return "tiny"


@pytest.fixture(scope="session")
def tiny_zoo(digits: Suite, tmp_path_factory: pytest.TempPathFactory) -> Iterator[zoo.Zoo]:
    """Experts that learned something: three epochs at a high rate."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MERGELIB_CACHE", str(tmp_path_factory.mktemp("zoo")))
        install(patch, digits)
        recipe = Recipe(learning_rate=5e-3, epochs=3, batch_size=32)
        loaded = zoo.load_zoo(digits, model="tiny", recipe=recipe)
    before = {key: value.clone() for key, value in loaded.pretrained.items()}
    yield loaded
    assert all(torch.equal(loaded.pretrained[key], before[key]) for key in before), (
        "a test spoilt it"
    )


@pytest.fixture
def text_folder(tmp_path: Path) -> Path:
    """Prepared texts: one line of each, again and again."""
    (tmp_path / "text").mkdir()
    for name, line in TEXTS.items():
        file = tmp_path / "text" / f"{name}.txt"
        file.write_text(line * (6000 // len(line)), encoding="utf-8", newline="\n")
    return tmp_path
