"""The book's map of methods names every method, and none that there isn't."""

import math
import re
from pathlib import Path

import pytest
import reference

import mergelib
from mergebook.chapters import leaderboard

PAGE = Path(__file__).parents[2] / "book" / "methods-map.md"
METHODS = list(mergelib.methods().index)


def test_the_map_names_every_method_once() -> None:
    named = re.findall(r"^### (.*)", PAGE.read_text(), flags=re.MULTILINE)
    assert sorted(named) == sorted(f"`{name}`" for name in METHODS)


@pytest.mark.parametrize("name", METHODS)
def test_a_method_has_an_anchor_and_its_facts(name: str) -> None:
    section = re.search(
        rf"^\(method-{name.replace('_', '-')}\)=\n### `{name}`\n\n[^%]+\n\n% facts: {name}\n",
        PAGE.read_text(),
        flags=re.MULTILINE,
    )
    assert section is not None
    shown = reference.facts(name)
    method = next(each for each in reference.all_methods() if each.name == name)
    rows = re.findall(r"^\| `(\w+)` \| `(.*?)` \| (.+) \|$", shown, flags=re.MULTILINE)
    defaults = {key: value.replace('"', "'") for key, value, _ in rows}
    assert defaults == {key: repr(value) for key, value in method.hyperparameters.items()}


def test_numbers_are_those_of_the_leaderboard() -> None:
    glance = reference.fill("% glance\n")
    assert len(re.findall(r"^\| \[`", glance, flags=re.MULTILINE)) == len(METHODS)
    row = next(r for r in leaderboard.entries() if (r.suite, r.method) == ("imagenet8", "tsv"))
    assert re.search(rf"^\| \[`tsv`\].*?\| none \| {row.normalised:.0f} \|", glance, re.MULTILINE)
    assert f": {row.normalised:.0f} (EffNet 8)" in reference.facts("tsv")


def test_the_rows_of_every_method_are_in_the_leaderboard() -> None:
    measured = {row.method for row in leaderboard.entries() if row.suite in reference.SUITES}
    without = {"slerp", "fednova", "wsm", "cogram"}  # of two experts, one run, or few networks
    without |= {
        "nuslerp",
        "karcher",
        "sce",
        "ram",
        "nearswap",
        "arcee_fusion",
        "knots",
        "adarank",
        "doge",
        "esm",
        "symerge",
        "svc",
        "subspace_boosting",
        "regmean_plusplus",
    }  # not in the leaderboard
    for name in {*METHODS} - without:
        assert {*reference.ROWS.get(name, (name,))} <= measured, name
    assert not measured & without
    assert not any(math.isnan(value) for value in reference.results().values())


@pytest.mark.parametrize("name", reference.MERGEKIT)
def test_names_of_mergekit_lead_here(name: str) -> None:
    """Calling a method by mergekit's name either works or suggests the right one."""
    other = reference.MERGEKIT[name][0]
    if other != name:
        with pytest.raises(ValueError, match=f"unknown method '{other}'; did you mean '{name}'"):
            mergelib.merge(other, [{}])
