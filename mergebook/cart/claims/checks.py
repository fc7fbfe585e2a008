"""The checks of CART's claims (Choi et al., 2025), on the files in ``results/``; see `cart`."""

import math
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd

from mergebook.cart.paper import DECIDING, GLUE, INDEXING, LADDER, SETTINGS, TABLE, Setting
from mergebook.cart.read import baselines, by_granularity, with_rest
from mergebook.ledger.checks import Check, Limit, Role, above, matrix, pick
from mergebook.ledger.verdicts import Load

SPECTRAL = ("tsv", "iso_c", "iso_cts")
PAPERS_RANK = 0.08
SCALE = 0.3  # of uncentred task vectors
NEAR = 2.0  # points: our tolerance where the paper says "about"
FACTOR = 1.0  # a factor of two, in log2: ours, likewise
FLOORED = 0.1  # where more best ranks than this are the grid's lowest, they are upper bounds


def order(load: Load) -> list[Check]:
    """C1: CART against the strongest of the other four, chosen afterwards, in their favour."""
    checks = []
    for setting in SETTINGS:
        for suite, words in setting.suites(setting.counts):
            table = baselines(suite, setting.ending, load)
            network = setting.network if suite.endswith("8") else ""
            checks += _order(table, words, setting.role, TABLE.get(suite, ()), network)
    return checks


def _order(
    table: pd.DataFrame, words: str, role: Role, row: tuple[float, ...], network: str
) -> list[Check]:
    found = {name: pick(table, method=name) for name in LADDER}
    means = {name: float(found[name].mean()) for name in LADDER[:-1]}
    best = max(means, key=means.__getitem__)
    what = f"{words}: CART above the best of the other four"
    if role == "secondary":
        return [above(what, found["cart"], found[best], role=role)]
    paper = row[-1] - max(row[:-1]) if row else None
    checks = [above(what, found["cart"], found[best], paper=paper, network=network)]
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
            network = setting.network if name == "task_arithmetic" else ""
            checks.append(above(what, top, other, role=role, paper=paper, network=network))
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


def _curves(
    load: Load, setting: Setting, column: str, ratio: float, *, centred: bool = True
) -> pd.Series:
    table = load(f"{setting.suite}8-interference", "curves")
    return pick(table, column, keys=("seed", "layer"), rank_ratio=ratio, centred=centred)


def interference(load: Load) -> list[Check]:
    """C3: with the norm over all singular values: with the other one, I(k) does not rise with k."""
    checks: list[Check] = []
    norms: tuple[tuple[str, Role, str], ...] = (
        ("interference_all", "primary", ""),
        ("interference", "secondary", "norm over the kept values, "),
    )
    for setting in DECIDING:
        for column, role, norm in norms:
            for ratio in (0.01, PAPERS_RANK, 1.0):
                kinds = (
                    _curves(load, setting, column, ratio, centred=own) for own in (True, False)
                )
                centred, uncentred = kinds
                lower = matrix(100 * (1 - centred / uncentred))
                what = f"{setting.words}{norm}rank {100 * ratio:g} %: lower when centred"
                network = setting.network if ratio == PAPERS_RANK else ""
                checks.append(Check(what, lower, role=role, unit="%", network=network))
                if role == "primary":
                    each = (lower.mean(0) > 0).astype(float)
                    words, unit = f"{what}, in more than half of the layers", "of the layers"
                    half = Check(words, each, "fraction", "secondary", bound=0.5, unit=unit)
                    checks.append(half)
    return checks


def steep_and_slow(load: Load) -> list[Check]:
    """C4: shares of R(0) removed and of I(r) reached, with the norm of C3."""
    checks = []
    for setting in DECIDING:
        whole = _curves(load, setting, "interference_all", 1.0)
        for ratio in (PAPERS_RANK, 0.04, 0.16):
            role: Role = "primary" if ratio == PAPERS_RANK else "secondary"
            removed = 100 * (1 - _curves(load, setting, "reconstruction", ratio))
            reached = 100 * _curves(load, setting, "interference_all", ratio) / whole
            name = f"{setting.words}rank {100 * ratio:g} %:"
            what, missing = f"{name} more than half of R is gone", matrix(50 - reached)
            checks.append(_steady(what, matrix(removed - 50), role=role, unit="%"))
            what = f"{name} less than half of I is there"
            network = setting.network if role == "primary" else ""
            checks.append(Check(what, missing, role=role, unit="%", network=network))
        kept = [_curves(load, setting, "interference", ratio) for ratio in (1.0, 0.01)]
        rise = 100 * (kept[0] / kept[1] - 1)
        what = f"{setting.words}norm over the kept values: I rises from rank 1 % to 100 %"
        checks.append(Check(what, matrix(rise), role="secondary", unit="%"))
    return checks


def rank(load: Load) -> list[Check]:
    """C5: where the best rank lies, and what 8 % costs."""
    checks = []
    for setting in SETTINGS:
        table = _plane(load, setting).query("0 < rank_ratio < 1")
        for scale in (1.0, 2.0, 3.0):
            rows = table[(table["method"] == "cart") & (table["scale"] == scale)]
            wide = 100 * rows.pivot(index=["seed", "task"], columns="rank_ratio", values="accuracy")
            role: Role = setting.role if scale == 1.0 else "secondary"
            name = f"{setting.words}scale {scale:g}:"
            best = wide.idxmax(axis=1)
            limit: Limit = "most" if (best == wide.columns.min()).mean() > FLOORED else ""
            distance = matrix(best.map(lambda ratio: math.log2(ratio / PAPERS_RANK)))
            what, unit = f"{name} a task's best rank within a factor of two of 8 %", "log₂"
            near = _steady(what, distance, role=role, tolerance=FACTOR, unit=unit, limit=limit)
            what = f"{name} 8 % within 2 points of the best rank"
            cost = -matrix(cost_of_papers_rank(wide))
            network = setting.network if scale == 1.0 else ""
            cheap = _steady(what, cost, role=role, bound=-NEAR, limit=limit, network=network)
            checks += [cheap, near]
    for setting in DECIDING:
        chosen = {
            suite: [
                math.log2(one["cart"]["rank_ratio"] / PAPERS_RANK)
                for one in load(f"{suite}-baselines", "chosen")["settings"]
            ]
            for suite, _ in setting.suites(setting.counts)
        }
        what = f"{setting.words}scale free: the validated rank within a factor of two of 8 %"
        values = np.array(list(chosen.values())).T
        free = Check(what, values, role="secondary", tolerance=FACTOR, unit="log₂")
        checks.append(replace(free, columns="designed"))
    return checks


def _steady(what: str, values: np.ndarray, **options: Any) -> Check:
    """A check of a mean; where all values are equal, of the fraction of columns beyond its bound.

    As when 8 % is the best rank of every task and seed, so that it costs nothing without a spread.
    """
    if np.ptp(values):
        return Check(what, values, **options)
    bound, tolerance = options.get("bound", 0.0), options.get("tolerance")
    value = float(values.flat[0])
    inside = value > bound if tolerance is None else abs(value - bound) < tolerance
    every = np.full(values.shape[1], float(inside))
    return Check(what, every, "fraction", options["role"], bound=0.5, unit="of the columns")


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
    for setting in DECIDING:
        suite, words = f"{setting.suite}8", f"{setting.words}8 tasks"
        parts = by_granularity(load(f"{suite}-adaptation"))
        quoted = suite in TABLE
        checks += _adaptation(parts["layer"], words, "primary", setting.network, quoted=quoted)
        if "task" in parts:
            checks += _adaptation(parts["task"], f"{words}, by task", "secondary")
    return checks


def _adaptation(
    table: pd.DataFrame, words: str, role: Role, network: str = "", *, quoted: bool = False
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
            network=network if (better, worse) == ("adamerging+cart", "cart") else "",
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

    The paper does not say what happens to the rest (norms, biases, tables): the average, as in its
    merges, and each task's own, as in the released code, are both primary. Results without the
    column ``rest`` have the average only.
    """
    checks = []
    for setting in DECIDING:
        for suite, words in setting.suites(setting.compressed):
            network = setting.network if suite.endswith("8") else ""
            checks += _compression(with_rest(load(f"{suite}-compression")), suite, words, network)
    return checks


def _compression(table: pd.DataFrame, suite: str, words: str, network: str) -> list[Check]:
    checks = []
    paper = INDEXING.get(suite, {})
    leads = {method: paper["cart_indexing"] - value for method, value in paper.items()}
    rivals: tuple[tuple[str, str, str, Role], ...] = (
        ("individual", "", "the experts", "primary"),
        ("emr", "", "EMR", "secondary"),
        ("tall_masks", "base=ties", "TALL masks on TIES", "secondary"),
    )
    for rest in ("own", "average"):
        if not (table["rest"] == rest).any():
            continue
        mine = pick(table, method="cart_indexing", setting="rank_ratio=0.08", rest=rest)
        averaged = ", rest averaged" if rest == "average" else ""
        for method, options, name, role in rivals:
            what = f"{words}{averaged}: within 2 points of {name}"
            other, lead = pick(table, method=method, setting=options), leads.get(method)
            one = network if averaged else ""
            chosen = {"role": role, "bound": -NEAR, "paper": lead, "network": one}
            checks.append(above(what, mine, other, **chosen))
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
    accuracy = pick(baselines("sentences8", load=load), keys=keys)
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
