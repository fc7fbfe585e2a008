"""Checks of SAIL's claims on growing, on risks, and on clusters of a text."""

from itertools import product

import pandas as pd

from mergelib.ledger.checks import SEED, Check, Role, above, pick
from mergelib.ledger.verdicts import Load
from mergelib.studies.analysis.sail import text

KEPT = ("glyphs8-kept", "tinyshakespeare-kept")
FAMILIES = {"MLP": KEPT[0], "ResNet": KEPT[0], "GPT": KEPT[1]}
RISK = "gaussians-risk"
CLUSTERS = ("tinyshakespeare-clusters", "wikitext2_test-clusters")
HALF = 0.5  # of what the source has learned
SURE = 0.95  # of draws
CLEAR = 0.25  # of AUC: half-way from chance to certainty
# What the paper's own maps are: what is grown, by which start of width and of depth, learned or not
_PAPERS = (
    ("wider", "svd", "", "grown"),
    ("wider", "svd", "", "alone"),
    ("deeper", "", "stack", "alone"),
    ("both", "svd", "stack", "alone"),
)
_ASIDE: tuple[tuple[str, str, str, str], ...] = (
    ("deeper", "", "stack", "grown"),
    ("both", "svd", "stack", "grown"),
)
_RANDOM = ("wider", "svd_random", "", "grown")
_MODES = {"grown": "as grown", "alone": "learned", "joint": "learned jointly"}
_STARTS = {"shared": "shared start", "own": "own starts"}


def _named(family: str, grown: str, width: str, depth: str, mode: str) -> str:
    how = " and ".join(filter(None, (width.replace("_random", " with random factors"), depth)))
    return f"{family}, {grown}: {how}, {_MODES[mode]}"


def kept(load: Load) -> list[Check]:
    """S7: share of a source's learning that is there right after growing, above a half."""
    checks = []
    kinds: list[tuple[tuple[str, str, str, str], Role]] = [(way, "primary") for way in _PAPERS]
    kinds += [(way, "secondary") for way in _ASIDE]
    kinds += [(_RANDOM, "control")]
    for (family, result), (way, role) in product(FAMILIES.items(), kinds):
        chosen = dict(zip(("grown", "width", "depth", "mode"), way, strict=True))
        rows = load(result, "starts")
        values = pick(rows, "kept", keys=SEED, family=family, sources="one", **chosen)
        what = f"{_named(family, *way)}: more than half is kept"
        checks.append(above(what, values, 0.0, bound=HALF, role=role, unit="share"))
    return checks + _two_sources(load) + _bought(load)


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
    for family, (grown, width, depth, mode) in product(FAMILIES, _PAPERS):
        if mode == "grown":
            continue
        rows = load(FAMILIES[family], "trained")
        chosen = {"grown": grown, "width": width, "depth": depth, "sources": "one"}
        sides = [
            pick(rows, column, keys=SEED, family=family, **chosen) for column in ("plain", "after")
        ]
        what = f"{_named(family, grown, width, depth, mode)}: ends lower than as much training"
        checks.append(above(what, *sides, role="secondary", unit="nats"))
    return checks


def risks(load: Load) -> list[Check]:
    """S9: share of draws in which the bound is true for all hypotheses and below C."""
    table = load(RISK, "bounds")
    checks = []
    roles: dict[str, Role] = {"printed": "primary", "repaired": "secondary"}
    cases: list[tuple[str, str, Role]] = [(form, "tells", role) for form, role in roles.items()]
    cases += [(form, "holds", "control") for form in roles]
    for (form, column, role), count in product(cases, sorted(table["examples"].unique())):
        values = pick(table, column, keys=SEED, form=form, examples=count)
        says = "true and below C" if column == "tells" else "true"
        what = f"{form}, n = {count}: {says} in {SURE:.0%} of draws"
        checks.append(above(what, values, 0.0, bound=SURE, role=role, unit="share"))
    return checks


def clusters(load: Load) -> list[Check]:
    """S20: AUC between thirds without their mean, above that between random thirds."""
    checks = []
    roles: dict[str, Role] = {"histogram without mean": "primary", "histogram": "control"}
    for result, (features, role) in product(CLUSTERS, roles.items()):
        table = load(result, "separation")
        what = f"{result.partition('-')[0]}, {features}: thirds much further apart than random"
        checks.append(_apart(what, table, "thirds", features, role))
    separations = load(text.separations)
    table = separations[separations["parts"] == text.TWO]
    for features in roles:
        what = f"two texts, {features}: much further apart than random halves"
        checks.append(_apart(what, table, "texts", features, "control"))
    return checks


def _apart(what: str, table: pd.DataFrame, split: str, features: str, role: Role) -> Check:
    parts, random = (
        pick(table, "auc", keys=("seed", "pair"), split=which, features=features)
        .groupby("seed")
        .mean()
        for which in (split, "random")
    )
    return above(what, parts, random, bound=CLEAR, role=role, unit="AUC")
