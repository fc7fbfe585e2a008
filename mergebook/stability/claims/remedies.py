"""Remark 4 of the stability framework (Li et al., 2026): claims T14, T15, T16 and T19.

The remark explains methods by terms of the bound that they lower. Each claim asks whether a method
does lower what it is said to lower, and whether the merge gains. T19 is about Theorem 2's χ² κ².
The bound is about loss: checks of loss decide about merges, those of accuracy are secondary.
"""

from functools import partial
from itertools import product
from typing import Any

import numpy as np
import pandas as pd

from mergebook.ledger.checks import UNITS, Check, Role, above, matrix, pick
from mergebook.ledger.verdicts import Claim, Load
from mergebook.plots import label
from mergebook.stability.read.remedies import (
    ALIKE,
    EXPLAINED,
    PLAIN,
    by_matching,
    by_way,
    errors,
    kind_name,
    task_means,
)

TRAINED = "vision8-remedies-vit_small"
REORDERED = "glyphs8-rebasin-mlp"
UNEVEN = "vision8-uneven-vit_small"

NEAR_NATS = 0.05  # of a generalisation error that is left as it is
NEAR_SUM = 0.1  # of coefficients that sum to 1
REMEDIES = {"sharpness-aware, 0.05": "SAM", "linearised": "linearised fine-tuning"}


def _gain(
    what: str,
    table: pd.DataFrame,
    better: str,
    worse: str,
    value: str,
    role: Role,
    column: str = "method",
) -> Check:
    """The check that one kind of rows is better than another, in accuracy or in loss."""
    kinds: list[dict[str, Any]] = [{column: name} for name in (better, worse)]
    sides = [pick(table, value, **kind) for kind in kinds]
    if value == "loss":
        sides.reverse()
    return above(f"{what}, {value}", *sides, role=role, unit=UNITS[value])


def _trained(load: Load) -> list[Check]:
    test, sharp = load(TRAINED, "test"), load(TRAINED, "sharpness")
    checks = []
    for kind, name in REMEDIES.items():
        sides = [np.log(pick(sharp, "sharpness", kind=each)) for each in ("plain", kind)]
        what = f"{name}: less curvature at the experts"
        checks.append(above(what, *sides, unit="log ratio"))
    cases = [(kind, "plain", "at equal cost") for kind in (*REMEDIES, "sharpness-aware, 0.2")]
    cases += [(kind, "plain, half as long", "in as many steps") for kind in REMEDIES]
    for (kind, other, how), method, value in product(cases, ("average", "individual"), UNITS):
        role: Role = "secondary"
        if method == "individual":
            role = "control"
        elif (other, value) == ("plain", "loss") and kind in REMEDIES:
            role = "primary"
        subject = "expert" if method == "individual" else "average"
        what = f"{REMEDIES.get(kind, 'SAM, a larger ball')}, {how}: a better {subject}"
        runs = test[test["method"] == method]
        checks.append(_gain(what, runs, kind, other, value, role, "kind"))
    return checks


def _reordered(load: Load) -> list[Check]:
    checks = []
    pairs = load(REORDERED, "pairs")
    for pair, name in (("two tasks", "two tasks"), ("same task", "one task")):
        table = by_matching(pairs, pair)
        role: Role = "primary" if pair == "two tasks" else "secondary"
        before, after = (
            np.log(pick(table, "distance", method=way)) for way in ("as trained", "matched")
        )
        what = f"Re-Basin, {name}: networks nearer"
        checks.append(above(what, before, after, role="secondary", unit="log ratio"))
        if pair == "two tasks":
            sides = [
                pick(table, "heterogeneity", method=way).groupby("seed").mean().map(np.log)
                for way in ("as trained", "matched")
            ]
            what = "Re-Basin, two tasks: gradients at the average nearer to each other"
            checks.append(above(what, *sides, unit="log ratio"))
        else:
            sides = [pick(table, "barrier", method=way) for way in ("as trained", "matched")]
            what = f"Re-Basin, {name}: a lower barrier"
            checks.append(above(what, *sides, role=role, unit="nats"))
        for value in UNITS:
            own: Role = role if value == "loss" else "secondary"
            what = f"Re-Basin, {name}: a better average"
            checks.append(_gain(what, table, "matched", "as trained", value, own))
    return checks


def _before(load: Load) -> list[Check]:
    return [*_trained(load), *_reordered(load)]


def _uneven(load: Load) -> list[Check]:
    checks = []
    merged = load(UNEVEN, "merged")
    kinds, rules = (merged[name].unique() for name in ("kind", "method"))
    for kind, rule, value in product(kinds, rules, UNITS):
        table = by_way(merged, kind=kind, method=rule)
        words = f"{kind_name(kind)}, {label(rule)}"
        ways = {*table["method"]}
        first = rule == "average" and kind.endswith("steps")
        if ALIKE in ways:
            role: Role = "primary" if first and value == "loss" else "secondary"
            what = f"{words}: experts that are alike better than mixed ones"
            checks.append(_gain(what, table, ALIKE, PLAIN, value, role))
        for way in [each for each in ("per step", "per length", "equal") if each in ways]:
            if way == "per step" or rule == "average":
                what = f"{words}: {way} better"
                checks.append(_gain(what, table, way, PLAIN, value, "control"))
    return checks


def _outliers(load: Load) -> list[Check]:
    checks = []
    cases: dict[str, Role] = {"task": "primary", "layer": "secondary"}
    for (suite, result), (fine, role) in product(EXPLAINED.items(), cases.items()):
        table = load(result, "coefficients")
        means = task_means(table, fine)
        pairs = np.column_stack([means["heterogeneity"], -means["coefficient"]])
        what = f"{suite}, coefficients by {fine}: −λ rises with ζ over the tasks"
        checks.append(Check(what, pairs, "correlation", role, unit="rank correlation"))
        total = table[table["granularity"] == fine].groupby("seed")["coefficient"].sum()
        what = f"{suite}, coefficients by {fine}: sum to 1"
        sums = matrix(total)
        checks.append(Check(what, sums, role="control", bound=1.0, tolerance=NEAR_SUM, unit=""))
    return checks


def _mended(load: Load) -> list[Check]:
    checks = []
    cases: dict[str, Role] = {"test": "primary", "validation": "secondary", "train": "secondary"}
    for (suite, result), (split, role) in product(EXPLAINED.items(), cases.items()):
        table = errors(load(result, "test"))
        name = f"surgery, {split}"
        after, before = (
            {part: pick(table, part, method=each) for part in ("optimisation", "generalisation")}
            for each in (name, "average")
        )
        words = f"{suite}, by {split} inputs"
        change = {part: after[part] - before[part] for part in after}
        what = f"{words}: the optimisation error falls"
        checks.append(Check(what, matrix(-change["optimisation"]), role=role, unit="nats"))
        what = f"{words}: the generalisation error rises by less than {NEAR_NATS} nats"
        falls = matrix(-change["generalisation"])
        checks.append(Check(what, falls, role=role, bound=-NEAR_NATS, unit="nats"))
        for value in UNITS:
            what = f"{words}: a better merge"
            checks.append(_gain(what, table, name, "average", value, "control"))
    return checks


_claim = partial(Claim, paper="li2026unified", page="notebooks/44-remedies", unit="tasks")
_REPORTED = "an interpretation; no measurement"

CLAIMS = (
    _claim(
        key="T14",
        place="Remark 4",
        statement="AdaMerging gives outliers, tasks of a large heterogeneity, less weight",
        reported=_REPORTED,
        method="Spearman's correlation over eight scripts, and over eight sets of images, of the "
        "learned coefficients with ζ² at the pretrained model, estimated without bias; one "
        "coefficient per task, means over five seeds. The tasks are the units, as every seed has "
        "the same ones. Secondary: by layer, the mean over tensors; control: whether coefficients "
        "sum to 1",
        data="unlabelled test inputs, as in AdaMerging's paper; labelled training examples for ζ",
        test=_outliers,
    ),
    _claim(
        key="T15",
        place="Remark 4",
        statement="flat minima, linearised fine-tuning and Git Re-Basin lower curvature or "
        "heterogeneity, and the merge gains",
        reported=_REPORTED,
        method="curvature of a task's loss at its expert (Hessian's largest eigenvalue, in its own "
        "network), and test loss of the average, against plain experts that cost as many "
        "gradients, so that sharpness-aware and linearised experts have half the epochs, at the "
        "learning rate that was tuned for plain training: they have no tuning of their own; "
        "the distance of two tasks' gradients at the average of perceptrons from two starts, and "
        "its loss. Secondary: accuracy, equal steps, a larger ball, distance, and networks of "
        "one task; controls: the experts alone",
        data="labelled training examples; no setting of the merges is chosen",
        test=_before,
    ),
    _claim(
        key="T16",
        place="Remark 4",
        statement="Surgery lowers the optimisation error that a merge leaves, and not its "
        "generalisation error",
        reported=_REPORTED,
        method="training loss of the average, and test less training loss, with and without "
        f"Surgery's modules; 'to cap' is one-sided, and {NEAR_NATS} nats more count as no rise. "
        "Modules that have learned from the test inputs are transductive, so that their test less "
        "training loss is not a generalisation error: the primary checks show what Surgery's own "
        "setting gives, and the secondary ones, with modules learned from validation or training "
        "inputs, are the test. Controls: test accuracy and loss",
        data="unlabelled inputs, of the test split in primary checks, as in Surgery's paper",
        test=_mended,
    ),
    _claim(
        key="T19",
        place="Theorem 2, Eq. 7",
        statement="unequal numbers of steps cost the average, by the term χ² κ²",
        reported="a bound; all experts of a merge are trained alike",
        method="half of eight experts, drawn at random, take seven times the steps of the others; "
        "test loss of their average against the mean of two averages of experts that were all "
        "trained in the one way or in the other. Secondary: accuracy; seven times the rate, "
        "momentum, a proximal term; task arithmetic, TIES, CART. Controls: task vectors over their "
        "steps (FedNova, which the paper does not propose) or over their lengths, and experts of "
        "equal steps or rates",
        data="no setting of the merges is chosen",
        test=_uneven,
    ),
)
