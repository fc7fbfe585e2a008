"""What the stability framework's claims on measured merges compare: T1 to T5 and others.

All read one sweep, each parameter while the others are usual. What is best is chosen on the other
seeds, on validation examples where a result holds them, otherwise on test examples.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise, product
from typing import Any

import pandas as pd

from mergebook.ledger import Check, Comparison, Load, comparison
from mergebook.ledger.checks import SEED, UNITS, Limit, Role
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
    """A sweep."""

    result: str
    words: str  # for the network in checks
    method: str  # how it is averaged
    rate: float  # its usual learning rate
    role: Role  # of its checks of loss; those of accuracy are secondary
    validated: str = ""  # the result with validation columns of the same settings, if any

    def merged(self, load: Load, result: str = "", /, **chosen: Any) -> pd.DataFrame:
        """Averages at the usual setting, but for what is chosen, see `sweep.at`."""
        usual = {"method": self.method, "learning_rate": self.rate}
        return sweep.at(load(result or self.result, "merged"), **{**usual, **chosen})

    def wide(self, load: Load, value: str, column: str = "steps", **chosen: Any) -> pd.DataFrame:
        """`sweep.spread` of the averages over a column, by default at all numbers of steps."""
        chosen = chosen or _swept(column)
        return sweep.spread(self.merged(load, **chosen), column, value)

    def line(self, load: Load, value: str, *, steps: int, **chosen: Any) -> pd.Series:
        """Averages of one setting, by seed and task."""
        return self.wide(load, value, steps=steps, **chosen)[steps]

    def role_of(self, value: str) -> Role:
        return self.role if value == "loss" else "secondary"

    def best(self, load: Load, column: str, value: str, among: Sequence[Any]) -> dict[Any, Any]:
        """For every seed the value of a parameter, of those named, best on the other seeds."""
        rows = self.merged(load, self.validated, **_swept(column))
        name = f"validation_{value}" if self.validated else value
        return sweep.chosen_elsewhere(sweep.spread(rows, column, name), among)

    def about(self, value: str) -> dict[str, Any]:
        return {"network": self.words.removesuffix(", ") or "ViT", "metric": value}

    def compare(
        self, says: str, value: str, better: pd.Series, worse: pd.Series, **options: Any
    ) -> Comparison:
        """Two columns as from `sweep.spread`, with what `Comparison` takes besides."""
        options = {"role": self.role_of(value), "unit": UNITS[value]} | options
        options["about"] = self.about(value) | options["about"]
        options["result"] = pd.DataFrame({"better": better, "worse": worse}).reset_index
        says = f"{self.words}{value}{says}"
        return comparison(says, {}, {}, value=("better", "worse"), **options)


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
ENDS: tuple[tuple[Limit, Limit], tuple[Limit, Limit]] = (("", "most"), ("least", "none"))


def _shared(load: Load, net: Network, column: str, value: str) -> tuple[pd.DataFrame, int]:
    """A sweep over a parameter at the most steps that all its values have, and these steps."""
    rows = net.merged(load, **{column: None, "steps": None})
    last = int(rows.groupby(column)["steps"].max().min())
    return sweep.spread(rows[rows["steps"] == last], column, value), last


def _swept(column: str) -> dict[str, Any]:
    """What to leave free to see a parameter; the rate and the batch after `EARLY` steps."""
    return {"steps": None} if column == "steps" else {column: None, "steps": EARLY}


def steps(load: Load) -> Iterator[Comparison | Check]:
    """T1: the best number of steps against both ends."""
    faster = replace(VIT, words=f"rate {LARGE:g}, ", rate=LARGE, role="secondary")
    for net in (VIT, *BY_OTHERS, faster, RESNET, FULL, *LARGER):
        for value in UNITS:
            wide = net.wide(load, value)
            best = sweep.taken(wide, net.best(load, "steps", value, list(wide)[1:-1]))
            for than, end in {"last": wide.columns[-1], "first": wide.columns[0]}.items():
                role = net.role_of(value) if than == "last" else "secondary"
                says = f": the best K between better than K = {end}"
                yield net.compare(says, value, best, wide[end], about={"than": than}, role=role)
    for value in UNITS:  # the last K tried may stand for a later one
        logs, ends = [], []
        for net in (RESNET, VIT):
            table = net.wide(load, value).groupby("seed").mean()
            bests = table.idxmax(axis=1)
            logs.append(bests.astype(float).map(math.log2))
            ends.append(bool((bests == table.columns[-1]).mean() > 0.5))
        what = f"{value}: in most seeds the ResNet's best K is twice the ViT's, or later still"
        later = (logs[0] - logs[1] > 0.5).to_numpy(dtype=float)
        options: dict[str, Any] = {"limit": ENDS[ends[0]][ends[1]], "unit": "of the seeds"}
        options["about"] = {"network": "ResNet and ViT", "metric": value}
        yield Check(what, later, "fraction", "secondary", bound=0.5, **options)


def batch(load: Load) -> Iterator[Comparison]:
    """T2: batches at a small rate and at a large one."""

    def gain(value: str, rate: float) -> pd.Series:
        chosen = {"batch_size": None, "learning_rate": rate, "steps": EARLY}
        wide = VIT.wide(load, value, "batch_size", **chosen)
        return wide[BATCHES[1]] - wide[BATCHES[0]]

    for value in UNITS:
        for net in GRIDS:
            sizes, last = _shared(load, net, "batch_size", value)
            says = f": batches of {BATCHES[1]} better than {BATCHES[0]}, both K = {last}"
            small, large = (sizes[size] for size in BATCHES)
            yield net.compare(says, value, large, small, about={"batch": "large"})
        says = f": that gain is larger than at rate {LARGE:g}, both K = {EARLY}"
        gains = (gain(value, rate) for rate in (VIT.rate, LARGE))
        yield VIT.compare(says, value, *gains, about={"batch": "by rate"})
        for few in (EARLY // 4, EARLY // 2):
            many = few * BATCHES[1] // BATCHES[0]
            large = VIT.line(load, value, batch_size=BATCHES[1], steps=few)
            small = VIT.line(load, value, batch_size=BATCHES[0], steps=many)
            says = f", equal images: {few} batches of {BATCHES[1]} better than {many}"
            about = {"batch": f"equal images, {few}"}
            yield VIT.compare(says, value, large, small, about=about, role="control")


def rate(load: Load) -> Iterator[Comparison]:
    """T3: a large rate against the best other one, and against no training."""
    for net, value in product((*GRIDS, STALE, TWENTY[1]), UNITS):
        wide = net.wide(load, value, "learning_rate")
        largest = wide.columns[-1]
        best = net.best(load, "learning_rate", value, list(wide.columns)[:-1])
        says = f": the best other rate better than {largest:g}, both K = {EARLY}"
        about = {"rate": "best", "than": "largest"}
        yield net.compare(says, value, sweep.taken(wide, best), wide[largest], about=about)
        untouched = sweep.at(load(net.result, "experts"), learning_rate=net.rate, steps=0)
        start = sweep.spread(untouched, "steps", value)[0]
        says = f": the pretrained model better than the merge at rate {largest:g}"
        about = {"rate": "pretrained", "than": "largest"}
        yield net.compare(says, value, start, wide[largest], about=about, role="control")
    usual = VIT.rate
    for rate, count in ((usual / 4, 4 * EARLY), (4 * usual, EARLY // 4)):
        says = f"equal ηK: rate {rate:g} with K = {count} within a point of {usual:g} with {EARLY}"
        other = VIT.line(load, "accuracy", learning_rate=rate, steps=count)
        middle, about = VIT.line(load, "accuracy", steps=EARLY), {"rate": f"equal ηK, {rate:g}"}
        alike = VIT.compare("", "accuracy", other, middle, about=about, role="control")
        yield replace(alike, says=says, tolerance=NEAR)


def data(load: Load) -> Iterator[Comparison]:
    """T4: shares of the data, at equal steps and at equal passes."""
    for net, value in product(GRIDS, UNITS):
        wide, last = _shared(load, net, "share", value)
        for less, more in pairwise(wide.columns):
            words, about = f"{100 * more:g} %", {"share": more, "at": "equal steps"}
            says = f": {words} of the data better than {100 * less:g} %"
            yield net.compare(says, value, wide[more], wide[less], about=about)
            if net in BY_OTHERS:
                continue
            passes = {share: round(float(share) * last) for share in (more, less)}
            sides = (net.line(load, value, share=s, steps=k) for s, k in passes.items())
            says = f", equal passes: {words} better than {100 * less:g} %"
            about |= {"at": "equal passes"}
            yield net.compare(says, value, *sides, about=about, role="control")


def tasks(load: Load) -> Iterator[Comparison]:
    """T5: nested merges, judged on the tasks that all of them hold."""
    for net, value in product((VIT, *BY_OTHERS, LEARNED, *LARGER), UNITS):
        means = sweep.shared_tasks(_counts(load, net), net.method, value)
        least, most = means.columns[0], means.columns[-1]
        for few, many in [(least, most), *(pairwise(means.columns) if net is VIT else ())]:
            role = net.role_of(value) if (few, many) == (least, most) else "secondary"
            says = f" of the first {least}: better with {few} merged than {many}"
            about = {"counts": "all" if (few, many) == (least, most) else f"{few}, {many}"}
            sides = (means[few], means[many])
            yield net.compare(says, value, *sides, about=about, role=role, keys=SEED)
    repeated = load(REPEATED, "test")
    few, many = 2, int(repeated["count"].max())
    same = f", experts of one task: no worse with {many} merged than {few}"
    different = f", the same on different tasks: better with {few} than {many}"
    for value, kind in product(UNITS, ("same", "different")):
        words, sides, bound = different, (few, many), 0.0
        if kind == "same":
            words, sides, bound = same, (many, few), -MARGINS[value]
        options: dict[str, Any] = {"where": {"kind": kind}, "by": "count", "value": value}
        options |= {"falling": value == "loss", "role": "control", "bound": bound}
        options["about"] = {"network": "perceptron", "metric": value, "experts": kind}
        yield comparison(value + words, *sides, result=(REPEATED, "test"), **options)


def _counts(load: Load, net: Network) -> pd.DataFrame:
    return load(net.result, "counts").query("steps == steps.max()")


def explosion(load: Load) -> Iterator[Comparison]:
    """T9: both errors, from the best value to the largest; K and the rate are two halves."""
    columns = {"K": "steps", "rate": "learning_rate"}
    cases = [(net, "", words, _swept(columns[words])) for net, words in product(GRIDS, columns)]
    cases.append((UNVALIDATED, "25 % of the data, ", "K", {"steps": None, "share": 0.25}))
    cases += [(net, "", "K", {"steps": None}) for net in (FULL, *TWENTY)]
    for net, method, words, chosen in cases:
        column = columns[words]
        split = sweep.apart(net.merged(load, **chosen))
        loss = sweep.spread(split, column, "loss")
        among = list(loss.columns)[1 if words == "K" else 0 : -1]
        other = sweep.chosen_elsewhere(loss, among)
        best, end = other if method else net.best(load, column, "loss", among), loss.columns[-1]
        half = "many steps" if words == "K" else "a large rate"
        place = f"{net.words}{method}{half}: from the best {words} to {end:g}"
        for value, what, falls in (
            ("generalisation", "the generalisation error rises", True),
            ("train_loss", "the optimisation error falls", False),
        ):
            wide = sweep.spread(split, column, value)  # with a minus
            sides = (sweep.taken(wide, best), wide[end])
            about = {"data": "25 %" if method else "all", "half": words, "error": value}
            sides = sides if falls else sides[::-1]
            both = net.compare("", "loss", *sides, about=about, role=net.role)
            yield replace(both, says=f"{place}: {what}")


def trends(load: Load) -> Iterator[Comparison]:
    """T11: whether a sparsifying rule follows the average as often as a linear one does."""
    for net, value in product((VIT, FOURTEEN), UNITS):
        table = load(net.result, "merged")
        follow = {name: sweep.agreement(table, name, value) for name in OTHERS}
        for method in ("ties", "dare"):
            what = f"{net.words}{label(method)}, {value}: changes like the average about as often"
            sides = (follow[name].rename_axis("seed") for name in (method, "task_arithmetic"))
            options: dict[str, Any] = {"bound": -SAME_TREND, "keys": SEED, "unit": "% of steps"}
            same = net.compare("", value, *sides, about={"method": method}, **options)
            yield replace(same, says=f"{what} as task arithmetic")


def needed(load: Load) -> Iterator[Comparison]:
    """T13: the lead over the average against the number of tasks."""
    cases = [(VIT, method) for method in ("ties", "ties_printed", "dare")]
    for (net, method), value in product([*cases, *((net, "ties") for net in LARGER)], UNITS):
        grow = sweep.slopes(_counts(load, net), method, value).rename("slope")
        plain, printed, _ = method.partition("_printed")
        name = label(plain) + (", as printed" if printed else "")
        says = f"{net.words}{value}: the lead of {name} over the average grows with log₂ N"
        about = net.about(value) | {"method": method}
        role = net.role_of(value) if method == "ties" else "secondary"
        rows = {"result": grow.reset_index, "value": "slope", "keys": SEED, "unit": UNITS[value]}
        yield comparison(says, about=about, role=role, **rows)


def stopped(load: Load) -> Iterator[Comparison]:
    """T17: experts that stopped at their least validation loss."""
    stopped = sweep.at(load(RESULT, "stopped")).assign(all=0)
    for value in UNITS:
        wide, early = VIT.wide(load, value), sweep.spread(stopped, "all", value)[0]
        last = wide.columns[-1]
        says = f": experts stopped by validation merge better than all after K = {last}"
        yield VIT.compare(says, value, early, wide[last], about={"steps": "stopped"})


def opposite(load: Load) -> Iterator[Comparison]:
    """T18: what experts and their average do after the best number of steps."""
    for value in UNITS:
        wide = VIT.wide(load, value)
        experts = sweep.at(load(RESULT, "experts"), steps=None).query("steps > 0")
        alone = sweep.spread(experts, "steps", value)
        best = VIT.best(load, "steps", value, list(wide)[1:-1])
        last = wide.columns[-1]
        role: Role = "primary" if value == "accuracy" else "secondary"
        for words, who, sides in (
            ("the experts improve", "experts", (alone[last], sweep.taken(alone, best))),
            ("the average declines", "average", (sweep.taken(wide, best), wide[last])),
        ):
            says = f", from the average's best K to {last}: {words}"
            yield VIT.compare(says, value, *sides, about={"of": who}, role=role)
