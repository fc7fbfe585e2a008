"""The claims of the stability framework on measured merges (Li et al., 2026), by their numbers.

They stand in the paper's Section V and Figures 1 to 9; T9 is what its explanation implies and it
did not measure. All are tested on one sweep, a small vision transformer with Adam on eight
tasks, where each parameter is changed while the others are usual. What is best is chosen on the
other seeds, among values that leave one to compare with.
"""

from functools import partial
from itertools import pairwise
from typing import Any

import pandas as pd

from mergelib.ledger.checks import UNITS, Check, Role, above, matrix, pick
from mergelib.ledger.verdicts import Claim, Load
from mergelib.plots import label
from mergelib.studies.analysis.stability import scaling as sweep

RESULT = "vision8-scaling-vit_small"
LATE = 400  # steps that all shares of the data have
MIDDLE = 200  # steps that all batches have
EARLY = 100  # steps that all settings have
BATCHES = (8, 64)
LARGE = 1.6e-3  # a rate at which batches were changed as well
NEAR = 1.0  # points
REPEATED = "glyphs8-repeats-mlp"
MARGINS = {"accuracy": NEAR, "loss": 0.05}  # what counts as no decline
CHANCE = 50.0  # per cent


def _merged(load: Load, **chosen: Any) -> pd.DataFrame:
    return sweep.at(load(RESULT, "merged"), **{"method": "average", **chosen})


def _best(wide: pd.DataFrame, *, last: bool = True) -> pd.Series:
    """What is best in the other seeds, between both ends; or of all but the largest value."""
    among = sweep.inner(wide) if last else list(wide.columns)[:-1]
    return sweep.taken(wide, sweep.chosen_elsewhere(wide, among))


def _name(method: str) -> str:
    return f"{label(method.removesuffix('_printed'))}{', as printed' * method.endswith('_printed')}"


def _steps(load: Load) -> list[Check]:
    checks = []
    cases: list[tuple[str, dict[str, Any], Role]] = [("average", {}, "primary")]
    cases += [(name, {"method": name}, "secondary") for name in ("task_arithmetic", "ties", "dare")]
    cases.append((f"average at rate {LARGE:g}", {"learning_rate": LARGE}, "secondary"))
    for words, chosen, role in cases:
        for value, unit in UNITS.items():
            wide = sweep.spread(_merged(load, steps=None, **chosen), "steps", value)
            first, last, best = wide.columns[0], wide.columns[-1], _best(wide)
            for end in (last, first):
                what = f"{_name(words)}, {value}: the best K between better than K = {end}"
                checks.append(above(what, best, wide[end], role=role, unit=unit))
    return checks


def _batch(load: Load) -> list[Check]:
    checks = []

    def gain(value: str, rate: float, steps: int) -> pd.Series:
        rows = _merged(load, batch_size=None, learning_rate=rate, steps=steps)
        wide = sweep.spread(rows, "batch_size", value)
        return wide[BATCHES[1]] - wide[BATCHES[0]]

    usual = sweep.USUAL["learning_rate"]
    for value, unit in UNITS.items():
        what = f"{value}: batches of {BATCHES[1]} better than {BATCHES[0]}, both K = {MIDDLE}"
        checks.append(Check(what, matrix(gain(value, usual, MIDDLE)), unit=unit))
        what = f"{value}: that gain is larger than at rate {LARGE:g}, both K = {EARLY}"
        more = gain(value, usual, EARLY) - gain(value, LARGE, EARLY)
        checks.append(Check(what, matrix(more), unit=unit))
        for few in (EARLY // 4, EARLY // 2):
            many = few * BATCHES[1] // BATCHES[0]
            sides = [
                sweep.spread(_merged(load, batch_size=size, steps=count), "steps", value)[count]
                for size, count in zip(BATCHES[::-1], (few, many), strict=True)
            ]
            what = f"{value}, equal pictures: {few} batches of {BATCHES[1]} better than {many}"
            checks.append(above(what, *sides, role="control", unit=unit))
    return checks


def _rate(load: Load) -> list[Check]:
    checks = []
    start = sweep.at(load(RESULT, "experts"), steps=0)
    for value, unit in UNITS.items():
        rows = _merged(load, learning_rate=None, steps=EARLY)
        wide = sweep.spread(rows, "learning_rate", value)
        largest = wide.columns[-1]
        what = f"{value}: the best other rate better than {largest:g}, both K = {EARLY}"
        checks.append(above(what, _best(wide, last=False), wide[largest], unit=unit))
        what = f"{value}: the pretrained model better than the average at rate {largest:g}"
        untouched = sweep.spread(start, "steps", value)[0]
        checks.append(above(what, untouched, wide[largest], unit=unit))
    usual = sweep.USUAL["learning_rate"]
    middle = _line(load, "accuracy", usual, EARLY)
    for rate, count in ((usual / 4, 4 * EARLY), (4 * usual, EARLY // 4)):
        what = f"equal ηK: rate {rate:g} with K = {count} within a point of {usual:g} with {EARLY}"
        other = matrix(_line(load, "accuracy", rate, count) - middle)
        checks.append(Check(what, other, role="control", tolerance=NEAR))
    return checks


def _line(load: Load, value: str, rate: float, steps: int) -> pd.Series:
    return sweep.spread(_merged(load, learning_rate=rate, steps=steps), "steps", value)[steps]


def _data(load: Load) -> list[Check]:
    checks = []
    for value, unit in UNITS.items():
        wide = sweep.spread(_merged(load, share=None, steps=LATE), "share", value)
        for less, more in pairwise(wide.columns):
            what = f"{value}: {100 * more:g} % of the data better than {100 * less:g} %"
            checks.append(above(what, wide[more], wide[less], unit=unit))
            sides = []
            for share in (more, less):
                count = round(float(share) * LATE)
                rows = _merged(load, share=share, steps=count)
                sides.append(sweep.spread(rows, "steps", value)[count])
            what = f"{value}, equal passes: {100 * more:g} % better than {100 * less:g} %"
            checks.append(above(what, *sides, role="control", unit=unit))
    return checks


def _tasks(load: Load) -> list[Check]:
    checks = []
    table = load(RESULT, "counts")
    for value, unit in UNITS.items():
        means = sweep.shared_tasks(table, "average", value)
        least, most = means.columns[0], means.columns[-1]
        for few, many in ((least, most), *pairwise(means.columns)):
            role: Role = "primary" if (few, many) == (least, most) else "secondary"
            what = f"{value} of the first {least} tasks: better with {few} merged than {many}"
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


def _explosion(load: Load) -> list[Check]:
    checks = []
    cases: list[tuple[str, str, dict[str, Any], Role]] = [
        ("", "K", {"steps": None}, "primary"),
        ("", "rate", {"learning_rate": None, "steps": EARLY}, "primary"),
    ]
    for name in ("task_arithmetic", "ties", "dare"):
        cases.append((f"{_name(name)}, ", "K", {"steps": None, "method": name}, "secondary"))
    cases.append(("25 % of the data, ", "K", {"steps": None, "share": 0.25}, "secondary"))
    for method, words, chosen, role in cases:
        column = next(name for name, value in chosen.items() if value is None)
        split = sweep.apart(_merged(load, **chosen))
        loss = sweep.spread(split, column, "loss")
        among = list(loss.columns)[1 if words == "K" else 0 : -1]
        best, end = sweep.chosen_elsewhere(loss, among), loss.columns[-1]
        place = f"{method}from the best {words} to {end:g}"
        for value, what, sign in (
            ("generalisation", "the generalisation error rises", -1),
            ("train_loss", "the optimisation error falls", 1),
        ):
            wide = sweep.spread(split, column, value)  # with a minus
            change = sign * (wide[end] - sweep.taken(wide, best))
            checks.append(Check(f"{place}: {what}", matrix(change), role=role, unit="nats"))
    return checks


def _trends(load: Load) -> list[Check]:
    table = load(RESULT, "merged")
    return [
        Check(
            f"{label(method)}, {value}: changes like the average more often than by chance",
            matrix(sweep.agreement(table, method, value)),
            role="secondary" if method == "task_arithmetic" else "primary",
            bound=CHANCE,
            unit="% of steps",
        )
        for method in ("ties", "dare", "task_arithmetic")
        for value in UNITS
    ]


def _needed(load: Load) -> list[Check]:
    table = load(RESULT, "counts")
    return [
        Check(
            f"{value}: the lead of {_name(method)} over the average grows with log₂ N",
            matrix(sweep.slopes(table, method, value)),
            role="primary" if method == "ties" else "secondary",
            unit=unit,
        )
        for method in ("ties", "ties_printed", "dare")
        for value, unit in UNITS.items()
    ]


def _stopped(load: Load) -> list[Check]:
    checks = []
    stopped = sweep.at(load(RESULT, "stopped"))
    for value, unit in UNITS.items():
        wide = sweep.spread(_merged(load, steps=None), "steps", value)
        own = sweep.spread(stopped.assign(all=0), "all", value)[0]
        last = wide.columns[-1]
        what = f"{value}: experts stopped by validation merge better than all after K = {last}"
        checks.append(above(what, own, wide[last], unit=unit))
    return checks


def _opposite(load: Load) -> list[Check]:
    checks = []
    for value, unit in UNITS.items():
        wide = sweep.spread(_merged(load, steps=None), "steps", value)
        experts = sweep.at(load(RESULT, "experts"), steps=None)
        alone = sweep.spread(experts[experts["steps"] > 0], "steps", value)
        best = sweep.chosen_elsewhere(wide, sweep.inner(wide))
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


_claim = partial(
    Claim,
    paper="li2026unified",
    page="notebooks/42-scaling-laws",
    data="settings of the merging methods are fixed beforehand; experts see labelled training "
    "examples, all settings of a seed the same test examples",
)

CLAIMS = (
    _claim(
        key="T1",
        place="Section V-B1; Figures 1, 2, 3 and 5",
        statement="merges improve with their experts' steps K up to a point and then decline",
        reported="K of 1,000 to 4,000; an inverted U for ResNet-18 and -50 in Figure 5, monotone "
        "either way in the text",
        method="the average at the usual rate against both ends of the steps measured, the best K "
        "between them being chosen on the other seeds. Secondary: other methods, and four times "
        "the rate. That the best K differs between architectures was not tested",
        test=_steps,
    ),
    _claim(
        key="T2",
        place="Section V-B2; Figures 2, 3 and 6",
        statement="larger batches help at small learning rates, and less or not at large ones",
        reported="b of 64, 128 and 256 at a small rate: better with larger batches; no large rate",
        method="equal K, as in the paper, so that larger batches see more pictures; control: equal "
        "pictures",
        test=_batch,
    ),
    _claim(
        key="T3",
        place="Section V-B3; Figures 2, 3 and 8",
        statement="large learning rates hurt sharply",
        reported="a collapse of all merges of ResNet-18 at ten times the usual rate",
        method="eight times the usual rate against the best other one, chosen on the other seeds, "
        "and against the pretrained model. Control: whether rates with equal ηK merge alike, which "
        "the paper does not say",
        test=_rate,
    ),
    _claim(
        key="T4",
        place="Section V-B4; Figures 2, 3 and 9",
        statement="more training data make merges better, strictly",
        reported="α of 0.5, 0.8 and 1: monotone",
        method="prefixes of every task's training rows at equal K; control: at equal passes over "
        "them",
        test=_data,
    ),
    _claim(
        key="T5",
        place="Section V-B5; Figures 2, 3 and 7",
        statement="merges get worse with the number of tasks",
        reported="N of 6 to 12: a consistent decline",
        method="nested sets of tasks; accuracy and loss of the two that all merges hold, so that "
        "the tasks judged stay the same. Secondary: every step; controls: perceptrons of one task, "
        f"trained on halves of its rows, of which many may be {MARGINS['accuracy']:g} point or "
        f"{MARGINS['loss']} nats below two, and of different tasks, on rendered scripts",
        test=_tasks,
    ),
    _claim(
        key="T9",
        place="Figure 1; Sections V-B1 and V-B3",
        statement="where too many steps or too large a rate hurt, the generalisation error "
        "explodes while the optimisation error falls",
        reported="not measured: test losses only",
        method="of the average: test minus training loss, and training loss, from the best value "
        "(by test loss on the other seeds) to the largest. Secondary: K, by other methods and "
        "with a quarter of the data",
        test=_explosion,
    ),
    _claim(
        key="T11",
        place="Figure 2; Section V-B",
        statement="sparsifying methods follow the same trends as linear ones",
        reported="shown as curves that closely follow the prediction",
        method="every step of every sweep, on the same groups of tasks: how often a method changes "
        "in the same direction as the average; chance is our bound",
        test=_trends,
    ),
    _claim(
        key="T13",
        place="Section V-B5",
        statement="sparsified merges are needed the more, the more tasks there are",
        reported="said to be justified by the decline of the average",
        method="slope of the lead over the average against log₂ N, on the merged tasks. Secondary: "
        "as printed, and DARE at λ = 2/N",
        test=_needed,
    ),
    _claim(
        key="T17",
        place="Remark 5; Appendix A-A1",
        statement="experts should be stopped when they have converged",
        reported="a recommendation",
        method="average of experts that each stopped at the least validation loss, against all "
        "experts after the most steps measured",
        test=_stopped,
    ),
    _claim(
        key="T18",
        place="Figures 4 and 5; Table II",
        statement="experts still improve where their merge declines",
        reported="shown as curves of single models beside those of merges",
        method="accuracy at the most steps against the K that is best for the average, on the "
        "other seeds. Secondary: loss",
        test=_opposite,
    ),
)
