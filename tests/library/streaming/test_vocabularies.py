"""Models whose vocabularies differ, merged token by token, loaded again and run on a text."""

import json
import re
import shlex
import shutil
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import mergelib as ml
from mergelib import cli
from mergelib.io.matched import Matched
from mergelib.io.names import Renamed
from tests.commands import runner
from tests.library.inspection.cases import edit, transformers
from tests.library.streaming.cases import assert_same

tokenizers = pytest.importorskip("tokenizers")
pytestmark = [
    pytest.mark.filterwarnings("ignore:unrelated models"),
    pytest.mark.filterwarnings("ignore:tokenizer=.* drops"),
]

State = Mapping[str, Tensor]
TOKENS = ["<unk>", "a", "b", "ab", "c", "##d", "d", "e", "f"]
TEXT = "a b ab c d e f <x> <y> a"
ADDED = {"a": ("<x>",), "b": ("<y>", "<x>")}
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


Read = list[tuple[dict[str, int], State]]


def read(folders: list[Path]) -> Read:
    return [(vocabulary(folder), ml.load_state_dict(folder)) for folder in folders]


def by_hand(key: str, token: str, models: Read) -> Tensor:
    """The mean of what every model has for a token, or gets from the others."""
    own = [state[key][rows[token]] for rows, state in models if token in rows]
    common = torch.stack(own).mean(0)
    lacking = [common] * (len(models) - len(own))
    return torch.stack([*own, *lacking]).mean(0)


def check(out: Path, folders: list[Path], tokens: list[str], *keys: str) -> None:
    """The result has these tokens in this order, rows as by hand, and loads as it was merged."""
    rows, models = vocabulary(out), read(folders)
    assert sorted(rows, key=rows.__getitem__) == tokens
    state = ml.load_state_dict(out)
    assert json.loads((out / "config.json").read_text())["vocab_size"] == len(state[keys[0]])
    for key in keys:
        for token, row in rows.items():
            torch.testing.assert_close(state[key][row], by_hand(key, token, models))
    model = transformers.AutoModelForCausalLM.from_pretrained(out).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(out)
    inputs = tokenizer(TEXT, return_tensors="pt")
    assert {"<x>", "<y>"} & {*tokens} <= {*tokenizer.convert_ids_to_tokens(inputs.input_ids[0])}
    merged = type(model)(model.config).eval()
    assert not merged.load_state_dict(state, strict=False).unexpected_keys
    merged.tie_weights()
    assert torch.equal(model(inputs.input_ids).logits, merged(inputs.input_ids).logits)


TABLES = ("model.embed_tokens.weight", "lm_head.weight")
TIED = {"tie_word_embeddings": True}
CASES = [
    (word_piece, llama, {}, TABLES),
    (bpe, llama, TIED, TABLES[:1]),
    (unigram, gpt2, {}, ("transformer.wte.weight",)),
    (word_level, gpt2, {}, ("transformer.wte.weight",)),
    (word_piece, bert, {}, ("bert.embeddings.word_embeddings.weight", "cls.predictions.bias")),
    (unigram, llama, {}, TABLES),
]
CASE = ("kind", "model", "changes", "keys")


@pytest.mark.parametrize(CASE, CASES)
def test_permuted_tokens(
    tmp_path: Path, kind: Kind, model: Any, changes: dict[str, Any], keys: tuple[str, ...]
) -> None:
    options: dict[str, Any] = {"kind": kind, "model": model, **changes}
    other = ["<unk>", *TOKENS[:0:-1]]
    folders = [save(tmp_path / "base", TOKENS, **options), save(tmp_path / "a", other, **options)]
    with pytest.raises(ValueError, match=r"row 1 is the token 'f' in expert 1 .* tokenizer='base'"):
        ml.merge_files("average", folders, tmp_path / "out")
    out = ml.merge_files("average", folders, tmp_path / "out", tokenizer="base")
    check(out, folders, TOKENS, *keys)
    united = ml.merge_files("average", folders, tmp_path / "united", tokenizer="union")
    assert vocabulary(united) == vocabulary(folders[0])
    named = ml.merge_files("average", folders, tmp_path / "named", tokenizer="expert 1")
    check(named, folders, other, *keys)


@pytest.mark.parametrize(CASE, CASES)
def test_added_tokens(
    tmp_path: Path, kind: Kind, model: Any, changes: dict[str, Any], keys: tuple[str, ...]
) -> None:
    options: dict[str, Any] = {"kind": kind, "model": model, **changes}
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
    named = dict(zip("bxcd", folders, strict=True))
    with pytest.warns(UserWarning, match="tokenizer='x' drops 1 of 10 rows of d"):
        out = ml.merge_files("average", named, tmp_path / "x", tokenizer="x")
    check(out, folders, [*TOKENS, "<x>", "<y>"], *keys)


@pytest.mark.parametrize("tokenizer", ["base", "union"])
def test_a_token_that_a_model_lacks_changes_nothing_there(tmp_path: Path, tokenizer: str) -> None:
    """It has the base's row, so its task vector is zero; of two models here it is the other's."""
    base = save(tmp_path / "base", TOKENS, ("<x>",), padding=2)
    folders = [
        save(tmp_path / "a", [*TOKENS[:-1], "g"]),  # lacks f and <x>
        save(tmp_path / "b", TOKENS, ("<x>", "<y>"), padding=5),
    ]
    out = ml.merge_files(
        "task_arithmetic", folders, tmp_path / "o", pretrained=base, tokenizer=tokenizer, scale=0.5
    )
    state, p, a, b = (ml.load_state_dict(folder) for folder in (out, base, *folders))
    for key in TABLES:
        f, x = p[key][8], p[key][9]
        torch.testing.assert_close(state[key][8], f + 0.5 * (b[key][8] - f))
        torch.testing.assert_close(state[key][9], x + 0.5 * (b[key][9] - x))
        assert state[key].shape == (12, 8)
        if tokenizer == "base":  # rows without a token are the base's and b's
            expected = p[key][11] + 0.5 * (b[key][11] - p[key][11])
            torch.testing.assert_close(state[key][11], expected)
        else:  # in place of the rows without a token: for the base, a and b the row of one model
            torch.testing.assert_close(state[key][10], a[key][8])
            torch.testing.assert_close(state[key][11], b[key][10])
    assert json.loads((out / "config.json").read_text())["vocab_size"] == 12


def test_shards_bfloat16_and_equal_vocabularies(tmp_path: Path) -> None:
    folders = [save(tmp_path / name, TOKENS, padding=55) for name in "ab"]
    plain = ml.merge_files("average", folders, tmp_path / "plain")
    several: list[dict[str, Any]] = [{}, {"dtype": "bfloat16", "max_shard_size": 600}]
    for number, options in enumerate(several):
        out = ml.merge_files(
            "average", folders, tmp_path / str(number), tokenizer="union", **options
        )
        expected = ml.load_state_dict(plain)
        if options:
            expected = {key: value.bfloat16() for key, value in expected.items()}
        assert_same(ml.load_state_dict(out), expected)
        assert vocabulary(out) == vocabulary(folders[0])
    assert len([*out.glob("*.safetensors")]) > 1


def test_an_encoder_and_decoder(tmp_path: Path) -> None:
    """T5 has one table under three names, of which files hold one, and 32 rows of positions."""

    def t5(size: int) -> Any:
        sizes = {"d_model": 8, "d_ff": 10, "num_layers": 1, "num_heads": 2, "d_kv": 4}
        config = transformers.T5Config(vocab_size=size, decoder_start_token_id=0, **sizes)
        return transformers.T5ForConditionalGeneration(config)

    folders = [
        save(tmp_path / "base", TOKENS, kind=unigram, model=t5, padding=23),
        save(
            tmp_path / "a", ["<unk>", *TOKENS[:0:-1]], ("<x>",), kind=unigram, model=t5, padding=22
        ),
    ]
    out = ml.merge_files("average", folders, tmp_path / "out", tokenizer="union")
    state, models = ml.load_state_dict(out), read(folders)
    for token, row in vocabulary(out).items():
        expected = by_hand("shared.weight", token, models)
        torch.testing.assert_close(state["shared.weight"][row], expected)
    key = "encoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight"
    torch.testing.assert_close(state[key], (models[0][1][key] + models[1][1][key]) / 2)
    loaded = transformers.AutoModelForSeq2SeqLM.from_pretrained(out)
    assert torch.equal(loaded.get_input_embeddings().weight, state["shared.weight"])


def test_slow_vocabularies(tmp_path: Path) -> None:
    """A list of tokens in a file is enough to match rows, and a union needs tokenizer.json."""
    folders = [save(tmp_path / name, TOKENS, padding=3) for name in "ab"]
    for folder, tokens in zip(folders, (TOKENS, ["<unk>", *TOKENS[:0:-1]]), strict=True):
        for file in folder.glob("token*"):
            file.unlink()
        (folder / "vocab.txt").write_text("\n".join(tokens) + "\n")
    out = ml.merge_files("average", folders, tmp_path / "out", tokenizer="base")
    state, one, other = (ml.load_state_dict(folder)[TABLES[0]] for folder in (out, *folders))
    torch.testing.assert_close(state[1:9], (one[1:9] + other[1:9].flip(0)) / 2)
    torch.testing.assert_close(state[9:], (one[9:] + other[9:]) / 2)
    assert (out / "vocab.txt").read_text() == (folders[0] / "vocab.txt").read_text()
    (folders[1] / "vocab.txt").write_text("\n".join([*TOKENS, "g"]))
    with pytest.raises(
        ValueError, match=r"needs a tokenizer.json of expert 0, and transformers makes none"
    ):
        ml.merge_files("average", folders, tmp_path / "no", tokenizer="union")


def test_an_adapter_with_its_own_tokens(tmp_path: Path) -> None:
    peft = pytest.importorskip("peft")
    base = save(tmp_path / "base", TOKENS)
    other = save(tmp_path / "other", TOKENS)
    model = transformers.AutoModelForCausalLM.from_pretrained(base)
    model.resize_token_embeddings(10)
    config = peft.LoraConfig(
        r=2, target_modules=["q_proj"], modules_to_save=["embed_tokens", "lm_head"]
    )
    adapter = tmp_path / "adapter"
    peft.get_peft_model(model, config).save_pretrained(adapter)
    tokenizer = transformers.AutoTokenizer.from_pretrained(base)
    tokenizer.add_special_tokens({"additional_special_tokens": ["<x>"]})
    tokenizer.save_pretrained(adapter)
    rows = ml.load_state_dict(f"{base}+{adapter}")[TABLES[0]]
    for name in ("union", str(adapter)):
        out = ml.merge_files(
            "average",
            [adapter, other],
            tmp_path / "out",
            pretrained=base,
            tokenizer=name,
            overwrite=True,
        )
        torch.testing.assert_close(ml.load_state_dict(out)[TABLES[0]][9], rows[9])
        assert transformers.AutoModelForCausalLM.from_pretrained(out).config.vocab_size == 10
        assert vocabulary(out)["<x>"] == 9


@pytest.mark.parametrize("tokenizer", ["base", "union"])
def test_other_names_and_other_tokens(tmp_path: Path, tokenizer: str) -> None:
    """One expert is saved with a prefix, another has a token more; some rows are in another order.

    The result is what transformers makes of folders whose rows are put in order by hand.
    """
    base = save(tmp_path / "base", TOKENS)
    folders = [
        save(tmp_path / "a", ["<unk>", *TOKENS[:0:-1]], ("<x>",), padding=2),
        save(tmp_path / "b", TOKENS, ("<y>",)),
    ]
    stored, rename = read([base, *folders]), {"module.*": "*"}
    prefixed = {f"module.{key}": value for key, value in stored[1][1].items()}
    ml.save_state_dict(prefixed, folders[0] / "model.safetensors")
    options: dict[str, Any] = {"pretrained": base, "tokenizer": tokenizer}
    with pytest.raises(ValueError, match=re.escape(f"match those of pretrained with {rename=}")):
        ml.merge_files("ties", folders, tmp_path / "out", **options)
    out = ml.merge_files("ties", folders, tmp_path / "out", rename=rename, **options)
    tokens = [*TOKENS, "<x>", "<y>"] if tokenizer == "union" else TOKENS
    assert sorted(vocabulary(out), key=vocabulary(out).__getitem__) == tokens
    models = []
    for number, (rows, state) in enumerate(stored):
        by_token = [(rows, state), *stored]  # what a model lacks, another one has
        tables = {
            key: torch.stack([next(s[key][r[t]] for r, s in by_token if t in r) for t in tokens])
            for key in TABLES
        }
        model = llama(len(tokens))
        model.load_state_dict({**state, **tables})
        model.save_pretrained(tmp_path / str(number))
        models.append(transformers.AutoModelForCausalLM.from_pretrained(tmp_path / str(number)))
    expected = ml.merge("ties", models[1:], pretrained=models[0])
    assert_same(transformers.AutoModelForCausalLM.from_pretrained(out).state_dict(), expected)
    again = ml.run_recipe(out / "README.md", tmp_path / "again")
    assert_same(ml.load_state_dict(again), expected)
    assert vocabulary(again) == vocabulary(out)


def test_a_view_of_models_in_memory() -> None:
    """Views compose: rows in another order under another name, and a row of the base."""
    base, other = {"t": torch.arange(6.0).view(3, 2)}, {"m.t": torch.arange(6.0, 10.0).view(2, 2)}
    views: dict[str, Matched] = {}
    views["pretrained"] = Matched(base, [0, 1, 2], {"t"}, views)
    views["a"] = Matched(Renamed(other, {"t": "m.t"}), [1, -1, 0], {"t"}, views)
    assert views["a"]["t"].tolist() == [[8, 9], [2, 3], [6, 7]]
    assert views["a"].layout["t"].shape == (3, 2)
    assert views["pretrained"]["t"] is base["t"]


def test_refusals(tmp_path: Path) -> None:
    a, b = save(tmp_path / "a", TOKENS), save(tmp_path / "b", TOKENS, ("<x>",))

    def refuse(match: str, *models: Any, output: str = "out", **options: Any) -> None:
        with pytest.raises(ValueError, match=match):
            ml.merge_files("average", models, tmp_path / output, **options)

    refuse("tokenizer is 'c', expected one of 'base', 'union', 'expert 0'", a, b, tokenizer="c")
    refuse(
        "no vocabulary of expert 1 in .*b.safetensors: pass a folder",
        *(a, shutil.copy(b / "model.safetensors", tmp_path / "b.safetensors")),
        tokenizer="base",
    )
    unnamed = [ml.load_state_dict(folder) for folder in (a, b)]
    assert "pass tokenizer='union' instead of excluding" in ml.inspect(unnamed).reason
    refuse("needs a folder as output", a, b, output="out.safetensors", tokenizer="union")
    refuse("needs a folder as output", a, output="out.safetensors", chat_template="experts")
    gap = save(tmp_path / "gap", TOKENS, padding=5)
    content = json.loads((gap / "tokenizer.json").read_text())
    content["model"]["vocab"]["f"] = 11
    edit(gap / "tokenizer.json", model=content["model"])
    refuse("numbered from 0 without a gap", gap, b, tokenizer="union")
    square = save(tmp_path / "square", TOKENS[:8])
    refuse("no table of tokens in expert 0 by its name and shape", square, tokenizer="base")
    (b / "tokenizer.json").unlink()
    (b / "tokenizer.model").write_bytes(b"sentences")
    refuse("no vocabulary of expert 1 in .*: pass a folder with vocab.json", a, b, tokenizer="base")
    for option in ("tokenizer", "chat_template"):
        with pytest.raises(TypeError, match=f"no hyperparameter '{option}'; .*use merge_files"):
            ml.merge("average", [ml.load_state_dict(a)], **{option: "base"})  # type: ignore[arg-type]


TEMPLATE = "{% for m in messages %}<x>{{ m['content'] }}<y>{% endfor %}"


@pytest.fixture
def tuned(tmp_path: Path) -> list[Path]:
    """The base's tokens and rows come first in both experts, as after adding tokens."""
    base, *experts = (
        save(tmp_path / name, TOKENS, added) for name, added in (("o", ()), *ADDED.items())
    )
    start = ml.load_state_dict(base)
    for folder in experts:
        state = {key: 0.1 * tensor for key, tensor in ml.load_state_dict(folder).items()}
        for key, tensor in start.items():
            state[key][: len(tensor)] += tensor
        ml.save_state_dict(state, folder / "model.safetensors")
    return [base, *experts]


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    return runner(cli.main, "mergelib", monkeypatch, capsys)


def test_inspect_proposes_a_command_that_unites_vocabularies(
    tuned: list[Path], tmp_path: Path, call: Any
) -> None:
    base, *experts = tuned
    report = ml.inspect(experts, pretrained=base)
    assert len(report.refusals) == 1
    assert "--exclude" not in report.command
    assert call(*shlex.split(report.command)[1:-1], str(tmp_path / "next")).err == ""
    union = ml.merge_files("tsv", experts, tmp_path / "u", pretrained=base, tokenizer="union")
    assert_same(ml.load_state_dict(tmp_path / "next"), ml.load_state_dict(union))
    check(union, [union], [*TOKENS, "<x>", "<y>"], *TABLES)


def said_by(call: Callable[[], Any]) -> list[str]:
    """The error of a call, if it raises one, and its warnings."""
    errors = []
    with warnings.catch_warnings(record=True) as notes:
        warnings.simplefilter("always")
        try:
            call()
        except ValueError as error:
            errors.append(str(error))
    return errors + [str(note.message) for note in notes]


@pytest.mark.parametrize("chat", [None, "experts", "expert 1", "c"])
@pytest.mark.parametrize("tokenizer", ["base", "union", "expert 0", "a", "c"])
def test_inspect_with_a_tokenizer_says_what_a_merge_says(
    tokenizer: str,
    chat: str | None,
    tuned: list[Path],
    tmp_path: Path,
    call: Any,
) -> None:
    """Its errors and warnings; and the command that it suggests writes that merge."""
    base, *experts = tuned
    for folder in experts:
        (folder / "chat_template.jinja").write_text(TEMPLATE)
        edit(folder / "tokenizer_config.json", eos_token="<x>")
    chosen = str(experts[0]) if tokenizer == "a" else tokenizer
    options: dict[str, Any] = {"pretrained": base, "tokenizer": chosen, "chat_template": chat}
    said = said_by(lambda: ml.merge_files("tsv", experts, tmp_path / "out", **options))
    report = ml.inspect(experts, **options)
    assert [*report.refusals, *report.warnings] == said
    refused = not (tmp_path / "out").exists()
    assert refused is ("c" in (tokenizer, chat) or (tokenizer == "base" and chat is not None))
    assert refused is bool(report.refusals) is (not report.command)
    words = [*map(str, experts), "-p", str(base), "--tokenizer", chosen]
    assert call("inspect", *words, *(["--chat-template", chat] if chat else [])).status == refused
    if refused:
        return
    call(*shlex.split(report.command)[1:-1], str(tmp_path / "next"))
    if chat is None and "--chat-template experts" in report.command:  # a proposal of the report
        options |= {"chat_template": "experts", "overwrite": True}
        ml.merge_files("tsv", experts, tmp_path / "out", **options)
    for file in (tmp_path / "out").iterdir():
        assert (
            file.name == "README.md"
            or file.read_bytes() == (tmp_path / "next" / file.name).read_bytes()
        )
    assert set(report.tensors["fate"]) == {"merged"}


def test_inspect_measures_matched_rows(tmp_path: Path) -> None:
    """An expert with permuted rows is as far from the base as before; a new token adds nothing."""
    base = save(tmp_path / "o", TOKENS)
    other = save(tmp_path / "p", ["<unk>", *TOKENS[:0:-1]], ("<x>",))
    state = ml.load_state_dict(base)
    for key in TABLES:
        state[key] = torch.cat([state[key][:1], state[key][1:].flip(0), torch.ones(1, 8)])
    state[TABLES[0]][0] += 3
    ml.save_state_dict(state, other / "model.safetensors")
    report = ml.inspect([other], pretrained=base, tokenizer="union")
    assert report.models.loc["expert 0", "norm"] == pytest.approx(3 * 8**0.5)


def test_inspect_finds_no_vocabulary_in_memory(tuned: list[Path]) -> None:
    models = [ml.load_state_dict(folder) for folder in tuned]
    report = ml.inspect(models, tokenizer="union")
    assert "tokenizer= finds no vocabulary of expert 0 in memory" in report.refusals[0]
    assert report.command == ""


@pytest.fixture
def chats(tmp_path: Path) -> list[Path]:
    """A base without a chat template, and two experts with one and an end token."""
    folders = [save(tmp_path / "base", TOKENS)]
    for name in "ab":
        folders.append(save(tmp_path / name, TOKENS, ("<x>", "<y>")))
        tokenizer = transformers.AutoTokenizer.from_pretrained(folders[-1])
        tokenizer.chat_template, tokenizer.eos_token = TEMPLATE, "<y>"
        tokenizer.save_pretrained(folders[-1])
        for file in ("config.json", "generation_config.json"):
            edit(folders[-1] / file, eos_token_id=[10, 9])
    return folders


def test_the_experts_chat_template(chats: list[Path], tmp_path: Path) -> None:
    base, *experts = chats
    options: dict[str, Any] = {"pretrained": base, "tokenizer": "union", "overwrite": True}
    with pytest.warns(UserWarning, match="agree on the chat template.*or pass chat_template='exp"):
        ml.merge_files("average", experts, tmp_path / "out", **options)
    for chosen in ("experts", "expert 1", str(experts[0])):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            warnings.filterwarnings("ignore", "unrelated")
            out = ml.merge_files(
                "average", experts, tmp_path / "out", chat_template=chosen, **options
            )
        tokenizer = transformers.AutoTokenizer.from_pretrained(out)
        messages = [{"role": "user", "content": "a b"}]
        assert tokenizer.apply_chat_template(messages, tokenize=False) == "<x>a b<y>"
        assert (tokenizer.eos_token, tokenizer.eos_token_id) == ("<y>", 10)
        assert json.loads((out / "tokenizer_config.json").read_text())["chat_template"] == TEMPLATE
        model = transformers.AutoModelForCausalLM.from_pretrained(out)
        assert model.generation_config.eos_token_id == model.config.eos_token_id == [10, 9]
        again = ml.run_recipe(out / "README.md", tmp_path / "again", overwrite=True)
        assert_same(ml.load_state_dict(out), ml.load_state_dict(again))
        for file in ("tokenizer.json", "tokenizer_config.json", "config.json"):
            assert (again / file).read_bytes() == (out / file).read_bytes()


def test_end_tokens_get_the_rows_of_the_result(chats: list[Path], tmp_path: Path) -> None:
    base, *experts = chats
    plain = save(tmp_path / "plain", TOKENS, ("<z>", "<y>"))
    out = ml.merge_files(
        "average",
        experts,
        tmp_path / "out",
        pretrained=plain,
        tokenizer="union",
        chat_template="experts",
    )
    assert json.loads((out / "config.json").read_text())["eos_token_id"] == [10, 11]
    with pytest.raises(
        ValueError, match="no row for '<y>', an end token of expert 0: pass tokeniz"
    ):
        ml.merge_files(
            *("average", experts, tmp_path / "no"),
            pretrained=base,
            tokenizer="base",
            chat_template="experts",
        )


def test_experts_that_do_not_agree_on_a_template(chats: list[Path], tmp_path: Path) -> None:
    base, *experts = chats
    options: dict[str, Any] = {"pretrained": base, "tokenizer": "expert 1"}
    (experts[0] / "chat_template.jinja").write_text("{{ other }}")
    match = r"chat_template='{}' does not decide on one .* an expert that has them \({}\)"
    for chosen, known in (("experts", "expert 0, expert 1"), ("c", "expert 0, expert 1")):
        with pytest.raises(ValueError, match=match.format(chosen, known)):
            ml.merge_files("average", experts, tmp_path / "o", chat_template=chosen, **options)
    out = ml.merge_files("average", experts, tmp_path / "o", chat_template="expert 0", **options)
    assert transformers.AutoTokenizer.from_pretrained(out).chat_template == "{{ other }}"
    plain = save(tmp_path / "plain", TOKENS)
    with pytest.raises(ValueError, match=match.format("experts", "none")):
        ml.merge_files("average", [plain], tmp_path / "no", chat_template="experts")


@pytest.mark.parametrize(
    ("said", "tokenizer"),
    [
        ("tokenizer_source: base", "base"),
        ("tokenizer_source: a", "expert 0"),
        ("tokenizer: {source: union}", "union"),
        ("tokenizer: {}", "union"),
    ],
)
def test_recipes(tmp_path: Path, said: str, tokenizer: str) -> None:
    pytest.importorskip("yaml")
    base = save(tmp_path / "base", TOKENS)
    experts = [save(tmp_path / name, TOKENS, (f"<{name}>",)) for name in "ab"]
    models = "models: [{model: a, parameters: {weight: 1}}, {model: b, parameters: {weight: 0.5}}]"
    text = f"merge_method: task_arithmetic\nbase_model: base\n{models}\n{said}\n"
    (tmp_path / "recipe.yml").write_text(text)
    options: dict[str, Any] = {"pretrained": base, "scale": [1, 0.5]}
    expected = ml.merge_files(
        "task_arithmetic", experts, tmp_path / "one", tokenizer=tokenizer, **options
    )
    out = ml.run_recipe(tmp_path / "recipe.yml", tmp_path / "two")
    assert_same(ml.load_state_dict(out), ml.load_state_dict(expected))
    assert vocabulary(out) == vocabulary(expected)


def test_a_base_that_is_one_of_the_models_of_a_recipe(tmp_path: Path) -> None:
    pytest.importorskip("yaml")
    save(tmp_path / "a", TOKENS, ("<x>",))
    save(tmp_path / "base", TOKENS)
    models = "models: [{model: a, parameters: {weight: 1}}, {model: base, parameters: {weight: 1}}]"
    text = f"merge_method: linear\nbase_model: base\n{models}\ntokenizer_source: base\n"
    (tmp_path / "recipe.yml").write_text(text)
    out = ml.run_recipe(tmp_path / "recipe.yml", tmp_path / "out")
    check(out, [tmp_path / "a", tmp_path / "base"], TOKENS, *TABLES)


def test_the_command_line(chats: list[Path], tmp_path: Path, call: Any) -> None:
    base, *experts = map(str, chats)

    def run(*options: str) -> str:
        printed = call("merge", "ties", *experts, "-p", base, "-o", str(tmp_path / "out"), *options)
        return str(printed.err)

    assert "merge files with --tokenizer base or --tokenizer union" in run()
    assert "tokenizer is 'c', expected one of 'base', 'union'" in run("--tokenizer", "c")
    run("--tokenizer", experts[0], "--chat-template", "experts")
    assert transformers.AutoTokenizer.from_pretrained(tmp_path / "out").chat_template == TEMPLATE
    assert "use --tokenizer in place of --set tokenizer" in run("--set", "tokenizer=base")
    assert "use --chat-template in place of" in run("--set", "chat_template=experts")


@pytest.mark.parametrize("listed", [None, ["<unk>"], ["<unk>", "<y>"]])
@pytest.mark.parametrize("entry", ["extra_special_tokens", "additional_special_tokens"])
def test_special_tokens_stay_special(entry: str, listed: list[str] | None, tmp_path: Path) -> None:
    """The tokenizer lists them, whichever version of transformers wrote the experts' lists."""
    more = ("<y>",) if listed and "<y>" in listed else ()
    added = {"p": more, "a": ("<x>",), "b": ("<y>",)}
    base, a, b = (save(tmp_path / name, TOKENS, tokens) for name, tokens in added.items())
    edit(base / "tokenizer_config.json", extra_special_tokens=listed)
    edit(a / "tokenizer_config.json", **{entry: ["<x>"]})
    edit(b / "tokenizer_config.json", **{entry: [{"content": "<y>", "special": True}, "<gone>"]})
    merged = ml.merge_files("average", [a, b], tmp_path / "out", pretrained=base, tokenizer="union")
    tokenizer = transformers.AutoTokenizer.from_pretrained(merged)
    expected = {*(listed or []), "<x>", "<y>"}
    assert {*map(str, tokenizer.extra_special_tokens)} == expected
    assert len(tokenizer.extra_special_tokens) == len(expected)
    assert expected <= {*tokenizer.all_special_tokens}
