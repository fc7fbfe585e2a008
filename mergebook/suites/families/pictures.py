"""What families of small pictures have in common: tasks cut from stored sets, and pretraining."""

from pathlib import Path
from typing import Any

from mergebook.suites.data import glyphs, prepared
from mergebook.suites.data.sampling import draw
from mergebook.suites.models import PICTURE_MODELS, scale_pixels
from mergebook.suites.pretraining import FALLBACK, PRETRAINING, pretrain
from mergebook.suites.registry import Pretraining, Sizes
from mergebook.suites.training import Recipe
from mergebook.suites.types import PretrainingSet
from mergelib.evaluation.tasks import Split, Task
from mergelib.hashing import digest


def picture_task(
    name: str, class_names: tuple[str, ...], train: Split, validation: Split, test: Split
) -> Task:
    """A task of uint8 pictures: scaled pixels, cross-entropy, accuracy."""
    return Task(name, class_names, train, validation, test, transform=scale_pixels)


def stored_task(name: str, arrays: prepared.Arrays, sizes: Sizes, seed: int) -> Task:
    """A task whose splits are drawn from a set of pictures; validation is part of training."""
    rows = draw(arrays.train_labels, arrays.test_labels, sizes, "split", name, seed)
    train, validation = (Split(arrays.train_images[k], arrays.train_labels[k]) for k in rows[:2])
    test = Split(arrays.test_images[rows[2]], arrays.test_labels[rows[2]])
    return picture_task(name, arrays.class_names, train, validation, test)


def pretraining_sets(
    data: str | Path | None = None,
    *,
    seed: int = 0,
    glyphs_per_class: int = 60,
    glyphs_test_per_class: int = 8,
) -> list[PretrainingSet]:
    """The sets a backbone is pretrained on: rendered scripts, and prepared files that are found."""
    sets = []
    for name, file in (("tiny_imagenet32", "tiny_imagenet32"), ("omniglot", "omniglot_small")):
        if prepared.find_file(file, data) is not None:
            arrays = prepared.load_arrays(file, data)
            train = Split(arrays.train_images, arrays.train_labels)
            test = Split(arrays.test_images, arrays.test_labels)
            sets.append(PretrainingSet(name, arrays.class_names, train, test, arrays.sha256))
    return [*sets, *rendered_sets(glyphs_per_class, glyphs_test_per_class, seed=seed)]


def rendered_sets(
    per_class: int = 60, test_per_class: int = 8, *, seed: int = 0
) -> list[PretrainingSet]:
    """Rendered scripts that no suite uses, with this many pictures of each class."""
    names, splits = glyphs.render_pretraining(per_class, test_per_class, seed)
    train, test = (Split(*split) for split in splits)
    source = digest([train.inputs, train.labels, test.inputs, test.labels])
    return [PretrainingSet("glyphs", names, train, test, source)]


# What a family of small pictures says of its models.
MODELS: dict[str, Any] = {
    "model": "vit",
    "models": PICTURE_MODELS,
    "recipe": Recipe(),
    "pretraining": Pretraining(pretrain, pretraining_sets, PRETRAINING, rendered_sets, FALLBACK),
}
SMOKE: Sizes = (240, 48, 120)
