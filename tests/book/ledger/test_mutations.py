"""No check that cannot fail: every primary comparison must notice that its rows were spoiled."""

from contextlib import suppress
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from mergebook.cart import claims as cart
from mergebook.cogram import claims as cogram
from mergebook.frank_wolfe import claims as frank_wolfe
from mergebook.lab import results
from mergebook.lab.results import load_table
from mergebook.ledger import Check, Claim, Comparison, comparison, judge
from mergebook.ledger.checks import chosen
from mergebook.ledger.verdicts import cached, outcomes
from mergebook.sail import claims as sail
from mergebook.sail.claims import arms
from mergebook.stability import claims as stability

CLAIMS = (*cart.CLAIMS, *frank_wolfe.CLAIMS, *cogram.CLAIMS, *stability.CLAIMS, *sail.CLAIMS)
WAYS = ("for", "against", "in turn", "exchanged")
FAR = 20.0  # how far to shift rows, in multiples of the largest value
NOTICED = {"for": {"holds", "proved"}, "against": {"fails", "refuted"}}
NOTICED |= {way: {"open", "fails", "refuted"} for way in ("in turn", "exchanged")}
LOAD = cached(cache(load_table))


@cache
def made(claim: Claim) -> list[Comparison | Check]:
    """What tests a claim on the results that ship."""
    return list(claim.test(LOAD))


@pytest.fixture(scope="module", params=CLAIMS, ids=[claim.key for claim in CLAIMS])
def claim(request: pytest.FixtureRequest) -> Claim:
    """Each in turn for all tests, so that one process makes its tables."""
    each: Claim = request.param
    return each


def shown(comparison: Comparison, table: pd.DataFrame) -> str:
    return outcomes([replace(comparison, limit="").of(table)])[0].shown


def ways_to_spoil(comparison: Comparison) -> tuple[str, ...]:
    """The `WAYS` that there are to spoil it: single values have names to exchange."""
    better, worse = comparison.sides
    values = [*better.values(), *(worse or {}).values()]
    named = bool(worse) and not any(isinstance(value, tuple) for value in values)
    missing = {"exchanged"} if comparison.tolerance is not None or not named else set()
    missing |= {"in turn"} if comparison.kind in ("spread", "fraction") else set()
    return tuple(way for way in WAYS if way not in missing)


def spoiled(comparison: Comparison, table: pd.DataFrame, way: str) -> pd.DataFrame:
    """The table with what is compared changed in one of the `WAYS`.

    Values are shifted ``"for"`` the comparison or ``"against"`` it; ``"in turn"``, for it in
    every other seed and against it in the rest; and ``"exchanged"``, for it, with the names of
    both sides exchanged. Spreads are widened, pairs made to agree, and counted values set.
    """
    first, second = comparison.value_columns
    better, worse = comparison.rows(table)
    key = comparison.keys[0]
    units = table[key] if key in table else pd.Series(range(len(table)))
    turns = 1.0 - 2.0 * (pd.factorize(units, sort=True)[0] % 2)
    sign = {"against": -np.ones(len(table)), "in turn": turns}.get(way, np.ones(len(table)))
    out = table.copy()  # lazily: columns that are left alone are shared
    for name in {first, second}:
        out[name] = out[name].astype(float)
    if comparison.kind == "correlation":
        out[first] = np.where(better, sign * out[second], out[first])
    elif comparison.kind == "fraction":
        out[first] = np.where(better, sign > 0, out[first])
    elif comparison.kind == "spread":
        for side, wider in ((better, sign > 0), (worse, sign < 0)):
            off = out[first] - out.loc[side, first].mean()
            out[first] += np.where(side & wider, FAR * off, 0.0)
    else:
        for name in {first, second}:
            out[name] = out[name].fillna(out[name].max())
        largest = np.abs(out[[first, second]].to_numpy()[better | worse]).max()
        step = FAR * (largest + abs(comparison.bound) + 1)
        up = -sign if comparison.falling else sign
        if comparison.tolerance is not None and comparison.measure is None:
            out.loc[better, first] = equal_values(comparison, out, better, worse)
            out[first] += np.where(better & (sign < 0), step, 0.0)
        elif isinstance(comparison.worse, float):
            out[first] += np.where(better, up * step, 0.0)
        else:  # only ever upwards, so that logarithms and ratios exist
            out[first] += np.where(better & (up > 0), step, 0.0)
            out[second] += np.where(worse & (up < 0), step, 0.0)
    if way == "exchanged":
        for mask, rows in ((better, comparison.sides[1]), (worse, comparison.sides[0])):
            out = out.assign(**{n: out[n].mask(mask, v) for n, v in (rows or {}).items()})
    return out


def equal_values(
    comparison: Comparison, table: pd.DataFrame, better: np.ndarray, worse: np.ndarray
) -> np.ndarray:
    """Values of the better side that differ from the other one by about the bound."""
    noise = 1e-3 * float(comparison.tolerance or 0) * np.cos(np.arange(better.sum()))
    if isinstance(comparison.worse, float):
        return np.asarray(comparison.worse + comparison.bound + noise)
    keys, (_, column) = list(comparison.keys), comparison.value_columns
    other = table.loc[worse, [*keys, column]]
    values = table.loc[better, keys].merge(other, on=keys, how="left")[column].to_numpy()
    return np.asarray(values + comparison.bound + noise / (100 if "accuracy" in column else 1))


def unnoticed(comparison: Comparison) -> dict[str, str]:
    """Ways to spoil its rows, with what the comparison shows, where that is not as it must be."""
    table = comparison.table(LOAD)
    table = table[chosen(table, comparison.where)]
    seen = {
        way: shown(comparison, spoiled(comparison, table, way)) for way in ways_to_spoil(comparison)
    }
    few = {"open"} if comparison.kind == "fraction" else set()  # too few to fail for certain
    wrong = {way: what for way, what in seen.items() if what not in NOTICED[way] | few}
    value = comparison.value if isinstance(comparison.value, str) else comparison.value[0]
    with suppress(KeyError, ValueError):
        wrong["renamed"] = shown(comparison, table.rename(columns={value: "renamed"}))
    return wrong


def test_spoiled_rows_are_noticed(claim: Claim) -> None:
    primary = [each for each in made(claim) if each.role == "primary"]
    assert all(isinstance(each, Comparison) for each in primary)
    compared = [each for each in primary if isinstance(each, Comparison)]
    wrong = {each.says: unnoticed(each) for each in compared}
    assert {says: ways for says, ways in wrong.items() if ways} == {}
    assert {way for each in compared for way in ways_to_spoil(each)} >= {"for", "against"}


def test_a_claims_unit_is_that_of_its_values(claim: Claim) -> None:
    """Tasks (or layers) where a primary check has them, in columns or as rows of a correlation."""
    primary = [
        each.check(LOAD) if isinstance(each, Comparison) else each
        for each in made(claim)
        if each.role == "primary"
    ]
    wide = [check.values.ndim > 1 and check.columns == "tasks" for check in primary]
    sampled = any(w for w, check in zip(wide, primary, strict=True) if check.kind == "mean")
    sampled |= any(check.kind == "correlation" for check in primary) and claim.unit == "tasks"
    assert sampled == (claim.unit in ("tasks", "layers"))
    assert all(check.kind == "fact" for check in primary) == (claim.unit == "facts")


def test_ids_of_checks_are_stable_names_of_their_own(claim: Claim) -> None:
    """No two checks share one, and none holds a sentence or a number that was measured."""
    about = [each.names() if isinstance(each, Comparison) else each.about for each in made(claim)]
    ids = ["/".join(map(str, names.values())) for names in about]
    assert len(ids) == len({*ids})
    assert all(ids)


def test_without_results_no_claim_is_tested(
    claim: Claim, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "results").mkdir()
    monkeypatch.setattr(results, "resources", SimpleNamespace(files=lambda _: tmp_path))
    table, checks = judge([claim])
    assert table["verdict"].tolist() == ["not tested"]
    assert table["ours"].item().endswith("there are: none")
    assert checks.empty


@pytest.mark.parametrize(("way", "outcome"), [("for", "holds"), ("against", "fails")])
def test_every_cell_of_the_factorial_is_noticed(way: str, outcome: str) -> None:
    """They are secondary, so that no verdict tells."""
    compared = list(arms.merged(LOAD))
    assert len(compared) == 3 * 5 + 2 * 3 * 3
    tables = [(each, spoiled(each, each.table(LOAD), way)) for each in compared]
    assert {shown(each, table) for each, table in tables} == {outcome}


TABLE = pd.DataFrame(
    {
        "seed": [seed for seed in range(6) for _ in "ab"],
        "method": ["a", "b"] * 6,
        "loss": [1.0, 1.2, 0.9, 1.3, 1.1, 1.1, 1.0, 1.4, 0.8, 1.2, 1.3, 1.2],
    }
)


@pytest.mark.parametrize(
    ("change", "ways"),
    [
        ({}, WAYS),
        ({"scale": lambda values: values.map(lambda value: value**0.5)}, WAYS),
        ({"worse": 0.7}, WAYS[:-1]),
        ({"tolerance": 0.3}, WAYS[:-1]),
        ({"kind": "spread"}, ("for", "against", "exchanged")),
    ],
)
def test_each_kind_of_comparison_is_spoiled_in_its_ways(
    change: dict[str, object], ways: tuple[str, ...]
) -> None:
    options: dict[str, Any] = {
        "about": {},
        "keys": ("seed",),
        "value": "loss",
        "falling": True,
        "result": "x",
    }
    made = comparison("a below b", "a", **{"worse": "b"} | options | change)
    assert ways_to_spoil(made) == ways
    for way in ways:
        assert shown(made, spoiled(made, TABLE, way)) in NOTICED[way], way


def test_a_comparison_names_what_it_lacks() -> None:
    made = comparison("a", "a", "c", about={}, result="x", value="loss", keys=("seed",))
    with pytest.raises(ValueError, match="0 rows with a: expected one for each seed"):
        made.of(TABLE)
    with pytest.raises(ValueError, match="no column method; there are: seed, loss"):
        made.of(TABLE.drop(columns="method"))
