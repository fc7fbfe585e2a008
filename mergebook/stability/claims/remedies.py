"""Remark 4 of the stability framework (Li et al., 2026): T14 to T16, and T19, Theorem 2's χ² κ²."""

from collections.abc import Iterator
from functools import partial
from itertools import product
from typing import Any

import numpy as np

from mergebook.ledger import Comparison, Load, comparison
from mergebook.ledger.checks import SEED, UNITS, Role
from mergebook.plots import label
from mergebook.stability.read import remedies

TRAINED = "vision8-remedies-vit_small"
REORDERED = "glyphs8-rebasin-mlp"
UNEVEN = "vision8-uneven-vit_small"

NEAR_NATS = 0.05  # of a generalisation error that is left as it is
NEAR_SUM = 0.1  # of coefficients that sum to 1
STEPS = ("adam, steps", "sgd, steps")  # kinds of experts that differ in their steps alone
REMEDIES = {"sharpness-aware, 0.05": "SAM", "linearised": "linearised fine-tuning"}

NEARER = "gradients at the average nearer to each other"
LOGS: dict[str, Any] = {"falling": True, "scale": np.log, "unit": "log ratio"}


def _gain(says: str, better: str, worse: str, value: str, **options: Any) -> Comparison:
    options |= {"about": options["about"] | {"metric": value}, "value": value}
    return comparison(f"{says}, {value}", better, worse, falling=value == "loss", **options)


def before(load: Load) -> Iterator[Comparison]:
    """T15: flat minima, linearised fine-tuning and Re-Basin."""
    for kind, name in REMEDIES.items():
        says, result = f"{name}: less curvature at the experts", (TRAINED, "sharpness")
        sharp: dict[str, Any] = {"value": "sharpness", "about": {"metric": "sharpness"}, **LOGS}
        yield comparison(says, kind, "plain", by="kind", result=result, **sharp)
    cases = [(kind, "plain", "at equal cost") for kind in (*REMEDIES, "sharpness-aware, 0.2")]
    cases += [(kind, "plain, half as long", "in as many steps") for kind in REMEDIES]
    for (kind, other, how), method, value in product(cases, ("average", "individual"), UNITS):
        decides = (other, value) == ("plain", "loss") and kind in REMEDIES
        role = "control" if method == "individual" else "primary" if decides else "secondary"
        subject = "expert" if method == "individual" else "average"
        says = f"{REMEDIES.get(kind, 'SAM, a larger ball')}, {how}: a better {subject}"
        rows: dict[str, Any] = {"by": "kind", "where": {"method": method}, "about": {"of": subject}}
        yield _gain(says, kind, other, value, result=(TRAINED, "test"), role=role, **rows)
    pairs = load(REORDERED, "pairs")
    for pair, name in (("two tasks", "two tasks"), ("same task", "one task")):
        compare: dict[str, Any] = {"result": partial(remedies.by_matching, pairs, pair)}
        sides = ("matched", "as trained")
        role = "primary" if pair == "two tasks" else "secondary"
        for says, value, own, options in (
            ("networks nearer", "distance", "secondary", LOGS),
            (NEARER, "heterogeneity", "primary", LOGS | {"by_seed": True}),
            ("a lower barrier", "barrier", "secondary", {"falling": True, "unit": "nats"}),
        ):
            if value != ("heterogeneity" if pair == "same task" else "barrier"):
                about = {"of": f"Re-Basin, {name}", "metric": value}
                options = {"value": value, "role": own, "about": about} | options
                yield comparison(f"Re-Basin, {name}: {says}", *sides, **compare, **options)
        for value in UNITS:
            own = role if value == "loss" else "secondary"
            compare |= {"about": {"of": f"Re-Basin, {name}"}, "role": own}
            yield _gain(f"Re-Basin, {name}: a better average", *sides, value, **compare)


def uneven(load: Load) -> Iterator[Comparison]:
    """T19: averages of experts that were trained alike, against mixed ones."""
    merged = load(UNEVEN, "merged")
    kinds, rules = (merged[name].unique() for name in ("kind", "method"))
    for kind, rule, value in product(kinds, rules, UNITS):
        result = partial(remedies.by_way, merged, kind=kind, method=rule)
        measured = {*result()["method"]}
        words = f"{remedies.kind_name(kind)}, {label(rule)}"
        decides = rule == "average" and kind in STEPS and value == "loss"
        says = {way: f"{way} better" for way in ("per step", "per length", "equal")}
        says = {remedies.ALIKE: "experts that are alike better than mixed ones"} | says
        for way in (each for each in says if each in measured):
            role: Role = "control"
            if way == remedies.ALIKE:
                role = "primary" if decides else "secondary"
            elif way != "per step" and rule != "average":
                continue
            about: dict[str, Any] = {"trained": kind, "rule": rule}
            options: dict[str, Any] = {"result": result, "about": about, "role": role}
            yield _gain(f"{words}: {says[way]}", way, remedies.PLAIN, value, **options)


def outliers(load: Load) -> Iterator[Comparison]:
    """T14: AdaMerging's coefficients against the heterogeneity of tasks."""
    cases: dict[str, Role] = {"task": "primary", "layer": "secondary"}
    for (suite, result), (fine, role) in product(remedies.EXPLAINED.items(), cases.items()):
        table = load(result, "coefficients")
        means = remedies.task_means(table, fine)
        means = means.assign(less=-means["coefficient"])
        compare = partial(comparison, about={"suite": suite, "by": fine})
        says = f"{suite}, coefficients by {fine}: −λ rises with ζ over the tasks"
        pairs: dict[str, Any] = {"value": ("heterogeneity", "less"), "kind": "correlation"}
        pairs |= {"keys": ("task",), "worse": {}, "unit": "rank correlation", "role": role}
        yield compare(says, result=means.reset_index, **pairs)
        sums = table[table["granularity"] == fine].groupby("seed")["coefficient"].sum()
        says = f"{suite}, coefficients by {fine}: sum to 1"
        one: dict[str, Any] = {"bound": 1.0, "tolerance": NEAR_SUM, "unit": "", "role": "control"}
        one |= {"about": {"suite": suite, "by": fine, "metric": "sum"}, "keys": SEED}
        yield compare(says, result=sums.reset_index, value="coefficient", **one)


def mended(load: Load) -> Iterator[Comparison]:
    """T16: both errors with Surgery's modules and without."""
    cases: dict[str, Role] = {"test": "primary", "validation": "secondary", "train": "secondary"}
    for (suite, result), (split, role) in product(remedies.EXPLAINED.items(), cases.items()):
        about = {"suite": suite, "by": split}
        rows: dict[str, Any] = {"result": remedies.errors(load(result, "test")).copy}
        rows["about"] = about
        sides, words = (f"surgery, {split}", "average"), f"{suite}, by {split} inputs"
        rises = f"rises by less than {NEAR_NATS} nats"
        errors = (("optimisation", "falls", 0.0), ("generalisation", rises, -NEAR_NATS))
        for value, says, bound in errors:
            options = rows | {"bound": bound, "unit": "nats", "role": role, "value": value}
            options |= {"falling": True, "about": about | {"metric": value}}
            yield comparison(f"{words}: the {value} error {says}", *sides, **options)
        for value in UNITS:
            yield _gain(f"{words}: a better merge", *sides, value, role="control", **rows)
