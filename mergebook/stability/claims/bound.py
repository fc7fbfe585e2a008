"""The stability framework's bound as a guide, and as a law (Li et al., 2026): T7, T8 and T10.

The guides take its constants from the pretrained model and training examples alone. The paper gives
no L, so three readings are primary: L as its assumption defines it, measured; L = 1; and the L that
suits the other seeds best. The form with γ* ranks as Theorem 3 does and is not counted.
"""

from collections.abc import Iterator, Mapping
from functools import lru_cache, partial
from typing import Any

import pandas as pd

from mergebook.ledger import Comparison, Load, comparison
from mergebook.ledger.checks import SEED, UNITS, Role
from mergebook.stability.claims import scaling
from mergebook.stability.read import guides
from mergebook.stability.read.networks import fits, moves_with_laws
from mergebook.stability.read.quadratics import HABIT

CONSTANTS = "vision8-stability-vit_small"
FITTED = "L fitted to other seeds"
READINGS: Mapping[str, guides.Curvature] = {"L measured": "example", "L = 1": 1.0}
FORMS: Mapping[str, tuple[str, Role]] = {
    "theorem_3": ("Theorem 3", "primary"),
    "printed": ("Theorem 3 at its own rate", "secondary"),
    "repaired": ("the corrected bound", "control"),
}
# Of the study `retraining`.
RETRAINED = {"perceptron": "glyphs8-retraining-mlp", "transformer": "vision8-retraining-vit_small"}
NEAR_POWER = 0.25  # of an exponent: a factor of two where the parameter changes sixteenfold

RESULTS = {network.words: network.result for network in (scaling.VIT, scaling.FOURTEEN)}
RIVALS = {
    "random": "a random setting",
    "default": "the default",
    HABIT: "the ηK that was best elsewhere",
    "search": "trying all, by training accuracy",
    "elsewhere": "the setting that was best elsewhere",
}
RANKS = "rank correlation"
PRINTED = {"rate": 2.0, "steps": 1.0, "examples": -1.0}  # exponents of Lemma 3
SYMBOLS = {"rate": "η", "steps": "K", "batch": "b", "examples": "n"}


def _readings(
    load: Load, score: guides.Score
) -> Iterator[tuple[str, str, dict[str, Any], pd.DataFrame]]:
    """Words for the tasks, value of L, what checks are about, and `guides.settings` of merges."""
    for words, result in RESULTS.items():
        tables = {name: _settings(load, result, L) for name, L in READINGS.items()}
        known = guides.starts(_constants(load), guides.merged_tasks(load(result, "merged")))
        tables[FITTED] = guides.fitted(tables["L = 1"], known, score)
        for reading, settings in tables.items():
            about = {"tasks": words.removesuffix(", ") or "eight tasks", "reading": reading}
            yield words, reading, about, settings


@lru_cache(maxsize=len(RESULTS) * len(READINGS))  # of T7 and of T8
def _settings(load: Load, result: str, curvature: guides.Curvature) -> pd.DataFrame:
    merged, experts = (load(result, name) for name in ("merged", "experts"))
    return guides.settings(merged, experts, _constants(load), curvature)


def _constants(load: Load) -> dict[str, pd.DataFrame]:
    return {name: load(CONSTANTS, name) for name in ("curvature", "gradients", "points")}


def _forms(reading: str) -> list[tuple[str, tuple[str, Role]]]:
    """`FORMS`; with its own rate Theorem 3 ranks settings alike for every L, and is taken once."""
    without = {"L measured": (), "L = 1": ("printed",), FITTED: ("printed", "repaired")}
    return [(form, named) for form, named in FORMS.items() if form not in without[reading]]


def ranks(load: Load) -> Iterator[Comparison]:
    """T7: correlations of the bound with the merge's loss over settings."""
    for words, reading, about, settings in _readings(load, guides.ranking):
        table = guides.correlations(settings)
        compare = partial(comparison, result=table.reset_index, keys=SEED, unit=RANKS)
        for guide, (name, own) in _forms(reading):
            role = "secondary" if words and own == "primary" else own
            says = f"{words}{name}, {reading}: a larger bound goes with a larger loss"
            yield compare(says, about=about | {"guide": guide}, value=guide, role=role)
        for rival, other in (("progress", "ηK"), ("distance", "the experts' ‖τ‖")):
            says = f"{words}Theorem 3, {reading}: ranks better than {other}"
            than, sides = {"guide": "theorem_3", "than": rival}, ("theorem_3", rival)
            yield compare(says, value=sides, worse={}, role="control", about=about | than)
        for part, name in (("optimisation", "ε"), ("stability", "its stability term")):
            if part == "optimisation" or reading == "L = 1":  # S does not depend on L
                says = f"{words}{name} alone, {reading}: goes with a larger loss"
                yield compare(says, value=part, role="secondary", about=about | {"guide": part})


def choices(load: Load) -> Iterator[Comparison]:
    """T8: what the setting that the bound chooses loses against the best."""
    near: dict[guides.Value, float] = {"loss": scaling.MARGINS["loss"], "accuracy": scaling.NEAR}
    for words, reading, about, settings in _readings(load, guides.choosing):
        for value, enough in near.items():
            rows = {"result": guides.regrets(settings, value).reset_index, "unit": UNITS[value]}
            compare = partial(comparison, keys=SEED, falling=True, **rows)
            for guide, (name, own) in _forms(reading):
                plain = value == "loss" and not words
                role = own if plain or own == "control" else "secondary"
                says = f"{words}{name}, {reading}: its choice within {enough:g} {UNITS[value]}"
                options = {"about": about | {"guide": guide, "metric": value}, "role": role}
                yield compare(f"{says} of the best", worse=enough, value=guide, **options)
            for rival, other in RIVALS.items() if value == "loss" and not words else ():
                says = f"Theorem 3, {reading}: its choice better than {other}"
                yield _chosen(compare, says, about, rival)
        if not words:
            judged = guides.validated(settings, load(scaling.VALIDATED, "merged"))
            rows = {"result": guides.regrets(judged, "loss").reset_index, "unit": "nats"}
            says = f"Theorem 3, {reading}: its choice better than trying all, by validation"
            compare = partial(comparison, keys=SEED, falling=True, **rows)
            yield _chosen(compare, says, about, "validated")


def _chosen(
    compare: "partial[Comparison]", says: str, about: dict[str, Any], rival: str
) -> Comparison:
    about = about | {"guide": "theorem_3", "than": rival, "metric": "loss"}
    return compare(says, worse={}, value=("theorem_3", rival), about=about, role="secondary")


def powers(load: Load) -> Iterator[Comparison]:
    """T10: exponents of an expert's stability."""
    for network, result in RETRAINED.items():
        table = fits(moves_with_laws({name: load(result, name) for name in ("moves", "noise")}))
        for sweep in table.index.unique("sweep"):
            parameter, *when = str(sweep).split(", ")
            name = ", ".join([f"{network}, exponent of {SYMBOLS[parameter]}", *when])
            rows: dict[str, Any] = {"result": table.reset_index, "where": {"sweep": sweep}}
            compare = partial(comparison, **rows, keys=SEED, unit="")
            about = {"network": network, "sweep": sweep}
            role: Role = "secondary" if "whole epochs" in when else "primary"
            power = PRINTED.get(parameter)  # none of the batch
            says = f"{name}: above 0" if power is None else f"{name}: about {power:g}"
            law: dict[str, Any] = {} if power is None else {"bound": power, "tolerance": NEAR_POWER}
            yield compare(says, value="stability", role=role, about=about, **law)
            says = f"{name}: less that of the repaired law, about 0"
            law = {"tolerance": NEAR_POWER, "about": about | {"than": "repaired"}, "worse": {}}
            yield compare(says, value=("stability", "repaired"), role="control", **law)
