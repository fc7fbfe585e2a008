"""What the chapter on SAIL in text computes: what thirds of a text are, and the choice of γ."""

from collections.abc import Sequence
from pydoc_data.topics import topics

import pandas as pd
import torch
from torch import Tensor

from mergelib.data.texts import encode
from mergelib.records.statistics import over_seeds
from mergelib.sail.blocks import cut_blocks
from mergelib.studies.papers.sail.clusters import BLOCK


def help_blocks() -> Tensor:
    """Blocks of the language help that comes with Python, ``(n, 1024)``, in its order."""
    return cut_blocks(encode("\n".join(topics[name] for name in sorted(topics))), BLOCK)


def heights(curves: pd.DataFrame) -> pd.DataFrame:
    """ℓ(½) − ½(ℓ(0) + ℓ(1)), the ``height`` of a barrier, by ``start``, ``step`` and ``seed``."""
    table = curves.pivot(index=["start", "step", "seed"], columns="gamma", values="judge")
    rows = table[0.5] - (table[0.0] + table[1.0]) / 2
    return rows.rename("height").reset_index()


def barriers(curves: pd.DataFrame) -> pd.DataFrame:
    """`heights` by start and step: mean and half width of the interval over seeds."""
    return over_seeds(heights(curves), ["start", "step"], "height").reset_index()


def last(curves: pd.DataFrame) -> pd.DataFrame:
    """Rows after the last step."""
    rows: pd.DataFrame = curves[curves["step"] == curves["step"].max()]
    return rows


def best(curves: pd.DataFrame, keys: Sequence[str]) -> pd.DataFrame:
    """The row of least loss on the half that chooses, for each value of the keys."""
    places = curves.groupby(list(keys), sort=False)["choose"].idxmin()
    table: pd.DataFrame = curves.loc[places].reset_index(drop=True)
    return table


def chosen(curves: pd.DataFrame) -> pd.DataFrame:
    """The γ of least loss after the last step on one half, judged on the other.

    Returns:
        By start and seed: ``gamma``, and what it is better by, in nats, than the nearer source
        alone, ``over_nearest``, and than the uniform average, ``over_half``.
    """
    keys = ["start", "seed"]
    final = last(curves)
    table = best(final, keys).set_index(keys)
    judged = final.pivot(index=keys, columns="gamma", values="judge").loc[table.index]
    gains = {
        name: judged[rival] - table["judge"]
        for name, rival in (("over_nearest", 0.0), ("over_half", 0.5))
    }
    return table[["gamma"]].assign(**gains).reset_index()


def paper_grid() -> Tensor:
    """The 30 equally spaced values in −1..2 of the paper's experiments on overlap."""
    return torch.linspace(-1, 2, 30, dtype=torch.float64)
