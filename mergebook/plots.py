"""How the book's figures look, and the charts that its chapters share, in Okabe and Ito's colours.

A *look* is a text of the legend, a colour, and a format of `Axes.plot`; ``looks`` has one for each
group of the column or columns ``by``. Where ``upright``, names stand on the horizontal axis.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from mergebook.lab.statistics import over_seeds

# One palette for the whole book; no other file holds a colour.
BLACK, GREY = "#000000", "#8c8c8c"
BLUE, SKY, GREEN = "#0072b2", "#56b4e9", "#009e73"
VERMILION, ORANGE, PINK, PURPLE = "#d55e00", "#e69f00", "#cc79a7", "#7b4ea3"
NAVY, BROWN, RUST, TAN, SAND = "#004a75", "#a06a00", "#a34000", "#e8813a", "#f4b183"
DARK, SILVER, LIGHT = "#444444", "#999999", "#dedede"
CYCLE = (BLUE, VERMILION, GREEN, PINK, ORANGE, SKY, BLACK, GREY)
SHAPES = "osD^v<>P"

# Method to its label and colour.
METHODS = {
    "pretrained": ("pretrained", GREY),
    "average": ("average", SKY),
    "task_arithmetic": ("task arithmetic", BLUE),
    "low_rank_task_arithmetic": ("low-rank task arithmetic", NAVY),
    "ties": ("TIES", ORANGE),
    "dare": ("DARE", PINK),
    "slerp": ("SLERP", "#b8a100"),
    "model_stock": ("Model Stock", "#3a7ca5"),
    "breadcrumbs": ("Breadcrumbs", "#d9a441"),
    "della": ("DELLA", "#8e5a7e"),
    "consensus": ("Consensus", BROWN),
    "cart": ("CART", VERMILION),
    "tsv": ("TSV", GREEN),
    "iso_c": ("Iso-C", "#4db38f"),
    "iso_cts": ("Iso-CTS", "#00694d"),
    "wudi": ("WUDI", "#5b5bd6"),
    "individual": ("individual", BLACK),
}
COLOURS = {method: shade for method, (_, shade) in METHODS.items()}
LABELS = {method: text for method, (text, _) in METHODS.items()}
# Methods without a colour of their own are purple.
LABELS |= {"fednova": "FedNova", "wsm": "WSM", "doge": "DOGE", "fisher": "Fisher", "esm": "ESM"}
LABELS |= {"regmean": "RegMean", "regmean_plusplus": "RegMean++", "adamerging": "AdaMerging"}
LABELS |= {"adarank": "AdaRank", "concrete": "Concrete", "surgery": "Surgery", "cogram": "CoGraM"}
LABELS |= {"symerge": "SyMerge", "frank_wolfe": "FW", "ace": "ACE", "knots": "KnOTS", "ram": "RAM"}
LABELS |= {"multitask": "multi-task training", "nuslerp": "NuSLERP", "karcher": "Karcher mean"}
LABELS |= {"sce": "SCE", "nearswap": "NearSwap", "arcee_fusion": "Arcee Fusion"}
MARKERS = {"pretrained": "s", "individual": "D"}

RANKS = (1, 2, 4, 8, 16, 32, 100)
SET_MARKERS = "o^sDv"
Look = tuple[str, str, str]
Looks = Mapping[Any, Look]


def use_style() -> None:
    """Set matplotlib's defaults for the book; call once at the top of a notebook."""
    mpl.rc("figure", figsize=(7.2, 4.2), dpi=110, facecolor="white")
    mpl.rc("figure.constrained_layout", use=True)
    mpl.rc("savefig", facecolor="white", bbox="tight")
    mpl.rc("font", size=12)
    mpl.rc("axes", titlesize=13, titleweight="bold", titlelocation="left", axisbelow=True)
    mpl.rc("axes", grid=True, prop_cycle=mpl.rcsetup.cycler(color=list(COLOURS.values())[1:]))
    mpl.rc("axes.spines", top=False, right=False)
    mpl.rc("grid", color="#e3e3e3")
    mpl.rc("lines", linewidth=2.2)
    mpl.rc("legend", frameon=False)


def label(method: str) -> str:
    """A method's name as figures write it."""
    return LABELS.get(method, method.replace("_", " "))


def colour(method: str) -> str:
    """A method's colour, the same in every figure."""
    return COLOURS.get(method, PURPLE)


def method_looks(methods: Iterable[str]) -> dict[str, Look]:
    """The label, colour and format of every method, as `series` and `intervals` take them."""
    return {method: (label(method), colour(method), "o-") for method in methods}


def accuracy_by_task(table: pd.DataFrame) -> Figure:
    """A dot per task and method of `compare`; a bar from the pretrained model to the expert."""
    wide = table.pivot_table(index="task", columns="method", values="accuracy")
    kept = wide["average" if "average" in wide else "pretrained"] / wide["individual"]
    wide = wide.loc[kept.sort_values().index]
    figure, ax = plt.subplots(figsize=(7.2, 1.6 + 0.42 * len(wide)))
    rows = range(len(wide))
    ax.hlines(rows, 100 * wide["pretrained"], 100 * wide["individual"], color="#d0d0d0", lw=7)
    for method in [m for m in table["method"].unique() if m in wide]:
        marker, name = MARKERS.get(method, "o"), label(method)
        values = 100 * wide[method]
        ax.scatter(values, rows, s=60, color=colour(method), marker=marker, label=name, zorder=3)
    ax.set(
        yticks=list(rows), yticklabels=list(wide.index), xlabel="test accuracy, %", xlim=(0, 101)
    )
    ax.legend(loc="lower center", bbox_to_anchor=(0.45, 1.0), ncols=4, fontsize=10)
    return figure


def heat_map(
    values: pd.DataFrame, ax: Axes, *, low: float, high: float, digits: int, bar: str
) -> None:
    """A table as coloured cells with their numbers, dark at ``low``; ``bar`` names the colours."""
    import seaborn as sns

    cells = {"annot": True, "fmt": f".{digits}f", "annot_kws": {"fontsize": 10}}
    colours = {"vmin": low, "vmax": high, "cmap": "cividis"}
    beside = {"label": bar, "fraction": 0.046, "pad": 0.02}
    sns.heatmap(values.astype(float), ax=ax, **cells, **colours, cbar_kws=beside)
    for text, value in zip(ax.texts, values.to_numpy(dtype=float).ravel(), strict=True):
        text.set_color("black" if value > (low + high) / 2 else "white")
    ax.set_xticklabels(ax.get_xticklabels(), rotation=40, ha="right", rotation_mode="anchor")
    ax.set_yticklabels(ax.get_yticklabels(), rotation=0)
    ax.set(xlabel="", ylabel="")
    ax.grid(visible=False)


def rank_axis(ax: Axes, *, scale: str = "log", ticks: Sequence[int] = RANKS) -> None:
    """A horizontal axis for kept ranks in per cent of the full rank."""
    ax.set(xscale=scale, xlabel="kept rank, % of the full rank")
    ax.set_xticks(list(ticks), [str(tick) for tick in ticks])


def forest(
    sets: Mapping[str, pd.DataFrame], ax: Axes, colours: Sequence[str] | Mapping[str, str]
) -> None:
    """Differences with both intervals of `both_intervals`: thick across seeds, thin across tasks.

    Colours are one for each row, or set to colour.
    """
    for k, (name, rows) in enumerate(sets.items()):
        values = rows[["mean", "half_width", "low", "high"]].to_numpy()
        marker = SET_MARKERS[k % len(SET_MARKERS)]
        by_set = colours[name] if isinstance(colours, Mapping) else None
        ax.plot([], [], marker, color=by_set or "#666666", label=name)
        shades = colours if by_set is None else [by_set] * len(rows)
        for i, ((mean, half, low, high), shade) in enumerate(zip(values, shades, strict=True)):
            y = i + 0.75 * ((k + 0.5) / len(sets) - 0.5)
            ax.plot((low, high), (y, y), color=shade, lw=1.2)
            ax.plot((mean - half, mean + half), (y, y), color=shade, lw=3.5)
            ax.plot(mean, y, marker, color=shade, ms=7, mec="white")
    note: dict[str, Any] = {"ha": "right", "va": "bottom", "fontsize": 9}
    ax.text(1, 1.005, "thick: seeds, thin: seeds and tasks", transform=ax.transAxes, **note)
    name_axis(ax, rows.index)


def _errors(rows: pd.DataFrame) -> Any:
    """The lengths of error bars: symmetric, or from columns ``low`` and ``high``, or none."""
    if "low" in rows:
        return np.array([rows["mean"] - rows["low"], rows["high"] - rows["mean"]])
    return rows["half_width"].to_numpy() if "half_width" in rows else None


def _groups(
    table: pd.DataFrame, by: str | list[str] | None, looks: Looks | None, line: str = "-"
) -> Iterator[tuple[Look, pd.DataFrame]]:
    """The look and the rows of each group that has any, in the order of the looks."""
    parts = {None: table} if by is None else dict(iter(table.groupby(by, sort=False)))
    if looks is None:
        words = [", ".join(map(str, key)) if isinstance(key, tuple) else str(key) for key in parts]
        looks = {key: (words[k], CYCLE[k], f"{SHAPES[k]}{line}") for k, key in enumerate(parts)}
    for key, look in looks.items():
        if key in parts:
            yield look, parts[key]


def summary(table: pd.DataFrame, x: str, y: str) -> pd.DataFrame:
    """``mean`` of `y` for each `x`; with several seeds also the ``half_width`` over them."""
    if "seed" in table and table["seed"].nunique() > 1:
        return over_seeds(table, x, y)
    return table.groupby(x, sort=False)[y].mean().to_frame("mean")


def curve(ax: Axes, rows: pd.DataFrame, look: Look, *, band: bool = False, **style: Any) -> None:
    """One line of means over their index, with error bars, or a ``band`` instead."""
    text, shade, fmt = look
    error = _errors(rows)
    drawn: dict[str, Any] = {"color": shade, "label": text, "ms": 5} | style
    if error is None or band:
        ax.plot(rows.index, rows["mean"], fmt, **drawn)
    else:
        bars: dict[str, Any] = {"fmt": fmt, "capsize": 3} | drawn
        ax.errorbar(rows.index, rows["mean"], error, **bars)
    if error is not None and band:
        low, high = error if error.ndim == 2 else (error, error)
        ends = rows["mean"] - low, rows["mean"] + high
        ax.fill_between(rows.index, *ends, color=shade, alpha=0.15, lw=0)


def series(
    ax: Axes,
    table: pd.DataFrame,
    *,
    x: str,
    y: str,
    by: str | list[str] | None = None,
    looks: Looks | None = None,
    band: bool = False,
    **style: Any,
) -> None:
    """Means of `y` over `x`, one `curve` per group, with 95 % intervals where there are seeds."""
    for look, rows in _groups(table, by, looks):
        curve(ax, summary(rows, x, y).sort_index(), look, band=band, **style)


def points(
    ax: Axes,
    table: pd.DataFrame,
    *,
    x: str,
    y: str,
    by: str | list[str] | None = None,
    looks: Looks | None = None,
    **style: Any,
) -> None:
    """Every row as it is, in order, one mark or line per group."""
    for (text, shade, fmt), rows in _groups(table, by, looks, line=""):
        look: dict[str, Any] = {"color": shade, "label": text, "ms": 6} | style
        ax.plot(rows[x], rows[y], fmt, **look)


def dots(
    ax: Axes,
    rows: pd.DataFrame,
    look: Look,
    names: Sequence[Any],
    *,
    shift: float = 0.0,
    upright: bool = False,
    **style: Any,
) -> None:
    """One dot with its interval for each row, at the place of its name, plus a shift."""
    text, shade, fmt = look
    drawn: dict[str, Any] = {"color": shade, "label": text, "fmt": fmt, "ms": 6, "capsize": 3}
    places = np.array([list(names).index(name) for name in rows.index]) + shift
    spots: dict[str, Any] = {"x": rows["mean"], "y": places, "xerr": _errors(rows)}
    if upright:
        spots = {"x": places, "y": rows["mean"], "yerr": _errors(rows)}
    ax.errorbar(**spots, **drawn | style)


def intervals(
    ax: Axes,
    table: pd.DataFrame,
    *,
    value: str,
    at: str,
    by: str | list[str] | None = None,
    looks: Looks | None = None,
    names: Sequence[Any] | Mapping[Any, str] | None = None,
    upright: bool = False,
    gap: float = 0.2,
    **style: Any,
) -> None:
    """Means of a column with 95 % intervals across seeds, groups side by side ``at`` each name."""
    named = names if names is not None else list(dict.fromkeys(table[at]))
    drawn = list(_groups(table[table[at].isin(list(named))], by, looks))
    for k, (look, rows) in enumerate(drawn):
        shift = gap * (k - (len(drawn) - 1) / 2)
        means = summary(rows, at, value)
        dots(ax, means, look, list(named), shift=shift, upright=upright, **style)
    name_axis(ax, list(named.values()) if isinstance(named, Mapping) else named, upright=upright)


def name_axis(ax: Axes, names: Iterable[Any], *, upright: bool = False) -> None:
    """Names at 0, 1, ...: from the top down, or with `upright` from left to right."""
    words = list(map(str, names))
    ends = (-0.5, len(words) - 0.5)
    (ax.xaxis if upright else ax.yaxis).set_ticks(range(len(words)), words)
    ax.set(**{"xlim": ends} if upright else {"ylim": ends[::-1]})


def log_axis(
    ax: Axes, values: Iterable[float], *, unit: float = 1.0, upright: bool = False
) -> None:
    """A logarithmic horizontal axis, or with `upright` the vertical one, with ticks at values."""
    ticks = sorted(set(values))
    axis = ax.yaxis if upright else ax.xaxis
    ax.set(**{f"{axis.axis_name}scale": "log"})
    axis.set_ticks(ticks, [f"{value / unit:g}" for value in ticks])
    axis.minorticks_off()


def legend_outside(figure: Figure, **style: Any) -> None:
    """One legend for all panels of a figure, each label once, outside of the axes."""
    found: dict[str, Any] = {}
    for ax in figure.axes:
        for handle, name in zip(*ax.get_legend_handles_labels(), strict=True):
            found.setdefault(name, handle)
    looks: dict[str, Any] = {"ncols": 3, "loc": "outside lower center"} | style
    figure.legend(list(found.values()), list(found), **looks)
