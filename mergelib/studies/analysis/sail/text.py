"""What the chapter on SAIL in text computes: what thirds of a text are, and the choice of γ."""

from itertools import combinations, product
from pydoc_data.topics import topics

import pandas as pd
import torch
from torch import Tensor

from mergelib.data.texts import CHARACTERS, encode
from mergelib.records.statistics import over_seeds
from mergelib.sail.blocks import cut_blocks, histograms, mean_thirds, random_thirds, without
from mergelib.sail.divergences import classifier_auc

BLOCK = 1024  # characters
PARTS = ("D1", "D2", "Dt")


def help_blocks() -> Tensor:
    """Blocks of the language help that comes with Python, ``(n, 1024)``, in its order."""
    return cut_blocks(encode("\n".join(topics[name] for name in sorted(topics))), BLOCK)


def described(blocks: Tensor) -> dict[str, Tensor]:
    """Features of blocks: their mean, a histogram, and that less its regression on the mean.

    Only characters of every second block at least are counted. One that a block alone has would
    tell the mean after all: everywhere else its residual is the fit itself.
    """
    means = blocks.double().mean(1)
    shares = histograms(blocks, len(CHARACTERS))
    shares = shares[:, (shares > 0).double().mean(0) >= 0.5]
    return {
        "mean": means[:, None],
        "histogram": shares,
        "histogram without mean": without(shares, means),
    }


def split_blocks(blocks: Tensor, seed: int) -> dict[str, list[Tensor]]:
    """Rows of D_1, D_2 and D_t: thirds by mean, and random ones."""
    return {"thirds": mean_thirds(blocks), "random": random_thirds(len(blocks), seed)}


def separation(blocks: Tensor, seed: int) -> pd.DataFrame:
    """How well a classifier tells thirds apart: the AUC of each pair, by split and features."""
    table, splits = [], split_blocks(blocks, seed).items()
    for (split, thirds), (name, features) in product(splits, described(blocks).items()):
        parts = [features[rows.sort().values] for rows in thirds]
        pairs = combinations(zip(PARTS, parts, strict=True), 2)
        found = {f"{a}, {b}": classifier_auc(one, two) for (a, one), (b, two) in pairs}
        table.append({"split": split, "features": name, **found})
    return pd.DataFrame(table)


def barriers(curves: pd.DataFrame) -> pd.DataFrame:
    """ℓ(½) − ½(ℓ(0) + ℓ(1)) by start and step: mean and half width of the interval over seeds."""
    table = curves.pivot(index=["start", "step", "seed"], columns="gamma", values="judge")
    heights = table[0.5] - (table[0.0] + table[1.0]) / 2
    rows = heights.rename("height").reset_index()
    return over_seeds(rows, ["start", "step"], "height").reset_index()


def chosen(curves: pd.DataFrame) -> pd.DataFrame:
    """The γ of least loss after the last step on one half, judged on the other.

    Returns:
        By start and seed: ``gamma``, and what it is better by, in nats, than the nearer source
        alone, ``over_nearest``, and than the uniform average, ``over_half``.
    """
    last = curves[curves["step"] == curves["step"].max()]
    rows = []
    for (start, seed), part in last.groupby(["start", "seed"], sort=False):
        losses = part.set_index("gamma")
        best = losses["choose"].idxmin()
        judged = losses["judge"]
        rows.append((start, seed, best, judged[0.0] - judged[best], judged[0.5] - judged[best]))
    return pd.DataFrame(rows, columns=["start", "seed", "gamma", "over_nearest", "over_half"])


def paper_grid() -> Tensor:
    """The 30 equally spaced values in −1..2 of the paper's experiments on overlap."""
    return torch.linspace(-1, 2, 30, dtype=torch.float64)
