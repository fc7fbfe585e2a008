"""The leaderboard: every method on every suite, read from the stored results."""

import math
from contextlib import suppress
from functools import cache
from importlib.resources import files
from itertools import product
from string import Template
from typing import NamedTuple

import pandas as pd

from mergebook.cart.read import COMPRESSED, baselines, compressed
from mergebook.lab.results import MissingResult, load_result, load_table
from mergebook.lab.statistics import interval
from mergebook.plots import LABELS, label
from mergebook.suites.families import family_of

# Each suite with the network that it is run on, and a short name for wide tables.
SUITES = {
    "imagenet8": ("8 image tasks, EfficientNet-Lite0 pretrained on ImageNet", "EffNet 8"),
    "imagenet14": ("14 image tasks, EfficientNet-Lite0 pretrained on ImageNet", "EffNet 14"),
    "imagenet20": ("20 image tasks, EfficientNet-Lite0 pretrained on ImageNet", "EffNet 20"),
    "sentences8": ("8 sentence tasks, MiniLM", "MiniLM 8"),
    "vision8": ("8 image tasks, small ViT", "ViT 8"),
    "vision14": ("14 image tasks, small ViT", "ViT 14"),
    "vision20": ("20 image tasks, small ViT", "ViT 20"),
    "glyphs8": ("8 rendered scripts, small ViT", "glyphs 8"),
    "glyphs14": ("14 rendered scripts, small ViT", "glyphs 14"),
    "glyphs20": ("20 rendered scripts, small ViT", "glyphs 20"),
    "text4": ("4 languages, small GPT (accuracy of the next character)", "GPT 4"),
}
NOTHING, UNLABELLED, LABELLED = "none", "unlabelled", "labelled"
REFERENCES = ("pretrained", "individual")
# The data that a method merges with, where it needs any.
DATA = {
    **dict.fromkeys(("fisher", "regmean", "regmean_plusplus", "esm"), UNLABELLED),
    **dict.fromkeys(("adamerging", "concrete", "surgery", "surgery+cart", "symerge"), UNLABELLED),
    **dict.fromkeys(("greedy_soup", "multitask", "frank_wolfe", "frank_wolfe+cart"), LABELLED),
}
# Models under heads that are fitted to the validation labels, for which settings are chosen too.
FITTED = {name: f"{name}, fitted heads" for name in LABELS if name != "individual"}
DATA |= dict.fromkeys(FITTED.values(), LABELLED)
# Methods that must know the task of each input when the merged model is used.
TASK_KNOWN = ("surgery", "surgery+cart", *COMPRESSED.values())
SINCE_CART = ("since", "boosting", "svc", "ace", "doge", "esm", "symerge")
RULES = ("baselines", "baselines-others", *SINCE_CART)
PROCEDURES = ("procedures", "procedures-others", "regmean")
PARTS = (*RULES, *PROCEDURES, "compression", "fresh_heads", "fresh_heads-since")
# The variants of procedures that stand for them, as the results name them.
_SHOWN = {
    **{name: name for name in (*REFERENCES, *DATA)},
    "frank_wolfe soft, by layer": "frank_wolfe",
    "frank_wolfe soft, by layer, from cart": "frank_wolfe+cart",
}
_LEFT_OUT = {name for name in COMPRESSED.values() if "CART" in name and "8%" not in name}
_LABELS = {
    "individual": "one expert per task",
    "CART-Indexing, rest averaged, 8%": "CART-Indexing, averaged rest",
    "CART-Indexing, 8%": "CART-Indexing",
    **{
        f"{base}+{then}": f"{words} on {label(base)}"
        for base in ("task_arithmetic", "ties", "cart", "tsv", "iso_c")
        for then, words in {"svc": "SVC", "subspace_boosting": "subspace boosting"}.items()
    },
    "cart+svc": "SVC on CART, default rank",
    "surgery": "Surgery on the average",
    "surgery+cart": "Surgery on CART",
    "frank_wolfe": "Frank-Wolfe",
    "frank_wolfe+cart": "Frank-Wolfe from CART",
    **{text: f"{label(name)}, fitted heads" for name, text in FITTED.items()},
}
_read_once = cache(load_table)


def title(method: str) -> str:
    """The name of a method as the leaderboard shows it."""
    return _LABELS.get(method, label(method))


def scores() -> pd.DataFrame:
    """Accuracies (0..1) and ``normalised`` ones on test data by suite, method, seed and task."""
    parts = []
    for suite, part in product(SUITES, PARTS):
        with suppress(MissingResult):
            table = _tested(suite, part)
            experts = table[table["method"] == "individual"].set_index(["seed", "task"])["accuracy"]
            table = table.join(experts.rename("expert"), on=["seed", "task"])
            table["normalised"] = table["accuracy"] / table["expert"]
            parts.append(table.assign(suite=suite))
    table = pd.concat(parts)[["suite", "method", "seed", "task", "accuracy", "normalised"]]
    return table.drop_duplicates(["suite", "method", "seed", "task"], ignore_index=True)


def _tested(suite: str, part: str) -> pd.DataFrame:
    if part == "baselines":
        return baselines(suite)
    if part == "compression":
        return compressed(suite).query("method not in @_LEFT_OUT")
    table = load_table(f"{suite}-{part}")
    if part.startswith("fresh_heads"):
        fitted = table[(table["head"] == "validation") & (table["by"] != "frozen")]
        alone = table[(table["head"] == "frozen") & (table["method"] == "individual")]
        table = pd.concat([fitted.assign(method=fitted["method"].map(FITTED)), alone])
    if part == "symerge":  # whose other procedures have other inputs than elsewhere
        table = table[table["method"].isin([part, "individual"])]
    if part in PROCEDURES:
        table["method"] = table["method"].map(_SHOWN)
    return table.dropna(subset=["method"])


class Row(NamedTuple):
    """A method on a suite, in per cent of test accuracy where nothing else is said."""

    suite: str
    method: str
    data: str  # what it merges with: `NOTHING`, `UNLABELLED` or `LABELLED`
    task_known: bool  # whether it must know the task of each input
    accuracy: float  # mean over tasks and seeds
    half_width: float  # of its 95 % interval over seeds
    normalised: float  # mean ratio to the experts
    worst: float  # ratio to the expert on the task where it is least
    labels: int  # labelled examples that it was given, or chosen by
    seconds: float  # of a procedure; NaN for rules
    seeds: int


@cache
def entries() -> list[Row]:
    """The leaderboard, by suites, each from the most accurate method downwards."""
    rows = []
    for key, part in scores().groupby(["suite", "method"], sort=False):
        suite, method = map(str, key)
        needs = DATA.get(method, NOTHING), method in TASK_KNOWN
        accuracy = interval([*100 * part.groupby("seed")["accuracy"].mean()])
        by_task = 100 * part.groupby("task")["normalised"].mean()
        ratios = float(by_task.mean()), float(by_task.min())
        spent, seeds = _spent(suite, method), part["seed"].nunique()
        rows.append(Row(suite, method, *needs, *accuracy, *ratios, *spent, seeds))
    return sorted(rows, key=lambda row: (list(SUITES).index(row.suite), -row.accuracy))


def _spent(suite: str, method: str) -> tuple[int, float]:
    """Labelled examples that a method was given or chosen by, and seconds of a procedure."""
    family = family_of(suite)
    tasks = len(family.suites[suite])
    validation = tasks * int(family.sizes["default"][1] or 0)
    for part in PROCEDURES:
        with suppress(MissingResult):
            costs = _read_once(f"{suite}-{part}", "cost").replace({"method": _SHOWN})
            own = costs[costs["method"] == method]
            if len(own):
                examples = load_result(f"{suite}-{part}")["provenance"]["settings"]["examples"]
                given = tasks * int(examples) if DATA[method] == LABELLED else 0
                return given + validation * method.endswith("+cart"), float(own["seconds"].mean())
    labelled = method in FITTED.values()
    for part in RULES:
        with suppress(MissingResult):
            chosen = _read_once(f"{suite}-{part}", "chosen")
            if "method" in chosen:
                labelled |= any(chosen.query("method == @method")["settings"])
            else:
                labelled |= bool(chosen["settings"].iloc[0].get(method))
    return validation * labelled, math.nan


def board() -> str:
    """The leaderboard as HTML: one table, shown whole without scripts, sorted by ``data-value``."""
    rows = []
    for row in entries():
        cells = [
            (row.accuracy, f"{row.accuracy:.1f} ± {row.half_width:.1f}"),
            (row.normalised, f"{row.normalised:.0f}"),
            (row.worst, f"{row.worst:.0f}"),
            (row.labels, f"{row.labels:,}"),
            (row.seconds, "" if math.isnan(row.seconds) else f"{row.seconds:.0f}"),
        ]
        rows.append(
            f'<tr data-suite="{row.suite}" data-needs="{row.data} {row.task_known}">'
            f'<th scope="row">{title(row.method)}</th>'
            f'<td class="suite">{SUITES[row.suite][1]}</td><td>{row.data}</td>'
            f"<td>{'yes' if row.task_known else 'no'}</td>"
            + "".join(f'<td data-value="{value}">{text}</td>' for value, text in cells)
            + "</tr>"
        )
    options = "".join(f'<option value="{k}">{words}</option>' for k, (words, _) in SUITES.items())
    page = files("mergebook.chapters").joinpath("assets/leaderboard.html").read_text("utf-8")
    return Template(page).substitute(rows="\n".join(rows), suites=options)
