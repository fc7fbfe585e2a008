"""Claims, and how their checks decide about them."""

import tomllib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any, Literal, NamedTuple

import pandas as pd

from mergebook.lab.results import MissingResult, load_table
from mergebook.lab.statistics import Pooled, holm_factors, pool
from mergebook.ledger.checks import LEVEL, Check
from mergebook.ledger.comparisons import Comparison, Load

HOLDS, FAILS, MIXED = "holds", "does not hold here", "mixed"
PROVED, REFUTED = "proved", "refuted by counterexample"
UNDECIDED, UNTESTED = "undecided", "not tested"
VERDICTS = (HOLDS, PROVED, MIXED, UNDECIDED, FAILS, REFUTED, UNTESTED)
ERRORS = 1 - LEVEL  # of a whole family of checks

Unit = Literal["seeds", "tasks", "layers", "networks", "facts"]
# Gives comparisons and checks, from a function that loads tables as `load_table` does.
Test = Callable[[Load], Iterable[Comparison | Check]]


@dataclass(frozen=True)
class Claim:
    """A testable statement of a paper."""

    key: str  # e.g. "C1"
    paper: str  # bibliography key
    place: str  # where the paper says it
    statement: str  # what it says, in our words
    networks: str  # that it is tested on here, with their parameters and heads
    reported: str  # the figures the paper gives
    method: str  # how it is tested here, and what in that is our own choice
    data: str  # that the methods compared saw, labels that chose hyperparameters included
    unit: Unit  # what the verdict generalises over besides "seeds"; "facts": nothing
    page: str  # the chapter that shows it, a path of the book without its ending
    test: Test

    def checks(self, load: Load) -> list[Check]:
        made = self.test(load)
        return [each.check(load) if isinstance(each, Comparison) else each for each in made]


def read_claims(package: str, tests: Mapping[str, Test], **numbers: Any) -> tuple[Claim, ...]:
    """The claims in a paper's ``claims.toml``, whose texts name numbers and phrases in braces."""
    content = tomllib.loads((resources.files(package) / "claims.toml").read_text("utf-8"))

    def filled(texts: Mapping[str, str], words: Mapping[str, Any]) -> dict[str, str]:
        return {name: " ".join(text.split()).format_map(words) for name, text in texts.items()}

    common = {name: text for name, text in content.items() if isinstance(text, str)}
    words = numbers | filled(content.get("phrases", {}), numbers)
    fields: dict[str, Any] = {key: filled(common | content[key], words) for key in tests}
    return tuple(Claim(key=key, test=test, **fields[key]) for key, test in tests.items())


def cached(load: Load) -> Load:
    """A loader that reads each table once, and makes one from a function that it is given."""
    return cache(lambda name, *part: name() if callable(name) else load(name, *part))


class Outcome(NamedTuple):
    """What a check shows."""

    shown: str  # "holds", "fails" or "open"; of a fact, "proved" or "refuted"
    p: float  # two-sided, as it decides: corrected for the number of checks where it must be
    level: float  # of the interval that decides in the same way


def outcomes(checks: Sequence[Check]) -> list[Outcome]:
    """What each check shows: whether it holds, fails, or is open.

    P-values are Holm's for the number of checks with the same role, and decide below 5 %. If every
    primary check holds without a correction, all of them hold (intersection-union test).
    """
    shown: dict[int, Outcome] = {}
    for i, check in enumerate(checks):
        if check.kind == "fact":
            below, _ = check.chances
            shown[i] = Outcome("refuted" if below else "proved", below, 1.0)
    for role in dict.fromkeys(check.role for check in checks):
        family = [i for i, check in enumerate(checks) if check.role == role and i not in shown]
        sides = [checks[i].chances for i in family]
        factors = holm_factors([min(side) for side in sides])
        if role == "primary" and all(wrong < ERRORS for wrong, _ in sides):
            factors = [1.0] * len(family)
        for i, (wrong, right), factor in zip(family, sides, factors, strict=True):
            p = factor * min(wrong, right)
            direction = "holds" if wrong < right else "fails"
            kind = direction if p < ERRORS else "open"
            shown[i] = Outcome(kind, min(1.0, p), 1 - ERRORS / factor)
    return [shown[i] for i in range(len(checks))]


def verdict(shown: Sequence[str]) -> str:
    """The verdict on a claim, from what its primary checks show."""
    counts = Counter(shown)
    if counts["refuted"]:
        return REFUTED
    if shown and counts["proved"] == len(shown):
        return PROVED
    if shown and counts["holds"] + counts["proved"] == len(shown):
        return HOLDS
    if counts["holds"] and counts["fails"]:
        return MIXED
    return FAILS if counts["fails"] else UNDECIDED


def pooled(checks: Sequence[Check]) -> Pooled | None:
    """The effect of the primary checks that name a network, where there are two or more."""
    estimates = [check.estimate for check in checks if check.network and check.role == "primary"]
    return pool(estimates) if len(estimates) > 1 else None


def judge(claims: Iterable[Claim], load: Load = load_table) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Test claims against the results that are there: the ledger, a row per claim, and all checks.

    The ledger has ``verdict``, ``ours`` (counts of primary outcomes) and ``pooled``, or None.
    """
    known = cached(load)
    rows, tested = [], []
    for claim in claims:
        try:
            checks = claim.checks(known)
        except MissingResult as error:
            ours, decision, effect = str(error), UNTESTED, None
        else:
            results = list(zip(checks, outcomes(checks), strict=True))
            tested += [_row(claim, *pair) for pair in results]
            primary = [result.shown for check, result in results if check.role == "primary"]
            ours, decision, effect = _counted(primary), verdict(primary), pooled(checks)
        texts = {name: getattr(claim, name) for name in Claim.__annotations__}
        del texts["test"]
        key = texts.pop("key")
        rows.append({"claim": key, **texts, "ours": ours, "verdict": decision, "pooled": effect})
    return pd.DataFrame(rows), pd.DataFrame(tested or None, columns=None if tested else COLUMNS)


COLUMNS = [
    *("claim", "role", "what", "kind", "value", "low", "high", "level", "bound", "tolerance"),
    *("paper", "unit", "detectable", "p", "outcome", "id"),
]


def _row(claim: Claim, check: Check, result: Outcome) -> dict[str, object]:
    low, high = check.interval(result.level)
    row = {name: getattr(check, name) for name in COLUMNS if name in Check.__annotations__}
    row |= {"claim": claim.key, "value": check.value, "low": low, "high": high}
    row |= {"detectable": check.detectable, "level": result.level, "p": result.p}
    row |= {"outcome": result.shown, "id": "/".join([claim.key, *map(str, check.about.values())])}
    if taken := {*check.about} & {*COLUMNS}:
        raise ValueError(f"{row['id']} is about {', '.join(taken)}, columns of all checks")
    return {**{name: row[name] for name in COLUMNS}, **check.about}


def _counted(shown: Sequence[str]) -> str:
    several = {"holds": "hold", "fails": "fail"}
    parts = []
    for kind in ("holds", "proved", "fails", "refuted", "open"):
        if count := shown.count(kind):
            one = kind if kind in several else f"is {kind}"
            parts.append(f"{count} {one if count == 1 else several.get(kind, f'are {kind}')}")
    return f"of {len(shown)} primary check{'s' * (len(shown) != 1)}, {', '.join(parts)}"
