"""The book's map of methods names every method, and none that there isn't."""

import re
from pathlib import Path

import mergelib

PAGE = Path(__file__).parents[2] / "book" / "methods-map.md"


def test_the_map_names_every_method_once() -> None:
    terms = re.findall(r"^(`.*)\n: ", PAGE.read_text(), flags=re.MULTILINE)
    named = [name for term in terms for name in re.findall(r"`(\w+)`", term)]
    assert sorted(named) == sorted(mergelib.methods().index)
