"""What is compared of Corollary 1 of the stability framework (Li et al., 2026): T6 and T12.

Masks at density 0.2, at weights 1/T and at the scale of least validation loss. What is true of all
experts beforehand does not decide: that election lowers the variance, that pruning lowers the sum,
and that DARE at 1/T, which is the average plus noise, has no lower risk.
"""

from collections.abc import Iterator
from itertools import product
from typing import Any

import numpy as np

from mergebook.ledger import Comparison, Load, comparison
from mergebook.ledger.checks import SEED, Role
from mergebook.stability.measure.variance import CONTROLS
from mergebook.stability.read.corollary import MEASURES, POINT, RESULTS, SCALES, beside_losses

SUITES: dict[str, Role] = {"glyphs8": "primary", "vision8": "primary", "sentences8": "secondary"}
DENSITY = 0.2
PLAIN = {"operator": "none", "density": 1.0}
MASKS = {"trimming": "trim", "DARE": "drop", "TIES": "trim, elect"}
WORDS = {"raw": "summed variance", "relative": "fraction of the mean square"}
WORDS |= {"printed": "weights 1/T", "chosen": "best scale"}


def _masked(
    suite: str, mask: str, table: str, says: str, about: dict[str, Any], **options: Any
) -> Comparison:
    """Masked task vectors, or their merge, against plain ones in a table of the study."""
    about = {"suite": suite} | about | {"better": mask, "worse": "average"}
    sides, result = ({"operator": MASKS[mask], "density": DENSITY}, PLAIN), (RESULTS[suite], table)
    return comparison(f"{suite}{says}", *sides, about=about, result=result, falling=True, **options)


def heterogeneity(load: Load) -> Iterator[Comparison]:
    """T6: variance of task vectors with and without masks; and with it the loss."""
    logs: dict[str, Any] = {"keys": SEED, "scale": np.log, "unit": "log ratio"}
    for suite, own in SUITES.items():
        for name, measure in product(MASKS, MEASURES):
            role = "secondary" if measure == "raw" or name == "TIES" else own
            says, about = f": {name} lowers the {WORDS[measure]}", {"metric": measure}
            yield _masked(suite, name, "variance", says, about, value=measure, role=role, **logs)
        tables = (load(RESULTS[suite], part) for part in ("variance", "test"))
        rows = beside_losses(*tables)
        masked = rows[~rows["operator"].isin(CONTROLS)]
        points = masked.groupby(["scale", *POINT])[[*MEASURES, "change"]].mean().reset_index()
        for scale, measure in product(SCALES, MEASURES):
            says = f"{suite}, {WORDS[scale]}: with a lower {WORDS[measure]} goes a lower loss"
            about = {"suite": suite, "metric": measure, "scale": scale}
            role = "secondary" if measure == "raw" else own
            ranks: dict[str, Any] = {"result": points.copy, "where": {"scale": scale}}
            ranks |= {"kind": "correlation", "unit": "rank correlation", "worse": {}}
            ranks["keys"] = ("operator", "density")
            yield comparison(says, value=(measure, "change"), about=about, role=role, **ranks)


def risk(load: Load) -> Iterator[Comparison]:
    """T12: test loss of the average less that of masked merges."""
    for (suite, own), scale, name in product(SUITES.items(), SCALES, MASKS):
        role: Role = own if scale == "printed" else "secondary"
        if name == "trimming" or (name, scale) == ("DARE", "printed"):
            role = "control"
        says, where = f", {WORDS[scale]}: {name} below the average", {"scale": scale}
        yield _masked(suite, name, "test", says, where, where=where, value="loss", role=role)
