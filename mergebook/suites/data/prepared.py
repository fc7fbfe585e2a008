"""Prepared image sets: where they are found, how they are read, checked and made.

A file ``NAME.npz`` has ``train_images`` and ``test_images`` (uint8, N x H x W x C, C = 1 or 3),
``train_labels`` and ``test_labels`` (integers from 0) and ``class_names``. It is looked for in
``data``, else ``MERGELIB_DATA``, then in the cache, to which torchvision's sets are downloaded.
"""

import io
import lzma
import os
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor

from mergebook.suites.data.origins import records
from mergebook.suites.types import LabelledSet
from mergelib.evaluation.tasks import Split
from mergelib.hashing import sha256_of
from mergelib.io import cache_folder, staged
from mergelib.progress import progress

if TYPE_CHECKING:
    from mergebook.suites.data.downloads import Source

SIDE = 32
PER_CLASS = {"train": 5000, "test": 1000}  # the first pictures of a class, which are prepared

CATALOGUE = records("pictures", dict[str, Any])  # name to what a set shows, classes and licence


def search_folders(data: str | Path | None = None) -> list[Path]:
    """Folders in which prepared sets are looked for, first choice first."""
    chosen = data or os.environ.get("MERGELIB_DATA")
    folders = [Path(chosen).expanduser()] if chosen else []
    return [*folders, cache_folder() / "data"]


def check_name(name: str) -> None:
    """Raise ValueError, listing the known sets, unless `name` is one of them."""
    if name not in CATALOGUE:
        raise ValueError(f"unknown data set {name!r}; known: {', '.join(sorted(CATALOGUE))}")


def find(path: str, data: str | Path | None = None) -> Path | None:
    """The first file of this relative path in the search folders, or None."""
    files = (folder / path for folder in search_folders(data))
    return next((file for file in files if file.is_file()), None)


def find_file(name: str, data: str | Path | None = None) -> Path | None:
    """The prepared file of a set, or None if no search folder holds it."""
    check_name(name)
    first, *others = search_folders(data)
    if others and not first.is_dir():
        raise ValueError(f"data folder {first} does not exist (data= or MERGELIB_DATA)")
    files = (f / f"{name}{kind}.npz" for f in (first, *others) for kind in ("", "_sheets"))
    return next((file for file in files if file.is_file()), None)


def load_arrays(name: str, data: str | Path | None = None) -> LabelledSet:
    """Load a prepared set as (N, 3, 32, 32): 28 x 28 is padded, any other size is resized."""
    path = find_file(name, data) or prepare(name)
    digest = sha256_of(path)
    raw = _read(path)
    names = tuple(str(n) for n in raw["class_names"])
    train, test = (_part(path, part, raw, len(names)) for part in ("train", "test"))
    return LabelledSet(name, names, train, test, digest)


def to_tensor(images: np.ndarray) -> Tensor:
    """uint8 (N, H, W, C) images, C = 1 or 3, as a contiguous uint8 tensor (N, 3, 32, 32)."""
    tensor = torch.from_numpy(images).permute(0, 3, 1, 2)
    if tensor.shape[-2:] == (28, 28):
        tensor = F.pad(tensor, (2, 2, 2, 2))
    elif tensor.shape[-2:] != (SIDE, SIDE):
        tensor = torch.cat([_resize(chunk) for chunk in tensor.split(2048)])
    return tensor.expand(-1, 3, -1, -1).contiguous()


def _resize(images: Tensor) -> Tensor:
    floats = F.interpolate(images.float(), (SIDE, SIDE), mode="bicubic", antialias=True)
    return floats.round().clamp(0, 255).to(torch.uint8)


_ARRAYS = ("train_images", "train_labels", "test_images", "test_labels", "class_names")
_DAMAGE = (OSError, EOFError, KeyError, ValueError, zipfile.BadZipFile, lzma.LZMAError, zlib.error)


def _read(path: Path) -> dict[str, np.ndarray]:
    try:
        archive = np.load(path, allow_pickle=False)
    except _DAMAGE as error:
        raise ValueError(f"{path}: not a readable .npz file ({error})") from error
    with archive:
        sheets = [n for n in archive.files if n.startswith("train_sheet_")]
        raw = {}
        for member in _ARRAYS:
            try:
                if sheets and member.endswith("_images"):
                    raw[member] = _read_sheets(archive, member.removesuffix("_images"))
                else:
                    raw[member] = archive[member]
            except _DAMAGE as error:
                reason = "is missing" if isinstance(error, KeyError) else f"is damaged ({error})"
                raise ValueError(f"{path}: array {member!r} {reason}") from error
    return raw


def _read_sheets(archive: Any, part: str) -> np.ndarray:
    """Images kept as JPEG sheets of 32 x 32 tiles: uint8 (N, 32, 32, 3), in label order."""
    tiles = []
    for member in sorted(n for n in archive.files if n.startswith(f"{part}_sheet_")):
        sheet = np.asarray(Image.open(io.BytesIO(archive[member].tobytes())).convert("RGB"))
        rows, columns = sheet.shape[0] // SIDE, sheet.shape[1] // SIDE
        grid = sheet.reshape(rows, SIDE, columns, SIDE, 3).transpose(0, 2, 1, 3, 4)
        tiles.append(grid.reshape(-1, SIDE, SIDE, 3))
    return np.concatenate(tiles)


def _part(path: Path, part: str, raw: Mapping[str, np.ndarray], classes: int) -> Split:
    images, labels = raw[f"{part}_images"], raw[f"{part}_labels"]
    problem = ""
    if images.dtype != np.uint8 or images.ndim != 4 or images.shape[-1] not in (1, 3):
        found = f"{images.dtype} {images.shape}"
        problem = f"'{part}_images' is {found}, expected uint8 (N, H, W, 1 or 3)"
    elif labels.dtype.kind not in "ui" or labels.shape != images.shape[:1]:
        found, expected = f"{labels.dtype} {labels.shape}", f"integers of shape ({len(images)},)"
        problem = f"'{part}_labels' is {found}, expected {expected}"
    elif len(labels) == 0 or labels.min() < 0 or labels.max() >= classes:
        found = f"{labels.min()} to {labels.max()}" if len(labels) else "none"
        problem = f"'{part}_labels' must hold labels from 0 to {classes - 1}, found {found}"
    if problem:
        raise ValueError(f"{path}: array {problem}")
    return Split(to_tensor(images), torch.from_numpy(labels.astype(np.int64)))


def prepare(name: str) -> Path:
    """Write ``NAME.npz`` from torchvision's data set, unless it is there, and return its path."""
    from mergebook.suites.data.downloads import SOURCES  # torchvision is imported only when needed

    target = _target(name)
    if target.is_file():
        return target
    if name not in SOURCES:
        raise ValueError(
            f"data set {name!r} is neither prepared nor to be had from torchvision: put {name}.npz "
            f"into one of {', '.join(map(str, search_folders()))}, or make it from "
            "pictures in folders train/<class>/ and test/<class>/ with "
            f"mergebook.suites.data.prepared.prepare_folder({name!r}, FOLDER)"
        )
    root = cache_folder() / "downloads"
    root.mkdir(parents=True, exist_ok=True)
    try:
        source = SOURCES[name](root)
    except (OSError, RuntimeError) as error:
        raise ValueError(
            f"data set {name!r} could not be had from torchvision ({error}); files fetched by hand "
            f"belong into {root}, a prepared {name}.npz into {target.parent}"
        ) from error
    return _write_set(target, source)


def prepare_folder(name: str, folder: str | Path) -> Path:
    """Write ``NAME.npz`` from the centre squares of ``train/<class>/`` and ``test/<class>/``."""
    from torchvision.datasets import ImageFolder

    from mergebook.suites.data.downloads import Source

    target = _target(name)
    try:
        train, test = (ImageFolder(str(Path(folder) / part)) for part in ("train", "test"))
    except FileNotFoundError as error:  # no folder, no class in it, or no picture of a class
        raise ValueError(f"{folder}: {error}") from error
    if train.classes != test.classes:
        odd = sorted(set(train.classes) ^ set(test.classes))
        raise ValueError(f"{folder}: class folders in only one of train/ and test/: {odd}")
    return _write_set(target, Source(train, test, train.classes))


def _target(name: str) -> Path:
    check_name(name)
    return cache_folder() / "data" / f"{name}.npz"


def _write_set(target: Path, source: "Source") -> Path:
    names = list(source.class_names)
    raw: dict[str, np.ndarray] = {"class_names": np.array(names)}
    for part, samples in (("train", source.train), ("test", source.test)):
        images, labels, count = [], [], [0] * len(names)
        for image, label in progress(samples, desc=f"{target.stem} {part}"):
            if count[label] < PER_CLASS[part]:
                count[label] += 1
                images.append(_square(image, source.side, source.grey))
                labels.append(label)
        raw[f"{part}_images"] = np.stack(images)
        raw[f"{part}_labels"] = np.array(labels, dtype=np.min_scalar_type(len(names) - 1))
    with staged(target) as draft, draft.open("wb") as file:
        np.savez_compressed(file, **raw)  # type: ignore[arg-type]
    return target


def _square(image: Image.Image, side: int, grey: bool) -> np.ndarray:
    """Centre square of an image, resized: uint8 (side, side, 1 or 3)."""
    image = image.convert("L" if grey else "RGB")
    edge = min(image.size)
    left, top = (image.width - edge) // 2, (image.height - edge) // 2
    box = (left, top, left + edge, top + edge)
    if image.size != (side, side):
        image = image.resize((side, side), Image.Resampling.BICUBIC, box=box)
    return np.asarray(image).reshape(side, side, -1)
