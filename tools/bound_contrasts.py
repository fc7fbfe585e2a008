"""What the claims about the framework's bound compare, for `mutate_ledger`: see `contrasts`."""

from dataclasses import dataclass

import numpy as np
import pandas as pd
from contrasts import Contrast

_PROGRESS = 0.05  # ηK in the middle of the sweep, where the spoiled bound and merges are best
_SMOOTHNESS = 5.0  # with which Theorem 3 is least about there
_LONELY = (3.2e-3, 25)  # rate and steps
_FLAT = 1.5  # how far merges are level around their best, in logarithms: there L = 1 chooses, too


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
    """Merges set to be best around a middle ηK, and worse on both sides; or the other way round.

    Where they are level around their best, the other way round is that only one setting is good, at
    a rate that no bound chooses.
    """

    flat: float = 0.0

    def shifted(self, table: pd.DataFrame, sign: int) -> pd.DataFrame:
        rows = self.kinds(table) >= 0
        length = np.log(table["learning_rate"] * table["steps"] / _PROGRESS)
        far = np.maximum(length.abs() - self.flat, 0)
        noise = (0.001 if self.flat else 3.0) * np.cos(np.arange(len(table)) ** 1.5)  # of seeds
        other = np.where(table["learning_rate"] == _LONELY[0], 0.0, 5.0) if self.flat else 5 - far
        other = np.where(self.flat and table["steps"] != _LONELY[1], 5.0, other)
        worse = (far if sign > 0 else other) + noise
        table = table.assign(accuracy=table["accuracy"].where(~rows, 0.8 - 0.1 * worse))
        return table.assign(loss=table["loss"].where(~rows, worse))


@dataclass(frozen=True)
class Curved(Contrast):
    """Curvatures set so small that the bound has its valley where `Valley` puts it."""

    def shifted(self, table: pd.DataFrame, sign: int) -> pd.DataFrame:
        return table.assign(smoothness=_SMOOTHNESS)


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


def _guided(flat: float) -> tuple[Contrast, ...]:
    return (
        Valley(
            "scaling",
            ("method", "learning_rate", "batch_size", "share", "steps"),
            [("average", *key) for key in _AWAY],
            falling=("loss",),
            part="merged",
            flat=flat,
        ),
        Curved("stability", ("of",), [("example",)], ("smoothness",), part="curvature"),
    )


CONTRASTS: dict[str, tuple[Contrast, ...]] = {
    "T7": _guided(0.0),
    "T8": _guided(_FLAT),
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
