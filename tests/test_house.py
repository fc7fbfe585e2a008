"""The rules of the house that no linter knows: sizes of rooms, and no dispatch on names."""

import ast
from collections import defaultdict
from pathlib import Path

import mergelib
from mergebook.suites.families import FAMILIES

ROOT = Path(mergelib.__file__).parents[1]
FILES = [file for name in ("mergelib", "mergebook") for file in (ROOT / name).rglob("*.py")]
LONGEST_FILE = 400
LARGEST_ROOM = 2000
CUTTING = {"startswith", "endswith", "removeprefix", "removesuffix", "rstrip", "lstrip"}


def lines(file: Path) -> int:
    return len(file.read_text().splitlines())


def test_no_file_is_long() -> None:
    long = {str(file): lines(file) for file in FILES if lines(file) > LONGEST_FILE}
    assert not long


def test_no_room_is_large() -> None:
    rooms: dict[str, int] = defaultdict(int)
    for file in FILES:
        rooms[str(file.parent.relative_to(ROOT))] += lines(file)
    assert {room: size for room, size in rooms.items() if size > LARGEST_ROOM} == {}


def test_nothing_depends_on_how_a_suites_name_begins() -> None:
    """A family registers itself; nobody takes a suite's name apart to guess what it is."""
    found = []
    for file in FILES:
        for node in ast.walk(ast.parse(file.read_text())):
            if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
                continue
            texts = [each.value for each in node.args if isinstance(each, ast.Constant)]
            names = {*FAMILIES, *(suite for family in FAMILIES.values() for suite in family.suites)}
            if node.func.attr in CUTTING and (names & {*texts} or "0123456789" in texts):
                found.append(f"{file.relative_to(ROOT)}:{node.lineno}")
    assert not found


def test_no_chapter_selects_checks_by_searching_their_sentences() -> None:
    """Checks have an id and columns of what they are about: rewording changes nothing."""
    chapters = sorted((ROOT / "notebooks" / "src").glob("*.py"))
    searched = [file.name for file in chapters if '["what"].str' in file.read_text()]
    assert chapters
    assert searched == []
