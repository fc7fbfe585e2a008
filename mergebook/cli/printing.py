"""Tables and figures of comparisons."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from rich.table import Table

from mergelib.cli import printing

if TYPE_CHECKING:
    import pandas as pd


def print_frame(frame: "pd.DataFrame") -> None:
    """Print a table, numbers aligned to the right."""
    table = Table(show_edge=False, header_style="bold")
    for column in frame.columns:
        numeric = frame[column].dtype.kind in "if"
        table.add_column(str(column), justify="right" if numeric else "left", overflow="fold")
    for row in frame.itertuples(index=False):
        table.add_row(*(f"{v:.3f}" if isinstance(v, float) else str(v) for v in row))
    printing.console.print(table)


def print_comparison(table: "pd.DataFrame", settings: dict[str, dict[str, Any]]) -> None:
    """A column a method: accuracy per task in per cent, the means, and what merging cost."""
    from mergebook.plots import label

    groups = [str(method) for method in table["method"].unique()]
    tight: dict[str, Any] = {"show_edge": False, "pad_edge": False, "padding": (0, 0, 0, 1)}
    shown = Table(header_style="bold", title="test accuracy, %", **tight)
    shown.add_column("task", no_wrap=True)
    for method in groups:
        shown.add_column(label(method), justify="right")
    by_task = table.pivot(index="task", columns="method", values="accuracy")
    for task in table["task"].unique():
        shown.add_row(task, *(f"{100 * by_task.loc[task, method]:.1f}" for method in groups))
    shown.add_section()
    means = table.groupby("method")[["accuracy", "normalised", "seconds", "peak_bytes"]].mean()
    means = means.loc[groups]
    lines = (
        ("mean", "accuracy", 100, ".1f"),
        ("normalised", "normalised", 100, ".1f"),
        ("seconds to merge", "seconds", 1, ".2f"),
        ("peak MB", "peak_bytes", 1e-6, ".0f"),
    )
    for name, column, unit, form in lines:
        values = [unit * float(value) for value in means[column].tolist()]
        shown.add_row(name, *("" if value != value else f"{value:{form}}" for value in values))
    printing.console.print(shown)
    for method, options in settings.items():
        if options:
            typer.echo(f"{label(method)}: {', '.join(f'{k}={v}' for k, v in options.items())}")


def save_figure(table: "pd.DataFrame", path: Path) -> None:
    """The dot plot of a comparison, as a PNG file."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    from mergebook.plots import accuracy_by_task, use_style

    with matplotlib.rc_context():
        use_style()
        figure = accuracy_by_task(table)
        figure.savefig(path, dpi=150)
    plt.close(figure)
