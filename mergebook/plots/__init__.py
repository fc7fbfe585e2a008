"""How the book's figures look, and the charts that its chapters share."""

from mergebook.plots.charts import accuracy_by_task, contours, forest, heat_map, rank_axis
from mergebook.plots.style import COLOURS, LABELS, MARKERS, colour, label, use_style

__all__ = [
    "COLOURS",
    "LABELS",
    "MARKERS",
    "accuracy_by_task",
    "colour",
    "contours",
    "forest",
    "heat_map",
    "label",
    "rank_axis",
    "use_style",
]
