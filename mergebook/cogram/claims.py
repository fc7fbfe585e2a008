"""The claims of CoGraM (Lenz, 2025), G1–G5, each tested on the files in ``results/``.

The paper's own setting is synthetic data, one geometric prototype per class, and λ = 5.5. It does
not say whether its features have signs, nor whether its networks share their initial weights, so
all four readings are primary. Other prototypes and real digits are secondary: 30 seeds each.
"""

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import product
from typing import Any

import numpy as np
import pandas as pd

from mergebook.ledger.checks import SPREAD, Check, Role, above, matrix, pick
from mergebook.ledger.verdicts import Claim, Load

CASES = tuple(product(("homogeneous", "heterogeneous"), ("common", "own")))
FINEST = "layer, neuron, weight"
# Levels that are compared with layers, in words, and their role in the paper's own setting. What
# follows our thresholds is secondary: they mostly send all layers down, or none.
FINER: tuple[tuple[str, str, Role], ...] = (
    ("all weights", "all weights at once", "primary"),
    ("all weights, in turn", "all weights in turn", "primary"),
    (FINEST, "three levels by thresholds", "secondary"),
)
UNMEASURED = ("synthetic", "geometric", "all weights, in turn")
# Source, prototypes, and the part that a check on them plays.
Setting = tuple[str, str, Role]
SETTINGS: tuple[Setting, ...] = (
    ("synthetic", "geometric", "primary"),
    ("synthetic_positive", "geometric", "primary"),
    ("synthetic", "arithmetic", "secondary"),
    ("synthetic_positive", "arithmetic", "secondary"),
    ("digits", "arithmetic", "secondary"),
)
PLACES = {"synthetic": "both signs", "synthetic_positive": "positive features", "digits": "digits"}
_of = partial(pick, keys=("seed",))


def _cases(
    load: Load, settings: Sequence[Setting] = SETTINGS
) -> Iterator[tuple[str, Setting, pd.DataFrame]]:
    """Each case in words, its setting, and its rows."""
    for source, kind, role in settings:
        for case, rows in _split(load(f"{source}-fusion"), source):
            words = case if kind == "geometric" else f"{case}, {kind}"
            yield words, (source, kind, role), rows


def _split(table: pd.DataFrame, source: str) -> Iterator[tuple[str, pd.DataFrame]]:
    """Each case of a source in words, and its rows."""
    for data, start in CASES:
        rows = table[(table["data"] == data) & (table["start"] == start)]
        yield f"{PLACES[source]}, {data}, {start} start", rows


def _offset(load: Load) -> Iterator[tuple[str, pd.DataFrame, pd.Series]]:
    """Each case where all features were shifted by 3 standard deviations; Fisher's accuracy."""
    table = load("synthetic-feature_scale")
    table = table[(table["offset"] == 3) & (table["scale"] == 1)]
    for case, rows in _split(table, "synthetic"):
        merged = rows[(rows["prototypes"] == "geometric") & (rows["steepness"] == 5.5)]
        words = case.replace(PLACES["synthetic"], "offset by 3 SD")
        yield words, merged, _of(rows, method="fisher")


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
    settings: list[Setting] = [*SETTINGS, ("digits", "geometric", "secondary")]
    checks = [
        above(f"{case}: above Fisher", _cogram(table, kind), _of(table, method="fisher"), role=role)
        for case, (_, kind, role), table in _cases(load, settings)
    ]
    for case, merged, fisher in _offset(load):
        once = _of(merged, iterations=1)
        checks.append(above(f"{case}: above Fisher", once, fisher, role="secondary"))
    return checks


def _levels(load: Load) -> list[Check]:
    checks = []
    for case, (source, kind, role), table in _cases(load):
        layer = _cogram(table, kind)
        for levels, words, own in FINER:
            if (source, kind, levels) == UNMEASURED:
                continue
            part = role if own == "primary" else own
            finer = _cogram(table, kind, levels)
            checks.append(above(f"{case}: layers above {words}", layer, finer, role=part))
            if kind == "geometric" or levels == "all weights":
                checks.append(_wider(f"{case}: {words} vary more than layers", finer, layer, part))
    return checks


def _iterations(load: Load) -> list[Check]:
    checks = []
    for case, (_, kind, role), table in _cases(load):
        for levels, words in (("layer", ""), (FINEST, ", three levels")):
            own: Role = "secondary" if words else role
            thrice, once = (_cogram(table, kind, levels, count) for count in (3, 1))
            checks.append(above(f"{case}{words}: 3 iterations above 1", thrice, once, role=own))
    for case, merged, _ in _offset(load):
        thrice, once = (_of(merged, iterations=count) for count in (3, 1))
        checks.append(above(f"{case}: 3 iterations above 1", thrice, once, role="secondary"))
    return checks


def _tuning(load: Load) -> list[Check]:
    checks = []
    sources: tuple[tuple[str, Role], ...] = (("synthetic", "primary"), ("digits", "secondary"))
    for source, role in sources:
        for case, rows in _split(load(f"{source}-tuning"), source):
            checks += _tuned(case, rows, role)
    return checks


def _tuned(case: str, table: pd.DataFrame, role: Role) -> list[Check]:
    mine = table[(table["method"] == "cogram") & (table["training"] == "kickoff")]
    everywhere = _of(mine)
    alone = pd.concat([_of(table, method=party, training="none") for party in "ab"], axis=1)
    what = f"{case}: above the better of A and B, on all"
    checks = [above(what, everywhere, alone.max(axis=1), role=role)]
    for party in ("a", "b"):
        column = f"accuracy_{party}"
        own = _of(table, column, method=party, training="none")
        what = f"{case}: above {party.upper()} on {party.upper()}'s data"
        checks.append(above(what, _of(mine, column), own, role=role))
    plain = _of(table, method="cogram", training="fine-tuning")
    what = f"{case}: with kickoff above 28 epochs at one rate"
    checks.append(above(what, everywhere, plain, role="secondary"))
    what = f"{case}: above A, fine-tuned for as long"
    trained = _of(table, method="a", training="fine-tuning")
    return [*checks, above(what, everywhere, trained, role="control")]


def _weak(load: Load) -> list[Check]:
    checks = []
    for case, (_, kind, role), table in _cases(load):
        merged, fisher = _cogram(table, kind), _of(table, method="fisher")
        strength = (_of(table, method="a") + _of(table, method="b")) / 2
        checks.append(_wider(f"{case}: varies more than Fisher", merged, fisher, role))
        what = f"{case}: falls further below A and B where these are weak"
        checks.append(_together(what, strength - merged, -strength, role))
        checks.append(_together(f"{case}: weak where A and B are", merged, strength, "secondary"))
        if kind == "geometric":
            what = f"{case}: Fisher is weak where A and B are"
            checks.append(_together(what, fisher, strength, "control"))
    return checks


_claim = partial(
    Claim, paper="lenz2025cogram", page="notebooks/31-cogram-experiments", unit="seeds"
)
_OURS = (
    "synthetic data, geometric prototypes, on features with both signs and on positive ones "
    "(exp(x/2)), from common and from own initial weights, since the paper says neither which "
    "features it has nor which initial weights. Secondary: arithmetic prototypes; real digits, "
    "with pixels in [−1, 1], where a mean of magnitudes loses the sign"
)
_FAR = "; synthetic features shifted by 3 standard deviations"
_LABELS = "both networks' labelled training data, as one prototype per class"

CLAIMS = (
    _claim(
        key="G1",
        place="Figures 3 and 4",
        statement="CoGraM lifts a Fisher merge, on homogeneous and on heterogeneous data",
        reported="clearly superior on average over 30 seeds, in both tests; no numbers in the text",
        method=f"layers only, λ = 5.5; {_OURS}{_FAR}",
        data=_LABELS,
        test=_gain,
    ),
    _claim(
        key="G2",
        place="Results; Discussion",
        statement="the level of layers is best; finer levels raise the variance and lower the mean",
        reported="higher variances and, on average, lower accuracy; no numbers",
        method="layers against a decision on every weight, at once and in turn, since the paper's "
        "words fit both orders (in turn on positive features only): means, and mean absolute "
        "deviations over seeds. Adaptive "
        "refinement is not tested. The paper does not give its thresholds, and ours, which are "
        "secondary, mostly send all layers down or none, so that a comparison by them has no "
        f"power over the hierarchy; {_OURS}",
        data=f"{_LABELS}; thresholds are chosen on labelled validation data of other seeds, and "
        "lie at the edge of their grid",
        test=_levels,
    ),
    _claim(
        key="G3",
        place="Idea of the Iterative Approach",
        statement="repeating CoGraM on its own result improves the accuracy further",
        reported="argued for, no test",
        method=f"3 iterations against 1, layers; secondary: all three levels; {_OURS}{_FAR}",
        data=_LABELS,
        test=_iterations,
    ),
    _claim(
        key="G4",
        place="Discussion",
        statement="a kickoff of 8 epochs and 20 epochs of fine-tuning bring the fused network "
        "above both sub-networks, on each one's data and on both",
        reported="accuracy clearly above that of the sub-networks; no numbers",
        method="synthetic features with both signs; class means instead of the paper's prototypes, "
        "which were not measured here. Secondary: the kickoff against 28 epochs at one rate, and "
        "real digits. Control: network A, trained on for as long, since the fused network sees "
        "twice the data of a sub-network",
        data="all labelled training data of both parties, which each sub-network alone did not "
        "have",
        test=_tuning,
    ),
    _claim(
        key="G5",
        place="Results; Discussion",
        statement="CoGraM varies more over seeds than Fisher, and drops further below the "
        "sub-networks on seeds where these are weak",
        reported="a higher standard deviation; drops often on seeds where the sub-networks are "
        "poor",
        method="mean absolute deviations over seeds, and Spearman's correlation over seeds of the "
        f"distance below the mean of A and B with their weakness; {_OURS}; the correlation of "
        "the accuracies themselves, which any network for the same problem would show. Control: "
        "Fisher's",
        data=_LABELS,
        test=_weak,
    ),
)
