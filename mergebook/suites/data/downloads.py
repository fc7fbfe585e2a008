"""Sets that torchvision can download, each as two streams of (image, label) and class names."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from PIL import Image
from torchvision import datasets

Sample = tuple[Image.Image, int]


@dataclass(frozen=True)
class Source:
    """Both parts of a set, to be stored with `side` x `side` pixels, `grey` or in colour."""

    train: Iterable[Sample]
    test: Iterable[Sample]
    class_names: Sequence[str]
    side: int = 32
    grey: bool = False


def _stream(dataset: Any, rows: Iterable[int] | None = None) -> Iterator[Sample]:
    return (dataset[row] for row in (range(len(dataset)) if rows is None else rows))


def _official(
    class_name: str, key: str, names: Sequence[str] | None = None, **stored: Any
) -> Callable[[Path], Source]:
    """A set with official parts, ``train=True/False`` or ``split="train"/"test"``."""
    parts: tuple[Any, Any] = (True, False) if key == "train" else ("train", "test")

    def source(root: Path) -> Source:
        kind = getattr(datasets, class_name)
        train, test = (kind(root, **{key: part}, download=True) for part in parts)
        return Source(_stream(train), _stream(test), names or train.classes, **stored)

    return source


def _cut(class_name: str, labels: str, names: str) -> Callable[[Path], Source]:
    """A set without a test part, to which every fourth image of a class goes."""

    def source(root: Path) -> Source:
        dataset = getattr(datasets, class_name)(root, download=True)
        seen: Counter[int] = Counter()
        parts: tuple[list[int], list[int]] = ([], [])
        for index, label in enumerate(getattr(dataset, labels)):
            seen[label] += 1
            parts[seen[label] % 4 == 0].append(index)
        train, test = (_stream(dataset, part) for part in parts)
        return Source(train, test, getattr(dataset, names))

    return source


def _emnist_letters(root: Path) -> Source:
    def upright(train: bool) -> Iterator[Sample]:
        # EMNIST stores its pictures transposed and counts the letters from 1.
        stored = datasets.EMNIST(root, split="letters", train=train, download=True)
        for image, label in _stream(stored):
            yield image.transpose(Image.Transpose.TRANSPOSE), label - 1

    return Source(upright(True), upright(False), "ABCDEFGHIJKLMNOPQRSTUVWXYZ", side=28, grey=True)


def _dtd10(root: Path) -> Source:
    """The first ten classes; the validation part joins the training part."""
    parts = [datasets.DTD(root, split=part, download=True) for part in ("train", "val", "test")]

    def first_ten(*parts: Any) -> Iterator[Sample]:
        return (sample for part in parts for sample in _stream(part) if sample[1] < 10)

    return Source(first_ten(*parts[:2]), first_ten(parts[2]), parts[0].classes[:10])


def _fer2013(root: Path) -> Source:
    train, test = (datasets.FER2013(root, split=split) for split in ("train", "test"))
    if test[0][1] is None:
        raise RuntimeError("the labels of the test part are only in fer2013.csv")
    names = ("angry", "disgust", "fear", "happy", "sad", "surprise", "neutral")
    return Source(_stream(train), _stream(test), names, grey=True)


SOURCES: dict[str, Callable[[Path], Source]] = {
    "mnist": _official("MNIST", "train", "0123456789", side=28, grey=True),
    "fashion_mnist": _official("FashionMNIST", "train", side=28, grey=True),
    "kmnist": _official("KMNIST", "train", side=28, grey=True),
    "usps": _official("USPS", "train", "0123456789", side=16, grey=True),
    "emnist_letters": _emnist_letters,
    "svhn_grey": _official("SVHN", "split", "0123456789", grey=True),
    "gtsrb": _official("GTSRB", "split", [f"sign {k}" for k in range(43)]),
    "cifar10": _official("CIFAR10", "train"),
    "cifar100": _official("CIFAR100", "train"),
    "eurosat": _cut("EuroSAT", "targets", "classes"),
    "dtd10": _dtd10,
    "fer2013": _fer2013,
    "caltech101": _cut("Caltech101", "y", "categories"),
}
