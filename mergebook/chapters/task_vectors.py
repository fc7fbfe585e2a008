"""Rules of thumb for the scale of task arithmetic, and what they cost on recorded sweeps."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from mergebook.lab.results import load_table

# Records of `baselines` that hold task arithmetic's validation accuracy by scale, and their tasks.
RECORDED = {f"{family}{count}": count for family in ("glyphs", "vision") for count in (8, 14, 20)}
REAL = {"imagenet8": 8, "imagenet14": 14, "imagenet20": 20, "lite8": 8, "sentences8": 8}


def recorded_sweeps(records: Mapping[str, int] | None = None) -> pd.DataFrame:
    """Validation accuracy of task arithmetic by scale, from the records; a run is a seed."""
    tables = []
    for suite, count in (records or RECORDED).items():
        table = load_table(f"{suite}-baselines", "validation").query("method == 'task_arithmetic'")
        table = table.rename(columns={"seed": "run"})[["run", "scale", "accuracy"]]
        tables.append(table.assign(suite=suite, tasks=count))
    return pd.concat(tables, ignore_index=True)


def cost_of_rules(sweeps: pd.DataFrame, rules: Mapping[str, float | str]) -> pd.DataFrame:
    """What it costs to take a scale by a rule of thumb in place of the best one of a grid.

    The cost is accuracy lost, in points; between two scales it is read from the straight line that
    joins them, and NaN outside the grid. The best scale is that of the highest accuracy.
    """
    keys = [str(key) for key in sweeps if key not in ("scale", "accuracy", "loss")]
    rows = []
    for values, sweep in sweeps.groupby(keys, sort=False):
        curve = sweep.set_index("scale")["accuracy"].sort_index()
        known: dict[str, Any] = dict(zip(keys, values, strict=True))
        for rule, scale in rules.items():
            chosen = _scale(scale, known["tasks"])
            inside = curve.index[0] <= chosen <= curve.index[-1]
            at = np.interp(chosen, curve.index, curve) if inside else np.nan
            cost = 100 * (curve.max() - at)
            best = curve.index[int(curve.argmax())]
            rows.append({**known, "best": best, "rule": rule, "scale": chosen, "cost": cost})
    return pd.DataFrame(rows)


def _scale(rule: float | str, tasks: int) -> float:
    return float(rule.removesuffix("/T")) / tasks if isinstance(rule, str) else rule
