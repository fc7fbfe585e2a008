"""Which edits make a run be measured anew: on a copy of the packages, edited line by line."""

import shutil
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import mergelib
from mergebook.cart.measure.experiments import baselines
from mergebook.cogram.measure import fusion
from mergebook.lab import dependencies
from mergebook.lab.dependencies import code_key

BOTH = {"cart", "cogram"}
MEASURE = "mergebook/cart/measure/experiments.py"
ROOT = Path(mergelib.__file__).parents[1]


@pytest.fixture(scope="module", autouse=True)
def remembered() -> Iterator[None]:
    """Most files are the same in all copies."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dependencies, "form", cache(dependencies.form))
        yield


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sources, without git: as good as installed elsewhere."""
    folder = tmp_path_factory.mktemp("copy") / "installed"
    ignored = shutil.ignore_patterns("__pycache__", "assets")
    for package in ("mergelib", "mergebook"):
        shutil.copytree(ROOT / package, folder / package, ignore=ignored)
    return folder


def changed(copy: Path, other: Path, file: str, old: str, new: str) -> set[str]:
    """The studies whose key an edit changes, of one on CART and one on CoGraM."""
    studies: dict[str, Any] = {"cart": baselines, "cogram": fusion}
    shutil.copytree(copy, other)
    text = (other / file).read_text()
    assert old in text, f"{file} has no {old!r}"
    (other / file).write_text(text.replace(old, new, 1))
    return {name for name, s in studies.items() if code_key(s, copy) != code_key(s, other)}


@pytest.mark.parametrize(
    ("file", "old", "new", "concerned"),
    [
        ("mergelib/rules/sparse.py", "import torch\n", "import math, torch\n", BOTH),
        (
            "mergebook/lab/grids.py",
            "GRIDS: ",
            "X = 1\nGRIDS: ",
            {"cart", "cogram"},
        ),
        (
            "mergebook/suites/heads.py",
            "import torch",
            "import math\nimport torch",
            {"cart", "cogram"},
        ),
        (
            "mergebook/cart/measure/experiments.py",
            "RANK_RATIOS = (0.0, ",
            "RANK_RATIOS = (0.1, ",
            {"cart"},
        ),
        ("mergebook/cogram/measure.py", "STEEPNESSES = ", "OTHERS = STEEPNESSES = ", {"cogram"}),
        ("mergebook/cart/claims.py", "NEAR = ", "OTHERS = NEAR = ", set()),
        ("mergebook/cli.py", "DEMO = ", "OTHERS = DEMO = ", set()),
        ("mergebook/plots.py", "import ", "import math\nimport ", set()),
        ("mergebook/suites/data/sources/texts.toml", "[", "# said otherwise\n[", BOTH),
        ("mergebook/cart/claims.toml", "[C1]", "# said otherwise\n[C1]", set()),
        ("mergelib/rules/sparse.py", "import torch\n", "import torch  # said otherwise\n", set()),
        ("mergelib/rules/sparse.py", '"""', '"""Said otherwise. ', set()),
    ],
)
def test_what_an_edit_concerns(
    copy: Path, tmp_path: Path, file: str, old: str, new: str, concerned: set[str]
) -> None:
    assert changed(copy, tmp_path / "edited", file, old, new) == concerned


def test_a_copy_has_the_same_key(copy: Path) -> None:
    assert code_key(baselines, copy) == code_key(baselines)


def test_a_study_of_ones_own_counts_with_its_source(monkeypatch: pytest.MonkeyPatch) -> None:
    def mine(zoo: Any) -> dict[str, Any]:
        return {"test": []}

    def other(zoo: Any) -> dict[str, Any]:
        return {"test": [{}]}

    assert code_key(mine) == code_key(other), "a module counts as a whole"
    monkeypatch.delitem(sys.modules, __name__)
    assert code_key(mine) != code_key(other), "in a notebook the function counts"
