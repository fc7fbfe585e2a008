"""Theorem 3 with its one free constant, L, fitted to measured merges of other seeds."""

from collections.abc import Callable, Mapping

import numpy as np
import pandas as pd

from mergebook.stability.read import guides

FITTED = tuple(float(10**power) for power in np.arange(-1, 4.5, 0.5))  # values of L to choose from
Score = Callable[[pd.DataFrame], pd.Series]


def ranking(table: pd.DataFrame) -> pd.Series:
    """How well Theorem 3 ranks each seed's `guides.settings`: its part of `guides.correlations`."""
    ranks: pd.Series = guides.correlations(table)["theorem_3"]
    return ranks


def choosing(table: pd.DataFrame) -> pd.Series:
    """How well Theorem 3 chooses for each seed: minus its `guides.regrets` in loss."""
    return -guides.regrets(table, "loss")["theorem_3"]


def fitted(table: pd.DataFrame, known: Mapping[int, guides.Start], score: Score) -> pd.DataFrame:
    """Settings with L, the constant that the paper does not give, fitted to the other seeds.

    For each seed that value of `FITTED` counts whose mean score on all other seeds is highest. So
    the bound gets as much from other seeds as a rival gets for its direction. It is added as
    ``smoothness``; the other guides are left out.
    """
    own = table.drop(columns=[name for name in guides.GUIDES if name != "theorem_3"])
    tables = {smooth: with_smoothness(own, known, smooth) for smooth in FITTED}
    scores = pd.DataFrame({smooth: score(tables[smooth]) for smooth in FITTED})
    chosen = {seed: scores.drop(seed).mean().idxmax() for seed in scores.index}
    parts: list[pd.DataFrame] = [
        tables[best][tables[best]["seed"] == seed] for seed, best in chosen.items()
    ]
    return pd.concat(parts, ignore_index=True)


def with_smoothness(
    table: pd.DataFrame, known: Mapping[int, guides.Start], smooth: float
) -> pd.DataFrame:
    """Settings with Theorem 3 for another L, in closed form for equal steps and weights."""
    of_seed = {}
    for seed, start in known.items():
        roots = (start.losses.noise[0], start.losses.heterogeneity[0])
        of_seed[seed] = start.loss, start.squared, *(float(root) ** 2 for root in roots)
    loss, squared, noise, apart = np.array([of_seed[seed] for seed in table["seed"]]).T
    tasks = len(next(iter(known.values())).losses.noise)
    rate, steps, batch = (table[name] for name in ("learning_rate", "steps", "batch_size"))
    epsilon = 2 * (
        4 * loss / (rate * steps)
        + 4 * rate * smooth * noise / (batch * tasks)
        + 6 * (rate * smooth) ** 2 * noise / batch * (steps - 1)
        + 12 * (rate * smooth) ** 2 * apart * steps * (steps - 1)
    )
    pl = np.maximum(loss / squared, 1 / (2 * smooth))
    total = (smooth + 1) / 2 * table["stability"] + (pl + 0.5) * epsilon
    return table.assign(theorem_3=total, optimisation=epsilon, smoothness=smooth)
