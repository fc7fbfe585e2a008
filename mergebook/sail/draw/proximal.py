"""The figures of chapter 51: where weights come from, the chain from data to loss, and bounds."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from mergebook.lab.statistics import interval
from mergelib.sail.proximal import interactions, proximal_weights, squared_distances

if TYPE_CHECKING:
    from matplotlib.axes import Axes

CORNERS = np.array([[0.0, 0.0], [1.0, 0.0], [0.5, 0.866]])
KINDS = {
    "MMD² (V)": ("#0072b2", "o"),
    "MMD² (U)": ("#56b4e9", "s"),
    "TV of bins": ("#009e73", "^"),
    "TV of atoms": ("#d55e00", "D"),
}
LINKS = {
    "parameters": ("nearest to θ*", "#0072b2", "o"),
    "loss": ("least loss", "#d55e00", "^"),
    "trained": ("least loss, retrained", "#e69f00", "s"),
}
STARTS = {"random": "#8c8c8c", "nearest source": "#56b4e9", "proximal": "#0072b2"}
BOUNDS = {
    "truth": ("truth", "#000000", "-"),
    "printed": ("as printed", "#d55e00", "--"),
    "literal": ("with the paper's τ²", "#e69f00", ":"),
    "repaired": ("repaired", "#009e73", "-."),
}


def feet(sources: Tensor, targets: Tensor, ax: "Axes") -> None:
    """Two sources, and targets with the point of the segment that is nearest to each."""
    ax.plot(*sources.T, color="#8c8c8c", lw=1.4)
    for number, target in enumerate(targets):
        weights = proximal_weights(*squared_distances(sources, target)).weights
        ends = torch.stack([target, weights @ sources])
        ax.plot(*ends.T, ":", color="#000000", lw=1.2)
        labels = ("target", "θᴾ") if number == 0 else (None, None)
        ax.plot(*ends[0], "*", color="#d55e00", ms=11, label=labels[0])
        ax.plot(*ends[1], "o", color="#0072b2", ms=7, label=labels[1])
    for name, source in zip(("θ₁", "θ₂"), sources, strict=True):
        ax.plot(*source, "s", color="#000000", ms=6)
        ax.annotate(name, source.tolist(), xytext=(0, -16), textcoords="offset points", ha="center")
    ax.set(aspect="equal")
    ax.axis("off")


def simplex_levels(offsets: Tensor, ax: "Axes") -> None:
    """Predicted squared distance over all weights of three sources, and the best weights."""
    squares, between = squared_distances(offsets, torch.zeros(offsets.shape[1]))
    matrix = interactions(squares, between)
    best = proximal_weights(squares, between).weights
    steps = np.linspace(0, 1, 61)
    grid = np.array([(a, b, 1 - a - b) for a in steps for b in steps if a + b <= 1 + 1e-9])
    values = np.einsum("ni,ij,nj->n", grid, matrix.numpy(), grid) / 2
    across, up = (grid @ CORNERS).T
    ax.tricontourf(across, up, values, levels=14, cmap="Blues")
    ax.plot(*(best.numpy() @ CORNERS), "o", color="#d55e00", ms=8)
    for number, (corner, square) in enumerate(zip(CORNERS, squares, strict=True)):
        below = corner[1] == 0
        ax.annotate(
            f"θ{'₁₂₃'[number]}\n{float(square) ** 0.5:.2f}",
            corner,
            xytext=(0, -26 if below else 6),
            textcoords="offset points",
            ha="center",
            fontsize=10,
        )
    ax.set(aspect="equal", xlim=(-0.1, 1.1), ylim=(-0.22, 1.12))
    ax.axis("off")


def level_sets(covariance: Tensor, ax: "Axes") -> None:
    """Shifts of a class mean with one total variation, and those with one distance of LDA's θ."""
    angles = torch.linspace(0, 2 * np.pi, 200, dtype=torch.float64)
    ways = torch.stack([angles.cos(), angles.sin()])
    solved = torch.linalg.solve(covariance, ways)
    lengths = {"data": (ways * solved).sum(0).sqrt(), "parameters": solved.norm(dim=0)}
    styles = {"data": ("#0072b2", "-"), "parameters": ("#d55e00", "--")}
    for name, length in lengths.items():
        shade, style = styles[name]
        for number, level in enumerate((0.5, 1.0)):
            text = f"equal distance of {name}" if number == 0 else None
            ax.plot(*(level * ways / length), style, color=shade, label=text)
    ax.set(aspect="equal", xlabel="shift along x₁", ylabel="shift along x₂", ylim=(-0.6, 1.1))


def saturation(table: pd.DataFrame, ax: "Axes") -> None:
    """γ₁ against the largest total variation, by both distances."""
    ax.plot(table["TV"], table["distance"], "--", color="#d55e00", label="distance of parameters")
    ax.plot(table["TV"], table["variation"], "-", color="#0072b2", label="total variation")
    ax.set(xlabel="largest of the three TV", ylabel="weight γ₁")


def share_estimates(table: pd.DataFrame, ax: "Axes") -> None:
    """Estimated γ₁ against ρ, mean and range that holds 95 % of seeds, per kind of distance."""
    for shift, (kind, (shade, mark)) in zip(
        (-0.018, -0.006, 0.006, 0.018), KINDS.items(), strict=True
    ):
        groups = table[table["kind"] == kind].groupby("share")["weight"]
        middle = groups.mean()
        ends = [np.quantile(own, (0.025, 0.975)) for _, own in groups]
        spread = np.abs(np.array(ends).T - middle.to_numpy())
        ax.errorbar(middle.index + shift, middle, spread, fmt=mark, color=shade, ms=5, label=kind)
    _identity(ax)


def links(table: pd.DataFrame, ax: "Axes") -> None:
    """Best γ₁ against ρ, one line per kind, with 95 % intervals where there are repeats."""
    for name, (text, shade, mark) in LINKS.items():
        if name not in table:
            continue
        groups = table.groupby("share")[name]
        middle = groups.mean()
        spread = [interval(own.tolist())[1] if len(own) > 1 else 0.0 for _, own in groups]
        ax.errorbar(middle.index, middle, spread, fmt=mark + "-", color=shade, ms=5, label=text)
    _identity(ax)


def _identity(ax: "Axes") -> None:
    ax.plot([0, 1], [0, 1], color="#8c8c8c", lw=1.2, ls="--", zorder=0, label="γ₁ = ρ")
    ax.set(xlabel="share ρ of D₁ in the target")


def excesses(table: pd.DataFrame, ax: "Axes") -> None:
    """Excess loss against gradient steps, and Theorem 2's bound, per start."""
    for name, shade in STARTS.items():
        part = table[table["start"] == name]
        ax.plot(part["step"], part["excess"], color=shade, label=name)
        ax.plot(part["step"], part["bound"], ":", color=shade, lw=1.3)
    ax.set(yscale="log", xlabel="step", ylabel="excess loss", ylim=(1e-8, None))


def bounds(table: pd.DataFrame, against: str, names: Sequence[str], ax: "Axes") -> None:
    """Truth and bounds against one column, on a logarithmic axis."""
    for name in names:
        text, shade, style = BOUNDS[name]
        ax.plot(table[against], table[name], style, color=shade, marker=".", label=text)
    ax.set(xscale="log")


def named_once(*axes: "Axes") -> Mapping[str, object]:
    """Handles of all axes by their label, each once, for one legend of a figure."""
    found: dict[str, object] = {}
    for ax in axes:
        for handle, name in zip(*ax.get_legend_handles_labels(), strict=True):
            found.setdefault(name, handle)
    return found
