"""The claims ledger: what the papers claim, put to the test here, with verdicts that code gives.

A `Claim` says what a paper states and where, what it reports, and how it is tested here. Its test
reads files in ``results/`` and returns `Check` records: differences that the claim says are
positive, each with a 95 % interval over seeds. A check holds where its whole interval is positive;
the claim holds where all of its checks do.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, fields

import numpy as np
import pandas as pd

from mergelib.records.statistics import interval

HOLDS, PARTLY, FAILS, UNTESTED = "holds", "partly", "does not hold here", "not tested"


@dataclass(frozen=True)
class Check:
    """A difference that a claim says is positive.

    Attributes:
        what: the comparison in words.
        value: the mean difference.
        low: lower end of its 95 % interval.
        high: upper end.
        unit: of these three.
    """

    what: str
    value: float
    low: float
    high: float
    unit: str = "points"

    @property
    def outcome(self) -> str:
        """``"holds"``, ``"fails"``, or ``"open"`` where the interval holds zero."""
        if self.low > 0:
            return "holds"
        return "fails" if self.high < 0 else "open"


@dataclass(frozen=True)
class Claim:
    """A testable statement of a paper.

    Attributes:
        key: short name, e.g. ``"C1"``.
        paper: bibliography key.
        place: where the paper says it.
        statement: what it says, in our words.
        reported: the figures the paper gives, as text.
        method: how it is tested here.
        page: the chapter that shows it, a path of the book without its ending.
        test: gives the checks; ``ValueError`` where a result it reads is not there.
    """

    key: str
    paper: str
    place: str
    statement: str
    reported: str
    method: str
    page: str
    test: Callable[[], Sequence[Check]]


def positive(what: str, differences: Iterable[float], unit: str = "points") -> Check:
    """A check over repetitions: Student's 95 % interval of the mean of paired differences.

    Raises:
        ValueError: for fewer than two of them.
    """
    values = [float(difference) for difference in differences]
    mean, half = interval(values)
    return Check(what, mean, mean - half, mean + half, unit)


def within(
    what: str, differences: Iterable[float], tolerance: float, unit: str = "points"
) -> Check:
    """A check that paired differences are zero up to a tolerance: what is left of the tolerance."""
    check = positive(what, differences, unit)
    ends = (abs(check.low), abs(check.high))
    nearest = 0.0 if check.low <= 0 <= check.high else min(ends)
    return Check(
        what, tolerance - abs(check.value), tolerance - max(ends), tolerance - nearest, unit
    )


def seed_means(table: pd.DataFrame, **chosen: object) -> pd.Series:
    """Mean accuracy over tasks, in per cent, of every seed, in the rows where columns match."""
    for column, value in chosen.items():
        table = table[table[column] == value]
    if table.empty:
        raise ValueError(f"no rows with {chosen}")
    return 100 * table.groupby("seed")["accuracy"].mean()


def verdict(checks: Sequence[Check]) -> str:
    """``"holds"`` if every check does, ``"partly"`` if some do, else ``"does not hold here"``."""
    held = sum(check.outcome == "holds" for check in checks)
    if not held:
        return FAILS
    return HOLDS if held == len(checks) else PARTLY


def judge(claims: Iterable[Claim]) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Test claims against the results that are there.

    Returns:
        The ledger, a row a claim with ``verdict`` and ``ours`` (how many checks hold, the smallest
        and the largest difference), and all checks, one row per check, with column ``claim``.
    """
    rows, checks = [], []
    for claim in claims:
        try:
            tested = list(claim.test())
        except ValueError as error:  # a result that nobody measured yet
            tested, ours, decision = [], str(error), UNTESTED
        else:
            ours, decision = _summary(tested), verdict(tested)
        row = {"claim": claim.key, "paper": claim.paper, "place": claim.place}
        row |= {"statement": claim.statement, "reported": claim.reported, "method": claim.method}
        rows.append({**row, "ours": ours, "verdict": decision, "page": claim.page})
        for check in tested:
            checks.append({"claim": claim.key, **asdict(check), "outcome": check.outcome})
    columns = ["claim", *(field.name for field in fields(Check)), "outcome"]
    return pd.DataFrame(rows), pd.DataFrame(checks, columns=columns)


def _summary(checks: Sequence[Check]) -> str:
    outcomes = Counter(check.outcome for check in checks)
    counts = ", ".join(f"{outcomes[kind]} {kind}" for kind in ("holds", "open", "fails"))
    if len({check.unit for check in checks}) > 1:
        return counts
    values = np.array([check.value for check in checks])
    return f"{counts}; differences {values.min():.1f} to {values.max():.1f} {checks[0].unit}"
