"""Laws of the generalisation error, printed and corrected, beside the sweep of chapter 42."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from mergebook.lab.statistics import interval
from mergebook.stability.read import scaling as sweep
from mergebook.stability.theory import bounds

ANCHOR = 100  # steps where the rate is swept
LAWS = ("printed", "root", "root_loss")
POWERS = np.linspace(-4, 4, 1601)


def stabilities(setting: Mapping[str, Any], known: bounds.Losses) -> tuple[float, float]:
    """An expert's stability s by Lemma 3, and by `bounds.local_stability` for convex losses."""
    plan = sweep.plan_of(setting, 1)
    printed = bounds.printed_local_stability(known, plan)
    return float(printed), float(bounds.local_stability(known, plan, convex=True))


def beside_theory(
    averages: pd.DataFrame, experts: pd.DataFrame, known: bounds.Losses
) -> dict[str, pd.DataFrame]:
    """E_G of the average against every parameter, and what the bounds make of it.

    Returns:
        Parameter to a table that is indexed by it: ``mean`` and ``half_width`` of E_G over seeds,
        above the pretrained model's, in nats, and `LAWS`. ``printed`` is in proportion to Lemma 3;
        ``root`` to √s, which is all of √(S·V) that training settings change if V is the same for
        all; ``root_loss`` to √(s·f) with the training loss f that was measured, as V ≤ 2Lf. Each
        law has one factor, fitted by least squares to all settings at the usual rate.
    """
    gains, tables = sweep.gained(averages, experts), {}
    for varied in sweep.sweeps(gains):
        column = sweep.free(varied)
        table = sweep.curve(sweep.at(gains, **varied), column, "generalisation")
        loss = sweep.at(averages, **varied).groupby(column)["train_loss"].mean()
        usual = {**sweep.USUAL, "steps": varied["steps"] or ANCHOR}
        pairs = [stabilities({**usual, column: value}, known) for value in table.index]
        printed, moved = np.array(pairs).T
        laws = {"printed": printed, "root": moved**0.5, "root_loss": (moved * loss) ** 0.5}
        tables[column] = table.assign(**laws)
    fitted = pd.concat([table for column, table in tables.items() if column != "learning_rate"])
    for law in LAWS:
        values = fitted[law].to_numpy(dtype=float)
        factor = float(fitted["mean"].to_numpy() @ values) / float(values @ values)
        for table in tables.values():
            table[law] *= factor
    return tables


def exponents(gains: pd.DataFrame, tables: Mapping[str, pd.DataFrame]) -> pd.DataFrame:
    """The power of each parameter that E_G follows, and that of the laws on the same points.

    a·x^p is fitted by least squares to the mean over seeds; the half width is Student's on the
    pseudo-values of the delete-one jackknife over seeds. E_G does not change with the rate.
    """
    rows = {}
    swept = {sweep.free(varied): varied for varied in sweep.sweeps(gains)}
    swept.pop("learning_rate", None)
    for column, varied in swept.items():
        parts = sweep.spread(sweep.at(gains, **varied), column, "generalisation")
        wide = -parts.groupby("seed").mean()
        whole = _power(wide.mean())
        left_out = [_power(wide.drop(seed).mean()) for seed in wide.index]
        pseudo = [len(wide) * whole - (len(wide) - 1) * part for part in left_out]
        laws = {law: _power(tables[column][law]) for law in LAWS}
        rows[column] = {"measured": whole, "half_width": interval(pseudo)[1], **laws}
    return pd.DataFrame(rows).T


def _power(values: pd.Series) -> float:
    """The power p of the least squares fit a·x^p to values, x being their index."""
    x = values.index.to_numpy(dtype=float)
    powers = (x / x.mean()) ** POWERS[:, None]
    factors = powers @ values.to_numpy() / (powers**2).sum(1)
    misfit = ((values.to_numpy() - factors[:, None] * powers) ** 2).sum(1)
    return float(POWERS[misfit.argmin()])


def misfits(tables: Mapping[str, pd.DataFrame]) -> pd.DataFrame:
    """`LAWS` by parameter: root mean square distance from the measured means, in nats."""
    off = {name: table[[*LAWS]].sub(table["mean"], axis=0) for name, table in tables.items()}
    return pd.DataFrame({name: (each**2).mean() ** 0.5 for name, each in off.items()}).T
