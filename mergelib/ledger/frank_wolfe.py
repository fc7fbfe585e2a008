"""The claims of FW-Merging (Chen et al., 2025), F1–F8, each tested on the files in ``results/``."""

import math
from collections.abc import Iterator
from itertools import pairwise

import pandas as pd

from mergelib.ledger import Check, Claim, positive, seed_means, within
from mergelib.records.results import load_table

KINDS = ("hard, by task", "hard, by layer", "soft, by task", "soft, by layer")
ERROR = 1e-5  # of an iterate that its coefficients give back


def _procedures() -> pd.DataFrame:
    return load_table("vision8-procedures")


def _order() -> list[Check]:
    table = _procedures()
    ladders: list[tuple[str, ...]] = [
        ("pretrained", f"frank_wolfe hard, by {unit}", f"frank_wolfe soft, by {unit}")
        for unit in ("task", "layer")
    ]
    for start in ("cart", "adamerging"):
        walks = [f"frank_wolfe {kind}, by layer, from {start}" for kind in ("hard", "soft")]
        ladders.append((start, *walks))
    return [
        positive(
            f"{better} above {worse}",
            seed_means(table, method=better) - seed_means(table, method=worse),
        )
        for ladder in ladders
        for worse, better in pairwise(ladder)
    ]


def _pools(study: str) -> Iterator[tuple[str, pd.DataFrame]]:
    """The test table of a study of pools on each suite of twenty tasks, with the suite's name."""
    for suite in ("vision20", "glyphs20"):
        yield suite, load_table(f"{suite}-{study}")


def _irrelevant() -> list[Check]:
    others = ("average", "task_arithmetic", "ties", "adamerging")
    walks = ("frank_wolfe", "frank_wolfe, labels")
    checks = []
    for suite, table in _pools("irrelevant"):
        most = table["count"].max()
        few, many = (
            {name: seed_means(table, method=name, count=count) for name in (*others, *walks)}
            for count in (0, most)
        )
        for walk in walks:
            what = f"{suite}, {walk}: unchanged to 1 point by {most} irrelevant experts"
            checks.append(within(what, few[walk] - many[walk], 1.0))
        for other in others:
            what = f"{suite}: {other} loses by them"
            checks.append(positive(what, few[other] - many[other]))
            for walk in walks:
                what = f"{suite}: {walk} above {other} with {most} of them"
                checks.append(positive(what, many[walk] - many[other]))
    return checks


def _relevant() -> list[Check]:
    checks = []
    for suite, table in _pools("relevant"):
        counts = sorted(table["count"].unique())
        walked = {count: seed_means(table, method="frank_wolfe", count=count) for count in counts}
        for fewer, more in ((counts[0], counts[len(counts) // 2]), (counts[0], counts[-1])):
            what = f"{suite}, frank_wolfe: {more} experts above {fewer}"
            checks.append(positive(what, walked[more] - walked[fewer]))
        for method in ("average", "task_arithmetic", "ties", "adamerging"):
            other = seed_means(table, method=method, count=counts[-1])
            what = f"{suite}: frank_wolfe above {method} with {counts[-1]} experts"
            checks.append(positive(what, walked[counts[-1]] - other))
    return checks


def _hull() -> list[Check]:
    table = load_table("vision8-procedures", "hull")
    bound = table[~table["method"].str.endswith("unconstrained")].groupby("seed")
    smallest, error = bound["smallest"].min(), bound["error"].max()
    return [
        positive("no coefficient is negative", smallest + ERROR, "of the whole"),
        positive("coefficients give the iterate back to 1e-5", ERROR - error, "of ‖θ‖"),
    ]


def _gap() -> list[Check]:
    """The smallest gap over the steps, which is what the theorem bounds, against the first one."""
    table = load_table("vision8-procedures", "history")
    checks = []
    for kind in KINDS:
        mine = table[table["method"] == f"frank_wolfe {kind}"].sort_values("step")
        gaps = mine.groupby("seed")["gap"]
        fallen = 100 * (1 - gaps.min() / gaps.first())
        checks.append(positive(f"{kind}: more than half of the gap is gone", fallen - 50, "%"))
    return checks


def _samples() -> list[Check]:
    table = load_table("vision8-calibration")
    sizes = sorted(size for size in table["examples"].unique() if size)
    on_all = seed_means(table, method="multitask", examples=0)
    checks = []
    for walk in ("frank_wolfe soft", "frank_wolfe hard, from cart"):
        for size in sizes:
            walked = seed_means(table, method=walk, examples=size)
            trained = seed_means(table, method="multitask", examples=size)
            what = f"{walk}: above multi-task training on the same {size} examples a task"
            checks.append(positive(what, walked - trained))
        what = f"{walk}: with {sizes[-1]} examples above multi-task training on all"
        checks.append(positive(what, walked - on_all))
    texts = load_table("text4-language")
    bits = texts.groupby(["method", "seed"])["loss"].mean() / math.log(2)
    for other in ("average", "task_arithmetic", "cart", "fisher", "regmean", "multitask"):
        what = f"texts: frank_wolfe soft, by layer needs fewer bits a character than {other}"
        checks.append(positive(what, bits[other] - bits["frank_wolfe soft, by layer"], "b"))
    return checks


def _memory() -> list[Check]:
    table = load_table("frank_wolfe-memory", "peaks")
    checks = []
    for variant, rows in table.groupby("variant"):
        peaks = rows.pivot(index="repeat", columns="experts", values="peak_bytes")
        few, many = peaks.columns.min(), peaks.columns.max()
        what = f"{variant}: the peak with {many} files within 1.3 times that with {few}"
        checks.append(positive(what, 1.3 - peaks[many] / peaks[few], "times"))
    return checks


def _pairing() -> list[Check]:
    table = _procedures()
    return [
        positive(
            f"{variant}: by {better} above by {worse}",
            seed_means(table, method=f"frank_wolfe {variant}, by {better}")
            - seed_means(table, method=f"frank_wolfe {variant}, by {worse}"),
        )
        for variant, better, worse in (("hard", "layer", "task"), ("soft", "task", "layer"))
    ]


_PAPER = "chen2025fwmerging"
_PAGE = "notebooks/22-frank-wolfe-experiments"

CLAIMS = (
    Claim(
        "F1",
        _PAPER,
        "experiments; appendix C.3",
        "soft Frank-Wolfe is above hard, and hard above where it starts",
        "100 labelled samples of each calibration task; hard from AdaMerging, soft from the "
        "pretrained model",
        "100 training examples a task; the same start for both: pretrained, CART or AdaMerging",
        _PAGE,
        _order,
    ),
    Claim(
        "F2",
        _PAPER,
        "experiments; appendix C.4",
        "irrelevant experts in the pool leave Frank-Wolfe as it is and hurt other methods",
        "up to 16 irrelevant experts beside the four of SUN397, Cars, GTSRB and DTD",
        "four of twenty tasks, real and rendered; entropy on unlabelled test inputs, as there, and "
        "cross-entropy with labels",
        _PAGE,
        _irrelevant,
    ),
    Claim(
        "F3",
        _PAPER,
        "experiments; appendix C.4",
        "adding experts of tasks that are judged helps Frank-Wolfe, up to 20",
        "all 20 tasks judged, experts added one after the other",
        "all 20 tasks, real or rendered; entropy on their unlabelled test inputs, pools of 2 to 20 "
        "experts in random order",
        _PAGE,
        _relevant,
    ),
    Claim(
        "F4",
        _PAPER,
        "Proposition 1",
        "iterates stay in the convex hull",
        "proved",
        "coefficients returned by the walk: signs, and the iterate that they give back",
        _PAGE,
        _hull,
    ),
    Claim(
        "F5",
        _PAPER,
        "Theorem 1",
        "the Frank-Wolfe gap falls",
        "a bound that the smallest gap stays under",
        "the smallest gap of six steps against the first; bounds stand in the theory chapter",
        "notebooks/21-frank-wolfe",
        _gap,
    ),
    Claim(
        "F6",
        _PAPER,
        "Figure 1 of the supplement",
        "with few samples Frank-Wolfe is above all other methods on the language benchmark, and "
        "above traditional multi-task training with more data",
        "above multi-task training and all merging methods on the language benchmark",
        "soft from the pretrained model and hard from CART, against multi-task training on as few "
        "examples, and on the whole training split; on texts against six methods, 20 windows each",
        _PAGE,
        _samples,
    ),
    Claim(
        "F7",
        _PAPER,
        "method",
        "memory does not grow with the number of experts",
        "constant",
        "peak of a walk over 4 and over 20 files, in fresh processes, by repeated measurement",
        _PAGE,
        _memory,
    ),
    Claim(
        "F8",
        _PAPER,
        "experiments",
        "hard goes best with a layer-wise oracle, soft with a task-wise one",
        "chosen so",
        "the four combinations from the pretrained model, 100 training examples a task",
        _PAGE,
        _pairing,
    ),
)
