"""Verdicts and outcomes worked out by hand, and claims on made-up results."""

import re
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import pytest

from mergebook.cart import claims as cart
from mergebook.cart.paper import DECIDING
from mergebook.cogram import claims as cogram
from mergebook.frank_wolfe import claims as frank_wolfe
from mergebook.lab.results import MissingResult, load_result, load_table
from mergebook.ledger import Check, Claim, comparison, drawing, judge, outcomes, verdict
from mergebook.ledger.checks import Role, pick
from mergebook.ledger.verdicts import cached
from mergebook.sail import claims as sail
from mergebook.sail.networks.diffusion import SiT
from mergebook.stability import claims as stability
from mergebook.suites.data.texts import CHARACTERS
from mergebook.suites.families.imagenet import EfficientNetLite0
from mergebook.suites.families.sentences import build_encoder
from mergebook.suites.models import GPT, PICTURE_MODELS

UP, DOWN, OPEN = (
    np.array([1.0, 1.1, 1.2, 1.1]),
    -np.array([1.0, 1.1, 1.2, 1.1]),
    np.array([-1.0, 1.1, 1.0]),
)


def test_verdicts() -> None:
    assert verdict(["holds", "holds"]) == "holds"
    assert verdict(["holds", "fails", "open"]) == "mixed"
    assert verdict(["holds", "open"]) == verdict(["open"]) == verdict([]) == "undecided"
    assert verdict(["fails", "open"]) == "does not hold here"


def shown(*values: np.ndarray, role: Role = "primary", **options: Any) -> list[str]:
    return [
        result.shown
        for result in outcomes([Check("", value, role=role, **options) for value in values])
    ]


def test_outcomes() -> None:
    assert shown(UP, DOWN, OPEN) == ["holds", "fails", "open"]
    assert shown(UP, bound=2.0) == ["fails"]
    assert shown(UP, tolerance=2.0) == ["holds"]
    assert shown(UP, tolerance=0.5) == shown(DOWN, tolerance=0.5) == ["fails"]
    assert shown(UP, tolerance=1.15) == ["open"]


WEAK = np.array([1.0, 2.0, 2.6, 0.5])  # a p-value between 0.025 and 0.05


def test_holm_counts_the_checks_of_one_role() -> None:
    assert 0.025 < Check("", WEAK).chances[0] < 0.05
    assert shown(WEAK) == ["holds"]
    assert shown(WEAK, OPEN) == ["open", "open"]
    mixed = [Check("", WEAK), Check("", OPEN, role="control")]
    assert [result.shown for result in outcomes(mixed)] == ["holds", "open"]


def test_a_claim_that_needs_all_its_checks_needs_no_correction() -> None:
    """An intersection-union test; a failure among several is corrected."""
    assert shown(WEAK, WEAK, UP) == ["holds"] * 3
    assert shown(WEAK, WEAK, UP, role="secondary") == ["open", "open", "holds"]
    assert shown(-WEAK, -WEAK, UP) == ["open", "open", "holds"]


def test_no_interval_of_an_open_check_excludes_its_bound() -> None:
    _, checks = judge([claim("A", [Check("", WEAK), Check("", WEAK), Check("", OPEN)])])
    assert checks["outcome"].tolist() == ["open"] * 3
    assert (checks["low"] < 0).all()
    assert (checks["level"] > 0.97).tolist() == [True, True, False]
    _, alone = judge([claim("A", [Check("", WEAK)])])
    assert (alone["low"].item() > 0, alone["level"].item()) == (True, 0.95)


def test_facts() -> None:
    assert shown(np.array([2.0]), kind="fact", bound=1.0) == ["proved"]
    assert shown(np.array([2.0, 0.5]), kind="fact", bound=1.0) == ["refuted"]
    assert verdict(["proved", "proved"]) == "proved"
    assert verdict(["proved", "holds"]) == "holds"
    assert verdict(["refuted", "holds"]) == "refuted by counterexample"
    beside = [Check("", WEAK), Check("", OPEN, kind="fact")]
    assert [result.shown for result in outcomes(beside)] == ["holds", "refuted"]


def test_an_effect_in_several_networks_is_pooled() -> None:
    """Two networks with means 1 and 3 and equal errors: the mean is 2."""
    checks = [Check("", UP - 0.1, network="a"), Check("", UP + 1.9, network="b"), Check("", DOWN)]
    table, rows = judge([claim("A", checks), claim("B", [Check("", UP, network="a")])])
    effect, none = table["pooled"]
    assert effect.estimate.value == pytest.approx(2)
    assert none is None
    text = drawing.entries(table[:1], rows)
    assert "*Over networks:* 2.0 points [" in text


def claim(key: str, checks: Sequence[Check] | Exception) -> Claim:
    def test(_: object) -> Sequence[Check]:
        if isinstance(checks, Exception):
            raise checks
        return checks

    texts = ("paper", "Table 1", "it helps", "a ViT", "a lot", "on seeds", "labels")
    return Claim(key, *texts, "tasks", "page", test)


def test_only_primary_checks_decide() -> None:
    checks = [
        Check("it", UP),
        Check("else", DOWN, role="secondary"),
        Check("", DOWN, role="control"),
    ]
    table, rows = judge([claim("A", checks)])
    assert table["verdict"].tolist() == ["holds"]
    assert rows["outcome"].tolist() == ["holds", "fails", "fails"]
    assert table["ours"].tolist() == ["of 1 primary check, 1 holds"]


def test_only_a_missing_result_is_not_tested() -> None:
    missing = MissingResult("no result 'x'; there are: none")
    table, checks = judge([claim("A", missing), claim("B", [Check("", UP)])])
    assert table["verdict"].tolist() == ["not tested", "holds"]
    assert table["ours"][0] == "no result 'x'; there are: none"
    assert checks["claim"].tolist() == ["B"]
    for error in (ValueError("no rows"), KeyError("accuracy")):
        with pytest.raises(type(error)):
            judge([claim("C", error)])


def test_pick() -> None:
    rows = pd.DataFrame({"seed": [0, 0, 1], "task": ["a", "b", "a"], "accuracy": [0.5, 0.6, 0.7]})
    assert pick(rows, seed=0).to_dict() == {(0, "a"): 50.0, (0, "b"): 60.0}
    with pytest.raises(ValueError, match="no column method"):
        pick(rows, method="cart")
    with pytest.raises(ValueError, match="0 rows"):
        pick(rows, task="c")
    with pytest.raises(ValueError, match="one for each seed"):
        pick(rows, keys=("seed",))


def test_a_task_that_one_seed_lacks_is_an_error() -> None:
    with pytest.raises(ValueError, match="all finite"):
        Check("", np.array([[1.0, np.nan], [1.0, 2.0]]))


def test_statements_are_short() -> None:
    for module in (cart, frank_wolfe, cogram, stability, sail):
        for claim in module.CLAIMS:
            assert len(re.findall(r"\S*\w\S*", claim.statement)) <= 12, claim.key


def test_networks_have_the_sizes_that_claims_tell() -> None:
    """In millions of parameters, as the claims' field ``networks`` has them."""
    told = {
        1.4: PICTURE_MODELS["vit"](),
        0.4: PICTURE_MODELS["vit_small"](),
        3.4: EfficientNetLite0(),
        23: build_encoder(),
        0.03: GPT(32, 2, 4, vocabulary=len(CHARACTERS), context=64),
        0.3: SiT(64, 4, 4),
    }
    for millions, network in told.items():
        count = sum(p.numel() for p in network.parameters()) / 1e6
        assert count == pytest.approx(
            millions, abs=0.5 * 10 ** -len(f"{millions}".partition(".")[2])
        )


def test_keys_are_unique_and_in_order() -> None:
    assert [each.key for each in cart.CLAIMS] == [f"C{i}" for i in range(1, 11)]
    assert [each.key for each in frank_wolfe.CLAIMS] == [f"F{i}" for i in range(1, 9)]
    assert [each.key for each in cogram.CLAIMS] == [f"G{i}" for i in range(1, 6)]
    for letter, claims in (("T", stability.CLAIMS), ("S", sail.CLAIMS)):
        numbers = [int(each.key.removeprefix(letter)) for each in claims]
        assert numbers == sorted({*numbers})


def jitter(i: int, seed: int) -> float:
    """What row i has in that seed beside its mean over three seeds: no difference is constant."""
    return 0.001 * (seed - 1) * (1 + i % 7) ** 2


def over_three_seeds(kept: pd.DataFrame) -> pd.DataFrame:
    """These rows in three seeds, in which each moves by its own `jitter`."""
    rows = kept.assign(row=range(len(kept)))
    rows = rows.merge(pd.DataFrame({"seed": range(3)}), how="cross")
    moved = [jitter(i, seed) for i, seed in zip(rows["row"], rows["seed"], strict=True)]
    return rows.assign(accuracy=rows["accuracy"] + moved)


def ladder(accuracies: dict[str, float]) -> pd.DataFrame:
    rows = [
        {"seed": seed, "method": method, "task": task, "accuracy": value + jitter(i, seed)}
        for i, (method, value) in enumerate(accuracies.items())
        for seed in range(3)
        for task in "ab"
    ]
    return pd.DataFrame(rows)


def test_cart_is_compared_with_each_of_the_others_and_the_rest_as_the_table_has_it() -> None:
    made = {"average": 0.5, "task_arithmetic": 0.55, "ties": 0.62, "consensus": 0.6, "cart": 0.7}
    made |= dict.fromkeys(("tsv", "iso_c", "iso_cts"), 0.72)
    _, checks = judge(cart.CLAIMS[:1], lambda *_: ladder(made))
    values = checks.set_index("what")["value"]
    assert values["8 tasks: CART above each of the other four"] == pytest.approx(8)
    assert values["20 tasks: average above task arithmetic"] == pytest.approx(-5)
    assert values["14 tasks: task arithmetic above TIES"] == pytest.approx(-7)
    assert values["14 tasks: CART above TSV"] == pytest.approx(-2)
    papers = checks.set_index("what")["paper"]
    assert papers["20 tasks: CART above each of the other four"] == pytest.approx(11.3)
    assert papers["14 tasks: task arithmetic above TIES"] == pytest.approx(0.2)
    assert np.isnan(papers["sentences, 8 tasks: CART above each of the other four"])
    suites = [pair for setting in DECIDING for pair in setting.suites(setting.counts)]
    deciding = [f"{words}: CART above each of the other four" for _, words in suites]
    assert checks.loc[checks["role"] == "primary", "what"].tolist() == deciding


def test_a_sure_lead_over_the_highest_mean_is_no_lead_over_all() -> None:
    """TIES has the lower mean, but is ahead on one of two tasks."""
    table = ladder(
        {"average": 0.5, "task_arithmetic": 0.5, "ties": 0.58, "consensus": 0.6, "cart": 0.7}
    )
    split = (table["task"] == "a").map({True: 0.2, False: -0.2}) * (table["method"] == "ties")
    table["accuracy"] += split
    check = cart.CLAIMS[0].checks(cached(lambda *_: table))[0]
    assert check.value == pytest.approx(12, abs=0.5)
    assert check.interval()[0] < 0


def test_the_average_of_a_surface_is_at_scale_0_and_full_rank() -> None:
    """Ranks have it at rank 0; both give the same checks."""
    low = "low_rank_task_arithmetic"
    others = [("cart", scale, ratio) for scale in (1.0, 2.0, 3.0) for ratio in (0.01, 0.08, 0.32)]
    others += [(low, 0.3, ratio) for ratio in (0.0, 0.08, 1.0)]

    def load(name: str, *_: str) -> pd.DataFrame:
        average = ("cart", 0.0, 1.0) if "surface" in name else ("cart", 1.0, 0.0)
        kept = pd.DataFrame([average, *others], columns=["method", "scale", "rank_ratio"])
        kept = kept.assign(accuracy=0.4 + 0.01 * np.arange(len(kept)), task="a")
        return over_three_seeds(kept)

    values = {check.what: check.value for check in cart.CLAIMS[1].checks(cached(load))}
    for network in ("", "ImageNet network, ", "sentences, "):
        assert values[f"{network}rank 8 % above the average"] == pytest.approx(2)
        assert values[f"{network}scale 3: rank 8 % above the average"] == pytest.approx(8)
    assert "uncentred: rank 8 % above 0 %" in values
    assert "sentences, uncentred: rank 8 % above 0 %" not in values  # a surface has no such point


@pytest.mark.parametrize("suite", ["imagenet8", "sentences8"])
def test_claims_tell_how_the_real_networks_were_measured(suite: str) -> None:
    told = {claim.key: claim.method for claim in cart.CLAIMS}
    surface = load_result(f"{suite}-surface")["provenance"]["settings"]
    assert f"{surface['pictures']} test inputs of each task" in told["C2"]


def test_what_a_rank_costs_is_chosen_on_other_seeds() -> None:
    """Seeds 1 and 2 choose 16 % for seed 0, which loses by it; the others are given 8 %."""
    rows = pd.DataFrame(
        {0.08: [50.0, 50.0, 50.0], 0.16: [40.0, 55.0, 56.0]},
        index=pd.MultiIndex.from_product([range(3), ["a"]], names=["seed", "task"]),
    )
    cost = cart.cost_of_papers_rank(rows)
    assert cost.tolist() == [-10.0, 0.0, 0.0]


def compressions(rests: list[str]) -> pd.DataFrame:
    """EMR at 60 %, experts at 80 %; each task's own rest at 79 %, the average of it at 70 %."""
    kinds = [
        ("individual", "", "", 0.8),
        ("emr", "", "", 0.6),
        ("tall_masks", "base=ties", "", 0.7),
    ]
    low_rank = {"own": 0.79, "average": 0.7}
    kinds += [("cart_indexing", "rank_ratio=0.08", name, low_rank[name]) for name in rests]
    names = ["method", "setting", "rest", "accuracy"]
    return over_three_seeds(pd.DataFrame(kinds, columns=names)).assign(task="a")


@pytest.mark.parametrize(
    ("rests", "values"), [(["own", "average"], [-1.0, -10.0]), (["own"], [-1.0]), (None, [-10.0])]
)
def test_both_readings_of_a_compressions_rest_decide(
    rests: list[str] | None, values: list[float]
) -> None:
    """The paper does not say which; older results have no such column, and the average."""
    table = compressions(rests) if rests else compressions(["average"]).drop(columns="rest")
    checks = cart.CLAIMS[7].checks(cached(lambda *_: table))
    deciding = [check for check in checks if check.role == "primary"]
    suites = [pair for setting in DECIDING for pair in setting.suites(setting.compressed)]
    assert [check.value for check in deciding] == pytest.approx(values * len(suites))
    names = {words: [c for c in deciding if c.what.startswith(words)] for _, words in suites}
    assert all(found for found in names.values())
    assert all(("averaged" in check.what) == (check.value < -5) for check in deciding)


def test_a_cost_that_never_varies_is_counted_by_task() -> None:
    """A mean of equal values has no interval; such a check must still hold or fail."""
    keys, columns = ("seed", "task"), [[*"abcdefgh"] * 3, [float("nan")] * 24]
    rows = pd.DataFrame({"seed": np.repeat(range(3), 8), "task": columns[0], "loss": columns[1]})
    compare = partial(comparison, "it", about={}, result="x", value="loss", keys=keys)
    plain = cart._steady(compare()).of(rows.assign(loss=np.arange(24.0)))
    assert plain.kind == "mean"
    for value, options, shown_there in (
        (0.0, {"bound": -2.0}, "holds"),
        (-3.0, {"bound": -2.0}, "fails"),
        (0.5, {"tolerance": 1.0}, "holds"),
        (-1.5, {"tolerance": 1.0}, "fails"),
    ):
        check = cart._steady(compare(**options)).of(rows.assign(loss=value))
        assert check.kind == "fraction"
        assert [result.shown for result in outcomes([check])] == [shown_there]


def test_best_ranks_at_the_lowest_of_the_grid_are_bounds() -> None:
    """On the sentence encoder half of them are, as the ledger says, so no check there can hold."""
    told = {claim.key: claim.method for claim in cart.CLAIMS}
    rows = load_table("sentences8-surface").query("method == 'cart' and scale == 1")
    rows = rows.query("0 < rank_ratio < 1")
    best = rows.pivot(index=["seed", "task"], columns="rank_ratio", values="accuracy").idxmax(
        axis=1
    )
    lowest = int((best == rows["rank_ratio"].min()).sum())
    assert f"in {lowest} of {len(best)} cases" in told["C5"]
    limits = {check.what: check.limit for check in cart.CLAIMS[4].checks(cached(load_table))}
    of_the_encoder = {what: limit for what, limit in limits.items() if "sentences, scale 1" in what}
    assert set(of_the_encoder.values()) == {"most"}
    assert limits["scale 1: 8 % within 2 points of the best rank"] == ""


def test_ties_is_compared_with_its_density_searched_where_it_was() -> None:
    made = {"average": 0.5, "task_arithmetic": 0.55, "ties": 0.62, "consensus": 0.6, "cart": 0.7}

    def load(name: str, *_: str) -> pd.DataFrame:
        if name == "sentences8-ties":
            return ladder({"ties": 0.66, "cart": 0.9})
        if "-ties" in name:
            raise MissingResult("no result")
        return ladder(made)

    values = {check.what: check.value for check in cart.CLAIMS[0].checks(cached(load))}
    assert values["sentences, 8 tasks: CART above each of the other four"] == pytest.approx(4)
    assert values["8 tasks: CART above each of the other four"] == pytest.approx(8)


def test_soft_frank_wolfe_as_printed_stands_still() -> None:
    """After one step it goes from the middle of a side to that of another, at a gap of 3/4."""
    table = frank_wolfe.printed_walks(starts=4, steps=12)
    gaps = table.pivot(index="seed", columns="step", values="gap")
    for step in range(2, 13):
        np.testing.assert_allclose(gaps[step], gaps[1].clip(upper=0.75))
    assert (table["gap"] <= table["allowed"]).all()


def test_the_printed_step_forgets_a_start_outside_the_hull() -> None:
    wide = frank_wolfe.printed_mixtures(starts=4).pivot(
        index="seed", columns="quantity", values="value"
    )
    assert (wide["smallest"] >= 0).all()
    np.testing.assert_allclose(wide["experts"], 1, atol=1e-9)


def test_repairs_of_the_book_decide_neither_about_the_pairing_nor_about_the_theorem() -> None:
    ledger, checks = judge(frank_wolfe.CLAIMS)
    deciding = checks[checks["role"] == "primary"].groupby("claim")["what"].agg(list)
    assert [what for what in deciding["F1"] if "soft" in what and "unconstrained" not in what] == []
    assert [
        what for key in ("F4", "F5") for what in deciding[key] if "as printed" not in what
    ] == []
    verdicts = ledger.set_index("claim")["verdict"]
    assert verdicts["F4"] == "proved"
    assert verdicts["F5"] == "refuted by counterexample"
    repaired = checks["what"].str.contains("repaired") & checks["claim"].eq("F5")
    assert set(checks.loc[repaired, "role"]) == {"control"}


def test_on_three_seeds_the_walk_by_entropy_hardly_leaves_the_pretrained_model() -> None:
    """F2 says so, since "stable" is trivial there."""
    before = pick(load_table("vision20-baselines"), method="pretrained")
    after = pick(load_table("vision20-irrelevant"), method="frank_wolfe", count=0)
    gains = (after - before).dropna().unstack("task")
    still = int((gains.abs().max(axis=1) < 1).sum())
    told = {claim.key: claim.method for claim in frank_wolfe.CLAIMS}
    assert still == 3
    assert "three of five seeds" in told["F2"]


@pytest.mark.parametrize("suite", list(frank_wolfe.NETWORKS))
def test_frank_wolfes_claims_tell_how_many_examples_it_saw(suite: str) -> None:
    told = {claim.key: claim.data for claim in frank_wolfe.CLAIMS}
    examples = load_result(f"{suite}-procedures")["provenance"]["settings"]["examples"]
    assert f"{examples} " in told["F1"]


def test_entries_name_verdict_paper_and_every_check() -> None:
    checks = [Check("it", UP, paper=9.0), Check("half", UP, role="control", tolerance=3.0)]
    table, rows = judge([claim("A", checks)])
    text = drawing.entries(table, rows)
    assert "**A ● holds:** it helps." in text
    assert "*The paper* (Table 1): a lot." in text
    assert "[](../page)" in text
    assert "* it: 1.1 points [" in text
    assert "*Intervals are about* other seeds and, in checks on several" in text
    assert "against a tolerance of 3.0; **holds**" in text
    summary = drawing.summary(table, rows, "there").splitlines()
    link = '<a href="there.html#A">A</a>'
    assert summary[0].startswith(f"| {link} it helps | ● holds, 1 of 1 | it: 1.1 points [")
    assert summary[0].endswith("]; the paper: 9.0 | a ViT |")
    assert 'id="A"' in text
    assert drawing.counted(table) == "1 holds"


def test_a_forest_draws_the_weakest_primary_check_of_each_claim() -> None:
    import matplotlib.pyplot as plt

    checks = [Check("it", UP, paper=9.0), Check("that", DOWN), Check("half", DOWN, role="control")]
    table, rows = judge([claim("A", checks), claim("B", checks[:1]), claim("C", checks[2:])])
    figure = drawing.forest(table, rows)
    texts = [text.get_text() for text in figure.axes[0].texts]
    assert texts == ["A  mixed", "that", "−1.1 points", "B  holds", "it", "1.1 points"]
    intervals = [
        line for line in figure.axes[0].lines if line.get_color() in ("#0072b2", "#d55e00")
    ]
    drawn = [
        np.asarray(line.get_xdata())
        for line in intervals
        if len(np.atleast_1d(line.get_xdata())) == 2
    ]
    assert [ends.min() > 0 for ends in drawn] == [False, True]
    assert [abs(ends).max() for ends in drawn] == pytest.approx([1, 1])
    plt.close(figure)


def test_claims_on_text_say_how_little_they_could_have_shown() -> None:
    """The figures in the texts of S2, S4, S5 and S18."""
    _, rows = judge([claim for claim in sail.CLAIMS if claim.key in ("S2", "S4", "S5", "S18")])
    rows = rows[rows["role"] == "primary"]
    seen = rows.groupby("claim")["detectable"]
    curves = rows.query("claim == 'S2' and features == 'histogram'")["detectable"]
    assert (len(curves), (curves > 0.7).sum()) == (8, 7)
    assert seen.min()["S4"] > 0.18
    assert seen.max()["S4"] < 0.4
    assert seen.max()["S5"] < 0.02
    assert seen.min()["S18"] > 0.45
    assert seen.max()["S18"] < 0.55
