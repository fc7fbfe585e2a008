"""What the claims about Remark 4 compare, for `mutate_ledger`: see `contrasts`."""

from dataclasses import dataclass
from functools import partial

import numpy as np
import pandas as pd
from contrasts import Contrast, Key


@dataclass(frozen=True)
class Errors(Contrast):
    """Training losses shifted, with test losses equally far above them, or the higher with them."""

    def shifted(self, table: pd.DataFrame, sign: int) -> pd.DataFrame:
        table, kinds = super().shifted(table, sign), self.kinds(table)
        rows = kinds >= 0
        noise = 0.001 * np.cos(np.arange(len(table)))  # so that seeds differ
        apart = noise if sign > 0 else noise - kinds.to_numpy(dtype=float)
        for name in self.outcome:
            table.loc[rows, name.removeprefix("train_")] = (table[name] + apart)[rows]
        return table


_PLAIN, _FLAT, _LINEAR = "plain", "sharpness-aware, 0.05", "linearised"
_PAIRS = partial(Contrast, "rebasin", ("pair", "matched"), part="pairs", step=1000.0)
_UNEVEN = ("method", "kind", "way")


def _ways(way: str) -> list[Key]:
    return [("average", f"{optimiser}, steps", way) for optimiser in ("adam", "sgd")]


CONTRASTS: dict[str, tuple[Contrast, ...]] = {
    "T14": (
        Contrast(
            "mechanisms",
            ("granularity",),
            [("task",), ("layer",)],
            ("coefficient",),
            part="coefficients",
            levels=(-1, 1),
            against=(1, -1),
            times="heterogeneity",
            blocks=("seed",),
        ),
    ),
    "T15": (
        Contrast(
            "remedies",
            ("kind",),
            [(_FLAT,), (_LINEAR,), (_PLAIN,)],
            ("sharpness",),
            1e5,
            "sharpness",
            levels=(0, 0, 1),
            against=(1, 1, 0),
        ),
        Contrast(
            "remedies",
            ("method", "kind"),
            [("average", _PLAIN), ("average", _FLAT), ("average", _LINEAR)],
            step=10.0,
            levels=(0, 1, 1),
            against=(1, 0, 0),
            falling=("loss",),
        ),
        _PAIRS([("two tasks", True), ("two tasks", False)], ("heterogeneity",)),
        _PAIRS([("two tasks", False), ("two tasks", True)], falling=("loss",)),
    ),
    "T16": (
        Errors(
            "mechanisms",
            ("method", "of"),
            [("surgery", "test"), ("average", "")],
            ("train_loss",),
            10.0,
        ),
    ),
    "T19": (
        Contrast(
            "uneven",
            _UNEVEN,
            [*_ways("as they are"), *_ways("all first"), *_ways("all second")],
            part="merged",
            levels=(0, 0, 1, 1, 1, 1),
            against=(1, 1, 0, 0, 0, 0),
            falling=("loss",),
        ),
    ),
}
