"""Sets that torchvision can download, each as two streams of (picture, label) and class names.

`SOURCES` maps a set's name to a function of the download folder. Sets without an official test
part (EuroSAT, Caltech 101) are cut: every fourth picture of a class goes to the test part.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from PIL import Image

Sample = tuple[Image.Image, int]


@dataclass(frozen=True)
class Source:
    """Both parts of a set, to be stored with `side` x `side` pixels, `grey` or in colour."""

    train: Iterable[Sample]
    test: Iterable[Sample]
    class_names: Sequence[str]
    side: int = 32
    grey: bool = False


def stream(dataset: Any) -> Iterator[Sample]:
    """The samples of an indexed data set, in order."""
    for index in range(len(dataset)):
        image, label = dataset[index]
        yield image, int(label)


def every_fourth(dataset: Any, labels: Sequence[int], *, test: bool) -> Iterator[Sample]:
    """Every fourth sample of each class (`test`), or all the others."""
    seen: Counter[int] = Counter()
    for index, label in enumerate(labels):
        seen[label] += 1
        if (seen[label] % 4 == 0) == test:
            yield dataset[index][0], int(label)


def _official(
    class_name: str, key: str, names: Sequence[str] | None = None, **stored: Any
) -> Callable[[Path], Source]:
    """A set with official parts, told apart by ``train=True/False`` or ``split="train"/"test"``.

    `names` default to the set's own ``classes``; `stored` are `side` and `grey` of the Source.
    """
    parts: tuple[Any, Any] = (True, False) if key == "train" else ("train", "test")

    def source(root: Path) -> Source:
        from torchvision import datasets

        kind = getattr(datasets, class_name)
        train, test = (kind(root, **{key: part}, download=True) for part in parts)
        return Source(stream(train), stream(test), names or train.classes, **stored)

    return source


def _emnist_letters(root: Path) -> Source:
    from torchvision import datasets

    def upright(train: bool) -> Iterator[Sample]:
        # EMNIST stores its pictures transposed and counts the letters from 1.
        letters = datasets.EMNIST(root, split="letters", train=train, download=True)
        for image, label in stream(letters):
            yield image.transpose(Image.Transpose.TRANSPOSE), label - 1

    return Source(upright(True), upright(False), "ABCDEFGHIJKLMNOPQRSTUVWXYZ", side=28, grey=True)


def _eurosat(root: Path) -> Source:
    from torchvision import datasets

    dataset = datasets.EuroSAT(root, download=True)
    return _cut(dataset, dataset.targets, dataset.classes)


def _caltech101(root: Path) -> Source:
    from torchvision import datasets

    dataset = datasets.Caltech101(root, download=True)
    return _cut(dataset, dataset.y, dataset.categories)


def _cut(dataset: Any, labels: Sequence[int], names: Sequence[str]) -> Source:
    train = every_fourth(dataset, labels, test=False)
    return Source(train, every_fourth(dataset, labels, test=True), names)


def _dtd10(root: Path) -> Source:
    from torchvision import datasets

    train, validation, test = (
        datasets.DTD(root, split=split, download=True) for split in ("train", "val", "test")
    )

    def first_ten(*parts: Any) -> Iterator[Sample]:
        return (sample for part in parts for sample in stream(part) if sample[1] < 10)

    return Source(first_ten(train, validation), first_ten(test), train.classes[:10])


def _fer2013(root: Path) -> Source:
    from torchvision import datasets

    train, test = (datasets.FER2013(root, split=split) for split in ("train", "test"))
    if test[0][1] is None:
        raise RuntimeError("the labels of the test part are only in fer2013.csv")
    names = ("angry", "disgust", "fear", "happy", "sad", "surprise", "neutral")
    return Source(stream(train), stream(test), names, grey=True)


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
    "eurosat": _eurosat,
    "dtd10": _dtd10,
    "fer2013": _fer2013,
    "caltech101": _caltech101,
    "flowers102": _official("Flowers102", "split", [f"flower {k}" for k in range(1, 103)]),
    "pcam": _official("PCAM", "split", ["normal", "tumour"]),
}
