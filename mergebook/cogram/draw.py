"""CoGraM's algorithm as a drawing, and the figures that its chapters show more than once."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from mergebook.cogram.read import CASES, Case, Source, steepness_curve

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BLUE, ORANGE, GREY, PURPLE, GREEN = "#0072b2", "#d55e00", "#8c8c8c", "#7b4ea3", "#009e73"
SHADES = (BLUE, ORANGE, GREEN, PURPLE, "black", "#56b4e9")
_PALE = {BLUE: "#e3eff8", ORANGE: "#fae6da", GREEN: "#ddf2ea", PURPLE: "#efe7f6", GREY: "#f0f0f0"}


def algorithm() -> "Figure":
    """CoGraM drawn: above, what is refined into what; below, one decision.

    After Figures 1 and 2 of Lenz, CoGraM, with the rollback added to the latter.
    """
    import matplotlib.pyplot as plt

    figure, (top, bottom) = plt.subplots(2, 1, figsize=(7.2, 7.6), height_ratios=[1, 1.75])
    for ax in (top, bottom):
        ax.set(xlim=(0, 10), aspect="auto")
        ax.axis("off")
    _granularity(top)
    _decision(bottom)
    return figure


def _granularity(ax: "Axes") -> None:
    """Layers, one layer's neurons, one neuron's weights."""
    ax.set(ylim=(0, 4.1), title="From coarse to fine")
    columns = ((0.3, "layers, last one first"), (3.9, "neurons of a layer"), (7.5, "its weights"))
    for (x, name), pieces in zip(columns, ((1, 4), (4, 1), (4, 5)), strict=True):
        high, wide = 2.6 / pieces[0], 2.2 / pieces[1]
        for row in range(pieces[0]):
            for column in range(pieces[1]):
                chosen = (row, column) == (0, pieces[1] - 1)
                shade = ORANGE if chosen else BLUE
                _patch(
                    ax, x + column * wide, 3.3 - (row + 1) * high, 0.86 * wide, high - 0.14, shade
                )
        ax.text(x + 1.05, 3.5, name, ha="center", fontsize=11)
    for x in (2.55, 6.15):
        _arrow(ax, (x, 2.0), (x + 1.25, 2.0))
        ax.text(x + 0.62, 2.15, "refine", ha="center", fontsize=11)
    ax.text(
        5, 0.1, "refine where |ΔL| < τ min (uncertain) or |ΔL| > τ max (too coarse)", ha="center"
    )


def _decision(ax: "Axes") -> None:
    """Two candidates, their losses, and what follows."""
    ax.set(ylim=(0, 8.4), title="One decision, at any level")
    _box(ax, 0.1, 6.7, 3.1, "M with A's part", BLUE)
    _box(ax, 0.1, 5.0, 3.1, "M with B's part", GREEN)
    _box(ax, 4.4, 5.85, 1.9, "ΔL = $L_A - L_B$", GREY)
    for y, name in ((7.25, "loss $L_A$"), (5.55, "loss $L_B$")):
        _arrow(ax, (3.25, y), (4.35, 6.4))
        ax.text(3.8, y + (0.15 if y > 7 else -0.5), name, ha="center", fontsize=11)
    _box(ax, 8.2, 5.7, 1.7, "next finer\nlevel", ORANGE, 1.4)
    _arrow(ax, (6.35, 6.4), (8.15, 6.4))
    ax.text(7.25, 6.55, "outside of\nτ min … τ max", ha="center", va="bottom", fontsize=10)
    mixture = "mix: α A + (1 − α) B\nα = σ(−λ ΔL)"
    _box(ax, 3.9, 3.3, 3.2, mixture, PURPLE, 1.4)
    _arrow(ax, (5.5, 5.8), (5.5, 4.75))
    ax.text(5.6, 5.2, "within, or no finer level", fontsize=10, va="center")
    _box(ax, 4.2, 1.35, 2.6, "did M's loss fall?", GREY)
    _arrow(ax, (5.5, 3.25), (5.5, 2.5))
    ax.text(5.6, 2.85, "put into M", fontsize=10, va="center")
    _box(ax, 0.1, 1.35, 2.6, "accept", GREEN)
    _arrow(ax, (4.15, 1.9), (2.75, 1.9))
    ax.text(3.45, 2.05, "yes, or\nit is a layer", ha="center", fontsize=10)
    _box(ax, 7.9, 1.35, 2.0, "roll back", ORANGE)
    _arrow(ax, (6.85, 1.9), (7.85, 1.9))
    ax.text(7.35, 2.05, "no", ha="center", fontsize=10)
    ax.text(
        5, 0.3, "then the next part; after the first layer, M is the next pass's M", ha="center"
    )


def _patch(ax: "Axes", x: float, y: float, wide: float, high: float, shade: str) -> None:
    from matplotlib.patches import FancyBboxPatch

    shape = "round,pad=0,rounding_size=0.08"
    ax.add_patch(
        FancyBboxPatch((x, y), wide, high, shape, edgecolor=shade, facecolor=_PALE[shade], lw=1.2)
    )


def _box(
    ax: "Axes", x: float, y: float, wide: float, text: str, shade: str, high: float = 1.1
) -> None:
    _patch(ax, x, y, wide, high, shade)
    ax.text(x + wide / 2, y + high / 2, text, ha="center", va="center", fontsize=12)


def _arrow(ax: "Axes", start: tuple[float, float], end: tuple[float, float]) -> None:
    arrow = {"arrowstyle": "-|>", "lw": 1.4, "color": "#444444"}
    ax.annotate("", xy=end, xytext=start, arrowprops=arrow)


def named(case: Case) -> str:
    """A case as axes write it."""
    return f"{case[0]},\n{case[1]} weights"


def forest(
    panels: Mapping[str, Mapping[str, pd.DataFrame]],
    xlabel: str,
    *,
    zero: float = 0.0,
    logarithmic: bool = False,
) -> "Figure":
    """Intervals: one panel per source, one row per case, one colour per comparison."""
    import matplotlib.pyplot as plt

    most = max(len(runs) for runs in panels.values())
    size = (7.2, len(panels) * (1.2 + 0.62 * most))
    figure, axes = plt.subplots(len(panels), 1, figsize=size, sharex=True, squeeze=False)
    for ax, (title, runs) in zip(axes[:, 0], panels.items(), strict=True):
        for place, (name, table) in enumerate(runs.items()):
            middle, error = _interval(table)
            shift = 0.75 * (place / (len(runs) - 1) - 0.5) if len(runs) > 1 else 0.0
            style = {"color": SHADES[place], "ms": 6, "capsize": 3, "lw": 1.8, "label": name}
            rows = np.arange(len(table)) + shift
            ax.errorbar(middle, rows, xerr=error, fmt="osDv^P"[place], **style)
        ax.axvline(zero, color="black", lw=1)
        ax.set(title=title, yticks=range(len(table)), yticklabels=[*map(named, table.index)])
        for line in np.arange(len(table) - 1) + 0.5:
            ax.axhline(line, color=GREY, lw=0.6, ls=":")
        ax.invert_yaxis()
        ax.grid(visible=False, axis="y")
        if logarithmic:
            ax.set_xscale("log")
            ax.set_xticks([0.1, 0.2, 0.5, 1, 2], ["0.1", "0.2", "0.5", "1", "2"])
            ax.minorticks_off()
    axes[-1, 0].set_xlabel(xlabel)
    handles = axes[0, 0].get_legend_handles_labels()
    figure.legend(*handles, loc="outside upper left", ncols=2, fontsize=10)
    return figure


def _interval(table: pd.DataFrame) -> tuple[Any, Any]:
    if "ratio" in table:
        middle = table["ratio"].to_numpy()
        return middle, np.array([middle - table["low"], table["high"] - middle])
    return table["mean"].to_numpy(), table["half_width"].to_numpy()


def by_seed(
    source: Source, start: str, runs: Mapping[str, pd.Series], titles: Sequence[str]
) -> "Figure":
    """Accuracy of every seed, seeds in order of A's and B's mean, homogeneous above heterogeneous."""
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(2, 1, figsize=(7.2, 8.4), sharey=True)
    for ax, data, title in zip(axes, ("homogeneous", "heterogeneous"), titles, strict=True):
        a, b = (source.of(method)[data, start] for method in ("a", "b"))
        order = ((a + b) / 2).sort_values().index
        ends = np.sort([a[order], b[order]], axis=0)
        places = range(len(order))
        ax.vlines(places, *ends, color=GREY, lw=7, label=f"A to B: mean {ends.mean():.1f}")
        ax.plot(places, ends.mean(0), "_", color=GREY, ms=8, mew=4)
        for (name, values), shade, mark in zip(runs.items(), SHADES, "osD^v", strict=False):
            mine = values[data, start][order]
            text = f"{name}: mean {mine.mean():.1f}"
            ax.plot(places, mine, mark + "-", ms=5, lw=1, color=shade, label=text)
        ax.legend(loc="lower left", bbox_to_anchor=(-0.02, 1.0), ncols=2, fontsize=10)
        ax.set_title(title, pad=22 + 16 * ((len(runs) + 2) // 2))
        ax.set(ylabel="test accuracy, %", ylim=(0, 100), xticks=places)
        ax.set_xticklabels(order, fontsize=8)
    axes[1].set_xlabel("seed, in order of the mean of A and B")
    return figure


def losses_of_decisions(log: pd.DataFrame) -> "Figure":
    """A log's losses as a staircase: filled marks were accepted, hollow ones rolled back."""
    import matplotlib.pyplot as plt

    figure, ax = plt.subplots()
    stays = np.where(log["accepted"], log["after"], log["before"])
    ax.step(range(len(log) + 1), [log["before"][0], *stays], where="post", color=BLUE, lw=1.5)
    for row, (after, accepted) in enumerate(zip(log["after"], log["accepted"], strict=True), 1):
        edge, face = (BLUE, BLUE) if accepted else (ORANGE, "white")
        ax.plot(row, after, "o", ms=9, mec=edge, mfc=face)
    for row in log.index[log["case"] == "uncertain"]:
        text = "left to its\nneurons"
        ax.text(row + 1, stays[row] - 0.012, text, ha="center", va="top", fontsize=10)
    ax.axvline(len(log) / 2 + 0.5, color=GREY, ls=":", lw=1.5)
    ax.text(len(log) / 2 + 0.4, 0.95 * log["before"][0], "pass 1", ha="right")
    ax.text(len(log) / 2 + 0.6, 0.95 * log["before"][0], "pass 2")
    where = {"2": "last layer", "0": "first layer"}
    names = [
        where[layer] if level == "layer" else f"neuron {unit + 1}"
        for layer, level, unit in zip(log["layer"], log["level"], log["unit"], strict=True)
    ]
    ax.set(ylabel="loss of M, nats", ylim=(0, None))
    ax.set_xticks(range(len(log) + 1), ["start", *names], rotation=40, ha="right")
    return figure


def neuron_decisions(log: pd.DataFrame, steepness: float = 5.5) -> "Figure":
    """Loss differences of neurons, one panel per layer, with the mixing factor on the right axis."""
    import matplotlib.pyplot as plt
    from matplotlib.patches import Patch

    layers = [*log.groupby("layer", sort=False)]
    widths = [len(part) + 10 for _, part in layers]
    figure, axes = plt.subplots(1, len(layers), figsize=(8, 3.8), width_ratios=widths, sharey=True)
    for ax, (name, part) in zip(axes, layers, strict=True):
        shades = np.where(part["accepted"], BLUE, ORANGE)
        ax.bar(part["unit"], part["loss a"] - part["loss b"], color=shades, width=0.8)
        ax.axhline(0, color="black", lw=0.8)
        ax.set(xlabel="neuron", title=f"layer {name}")
    axes[0].set_ylabel("ΔL, nats (negative: A better)")
    back = (lambda gap: _sigmoid(-steepness * gap), lambda share: _logit(share) / -steepness)
    axes[-1].secondary_yaxis("right", functions=back).set_ylabel("α, share of A")
    handles = [Patch(color=shade) for shade in (BLUE, ORANGE)]
    axes[-1].legend(handles, ["kept", "rolled back"], loc="lower right", ncols=2)
    return figure


def mixing_curve(logs: Mapping[str, pd.DataFrame], steepness: float = 5.5) -> "Figure":
    """The mixing factor against the loss difference, and below it the differences of some logs."""
    import matplotlib.pyplot as plt

    figure, ax = plt.subplots(figsize=(7.2, 4.6))
    grid, end = np.linspace(-1.6, 1.6, 401), 1.6
    ax.plot(grid, _sigmoid(-steepness * grid), color=PURPLE)
    for row, (name, log) in enumerate(logs.items()):
        gaps = (log["loss a"] - log["loss b"]).clip(-end, end)
        height = -0.13 - 0.13 * row
        ax.plot(gaps, np.full(len(gaps), height), "|", ms=11, mew=1.6, color=SHADES[row])
        ax.text(1.68, height, name, va="center", fontsize=10)
    ax.axhline(0, color=GREY, lw=0.8)
    ax.set(xlabel="ΔL, nats (beyond the ends: drawn at the ends)", ylabel="α, share of A")
    ax.set(xlim=(-1.65, 1.65), ylim=(-0.62, 1.05), yticks=[0, 0.25, 0.5, 0.75, 1])
    return figure


def _sigmoid(x: Any) -> Any:
    return 1 / (1 + np.exp(-x))


def _logit(share: Any) -> Any:
    share = np.clip(share, 1e-9, 1 - 1e-9)
    return np.log(share / (1 - share))


def walks(passes: pd.DataFrame) -> "Figure":
    """Mixing factors of the last and the first layer, from `layer_passes`, by start."""
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, 2, figsize=(8, 4.2), sharey=True)
    for ax, start in zip(axes, ("common", "own"), strict=True):
        for data, marker, shade in (("homogeneous", "o", BLUE), ("heterogeneous", "D", ORANGE)):
            points = passes[(passes["start"] == start) & (passes["data"] == data)]
            style = {"marker": marker, "s": 60, "color": shade, "alpha": 0.75, "clip_on": False}
            ax.scatter(points["last"], points["first"], label=data, **style)
        ax.axhline(0.5, color=GREY, lw=0.8)
        ax.axvline(0.5, color=GREY, lw=0.8)
        ax.set(xlim=(0, 1), ylim=(0, 1), title=f"{start} start")
        ax.set_xlabel("α of the last layer (judged first)")
    axes[0].set_ylabel("α of the first layer")
    axes[0].legend(loc="upper left", fontsize=10)
    return figure


def gallery(sides: Mapping[str, tuple[float, Mapping[str, Any]]], count: int = 5) -> "Figure":
    """Pictures in rows, one block of columns per side."""
    import matplotlib.pyplot as plt

    (_, (_, rows)), *_ = sides.items()
    widths = ([1.0] * count + [0.4]) * len(sides)
    figure, axes = plt.subplots(len(rows), len(widths), figsize=(8.4, 3.9), width_ratios=widths)
    for ax in axes.flat:
        ax.axis("off")
    for side, (title, (low, named_rows)) in enumerate(sides.items()):
        first = side * (count + 1)
        for row, (name, pictures) in enumerate(named_rows.items()):
            for ax, picture in zip(axes[row, first:], pictures[:count], strict=False):
                ax.imshow(picture.mean(0), cmap="gray", vmin=low, vmax=1)
            if side == 0:
                axes[row, 0].text(-3, 16, name, ha="right", va="center")
        axes[0, first].set_title(title, fontweight="normal")
    return figure


def places(sources: Sequence[Source]) -> "Figure":
    """Where CoGraM's network lies between B and A, layers and class means, by case and passes."""
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(len(sources), 1, figsize=(7.2, 6.6), sharex=True)
    for ax, source in zip(axes, sources, strict=True):
        for iterations, shift, edge, face in ((1, -0.2, BLUE, "white"), (3, 0.2, ORANGE, ORANGE)):
            found = source.cogram(iterations=iterations, value="toward_a")
            name = "one pass" if iterations == 1 else "three passes"
            for row, case in enumerate(CASES):
                height = row + shift + np.linspace(-0.13, 0.13, len(found[case]))
                style = {"ms": 5, "mec": edge, "mfc": face, "alpha": 0.8}
                ax.plot(found[case], height, "o", **style, label=name if row == 0 else None)
        ax.axvline(0.5, color=GREY, lw=1)
        ax.set(title=source.name, yticks=range(len(CASES)), yticklabels=[*map(named, CASES)])
        ax.invert_yaxis()
    axes[-1].set(xlabel="place between B and A")
    axes[-1].set_xticks([0, 0.25, 0.5, 0.75, 1], ["B", "¼", "½", "¾", "A"])
    axes[0].legend(loc="lower left", bbox_to_anchor=(0.45, 1.0), ncols=2)
    return figure


def steepness(sources: Sequence[Source]) -> "Figure":
    """Validation accuracy of layers against the steepness, class means, one line per case."""
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(len(sources), 1, figsize=(7.2, 6.6), sharex=True)
    for ax, source in zip(axes, sources, strict=True):
        for case, shade, line in zip(CASES, (GREEN, GREEN, BLUE, BLUE), "-:-:", strict=True):
            found = steepness_curve(source, case, "arithmetic")
            style = {"color": shade, "ls": line, "marker": "o", "ms": 5, "capsize": 3}
            text = f"{case[0]}, {case[1]} weights"
            ax.errorbar(found.index, found["mean"], found["half_width"], label=text, **style)
        ax.axvline(5.5, color=GREY, lw=1)
        ax.set(title=source.name, ylabel="validation accuracy, %", xscale="log")
    axes[-1].set_xlabel("steepness λ")
    values = [0.5, 1, 2, 5.5, 10, 20, 50]
    axes[-1].set_xticks(values, [f"{value:g}" for value in values])
    axes[-1].minorticks_off()
    handles = axes[0].get_legend_handles_labels()
    figure.legend(*handles, loc="outside upper left", ncols=2, fontsize=10)
    return figure


def feature_maps(panels: Mapping[str, pd.DataFrame], limit: float = 20) -> "Figure":
    """Differences over offset and scale of the features, a column of maps for each case."""
    import matplotlib.pyplot as plt

    size = (8.4, 1.0 + 1.35 * len(panels))
    figure = plt.figure(figsize=size)
    axes = figure.subplots(len(panels), len(CASES), sharex=True, sharey=True, squeeze=False)
    for row, (title, table) in zip(axes, panels.items(), strict=True):
        for ax, case in zip(row, CASES, strict=True):
            means, widths = (table[name].loc[case].unstack() for name in table)
            style = {"cmap": "RdBu", "vmin": -limit, "vmax": limit, "aspect": "auto"}
            ax.imshow(means, origin="lower", **style)
            for (y, x), value in np.ndenumerate(means):
                unsure = abs(value) < widths.iloc[y, x]
                shade = GREY if unsure else "white" if abs(value) > 0.7 * limit else "black"
                ax.text(x, y, round(value), ha="center", va="center", fontsize=8, color=shade)
            ax.grid(visible=False)
            ax.tick_params(labelsize=9)
            ax.set_xticks(range(means.shape[1]), [f"{offset:g}" for offset in means.columns])
            ax.set_yticks(range(len(means)), [f"{scale:g}" for scale in means.index])
        row[0].set_ylabel(f"{title}\nscale", fontsize=10)
    for ax, case in zip(axes[0], CASES, strict=True):
        ax.set_title(named(case), fontsize=10)
    figure.supxlabel("offset of the features, standard deviations", fontsize=10)
    return figure
