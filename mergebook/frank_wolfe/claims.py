"""What FW-Merging's claims (Chen et al., 2025) compare, on the files in ``results/``.

The book's walk is the theorem's method, repaired; the released code has free coefficients. Where
these were measured (F1, F4) they decide about accuracies, and the walk is a control; elsewhere (F2,
F3, F6, F8) the walk decides. Repaired steps never decide about a theorem (F5).
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from itertools import product
from typing import Any

import numpy as np
import pandas as pd
import torch

from mergebook.frank_wolfe.theory import SquaredDistance, printed_gaps, soft_bound
from mergebook.ledger import Check, Comparison, Load, comparison, read_claims
from mergebook.ledger.checks import SEED, Role, matrix, pick
from mergebook.plots import label
from mergelib.procedures.walk import START, Walk, minimise

SOFT, SOFT_BY_LAYER = "frank_wolfe soft, by task", "frank_wolfe soft, by layer"
HARD, HARD_BY_TASK = "frank_wolfe hard, by layer", "frank_wolfe hard, by task"
FREE, MERGED = f"{SOFT}, unconstrained", f"{HARD}, from adamerging"
OTHERS = ("average", "task_arithmetic", "ties", "adamerging")
MERGES = ("average", "task_arithmetic", "fisher", "regmean", "adamerging", "concrete")
# Where the study `procedures` ran: words for the network and its name, of three that are primary.
NETWORKS = {
    "vision8": ("", "our ViT"),
    "imagenet8": ("ImageNet network: ", "EfficientNet-Lite0"),
    "sentences8": ("sentences: ", "MiniLM"),
}
SUITES: dict[str, Role] = {"vision20": "primary", "glyphs20": "secondary"}
ROUNDING = 1e-5  # of an iterate that its coefficients give back
STEADY = 1.0  # points: our reading of "stable"
CONSTANT = 30.0  # per cent: our reading of "constant"
STILL = 0.01  # nats: gaps below that count as this
VANILLA = 0.5  # the exponent of the ordinary rate, which the paper says soft Frank-Wolfe beats
BITS: dict[str, Any] = {"value": "loss", "falling": True, "unit": "bits"}
BITS["scale"] = lambda nats: nats / math.log(2)
PAIRS: tuple[tuple[str, str, Role], ...] = (
    (FREE, MERGED, "primary"),
    (MERGED, "adamerging", "primary"),
    (FREE, HARD, "secondary"),
    (HARD_BY_TASK, "pretrained", "secondary"),
    (HARD, "pretrained", "secondary"),
    (SOFT, MERGED, "control"),
    (SOFT, HARD_BY_TASK, "control"),
    (SOFT_BY_LAYER, HARD, "control"),
    (f"{HARD}, from cart", "cart", "control"),
    (f"{SOFT_BY_LAYER}, from cart", f"{HARD}, from cart", "control"),
    (f"{SOFT_BY_LAYER}, from adamerging", MERGED, "control"),
)


def _name(method: str) -> str:
    for name in ("frank_wolfe", *MERGES, "ties", "cart"):
        method = method.replace(name, label(name))
    return method


def order(load: Load) -> Iterator[Comparison]:
    """F1: soft over hard, and hard over its start."""
    for (suite, (words, network)), (better, worse, role) in product(NETWORKS.items(), PAIRS):
        says, result = f"{words}{_name(better)} above {_name(worse)}", f"{suite}-procedures"
        options = {"network": network if (better, worse) == (FREE, MERGED) else "", "role": role}
        yield comparison(says, better, worse, about={"suite": suite}, result=result, **options)


def irrelevant(load: Load) -> Iterator[Comparison]:
    """F2: what irrelevant experts in the pool change."""
    for suite, own in SUITES.items():
        result = f"{suite}-irrelevant"
        most = int(load(result)["count"].max())
        compare = partial(comparison, result=result)
        about = {"suite": suite}
        few, many = {"count": 0}, {"count": most}
        walk = {"method": "frank_wolfe"}
        says = f"{suite}: FW changes by less than a point with {most} irrelevant experts"
        steady: dict[str, Any] = {"tolerance": STEADY, "about": about | {"metric": "change"}}
        yield compare(says, many, few, where=walk, role=own, **steady)
        for other in OTHERS:
            says, where = f"{suite}: {_name(other)} loses by them", {"method": other}
            yield compare(says, few, many, where=where, role=own, about=about | where)
        pairs = (("frank_wolfe", "adamerging", own), ("frank_wolfe", "cart", "control"))
        for better, worse, role in (*pairs, ("frank_wolfe, labels", "cart", "control")):
            says = f"{suite}: {_name(better)} above {_name(worse)} with {most} of them"
            yield compare(says, better, worse, where=many, role=role, about=about)
        says = f"{suite}: with labels, FW changes by less than a point"
        walk, steady["role"] = {"method": "frank_wolfe, labels"}, "secondary"
        steady["about"] = about | {"metric": "change", "method": "labels"}
        yield compare(says, many, few, where=walk, **steady)


def relevant(load: Load) -> Iterator[Comparison]:
    """F3: what relevant experts in the pool bring."""
    for suite, own in SUITES.items():
        result = f"{suite}-relevant"
        counts = sorted(map(int, load(result)["count"].unique()))
        middle, most = counts[len(counts) // 2], counts[-1]
        compare = partial(comparison, about={"suite": suite}, result=result)
        walk: dict[str, Any] = {"where": {"method": "frank_wolfe"}, "by": "count"}
        for fewer, role in ((counts[0], own), (middle, "secondary")):
            says = f"{suite}: FW with {most} experts above {fewer}"
            yield compare(says, most, fewer, **walk, role=role)
        for other in (*OTHERS, "cart"):
            role = own if other == "adamerging" else "secondary"
            says = f"{suite}: FW above {_name(other)} with {most} experts"
            yield compare(says, "frank_wolfe", other, where={"count": most}, role=role)


def printed_mixtures(starts: int = 10, steps: int = 3) -> pd.DataFrame:
    """``smallest`` corner's coefficient and share of ``experts`` of the soft step as printed.

    On ½‖θ − goal‖² of twenty random corners; every second start lies far outside their hull.
    """
    cloud = torch.from_numpy(np.random.default_rng(0).standard_normal((20, 10)))
    corners = {f"expert {i}": {"w": point} for i, point in enumerate(cloud)}
    goal = SquaredDistance({"w": 1.5 * cloud[:5].mean(0)})
    walk = Walk(variant="soft", steps=steps, top_k=3, keep_current=False)
    rows: list[tuple[int, str, float]] = []
    for seed in range(starts):
        inside = torch.from_numpy(np.random.default_rng(seed).dirichlet(np.ones(20))) @ cloud
        _, table, _ = minimise(goal, {"w": inside + 3.0 * (seed % 2)}, corners, walk)
        rows.append((seed, "smallest", float(table["w"].min())))
        rows.append((seed, "experts", 1 - float(table["w"][START])))
    return pd.DataFrame(rows, columns=["seed", "quantity", "value"])


def hull(load: Load) -> Iterator[Comparison | Check]:
    """F4: where the step as printed, and the book's walks, end."""
    fact = partial(comparison, keys=SEED, value="value", kind="fact", by="quantity")
    printed = partial(fact, about={"walk": "as printed"}, result=printed_mixtures)
    says = "as printed, ten starts: no expert's coefficient is negative"
    yield printed(says, "smallest", 0.0, bound=-ROUNDING, unit="of 1")
    says = "as printed, ten starts, five outside: over 99 % of the result are experts"
    percent: dict[str, Any] = {"scale": lambda part: 100 * part, "bound": 99.0, "paper": 100.0}
    yield printed(says, "experts", 0.0, **percent, unit="%")
    for suite, (words, _) in NETWORKS.items():
        history, table = (load(f"{suite}-procedures", part) for part in ("history", "hull"))
        for check in _hull_in(history, table):
            yield replace(check, what=words + check.what, about={"suite": suite, **check.about})


def _hull_in(history: pd.DataFrame, table: pd.DataFrame) -> Iterator[Check]:
    """The start's share, from how far each step moves; by layer, this bounds it from below."""
    moved = pick(history, "moved", keys=("method", "seed", "step"))
    by_task = 1 - (1 - moved).groupby(["method", "seed"]).prod()
    at_most = moved.groupby(["method", "seed"]).sum().clip(upper=1)
    cases = {SOFT: by_task, MERGED: at_most, HARD_BY_TASK: by_task, SOFT_BY_LAYER: at_most}
    for method, share in (cases | {f"{HARD}, from cart": at_most}).items():
        what = f"repaired, {_name(method)}: over 99 % of the result are experts"
        options: dict[str, Any] = {"about": {"walk": method, "metric": "experts"}, "unit": "%"}
        yield Check(what, matrix(100 * share[method]), role="control", bound=99.0, **options)
    bound = table[table["method"] != FREE].groupby("seed")
    none = "no coefficient is negative"
    free = pick(table, "smallest", keys=SEED, method=FREE)
    eight = f"repaired, experts and start: {none}, in eight kinds of walk"
    for what, column, unit, walk in (
        (f"{_name(FREE)}: {none}", free, "of 1", FREE),
        (eight, bound["smallest"].min(), "of 1", "repaired"),
        ("these coefficients give the iterate back", -bound["error"].max(), "of ‖θ‖", "iterate"),
    ):
        options = {"about": {"walk": walk, "metric": "coefficients"}, "unit": unit}
        yield Check(what, matrix(column), "fact", "control", bound=-ROUNDING, **options)


def printed_walks(starts: int = 10, steps: int = 60) -> pd.DataFrame:
    """The smallest ``gap`` of soft Frank-Wolfe as printed, and the one ``allowed`` by the theorem.

    On ½‖θ‖² over a regular triangle around 0, where the current point is dropped.
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


def rate(load: Load) -> Iterator[Comparison | Check]:
    """Exponents p of gap ~ 1/Tᵖ: as printed, of steps 30 to 60; else from the first to the last."""
    printed = partial(comparison, about={"walk": "as printed"}, result=printed_walks, kind="fact")
    says = "as printed, on a triangle: the gap falls faster than 1/√T"
    late: dict[str, Any] = {"by": "step", "value": "gap", "keys": SEED, "falling": True}
    late |= {"change": lambda early, late: (early / late).map(math.log2), "unit": "exponent"}
    yield printed(says, 60, 30, **late, bound=VANILLA, paper=1.0)
    says = "as printed, on a triangle: the gap stays below the theorem's bound"

    def spare(rows: pd.DataFrame) -> Mapping[str, Any]:
        return {"values": (rows["allowed"] - rows["gap"]).groupby(rows["seed"]).min()}

    yield printed(says, value="allowed", measure=spare, role="secondary", unit="of the loss")
    walks = (SOFT, SOFT_BY_LAYER, HARD_BY_TASK, HARD)
    for (suite, (words, _)), method in product(NETWORKS.items(), walks):
        history = load(f"{suite}-procedures", "history")
        gaps = pick(history, "gap", keys=("seed", "step"), method=method).unstack("step")
        last = gaps.ffill(axis=1).iloc[:, -1].clip(lower=STILL)
        steps = gaps.notna().sum(axis=1)
        falls = matrix((gaps[0] / last).map(math.log) / steps.map(math.log))
        what = f"{words}repaired, {_name(method)}: the gap falls faster than 1/√T"
        options: dict[str, Any] = {"bound": VANILLA, "unit": "exponent", "role": "control"}
        yield Check(what, falls, about={"suite": suite, "walk": method}, **options)


def samples(load: Load) -> Iterator[Comparison]:
    """F6: few samples on sentences; on texts and images as well."""
    trained = "multi-task training on the same examples"
    rivals: list[tuple[str, str, Role]] = [(name, _name(name), "primary") for name in MERGES]
    for other, words, role in [*rivals, ("multitask", trained, "secondary")]:
        says, about = f"sentences: {_name(MERGED)} above {words}", {"suite": "sentences8"}
        result = "sentences8-procedures"
        yield comparison(says, MERGED, other, about=about, result=result, role=role)
    for other, words, _ in [*rivals[:4], ("multitask", trained, ""), ("cart", "CART", "")]:
        says = f"texts: FW soft needs fewer bits per character than {words}"
        role = "control" if other == "cart" else "secondary"
        about, result = {"suite": "text4"}, "text4-language"
        yield comparison(says, SOFT, other, about=about, result=result, role=role, **BITS)
    result = "vision8-calibration"
    sizes = sorted(int(size) for size in load(result)["examples"].unique() if size)
    walks: dict[str, Role] = {"frank_wolfe soft": "secondary"}
    for walk, role in (walks | {"frank_wolfe hard, from cart": "control"}).items():
        pairs = [(size, size, f"the same {size} examples") for size in sizes]
        for mine, theirs, words in [*pairs, (sizes[-1], 0, "all")]:
            many = f" with {mine} examples" if not theirs else ""
            says = f"images: {_name(walk)}{many} above multi-task training on {words}"
            counts = ((walk, mine), ("multitask", theirs))
            sides = [{"method": name, "examples": count} for name, count in counts]
            yield comparison(says, *sides, about={"suite": "vision8"}, result=result, role=role)


def memory(load: Load) -> Iterator[Comparison]:
    """F7: peaks of processes, paired as they were run."""
    result = ("frank_wolfe-memory", "peaks")
    counts = load(*result)["experts"]
    few, many = int(counts.min()), int(counts.max())
    peaks: dict[str, Any] = {"by": "experts", "value": "peak_bytes", "keys": ("repeat",)}
    peaks |= {"falling": True, "change": lambda few, many: 100 * (1 - many / few)}
    for variant in ("hard", "soft"):
        says = f"{variant}: the peak with {many} files at most 30 % above that with {few}"
        where = {"variant": variant}
        options: dict[str, Any] = {"about": where, "where": where, "bound": -CONSTANT, "paper": 0.0}
        yield comparison(says, many, few, result=result, **peaks, **options, unit="% less")


def pairing(load: Load) -> Iterator[Comparison]:
    """F8: oracles per layer and per task; per layer, free coefficients were not measured."""
    pairs = (
        ("hard: per layer better than per task", HARD, HARD_BY_TASK),
        ("soft: per task better than per layer", SOFT, SOFT_BY_LAYER),
    )
    for suite, (words, network) in NETWORKS.items():
        compare = partial(comparison, about={"suite": suite}, result=f"{suite}-procedures")
        for says, better, worse in pairs:
            pooled = network if better == SOFT else ""
            yield compare(words + says, better, worse, network=pooled)
        says = f"{words}soft: per task with λ free better than per layer inside the hull"
        yield compare(says, FREE, SOFT_BY_LAYER, role="secondary")
    texts = partial(comparison, about={"suite": "text4"}, result="text4-language", **BITS)
    for says, better, worse in pairs:
        yield texts(f"texts: {says}", better, worse, role="secondary")


TESTS = (order, irrelevant, relevant, hull, rate, samples, memory, pairing)
CLAIMS = read_claims("mergebook.frank_wolfe", {f"F{i}": test for i, test in enumerate(TESTS, 1)})
