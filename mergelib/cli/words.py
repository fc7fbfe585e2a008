"""Translate messages to the command line: ``--pretrained`` for ``pretrained=``."""

import ast
import re
import shlex

# What the library calls as a keyword, and the commands as an option of that name.
_KEYWORD = re.compile(
    r"(?<![^\s(])(pretrained|include|exclude|missing|device|dtype|tokenizer|overwrite|rank|rename"
    r"|dequantise|nan|chat_template)=(True\b|'([^']*)')?"
)
_PHRASES = {
    "is_matrix=mergelib.is_kernel": "--fold-convolutions",
    " (to merge_files or load_state_dict; in memory, mergelib.dequantise does it)": "",
    "data= or MERGELIB_DATA": "MERGELIB_DATA",
}


def in_shell_words(message: str) -> str:
    """Return a message in one line, with options in place of Python's keyword arguments."""
    text = " ".join(message.split())
    for phrase, option in _PHRASES.items():
        text = text.replace(phrase, option)
    text = re.sub(r"\b(rename|exclude)=(\{[^{}]*\}|\[[^\[\]]*\])", _repeated, text)
    return _KEYWORD.sub(_option, text)


def _option(match: re.Match[str]) -> str:
    return f"--{match[1].replace('_', '-')}" + (f" {match[3]}" if match[3] else "")


def _repeated(match: re.Match[str]) -> str:
    given = ast.literal_eval(match[2])
    values = [f"{old}={new}" for old, new in given.items()] if isinstance(given, dict) else given
    return " ".join(f"--{match[1]} {shlex.quote(value)}" for value in values)
