"""Prepared sets: every route to a set, run offline, and every way in which a file can be wrong."""

import gzip
import io
import struct
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image

from mergebook.suites.data import downloads
from mergebook.suites.data import prepared as data
from mergelib.hashing import sha256_of
from mergelib.io import cache_folder


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MERGELIB_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("MERGELIB_DATA", raising=False)


def small_set(
    side: int = 32, channels: int = 3, classes: int = 3, **changes: NDArray[Any]
) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    arrays: dict[str, Any] = {"class_names": np.array([f"class {k}" for k in range(classes)])}
    for part, size in (("train", 9), ("test", 6)):
        shape = (size, side, side, channels)
        arrays[f"{part}_images"] = rng.integers(0, 256, shape, dtype=np.uint8)
        arrays[f"{part}_labels"] = (np.arange(size) % classes).astype(np.uint8)
    return arrays | changes


def write(folder: Path, name: str = "mnist", **arrays: Any) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(folder / f"{name}.npz", **arrays)
    return folder / f"{name}.npz"


def test_round_trip_of_a_colour_set(tmp_path: Path) -> None:
    arrays = small_set()
    path = write(tmp_path, "cifar10", **arrays)
    loaded = data.load_arrays("cifar10", tmp_path)
    assert loaded.train.inputs.shape == (9, 3, 32, 32)
    assert loaded.train.inputs.dtype == torch.uint8
    assert loaded.train.labels.dtype == torch.int64
    np.testing.assert_array_equal(
        loaded.test.inputs.permute(0, 2, 3, 1).numpy(), arrays["test_images"]
    )
    assert loaded.class_names == ("class 0", "class 1", "class 2")
    assert loaded.sha256 == sha256_of(path)


def test_28_is_padded_with_zeros_and_grey_is_repeated(tmp_path: Path) -> None:
    arrays = small_set(side=28, channels=1)
    write(tmp_path, **arrays)
    images = data.load_arrays("mnist", tmp_path).train.inputs
    assert torch.equal(images[:, 0], images[:, 1])
    assert torch.equal(images[:, 0], images[:, 2])
    inner = images[:, 0, 2:-2, 2:-2].numpy()
    np.testing.assert_array_equal(inner, arrays["train_images"][..., 0])
    assert int(images.sum()) == 3 * int(arrays["train_images"].astype(np.int64).sum())


@pytest.mark.parametrize("side", [8, 16, 48])
def test_other_sizes_are_resized_and_constants_stay(side: int) -> None:
    flat = np.full((2, side, side, 1), 137, dtype=np.uint8)
    assert torch.equal(data.to_tensor(flat), torch.full((2, 3, 32, 32), 137, dtype=torch.uint8))


def test_search_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for folder in ("given", "environment", "cache/data"):
        write(tmp_path / folder, **small_set(class_names=np.array([folder] * 3)))
    assert data.load_arrays("mnist").class_names[0] == "cache/data"
    monkeypatch.setenv("MERGELIB_DATA", str(tmp_path / "environment"))
    assert data.load_arrays("mnist").class_names[0] == "environment"
    assert data.load_arrays("mnist", tmp_path / "given").class_names[0] == "given"
    (tmp_path / "given" / "mnist.npz").unlink()
    assert data.load_arrays("mnist", tmp_path / "given").class_names[0] == "cache/data"


def test_a_folder_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="nowhere does not exist"):
        data.load_arrays("mnist", tmp_path / "nowhere")


def test_unknown_name_lists_the_known(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"unknown data set 'mnits'; known: .*mnist"):
        data.load_arrays("mnits", tmp_path)


@pytest.mark.parametrize(
    ("changes", "array"),
    [
        ({"train_images": np.zeros((9, 32, 32, 3), np.float32)}, "train_images"),
        ({"train_images": np.zeros((9, 32, 32), np.uint8)}, "train_images"),
        ({"test_images": np.zeros((6, 32, 32, 2), np.uint8)}, "test_images"),
        ({"train_labels": np.zeros(8, np.uint8)}, "train_labels"),
        ({"train_labels": np.zeros(9)}, "train_labels"),
        ({"test_labels": np.full(6, 3, np.uint8)}, "test_labels"),
        ({"train_labels": np.full(9, -1)}, "train_labels"),
    ],
)
def test_wrong_arrays_are_named(tmp_path: Path, changes: dict[str, Any], array: str) -> None:
    path = write(tmp_path, **small_set(**changes))
    with pytest.raises(ValueError, match=array) as caught:
        data.load_arrays("mnist", tmp_path)
    assert str(path) in str(caught.value)


def test_missing_array_is_named(tmp_path: Path) -> None:
    arrays = small_set()
    del arrays["test_labels"]
    write(tmp_path, **arrays)
    with pytest.raises(ValueError, match=r"mnist\.npz: array 'test_labels' is missing"):
        data.load_arrays("mnist", tmp_path)


def test_truncated_file_is_named(tmp_path: Path) -> None:
    path = write(tmp_path, **small_set())
    path.write_bytes(path.read_bytes()[:-200])
    with pytest.raises(ValueError, match=r"mnist\.npz: not a readable"):
        data.load_arrays("mnist", tmp_path)


def test_corrupt_member_is_named(tmp_path: Path) -> None:
    path = write(tmp_path, **small_set())
    content = bytearray(path.read_bytes())
    start = content.index(b"train_images.npy") + 5000  # within the compressed pictures
    content[start : start + 64] = bytes(64)
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"mnist\.npz: array 'train_images' is damaged"):
        data.load_arrays("mnist", tmp_path)


def test_pickles_are_refused(tmp_path: Path) -> None:
    write(tmp_path, **small_set(class_names=np.array(["a", None], dtype=object)))
    with pytest.raises(ValueError, match="class_names"):
        data.load_arrays("mnist", tmp_path)


def jpeg_sheet(tiles: NDArray[np.uint8], columns: int) -> NDArray[np.uint8]:
    """Tiles (N, 32, 32, 3), N a multiple of `columns`, as the bytes of one JPEG."""
    rows = [np.concatenate(list(tiles[i : i + columns]), 1) for i in range(0, len(tiles), columns)]
    buffer = io.BytesIO()
    Image.fromarray(np.concatenate(rows)).save(buffer, "JPEG", quality=100, subsampling=0)
    return np.frombuffer(buffer.getvalue(), dtype=np.uint8)


def test_jpeg_sheets_are_cut_in_label_order(tmp_path: Path) -> None:
    shades = np.arange(12, dtype=np.uint8) * 20
    tiles = np.broadcast_to(shades[:, None, None, None], (12, 32, 32, 3))
    arrays = {
        "train_sheet_00": jpeg_sheet(tiles[:6], 3),
        "train_sheet_01": jpeg_sheet(tiles[6:], 2),
        "test_sheet_00": jpeg_sheet(tiles[:4], 2),
        "train_labels": np.arange(12, dtype=np.uint8),
        "test_labels": np.arange(4, dtype=np.uint8),
        "class_names": np.array([str(k) for k in range(12)]),
    }
    write(tmp_path, "tiny_imagenet32_sheets", **arrays)
    loaded = data.load_arrays("tiny_imagenet32", tmp_path)
    means = loaded.train.inputs.float().mean((1, 2, 3))
    torch.testing.assert_close(means, torch.from_numpy(shades).float(), atol=1.5, rtol=0)
    assert loaded.test.inputs.shape == (4, 3, 32, 32)


# --- preparing -------------------------------------------------------------------------------


def test_a_set_without_download_says_what_to_do() -> None:
    with pytest.raises(ValueError, match=r"resisc12\.npz.*prepare_folder\('resisc12'"):
        data.load_arrays("resisc12")


def write_idx(path: Path, array: NDArray[np.uint8]) -> None:
    header = struct.pack(">I", 0x0800 + array.ndim) + struct.pack(f">{array.ndim}I", *array.shape)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(header + array.tobytes())
    with gzip.open(f"{path}.gz", "wb") as file:
        file.write(header + array.tobytes())


def test_mnist_through_torchvision(tmp_path: Path) -> None:
    raw = tmp_path / "cache" / "downloads" / "MNIST" / "raw"
    rng = np.random.default_rng(1)
    images = rng.integers(0, 256, (30, 28, 28), dtype=np.uint8)
    for stem, part in (("train", images), ("t10k", images[:20])):
        write_idx(raw / f"{stem}-images-idx3-ubyte", part)
        labels = (np.arange(len(part)) % 10).astype(np.uint8)
        write_idx(raw / f"{stem}-labels-idx1-ubyte", labels)
    loaded = data.load_arrays("mnist")
    np.testing.assert_array_equal(loaded.train.inputs[:, 0, 2:-2, 2:-2].numpy(), images)
    assert loaded.class_names == tuple("0123456789")
    assert len(loaded.test.labels) == 20
    prepared = tmp_path / "cache" / "data"
    assert [path.name for path in prepared.iterdir()] == ["mnist.npz"]
    stamp = (prepared / "mnist.npz").stat().st_mtime_ns
    assert data.prepare("mnist").stat().st_mtime_ns == stamp


def test_eurosat_is_cut_by_class(tmp_path: Path) -> None:
    base = tmp_path / "cache" / "downloads" / "eurosat" / "2750"
    for shade, name in ((40, "Forest"), (200, "River")):
        (base / name).mkdir(parents=True)
        for k in range(8):
            Image.new("RGB", (64, 64), (shade, shade, k)).save(base / name / f"{name}_{k}.png")
    path = data.prepare("eurosat")
    assert path == tmp_path / "cache" / "data" / "eurosat.npz"
    loaded = data.load_arrays("eurosat")
    assert loaded.class_names == ("Forest", "River")
    assert loaded.train.labels.bincount().tolist() == [6, 6]
    assert loaded.test.labels.bincount().tolist() == [2, 2]
    assert sorted(set(loaded.test.inputs[:, 2].flatten().tolist())) == [3, 7]


class FakeSet:
    """Ten pictures whose left column is white, labels 1 to 5 or 0 to 4."""

    classes = ("a", "b", "c", "d", "e")

    def __init__(self, root: str, download: bool = True, **options: object) -> None:
        self.first = 1 if "letters" in options.values() else 0

    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: int) -> tuple[Image.Image, int]:
        picture = np.zeros((28, 28), dtype=np.uint8)
        picture[:, 0] = 255
        return Image.fromarray(picture), self.first + index % 5


def test_emnist_is_set_upright_and_counted_from_zero(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torchvision.datasets.EMNIST", FakeSet)
    loaded = data.load_arrays("emnist_letters")
    assert sorted(set(loaded.train.labels.tolist())) == [0, 1, 2, 3, 4]
    assert bool((loaded.train.inputs[:, :, 2, 2:-2] == 255).all())
    assert int(loaded.train.inputs[:, :, 3:].sum()) == 0


@pytest.mark.parametrize(
    ("name", "class_name"),
    [
        ("svhn_grey", "SVHN"),
        ("gtsrb", "GTSRB"),
        ("cifar100", "CIFAR100"),
        ("kmnist", "KMNIST"),
        ("usps", "USPS"),
        ("dtd10", "DTD"),
    ],
)
def test_other_torchvision_sets(
    name: str, class_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"torchvision.datasets.{class_name}", FakeSet)
    source = downloads.SOURCES[name](cache_folder())
    samples = list(source.train)
    assert len(samples) == (20 if name == "dtd10" else 10)  # DTD's validation part joins training
    assert [label for _, label in samples[:5]] == [0, 1, 2, 3, 4]


def test_no_more_than_the_limit_of_a_class(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torchvision.datasets.CIFAR10", FakeSet)
    monkeypatch.setattr(data, "PER_CLASS", {"train": 2, "test": 1})
    loaded = data.load_arrays("cifar10")
    assert loaded.train.labels.bincount().tolist() == [2] * 5
    assert loaded.test.labels.bincount().tolist() == [1] * 5


def test_failed_download_says_where_files_belong(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*args: object, **options: object) -> None:
        raise OSError("no route to host")

    monkeypatch.setattr("torchvision.datasets.CIFAR10", broken)
    with pytest.raises(ValueError, match=r"no route to host.*downloads.*cifar10\.npz"):
        data.load_arrays("cifar10")


def test_fer2013_without_its_file_says_where_it_belongs() -> None:
    with pytest.raises(ValueError, match="fer2013"):
        data.load_arrays("fer2013")


def test_interrupted_writing_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(file: BinaryIO, **arrays: object) -> None:
        file.write(b"half")
        raise KeyboardInterrupt

    monkeypatch.setattr("torchvision.datasets.CIFAR10", FakeSet)
    monkeypatch.setattr(np, "savez_compressed", fail)
    with pytest.raises(KeyboardInterrupt):
        data.prepare("cifar10")
    assert list((tmp_path / "cache" / "data").iterdir()) == []


def picture_folders(
    root: Path, classes: tuple[str, ...] = ("cat", "dog"), size: tuple[int, int] = (50, 40)
) -> Path:
    for part in ("train", "test"):
        for shade, name in enumerate(classes):
            (root / part / name).mkdir(parents=True)
            Image.new("RGB", size, (90 * shade, 10, 200)).save(root / part / name / "1.png")
    return root


def test_prepare_folder(tmp_path: Path) -> None:
    folder = picture_folders(tmp_path / "pictures")
    data.prepare_folder("resisc12", folder)
    loaded = data.load_arrays("resisc12")
    assert loaded.class_names == ("cat", "dog")
    assert loaded.train.labels.tolist() == [0, 1]
    assert loaded.train.inputs[1, :, 16, 16].tolist() == [90, 10, 200]


def test_prepare_folder_takes_the_centre_square(tmp_path: Path) -> None:
    folder = picture_folders(tmp_path / "pictures", classes=("one",))
    wide = np.zeros((32, 96, 3), dtype=np.uint8)
    wide[:, 32:64] = 255
    Image.fromarray(wide).save(folder / "train" / "one" / "1.png")
    data.prepare_folder("notmnist", folder)
    assert int(data.load_arrays("notmnist").train.inputs.min()) == 255


def test_prepare_folder_refuses_what_is_incomplete(tmp_path: Path) -> None:
    folder = picture_folders(tmp_path / "pictures")
    (folder / "train" / "fox").mkdir()
    with pytest.raises(ValueError, match="no valid file for the classes fox"):
        data.prepare_folder("pacs", folder)
    Image.new("L", (8, 8)).save(folder / "train" / "fox" / "a.jpg")
    with pytest.raises(ValueError, match=r"only one of train/ and test/: \['fox'\]"):
        data.prepare_folder("pacs", folder)
    with pytest.raises(ValueError, match="No such file or directory"):
        data.prepare_folder("pacs", folder / "train")
