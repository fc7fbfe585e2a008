"""Models by their names on the hub, from a cache as the hub's own package fills it."""

import json
from collections.abc import Callable
from fnmatch import fnmatchcase
from pathlib import Path

import pytest
import torch

import mergelib as ml
from mergelib import cli
from mergelib.io.hub import fetch, fetched
from mergelib.recipes import run_recipe
from tests.commands import fail, runner, succeed

constants = pytest.importorskip("huggingface_hub.constants")
COMMIT = "0123456789" * 4
Put = Callable[..., Path]


@pytest.fixture
def put(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Put:
    """Put a model of ones, times a value, into a cache; there is no network."""
    cache = tmp_path / "cache"
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(cache))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")

    def call(name: str, value: float, *, revision: str = "main", commit: str = COMMIT) -> Path:
        repository = cache / f"models--{name.replace('/', '--')}"
        (repository / "refs").mkdir(parents=True, exist_ok=True)
        (repository / "refs" / revision).write_text(commit)
        folder = repository / "snapshots" / commit
        ml.save_state_dict({"w": torch.full((3, 2), value)}, folder / "model.safetensors")
        (folder / "config.json").write_text(json.dumps({"model_type": "bert"}))
        return folder

    return call


def test_names_and_revisions(put: Put) -> None:
    main, other = put("a/b", 1.0), put("a/b", 2.0, revision="v1", commit="f" * 40)
    assert fetch("a/b") == main
    assert fetch("a/b@v1") == fetch(f"a/b@{'f' * 40}") == other
    assert fetched("a/b+a/b@v1") == f"{main}+{other}"


def test_what_is_a_path_stays_one(put: Put, tmp_path: Path) -> None:
    put("a/b", 1.0)
    for path in ("x.safetensors", "a/x.safetensors", "one", "a/b/c", "../a/b", "/a/b"):
        assert Path(fetched(path)) == Path(path)
    assert fetched("x/y.pt", tmp_path) == str(tmp_path / "x/y.pt")
    Path("a").mkdir()
    assert fetched("a/b") == "a/b", "whose first part is a folder here"
    odd = tmp_path / "work" / "odd+name@v1"
    odd.mkdir()
    assert fetched("odd+name@v1") == "odd+name@v1"
    assert fetch(odd) == odd


def test_what_the_hub_does_not_give(put: Put) -> None:
    put("a/b", 1.0)
    for name in ("a/c", "a/b@v2"):
        with pytest.raises(ValueError, match=f"model '{name}' is neither a folder nor to be had"):
            fetched(name)


def test_pickles_where_there_is_nothing_better(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[str | None, list[str]]] = []

    def download(name: str, *, revision: str | None, allow_patterns: list[str]) -> str:
        asked.append((revision, allow_patterns))
        return str(tmp_path)

    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    fetch("a/b@v1")
    wanted = asked[0][1]
    for name in ("LICENSE", "modeling_own.py", "1_Dense/model.safetensors", "tokenizer.model"):
        assert any(fnmatchcase(name, pattern) for pattern in wanted)
    assert not any(fnmatchcase("pytorch_model.bin", pattern) for pattern in wanted)
    assert [(revision, patterns[0]) for revision, patterns in asked] == [
        ("v1", "*.safetensors"),
        ("v1", "pytorch_model*"),
    ]
    (tmp_path / "model.safetensors").touch()
    fetch("a/b")
    assert len(asked) == 3


def test_commands_and_recipes(
    put: Put, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """And the card names the commits, with which its recipe gives the same weights."""
    put("org/base", 0.0)
    put("org/a", 1.0)
    put("org/a", 3.0, revision="v1", commit="f" * 40)
    run = runner(cli.main, "mergelib", monkeypatch, capsys)
    experts = ["org/a", "org/a@v1"]
    succeed(
        run, "merge", "task_arithmetic", *experts, "-p", "org/base", "-o", "out", "-s", "scale=1"
    )
    assert torch.equal(ml.load_state_dict("out")["w"], torch.full((3, 2), 4.0))
    card = Path("out/README.md").read_text()
    assert f'model: "org/a@{COMMIT}"' in card
    assert f'base_model: "org/base@{COMMIT}"' in card
    assert str(constants.HF_HUB_CACHE) not in card
    run_recipe("out/README.md", "again")
    assert torch.equal(ml.load_state_dict("again")["w"], torch.full((3, 2), 4.0))
    Path("recipe.yml").write_text(
        "merge_method: linear\nmodels:\n"
        "  - {model: org/a, parameters: {weight: 1}}\n"
        "  - {model: org/a@v1, parameters: {weight: 3}}\n"
    )
    run_recipe("recipe.yml", "mean")
    assert torch.equal(ml.load_state_dict("mean")["w"], torch.full((3, 2), 2.5))
    assert "merged weights" in succeed(run, "inspect", "org/a", "-p", "org/base")
    assert "neither a folder nor to be had from the hub" in fail(run, "inspect", "org/none")
