"""The checks of CART's claims (Choi et al., 2025), on the files in ``results/``; see `cart`."""

import math
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd

from mergelib.ledger.cart_settings import (
    COMPRESSED,
    GLUE,
    INDEXING,
    LADDER,
    SETTINGS,
    SUITES,
    TABLE,
    Setting,
)
from mergelib.ledger.checks import Check, Role, above, matrix, pick
from mergelib.ledger.verdicts import Load
from mergelib.studies.analysis.cart.experiments import by_granularity, with_rest

SPECTRAL = ("tsv", "iso_c", "iso_cts")
PAPERS_RANK = 0.08
SCALE = 0.3  # of uncentred task vectors
NEAR = 2.0  # points: our tolerance where the paper says "about"
FACTOR = 1.0  # a factor of two, in log2: ours, likewise


def order(load: Load) -> list[Check]:
    """C1: CART against the strongest of the other four, chosen afterwards, in their favour."""
    checks = []
    for setting in SETTINGS:
        for suite, words in setting.suites(setting.counts):
            table = load(f"{suite}-baselines{setting.ending}")
            checks += _order(table, words, setting.role, TABLE.get(suite, ()))
    return checks


def _order(table: pd.DataFrame, words: str, role: Role, row: tuple[float, ...]) -> list[Check]:
    found = {name: pick(table, method=name) for name in LADDER}
    means = {name: float(found[name].mean()) for name in LADDER[:-1]}
    best = max(means, key=means.__getitem__)
    what = f"{words}: CART above the best of the other four"
    if role == "secondary":
        return [above(what, found["cart"], found[best], role=role)]
    paper = row[-1] - max(row[:-1]) if row else None
    checks = [above(what, found["cart"], found[best], paper=paper)]
    for (low, lower), (high, higher) in pairwise(zip(LADDER[:-1], row, strict=False)):
        if higher < lower:  # the table's own order, which is not the same in each column
            (low, lower), (high, higher) = (high, higher), (low, lower)
        what, paper = f"{words}: {_name(high)} above {_name(low)}", higher - lower
        checks.append(above(what, found[high], found[low], role="secondary", paper=paper))
    for name in SPECTRAL:
        if (table["method"] == name).any():
            what, rival = f"{words}: CART above {_name(name)}", pick(table, method=name)
            checks.append(above(what, found["cart"], rival, role="control"))
    return checks


def _name(method: str) -> str:
    names = {"ties": "TIES", "tsv": "TSV", "cart": "CART", "consensus": "Consensus"}
    names |= {"iso_c": "Iso-C", "iso_cts": "Iso-CTS"}
    return names.get(method, method.replace("_", " "))


def _plane(load: Load, setting: Setting) -> pd.DataFrame:
    """Accuracy over ranks and scales; the average has rank 0, in surfaces at scale 1 alone."""
    table = load(f"{setting.suite}8-{setting.plane}{setting.ending}")
    average = table["scale"] == 0  # so a surface has it, at full rank
    ratio, scale = table["rank_ratio"].mask(average, 0.0), table["scale"].mask(average, 1.0)
    return table.assign(rank_ratio=ratio, scale=scale)


def _centred(
    table: pd.DataFrame, ratio: float, scale: float = 1.0, column: str = "accuracy"
) -> pd.Series:
    return pick(table, column, method="cart", scale=scale, rank_ratio=ratio)


def _uncentred(table: pd.DataFrame, ratio: float, column: str = "accuracy") -> pd.Series:
    chosen: dict[str, Any] = {
        "method": "low_rank_task_arithmetic",
        "scale": SCALE,
        "rank_ratio": ratio,
    }
    return pick(table, column, **chosen)


def bell(load: Load) -> list[Check]:
    """C2: centred vectors at 8 % of the rank against both sides; uncentred ones."""
    checks = []
    for setting in SETTINGS:
        table, words, role = _plane(load, setting), setting.words, setting.role
        top = _centred(table, PAPERS_RANK)
        row = TABLE.get(f"{setting.suite}8", ()) if role == "primary" else ()
        leads = {name: row[-1] - other for name, other in zip(LADDER, row, strict=False)}
        for what, other, name in (
            ("above the average", _centred(table, 0.0), "average"),
            ("above rank 1 %", _centred(table, 0.01), ""),
            ("above rank 32 %", _centred(table, 0.32), ""),
            ("above task arithmetic", _uncentred(table, 1.0), "task_arithmetic"),
        ):
            what, paper = f"{words}rank 8 % {what}", leads.get(name)
            checks.append(above(what, top, other, role=role, paper=paper))
        ratios = (PAPERS_RANK, 1.0) if setting.plane == "surface" else (0.0, PAPERS_RANK, 1.0)
        for low, high in pairwise(ratios):
            what = f"{words}uncentred: rank {100 * high:g} % above {100 * low:g} %"
            sides = _uncentred(table, high), _uncentred(table, low)
            checks.append(above(what, *sides, role=role))
        for scale in (2.0, 3.0):
            what = f"{words}scale {scale:g}: rank 8 % above the average"
            sides = _centred(table, PAPERS_RANK, scale), _centred(table, 0.0)
            checks.append(above(what, *sides, role="secondary"))
    return checks


def _curves(load: Load, column: str, ratio: float, *, centred: bool = True) -> pd.Series:
    table = load("vision8-interference", "curves")
    return pick(table, column, keys=("seed", "layer"), rank_ratio=ratio, centred=centred)


def interference(load: Load) -> list[Check]:
    """C3: with the norm over all singular values: with the other one, I(k) does not rise with k."""
    checks: list[Check] = []
    norms: tuple[tuple[str, Role, str], ...] = (
        ("interference_all", "primary", ""),
        ("interference", "secondary", "norm over the kept values, "),
    )
    for column, role, norm in norms:
        for ratio in (0.01, PAPERS_RANK, 1.0):
            own = _curves(load, column, ratio)
            lower = 100 * (1 - own / _curves(load, column, ratio, centred=False))
            what = f"{norm}rank {100 * ratio:g} %: lower when centred"
            checks.append(Check(what, matrix(lower), role=role, unit="%"))
            if role == "primary":
                worst = lower.unstack().mean().idxmin()
                what = f"rank {100 * ratio:g} %: lower in {worst}, the least favourable layer"
                one = lower.xs(worst, level="layer")
                checks.append(Check(what, matrix(one), role="secondary", unit="%"))
    return checks


def steep_and_slow(load: Load) -> list[Check]:
    """C4: shares of R(0) removed and of I(r) reached, with the norm of C3."""
    checks = []
    whole = _curves(load, "interference_all", 1.0)
    for ratio in (PAPERS_RANK, 0.04, 0.16):
        role: Role = "primary" if ratio == PAPERS_RANK else "secondary"
        removed = 100 * (1 - _curves(load, "reconstruction", ratio))
        reached = 100 * _curves(load, "interference_all", ratio) / whole
        name = f"rank {100 * ratio:g} %:"
        checks.append(
            above(f"{name} R fell by more than I rose", removed, reached, role=role, unit="%")
        )
        if role == "primary":
            checks.append(above(f"{name} more than half of R is gone", removed, 50.0, unit="%"))
            what = f"{name} less than half of I is there"
            checks.append(Check(what, matrix(50 - reached), unit="%"))
    kept = [_curves(load, "interference", ratio) for ratio in (1.0, 0.01)]
    rise = 100 * (kept[0] / kept[1] - 1)
    what = "norm over the kept values: I rises from rank 1 % to 100 %"
    return [*checks, Check(what, matrix(rise), role="secondary", unit="%")]


def rank(load: Load) -> list[Check]:
    """C5: where the best rank lies, and what 8 % costs."""
    checks = []
    for setting in SETTINGS:
        table, role = _plane(load, setting).query("0 < rank_ratio < 1"), setting.role
        for scale in (1.0, 2.0, 3.0):
            rows = table[(table["method"] == "cart") & (table["scale"] == scale)]
            wide = 100 * rows.pivot(index=["seed", "task"], columns="rank_ratio", values="accuracy")
            own: Role = role if scale == 1.0 else "secondary"
            name = f"{setting.words}scale {scale:g}:"
            best = wide.idxmax(axis=1).map(lambda ratio: math.log2(ratio / PAPERS_RANK))
            what, unit = f"{name} a task's best rank within a factor of two of 8 %", "log₂"
            checks.append(Check(what, matrix(best), role=own, tolerance=FACTOR, unit=unit))
            cost = cost_of_papers_rank(wide)
            what = f"{name} 8 % within 2 points of the best rank"
            checks.append(Check(what, -matrix(cost), role=own, bound=-NEAR))
            if scale == 1.0 and role == "primary":
                checks += [
                    Check(
                        f"{name} {task}, likewise",
                        -matrix(cost.xs(task, level="task")),
                        role="secondary",
                        bound=-NEAR,
                    )
                    for task in wide.index.unique("task")
                ]
    for suite, words in SUITES:
        settings = load(f"{suite}-baselines", "chosen")["settings"]
        ranks = np.array([chosen["cart"]["rank_ratio"] for chosen in settings])
        what = f"{words}, scale free: the validated rank within a factor of two of 8 %"
        values = np.log2(ranks / PAPERS_RANK)
        checks.append(Check(what, values, role="secondary", tolerance=FACTOR, unit="log₂"))
    return checks


def cost_of_papers_rank(wide: pd.DataFrame) -> pd.Series:
    """What 8 % loses against each task's best rank, which is chosen on the other seeds."""
    lost = {}
    for seed in wide.index.unique("seed"):
        best = wide.drop(seed, level="seed").groupby("task").mean().idxmax(axis=1)
        for task, ratio in best.items():
            here = wide.loc[(seed, task)]
            lost[seed, task] = here[ratio] - here[PAPERS_RANK]
    found = pd.Series(lost)
    found.index.names = ["seed", "task"]
    return found


def adaptation(load: Load) -> list[Check]:
    """C6: AdaMerging on three bases; by layer, as in Eq. 8, and where it was measured by task."""
    checks = []
    for suite, words in SUITES:
        if not suite.endswith("8"):
            continue
        parts = by_granularity(load(f"{suite}-adaptation"))
        checks += _adaptation(parts["layer"], words, "primary", quoted=suite in TABLE)
        if "task" in parts:
            checks += _adaptation(parts["task"], f"{words}, by task", "secondary")
    return checks


def _adaptation(
    table: pd.DataFrame, words: str, role: Role, *, quoted: bool = False
) -> list[Check]:
    found = {name: pick(table, method=name) for name in table["method"].unique()}
    pairs: tuple[tuple[str, str, str, Role, float | None], ...] = (
        ("AdaMerging on CART above CART", "adamerging+cart", "cart", role, 85.8 - 84.7),
        (
            "AdaMerging on CART above AdaMerging on task arithmetic",
            *("adamerging+cart", "adamerging+task_arithmetic", role, 85.8 - 80.1),
        ),
        (
            "AdaMerging on task arithmetic above task arithmetic",
            *("adamerging+task_arithmetic", "task_arithmetic", "secondary", 80.1 - 69.1),
        ),
        ("AdaMerging on TIES above TIES", "adamerging+ties", "ties", "control", None),
    )
    return [
        above(
            f"{words}: {what}",
            *(found[better], found[worse]),
            role=part,
            paper=paper if quoted else None,
        )
        for what, better, worse, part, paper in pairs
    ]


def task_counts(load: Load) -> list[Check]:
    """C7: per seed, since each draws its own subsets of tasks."""
    table = load("vision20-task_counts")
    means = 100 * table.groupby(["method", "count", "seed"])["normalised"].mean()
    few, many = 4, int(table["count"].max())
    checks = []
    for cart, words in (("cart", ""), ("cart, scale searched", "scale searched, ")):
        role: Role = "secondary" if words else "primary"
        for other in ("average", "task_arithmetic", "ties"):
            gaps = (means[cart] - means[other]).unstack("count")
            least = gaps.loc[:, few:].mean().idxmin()
            what = f"{words}CART above {_name(other)} at {least} tasks, where its lead is least"
            checks.append(Check(what, matrix(gaps[least]), role=role))
            what = f"{words}CART loses less than {_name(other)} from {few} to {many} tasks"
            checks.append(Check(what, matrix(gaps[many] - gaps[few]), role=role))
            if other == "task_arithmetic":
                what = f"{words}2 tasks: CART, which is the average, above {_name(other)}"
                checks.append(Check(what, matrix(gaps[2]), role="control"))
    return checks


def compression(load: Load) -> list[Check]:
    """C8: CART-Indexing beside the experts, EMR and TALL masks.

    Each task's own rest is primary, as in the released code; the average, where that is all there
    is: results without the column ``rest`` have it.
    """
    checks = []
    for suite, words in COMPRESSED:
        table = with_rest(load(f"{suite}-compression"))
        kept = {
            rest: pick(table, method="cart_indexing", setting="rank_ratio=0.08", rest=rest)
            for rest in ("own", "average")
            if (table["rest"] == rest).any()
        }
        mine, *averaged = kept.values()
        paper = INDEXING.get(suite, {})
        leads = {method: paper["cart_indexing"] - value for method, value in paper.items()}
        what = f"{words}: within 2 points of the experts"
        experts = pick(table, method="individual")
        checks.append(above(what, mine, experts, bound=-NEAR, paper=leads.get("individual")))
        for other in averaged:
            side = above(f"rest averaged, {what}", other, experts, role="secondary", bound=-NEAR)
            checks.append(side)
        for method, options, name in (
            ("emr", "", "EMR"),
            ("tall_masks", "base=ties", "TALL masks on TIES"),
        ):
            other, lead = pick(table, method=method, setting=options), leads.get(method)
            what = f"{words}: within 2 points of {name}"
            checks.append(above(what, mine, other, role="secondary", bound=-NEAR, paper=lead))
    return checks


def loop(load: Load) -> list[Check]:
    """C9: losses along the path over k; that it starts and ends at the average is an identity."""
    checks = []
    for setting in SETTINGS:
        if setting.plane != "ranks":  # surfaces have no losses
            continue
        table, words, role = _plane(load, setting), setting.words, setting.role
        for scale in (1.0, 2.0, 3.0) if role == "primary" else (1.0,):
            own: Role = role if scale == 1.0 else "secondary"
            name = f"{words}scale {scale:g}:"
            inner, far = (_centred(table, ratio, scale, "loss") for ratio in (PAPERS_RANK, 0.32))
            drop = _centred(table, 0.0, scale, "loss") - inner
            checks.append(
                Check(
                    f"{name} lower loss at 8 % than at the average",
                    matrix(drop),
                    role=own,
                    unit="nats",
                )
            )
            what = f"{name} lower loss at 8 % than at 32 %"
            checks.append(above(what, far, inner, role=own, unit="nats"))
            worst = drop.groupby("task").mean().idxmin()
            what = f"{name} lower than at the average on {worst}, the least favourable task"
            one = matrix(drop.xs(worst, level="task"))
            checks.append(Check(what, one, role="secondary", unit="nats"))
        what = f"{words}lower loss at 8 % than that of task arithmetic"
        sides = _uncentred(table, 1.0, "loss"), _centred(table, PAPERS_RANK, column="loss")
        checks.append(above(what, *sides, role=role, unit="nats"))
    return checks


def text(load: Load) -> list[Check]:
    """C10: accuracy on sentences; bits per character of texts."""
    keys = ("method", "seed", "task")
    accuracy = pick(load("sentences8-baselines"), keys=keys)
    bits = pick(load("text4-baselines"), "loss", keys=keys) / math.log(2)
    checks = []
    for other, paper in GLUE.items():
        if other != "cart":
            what, lead = f"sentences: CART above {_name(other)}", GLUE["cart"] - paper
            checks.append(above(what, accuracy["cart"], accuracy[other], paper=lead))
            what = f"texts: CART needs fewer bits per character than {_name(other)}"
            sides = bits[other], bits["cart"]
            checks.append(above(what, *sides, role="secondary", unit="bits"))
    return checks
