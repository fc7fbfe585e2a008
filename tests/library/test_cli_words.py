"""The command line's own words: version, completion, options in messages, warnings in one line."""

import runpy
import sys
from pathlib import Path

import pytest
import torch

import mergelib as ml
from mergelib import cli
from mergelib.cli.words import in_shell_words


def call(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *arguments: object
) -> tuple[int, str, str]:
    monkeypatch.setattr(sys, "argv", ["mergelib", *map(str, arguments)])
    capsys.readouterr()
    with pytest.raises(SystemExit) as left:
        sys.exit(cli.main())  # type: ignore[func-returns-value]
    printed = capsys.readouterr()
    return int(left.value.code or 0), printed.out, printed.err


def test_version_of_a_module(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["mergelib/__main__.py", "--version"])
    with pytest.raises(SystemExit, match=r"^0$"):
        runpy.run_module("mergelib", run_name="__main__")
    assert capsys.readouterr() == (f"mergelib {ml.__version__}\n", "")


@pytest.mark.parametrize(
    ("words", "expected"),
    [("mergelib merge low_r", "low_rank_task_arithmetic"), ("mergelib meth", "methods")],
)
def test_completion(
    words: str,
    expected: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """As the shell asks for it; the program's name is that of the installed script."""
    monkeypatch.setattr(sys.modules["__main__"], "__package__", None)
    monkeypatch.setenv("_MERGELIB_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", words)
    monkeypatch.setenv("COMP_CWORD", str(len(words.split()) - 1))
    _, out, err = call(monkeypatch, capsys)
    assert (out.split(), err) == ([expected], "")


def test_completion_can_be_installed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    _, out, _ = call(monkeypatch, capsys, "--help")
    assert "--install-completion" in out


@pytest.mark.parametrize(
    ("message", "words"),
    [
        ("ties needs the model: pass pretrained=", "ties needs the model: pass --pretrained"),
        ("pass overwrite=True to replace it", "pass --overwrite to replace it"),
        ("missing='base' takes: pass pretrained=", "--missing base takes: pass --pretrained"),
        ("pass dtype='float16' or", "pass --dtype float16 or"),
        ("pass chat_template='experts' for", "pass --chat-template experts for"),
        ("by include=, exclude= or missing=", "by --include, --exclude or --missing"),
        ("out with exclude=['fc.*', 'head']", "out with --exclude 'fc.*' --exclude head"),
        ("pass is_matrix=mergelib.is_kernel to", "pass --fold-convolutions to"),
        ("not exist (data= or MERGELIB_DATA)", "not exist (MERGELIB_DATA)"),
        ("--set expects name=value, got '=1'", "--set expects name=value, got '=1'"),
        ("no file 'a/pretrained=1.pt'", "no file 'a/pretrained=1.pt'"),
        ("two\n  lines", "two lines"),
    ],
)
def test_messages_in_shell_words(message: str, words: str) -> None:
    assert in_shell_words(message) == words


@pytest.fixture
def nets(tmp_path: Path) -> list[Path]:
    files = [tmp_path / f"{name}.safetensors" for name in "ab"]
    for seed, file in enumerate(files):
        torch.manual_seed(seed)
        ml.save_state_dict({"conv.weight": torch.randn(32, 16, 3, 3)}, file)
    return files


def test_warnings_are_one_line_each_and_once(
    nets: list[Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    command = ["merge", "cart", *nets, "--overwrite", "-o", tmp_path / "out.safetensors"]
    monkeypatch.setattr("warnings.filters", [])
    status, _, err = call(monkeypatch, capsys, *command)
    assert status == 0
    first, second = err.splitlines()
    assert first.startswith("mergelib: warning: unrelated models: expert 0 and expert 1 have")
    assert "leaves to average convolutions ('conv.weight'): pass" in second
    assert "pass --fold-convolutions to" in second
    plain = ml.load_state_dict(tmp_path / "out.safetensors")
    _, _, err = call(monkeypatch, capsys, *command, "--fold-convolutions")
    assert "convolutions" not in err
    folded = ml.load_state_dict(tmp_path / "out.safetensors")
    assert not torch.equal(plain["conv.weight"], folded["conv.weight"])
    expected = ml.merge("cart", nets, is_matrix=ml.is_kernel)
    assert torch.equal(folded["conv.weight"], expected["conv.weight"])


def test_refusals_of_adapters_name_the_option(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "adapter.safetensors"
    ml.save_state_dict({"q.lora_A.weight": torch.ones(2, 2)}, file)
    status, _, err = call(monkeypatch, capsys, "merge", "average", file, "-o", tmp_path / "o")
    assert (status, err.count("\n")) == (1, 1)
    assert err.endswith("or leave them out with --exclude\n")
