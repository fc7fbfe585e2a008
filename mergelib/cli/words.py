"""Translate messages to the command line: ``--pretrained`` for ``pretrained=``."""

import ast
import re
import shlex

# What the library calls as a keyword, and the commands as an option of that name.
_KEYWORD = re.compile(
    r"(?<![^\s(])(pretrained|include|exclude|missing|device|dtype|tokenizer|overwrite|rank|rename"
    r"|dequantise|nan)=(True\b|'([^']*)')?"
)
_PHRASES = {
    "is_matrix=mergelib.is_kernel": "--fold-convolutions",
    "chat_template=": "--chat-template=",
    " (to merge_files or load_state_dict)": "",
    "data= or MERGELIB_DATA": "MERGELIB_DATA",
}


def in_shell_words(message: str) -> str:
    """Return a message in one line, with options in place of Python's keyword arguments."""
    text = " ".join(message.split())
    for phrase, option in _PHRASES.items():
        text = text.replace(phrase, option)
    text = re.sub(r"\brename=(\{[^{}]*\})", _renaming, text)
    text = re.sub(r"\b(exclude)=(\[[^\[\]]*\])", _several, text)
    return _KEYWORD.sub(lambda m: f"--{m[1]}" + (f" {m[3]}" if m[3] else ""), text)


def _renaming(match: re.Match[str]) -> str:
    pairs = ast.literal_eval(match[1]).items()
    return " ".join(f"--rename {shlex.quote(f'{old}={new}')}" for old, new in pairs)


def _several(match: re.Match[str]) -> str:
    return " ".join(f"--{match[1]} {shlex.quote(value)}" for value in ast.literal_eval(match[2]))
