"""What SAIL's claim on diffusion compares: log Fréchet distances of images from real ones."""

import math
from collections.abc import Iterator
from functools import partial
from itertools import product
from typing import Any

import pandas as pd

from mergebook.ledger import Comparison, Load, comparison
from mergebook.ledger.checks import SEED, Role
from mergebook.sail.measure.diffusion import ALIGNED, GROWN, PLAIN, REPA
from mergebook.sail.read import diffusion

# Which arm is expected nearer to which, in which rows, and by which of the accounts A, B and C.
_CASES: tuple[tuple[str, str, str, str, Role], ...] = (
    (ALIGNED, REPA, "steps", "equal steps", "primary"),
    (ALIGNED, REPA, "cost", "equal cost (B, C)", "secondary"),
    (ALIGNED, REPA, "A", "equal cost of training (A)", "secondary"),
    (REPA, PLAIN, "steps", "equal steps", "secondary"),
    (REPA, PLAIN, "A", "equal cost (A, B, C)", "secondary"),
    (GROWN, REPA, "steps", "equal steps (A, B)", "secondary"),
    (GROWN, REPA, "cost", "equal cost (C)", "secondary"),
)

# The paper's log ratios of FID after a quarter, a half and all of its 400,000 steps; ours begin at
# a fifth.
PAPERS = {0.2: math.log(49.5 / 35.9), 0.5: math.log(33.2 / 19.8), 1.0: math.log(24.4 / 12.2)}


def nearer(load: Load) -> Iterator[Comparison]:
    """S8: log Fréchet distance of a rival's images less one's own, at all reads."""
    table = load(diffusion.judged)
    reads = sorted(table["read"].unique())
    compare = partial(comparison, by="arm", falling=True, keys=SEED)
    for value, case, read in product(("log", "kernel"), _CASES, reads):
        own, rival, account, words, role = case
        where = {"account": account, "read": read}
        options: dict[str, Any] = {"where": where, "about": where | {"metric": value}}
        options |= {"value": value, "result": diffusion.judged}
        if value == "log":
            says = f"{own} nearer to real images than {rival} after {read:.0%}, {words}"
            paper = PAPERS.get(read) if role == "primary" else None
            yield compare(says, own, rival, role=role, unit="log ratio", paper=paper, **options)
        elif own == ALIGNED:
            says = f"{own} nearer than {rival} by kernel distance after {read:.0%}, {words}"
            yield compare(says, own, rival, role="secondary", unit="MMD²", **options)
    drawn = table[(table["arm"] == ALIGNED) & (table["account"] == "steps")]
    drawn = drawn[drawn["read"] == reads[-1]]
    real = load(diffusion.floor).query("kind == 'real'").assign(arm="training images")
    says = f"{ALIGNED}, in the end: farther from test images than training images are"
    both = {"result": pd.concat([drawn, real]).copy, "value": "log", "about": {"metric": "floor"}}
    both |= {"role": "control", "unit": "log ratio", "falling": False}
    yield compare(says, ALIGNED, "training images", **both)
