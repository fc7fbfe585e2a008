"""Are thirds of a text clusters (SAIL, Anonymous, 2025, Figures 2a and 4), or what a sort makes?"""

from itertools import combinations, product

import pandas as pd
from torch import Tensor

from mergelib.data.texts import CHARACTERS, encode
from mergelib.records.results import Tables
from mergelib.sail.blocks import (
    cut_blocks,
    held_stretch,
    histograms,
    mean_thirds,
    random_thirds,
    without,
)
from mergelib.sail.divergences import classifier_auc
from mergelib.studies.comparison import records
from mergelib.studies.papers.sail.text import texts_of
from mergelib.studies.papers.sail.training import Texts
from mergelib.studies.runner import study

BLOCK = 1024  # characters
PARTS = ("D1", "D2", "Dt")
WITHOUT = "histogram without mean"


@study(methods=[], load=texts_of)
def clusters(source: Texts, *, left_out: float = 0.2) -> Tables:
    """How well a classifier tells thirds of a text apart, beside random thirds (Fig. 2a and 4).

    Args:
        source: one text, to be cut into blocks of 1,024 characters; its seed draws the stretch that
            is left out, and random thirds.
        left_out: share of the text, one stretch, so that seeds differ in the text as well.

    Returns:
        ``separation``: rows of ``split`` (``thirds`` by mean token value, ``random``),
        ``features`` (``mean``, ``histogram``, ``histogram without mean``), ``pair`` of parts and
        ``auc``.
    """
    (text,) = source.texts.values()
    blocks = cut_blocks(encode(text), BLOCK)
    own = blocks[~held_stretch(len(blocks), left_out, source.seed)]
    wide = separation(own, source.seed)
    long = wide.melt(["split", "features"], var_name="pair", value_name="auc")
    return {"separation": records(long)}


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
        WITHOUT: without(shares, means),
    }


def split_blocks(blocks: Tensor, seed: int) -> dict[str, list[Tensor]]:
    """Rows of D_1, D_2 and D_t: thirds by mean, and random ones."""
    return {"thirds": mean_thirds(blocks), "random": random_thirds(len(blocks), seed)}


def separation(blocks: Tensor, seed: int) -> pd.DataFrame:
    """How well a classifier tells thirds apart: the AUC of each pair, by split and features."""
    kinds, means = described(blocks), blocks.double().mean(1)
    table = []
    for (split, thirds), name in product(split_blocks(blocks, seed).items(), kinds):
        rid = name == WITHOUT
        features = kinds["histogram" if rid else name]
        rows = [part.sort().values for part in thirds]
        found = {}
        for (a, one), (b, two) in combinations(zip(PARTS, rows, strict=True), 2):
            given = (means[one], means[two]) if rid else None
            found[f"{a}, {b}"] = classifier_auc(features[one], features[two], given=given)
        table.append({"split": split, "features": name, **found})
    return pd.DataFrame(table)
