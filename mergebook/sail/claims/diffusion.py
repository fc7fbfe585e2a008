"""Checks of SAIL's claim on diffusion: log Fréchet distances of drawn pictures from real ones."""

import math
from itertools import product

import pandas as pd

from mergebook.ledger.checks import Check, Role, above, pick
from mergebook.ledger.verdicts import Load
from mergebook.sail.measure.diffusion import ALIGNED, GROWN, PLAIN, REPA
from mergebook.sail.read import diffusion

# Who shall be nearer, to whom, in which rows, and what that is of the accounts A, B and C.
_CASES: tuple[tuple[str, str, str, str, Role], ...] = (
    (ALIGNED, REPA, "steps", "equal steps", "primary"),
    (ALIGNED, REPA, "cost", "equal cost (B, C)", "secondary"),
    (ALIGNED, REPA, "A", "equal cost of training (A)", "secondary"),
    (REPA, PLAIN, "steps", "equal steps", "secondary"),
    (REPA, PLAIN, "A", "equal cost (A, B, C)", "secondary"),
    (GROWN, REPA, "steps", "equal steps (A, B)", "secondary"),
    (GROWN, REPA, "cost", "equal cost (C)", "secondary"),
)

_CLAIMED = {account: words for own, *_, account, words, _ in _CASES if own == ALIGNED}
# The paper's log ratios of FID after a quarter, a half and all of its 400,000 steps; ours begin at
# a fifth.
PAPERS = {0.2: math.log(49.5 / 35.9), 0.5: math.log(33.2 / 19.8), 1.0: math.log(24.4 / 12.2)}


def nearer(load: Load) -> list[Check]:
    """S8: log Fréchet distance of a rival's pictures less one's own, at all reads."""
    table = load(diffusion.judged)
    reads = sorted(table["read"].unique())
    checks = []
    for (own, rival, account, words, role), read in product(_CASES, reads):
        sides = (_side(table, name, account, read) for name in (rival, own))
        what = f"{own} nearer to real pictures than {rival} after {read:.0%}, {words}"
        paper = PAPERS.get(read) if role == "primary" else None
        checks.append(above(what, *sides, role=role, unit="log ratio", paper=paper))
    for (account, words), read in product(_CLAIMED.items(), reads):
        sides = (_side(table, arm, account, read, "kernel") for arm in (REPA, ALIGNED))
        what = f"{ALIGNED} nearer than {REPA} by kernel distance after {read:.0%}, {words}"
        checks.append(above(what, *sides, role="secondary", unit="MMD²"))
    floor = pick(load(diffusion.floor), "log", keys=("seed",), pictures="real")
    what = f"{ALIGNED}, in the end: farther from test pictures than training pictures are"
    drawn = _side(table, ALIGNED, "steps", reads[-1])
    return [*checks, above(what, drawn, floor, role="control", unit="log ratio")]


def _side(
    table: pd.DataFrame, arm: str, account: str, read: float, column: str = "log"
) -> "pd.Series[float]":
    return pick(table, column, keys=("seed",), arm=arm, account=account, read=read)
