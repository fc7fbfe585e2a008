"""Translate messages to the command line: ``--pretrained`` for ``pretrained=``."""

import re

# What the library calls as a keyword, and the commands as an option of that name.
_KEYWORD = re.compile(
    r"(?<![^\s(])(pretrained|include|exclude|missing|device|dtype|tokenizer|overwrite|rank)=(True\b|'([^']*)')?"
)
_PHRASES = {
    "is_matrix=mergelib.is_kernel": "--fold-convolutions",
    "chat_template=": "--chat-template=",
    "data= or MERGELIB_DATA": "MERGELIB_DATA",
}


def in_shell_words(message: str) -> str:
    """Return a message in one line, with options in place of Python's keyword arguments."""
    text = " ".join(message.split())
    for phrase, option in _PHRASES.items():
        text = text.replace(phrase, option)
    return _KEYWORD.sub(lambda m: f"--{m[1]}" + (f" {m[3]}" if m[3] else ""), text)
