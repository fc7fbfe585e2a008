"""What the claims on measured scaling laws compare, for `mutate_ledger`: see `contrasts`."""

from dataclasses import dataclass
from functools import partial

import numpy as np
import pandas as pd
from contrasts import Contrast, Key


@dataclass(frozen=True)
class Aimless(Contrast):
    """Outcomes that change without a trend, so that nothing agrees with them in every seed."""

    def shifted(self, table: pd.DataFrame, sign: int) -> pd.DataFrame:
        rows = self.kinds(table) >= 0
        noise = np.cos(np.arange(len(table)) ** 1.5)
        columns = (*self.outcome, *self.falling)
        return table.assign(**{name: table[name].where(~rows, noise) for name in columns})

    def exchanged(self, table: pd.DataFrame, _: np.random.Generator) -> pd.DataFrame:
        return table


_STEPS = (25, 50, 100, 200, 400, 800)
_TRAINED = ("learning_rate", "batch_size", "share", "steps")
_MERGES = partial(
    Contrast,
    "scaling",
    ("method", *_TRAINED),
    part="merged",
    step=10.0,
    falling=("loss",),
)


def _at(
    steps: int, rate: float = 4e-4, batch: int = 32, share: float = 1.0, method: str = "average"
) -> Key:
    return (method, rate, batch, share, steps)


# Values of every parameter, each with its place in the sweeps that it belongs to; in reverse order
# they run backwards.
_SWEPT = (
    *((_at(steps), place) for place, steps in enumerate(_STEPS[:3])),
    *((_at(100, 1e-4), 1), (_at(200, batch=8), 2), (_at(400, share=0.25), 2)),
    (_at(100, 1.6e-3), 3),
    *((_at(400, share=0.5), 3), (_at(200, batch=64), 4), (_at(100, 3.2e-3), 4)),
    *((_at(steps), place + 3) for place, steps in enumerate(_STEPS[3:])),
)
_UP = [float(place) for _, place in _SWEPT]

CONTRASTS: dict[str, tuple[Contrast, ...]] = {
    "T1": (
        _MERGES(
            [_at(steps) for steps in (25, 800, 50, 100, 200, 400)],
            levels=(0, 0, 1, 1, 3, 3),
            against=(3, 3, 0, 0, 0, 0),
        ),
    ),
    "T2": (
        _MERGES(
            [
                *(_at(200, batch=8), _at(100, batch=8), _at(100, 1.6e-3, 64)),
                *(_at(100, 1.6e-3, 8), _at(100, batch=64), _at(200, batch=64)),
            ],
            levels=(0, 0, 0, 1, 1, 1),
            against=(1, 1, 1, 0, 0, 0),
        ),
    ),
    "T3": (
        _MERGES(
            [_at(100, rate) for rate in (3.2e-3, 1e-4, 1.6e-3, 4e-4)],
            levels=(-1, 0, 0, 0),
            against=(1, 0, 0, 0),
        ),
    ),
    "T4": (_MERGES([_at(400, share=share) for share in (0.25, 0.5, 1.0)]),),
    "T5": (
        Contrast(
            "scaling",
            ("method", "count"),
            [("average", count) for count in range(8, 1, -1)],
            part="counts",
            step=10.0,
            falling=("loss",),
        ),
    ),
    "T9": tuple(
        _MERGES(
            order,
            outcome=("loss",),
            falling=("train_loss",),
            levels=(*[0] * (len(order) - 1), 1),
            against=(*[1] * (len(order) - 1), 0),
        )
        for order in (
            [_at(steps) for steps in _STEPS],
            [_at(100, rate) for rate in (1e-4, 4e-4, 1.6e-3, 3.2e-3)],
        )
    ),
    "T11": (
        _MERGES([key for key, _ in _SWEPT], levels=_UP, against=_UP),
        _MERGES(
            [
                *(("ties", *key[1:]) for key, _ in _SWEPT),
                *(("dare", *key[1:]) for key, _ in reversed(_SWEPT)),
            ],
            levels=[*_UP, *reversed(_UP)],
            against=[*(-place for place in _UP), *(-place for place in reversed(_UP))],
        ),
        Aimless(
            "scaling",
            ("method", *_TRAINED),
            [("task_arithmetic", *key[1:]) for key, _ in _SWEPT],
            part="merged",
            falling=("loss",),
        ),
    ),
    "T13": (
        Contrast(
            "scaling",
            ("method",),
            [("average",), ("ties",)],
            part="counts",
            times="count",
            blocks=("seed", "task", "count"),
            falling=("loss",),
        ),
    ),
    "T17": (_MERGES([_at(800), _at(100)], levels=(-1, 1), against=(1, 0)),),
    "T18": (
        Contrast(
            "scaling",
            _TRAINED,
            [_at(steps)[1:] for steps in _STEPS],
            part="experts",
            levels=(0, 0, 0, 0, 0, 1),
            against=(1, 1, 1, 1, 1, 0),
        ),
        _MERGES(
            [_at(steps) for steps in (800, 50, 100, 200, 400)],
            levels=(0, 1, 1, 1, 1),
            against=(1, 0, 0, 0, 0),
        ),
    ),
}
