"""Folders without tokenizer.json: unions of BERT's and GPT-2's files, and what is refused."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import mergelib as ml
from tests.library.inspection.cases import edit, transformers
from tests.library.streaming.cases import assert_same

pytestmark = pytest.mark.filterwarnings("ignore:unrelated models")

Vocabulary = list[str]
PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "b", "##b", "c", "A"]
BYTES = ["a", "b", "c", "A", "Ġ", "ab", "<|endoftext|>"]
ROBERTA = ["<s>", "<pad>", "</s>", "<unk>", "<mask>", "a", "b", "c", "A", "Ġ", "ab"]
CLIP = ["a", "b", "c", "a</w>", "b</w>", "c</w>", "ab</w>", "<|startoftext|>", "<|endoftext|>"]
TEXT = "A b ab <x> c<y> a"
KINDS: dict[str, tuple[str, Vocabulary, dict[str, Any]]] = {
    "bert": ("bert", PIECES, {"tokenizer_class": "BertTokenizer", "do_lower_case": False}),
    "lower case": ("bert", PIECES, {"tokenizer_class": "BertTokenizer"}),
    "distilbert": ("distilbert", PIECES, {"do_lower_case": False}),
    "gpt2": ("gpt2", BYTES, {}),
    "gpt2 with a space": ("gpt2", BYTES, {"add_prefix_space": True}),
    "roberta": ("roberta", ROBERTA, {}),
    "clip": ("clip", CLIP, {}),
}
TABLE = "embeddings.word_embeddings.weight"


def save(
    folder: Path,
    model_type: str,
    tokens: Vocabulary,
    config: dict[str, Any],
    added: dict[str, bool] | None = None,
    *,
    old: bool = False,
) -> Path:
    """A table and the files of a slow tokenizer; ``added`` says which tokens are special.

    Old versions of transformers listed them in added_tokens.json, and in no other file.
    """
    new = {token: row for row, token in enumerate(added or {}, len(tokens))}
    generator = torch.Generator().manual_seed(sum(folder.name.encode()))
    table = torch.randn(len(tokens) + len(new), 4, generator=generator)
    ml.save_state_dict({TABLE: table}, folder / "model.safetensors")
    edit(folder / "config.json", model_type=model_type, vocab_size=len(table))
    edit(folder / "tokenizer_config.json", **config)
    if tokens is PIECES:
        (folder / "vocab.txt").write_text("\n".join(tokens) + "\n")
    else:
        edit(folder / "vocab.json", **{token: row for row, token in enumerate(tokens)})
        end = "</w>" if tokens is CLIP else ""
        (folder / "merges.txt").write_text(f"#version: 0.2\na b{end}\n")
    if old:
        edit(folder / "added_tokens.json", **new)
    elif added:
        plain = dict.fromkeys(("single_word", "lstrip", "rstrip"), False)
        rows = {
            str(new[token]): {"content": token, "special": special, "normalized": False, **plain}
            for token, special in added.items()
        }
        edit(folder / "tokenizer_config.json", added_tokens_decoder=rows)
    return folder


def load(folder: Path) -> Any:
    return transformers.AutoTokenizer.from_pretrained(folder)


@pytest.mark.parametrize("old", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_a_union_of_slow_tokenizers(kind: str, old: bool, tmp_path: Path) -> None:
    """It splits texts as the first model does, which gets the further tokens by transformers.

    Weights and numbers are those of folders that transformers has saved before.
    """
    _, tokens, _ = KINDS[kind]
    folders = [
        save(tmp_path / "a", *KINDS[kind], {"<y>": False}, old=old),
        save(tmp_path / "b", *KINDS[kind], {"<x>": True, "<y>": False}, old=old),
    ]
    before, expected = load(folders[0]), load(folders[0])
    new = load(folders[1]).added_tokens_decoder[len(tokens)]
    assert new.special is not old
    expected.add_tokens([new])
    out = ml.merge_files("average", folders, tmp_path / "out", tokenizer="union")
    made = load(out)
    assert made.get_vocab() == expected.get_vocab() == {**before.get_vocab(), "<x>": len(before)}
    ids = made(TEXT).input_ids
    assert ids == expected(TEXT).input_ids != before(TEXT).input_ids
    assert made.decode(ids, skip_special_tokens=True) == expected.decode(
        ids, skip_special_tokens=True
    )
    assert ("<x>" in made.decode(ids, skip_special_tokens=True)) is old
    one, other = (ml.load_state_dict(folder)[TABLE] for folder in folders)
    common, count = (one[: len(tokens)] + other[: len(tokens)]) / 2, len(tokens)
    rows = torch.stack([*common, (one[count] + other[count + 1]) / 2, other[count]])
    torch.testing.assert_close(ml.load_state_dict(out)[TABLE], rows)
    assert json.loads((out / "config.json").read_text())["vocab_size"] == count + 2
    for folder in folders:
        load(folder).save_pretrained(folder)
    fast = ml.merge_files("average", folders, tmp_path / "fast", tokenizer="union")
    assert_same(ml.load_state_dict(fast), ml.load_state_dict(out))
    assert load(fast).get_vocab() == made.get_vocab()
    assert load(fast)(TEXT).input_ids == ids


@pytest.mark.parametrize("kind", KINDS)
def test_folders_as_transformers_4_writes_them(kind: str, tmp_path: Path) -> None:
    """Added tokens are in two files, of which version 5 reads only tokenizer_config.json."""
    folders = [save(tmp_path / name, *KINDS[kind], {f"<{name}>": True}) for name in "xy"]
    for folder in folders:
        config, tokenizer = json.loads((folder / "tokenizer_config.json").read_text()), load(folder)
        tokenizer.save_pretrained(folder)
        assert (folder / "tokenizer.json").exists()
        decoder = config["added_tokens_decoder"]
        edit(folder / "tokenizer_config.json", added_tokens_decoder=decoder)
    made = load(ml.merge_files("average", folders, tmp_path / "out", tokenizer="union"))
    before = load(folders[0])
    assert made.get_vocab() == {**before.get_vocab(), "<y>": len(before)}
    assert made.convert_tokens_to_ids("<y>") in made(TEXT).input_ids


def test_a_slow_tokenizer_beside_a_fast_one(tmp_path: Path) -> None:
    """The token of the slow one stays special."""
    fast, slow = (
        save(tmp_path / name, *KINDS["gpt2"], added)
        for name, added in (("a", None), ("b", {"<x>": True}))
    )
    load(fast).save_pretrained(fast)
    out = ml.merge_files("average", [fast, slow], tmp_path / "out", tokenizer="union")
    made = load(out)
    assert made.decode(made("a<x>b").input_ids, skip_special_tokens=True) == "ab"


def refuse(match: str, tmp_path: Path, owner: Path, tokenizer: str = "union") -> None:
    other = save(tmp_path / "other", *KINDS["gpt2"], {"<x>": True})
    with pytest.raises(ValueError, match=match):
        ml.merge_files("average", [owner, other], tmp_path / "out", tokenizer=tokenizer)
    assert not (tmp_path / "out").exists()


NONE = "needs a tokenizer.json of expert 0, and transformers makes none of the files in .*a "


def test_tokens_that_no_file_numbers_are_refused(tmp_path: Path) -> None:
    """Transformers would give them rows of other tokens, or of none."""
    number = r"\(it numbers tokens in another way\)"
    refuse(NONE + number, tmp_path, save(tmp_path / "a", "gpt2", BYTES[:-1], {}))
    padded = {"pad_token": "<pad>"}
    refuse(NONE + number, tmp_path, save(tmp_path / "a", "gpt2", BYTES, padded))
    twice = save(tmp_path / "a", *KINDS["bert"])
    (twice / "vocab.txt").write_text("\n".join([*PIECES[:-1], "a"]))
    refuse(NONE + number, tmp_path, twice)


def test_a_class_for_other_files_is_refused(tmp_path: Path) -> None:
    """A Llama with BERT's file, of which transformers would make a vocabulary of three tokens."""
    refuse(NONE, tmp_path, save(tmp_path / "a", "llama", PIECES, {}))


def test_without_transformers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    owner = save(tmp_path / "a", *KINDS["bert"])
    monkeypatch.setitem(sys.modules, "transformers", None)
    refuse(
        rf"{NONE}\(.*transformers.*\): write it where .* or pass tokenizer='base'", tmp_path, owner
    )


@pytest.mark.parametrize("tokenizer", ["base", "union"])
@pytest.mark.parametrize("name", ["tokenizer.model", "vocab.txt", "dict.txt"])
def test_vocabularies_that_are_not_read(name: str, tokenizer: str, tmp_path: Path) -> None:
    """Of sentencepiece, and fairseq's lists with counts, whose first line is not row 0.

    Numbers in other files do not make a vocabulary.
    """
    owner = save(tmp_path / "a", *KINDS["bert"], {"<mask>": True}, old=True)
    (owner / "vocab.txt").unlink()
    (owner / name).write_text("a 12\nb 9\nc 1\n")
    edit(owner / "generation_config.json", bos_token_id=1, eos_token_id=2)
    edit(owner / "label2id.json", negative=0, positive=1)
    (owner / "predictions.txt").write_text("negative\npositive\n")
    match = r"no vocabulary of expert 0 in .*only a tokenizer.model: AutoTokenizer.from_pretrained"
    refuse(match, tmp_path, owner, tokenizer)


def test_other_files_are_not_compared_as_vocabularies(tmp_path: Path) -> None:
    folders = [save(tmp_path / name, *KINDS["bert"]) for name in "ab"]
    for number, folder in enumerate(folders):
        edit(folder / "generation_config.json", max_new_tokens=number, eos_token_id=3)
        (folder / "predictions.txt").write_text(f"{number}\n")
    ml.merge_files("average", folders, tmp_path / "out")
