"""Families of small images on our own networks: digits, rendered glyphs, real sets."""

from dataclasses import replace
from importlib.metadata import version
from itertools import chain
from pathlib import Path

import torch
from torch import Tensor

from mergebook.suites.caching import VERSION, cached
from mergebook.suites.data import glyphs, media, prepared, sampling
from mergebook.suites.data.sampling import draw
from mergebook.suites.models import PICTURE_MODELS, scale_pixels
from mergebook.suites.pretraining import FALLBACK, PRETRAINING, pretrain
from mergebook.suites.registry import Family, LoadedTask, Pretraining, Sizes, register
from mergebook.suites.training import Recipe
from mergebook.suites.types import LabelledSet
from mergelib.evaluation.tasks import Split, Task
from mergelib.hashing import digest, fingerprint
from mergelib.io import cache_folder

DIGITS = ("digits_low", "digits_high")
PREPARED = (
    *("mnist", "fashion_mnist", "kmnist", "svhn_grey", "gtsrb", "eurosat", "cifar10", "resisc12"),
    *("cifar100", "fer2013", "emnist_letters", "dtd10", "flowers5", "pneumoniamnist"),
    *("caltech101", "pacs", "scenes15", "cars_body", "notmnist", "usps"),
)
PARTS = ("names", *(f"{part}.{i}" for part in ("train", "validation", "test") for i in (0, 1)))


def picture_task(
    name: str, class_names: tuple[str, ...], train: Split, validation: Split, test: Split
) -> Task:
    """A task of uint8 images: scaled pixels, cross-entropy, accuracy."""
    return Task(name, class_names, train, validation, test, transform=scale_pixels)


def stored_task(name: str, stored: LabelledSet, sizes: Sizes, seed: int) -> LoadedTask:
    """A task whose splits are drawn from a set of images; validation is part of training."""
    rows = draw(stored.train.labels, stored.test.labels, sizes, "split", name, seed)
    sources = (stored.train, stored.train, stored.test)
    splits = (Split(part.inputs[k], part.labels[k]) for part, k in zip(sources, rows, strict=True))
    return picture_task(name, stored.class_names, *splits), {name: stored.sha256}


def pretraining_sets() -> list[LabelledSet]:
    """The sets a backbone is pretrained on: prepared files that are found, and rendered scripts."""
    files = {"tiny_imagenet32": "tiny_imagenet32", "omniglot": "omniglot_small"}
    found = {name: file for name, file in files.items() if prepared.find_file(file) is not None}
    sets = [replace(prepared.load_arrays(file), name=name) for name, file in found.items()]
    return [*sets, *rendered_sets()]


def rendered_sets(per_class: int = 60, test_per_class: int = 8) -> list[LabelledSet]:
    """Rendered scripts that no suite uses, with this many images of each class."""
    names, splits = glyphs.render_pretraining(per_class, test_per_class, seed=0)
    train, test = (Split(*split) for split in splits)
    source = digest([train.inputs, train.labels, test.inputs, test.labels])
    return [LabelledSet("glyphs", names, train, test, source)]


def load_digits(name: str, sizes: Sizes, seed: int, data: str | Path | None, /) -> LoadedTask:
    """The 8 x 8 digits 0-4 or 5-9 of scikit-learn; every fourth image is for testing."""
    from sklearn import datasets

    bunch = datasets.load_digits()
    first = DIGITS.index(name) * 5
    images = torch.from_numpy(bunch.images * (255 / 16)).round().to(torch.uint8)
    labels = torch.from_numpy(bunch.target).long()
    chosen = (labels >= first) & (labels < first + 5)
    images, labels = images[chosen], labels[chosen] - first
    resized = prepared.to_tensor(images[..., None].numpy())
    testing = torch.arange(len(labels)) % 4 == 3
    train, test = (Split(resized[rows], labels[rows]) for rows in (~testing, testing))
    names = tuple(str(digit) for digit in range(first, first + 5))
    stored = LabelledSet(name, names, train, test, digest([images, labels]))
    return stored_task(name, stored, sizes, seed)


def load_glyphs(name: str, sizes: Sizes, seed: int, data: str | Path | None, /) -> LoadedTask:
    """Images of one script in exactly these sizes, from the cache or rendered now."""
    if sizes[2] is None:
        raise ValueError(f"task {name!r} is rendered: test_size must be a number")
    counts = (sizes[0], sizes[1], sizes[2])

    def render() -> dict[str, Tensor]:
        names, drawn = glyphs.render_task(name, counts, seed)
        tensors = [torch.tensor([*map(ord, names)]), *chain.from_iterable(drawn)]
        return dict(zip(PARTS, tensors, strict=True))

    code = [Path(str(module.__file__)).read_text("utf-8") for module in (glyphs, media, sampling)]
    code += [version(package) for package in ("torch", "matplotlib", "pillow")]
    made = {"version": VERSION, "name": name, "counts": counts, "seed": seed, "code": code}
    file = cache_folder() / "glyphs" / f"{name}-{fingerprint(made)}.safetensors"
    held = cached(file, render, {**made, "code": fingerprint(code)})
    names, *drawn = (held[key] for key in PARTS)
    splits = (Split(*drawn[place : place + 2]) for place in (0, 2, 4))
    task = picture_task(name, tuple(map(chr, names.tolist())), *splits)
    return task, {f"glyphs/{name}": digest(drawn)}


def load_prepared(name: str, sizes: Sizes, seed: int, data: str | Path | None, /) -> LoadedTask:
    """One prepared set, see `mergebook.suites.data.prepared`; sizes are at most what it has."""
    return stored_task(name, prepared.load_arrays(name, data), sizes, seed)


_SCRIPTS = {f"glyphs{count}": tuple(glyphs.SCRIPTS)[:count] for count in (8, 14, 20)}
_REAL = {f"vision{count}": PREPARED[:count] for count in (8, 14, 20)}
_PRETRAINING = Pretraining(pretrain, pretraining_sets, PRETRAINING, rendered_sets, FALLBACK)

for _name, _suites, _load, _default, _full in (
    ("digits", {"digits2": DIGITS}, load_digits, (900, 150, 300), (900, 150, 300)),
    ("glyphs", _SCRIPTS, load_glyphs, (1500, 300, 600), (4000, 500, 2000)),
    ("vision", _REAL, load_prepared, (4000, 500, 1000), (10000, 1000, 2000)),
):
    _sizes = {"smoke": (240, 48, 120), "default": _default, "full": _full}
    _networks = ("vit", PICTURE_MODELS, Recipe())
    register(Family(_name, _suites, _load, _sizes, *_networks, pretraining=_PRETRAINING))
