"""Corollary 1 of the stability framework (Li et al., 2026): claims T6 and T12.

Both are tested on the study ``variance`` in ``results/``: masks at density 0.2, with the
corollary's weights 1/T and at the scale of least validation loss. That election lowers the variance
is a theorem, and that a summed variance falls when entries are pruned says nothing: neither
decides. DARE at weights 1/T is the average plus noise whose mean is zero, so that its risk is known
to be no lower beforehand: it does not decide either.
"""

from functools import partial

import numpy as np

from mergebook.ledger.checks import Check, Role, above, pick
from mergebook.ledger.verdicts import Claim, Load
from mergebook.stability.read.corollary import (
    MEASURES,
    RESULTS,
    SCALES,
    beside_losses,
    over_points,
)

SUITES: tuple[tuple[str, Role], ...] = (
    ("glyphs8", "primary"),
    ("vision8", "primary"),
    ("sentences8", "secondary"),
)
DENSITY = 0.2
MASKS = {"trimming": "trim", "DARE": "drop", "TIES": "trim, elect"}
WORDS = {
    "raw": "summed variance",
    "relative": "fraction of the mean square",
    "printed": "weights 1/T",
    "chosen": "best scale",
}


def _heterogeneity(load: Load) -> list[Check]:
    checks = []
    for suite, own in SUITES:
        table = load(RESULTS[suite], "variance")
        for name, operator in MASKS.items():
            for measure in MEASURES:
                aside = measure == "raw" or name == "TIES"
                role: Role = "secondary" if aside else own
                what = f"{suite}: {name} lowers the {WORDS[measure]}"
                plain, masked = (
                    np.log(pick(table, measure, keys=("seed",), operator=kind, density=density))
                    for kind, density in (("none", 1.0), (operator, DENSITY))
                )
                checks.append(above(what, plain, masked, role=role, unit="log ratio"))
        points = over_points(beside_losses(table, load(RESULTS[suite], "test")))
        for scale in SCALES:
            for measure in MEASURES:
                decides: Role = "secondary" if measure == "raw" else own
                what = f"{suite}, {WORDS[scale]}: with a lower {WORDS[measure]} goes a lower loss"
                pairs = points.loc[scale, [measure, "change"]].to_numpy()
                checks.append(Check(what, pairs, "correlation", decides, unit="rank correlation"))
    return checks


def _risk(load: Load) -> list[Check]:
    checks = []
    for suite, own in SUITES:
        table = load(RESULTS[suite], "test")
        for scale in SCALES:
            for name, operator in MASKS.items():
                role: Role = own if scale == "printed" else "secondary"
                if name == "trimming" or (name, scale) == ("DARE", "printed"):
                    role = "control"
                what = f"{suite}, {WORDS[scale]}: {name} below the average"
                average, masked = (
                    pick(table, "loss", scale=scale, operator=kind, density=density)
                    for kind, density in (("none", 1.0), (operator, DENSITY))
                )
                checks.append(above(what, average, masked, role=role, unit="nats"))
    return checks


_claim = partial(Claim, paper="li2026unified", page="notebooks/41-corollary-one")
_DATA = "labelled validation data chose the scale, where it is not 1/T"
_OURS = (
    f"equal weights, density {DENSITY}, our ViT on eight rendered scripts, a smaller one on eight "
    "sets of pictures; secondary: a sentence encoder. The paper states neither density nor scale"
)

CLAIMS = (
    _claim(
        key="T6",
        unit="seeds",
        place="Corollary 1, Eq. 8 and 10",
        statement="masks lower the heterogeneity of task vectors, and so the excess risk",
        reported="a proof; no measurement",
        method="the variance as a fraction of the mean square, which no scale can lower, before "
        "and after; and Spearman's correlation of its log ratio with the change in test loss, "
        "means over seeds, over 14 pairs of an operator and a density: these are the units, as "
        "all seeds repeat them. They were designed and not drawn, so that the interval speaks of "
        "operators like these. Secondary: the summed variance, and TIES, whose election lowers "
        f"either by a theorem; {_OURS}",
        data=_DATA,
        test=_heterogeneity,
    ),
    _claim(
        key="T12",
        unit="tasks",
        place="Corollary 1, Eq. 9",
        statement="as stated, with weights λ = 1/N, sparsified merges have a lower excess risk "
        "than the average",
        reported="a proof; no measurement",
        method="test loss of the average less that of TIES, both at weights 1/N, whose sum is 1 as "
        "Assumption 4 demands. Secondary: TIES and DARE, and the average, each at its best scale. "
        "Controls: DARE at 1/N, which is the average plus noise of mean zero, and trimming alone; "
        f"{_OURS}",
        data=_DATA,
        test=_risk,
    ),
)
