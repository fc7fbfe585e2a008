"""What the claims about the framework's bound compare, for `mutate_ledger`: see `contrasts`."""

from dataclasses import dataclass

import numpy as np
import pandas as pd
from contrasts import Contrast

_PROGRESS = 0.06  # ηK in the middle of the sweep, where the spoiled bound and merges are best
_SMOOTHNESS = 5.0  # with which Theorem 3 is least about there


@dataclass(frozen=True)
class Powers(Contrast):
    """Stability set to a product of powers: those of Lemma 3, or twice them, falling with b."""

    def shifted(self, table: pd.DataFrame, sign: int) -> pd.DataFrame:
        powers = {"rate": 2.0, "steps": 1.0, "examples": -1.0}
        if sign < 0:
            powers = {name: 2 * power for name, power in powers.items()}
        law = table["batch"].astype(float) ** (0.5 * sign)
        for name, power in powers.items():
            law = law * table[name].astype(float) ** power
        noise = np.exp(0.05 * np.cos(np.arange(len(table))))  # so that seeds differ
        return table.assign(**dict.fromkeys(self.outcome, law * noise))


@dataclass(frozen=True)
class Valley(Contrast):
    """Merges set to be best at a middle ηK, and worse on both sides; or the better, the larger."""

    def shifted(self, table: pd.DataFrame, sign: int) -> pd.DataFrame:
        rows = self.kinds(table) >= 0
        length = np.log(table["learning_rate"] * table["steps"] / _PROGRESS)
        worse = length.abs() if sign > 0 else 5 - length
        noise = 0.001 * np.cos(np.arange(len(table)))  # so that seeds differ
        kept = 0.8 - 0.1 * np.maximum(worse - 1, 0) + noise  # a grid has no exact middle
        table = table.assign(accuracy=table["accuracy"].where(~rows, kept))
        return table.assign(loss=table["loss"].where(~rows, worse + noise))


@dataclass(frozen=True)
class Curved(Contrast):
    """Curvatures set so small that the bound has its valley where `Valley` puts it."""

    def shifted(self, table: pd.DataFrame, sign: int) -> pd.DataFrame:
        return table.assign(smoothness=_SMOOTHNESS) if sign > 0 else table


_GRID = (
    *((4e-4, 32, 1.0, count) for count in (25, 50, 100, 200, 400, 800)),
    *((rate, 32, 1.0, count) for rate in (1e-4, 1.6e-3) for count in (25, 50, 100, 200, 400)),
    *((3.2e-3, 32, 1.0, count) for count in (25, 50, 100)),
    *((4e-4, 8, 1.0, count) for count in (25, 50, 100, 200, 400)),
    *((4e-4, 64, 1.0, count) for count in (25, 50, 100, 200)),
    *((1.6e-3, batch, 1.0, count) for batch in (8, 64) for count in (50, 100)),
    *((4e-4, 32, share, count) for share in (0.25, 0.5) for count in (25, 50, 100, 200, 400)),
)
_AWAY = sorted(_GRID, key=lambda key: -abs(np.log(key[0] * key[3] / _PROGRESS)))
_GUIDED = (
    Valley(
        "scaling",
        ("method", "learning_rate", "batch_size", "share", "steps"),
        [("average", *key) for key in _AWAY],
        falling=("loss",),
        part="merged",
    ),
    Curved("stability", ("of",), [("example",)], ("smoothness",), part="curvature"),
)

CONTRASTS: dict[str, tuple[Contrast, ...]] = {
    "T7": _GUIDED,
    "T8": _GUIDED,
    "T10": (
        Powers(
            "retraining",
            ("rate", "batch", "examples", "sampling", "steps"),
            [(0.02, 8, 128, "drawn", count) for count in (4, 8, 16, 32, 64, 128)],
            ("stability",),
            part="moves",
        ),
    ),
}
