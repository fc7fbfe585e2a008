"""Rows of tables that belong to other tokens, whatever file says so."""

import json
import re
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest

import mergelib as ml
from tests.library.inspection.cases import edit, make_llama

TOKENS = ["<unk>", "a", "b", "c", "d", "e", "f", "g", "h", "i", "<r0>", "<r1>"]
Write = Callable[[Path, list[str]], None]


def fast(folder: Path, tokens: list[str]) -> None:
    vocab = {token: i for i, token in enumerate(tokens)}
    added = [{"id": 0, "content": tokens[0]}]
    content = {"model": {"vocab": vocab, "merges": ["a b"]}, "added_tokens": added}
    (folder / "tokenizer.json").write_text(json.dumps(content))


def unigram(folder: Path, tokens: list[str]) -> None:
    content = {"model": {"vocab": [[token, -1.0] for token in tokens]}}
    (folder / "tokenizer.json").write_text(json.dumps(content))


def vocab_json(folder: Path, tokens: list[str]) -> None:
    (folder / "vocab.json").write_text(json.dumps({token: i for i, token in enumerate(tokens)}))


def vocab_txt(folder: Path, tokens: list[str]) -> None:
    (folder / "vocab.txt").write_text("\n".join(tokens) + "\n")


def added(folder: Path, tokens: list[str]) -> None:
    vocab_json(folder, TOKENS[:4])
    edit(folder / "added_tokens.json", **{token: i for i, token in enumerate(tokens) if i > 3})


def decoder(folder: Path, tokens: list[str]) -> None:
    rows = {str(i): {"content": token} for i, token in enumerate(tokens)}
    edit(folder / "tokenizer_config.json", added_tokens_decoder=rows)


def unforeseen(folder: Path, tokens: list[str]) -> None:
    """As a library of one's own may write it."""
    (folder / "encoder.json").write_text(json.dumps({token: i for i, token in enumerate(tokens)}))


WRITERS = [fast, unigram, vocab_json, vocab_txt, added, decoder, unforeseen]


@pytest.fixture
def models(tmp_path: Path) -> list[Path]:
    return [make_llama(tmp_path / name, i) for i, name in enumerate(("base", "a", "b"))]


def merge(models: list[Path], **options: str) -> None:
    ml.merge("average", models[1:], pretrained=models[0], **options)  # type: ignore[arg-type]


def swapped() -> list[str]:
    return [*TOKENS[:5], TOKENS[6], TOKENS[5], *TOKENS[7:]]


@pytest.mark.parametrize("write", WRITERS)
def test_another_order_is_refused(models: list[Path], write: Write, tmp_path: Path) -> None:
    for folder, tokens in zip(models, (TOKENS, TOKENS, swapped()), strict=True):
        write(folder, tokens)
    message = r"row 5 is the token 'f' in expert 1 \(.*\) and 'e' in pretrained \(.*1 more rows"
    with pytest.raises(ValueError, match=message):
        merge(models)
    with pytest.raises(ValueError, match=message):
        ml.merge_files("average", models[1:], tmp_path / "out", pretrained=models[0])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        merge(models, exclude="*embed*")


@pytest.mark.parametrize("write", WRITERS)
def test_one_order_in_different_files_passes(models: list[Path], write: Write) -> None:
    vocab_txt(models[0], TOKENS)
    write(models[1], TOKENS)
    write(models[2], TOKENS[:-1])  # a row that one file does not know
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        merge(models)


def test_files_of_two_kinds_are_compared(models: list[Path]) -> None:
    vocab_txt(models[0], TOKENS)
    fast(models[1], swapped())
    with pytest.raises(
        ValueError, match=re.escape("(tokenizer.json) and 'e' in pretrained (vocab")
    ):
        merge(models)


def test_other_tokens_altogether_are_refused(models: list[Path]) -> None:
    vocab_txt(models[0], TOKENS)
    vocab_txt(models[1], [f"other {token}" for token in TOKENS])
    with pytest.raises(ValueError, match="row 0 is the token 'other <unk>' in expert 0"):
        merge(models)


def test_a_reserved_row_put_to_use_is_warned_of(models: list[Path]) -> None:
    """Chat models do so, and their base says that the row is reserved."""
    vocab_txt(models[0], TOKENS)
    for folder in models[1:]:
        vocab_txt(folder, [*TOKENS[:-1], "<|im_start|>"])
    with pytest.warns(
        UserWarning, match=re.escape("row 11 is the token '<|im_start|>' in expert 0")
    ):
        merge(models)


@pytest.mark.parametrize("write", [fast, unigram, vocab_json, vocab_txt])
def test_a_token_in_a_padded_row_is_not_lost_in_silence(
    models: list[Path], write: Write, tmp_path: Path
) -> None:
    """The shapes agree, and the copied tokenizer lacks the token."""
    write(models[0], TOKENS[:-2])
    for folder in models[1:]:
        write(folder, TOKENS[:-1])
    match = r"^expert 0 has tokens that the tokenizer of pretrained lacks \('<r0>'\), so the files"
    with pytest.warns(UserWarning, match=match) as notes:
        ml.merge_files("average", models[1:], tmp_path / "out", pretrained=models[0])
    assert len(notes) == 1
    command = ml.inspect(models[1:], pretrained=models[0]).command
    fits = write in (fast, unigram)  # a union extends tokenizer.json
    assert ("--tokenizer union" in command) == fits
    for folder in models[1:]:  # nor for a list of few tokens, beside a file of another format
        (folder / "tokenizer.json").unlink(missing_ok=True)
        write(folder, TOKENS)
    for file in models[0].glob("*vocab*"):
        file.unlink()
    write(models[0], TOKENS[:3])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        merge(models)


def test_experts_that_use_one_row_for_different_tokens(models: list[Path]) -> None:
    vocab_txt(models[0], TOKENS[:-2])
    vocab_txt(models[1], [*TOKENS[:-2], "<pad>", "<end>"])
    vocab_txt(models[2], [*TOKENS[:-2], "<end>", "<pad>"])
    with pytest.raises(
        ValueError, match=r"row 10 is the token '<end>' in expert 1 .* '<pad>' in exp"
    ):
        merge(models)


@pytest.mark.parametrize("name", ["tokenizer.model", "merges.txt", "source.spm"])
def test_other_ways_to_cut_texts_are_warned_of(models: list[Path], name: str) -> None:
    for i, folder in enumerate(models):
        (folder / name).write_bytes(b"one" if i < 2 else b"two")
    with pytest.warns(UserWarning, match=f"{name} of expert 1 differs from that of pretrained"):
        merge(models)


def test_merges_are_compared_however_they_are_written(models: list[Path]) -> None:
    for folder in models:
        fast(folder, TOKENS)
    content = json.loads((models[2] / "tokenizer.json").read_text())
    for merges in ([["a", "b"]], ["b a"]):
        content["model"]["merges"] = merges
        (models[2] / "tokenizer.json").write_text(json.dumps(content))
        with warnings.catch_warnings():
            warnings.simplefilter("error" if merges[0] != "b a" else "ignore")
            merge(models)
    with pytest.warns(UserWarning, match=r"tokenizer.json: merges of expert 1 differs"):
        merge(models)


def test_files_without_tokens_say_nothing(models: list[Path]) -> None:
    vocab_json(models[0], TOKENS)
    (models[1] / "predictions.json").write_text('{"row": 1}\n{"row": 2}')  # lines of JSON
    (models[2] / "tokenizer.json").write_text("[1, 2]")
    (models[2] / "vocab.json").write_text('{"a": [1], "b": null}')
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        merge(models)


@pytest.mark.parametrize(
    "file", ["config.json", "tokenizer.json", "tokenizer_config.json", "vocab.json", "modules.json"]
)
@pytest.mark.parametrize("which", [0, 2])
@pytest.mark.parametrize("content", ['{"a": 1, "b', "[" * 100_000])
def test_half_written_files_are_refused(
    models: list[Path], file: str, which: int, content: str, tmp_path: Path
) -> None:
    """A model whose configuration is not read would be merged unchecked, and the copy not load."""
    (models[which] / file).write_text(content)
    message = f"{models[which] / file} is not JSON, so it is damaged or half written: copy or"
    with pytest.raises(ValueError, match=re.escape(message)):
        ml.merge_files("average", models[1:], tmp_path / "out", pretrained=models[0])
    assert message in ml.inspect(models[1:], pretrained=models[0]).refusals[0]
    assert not (tmp_path / "out").exists()
