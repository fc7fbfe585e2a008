"""Models whose vocabularies differ, merged token by token, loaded again and run on a text."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import mergelib as ml
from tests.library.inspection.cases import transformers

tokenizers = pytest.importorskip("tokenizers")
pytestmark = pytest.mark.filterwarnings("ignore:unrelated models")

State = Mapping[str, Tensor]
TOKENS = ["<unk>", "a", "b", "ab", "c", "##d", "d", "e", "f"]
TEXT = "a b ab c d e f <x> <y> a"
SMALL: dict[str, Any] = {"hidden_size": 8, "num_attention_heads": 2, "intermediate_size": 10}
SMALL |= {"num_hidden_layers": 1, "max_position_embeddings": 32}


def word_piece(tokens: list[str]) -> Any:
    numbered = {token: row for row, token in enumerate(tokens)}
    return tokenizers.models.WordPiece(numbered, unk_token="<unk>")


def word_level(tokens: list[str]) -> Any:
    numbered = {token: row for row, token in enumerate(tokens)}
    return tokenizers.models.WordLevel(numbered, unk_token="<unk>")


def bpe(tokens: list[str]) -> Any:
    numbered = {token: row for row, token in enumerate(tokens)}
    return tokenizers.models.BPE(numbered, [("a", "b")], unk_token="<unk>")


def unigram(tokens: list[str]) -> Any:
    return tokenizers.models.Unigram([(token, -1.0) for token in tokens], 0)


KINDS = [word_piece, bpe, unigram, word_level]
Kind = Callable[[list[str]], Any]


def llama(size: int, **changes: Any) -> Any:
    config = transformers.LlamaConfig(vocab_size=size, **{**SMALL, **changes})
    return transformers.LlamaForCausalLM(config)


def bert(size: int, **changes: Any) -> Any:
    config = transformers.BertConfig(vocab_size=size, is_decoder=True, **{**SMALL, **changes})
    return transformers.BertLMHeadModel(config)


def gpt2(size: int, **changes: Any) -> Any:
    sizes = {"n_embd": 8, "n_layer": 1, "n_head": 2, "n_positions": 32}
    config = transformers.GPT2Config(vocab_size=size, **sizes, **changes)
    return transformers.GPT2LMHeadModel(config)


def save(
    folder: Path,
    tokens: list[str],
    added: tuple[str, ...] = (),
    *,
    kind: Kind = word_piece,
    model: Callable[..., Any] = llama,
    padding: int = 0,
    **changes: Any,
) -> Path:
    """A model with random weights and its tokenizer; ``padding`` rows have no token."""
    tokenizer = tokenizers.Tokenizer(kind(tokens))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer.add_special_tokens([*added])
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>")
    fast.save_pretrained(folder)
    torch.manual_seed(sum(folder.name.encode()))
    model(len(fast) + padding, **changes).save_pretrained(folder)
    return folder


def vocabulary(folder: Path) -> dict[str, int]:
    rows: dict[str, int] = transformers.AutoTokenizer.from_pretrained(folder).get_vocab()
    return rows


def by_hand(key: str, token: str, folders: list[Path], based: bool) -> Tensor:
    """The mean of what every model has for a token, or gets from the others."""
    rows = {f: vocabulary(f)[token] for f in folders if token in vocabulary(f)}
    own = {f: ml.load_state_dict(f)[key][row] for f, row in rows.items()}
    common = torch.stack([*own.values()]).mean(0)
    if based:
        common = own.get(folders[0], common)
    return torch.stack([own.get(folder, common) for folder in folders]).mean(0)


def check(
    out: Path, folders: list[Path], tokens: list[str], *keys: str, based: bool = False
) -> None:
    """The result has these tokens in this order, rows as by hand, and loads as it was merged."""
    rows = vocabulary(out)
    assert sorted(rows, key=rows.__getitem__) == tokens
    state = ml.load_state_dict(out)
    assert json.loads((out / "config.json").read_text())["vocab_size"] == len(state[keys[0]])
    for key in keys:
        for token, row in rows.items():
            torch.testing.assert_close(state[key][row], by_hand(key, token, folders, based))
    model = transformers.AutoModelForCausalLM.from_pretrained(out).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(out)
    inputs = tokenizer(TEXT, return_tensors="pt")
    assert {"<x>", "<y>"} & {*tokens} <= {*tokenizer.convert_ids_to_tokens(inputs.input_ids[0])}
    merged = type(model)(model.config).eval()
    assert not merged.load_state_dict(state, strict=False).unexpected_keys
    merged.tie_weights()
    assert torch.equal(model(inputs.input_ids).logits, merged(inputs.input_ids).logits)


TABLES = ("model.embed_tokens.weight", "lm_head.weight")
MODELS = [
    (llama, {}, TABLES),
    (llama, {"tie_word_embeddings": True}, TABLES[:1]),
    (gpt2, {}, ("transformer.wte.weight",)),
    (bert, {}, ("bert.embeddings.word_embeddings.weight", "cls.predictions.bias")),
]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("model", "changes", "keys"), MODELS)
def test_permuted_tokens(
    tmp_path: Path, kind: Kind, model: Any, changes: dict[str, Any], keys: tuple[str, ...]
) -> None:
    options = {"kind": kind, "model": model, **changes}
    other = ["<unk>", *TOKENS[:0:-1]]
    folders = [save(tmp_path / "base", TOKENS, **options), save(tmp_path / "a", other, **options)]
    with pytest.raises(ValueError, match=r"row 1 is the token 'f' in expert 1 .* tokenizer='base'"):
        ml.merge_files("average", folders, tmp_path / "out")
    out = ml.merge_files("average", folders, tmp_path / "out", tokenizer="base")
    check(out, folders, TOKENS, *keys)
    named = ml.merge_files("average", folders, tmp_path / "named", tokenizer="expert 1")
    check(named, folders, other, *keys)
    assert vocabulary(named) == vocabulary(folders[1])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("model", "changes", "keys"), MODELS)
def test_added_tokens(
    tmp_path: Path, kind: Kind, model: Any, changes: dict[str, Any], keys: tuple[str, ...]
) -> None:
    options = {"kind": kind, "model": model, **changes}
    folders = [
        save(tmp_path / "base", TOKENS, **options),
        save(tmp_path / "a", TOKENS, ("<x>", "<y>"), **options),
        save(tmp_path / "b", TOKENS, ("<y>",), padding=7, **options),
        save(tmp_path / "c", TOKENS, ("<z>",), **options),
    ]
    with pytest.raises(ValueError, match=r"has shape .*tokenizer="):
        ml.merge_files("average", folders, tmp_path / "out")
    with pytest.warns(UserWarning, match=r"drops 2 of 11 rows of expert 1, .*'<x>', '<y>'"):
        out = ml.merge_files("average", folders, tmp_path / "out", tokenizer="base")
    check(out, folders, TOKENS, *keys)
    united = ml.merge_files("average", folders, tmp_path / "united", tokenizer="union")
    check(united, folders, [*TOKENS, "<x>", "<y>", "<z>"], *keys)
    named = {"b": folders[0], "x": folders[1], "c": folders[2], "d": folders[3]}
    out = ml.merge_files("average", named, tmp_path / "x", tokenizer="x")
    check(out, folders, [*TOKENS, "<x>", "<y>"], *keys)
