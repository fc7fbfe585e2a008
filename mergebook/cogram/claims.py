"""What CoGraM's claims (Lenz, 2025) compare, each on the files in ``results/``.

The paper's own setting is synthetic data, one geometric prototype per class, and λ = 5.5; its four
readings, by signs of features and by initial weights, are primary, all else is secondary.
"""

from collections.abc import Iterator
from functools import partial
from itertools import product
from typing import Any

import pandas as pd

from mergebook.ledger import Comparison, Load, comparison, read_claims
from mergebook.ledger.checks import SEED, SPREAD, Role

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
RANKS: dict[str, Any] = {"kind": "correlation", "unit": "rank correlation"}


def _case(study: str, source: str, data: str, start: str, **about: Any) -> "partial[Comparison]":
    where = {"data": data, "start": start}
    about = {"source": source, **where} | about
    return partial(comparison, result=f"{source}-{study}", where=where, keys=SEED, about=about)


def _cases(*more: Setting) -> Iterator[tuple[str, Setting, "partial[Comparison]"]]:
    """Each case in words, its setting, and a comparison on it."""
    for (source, kind, role), (data, start) in product((*SETTINGS, *more), CASES):
        words = f"{PLACES[source]}, {data}, {start} start"
        words += "" if kind == "geometric" else f", {kind}"
        yield words, (source, kind, role), _case("fusion", source, data, start, prototypes=kind)


def _offset() -> Iterator[tuple[str, "partial[Comparison]"]]:
    """Each case where all features were shifted by 3 standard deviations."""
    for data, start in CASES:
        where = {"data": data, "start": start, "offset": 3, "scale": 1}
        case = _case("feature_scale", "synthetic", data, start, prototypes="offset")
        yield f"offset by 3 SD, {data}, {start} start", partial(case, where=where)


def _cogram(kind: str, levels: str = "layer", iterations: int = 1) -> dict[str, Any]:
    chosen = {"prototypes": kind, "levels": levels, "iterations": iterations}
    return {"method": "cogram", **chosen}


def _gain(load: Load) -> Iterator[Comparison]:
    """G1: CoGraM above Fisher."""
    for words, (_, kind, role), case in _cases(("digits", "geometric", "secondary")):
        yield case(f"{words}: above Fisher", _cogram(kind), "fisher", role=role)
    for words, case in _offset():
        yield case(f"{words}: above Fisher", _steep(1), "fisher", role="secondary")


def _steep(iterations: int) -> dict[str, Any]:
    return {"prototypes": "geometric", "steepness": 5.5, "iterations": iterations}


def _levels(load: Load) -> Iterator[Comparison]:
    """G2: layers against finer levels, in the mean and in the spread."""
    for (case_words, (source, kind, role), case), (levels, words, own) in product(_cases(), FINER):
        if (source, kind, levels) == UNMEASURED:
            continue
        part = role if own == "primary" else own
        layer, finer = _cogram(kind), _cogram(kind, levels)
        yield case(f"{case_words}: layers above {words}", layer, finer, role=part)
        if kind == "geometric" or levels == "all weights":
            says = f"{case_words}: {words} vary more than layers"
            yield case(says, finer, layer, role=part, kind="spread", unit=SPREAD)


def _iterations(load: Load) -> Iterator[Comparison]:
    """G3: three iterations against one."""
    kinds = {"layer": "", FINEST: ", three levels"}
    for (case_words, (_, kind, role), case), (levels, words) in product(_cases(), kinds.items()):
        sides = [_cogram(kind, levels, count) for count in (3, 1)]
        own = "secondary" if words else role
        yield case(f"{case_words}{words}: 3 iterations above 1", *sides, role=own)
    for words, case in _offset():
        yield case(f"{words}: 3 iterations above 1", _steep(3), _steep(1), role="secondary")


def _alone(load: Load, source: str) -> pd.DataFrame:
    """Rows of the study ``tuning``, with the better of A and B as a method."""
    table = load(f"{source}-tuning")
    parties = table[table["method"].isin(["a", "b"]) & (table["training"] == "none")]
    best = parties.groupby(["seed", "data", "start"], as_index=False)["accuracy"].max()
    best = best.assign(method="best", training="none")
    return pd.DataFrame(pd.concat([table, best], ignore_index=True))


def _tuning(load: Load) -> Iterator[Comparison]:
    """G4: the fused network after a kickoff and fine-tuning."""
    sources: dict[str, Role] = {"synthetic": "primary", "digits": "secondary"}
    for (source, role), (data, start) in product(sources.items(), CASES):
        words = f"{PLACES[source]}, {data}, {start} start"
        case = partial(_case("tuning", source, data, start), result=partial(_alone, load, source))
        fused = {"method": "cogram", "training": "kickoff"}
        tuned = "with kickoff above 28 epochs at one rate"
        for says, method, training, value, own in (
            ("above the better of A and B, on all", "best", "none", "accuracy", role),
            ("above A on A's data", "a", "none", "accuracy_a", role),
            ("above B on B's data", "b", "none", "accuracy_b", role),
            (tuned, "cogram", "fine-tuning", "accuracy", "secondary"),
            ("above A, fine-tuned for as long", "a", "fine-tuning", "accuracy", "control"),
        ):
            rival = {"method": method, "training": training}
            yield case(f"{words}: {says}", fused, rival, value=value, role=own, unit="points")


def _strengths(load: Load, source: str) -> pd.DataFrame:
    """Rows per case, prototypes and seed: accuracies, and how far CoGraM is below A and B."""
    table = load(f"{source}-fusion")
    keys = ["data", "start", "seed"]
    wide = table.pivot_table(index=keys, columns="method", values="accuracy")[["a", "b", "fisher"]]
    layers = table.query("method == 'cogram' and levels == 'layer' and iterations == 1")
    rows = layers[[*keys, "prototypes"]].assign(merged=layers["accuracy"])
    rows = rows.merge(wide.assign(strength=(100 * wide["a"] + 100 * wide["b"]) / 2), on=keys)
    below = rows["strength"] - 100 * rows["merged"]
    return rows.assign(below=below, weakness=-rows["strength"])


def _weak(load: Load) -> Iterator[Comparison]:
    """G5: how CoGraM varies over seeds, and with the sub-networks."""
    for words, (source, kind, role), case in _cases():
        says = f"{words}: varies more than Fisher"
        yield case(says, _cogram(kind), "fisher", role=role, kind="spread", unit=SPREAD)
        where = case.keywords["where"] | {"prototypes": kind}
        pairs = partial(case, result=partial(_strengths, load, source), where=where, **RANKS)
        far = "falls further below A and B where these are weak"
        for says, own, value, about in (
            (far, role, ("below", "weakness"), "gap"),
            ("weak where A and B are", "secondary", ("merged", "strength"), "accuracy"),
            ("Fisher is weak where A and B are", "control", ("fisher", "strength"), "Fisher"),
        ):
            if kind == "geometric" or about != "Fisher":
                metric = case.keywords["about"] | {"metric": about}
                yield pairs(f"{words}: {says}", {}, {}, value=value, role=own, about=metric)


TESTS = (_gain, _levels, _iterations, _tuning, _weak)
CLAIMS = read_claims("mergebook.cogram", {f"G{i}": test for i, test in enumerate(TESTS, 1)})
