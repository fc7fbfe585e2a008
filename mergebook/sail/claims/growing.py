"""Checks of SAIL's claims on growing, on risks, and on clusters of a text."""

from itertools import product
from typing import Any

import numpy as np
import pandas as pd

from mergebook.ledger.checks import SEED, Check, Role, above, pick
from mergebook.ledger.verdicts import Load
from mergebook.sail.read import text

KEPT = ("glyphs8-kept", "tinyshakespeare-kept")
FROM_SCRATCH = {name: f"{name}_scratch" for name in KEPT}
FAMILIES = {"MLP": KEPT[0], "ResNet": KEPT[0], "GPT": KEPT[1]}
RISK = "gaussians-risk"
CLUSTERS = ("tinyshakespeare-clusters", "wikitext2_test-clusters")
GROUPS: dict[str, tuple[str, Role]] = {
    "tinyshakespeare-silhouettes": ("thirds", "primary"),
    "wikitext2_test-silhouettes": ("thirds", "primary"),
    "tinyshakespeare-silhouettes-two_texts": ("texts", "control"),
}
HALF = 0.5  # of what the source has learned
LARGEST = 1.0  # C, what the loss of S9 is at most
SURE = 0.95  # of draws
DRAWS = 200  # in each seed of `mergebook.sail.measure.risk`
CLEAR = 0.25  # of AUC: half-way from chance to certainty
GROUPED = 0.25  # of a mean silhouette: parts at or below are usually taken for no clusters
# What the paper's own maps are: what is grown, by which start of width and of depth, learned or not
_PLAIN = (
    ("wider", "svd_random", "", "grown"),
    ("wider", "svd", "", "grown"),
    ("wider", "interpolate", "", "grown"),
)
_LEARNED = (
    ("wider", "svd", "", "alone"),
    ("deeper", "", "stack", "alone"),
    ("both", "svd", "stack", "alone"),
)
_ASIDE: tuple[tuple[str, str, str, str], ...] = (
    ("deeper", "", "stack", "grown"),
    ("both", "svd", "stack", "grown"),
)
_MODES = {"grown": "as grown", "alone": "learned", "joint": "learned jointly"}
_STARTS = {"shared": "shared start", "own": "own starts"}


def _named(family: str, grown: str, width: str, depth: str, mode: str) -> str:
    how = " and ".join(filter(None, (width.replace("_random", " with random factors"), depth)))
    return f"{family}, {grown}: {how}, {_MODES[mode]}"


def kept(load: Load) -> list[Check]:
    """S7: fraction of a source's learning that is kept right after growing, above a half.

    Learned maps have seen the target's data, so they are compared with training from scratch.
    """
    checks = []
    kinds: list[tuple[tuple[str, str, str, str], Role]] = [(way, "primary") for way in _PLAIN]
    kinds += [(way, "secondary") for way in (*_LEARNED, *_ASIDE)]
    for (family, result), (way, role) in product(FAMILIES.items(), kinds):
        chosen = dict(zip(("grown", "width", "depth", "mode"), way, strict=True))
        rows = load(result, "starts")
        values = pick(rows, "kept", keys=SEED, family=family, sources="one", **chosen)
        what = f"{_named(family, *way)}: more than half is kept"
        checks.append(above(what, values, 0.0, bound=HALF, role=role, unit="share"))
    return checks + _beyond_scratch(load) + _two_sources(load) + _bought(load)


def _beyond_scratch(load: Load) -> list[Check]:
    """Fraction kept by learned maps less what as many FLOPs of training from scratch reach."""
    checks = []
    for (family, result), (grown, width, depth, mode) in product(FAMILIES.items(), _LEARNED):
        chosen = {"family": family, "grown": grown, "width": width, "depth": depth}
        chosen |= {"sources": "one", "mode": mode}
        own = pick(load(result, "starts"), "kept", keys=SEED, **chosen)
        steps = pick(load(result, "trained"), "extra", keys=SEED, **chosen)
        table = load(FROM_SCRATCH[result], "curve")
        curve = pick(table, "kept", keys=("seed", "step"), family=family, grown=grown).unstack()
        scratch = {
            seed: float(np.interp(count, [0, *curve.columns], [0.0, *curve.xs(seed)]))
            for seed, count in steps.items()
        }
        what = f"{_named(family, grown, width, depth, mode)}: more than as much training from "
        what += "scratch reaches"
        checks.append(above(what, own, pd.Series(scratch), unit="share"))
    return checks


def _two_sources(load: Load) -> list[Check]:
    checks = []
    modes = product(FAMILIES, _STARTS, ("alone", "joint"))
    for family, start, mode in modes:
        rows = load(FAMILIES[family], "starts")
        chosen = {"grown": "wider", "width": "mean", "mode": mode, "sources": start}
        values = pick(rows, "kept", keys=SEED, family=family, **chosen)
        how = f"{_named(family, 'wider', 'mean', '', mode)}, average of two, {_STARTS[start]}"
        what = f"{how}: more than half is kept"
        checks.append(above(what, values, 0.0, bound=HALF, role="secondary", unit="share"))
    return checks


def _bought(load: Load) -> list[Check]:
    """Loss of a start that costs nothing after as many FLOPs, less that of learned maps."""
    checks = []
    for family, (grown, width, depth, mode) in product(FAMILIES, _LEARNED):
        rows = load(FAMILIES[family], "trained")
        chosen = {"grown": grown, "width": width, "depth": depth, "sources": "one"}
        sides = [
            pick(rows, column, keys=SEED, family=family, **chosen) for column in ("plain", "after")
        ]
        what = f"{_named(family, grown, width, depth, mode)}: ends lower than as much training"
        checks.append(above(what, *sides, role="secondary", unit="nats"))
    return checks


def risks(load: Load) -> list[Check]:
    """S9: the printed bound is true, as it is above every loss; secondary: the repaired one.

    The printed one counts the total variation of samples, which is 1, so that both are facts.
    """
    table = load(RISK, "bounds")
    printed = table[table["form"] == "printed"]
    facts: dict[str, Any] = {"kind": "fact", "bound": LARGEST, "unit": "of the largest loss"}
    worst = printed.groupby("examples")["bound"].min()
    checks = [Check("as printed: above every possible loss, for all n", worst.to_numpy(), **facts)]
    rows = table[table["form"] == "repaired"]
    for column, says in {"tells": "true and below every loss of C", "holds": "true"}.items():
        for count, own in rows.groupby("examples"):
            what = f"repaired, n = {count}: {says} in more than {SURE:.0%} of draws"
            right = round(float(own[column].sum()) * DRAWS)
            draws = np.repeat([1.0, 0.0], [right, len(own) * DRAWS - right])
            options: dict[str, Any] = {"kind": "fraction", "bound": SURE, "unit": "of draws"}
            checks.append(Check(what, draws, role="secondary", **options))
    return checks


def clusters(load: Load) -> list[Check]:
    """S20: thirds are told apart, which the sort does by itself, and are clusters.

    Controls: without the mean that they are sorted by; and two texts in place of thirds.
    """
    checks = []
    roles: dict[str, Role] = {"histogram": "primary", "histogram without mean": "control"}
    for result, (features, role) in product(CLUSTERS, roles.items()):
        table = load(result, "separation")
        what = f"{result.partition('-')[0]}, {features}: thirds much further apart than random"
        checks.append(_apart(what, table, "thirds", features, role))
    separations = load(text.separations)
    table = separations[separations["parts"] == text.TWO]
    for features in roles:
        what = f"two texts, {features}: much further apart than random halves"
        checks.append(_apart(what, table, "texts", features, "control"))
    for result, (split, role) in GROUPS.items():
        table = load(result, "silhouettes")
        for space in table["space"].unique():
            values = pick(table, "silhouette", keys=SEED, split=split, space=space)
            what = f"{result.partition('-')[0]}, {space}: {split} are clusters by their silhouette"
            checks.append(above(what, values, 0.0, bound=GROUPED, role=role, unit="silhouette"))
    return checks


def _apart(what: str, table: pd.DataFrame, split: str, features: str, role: Role) -> Check:
    parts, random = (
        pick(table, "auc", keys=("seed", "pair"), split=which, features=features)
        .groupby("seed")
        .mean()
        for which in (split, "random")
    )
    return above(what, parts, random, bound=CLEAR, role=role, unit="AUC")
