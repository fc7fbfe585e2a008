"""The reference pages: every name is documented, examples run, and quoted messages are real."""

import doctest
import re
from pathlib import Path

import docstrings
import pytest
import reference
import typer

from mergelib import registry
from tests.book.messages import CASES, message_of

ROOT = Path(__file__).parents[2]
API, ERRORS = ROOT / "book" / "api.md", ROOT / "book" / "errors.md"
# The start of a message, where the rest depends on the machine or lists every method.
SHORTENED = {
    "device",
    "does-not-run",
    "recipe-method",
    "recipe-yaml",
    "other-family",
    "slow-tokenizer",
}


def test_every_public_name_is_documented_once_with_an_example() -> None:
    pattern = (
        r"\.\. auto(?:function|class):: ([\w.]+)\n(?:   :members:\n)?```\n\n```pycon\n(.*?)```"
    )
    documented = re.findall(pattern, API.read_text(), flags=re.DOTALL)
    assert sorted(name for name, _ in documented) == sorted(docstrings.documented())
    unnamed = {
        "Adapted",
        "Compressed",
        "LearnedGrowth",
        "Alignment",
        "Inspection",
    }  # results of functions
    for name, example in documented:
        short = name.rpartition(".")[2]
        assert short in unnamed or re.search(rf"\b{short}\(", example) or f"@ml.{short}(" in example


def test_the_examples_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(registry, "_METHODS", dict(registry._METHODS))  # one example adds a rule
    pytest.importorskip("transformers")
    text = "\n".join(re.findall(r"```pycon\n(.*?)```", API.read_text(), flags=re.DOTALL))
    test = doctest.DocTestParser().get_doctest(text, {"__name__": "example"}, "api", str(API), 0)
    assert len(test.examples) > 80
    assert doctest.DocTestRunner().run(test).failed == 0


def test_docstrings_lose_their_examples_and_gain_links() -> None:
    lines = [
        "See `merge` and `fnmatch`.",
        "",
        "Returns:",
        "    A: b.",
        "",
        ">>> f()",
        "1",
        "",
        "End",
    ]
    assert docstrings.prepared(lines) == [
        "See :py:obj:`merge <mergelib.merge>` and ``fnmatch``.",
        *("", ":returns:", "    A: b.", "", "", "End"),
    ]


def test_the_fields_of_a_result_are_described() -> None:
    fields = docstrings.fields_of(docstrings.resolved("mergelib.align.Alignment"))
    assert ":ivar state: B's weights, reordered" in fields
    assert len(fields) == 3


@pytest.mark.parametrize("program", reference.PROGRAMS)
def test_every_command_and_option_is_on_the_page(program: str) -> None:
    page = reference.fill(f"% commands: {program}\n")
    tree = typer.main.get_command(reference.PROGRAMS[program])
    commands = dict(reference._walk(tree, program))
    assert re.findall(r"^### `(.*)`$", page, flags=re.MULTILINE) == list(commands)
    for section, command in zip(page.split("### ")[1:], commands.values(), strict=True):
        options = [name for each in command.params for name in each.opts if name.startswith("-")]
        for option in options:
            assert f"`{option}`" in section
    assert not re.search("[╭│╰]", page)


def test_what_one_types_is_code() -> None:
    text = "e.g. --set scale=0.4 or weights=0.3,0.7; see: mergelib methods, 'bert.*' and a*b"
    expected = (
        r"e.g. `--set scale=0.4` or `weights=0.3,0.7`; see: `mergelib methods`, `bert.*` and a\*b"
    )
    assert reference.escape(text) == expected


def sections() -> dict[str, tuple[str, str]]:
    """The quoted message and the explanation of every anchor."""
    parts = re.split(r"^\(message-([\w-]+)\)=\n", ERRORS.read_text(), flags=re.MULTILINE)
    found = {}
    for name, text in zip(parts[1::2], parts[2::2], strict=True):
        quoted = " ".join(re.findall(r"^> (.*)", text, flags=re.MULTILINE))
        found[name] = (quoted.strip("`"), text)
    return found


@pytest.mark.parametrize("name", sections())
def test_a_quoted_message_is_what_the_library_says(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    quoted, text = sections()[name]
    message, warned = message_of(CASES[name])
    if name in SHORTENED:
        assert quoted.endswith(" …")
        assert message.startswith(quoted.removesuffix(" …"))
    else:
        assert message == quoted
    assert ("This is a warning." in text) == warned
    assert "**What to do:** " in text


def test_every_case_is_on_the_page() -> None:
    assert sorted(sections()) == sorted(CASES)
