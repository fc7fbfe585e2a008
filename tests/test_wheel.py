"""The wheel holds the results, also when it is built in a checkout without symbolic links."""

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
BUILD = "import setuptools.build_meta as b, sys; b.build_wheel(sys.argv[1])"
LOAD = (
    "import mergebook, sys; from mergebook.lab.results import load_result;"
    "assert mergebook.__file__.startswith(sys.argv[1]), mergebook.__file__;"
    "print(len(load_result('vision8-baselines')['test']))"
)


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The checkout as a system without links writes it: a link is a file that names its target."""
    tree = tmp_path_factory.mktemp("tree")
    ignored = shutil.ignore_patterns("__pycache__", "*.egg-info")
    for folder in ("mergelib", "mergebook", "results"):
        shutil.copytree(ROOT / folder, tree / folder, symlinks=True, ignore=ignored)
    for file in (*ROOT.glob("*.toml"), *ROOT.glob("*.py"), *ROOT.glob("*.in"), ROOT / "README.md"):
        shutil.copy(file, tree)
    shutil.copy(ROOT / "LICENSE", tree)
    for link in [path for path in tree.rglob("*") if path.is_symlink()]:
        target = str(link.readlink())
        link.unlink()
        link.write_text(target)
    return tree


def load_in(folder: Path, where: Path) -> str:
    """What a new process prints that imports the package from a folder."""
    environment = {"PYTHONPATH": str(folder)}
    command = [sys.executable, "-c", LOAD, str(folder)]
    done = subprocess.run(command, cwd=where, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_an_installed_wheel_finds_every_result(exported: Path, tmp_path: Path) -> None:
    pytest.importorskip("setuptools", minversion="77")
    subprocess.run(
        [sys.executable, "-c", BUILD, str(tmp_path)], cwd=exported, check=True, capture_output=True
    )
    with zipfile.ZipFile(next(tmp_path.glob("*.whl"))) as wheel:
        wheel.extractall(tmp_path / "site")
    names = {file.name for file in (ROOT / "results").glob("*.json")}
    assert {file.name for file in (tmp_path / "site" / "mergebook" / "results").iterdir()} == names
    assert int(load_in(tmp_path / "site", tmp_path)) > 0


def test_a_wheel_without_results_is_not_built(exported: Path, tmp_path: Path) -> None:
    pytest.importorskip("setuptools", minversion="77")
    tree = tmp_path / "tree"
    shutil.copytree(exported, tree, ignore=shutil.ignore_patterns("results", "build"))
    command = [sys.executable, "-c", BUILD, str(tmp_path)]
    done = subprocess.run(command, cwd=tree, capture_output=True, text=True)
    assert done.returncode != 0
    assert "results/ holds no results" in done.stderr
