"""The hub: revisions that are asked for and recorded, and no code of others that runs."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mergebook.suites.data import hub

transformers = pytest.importorskip("transformers")
datasets = pytest.importorskip("datasets")
SCRIPT = "from pathlib import Path\nPath({mark!r}).touch()\nclass {name}:\n    pass\n"


def test_a_revision_is_recorded(tmp_path: Path) -> None:
    folder = tmp_path / "models--a--b" / "snapshots" / ("0" * 40)
    assert hub.revisions({"pretrained": folder, "mnist": tmp_path}) == {"pretrained": "0" * 40}


def test_a_revision_of_data(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[Any, ...]] = []

    def load(name: str, subset: str | None = None, **options: Any) -> None:
        calls.append((name, subset, options["revision"]))

    monkeypatch.setattr(datasets, "load_dataset", load)
    hub.load_data("mnist", "ylecun/mnist@abc", None, "train", None)
    hub.load_data("mnist", "ylecun/mnist", "x", "train", None)
    assert calls == [("ylecun/mnist", None, "abc"), ("ylecun/mnist", "x", None)]


@pytest.mark.parametrize("kind", ["configuration", "tokenizer"])
def test_code_of_a_model_is_not_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """And no question is asked: whoever answers yes would run it."""

    def question(*_: object) -> str:
        raise AssertionError("a question was asked")

    monkeypatch.setattr("builtins.input", question)
    mark = tmp_path / "ran"
    (tmp_path / "custom.py").write_text(SCRIPT.format(mark=str(mark), name="Custom"))
    auto = {"AutoConfig": "custom.Custom", "AutoTokenizer": ["custom.Custom", None]}
    for name in ("config", "tokenizer_config"):
        content = {"model_type": "custom", "auto_map": auto, "tokenizer_class": "Custom"}
        (tmp_path / f"{name}.json").write_text(json.dumps(content))
    readers: dict[str, Callable[[], Any]] = {
        "configuration": lambda: hub.read_config(tmp_path, "custom"),
        "tokenizer": lambda: hub.read_tokenizer(tmp_path),
    }
    with pytest.raises(ValueError, match=f"the {kind} in .* cannot be used: "):
        readers[kind]()
    assert not mark.exists()


def test_a_script_beside_data_is_not_run(tmp_path: Path) -> None:
    mark, folder = tmp_path / "ran", tmp_path / "mnist"
    folder.mkdir()
    (folder / "mnist.py").write_text(SCRIPT.format(mark=str(mark), name="Mnist"))
    with pytest.raises(ValueError, match=r"mnist\.py is a script, and scripts are not run"):
        hub.load_data("mnist", "ylecun/mnist", None, "train", tmp_path)
    assert not mark.exists()


def test_a_script_on_the_hub_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise RuntimeError("Dataset scripts are no longer supported,\nbut found mnist.py")

    monkeypatch.setattr(datasets, "load_dataset", refuse)
    with pytest.raises(ValueError, match=r"data of task 'mnist': .* supported, but found mnist"):
        hub.load_data("mnist", "ylecun/mnist", None, "train", None)


def test_older_versions_are_told_not_to_run_scripts(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []
    monkeypatch.setattr(datasets, "load_dataset", lambda *_, **options: seen.append(options))
    for version in ("2.20.0", "4.0.0"):
        monkeypatch.setattr(datasets, "__version__", version)
        hub.load_data("mnist", "ylecun/mnist", None, "train", None)
    assert seen[0]["trust_remote_code"] is False
    assert "trust_remote_code" not in seen[1]
