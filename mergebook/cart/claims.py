"""What CART's claims (Choi et al., 2025) compare, on the files in ``results/``; see `cart`."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from itertools import pairwise, product
from typing import Any

import numpy as np
import pandas as pd

from mergebook.cart.paper import DECIDING, GLUE, INDEXING, LADDER, SETTINGS, TABLE, Setting
from mergebook.cart.read import baselines, by_granularity, with_rest
from mergebook.ledger import Check, Comparison, Load, comparison, read_claims
from mergebook.ledger.checks import Limit, Role, matrix
from mergebook.plots import label

SPECTRAL = ("tsv", "iso_c", "iso_cts")
NAMES = {name: label(name) for name in (*LADDER, *SPECTRAL)}
NAMES |= {f"adamerging+{name}": f"AdaMerging on {text}" for name, text in NAMES.items()}
PAPERS_RANK = 0.08
NEAR = 2.0  # points: our tolerance where the paper says "about"
FACTOR = 1.0  # a factor of two, in log2: our tolerance, too
FLOORED = 0.1  # where more best ranks than this are the grid's lowest, they are upper bounds
UNCENTRED = {"method": "low_rank_task_arithmetic", "scale": 0.3}
# Better, worse, role and the lead in the paper's Table 1.
ADAPTED: tuple[tuple[str, str, Role, float | None], ...] = (
    ("adamerging+cart", "cart", "primary", 85.8 - 84.7),
    ("adamerging+cart", "adamerging+task_arithmetic", "primary", 85.8 - 80.1),
    ("adamerging+task_arithmetic", "task_arithmetic", "secondary", 80.1 - 69.1),
    ("adamerging+ties", "ties", "control", None),
)
# Rivals of CART-Indexing, their settings, names and roles.
RIVALS: tuple[tuple[str, str, str, Role], ...] = (
    ("individual", "", "the experts", "primary"),
    ("emr", "", "EMR", "secondary"),
    ("tall_masks", "base=ties", "TALL masks on TIES", "secondary"),
)


def order(load: Load) -> Iterator[Comparison]:
    """C1: CART against the rival over which its lead is least sure (intersection–union test)."""
    for setting in SETTINGS:
        for suite, words in setting.suites(setting.counts):
            result, row = partial(baselines, suite, setting.ending, load), TABLE.get(suite, ())
            about = {"suite": f"{suite}{setting.ending}"}
            compare = partial(comparison, result=result, about=about)
            table, decides = load(result), setting.role == "primary"
            says = f"{words}: CART above each of the other four"
            network = setting.network if suite.endswith("8") else ""
            options = {"role": setting.role, "network": network, "about": about | {"worse": "best"}}
            lead = row[-1] - max(row[:-1]) if row and decides else None
            each = [compare(says, "cart", name, paper=lead, **options) for name in LADDER[:-1]]
            yield min(each, key=lambda rival: rival.of(table).interval()[0])
            others: list[tuple[str, str, Role, float | None]] = []
            for pair in pairwise(zip(row, LADDER[:-1], strict=False)):
                (lower, low), (higher, high) = sorted(pair)  # each column has an order of its own
                others.append((high, low, "secondary", higher - lower))
            others += [("cart", name, "control", None) for name in SPECTRAL]
            for better, worse, role, lead in others:
                if decides and worse in {*table["method"]}:
                    says = f"{words}: {NAMES[better]} above {NAMES[worse]}"
                    yield compare(says, better, worse, role=role, paper=lead)


def _plane(load: Load, setting: Setting) -> pd.DataFrame:
    """Accuracy over ranks and scales; the average has rank 0, in surfaces at scale 1 alone."""
    table = load(f"{setting.suite}8-{setting.plane}{setting.ending}")
    average = table["scale"] == 0  # so a surface has it, at full rank
    ratio, scale = table["rank_ratio"].mask(average, 0.0), table["scale"].mask(average, 1.0)
    return table.assign(rank_ratio=ratio, scale=scale)


def _centred(ratio: float | tuple[float, ...], scale: float = 1.0) -> dict[str, Any]:
    return {"method": "cart", "scale": scale, "rank_ratio": ratio}


def bell(load: Load) -> Iterator[Comparison]:
    """C2: centred vectors at 8 % of the rank against both sides; uncentred ones."""
    arithmetic, top = UNCENTRED | {"rank_ratio": 1.0}, _centred(PAPERS_RANK)
    for setting in SETTINGS:
        words, role, about = setting.words, setting.role, {"suite": setting.name}
        compare = partial(comparison, about=about, result=partial(_plane, load, setting))
        row = TABLE.get(f"{setting.suite}8", ()) if role == "primary" else ()
        leads = {name: row[-1] - other for name, other in zip(LADDER, row, strict=False)}
        for what, other, lead in (
            ("the average", _centred(0.0), leads.get("average")),
            ("rank 1 %", _centred(0.01), None),
            ("rank 32 %", _centred(0.32), None),
            ("task arithmetic", arithmetic, leads.get("task_arithmetic")),
        ):
            network = setting.network if other is arithmetic else ""
            says = f"{words}rank 8 % above {what}"
            yield compare(says, top, other, role=role, paper=lead, network=network)
        ratios = (PAPERS_RANK, 1.0) if setting.plane == "surface" else (0.0, PAPERS_RANK, 1.0)
        for low, high in pairwise(ratios):
            says = f"{words}uncentred: rank {100 * high:g} % above {100 * low:g} %"
            sides = [UNCENTRED | {"rank_ratio": ratio} for ratio in (high, low)]
            yield compare(says, *sides, role=role)
        for scale in (2.0, 3.0):
            says = f"{words}scale {scale:g}: rank 8 % above the average"
            yield compare(says, _centred(PAPERS_RANK, scale), _centred(0.0), role="secondary")


def _curve(setting: Setting, ratio: float, value: str, kind: str = "mean") -> "partial[Comparison]":
    """A comparison on curves over the rank, in every layer."""
    about = {"suite": setting.name, "metric": value, "rank": ratio, "per": kind}
    options: dict[str, Any] = {"about": about, "value": value, "unit": "%", "falling": True}
    result = (f"{setting.suite}8-interference", "curves")
    return partial(comparison, result=result, keys=("seed", "layer"), **options)


def interference(load: Load) -> Iterator[Comparison]:
    """C3: with the norm over all singular values: with the other one, I(k) does not rise with k."""
    norms: dict[str, tuple[str, Role]] = {
        "interference_all": ("", "primary"),
        "interference": ("norm over the kept values, ", "secondary"),
    }
    ratios = (0.01, PAPERS_RANK, 1.0)
    for setting, (value, (norm, role)), ratio in product(DECIDING, norms.items(), ratios):
        says = f"{setting.words}{norm}rank {100 * ratio:g} %: lower when centred"
        sides: dict[str, Any] = {"better": True, "worse": False, "by": "centred"}
        sides |= {
            "where": {"rank_ratio": ratio},
            "change": lambda high, low: 100 * (1 - low / high),
        }
        network = setting.network if ratio == PAPERS_RANK else ""
        lower = _curve(setting, ratio, value)(says, **sides, role=role, network=network)
        yield lower
        if role == "primary":
            says += ", in more than half of the layers"
            sides |= {"kind": "fraction", "bound": 0.5, "measure": partial(_layers, lower)}
            sides |= {"unit": "of the layers", "role": "secondary"}
            yield _curve(setting, ratio, value, "fraction")(says, **sides)


def _layers(comparison: Comparison, rows: pd.DataFrame) -> Mapping[str, Any]:
    """In which layers a comparison is right in the mean over seeds."""
    return {"values": (comparison.of(rows).values.mean(0) > 0).astype(float)}


def steep_and_slow(load: Load) -> Iterator[Comparison]:
    """C4: shares of R(0) removed and of I(r) reached, with the norm of C3."""
    whole, least = ({"centred": True, "rank_ratio": ratio} for ratio in (1.0, 0.01))
    for setting in DECIDING:
        for ratio in (PAPERS_RANK, 0.04, 0.16):
            role: Role = "primary" if ratio == PAPERS_RANK else "secondary"
            rows = whole | {"rank_ratio": ratio}
            says = f"{setting.words}rank {100 * ratio:g} %: more than half of R is gone"
            removed = _curve(setting, ratio, "reconstruction")(says, rows, 50.0, role=role)
            yield _steady(replace(removed, change=lambda _, left: 100 * (1 - left) - 50))
            says = f"{setting.words}rank {100 * ratio:g} %: less than half of I is there"
            reached = _curve(setting, ratio, "interference_all")(says, rows, whole, role=role)
            network = setting.network if role == "primary" else ""
            reached = replace(reached, change=lambda every, part: 50 - 100 * part / every)
            yield replace(reached, network=network)
        says = f"{setting.words}norm over the kept values: I rises from rank 1 % to 100 %"
        rises: dict[str, Any] = {"falling": False, "role": "secondary"}
        rises["change"] = lambda last, first: 100 * (last / first - 1)
        yield _curve(setting, 1.0, "interference")(says, whole, least, **rises)


def rank(load: Load) -> Iterator[Comparison | Check]:
    """C5: where the best rank lies, and what 8 % costs."""
    says = {_cheap: "8 % within 2 points of the best rank"}
    says[_near] = "a task's best rank within a factor of two of 8 %"
    for setting, scale in product(SETTINGS, (1.0, 2.0, 3.0)):
        result = partial(_plane, load, setting)
        inner = load(result).query("0 < rank_ratio < 1 and method == 'cart'")
        ratios = sorted({*inner["rank_ratio"]})
        higher = tuple(ratio for ratio in ratios if ratio > 2 * PAPERS_RANK)
        others = tuple(ratio for ratio in ratios if ratio != PAPERS_RANK)
        network = setting.network if scale == 1.0 else ""
        role = setting.role if scale == 1.0 else "secondary"
        for measure, rivals, options in (
            (_cheap, others, {"bound": -NEAR, "network": network}),
            (_near, higher, {"tolerance": FACTOR, "unit": "log₂"}),
        ):
            options |= {"where": _centred(tuple(ratios), scale), "by": "rank_ratio", "role": role}
            about = {"suite": setting.name, "scale": scale, "better": measure.__name__[1:]}
            words = f"{setting.words}scale {scale:g}: {says[measure]}"
            sides = {"rank_ratio": PAPERS_RANK}, {"rank_ratio": rivals}
            options |= {"about": about | {"worse": "other ranks"}, "measure": measure}
            yield _steady(comparison(words, *sides, result=result, **options))
    for setting in DECIDING:
        suites = setting.suites(setting.counts)
        chosen = [load(f"{suite}-baselines", "chosen")["settings"] for suite, _ in suites]
        ratios = [[one["cart"]["rank_ratio"] / PAPERS_RANK for one in own] for own in chosen]
        words = f"{setting.words}scale free: the validated rank within a factor of two of 8 %"
        about = {"suite": setting.name, "scale": "free"}
        free = Check(words, np.log2(ratios).T, role="secondary", tolerance=FACTOR, about=about)
        yield replace(free, unit="log₂", columns="designed")


def _wide(rows: pd.DataFrame) -> tuple[pd.DataFrame, Limit]:
    """Accuracies in per cent by rank, and whether too many of the best ranks are the lowest."""
    wide = 100 * rows.pivot(index=["seed", "task"], columns="rank_ratio", values="accuracy")
    floored = (wide.idxmax(axis=1) == wide.columns.min()).mean() > FLOORED
    return wide, "most" if floored else ""


def _near(rows: pd.DataFrame) -> Mapping[str, Any]:
    """How far each task's best rank is from 8 %, in log2."""
    wide, limit = _wide(rows)
    distance = wide.idxmax(axis=1).map(lambda ratio: math.log2(ratio / PAPERS_RANK))
    return {"values": matrix(distance), "limit": limit}


def _cheap(rows: pd.DataFrame) -> Mapping[str, Any]:
    """What 8 % gains over each task's best rank."""
    wide, limit = _wide(rows)
    return {"values": -matrix(cost_of_papers_rank(wide)), "limit": limit}


def cost_of_papers_rank(wide: pd.DataFrame) -> pd.Series:
    """What 8 % loses against each task's best rank, which is chosen on the other seeds."""
    lost = {}
    for seed in wide.index.unique("seed"):
        best = wide.drop(seed, level="seed").groupby("task").mean().idxmax(axis=1)
        for task, ratio in best.items():
            here = wide.loc[(seed, task)]
            lost[seed, task] = here[ratio] - here[PAPERS_RANK]
    return pd.Series(lost).rename_axis(["seed", "task"])


def _steady(comparison: Comparison) -> Comparison:
    """A comparison of means; where all values are equal, it counts columns beyond its bound."""
    return replace(comparison, measure=partial(_counted, comparison))


def _counted(comparison: Comparison, rows: pd.DataFrame) -> Mapping[str, Any]:
    fields = comparison.fields(rows)
    values, bound, tolerance = fields["values"], comparison.bound, comparison.tolerance
    if np.ptp(values):
        return fields
    value = float(values.flat[0])
    inside = value > bound if tolerance is None else abs(value - bound) < tolerance
    counted = {"values": np.full(values.shape[1], float(inside)), "kind": "fraction", "bound": 0.5}
    return counted | {"tolerance": None, "unit": "of the columns", "limit": "", "network": ""}


def adaptation(load: Load) -> Iterator[Comparison]:
    """C6: AdaMerging on three bases; by layer, as in Eq. 8, and where it was measured by task."""
    for setting in DECIDING:
        parts = by_granularity(load(f"{setting.name}-adaptation"))
        for (by, table), (better, worse, role, lead) in product(parts.items(), ADAPTED):
            words = f"{setting.words}8 tasks{', by task' if by == 'task' else ''}"
            says = f"{words}: {NAMES[better]} above {NAMES[worse]}"
            options: dict[str, Any] = {"role": "secondary" if role == "primary" else role}
            if by == "layer":
                quoted = lead if setting.name in TABLE else None
                network = setting.network if worse == "cart" else ""
                options = {"role": role, "paper": quoted, "network": network}
            options["about"] = {"suite": setting.name, "by": by}
            yield comparison(says, better, worse, result=table.copy, **options)


def task_counts(load: Load) -> Iterator[Comparison]:
    """C7: per seed, since each draws its own subsets of tasks."""
    table = load("vision20-task_counts")
    few, many = 4, int(table["count"].max())
    percent = table.assign(percent=100 * table["normalised"])
    means = percent.groupby(["method", "count", "seed"])["percent"].mean()
    lost = (means.xs(few, level="count") - means.xs(many, level="count")).rename("lost")
    of = partial(comparison, keys=("seed",), unit="points")
    by_count = partial(of, result=means.reset_index, value="percent")
    kinds = {"cart": "", "cart, scale searched": "scale searched, "}
    for (cart, words), other in product(kinds.items(), ("average", "task_arithmetic", "ties")):
        least = (means[cart] - means[other]).unstack("count").loc[:, few:].mean().idxmin()
        role: Role = "secondary" if words else "primary"
        says = f"{words}CART above {NAMES[other]} at {least} tasks, where its lead is least"
        at = {"where": {"count": least}, "about": {"count": "least"}}
        yield by_count(says, cart, other, **at, role=role)
        says = f"{words}CART loses less than {NAMES[other]} from {few} to {many} tasks"
        fall = {"result": lost.reset_index, "value": "lost", "falling": True}
        yield of(says, cart, other, **fall, about={"count": "loss"}, role=role)
        if other == "task_arithmetic":
            says = f"{words}2 tasks: CART, which is the average, above {NAMES[other]}"
            at = {"where": {"count": 2}, "about": {"count": 2}}
            yield by_count(says, cart, other, **at, role="control")


def compression(load: Load) -> Iterator[Comparison]:
    """C8: CART-Indexing beside the experts, EMR and TALL masks.

    Both readings of ``rest`` are primary, as the paper names none. Results without it: the average.
    """
    suites = [(s, *pair) for s in DECIDING for pair in s.suites(s.compressed)]
    cases = product(suites, {"own": "", "average": ", rest averaged"}.items(), RIVALS)
    for (setting, suite, words), (rest, averaged), (rival, options, name, role) in cases:
        table, paper = with_rest(load(f"{suite}-compression")), INDEXING.get(suite, {})
        if (table["rest"] == rest).any():
            says = f"{words}{averaged}: within 2 points of {name}"
            mine = {"method": "cart_indexing", "setting": "rank_ratio=0.08", "rest": rest}
            other = {"method": rival, "setting": options}
            lead = paper["cart_indexing"] - paper[rival] if paper else None
            network = setting.network if averaged and suite.endswith("8") else ""
            about = {"suite": suite, "rest": rest, "better": "CART-Indexing", "worse": rival}
            within: dict[str, Any] = {"bound": -NEAR, "paper": lead, "network": network}
            yield comparison(says, mine, other, about=about, result=table.copy, role=role, **within)


def loop(load: Load) -> Iterator[Comparison]:
    """C9: losses along the path over k; that it starts and ends at the average is an identity."""
    for setting in (each for each in SETTINGS if each.plane == "ranks"):  # others have no losses
        result, words, role = partial(_plane, load, setting), setting.words, setting.role
        about = {"suite": setting.name}
        compare = partial(comparison, result=result, about=about, value="loss", falling=True)
        for scale in (1.0, 2.0, 3.0) if role == "primary" else (1.0,):
            name, own = f"{words}scale {scale:g}:", role if scale == 1.0 else "secondary"
            ratios = (PAPERS_RANK, 0.0, 0.32)
            inner, ends, far = (_centred(ratio, scale) for ratio in ratios)
            whole = compare(f"{name} lower loss at 8 % than at the average", inner, ends, role=own)
            yield whole
            yield compare(f"{name} lower loss at 8 % than at 32 %", inner, far, role=own)
            drops = whole.of(load(result)).values.mean(0)
            worst = sorted({*load(result)["task"]})[int(drops.argmin())]
            says = f"{name} lower than at the average on {worst}, the least favourable task"
            one: dict[str, Any] = {"where": {"task": worst}, "about": about | {"task": "worst"}}
            yield compare(says, inner, ends, **one, keys=("seed",), role="secondary")
        says = f"{words}lower loss at 8 % than that of task arithmetic"
        yield compare(says, _centred(PAPERS_RANK), UNCENTRED | {"rank_ratio": 1.0}, role=role)


def text(load: Load) -> Iterator[Comparison]:
    """C10: accuracy on sentences; bits per character of texts."""
    sentences = partial(baselines, "sentences8", load=load)
    bits: dict[str, Any] = {"value": "loss", "falling": True, "unit": "bits"}
    bits |= {"scale": lambda nats: nats / math.log(2), "role": "secondary"}
    bits["about"] = {"suite": "text4"}
    for other in ("average", "task_arithmetic", "ties"):
        lead, about = GLUE["cart"] - GLUE[other], {"suite": "sentences8"}
        says = f"sentences: CART above {NAMES[other]}"
        yield comparison(says, "cart", other, about=about, result=sentences, paper=lead)
        says = f"texts: CART needs fewer bits per character than {NAMES[other]}"
        yield comparison(says, "cart", other, result="text4-baselines", **bits)


TESTS = (
    *(order, bell, interference, steep_and_slow, rank),
    *(adaptation, task_counts, compression, loop, text),
)
CLAIMS = read_claims("mergebook.cart", {f"C{i}": test for i, test in enumerate(TESTS, 1)})
