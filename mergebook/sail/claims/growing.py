"""What SAIL's claims on growing, on risks, and on clusters of a text compare."""

from collections.abc import Iterator
from itertools import product
from typing import Any

import numpy as np
import pandas as pd

from mergebook.ledger import Check, Comparison, Load, comparison
from mergebook.ledger.checks import SEED, Role, pick
from mergebook.sail.claims.spirals import WORDS
from mergebook.sail.measure.kept import LEARNED
from mergebook.sail.measure.risk import DRAWS
from mergebook.sail.read import text

KEPT = ("glyphs8-kept", "tinyshakespeare-kept")
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
CLEAR = 0.25  # of AUC: half-way from chance to certainty
GROUPED = 0.25  # of a mean silhouette: parts at or below are usually taken for no clusters
# What the paper's own maps are: what is grown, by which start of width and of depth, learned or not
_PLAIN = tuple(("wider", scheme, "", "grown") for scheme in ("svd_random", "svd", "interpolate"))
_LEARNED = tuple((*way, "alone") for way in LEARNED[1:])
_ASIDE = tuple((*way[:3], "grown") for way in _LEARNED[1:])
_MODES = {"grown": "as grown", "alone": "learned", "joint": "learned jointly"}


def _case(
    family: str, way: tuple[str, str, str, str], sources: str = "one"
) -> tuple[str, dict[str, str], dict[str, Any]]:
    """A way to grow in words and as columns, and what comparisons of it have in common."""
    grown, width, depth, mode = way
    how = " and ".join(filter(None, (width.replace("_random", " with random factors"), depth)))
    rows = {"grown": grown, "width": width, "depth": depth, "sources": sources, "family": family}
    about = rows | {"mode": mode}
    common: dict[str, Any] = {"about": about, "result": (FAMILIES[family], "starts"), "keys": SEED}
    return f"{family}, {grown}: {how}, {_MODES[mode]}", rows, common | {"where": about}


def kept(load: Load) -> Iterator[Comparison]:
    """S7: fraction of a source's learning that is kept right after growing, above a half."""
    half: dict[str, Any] = {"value": "kept", "bound": HALF, "unit": "share"}
    for family, way in product(FAMILIES, (*_PLAIN, *_LEARNED, *_ASIDE)):
        words, _, common = _case(family, way)
        role: Role = "primary" if way in _PLAIN else "secondary"
        yield comparison(f"{words}: more than half is kept", role=role, **common, **half)
    for family, way in product(FAMILIES, _LEARNED):
        words, rows, common = _case(family, way)
        says = f"{words}: more than as much training from scratch reaches"
        reached = _beside_scratch(load, family, common["where"]).reset_index
        beyond = {"value": ("kept", "scratch"), "worse": {}, "unit": "share", "where": {}}
        about = common["about"] | {"than": "scratch"}
        yield comparison(says, **common | beyond | {"about": about, "result": reached})
    for family, start, mode in product(FAMILIES, ("shared", "own"), ("alone", "joint")):
        words, _, common = _case(family, ("wider", "mean", "", mode), start)
        says = f"{words}, average of two, {WORDS[start]}: more than half is kept"
        yield comparison(says, role="secondary", **common, **half)
    for family, way in product(FAMILIES, _LEARNED):
        words, rows, common = _case(family, way)
        says = f"{words}: ends lower than as much training"
        lower: dict[str, Any] = {"value": ("after", "plain"), "worse": {}, "falling": True}
        lower |= {"where": rows, "about": common["about"] | {"than": "training"}, "unit": "nats"}
        lower |= {"result": (FAMILIES[family], "trained"), "role": "secondary"}
        yield comparison(says, **common | lower)


def _beside_scratch(load: Load, family: str, rows: dict[str, str]) -> pd.DataFrame:
    """Fraction kept by learned maps, and what as many FLOPs of training from scratch reach."""
    result, own = FAMILIES[family], {"family": family, "grown": rows["grown"]}
    steps = pick(load(result, "trained"), "extra", keys=SEED, **rows)
    table = load(f"{result}_scratch", "curve")
    curve = pick(table, "kept", keys=("seed", "step"), **own).unstack()
    scratch = {
        seed: float(np.interp(count, [0, *curve.columns], [0.0, *curve.xs(seed)]))
        for seed, count in steps.items()
    }
    kept = pick(load(result, "starts"), "kept", keys=SEED, **rows)
    return pd.DataFrame({"kept": kept, "scratch": pd.Series(scratch)}).rename_axis("seed")


def risks(load: Load) -> Iterator[Comparison | Check]:
    """S9: the printed bound, where TV is 1, is above every loss; secondary: the repaired one."""
    table = load(RISK, "bounds")
    printed, repaired = (table[table["form"] == form] for form in ("printed", "repaired"))
    worst = printed.groupby("examples")["bound"].min().reset_index
    fact: dict[str, Any] = {"kind": "fact", "bound": LARGEST, "unit": "of the largest loss"}
    fact |= {"value": "bound", "keys": ("examples",), "about": {"form": "printed"}}
    yield comparison("as printed: above every possible loss, for all n", result=worst, **fact)
    for column, says in {"tells": "true and below every loss of C", "holds": "true"}.items():
        for count, own in repaired.groupby("examples"):
            what = f"repaired, n = {count}: {says} in more than {SURE:.0%} of draws"
            right = round(float(own[column].sum()) * DRAWS)
            draws = np.repeat([1.0, 0.0], [right, len(own) * DRAWS - right])
            options: dict[str, Any] = {"kind": "fraction", "bound": SURE, "unit": "of draws"}
            options["about"] = {"form": "repaired", "metric": column, "examples": count}
            yield Check(what, draws, role="secondary", **options)


def clusters(load: Load) -> Iterator[Comparison]:
    """S20: thirds are told apart, and are clusters; controls: without the mean, and two texts."""
    roles: dict[str, Role] = {"histogram": "primary", "histogram without mean": "control"}
    apart: dict[str, Any] = {"value": "auc", "bound": CLEAR, "unit": "AUC", "by": "split"}
    apart |= {"keys": ("seed", "pair"), "by_seed": True}
    for result, (features, role) in product(CLUSTERS, roles.items()):
        name, where = result.partition("-")[0], {"features": features}
        says = f"{name}, {features}: thirds much further apart than random"
        rows: dict[str, Any] = {"result": (result, "separation"), "where": where, "role": role}
        yield comparison(says, "thirds", "random", about={"text": name} | where, **rows, **apart)
    for features in roles:
        says = f"two texts, {features}: much further apart than random halves"
        rows = {"result": text.separations, "where": {"parts": text.TWO, "features": features}}
        rows |= {"role": "control", "about": {"text": "both", "features": features}}
        yield comparison(says, "texts", "random", **rows, **apart)
    grouped: dict[str, Any] = {"value": "silhouette", "bound": GROUPED, "unit": "silhouette"}
    grouped |= {"keys": SEED, "by": "split"}
    for result, (split, role) in GROUPS.items():
        name = result.partition("-")[0]
        rows = {"result": (result, "silhouettes"), "role": role}
        for space in load(result, "silhouettes")["space"].unique():
            says = f"{name}, {space}: {split} are clusters by their silhouette"
            rows |= {"where": {"space": space}, "about": {"text": name, "space": space}}
            rows["about"] |= {"split": split}
            yield comparison(says, split, **rows, **grouped)
