"""Drawing Frank-Wolfe in the plane of three experts: their hull, a walk, and a step's gap."""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def hard_path(history: pd.DataFrame, corners: Mapping[str, np.ndarray], start: str) -> np.ndarray:
    """The points of a hard walk in a plane, ``(steps + 1, 2)``, from its vertices and steps."""
    points = [corners[start]]
    for vertex, moved in zip(history["vertex"], history["moved"], strict=True):
        points.append(points[-1] + moved * (corners[vertex] - points[-1]))
    return np.array(points)


def draw_gap(ax: "Axes", here: np.ndarray, downhill: np.ndarray, width: float) -> None:
    """A step's gap: the strip between two level lines of the linear loss, its width, an arrow."""
    normal = np.array([-downhill[1], downhill[0]])
    near = [here - 20 * normal, here + 20 * normal]
    far = [point + width * downhill for point in near]
    ax.fill(*np.array([*near, *far[::-1]]).T, color="#e69f00", alpha=0.13, lw=0)
    for line in (near, far):
        ax.plot(*np.array(line).T, "--", color="#a06a00", lw=1.3)
    arrow = {"arrowstyle": "-|>", "lw": 2.4}
    ax.annotate("", _pair(here + 1.7 * downhill), _pair(here), arrowprops=arrow)
    x, y = _pair(here + 1.6 * downhill + 0.1 * normal)
    ax.text(x, y, r"$-\nabla\ell$", fontsize=14)
    aside = here - 1.8 * normal
    both_ways = {"arrowstyle": "<|-|>", "color": "#a06a00"}
    ax.annotate("", _pair(aside + width * downhill), _pair(aside), arrowprops=both_ways)
    x, y = _pair(aside + 0.4 * width * downhill - 0.1 * normal)
    ax.text(x, y, r"$g/\|\nabla\ell\|$", ha="right", fontsize=14)


def _pair(point: np.ndarray) -> tuple[float, float]:
    return float(point[0]), float(point[1])


def draw_hull(
    ax: "Axes",
    surface: Callable[[np.ndarray, np.ndarray], np.ndarray],
    sides: Sequence[np.ndarray],
    corners: Mapping[str, np.ndarray],
    chosen: np.ndarray,
) -> None:
    """Contours of a loss, the triangle of three experts, and their names."""
    across, upwards = (np.linspace(side[0], side[-1], 160) for side in sides)
    heights = surface(upwards, across)
    lines = ax.contour(across, upwards, heights, levels=22, cmap="cividis", linewidths=1.1)
    shown = np.asarray(lines.levels)[1::3].tolist()
    ax.clabel(lines, shown, fmt="%.2f", fontsize=9)
    ax.fill(*np.array(list(corners.values())).T, facecolor="none", edgecolor="black", lw=1.8)
    for name, corner in corners.items():
        text = f"{name} = s" if np.allclose(corner, chosen) else name
        shift = 0.3 if corner[1] > 1 else -0.5
        spot = ax.text(corner[0], corner[1] + shift, text, ha="center", fontweight="bold", zorder=6)
        spot.set_bbox({"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 1.5})
    ax.grid(visible=False)
    ax.set(aspect="equal", xlim=(across[0], across[-1]), ylim=(upwards[0], upwards[-1]))
    ax.set_xlabel("distance in weights")
