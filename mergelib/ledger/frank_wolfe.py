"""The claims of FW-Merging (Chen et al., 2025), F1–F8, each tested on the files in ``results/``."""

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np
import pandas as pd
import torch

from mergelib.ledger.checks import Check, Role, above, matrix, pick
from mergelib.ledger.verdicts import Claim, Load
from mergelib.theory.frank_wolfe import printed_gaps

SOFT, HARD = "frank_wolfe soft, by task", "frank_wolfe hard, by layer"
FREE = "frank_wolfe soft, by task, unconstrained"
OTHERS = ("average", "task_arithmetic", "ties", "adamerging")
# Where the study `procedures` ran. With a quarter of the examples and less, fewer steps and three
# seeds, no check on a real pretrained network is primary.
NETWORKS = {"vision8": "", "imagenet8": "ImageNet network: ", "sentences8": "sentences: "}
SUITES: tuple[tuple[str, Role], ...] = (("vision20", "primary"), ("glyphs20", "secondary"))
ROUNDING = 1e-5  # of an iterate that its coefficients give back
STEADY = 1.0  # points: our reading of "stable"
CONSTANT = 30.0  # per cent: our reading of "constant"
STILL = 0.01  # nats: gaps below that count as this
VANILLA = 0.5  # the exponent of the ordinary rate, which the paper says soft Frank-Wolfe beats


def _name(method: str) -> str:
    short = method.replace("frank_wolfe", "FW").replace("task_arithmetic", "task arithmetic")
    short = short.replace("fisher", "Fisher").replace("regmean", "RegMean")
    return short.replace("ties", "TIES").replace("adamerging", "AdaMerging").replace("cart", "CART")


def _everywhere(checks_on: Callable[[str], list[Check]]) -> list[Check]:
    """Checks of every network in `NETWORKS`, from its suite."""
    found = []
    for suite, words in NETWORKS.items():
        for check in checks_on(suite):
            role: Role = "secondary" if words and check.role == "primary" else check.role
            found.append(replace(check, what=words + check.what, role=role))
    return found


def _order(load: Load) -> list[Check]:
    return _everywhere(lambda suite: _order_in(load(f"{suite}-procedures")))


def _order_in(table: pd.DataFrame) -> list[Check]:
    merged = f"{HARD}, from adamerging"
    pairs: list[tuple[str, str, Role]] = [
        (SOFT, merged, "primary"),
        (merged, "adamerging", "primary"),
        (SOFT, "frank_wolfe hard, by task", "secondary"),
        ("frank_wolfe soft, by layer", HARD, "secondary"),
        ("frank_wolfe hard, by task", "pretrained", "secondary"),
        (HARD, "pretrained", "secondary"),
        (f"{HARD}, from cart", "cart", "control"),
    ]
    for start in ("cart", "adamerging"):
        soft, hard = (f"frank_wolfe {kind}, by layer, from {start}" for kind in ("soft", "hard"))
        pairs.append((soft, hard, "control"))
    return [
        above(f"{_name(better)} above {_name(worse)}", *_both(table, better, worse), role=role)
        for better, worse, role in pairs
    ]


def _both(table: pd.DataFrame, first: str, second: str) -> tuple[pd.Series, pd.Series]:
    return pick(table, method=first), pick(table, method=second)


def _irrelevant(load: Load) -> list[Check]:
    checks = []
    for suite, own in SUITES:
        table = load(f"{suite}-irrelevant")
        most = int(table["count"].max())
        few, many = (
            {name: pick(table, method=name, count=count) for name in table["method"].unique()}
            for count in (0, most)
        )
        what = f"{suite}: FW changes by less than a point with {most} irrelevant experts"
        change = matrix(many["frank_wolfe"] - few["frank_wolfe"])
        checks.append(Check(what, change, role=own, tolerance=STEADY))
        for other in OTHERS:
            what = f"{suite}: {_name(other)} loses by them"
            checks.append(above(what, few[other], many[other], role=own))
        what = f"{suite}: FW above AdaMerging with {most} of them"
        checks.append(above(what, many["frank_wolfe"], many["adamerging"], role=own))
        for walk, other in (("frank_wolfe", "cart"), ("frank_wolfe, labels", "cart")):
            what = f"{suite}: {_name(walk)} above {_name(other)} with {most} of them"
            checks.append(above(what, many[walk], many[other], role="control"))
        what = f"{suite}: with labels, FW changes by less than a point"
        change = matrix(many["frank_wolfe, labels"] - few["frank_wolfe, labels"])
        checks.append(Check(what, change, role="secondary", tolerance=STEADY))
    return checks


def _relevant(load: Load) -> list[Check]:
    checks = []
    for suite, own in SUITES:
        table = load(f"{suite}-relevant")
        counts = sorted(table["count"].unique())
        middle, most = counts[len(counts) // 2], counts[-1]
        walked = {count: pick(table, method="frank_wolfe", count=count) for count in counts}
        for fewer, more, kind in ((counts[0], most, own), (middle, most, "secondary")):
            what = f"{suite}: FW with {more} experts above {fewer}"
            checks.append(above(what, walked[more], walked[fewer], role=kind))
        for other in (*OTHERS, "cart"):
            kind = own if other == "adamerging" else "secondary"
            what = f"{suite}: FW above {_name(other)} with {most} experts"
            rival = pick(table, method=other, count=most)
            checks.append(above(what, walked[most], rival, role=kind))
    return checks


def _hull(load: Load) -> list[Check]:
    return _everywhere(
        lambda suite: _hull_in(
            load(f"{suite}-procedures", "history"), load(f"{suite}-procedures", "hull")
        )
    )


def _hull_in(history: pd.DataFrame, table: pd.DataFrame) -> list[Check]:
    """The start's share, from how far each step moves; by layer, this bounds it from below."""
    moved = pick(history, "moved", keys=("method", "seed", "step"))
    by_task = 1 - (1 - moved).groupby(["method", "seed"]).prod()
    at_most = moved.groupby(["method", "seed"]).sum().clip(upper=1)
    cases: tuple[tuple[str, pd.Series, Role], ...] = (
        (SOFT, by_task, "primary"),
        (f"{HARD}, from adamerging", at_most, "primary"),
        ("frank_wolfe hard, by task", by_task, "secondary"),
        ("frank_wolfe soft, by layer", at_most, "secondary"),
        (f"{HARD}, from cart", at_most, "control"),
    )
    checks = []
    for method, share, role in cases:
        what = f"{_name(method)}: over 99 % of the result are experts"
        values = matrix(100 * share[method])
        checks.append(Check(what, values, role=role, bound=99.0, paper=100.0, unit="%"))
    bound = table[table["method"] != FREE].groupby("seed")
    smallest, error = bound["smallest"].min(), bound["error"].max()
    what = "experts and start: no coefficient is negative, in eight kinds of walk"
    sides: Role = "secondary"
    checks.append(Check(what, matrix(smallest), role=sides, bound=-ROUNDING, unit="of 1"))
    what = "these coefficients give the iterate back"
    return [*checks, Check(what, matrix(-error), role=sides, bound=-ROUNDING, unit="of ‖θ‖")]


def printed_walks(starts: int = 10, steps: int = 60) -> pd.DataFrame:
    """Soft Frank-Wolfe as the theorem prints it, on ½‖θ‖² over a regular triangle around 0.

    The two best corners are mixed and the current point is dropped, since the weights sum to one.

    Returns:
        Rows of ``seed`` (of a random start), ``step`` from 1 and ``gap``, the smallest so far.
    """
    angles = 2 * np.pi * np.arange(3) / 3
    corners = np.stack([np.cos(angles), np.sin(angles)], 1)
    rows = []
    for seed in range(starts):
        point = np.random.default_rng(seed).dirichlet(np.ones(3)) @ corners
        gaps = printed_gaps(torch.from_numpy(corners), torch.from_numpy(point), 2, steps)
        for step, least in enumerate(np.minimum.accumulate(gaps), 1):
            rows.append({"seed": seed, "step": step, "gap": least})
    return pd.DataFrame(rows)


def _rate(load: Load) -> list[Check]:
    """Exponents p of gap ~ 1/Tᵖ: as printed, of steps 30 to 60; else from the first to the last."""
    least = pick(load(printed_walks), "gap", keys=("seed", "step")).unstack("step")
    late = (least[30] / least[60]).map(math.log2)
    what = "as printed, on a triangle: the gap falls faster than 1/√T"
    checks = [Check(what, matrix(late), bound=VANILLA, paper=1.0, unit="exponent")]
    return checks + _everywhere(lambda suite: _fall_in(load(f"{suite}-procedures", "history")))


def _fall_in(history: pd.DataFrame) -> list[Check]:
    """How fast the gaps of the repaired steps fall."""
    checks = []
    kinds: tuple[tuple[str, Role], ...] = (
        (SOFT, "primary"),
        ("frank_wolfe soft, by layer", "secondary"),
        ("frank_wolfe hard, by task", "secondary"),
        (HARD, "secondary"),
    )
    for method, role in kinds:
        gaps = pick(history, "gap", keys=("seed", "step"), method=method).unstack("step")
        last = gaps.ffill(axis=1).iloc[:, -1].clip(lower=STILL)
        steps = gaps.notna().sum(axis=1)
        fallen = (gaps[0] / last).map(math.log) / steps.map(math.log)
        what = f"repaired, {_name(method)}: the gap falls faster than 1/√T"
        paper = 1.0 if method == SOFT else None
        checks.append(
            Check(what, matrix(fallen), role=role, bound=VANILLA, paper=paper, unit="exponent")
        )
    return checks


def _samples(load: Load) -> list[Check]:
    texts = pick(load("text4-language"), "loss", keys=("method", "seed", "task")) / math.log(2)
    checks = []
    rivals: tuple[tuple[str, str, Role], ...] = (
        *(
            (name, _name(name), "primary")
            for name in ("average", "task_arithmetic", "fisher", "regmean")
        ),
        ("multitask", "multi-task training on the same examples", "secondary"),
        ("cart", "CART", "control"),
    )
    for other, words, role in rivals:
        what = f"texts: FW soft needs fewer bits per character than {words}"
        checks.append(above(what, texts[other], texts[SOFT], role=role, unit="bits"))
    table = load("vision8-calibration")
    sizes = sorted(size for size in table["examples"].unique() if size)
    everything = pick(table, method="multitask", examples=0)
    walks: tuple[tuple[str, Role, Role], ...] = (
        ("frank_wolfe soft", "primary", "secondary"),
        ("frank_wolfe hard, from cart", "control", "control"),
    )
    for walk, role, own in walks:
        for size in sizes:
            walked = pick(table, method=walk, examples=size)
            what = f"pictures: {_name(walk)} above multi-task training on the same {size} examples"
            same = pick(table, method="multitask", examples=size)
            checks.append(above(what, walked, same, role=own))
        what = f"pictures: {_name(walk)} with {sizes[-1]} examples above multi-task training on all"
        checks.append(above(what, walked, everything, role=role))
    return checks


def _memory(load: Load) -> list[Check]:
    table = load("frank_wolfe-memory", "peaks")
    checks = []
    for variant in ("hard", "soft"):
        rows = table[table["variant"] == variant]
        peaks = rows.pivot(index="repeat", columns="experts", values="peak_bytes")
        few, many = int(peaks.columns.min()), int(peaks.columns.max())
        saved = 100 * (1 - peaks[many] / peaks[few])  # separate processes, paired as they came
        what = f"{variant}: the peak with {many} files at most 30 % above that with {few}"
        checks.append(Check(what, matrix(saved), bound=-CONSTANT, paper=0.0, unit="% less"))
    return checks


def _pairing(load: Load) -> list[Check]:
    texts = _pairing_in(load("text4-language"), "loss", "bits")
    return [
        *_everywhere(lambda suite: _pairing_in(load(f"{suite}-procedures"), "accuracy", "points")),
        *(replace(check, what=f"texts: {check.what}", role="secondary") for check in texts),
    ]


def _pairing_in(table: pd.DataFrame, column: str, unit: str) -> list[Check]:
    checks = []
    for variant, better, worse in (("hard", "layer", "task"), ("soft", "task", "layer")):
        one, other = (
            pick(table, column, method=f"frank_wolfe {variant}, by {by}") for by in (better, worse)
        )
        found = (other - one) / math.log(2) if unit == "bits" else one - other
        what = f"{variant}: by {better} better than by {worse}"
        checks.append(Check(what, matrix(found), unit=unit))
    return checks


_claim = partial(
    Claim, paper="chen2025fwmerging", page="notebooks/22-frank-wolfe-experiments", unit="tasks"
)
_LABELS = (
    "100 labelled training examples of each task for Frank-Wolfe; AdaMerging sees their inputs"
)

CLAIMS = (
    _claim(
        key="F1",
        place="experiments; appendix C.3",
        statement="soft Frank-Wolfe is above hard, and hard above where it starts",
        reported="soft from the pretrained model, hard from AdaMerging, 100 labelled samples",
        method="the paper's pairing: soft with an oracle by task from the pretrained model, hard "
        "by layer from AdaMerging. Secondary: both from the pretrained model; controls: from CART. "
        "Secondary too: an ImageNet network, with 25 examples and fewer steps. AdaMerging takes "
        "200 steps here, 500 in the paper",
        data=_LABELS + ". CART's scale is chosen on 500 labelled validation pictures of each task",
        test=_order,
    ),
    _claim(
        key="F2",
        place="abstract; appendix C.4",
        statement="irrelevant experts in the pool leave Frank-Wolfe as it is and hurt other "
        "methods",
        reported="stable with 16 irrelevant experts beside the four of SUN397, Cars, GTSRB and DTD",
        method="four of twenty tasks; soft, by whole models, on entropy, as there. A point is our "
        "reading of stable. The oracle is the book's own, not the released code's. Secondary: "
        "rendered glyphs, and labels; CART is a control. The pool has four tasks, which makes the "
        "second interval wide",
        data="100 unlabelled test inputs of each target for AdaMerging and Frank-Wolfe; settings "
        "of the rules are chosen on 500 labelled validation pictures of each target",
        test=_irrelevant,
    ),
    _claim(
        key="F3",
        place="abstract; appendix C.4",
        statement="experts of tasks that are judged help Frank-Wolfe, up to 20, and take it above "
        "AdaMerging",
        reported="15.3 % gained by 16 relevant experts; 8.39 % above AdaMerging with 20",
        method="all 20 tasks judged, pools of 2 to 20 experts in random order; soft, by whole "
        "models, on entropy. The oracle is the book's own. Secondary: glyphs, other rivals",
        data="25 unlabelled test inputs of each task for AdaMerging and Frank-Wolfe; settings of "
        "the rules are chosen on 250 labelled validation pictures of each task",
        test=_relevant,
    ),
    _claim(
        key="F4",
        place="Proposition 1",
        statement="the merged model lies in the convex hull of the experts",
        reported="proved, for a start in the hull and weights that sum to one",
        method="coefficients of our repaired step, whose weights sum to at most one: the start, "
        "which is no expert, keeps the rest. As printed, the step drops the current point "
        "altogether. Secondary: other walks, and the hull of experts and start",
        data=_LABELS,
        test=_hull,
    ),
    _claim(
        key="F5",
        place="Theorem 1",
        statement="the gap of soft Frank-Wolfe falls like 1/T, faster than the ordinary 1/√T",
        reported="a bound on the smallest gap after T steps: 1/T and a constant",
        method="the exponent of the fall: of the step as printed, on a convex function where the "
        "minimum is known, from ten starts; and of the repaired step on eight tasks, at most six "
        "steps. Secondary: other oracles. That the constant never falls is shown in the chapter",
        data=_LABELS,
        page="notebooks/21-frank-wolfe",
        test=_rate,
    ),
    _claim(
        key="F6",
        place="Figure 1 of the supplement",
        statement="with few samples Frank-Wolfe is above all other merging methods, and above "
        "multi-task training that has more data",
        reported="above all of them on the language benchmark, as a figure",
        method="four texts against four merging methods; multi-task training with more data was "
        "measured on pictures only. Multi-task training is untuned. CART on texts is kept at rank "
        "16 % and a scale of at least 1, so it is a control",
        data="20 labelled windows of each text, 100 labelled pictures of each task, against the "
        "whole training split; scales of the rules are chosen on labelled validation data",
        test=_samples,
    ),
    _claim(
        key="F7",
        place="abstract; method",
        statement="memory does not grow with the number of experts",
        reported="constant",
        method="peak of a walk over 4 and over 20 files, in fresh processes, five times each; "
        "holding all experts would need five times as much. 30 % is our reading of constant",
        data="the same for both",
        test=_memory,
    ),
    _claim(
        key="F8",
        place="experiments",
        statement="hard goes best with a layer-wise oracle, soft with a task-wise one",
        reported="chosen so",
        method="the four combinations from the pretrained model; secondary: on texts",
        data=_LABELS,
        test=_pairing,
    ),
)
