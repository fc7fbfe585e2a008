"""What sharpness-aware and linearised fine-tuning change, from the study `remedies`."""

from collections.abc import Sequence

import pandas as pd

from mergelib.records.results import load_table
from mergelib.records.statistics import both_intervals, over_seeds

KINDS = ("plain, half as long", "sharpness-aware, 0.05", "sharpness-aware, 0.2", "linearised")
METHODS = ("individual", "average", "task_arithmetic")


def gains(file: str, methods: Sequence[str] = METHODS) -> dict[str, pd.DataFrame]:
    """Points that each kind of training gains over plain experts that cost the same.

    Returns:
        For each method a frame as of `both_intervals`, a row for each kind.
    """
    table = load_table(file)
    pairs = {kind: (kind, "plain") for kind in KINDS}
    found = {}
    for method in methods:
        runs = table[table["method"] == method].drop(columns="method")
        found[method] = 100 * both_intervals(runs.rename(columns={"kind": "method"}), pairs)
    return found


def sharpness(file: str) -> pd.DataFrame:
    """The largest eigenvalue of the training loss's Hessian at the experts, by kind.

    Returns:
        ``mean`` over tasks and seeds and ``half_width`` of its interval over seeds.
    """
    return over_seeds(load_table(file, "sharpness"), "kind", "sharpness")
