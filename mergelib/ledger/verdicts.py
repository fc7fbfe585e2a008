"""Claims, and how their checks decide about them."""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache

import pandas as pd

from mergelib.ledger.checks import Check
from mergelib.records.results import MissingResult, load_table
from mergelib.records.statistics import holm

HOLDS, FAILS, MIXED = "holds", "does not hold here", "mixed"
UNDECIDED, UNTESTED = "undecided", "not tested"
VERDICTS = (HOLDS, MIXED, UNDECIDED, FAILS, UNTESTED)
ERRORS = 0.05  # familywise, within a claim

# As `load_table`, from the names of a result and of a table; or a function's table, if given that.
Load = Callable[..., pd.DataFrame]


@dataclass(frozen=True)
class Claim:
    """A testable statement of a paper.

    Attributes:
        key: short name, e.g. ``"C1"``.
        paper: bibliography key.
        place: where the paper says it.
        statement: what it says, in our words.
        reported: the figures the paper gives, as text.
        method: how it is tested here, and what in that is our own choice.
        data: what data the methods compared saw, labels that chose hyperparameters included.
        page: the chapter that shows it, a path of the book without its ending.
        test: gives the checks, from a function that loads tables as `load_table` does.
    """

    key: str
    paper: str
    place: str
    statement: str
    reported: str
    method: str
    data: str
    page: str
    test: Callable[[Load], Sequence[Check]]


def outcomes(checks: Sequence[Check]) -> list[tuple[str, float]]:
    """What each check shows, ``"holds"``, ``"fails"`` or ``"open"``, with its p-value.

    A check holds, or fails, where the larger of its two p-values, corrected by Holm's method for
    the number of checks that have the same role, is below 5 %.
    """
    found: dict[int, tuple[str, float]] = {}
    for role in dict.fromkeys(check.role for check in checks):
        mine = [i for i, check in enumerate(checks) if check.role == role]
        sides = [checks[i].chances for i in mine]
        adjusted = holm([min(side) for side in sides])
        for i, side, p in zip(mine, sides, adjusted, strict=True):
            shown = "holds" if side[0] < side[1] else "fails"
            found[i] = (shown if p < ERRORS else "open", p)
    return [found[i] for i in range(len(checks))]


def verdict(shown: Sequence[str]) -> str:
    """The verdict on a claim, from what its primary checks show."""
    held, failed = shown.count("holds"), shown.count("fails")
    if shown and held == len(shown):
        return HOLDS
    if held and failed:
        return MIXED
    return FAILS if failed else UNDECIDED


def judge(claims: Iterable[Claim], load: Load = load_table) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Test claims against the results that are there.

    Args:
        claims: to be tested.
        load: gives a table of a result by both names.

    Returns:
        The ledger, one row per claim with its ``verdict`` and ``ours``, what its primary checks
        show; and all checks, one row each, with ``claim`` and ``outcome``.

    Raises:
        ValueError: for a result that lacks a table, a column, or rows that a claim needs. A result
            that nobody measured yet is no error: its claims are not tested.
    """
    known = cache(lambda name, *part: name() if callable(name) else load(name, *part))
    rows, tested = [], []
    for claim in claims:
        try:
            checks = list(claim.test(known))
        except MissingResult as error:
            ours, decision = str(error), UNTESTED
        else:
            shown = outcomes(checks)
            tested += [_row(claim, check, *one) for check, one in zip(checks, shown, strict=True)]
            pairs = zip(checks, shown, strict=True)
            primary = [what for check, (what, _) in pairs if check.role == "primary"]
            ours, decision = _counted(primary), verdict(primary)
        texts = {name: getattr(claim, name) for name in Claim.__annotations__}
        del texts["test"]
        rows.append({"claim": texts.pop("key"), **texts, "ours": ours, "verdict": decision})
    return pd.DataFrame(rows), pd.DataFrame(tested, columns=COLUMNS)


COLUMNS = [
    *("claim", "role", "what", "value", "low", "high", "bound", "tolerance", "paper", "unit"),
    *("low_seeds", "high_seeds", "low_resampled", "high_resampled", "detectable", "p", "outcome"),
]


def _row(claim: Claim, check: Check, outcome: str, p: float) -> dict[str, object]:
    row: dict[str, object] = {"claim": claim.key, "p": p, "outcome": outcome}
    row |= {name: getattr(check, name) for name in COLUMNS if name in Check.__annotations__}
    low, high = check.interval
    row |= {"value": check.value, "low": low, "high": high, "detectable": check.detectable}
    for name, part in (("seeds", check.over_seeds[0]), ("resampled", check.resampled[0])):
        row |= {f"low_{name}": part.low, f"high_{name}": part.high}
    return row


def _counted(shown: Sequence[str]) -> str:
    counts = Counter(shown)
    words = (("holds", "hold"), ("fails", "fail"), ("open", "are open"))
    parts = [f"{counts[kind]} {word}" for kind, word in words if counts[kind]]
    return f"of {len(shown)} primary checks " + ", ".join(parts)
