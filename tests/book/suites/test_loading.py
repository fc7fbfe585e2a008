"""Suites: shapes, sizes, splits that do not overlap and keep the classes' shares."""

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from mergebook.suites.data import glyphs, media
from mergebook.suites.families import known_suites, pictures
from mergebook.suites.loading import load_suite
from mergelib.evaluation.tasks import Split


def write_set(
    folder: Path,
    name: str,
    train: int = 100,
    test: int = 40,
    classes: int = 4,
    stem: str | None = None,
) -> None:
    """A set whose pictures carry their own row number in the first three pixels of channel 0."""
    arrays: dict[str, Any] = {"class_names": np.array([f"class {k}" for k in range(classes)])}
    for part, size in (("train", train), ("test", test)):
        images = np.zeros((size, 32, 32, 3), dtype=np.uint8)
        images[:, 0, 0, 0] = np.arange(size) % 256
        images[:, 0, 1, 0] = np.arange(size) // 256
        images[:, 0, 2, 0] = part == "train"
        arrays[f"{part}_images"] = images
        arrays[f"{part}_labels"] = (np.arange(size) % classes).astype(np.uint8)
    folder.mkdir(exist_ok=True)
    np.savez(folder / f"{stem or name}.npz", **arrays)


def rows(split: Split) -> set[int]:
    marks = split.inputs[:, 0, 0, :3].long()
    return set((marks[:, 0] + 256 * marks[:, 1] + 65536 * marks[:, 2]).tolist())


def test_digits2() -> None:
    suite = load_suite("digits2", train_size=50, validation_size=20, test_size=30)
    assert list(suite.tasks) == ["digits_low", "digits_high"]
    assert suite.tasks["digits_high"].class_names == ("5", "6", "7", "8", "9")
    for task in suite.tasks.values():
        sizes = [len(task.train), len(task.validation), len(task.test)]
        assert sizes == [50, 20, 30]
        assert task.train.inputs.shape == (50, 3, 32, 32)
        assert set(task.train.labels.tolist()) == {0, 1, 2, 3, 4}
    assert len(suite.sources["digits_low"]) == 64


def test_digits2_labels_belong_to_the_pictures() -> None:
    suite = load_suite("digits2", validation_size=0)
    task = suite.tasks["digits_low"]

    def flat(split: Split) -> Tensor:
        return split.inputs[:, 0, ::4, ::4].flatten(1).float()

    nearest = torch.cdist(flat(task.test), flat(task.train)).argmin(1)
    assert float((task.train.labels[nearest] == task.test.labels).float().mean()) > 0.9


@pytest.mark.parametrize("count", [8, 14, 20])
def test_glyph_and_vision_suites_are_prefixes(count: int) -> None:
    for kind in ("glyphs", "vision"):
        names = known_suites()[f"{kind}{count}"]
        assert len(set(names)) == count
        assert names == known_suites()[f"{kind}20"][:count]


def test_glyph_task_is_the_same_in_every_suite() -> None:
    options: dict[str, Any] = {
        "tasks": ["greek"],
        "train_size": 30,
        "validation_size": 5,
        "test_size": 10,
    }
    small, large = load_suite("glyphs8", **options), load_suite("glyphs20", **options)
    assert list(small.tasks) == ["greek"]
    assert small.sources == large.sources
    assert small.sources != load_suite("glyphs8", seed=1, **options).sources
    task = small.tasks["greek"]
    assert [len(task.train), len(task.validation), len(task.test)] == [30, 5, 10]


def test_rendered_suites_need_no_validation() -> None:
    sizes: dict[str, Any] = {"train_size": 30, "validation_size": 0, "test_size": 10}
    task = load_suite("glyphs8", tasks=["greek"], **sizes).tasks["greek"]
    assert [len(task.train), len(task.validation), len(task.test)] == [30, 0, 10]


def test_vision_splits_do_not_overlap(tmp_path: Path) -> None:
    write_set(tmp_path / "data", "mnist", train=600)
    options: dict[str, Any] = {
        "tasks": ["mnist"],
        "train_size": 200,
        "validation_size": 60,
        "test_size": 20,
    }
    suite = load_suite("vision8", data=tmp_path / "data", **options)
    task = suite.tasks["mnist"]
    train, validation, test = rows(task.train), rows(task.validation), rows(task.test)
    assert [len(train), len(validation), len(test)] == [200, 60, 20]
    assert not train & validation
    assert min(train | validation) >= 65536 > max(test)
    for split in (task.train, task.validation, task.test):
        assert len(set(split.labels.bincount().tolist())) == 1
        own_rows = split.inputs[:, 0, 0, 0].long() + 256 * split.inputs[:, 0, 0, 1].long()
        assert torch.equal(own_rows % 4, split.labels)
    again = load_suite("vision8", data=tmp_path / "data", **options).tasks["mnist"]
    assert torch.equal(again.train.inputs, task.train.inputs)
    other = load_suite("vision8", data=tmp_path / "data", seed=1, **options).tasks["mnist"]
    assert rows(other.train) != train


def test_validation_takes_at_most_a_fifth(tmp_path: Path) -> None:
    write_set(tmp_path / "data", "mnist", train=100)
    task = load_suite("vision8", tasks=["mnist"], data=tmp_path / "data").tasks["mnist"]
    assert [len(task.train), len(task.validation), len(task.test)] == [80, 20, 40]


def test_a_subset_needs_only_its_own_files(tmp_path: Path) -> None:
    write_set(tmp_path / "data", "usps")
    write_set(tmp_path / "data", "pacs")
    suite = load_suite("vision20", tasks=["usps", "pacs"], data=tmp_path / "data")
    assert list(suite.tasks) == ["usps", "pacs"]
    with pytest.raises(ValueError, match=r"scenes15\.npz"):
        load_suite("vision20", tasks=["scenes15"], data=tmp_path / "data")


def test_wrong_arguments_are_named() -> None:
    with pytest.raises(ValueError, match=r"unknown suite 'glyphs9'; known: clip8, .*digits2, gl"):
        load_suite("glyphs9")
    with pytest.raises(ValueError, match="unknown task 'mnist' of glyphs8; known: greek"):
        load_suite("glyphs8", tasks=["mnist"])
    with pytest.raises(ValueError, match="non-empty list"):
        load_suite("glyphs8", tasks="greek")
    with pytest.raises(ValueError, match="test_size must be at least 1, got 0"):
        load_suite("digits2", test_size=0)


def test_pretraining_sets_take_what_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MERGELIB_DATA", str(tmp_path))
    monkeypatch.setattr(pictures, "rendered_sets", partial(pictures.rendered_sets, 2, 1))
    assert [s.name for s in pictures.pretraining_sets()] == ["glyphs"]
    write_set(tmp_path, "omniglot_small")
    write_set(tmp_path, "tiny_imagenet32")
    sets = pictures.pretraining_sets()
    assert [s.name for s in sets] == ["tiny_imagenet32", "omniglot", "glyphs"]
    assert [len(s.train) for s in sets[:2]] == [100, 100]
    assert len(sets[2].train) == 2 * len(sets[2].class_names)
    tasks = {name for names in known_suites().values() for name in names}
    assert not tasks & {s.name for s in sets}


def test_glyphs_are_rendered_once(own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And anew where a file is damaged, or the code that renders has changed."""
    options: dict[str, Any] = {"profile": "smoke", "tasks": ["chess"]}
    first = load_suite("glyphs8", **options)
    real = glyphs.render_task
    rendered: list[str] = []

    def watched(name: str, *rest: Any) -> Any:
        rendered.append(name)
        return real(name, *rest)

    monkeypatch.setattr(glyphs, "render_task", watched)
    assert load_suite("glyphs8", **options).sources == first.sources
    assert not rendered
    (file,) = (own_cache / "glyphs").glob("*.safetensors")
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.warns(UserWarning, match="is damaged: it is made again"):
        assert load_suite("glyphs8", **options).sources == first.sources
    edited = own_cache / "media.py"
    edited.write_text("# said otherwise")
    monkeypatch.setattr(media, "__file__", str(edited))
    again = load_suite("glyphs8", **options)
    assert again.sources == first.sources
    assert again.tasks["chess"].class_names == first.tasks["chess"].class_names
    assert len(rendered) == 2
