"""The suite ``digits2``: scikit-learn's handwritten digits cut in two, 0-4 and 5-9."""

from pathlib import Path

import torch

from mergebook.suites.data import prepared
from mergebook.suites.families import pictures
from mergebook.suites.registry import Family, LoadedTask, Sizes, register
from mergelib.hashing import digest

TASKS = ("digits_low", "digits_high")


def load_task(name: str, sizes: Sizes, seed: int, data: str | Path | None, /) -> LoadedTask:
    """One half of the digits; nothing is read from the folder of data."""
    arrays = _arrays(name)
    return pictures.stored_task(name, arrays, sizes, seed), {name: arrays.sha256}


def _arrays(name: str) -> prepared.Arrays:
    """The 8 x 8 digits 0-4 or 5-9; every fourth picture of them is for testing."""
    from sklearn.datasets import load_digits

    bunch = load_digits()
    first = TASKS.index(name) * 5
    images = torch.from_numpy(bunch.images * (255 / 16)).round().to(torch.uint8)
    labels = torch.from_numpy(bunch.target).long()
    chosen = (labels >= first) & (labels < first + 5)
    images, labels = images[chosen], labels[chosen] - first
    resized = prepared.to_tensor(images[..., None].numpy())
    testing = torch.arange(len(labels)) % 4 == 3
    return prepared.Arrays(
        train_images=resized[~testing],
        train_labels=labels[~testing],
        test_images=resized[testing],
        test_labels=labels[testing],
        class_names=tuple(str(digit) for digit in range(first, first + 5)),
        sha256=digest([images, labels]),
    )


DIGITS = register(
    Family(
        "digits",
        {"digits2": TASKS},
        load_task,
        {"smoke": pictures.SMOKE, "default": (900, 150, 300), "full": (900, 150, 300)},
        **pictures.MODELS,
    )
)
