"""Print tables in the terminal."""

from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    import pandas as pd

console = Console()


def print_frame(frame: "pd.DataFrame") -> None:
    """Print a table, numbers aligned to the right."""
    table = Table(show_edge=False, header_style="bold")
    for column in frame.columns:
        numeric = frame[column].dtype.kind in "if"
        table.add_column(str(column), justify="right" if numeric else "left", overflow="fold")
    for row in frame.itertuples(index=False):
        table.add_row(*(f"{v:.3f}" if isinstance(v, float) else str(v) for v in row))
    console.print(table)
