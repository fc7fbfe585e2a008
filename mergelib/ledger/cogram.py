"""The claims of CoGraM (Lenz, 2025), G1–G5, each tested on the files in ``results/``.

The paper's own setting is synthetic data, one geometric prototype per class, and λ = 5.5; whether
its networks share their initial weights it does not say, so both cases are primary. Other
prototypes are secondary, real digits are controls: 30 seeds each.
"""

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import product
from typing import Any

import numpy as np
import pandas as pd

from mergelib.ledger.checks import SPREAD, Check, Role, above, matrix, pick
from mergelib.ledger.verdicts import Claim, Load

CASES = tuple(product(("homogeneous", "heterogeneous"), ("common", "own")))
FINEST = "layer, neuron, weight"
FINER = ("layer, neuron", FINEST)
WORDS = {"layer": "layers", "layer, neuron": "two levels", FINEST: "three levels"}
# Source, prototypes, and the part that a check on them plays.
Setting = tuple[str, str, Role]
SETTINGS: tuple[Setting, ...] = (
    ("synthetic", "geometric", "primary"),
    ("synthetic", "arithmetic", "secondary"),
    ("digits", "arithmetic", "control"),
)
_of = partial(pick, keys=("seed",))


def _cases(
    load: Load, settings: Sequence[Setting] = SETTINGS
) -> Iterator[tuple[str, str, Role, pd.DataFrame]]:
    """Each case in words, the prototypes, the role of its checks, and its rows."""
    for source, kind, role in settings:
        table = load(f"{source}-fusion")
        for data, start in CASES:
            mine = table[(table["data"] == data) & (table["start"] == start)]
            places = "" if source == "synthetic" else f"{source}, "
            means = "" if kind == "geometric" else f", {kind}"
            yield f"{places}{data}, {start} start{means}", kind, role, mine


def _cogram(
    table: pd.DataFrame, kind: str, levels: str = "layer", iterations: int = 1
) -> pd.Series:
    chosen: dict[str, Any] = {"prototypes": kind, "levels": levels, "iterations": iterations}
    return _of(table, method="cogram", **chosen)


def _wider(what: str, wide: pd.Series, narrow: pd.Series, role: Role) -> Check:
    """The check that one series of seeds varies more than another."""
    pairs = np.stack([matrix(wide), matrix(narrow)], 1)
    return Check(what, pairs, kind="spread", role=role, unit=SPREAD)


def _together(what: str, first: pd.Series, second: pd.Series, role: Role) -> Check:
    """The check that two series rise and fall together over seeds."""
    pairs = np.stack([matrix(first), matrix(second)], 1)
    return Check(what, pairs, kind="correlation", role=role, unit="rank correlation")


def _gain(load: Load) -> list[Check]:
    settings: list[Setting] = [*SETTINGS, ("digits", "geometric", "control")]
    return [
        above(f"{case}: above Fisher", _cogram(table, kind), _of(table, method="fisher"), role=role)
        for case, kind, role, table in _cases(load, settings)
    ]


def _levels(load: Load) -> list[Check]:
    checks = []
    for case, kind, role, table in _cases(load):
        layer = _cogram(table, kind)
        for levels in FINER if role == "primary" else (FINEST,):
            own: Role = role if levels == FINEST else "secondary"
            finer = _cogram(table, kind, levels)
            checks.append(above(f"{case}: layers above {WORDS[levels]}", layer, finer, role=own))
            checks.append(
                _wider(f"{case}: {WORDS[levels]} vary more than layers", finer, layer, own)
            )
        if kind == "arithmetic":
            for order in ("", ", in turn"):
                finer = _cogram(table, kind, f"all weights{order}")
                what = f"{case}: layers above all weights{order or ', at once'}"
                checks.append(above(what, layer, finer, role=role))
    return checks


def _iterations(load: Load) -> list[Check]:
    checks = []
    for case, kind, role, table in _cases(load):
        for levels in ("layer", FINEST):
            own: Role = "secondary" if role == "primary" and levels == FINEST else role
            thrice, once = (_cogram(table, kind, levels, count) for count in (3, 1))
            words = "" if levels == "layer" else f", {WORDS[levels]}"
            checks.append(above(f"{case}{words}: 3 iterations above 1", thrice, once, role=own))
    return checks


def _tuning(load: Load) -> list[Check]:
    checks = []
    sources: tuple[tuple[str, str, Role], ...] = (
        ("synthetic", "", "primary"),
        ("digits", "digits, ", "control"),
    )
    for source, words, role in sources:
        table = load(f"{source}-tuning")
        for data, start in CASES:
            mine = table[(table["data"] == data) & (table["start"] == start)]
            checks += _tuned(f"{words}{data}, {start} start", mine, role)
    return checks


def _tuned(case: str, table: pd.DataFrame, role: Role) -> list[Check]:
    mine = table[(table["method"] == "cogram") & (table["training"] == "kickoff")]
    everywhere = _of(mine)
    alone = pd.concat([_of(table, method=party, training="none") for party in "ab"], axis=1)
    checks = [
        above(
            f"{case}: above the better of A and B, on all",
            everywhere,
            alone.max(axis=1),
            role=role,
        )
    ]
    for party in ("a", "b"):
        column = f"accuracy_{party}"
        own = _of(table, column, method=party, training="none")
        what = f"{case}: above {party.upper()} on {party.upper()}'s data"
        checks.append(above(what, _of(mine, column), own, role=role))
    plain = _of(table, method="cogram", training="fine-tuning")
    what = f"{case}: with kickoff above 28 epochs at one rate"
    checks.append(above(what, everywhere, plain, role="secondary" if role == "primary" else role))
    what = f"{case}: above A, fine-tuned for as long"
    trained = _of(table, method="a", training="fine-tuning")
    return [*checks, above(what, everywhere, trained, role="control")]


def _weak(load: Load) -> list[Check]:
    checks = []
    for case, kind, role, table in _cases(load):
        merged, fisher = _cogram(table, kind), _of(table, method="fisher")
        strength = (_of(table, method="a") + _of(table, method="b")) / 2
        checks.append(_wider(f"{case}: varies more than Fisher", merged, fisher, role))
        checks.append(_together(f"{case}: weak where A and B are", merged, strength, role))
        if role == "primary":
            what = f"{case}: falls further below A and B where these are weak"
            checks.append(_together(what, strength - merged, -strength, "secondary"))
    return checks


_claim = partial(
    Claim, paper="lenz2025cogram", page="notebooks/31-cogram-experiments", unit="seeds"
)
_OURS = (
    "synthetic data, geometric prototypes, from common and from own initial weights, since the "
    "paper does not say which. Secondary: arithmetic prototypes. Controls: real digits, whose "
    "pixels we put into [−1, 1], where a mean of magnitudes loses the sign; with pixels in [0, 1] "
    "the result may differ"
)
_THRESHOLDS = (
    "both networks' labelled training data, as prototypes; thresholds are chosen on labelled "
    "validation data of other seeds, and lie at the edge of their grid"
)

CLAIMS = (
    _claim(
        key="G1",
        place="Figures 3 and 4",
        statement="CoGraM lifts a Fisher merge, on homogeneous and on heterogeneous data",
        reported="clearly superior on average over 30 seeds, in both tests; no numbers in the text",
        method=f"layers only, λ = 5.5; {_OURS}",
        data="both networks' labelled training data, as one prototype per class",
        test=_gain,
    ),
    _claim(
        key="G2",
        place="Results; Discussion",
        statement="the level of layers is best; finer levels raise the variance and lower the mean",
        reported="higher variances and, on average, lower accuracy; no numbers",
        method="layers against all three levels: means, and standard deviations by the test of "
        "Pitman and Morgan. The thresholds hardly engage: often all decisions fall at one level. "
        f"Also, where every weight decides, at once or in turn; {_OURS}",
        data=_THRESHOLDS,
        test=_levels,
    ),
    _claim(
        key="G3",
        place="Idea of the Iterative Approach",
        statement="repeating CoGraM on its own result improves the accuracy further",
        reported="argued for, no test",
        method=f"3 iterations against 1, layers; secondary: all three levels; {_OURS}",
        data="both networks' labelled training data, as one prototype per class",
        test=_iterations,
    ),
    _claim(
        key="G4",
        place="Discussion",
        statement="a kickoff of 8 epochs and 20 epochs of fine-tuning bring the fused network "
        "above both sub-networks, on each one's data and on both",
        reported="accuracy clearly above that of the sub-networks; no numbers",
        method="arithmetic prototypes only, as geometric ones were not measured. Secondary: the "
        "kickoff against 28 epochs at one rate. Controls: network A trained on for as long, and "
        "real digits",
        data="all labelled training data of both parties, which each sub-network alone did not "
        "have",
        test=_tuning,
    ),
    _claim(
        key="G5",
        place="Results; Discussion",
        statement="CoGraM varies more over seeds than Fisher, and is weak where the sub-networks "
        "are",
        reported="a higher standard deviation; drops often on seeds where the sub-networks are "
        "poor",
        method="standard deviations by the test of Pitman and Morgan, and Spearman's correlation "
        f"over seeds. Secondary: how far it falls below the sub-networks; {_OURS}",
        data="both networks' labelled training data, as one prototype per class",
        test=_weak,
    ),
)
