"""The checks of FW-Merging's claims (Chen et al., 2025), on the files in ``results/``.

The book's walk is the theorem's method, repaired: an oracle of inner products, coefficients in the
simplex, and the current point kept. The released code differs, above all in coefficients that are
free. Where free coefficients were measured (F1, F4), a claim about accuracies is tested with them,
and the walk inside the hull is a control. Where only the book's walk was measured (F2, F3, F6, F8),
it decides, and the entry says whose it is. Repaired steps never decide about a theorem (F5).
"""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import torch

from mergebook.frank_wolfe.theory import SquaredDistance, printed_gaps, soft_bound
from mergebook.ledger.checks import Check, Role, above, matrix, pick
from mergebook.ledger.verdicts import Load
from mergelib.procedures.walk import START, Walk, minimise

SOFT, HARD = "frank_wolfe soft, by task", "frank_wolfe hard, by layer"
FREE = "frank_wolfe soft, by task, unconstrained"
MERGED = f"{HARD}, from adamerging"
OTHERS = ("average", "task_arithmetic", "ties", "adamerging")
MERGES = ("average", "task_arithmetic", "fisher", "regmean", "adamerging", "concrete")
# Where the study `procedures` ran: words for the network and its name, of three that are primary.
NETWORKS = {
    "vision8": ("", "our ViT"),
    "imagenet8": ("ImageNet network: ", "EfficientNet-Lite0"),
    "sentences8": ("sentences: ", "MiniLM"),
}
SUITES: tuple[tuple[str, Role], ...] = (("vision20", "primary"), ("glyphs20", "secondary"))
ROUNDING = 1e-5  # of an iterate that its coefficients give back
STEADY = 1.0  # points: our reading of "stable"
CONSTANT = 30.0  # per cent: our reading of "constant"
STILL = 0.01  # nats: gaps below that count as this
VANILLA = 0.5  # the exponent of the ordinary rate, which the paper says soft Frank-Wolfe beats


def _name(method: str) -> str:
    short = method.replace("frank_wolfe", "FW").replace("task_arithmetic", "task arithmetic")
    short = short.replace("fisher", "Fisher").replace("regmean", "RegMean")
    short = short.replace("concrete", "Concrete")
    return short.replace("ties", "TIES").replace("adamerging", "AdaMerging").replace("cart", "CART")


def _everywhere(checks_on: Callable[[str], list[Check]], pooled: str = "-") -> list[Check]:
    """Checks of every network in `NETWORKS`, from its suite; the effect of one is pooled."""
    found = []
    for suite, (words, network) in NETWORKS.items():
        for check in checks_on(suite):
            name = network if check.what == pooled else ""
            found.append(replace(check, what=words + check.what, network=name))
    return found


def _sample(what: str, values: np.ndarray, **options: Any) -> Check:
    """A check of a mean, or of a fact where every seed gives the same value."""
    same = np.ptp(values) < 1e-12 * max(1.0, float(np.abs(values).max()))
    return Check(what, values, "fact" if same else "mean", **options)


def order(load: Load) -> list[Check]:
    """F1: soft over hard, and hard over its start."""
    first, second = _name(FREE), _name(MERGED)
    return _everywhere(
        lambda suite: _order_in(load(f"{suite}-procedures")), f"{first} above {second}"
    )


def _order_in(table: pd.DataFrame) -> list[Check]:
    pairs: list[tuple[str, str, Role]] = [
        (FREE, MERGED, "primary"),
        (MERGED, "adamerging", "primary"),
        (FREE, HARD, "secondary"),
        ("frank_wolfe hard, by task", "pretrained", "secondary"),
        (HARD, "pretrained", "secondary"),
        (SOFT, MERGED, "control"),
        (SOFT, "frank_wolfe hard, by task", "control"),
        ("frank_wolfe soft, by layer", HARD, "control"),
        (f"{HARD}, from cart", "cart", "control"),
    ]
    for start in ("cart", "adamerging"):
        soft, hard = (f"frank_wolfe {kind}, by layer, from {start}" for kind in ("soft", "hard"))
        pairs.append((soft, hard, "control"))
    checks = []
    for better, worse, role in pairs:
        difference = matrix(pick(table, method=better) - pick(table, method=worse))
        what = f"{_name(better)} above {_name(worse)}"
        checks.append(_sample(what, difference, role=role))
    return checks


def irrelevant(load: Load) -> list[Check]:
    """F2: what irrelevant experts in the pool change."""
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
        checks.append(_sample(what, change, role="secondary", tolerance=STEADY))
    return checks


def relevant(load: Load) -> list[Check]:
    """F3: what relevant experts in the pool bring."""
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


def printed_mixtures(starts: int = 10, steps: int = 3) -> pd.DataFrame:
    """What the soft step as printed, which drops the current point, makes of twenty random corners.

    The loss is ½‖θ − goal‖² in ten dimensions. Half of the starts are weighted means of the
    corners, the others lie far outside their hull.

    Returns:
        Rows of ``seed`` (of a start), ``quantity`` and ``value``: the ``smallest`` coefficient of a
        corner, and the share that all ``experts``, which are the corners, have.
    """
    cloud = torch.from_numpy(np.random.default_rng(0).standard_normal((20, 10)))
    corners = {f"expert {i}": {"w": point} for i, point in enumerate(cloud)}
    goal = SquaredDistance({"w": 1.5 * cloud[:5].mean(0)})
    rows = []
    for seed in range(starts):
        inside = torch.from_numpy(np.random.default_rng(seed).dirichlet(np.ones(20))) @ cloud
        point = {"w": inside + 3.0 * (seed % 2)}
        walk = Walk(variant="soft", steps=steps, top_k=3, keep_current=False)
        _, table, _ = minimise(goal, point, corners, walk)
        smallest, left = float(table["w"].min()), float(table["w"][START])
        rows += [{"seed": seed, "quantity": "smallest", "value": smallest}]
        rows += [{"seed": seed, "quantity": "experts", "value": 1 - left}]
    return pd.DataFrame(rows)


def hull(load: Load) -> list[Check]:
    """F4: where the step as printed, and the book's walks, end."""
    mixed = load(printed_mixtures)
    smallest, share = (
        matrix(pick(mixed, "value", keys=("seed",), quantity=name))
        for name in ("smallest", "experts")
    )
    what = "as printed, ten starts: no expert's coefficient is negative"
    checks = [Check(what, smallest, "fact", bound=-ROUNDING, unit="of 1")]
    what = "as printed, ten starts, five outside: over 99 % of the result are experts"
    checks.append(Check(what, 100 * share, "fact", bound=99.0, paper=100.0, unit="%"))
    return checks + _everywhere(
        lambda suite: _hull_in(
            load(f"{suite}-procedures", "history"), load(f"{suite}-procedures", "hull")
        )
    )


def _hull_in(history: pd.DataFrame, table: pd.DataFrame) -> list[Check]:
    """The start's share, from how far each step moves; by layer, this bounds it from below."""
    moved = pick(history, "moved", keys=("method", "seed", "step"))
    by_task = 1 - (1 - moved).groupby(["method", "seed"]).prod()
    at_most = moved.groupby(["method", "seed"]).sum().clip(upper=1)
    cases: tuple[tuple[str, pd.Series], ...] = (
        (SOFT, by_task),
        (MERGED, at_most),
        ("frank_wolfe hard, by task", by_task),
        ("frank_wolfe soft, by layer", at_most),
        (f"{HARD}, from cart", at_most),
    )
    checks = []
    for method, share in cases:
        what = f"repaired, {_name(method)}: over 99 % of the result are experts"
        values = matrix(100 * share[method])
        checks.append(_sample(what, values, role="control", bound=99.0, unit="%"))
    free = matrix(pick(table, "smallest", keys=("seed",), method=FREE))
    what = f"{_name(FREE)}: no coefficient is negative"
    checks.append(Check(what, free, "fact", "control", bound=-ROUNDING, unit="of 1"))
    bound = table[table["method"] != FREE].groupby("seed")
    smallest, error = bound["smallest"].min(), bound["error"].max()
    what = "repaired, experts and start: no coefficient is negative, in eight kinds of walk"
    checks.append(Check(what, matrix(smallest), "fact", "control", bound=-ROUNDING, unit="of 1"))
    what = "these coefficients give the iterate back"
    back = Check(what, matrix(-error), "fact", "control", bound=-ROUNDING, unit="of ‖θ‖")
    return [*checks, back]


def printed_walks(starts: int = 10, steps: int = 60) -> pd.DataFrame:
    """Soft Frank-Wolfe as the theorem prints it, on ½‖θ‖² over a regular triangle around 0.

    The two best corners are mixed and the current point is dropped, since the weights sum to one.

    Returns:
        Rows of ``seed`` (of a random start), ``step`` from 1, ``gap``, the smallest so far, and
        ``allowed``, what the theorem's bound allows then.
    """
    angles = 2 * np.pi * np.arange(3) / 3
    corners = np.stack([np.cos(angles), np.sin(angles)], 1)
    rows = []
    for seed in range(starts):
        point = np.random.default_rng(seed).dirichlet(np.ones(3)) @ corners
        gaps = printed_gaps(torch.from_numpy(corners), torch.from_numpy(point), 2, steps)
        excess = float(point @ point) / 2
        for step, least in enumerate(np.minimum.accumulate(gaps), 1):
            allowed = soft_bound(excess, 1.0, math.sqrt(3), step)
            rows.append({"seed": seed, "step": step, "gap": least, "allowed": allowed})
    return pd.DataFrame(rows)


def rate(load: Load) -> list[Check]:
    """Exponents p of gap ~ 1/Tᵖ: as printed, of steps 30 to 60; else from the first to the last."""
    table = load(printed_walks)
    least, allowed = (pick(table, name, keys=("seed", "step")) for name in ("gap", "allowed"))
    spare = matrix((allowed - least).unstack("step").min(axis=1))
    smallest = least.unstack("step")
    late = (smallest[30] / smallest[60]).map(math.log2)
    what = "as printed, on a triangle: the gap falls faster than 1/√T"
    checks = [Check(what, matrix(late), "fact", bound=VANILLA, paper=1.0, unit="exponent")]
    what = "as printed, on a triangle: the gap stays below the theorem's bound"
    checks.append(Check(what, spare, "fact", "secondary", unit="of the loss"))
    return checks + _everywhere(lambda suite: _fall_in(load(f"{suite}-procedures", "history")))


def _fall_in(history: pd.DataFrame) -> list[Check]:
    """How fast the gaps of the repaired steps fall."""
    checks = []
    for method in (SOFT, "frank_wolfe soft, by layer", "frank_wolfe hard, by task", HARD):
        gaps = pick(history, "gap", keys=("seed", "step"), method=method).unstack("step")
        last = gaps.ffill(axis=1).iloc[:, -1].clip(lower=STILL)
        steps = gaps.notna().sum(axis=1)
        fallen = (gaps[0] / last).map(math.log) / steps.map(math.log)
        what = f"repaired, {_name(method)}: the gap falls faster than 1/√T"
        checks.append(Check(what, matrix(fallen), role="control", bound=VANILLA, unit="exponent"))
    return checks


def samples(load: Load) -> list[Check]:
    """F6: few samples on sentences; on texts and pictures as well."""
    table = load("sentences8-procedures")
    checks = []
    walked = pick(table, method=MERGED)
    for other in MERGES:
        what = f"sentences: {_name(MERGED)} above {_name(other)}"
        checks.append(above(what, walked, pick(table, method=other)))
    what = f"sentences: {_name(MERGED)} above multi-task training on the same examples"
    checks.append(above(what, walked, pick(table, method="multitask"), role="secondary"))
    texts = pick(load("text4-language"), "loss", keys=("method", "seed", "task")) / math.log(2)
    rivals: tuple[tuple[str, str, Role], ...] = (
        *((name, _name(name), "secondary") for name in MERGES[:4]),
        ("multitask", "multi-task training on the same examples", "secondary"),
        ("cart", "CART", "control"),
    )
    for other, words, role in rivals:
        what = f"texts: FW soft needs fewer bits per character than {words}"
        checks.append(above(what, texts[other], texts[SOFT], role=role, unit="bits"))
    table = load("vision8-calibration")
    sizes = sorted(size for size in table["examples"].unique() if size)
    everything = pick(table, method="multitask", examples=0)
    walks: tuple[tuple[str, Role], ...] = (
        ("frank_wolfe soft", "secondary"),
        ("frank_wolfe hard, from cart", "control"),
    )
    for walk, role in walks:
        for size in sizes:
            walked = pick(table, method=walk, examples=size)
            what = f"pictures: {_name(walk)} above multi-task training on the same {size} examples"
            same = pick(table, method="multitask", examples=size)
            checks.append(above(what, walked, same, role=role))
        what = f"pictures: {_name(walk)} with {sizes[-1]} examples above multi-task training on all"
        checks.append(above(what, walked, everything, role=role))
    return checks


def memory(load: Load) -> list[Check]:
    """F7: peaks of processes, paired as they were run."""
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


def pairing(load: Load) -> list[Check]:
    """F8: oracles by layer and by task, for both variants."""
    texts = _pairing_in(load("text4-language"), "loss", "bits")
    everywhere = _everywhere(
        lambda suite: [
            *_pairing_in(load(f"{suite}-procedures"), "accuracy", "points"),
            _pairing_free(load(f"{suite}-procedures")),
        ],
        "soft: by task better than by layer",
    )
    return [
        *everywhere,
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


def _pairing_free(table: pd.DataFrame) -> Check:
    """By layer free coefficients were not measured, so this compares two sets as well."""
    what = "soft: by task with λ free better than by layer inside the hull"
    sides = (pick(table, method=name) for name in (FREE, "frank_wolfe soft, by layer"))
    return above(what, *sides, role="secondary")
