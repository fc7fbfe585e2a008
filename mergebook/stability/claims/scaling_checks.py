"""What the claims of the stability framework on measured merges are tested by.

All read one sweep, a small vision transformer with Adam on eight tasks, where each parameter is
changed while the others are usual; some read others as well: a narrow ResNet-18 with SGD, one of
full width, and the transformer on fourteen and on twenty tasks. What is best is chosen on the other
seeds, among values that leave one to compare with: on validation examples where a result holds them
(the average of the transformer on eight tasks), otherwise on test examples.

The bound is about loss, so that loss is primary, and accuracy is secondary.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise, product
from typing import Any

import pandas as pd

from mergebook.ledger.checks import UNITS, Check, Limit, Role, above, matrix, pick
from mergebook.ledger.verdicts import Load
from mergebook.plots import label
from mergebook.stability.read import scaling as sweep

RESULT = "vision8-scaling-vit_small"
VALIDATED = "vision8-scaling-validated"
ADAPTED_COUNTS = "vision8-scaling-adamerging-counts"
EARLY = 100  # steps that all settings have
BATCHES = (8, 64)
LARGE = 1.6e-3  # a rate at which batches were changed as well
NEAR = 1.0  # points
REPEATED = "glyphs8-repeats-mlp"
MARGINS = {"accuracy": NEAR, "loss": 0.05}  # what counts as no decline
SAME_TREND = 10.0  # per cent of steps by which a method may agree less often than a linear one
OTHERS = ("task_arithmetic", "ties", "dare")


@dataclass(frozen=True)
class Network:
    """A sweep.

    Attributes:
        result: its name.
        words: what the network is called in checks.
        method: how it is averaged.
        rate: its usual learning rate.
        role: of its checks of loss; those of accuracy are secondary.
        validated: the result with validation columns of the same settings, where there is one.
    """

    result: str
    words: str
    method: str
    rate: float
    role: Role
    validated: str = ""

    def merged(self, load: Load, **chosen: Any) -> pd.DataFrame:
        """Averages at the usual setting, but for what is chosen, see `sweep.at`."""
        usual = {"method": self.method, "learning_rate": self.rate}
        return sweep.at(load(self.result, "merged"), **{**usual, **chosen})

    def role_of(self, value: str) -> Role:
        """Of a check of ``"accuracy"`` or ``"loss"``."""
        return self.role if value == "loss" else "secondary"

    def best(self, load: Load, column: str, value: str, among: Sequence[Any]) -> dict[Any, Any]:
        """For every seed the value of a parameter that is best on the other seeds.

        Args:
            load: see `Claim`.
            column: the parameter; all others but the steps are usual.
            value: ``"accuracy"`` or ``"loss"``.
            among: what to choose from.
        """
        rows, name = self.merged(load, **_swept(column)), value
        if self.validated:
            rows = sweep.at(
                load(self.validated, "merged"),
                **{"method": self.method, "learning_rate": self.rate, **_swept(column)},
            )
            name = f"validation_{value}"
        return sweep.chosen_elsewhere(sweep.spread(rows, column, name), among)

    def untouched(self, load: Load) -> pd.DataFrame:
        """The pretrained model, on every task."""
        experts = load(self.result, "experts")
        return sweep.at(experts, learning_rate=self.rate, steps=0)


VIT = Network(RESULT, "", "average", sweep.USUAL["learning_rate"], "primary", VALIDATED)
RESNET = Network(
    *("vision8-scaling-resnet18_narrow", "recalibrated ResNet, ", "average_recalibrated"),
    *(0.01, "secondary"),
)
FULL = replace(
    RESNET, result="vision8-scaling-resnet18_strided", words="recalibrated ResNet of full width, "
)
STALE = replace(RESNET, words="ResNet with averaged statistics, ", method="average")
UNVALIDATED = replace(VIT, role="secondary", validated="")
FOURTEEN = replace(UNVALIDATED, result="vision14-scaling-vit_small", words="fourteen tasks, ")
BY_OTHERS = tuple(replace(UNVALIDATED, words=f"{label(name)}, ", method=name) for name in OTHERS)
GRIDS = (VIT, RESNET, FOURTEEN, *BY_OTHERS)  # with all parameters changed
TWENTY = (
    replace(UNVALIDATED, result="vision20-scaling-vit_small", words="twenty tasks, "),
    replace(UNVALIDATED, result="glyphs20-scaling-vit_small", words="twenty scripts, "),
)
LARGER = (FOURTEEN, *TWENTY)
LEARNED = replace(UNVALIDATED, result=ADAPTED_COUNTS, words="AdaMerging, ", method="adamerging")


# What a difference of best K is where the first, or the second, mostly is the last K tried.
ENDS: dict[tuple[bool, bool], Limit] = {
    (False, False): "",
    (True, False): "least",
    (False, True): "most",
    (True, True): "none",
}


def _merged(load: Load, **chosen: Any) -> pd.DataFrame:
    return VIT.merged(load, **chosen)


def _shared(rows: pd.DataFrame, column: str) -> tuple[pd.DataFrame, int]:
    """Of rows those at the most steps that all values of a parameter have, and these steps."""
    last = int(rows.groupby(column)["steps"].max().min())
    return rows[rows["steps"] == last], last


def _swept(column: str) -> dict[str, Any]:
    """What to leave free to see a parameter; the rate and the batch after `EARLY` steps."""
    return {"steps": None} if column == "steps" else {column: None, "steps": EARLY}


def _name(method: str) -> str:
    return f"{label(method.removesuffix('_printed'))}{', as printed' * method.endswith('_printed')}"


def steps(load: Load) -> list[Check]:
    """T1: the best number of steps against both ends."""
    checks = []
    faster = replace(VIT, words=f"rate {LARGE:g}, ", rate=LARGE, role="secondary")
    for net in (VIT, *BY_OTHERS, faster, RESNET, FULL, *LARGER):
        for value, unit in UNITS.items():
            wide = sweep.spread(net.merged(load, steps=None), "steps", value)
            first, last = wide.columns[0], wide.columns[-1]
            best = sweep.taken(wide, net.best(load, "steps", value, sweep.inner(wide)))
            for end in (last, first):
                role = net.role_of(value) if end == last else "secondary"
                what = f"{net.words}{value}: the best K between better than K = {end}"
                checks.append(above(what, best, wide[end], role=role, unit=unit))
    return [*checks, *(_later(load, value) for value in UNITS)]


def _later(load: Load, value: str) -> Check:
    """Whether the ResNet's best K is later, where the last one tried may stand for a later one."""
    found, ends = [], []
    for net in (RESNET, VIT):
        table = sweep.spread(net.merged(load, steps=None), "steps", value).groupby("seed").mean()
        best = table.idxmax(axis=1)
        found.append(best.astype(float).map(math.log2))
        ends.append(bool((best == table.columns[-1]).mean() > 0.5))
    what = f"{value}: in most seeds the ResNet's best K is twice the ViT's, or later still"
    later = (found[0] - found[1] > 0.5).to_numpy(dtype=float)
    limit, unit = ENDS[ends[0], ends[1]], "of the seeds"
    return Check(what, later, "fraction", "secondary", bound=0.5, unit=unit, limit=limit)


def batch(load: Load) -> list[Check]:
    """T2: batches at a small rate and at a large one."""
    checks = []

    def gain(value: str, rate: float, steps: int) -> pd.Series:
        rows = _merged(load, batch_size=None, learning_rate=rate, steps=steps)
        wide = sweep.spread(rows, "batch_size", value)
        return wide[BATCHES[1]] - wide[BATCHES[0]]

    usual = sweep.USUAL["learning_rate"]
    for value, unit in UNITS.items():
        for net in GRIDS:
            rows, last = _shared(net.merged(load, batch_size=None, steps=None), "batch_size")
            sizes = sweep.spread(rows, "batch_size", value)
            ends = [sizes[size] for size in BATCHES[::-1]]
            words = f"batches of {BATCHES[1]} better than {BATCHES[0]}, both K = {last}"
            what, role = f"{net.words}{value}: {words}", net.role_of(value)
            checks.append(above(what, *ends, role=role, unit=unit))
        what = f"{value}: that gain is larger than at rate {LARGE:g}, both K = {EARLY}"
        more = gain(value, usual, EARLY) - gain(value, LARGE, EARLY)
        checks.append(Check(what, matrix(more), role=VIT.role_of(value), unit=unit))
        for few in (EARLY // 4, EARLY // 2):
            many = few * BATCHES[1] // BATCHES[0]
            sides = [
                sweep.spread(_merged(load, batch_size=size, steps=count), "steps", value)[count]
                for size, count in zip(BATCHES[::-1], (few, many), strict=True)
            ]
            what = f"{value}, equal pictures: {few} batches of {BATCHES[1]} better than {many}"
            checks.append(above(what, *sides, role="control", unit=unit))
    return checks


def rate(load: Load) -> list[Check]:
    """T3: a large rate against the best other one, and against no training."""
    checks = []
    for net, (value, unit) in product((*GRIDS, STALE, TWENTY[1]), UNITS.items()):
        rows = net.merged(load, learning_rate=None, steps=EARLY)
        wide = sweep.spread(rows, "learning_rate", value)
        largest = wide.columns[-1]
        best = net.best(load, "learning_rate", value, list(wide.columns)[:-1])
        what = f"{net.words}{value}: the best other rate better than {largest:g}, both K = {EARLY}"
        ends = sweep.taken(wide, best), wide[largest]
        checks.append(above(what, *ends, role=net.role_of(value), unit=unit))
        start = sweep.spread(net.untouched(load), "steps", value)[0]
        what = f"{net.words}{value}: the pretrained model better than the merge at rate {largest:g}"
        checks.append(above(what, start, wide[largest], role="control", unit=unit))
    usual = sweep.USUAL["learning_rate"]
    middle = _line(load, "accuracy", usual, EARLY)
    for rate, count in ((usual / 4, 4 * EARLY), (4 * usual, EARLY // 4)):
        what = f"equal ηK: rate {rate:g} with K = {count} within a point of {usual:g} with {EARLY}"
        other = matrix(_line(load, "accuracy", rate, count) - middle)
        checks.append(Check(what, other, role="control", tolerance=NEAR))
    return checks


def _line(load: Load, value: str, rate: float, steps: int) -> pd.Series:
    return sweep.spread(_merged(load, learning_rate=rate, steps=steps), "steps", value)[steps]


def data(load: Load) -> list[Check]:
    """T4: shares of the data, at equal steps and at equal passes."""
    checks = []
    for net, (value, unit) in product(GRIDS, UNITS.items()):
        rows, last = _shared(net.merged(load, share=None, steps=None), "share")
        wide = sweep.spread(rows, "share", value)
        for less, more in pairwise(wide.columns):
            what = f"{100 * more:g} % of the data better than {100 * less:g} %"
            ends, role = (wide[more], wide[less]), net.role_of(value)
            checks.append(above(f"{net.words}{value}: {what}", *ends, role=role, unit=unit))
            if net in BY_OTHERS:
                continue
            sides = []
            for share in (more, less):
                count = round(float(share) * last)
                rows = net.merged(load, share=share, steps=count)
                sides.append(sweep.spread(rows, "steps", value)[count])
            what = (
                f"{net.words}{value}, equal passes: {100 * more:g} % better than {100 * less:g} %"
            )
            checks.append(above(what, *sides, role="control", unit=unit))
    return checks


def tasks(load: Load) -> list[Check]:
    """T5: nested merges, judged on the tasks that all of them hold."""
    checks = []
    for net, (value, unit) in product((VIT, *BY_OTHERS, LEARNED, *LARGER), UNITS.items()):
        means = sweep.shared_tasks(_counts(load, net), net.method, value)
        least, most = means.columns[0], means.columns[-1]
        for few, many in [(least, most), *(pairwise(means.columns) if net is VIT else ())]:
            role = net.role_of(value) if (few, many) == (least, most) else "secondary"
            what = f"{net.words}{value} of the first {least}: better with {few} merged than {many}"
            checks.append(Check(what, matrix(means[few] - means[many]), role=role, unit=unit))
    repeated = load(REPEATED, "test")
    fewest, largest = 2, int(repeated["count"].max())
    for value, unit in UNITS.items():
        for kind in ("same", "different"):
            ends = [pick(repeated, value, kind=kind, count=count) for count in (largest, fewest)]
            gain = matrix(ends[0] - ends[1]) * (1 if value == "accuracy" else -1)
            if kind == "same":
                what = f"{value}, experts of one task: no worse with {largest} merged than {fewest}"
                bound = -MARGINS[value]
            else:
                what = f"{value}, different tasks likewise: better with {fewest} than {largest}"
                gain, bound = -gain, 0.0
            checks.append(Check(what, gain, role="control", bound=bound, unit=unit))
    return checks


def _counts(load: Load, net: Network) -> pd.DataFrame:
    """Nested merges after the most steps at which tasks were counted."""
    rows: pd.DataFrame = load(net.result, "counts")
    most: pd.DataFrame = rows[rows["steps"] == rows["steps"].max()]
    return most


def explosion(load: Load) -> list[Check]:
    """T9: both errors, from the best value to the largest; K and the rate are two halves."""
    checks = []
    cases: list[tuple[Network, str, str, dict[str, Any], Role]] = [
        (net, "", words, chosen, net.role)
        for net in GRIDS
        for words, chosen in (
            ("K", _swept("steps")),
            ("rate", _swept("learning_rate")),
        )
    ]
    quarter = {"steps": None, "share": 0.25}
    cases.append((UNVALIDATED, "25 % of the data, ", "K", quarter, "secondary"))
    cases += [(net, "", "K", {"steps": None}, net.role) for net in (FULL, *TWENTY)]
    for net, method, words, chosen, role in cases:
        column = next(name for name, value in chosen.items() if value is None)
        split = sweep.apart(net.merged(load, **chosen))
        loss = sweep.spread(split, column, "loss")
        among = list(loss.columns)[1 if words == "K" else 0 : -1]
        chooses = net.validated and method == ""
        best = (
            net.best(load, column, "loss", among)
            if chooses
            else sweep.chosen_elsewhere(loss, among)
        )
        end = loss.columns[-1]
        half = "many steps" if words == "K" else "a large rate"
        place = f"{net.words}{method}{half}: from the best {words} to {end:g}"
        for value, what, sign in (
            ("generalisation", "the generalisation error rises", -1),
            ("train_loss", "the optimisation error falls", 1),
        ):
            wide = sweep.spread(split, column, value)  # with a minus
            change = sign * (wide[end] - sweep.taken(wide, best))
            checks.append(Check(f"{place}: {what}", matrix(change), role=role, unit="nats"))
    return checks


def trends(load: Load) -> list[Check]:
    """T11: whether a sparsifying rule changes with the average as often as a linear one does.

    Merges of the same experts agree more often than by chance, whatever the rule, so chance is not
    a null hypothesis.
    """
    checks = []
    for net, value in product((VIT, FOURTEEN), UNITS):
        table = load(net.result, "merged")
        follow = {name: sweep.agreement(table, name, value) for name in OTHERS}
        for method in ("ties", "dare"):
            what = f"{net.words}{label(method)}, {value}: changes like the average about as often"
            less = matrix(follow[method] - follow["task_arithmetic"])
            checks.append(
                Check(
                    f"{what} as task arithmetic",
                    less,
                    role=net.role_of(value),
                    bound=-SAME_TREND,
                    unit="% of steps",
                )
            )
    return checks


def needed(load: Load) -> list[Check]:
    """T13: the lead over the average against the number of tasks."""
    cases = [(VIT, method) for method in ("ties", "ties_printed", "dare")]
    cases += [(net, "ties") for net in LARGER]
    return [
        Check(
            f"{net.words}{value}: the lead of {_name(method)} over the average grows with log₂ N",
            matrix(sweep.slopes(_counts(load, net), method, value)),
            role=net.role_of(value) if method == "ties" else "secondary",
            unit=unit,
        )
        for (net, method), (value, unit) in product(cases, UNITS.items())
    ]


def stopped(load: Load) -> list[Check]:
    """T17: experts that stopped at their least validation loss."""
    checks = []
    stopped = sweep.at(load(RESULT, "stopped"))
    for value, unit in UNITS.items():
        wide = sweep.spread(_merged(load, steps=None), "steps", value)
        own = sweep.spread(stopped.assign(all=0), "all", value)[0]
        last = wide.columns[-1]
        what = f"{value}: experts stopped by validation merge better than all after K = {last}"
        checks.append(above(what, own, wide[last], role=VIT.role_of(value), unit=unit))
    return checks


def opposite(load: Load) -> list[Check]:
    """T18: what experts and their average do after the best number of steps."""
    checks = []
    for value, unit in UNITS.items():
        wide = sweep.spread(_merged(load, steps=None), "steps", value)
        experts = sweep.at(load(RESULT, "experts"), steps=None)
        alone = sweep.spread(experts[experts["steps"] > 0], "steps", value)
        best = VIT.best(load, "steps", value, sweep.inner(wide))
        last = wide.columns[-1]
        role: Role = "primary" if value == "accuracy" else "secondary"
        gain, fall = (
            alone[last] - sweep.taken(alone, best),
            sweep.taken(wide, best) - wide[last],
        )
        for what, change in (("the experts improve", gain), ("the average declines", fall)):
            what = f"{value}, from the average's best K to {last}: {what}"
            checks.append(Check(what, matrix(change), role=role, unit=unit))
    return checks
