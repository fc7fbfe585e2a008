"""Are parts of texts clusters (SAIL, Anonymous, 2025, Figures 2a and 4), or what a sort makes?"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import combinations, product
from typing import Any

import torch
from torch import Tensor

from mergebook.lab.results import Tables
from mergebook.lab.runner import study
from mergebook.sail.distances import classifier_auc
from mergebook.sail.measure.text import texts_of
from mergebook.sail.measure.training import Texts
from mergebook.sail.thirds import (
    cut_blocks,
    held_stretch,
    histograms,
    mean_thirds,
    random_thirds,
    without,
)
from mergebook.suites.data.texts import CHARACTERS, encode
from mergelib.sail.divergences import permutation_p

BLOCK = 1024  # characters
PARTS = ("D1", "D2", "Dt")
HALVES = ("one half", "other half")
WITHOUT = "histogram without mean"
PERMUTATIONS = 999

Splits = dict[str, dict[str, Tensor]]  # rows of blocks, by split and part


@study(load=texts_of)
def clusters(
    source: Texts,
    *,
    others: Sequence[str] = (),
    left_out: float = 0.2,
    permutations: int = PERMUTATIONS,
) -> Tables:
    """How far thirds of a text, or two texts, are apart, beside random parts (Fig. 2a and 4).

    Args:
        source: texts, to be cut into blocks of 1,024 characters, one for thirds of it; its seed
            draws the stretch that is left out, random parts, and permutations.
        others: the name of a second text, to compare both with each other.
        left_out: share of each text, one stretch, so that seeds differ in the text as well.
        permutations: for p, which is at least 1/(permutations + 1).

    Returns:
        ``separation``: rows of ``split`` (``thirds`` by mean token value, or ``texts``, and
        ``random``), and what `separation` has.
    """
    tables = [cut_blocks(encode(text), BLOCK) for text in source.texts.values()]
    seed = source.seed
    own = [table[~held_stretch(len(table), left_out, seed)] for table in tables]
    splits = split_texts(source.texts, own, seed) if others else split_blocks(own[0], seed)
    return {"separation": [*separation(torch.cat(own), splits, permutations, seed)]}


@study(load=texts_of)
def text_map(
    source: Texts, *, others: Sequence[str] = ("wikitext2_test",), blocks: int = 200
) -> Tables:
    """Blocks of texts on a plane, by t-SNE (Fig. 4).

    Args:
        source: texts, to be cut into blocks of 1,024 characters; its seed draws the map.
        others: names of further texts.
        blocks: of each text at most, evenly spread.

    Returns:
        ``map``: a row per block, with ``text``, ``features`` (``histogram``, ``histogram without
        mean``), and its place, ``x`` and ``y``, which have no unit.
    """
    tables = [cut_blocks(encode(text), BLOCK) for text in source.texts.values()]
    own = [table[:: -(-len(table) // blocks)] for table in tables]
    names = [name for name, table in zip(source.texts, own, strict=True) for _ in table]
    kinds, rows = described(torch.cat(own)), []
    for name in ("histogram", WITHOUT):
        for text, (x, y) in zip(names, on_a_plane(kinds[name], source.seed).tolist(), strict=True):
            rows.append({"text": text, "features": name, "x": round(x, 2), "y": round(y, 2)})
    return {"map": rows}


def on_a_plane(features: Tensor, seed: int, turns: int = 500) -> Tensor:
    """Places ``(n, 2)`` of rows, each feature over its spread, by t-SNE from principal directions.

    Args:
        features: ``(n, d)``, no column constant.
        seed: of the descent.
        turns: of it, at least 250.
    """
    from sklearn.manifold import TSNE

    rows = (features / features.std(0)).numpy()
    return torch.from_numpy(TSNE(init="pca", max_iter=turns, random_state=seed).fit_transform(rows))


def split_blocks(blocks: Tensor, seed: int) -> Splits:
    """Rows of D_1, D_2 and D_t: thirds by mean, and random ones."""
    thirds = {"thirds": mean_thirds(blocks), "random": random_thirds(len(blocks), seed)}
    return {split: dict(zip(PARTS, rows, strict=True)) for split, rows in thirds.items()}


def split_texts(names: Iterable[str], tables: Sequence[Tensor], seed: int) -> Splits:
    """Rows of two texts' blocks, one text after the other: those of each, and random halves."""
    rows = torch.arange(sum(map(len, tables)))
    dealt = rows[torch.randperm(len(rows), generator=torch.Generator().manual_seed(seed))]
    return {
        "texts": dict(zip(names, rows.split([*map(len, tables)]), strict=True)),
        "random": dict(zip(HALVES, dealt.tensor_split(2), strict=True)),
    }


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


def separation(
    blocks: Tensor, splits: Splits, permutations: int = PERMUTATIONS, seed: int = 0
) -> Iterator[dict[str, Any]]:
    """How well a classifier tells two parts apart, and whether they are one pool, by MMD.

    The null of p is that blocks are exchangeable: any deal of the pooled blocks into two parts of
    these sizes was as likely. Random parts are such a deal. Thirds by mean are none by
    construction, in all that goes with the mean. Nor are two texts, and more than their authors
    may tell: neighbouring blocks of a text are alike, so that two stretches of one text would be
    rejected as well. A low p says that parts differ, not why. Less their mean, features lose its
    regression over all parts together for p, and over the training rows of a pair for the AUC.

    Yields:
        ``split``, ``features`` (``mean``, ``histogram``, ``histogram without mean``), ``pair`` of
        parts, ``auc`` and ``p``.
    """
    kinds, means = described(blocks), blocks.double().mean(1)
    for (split, parts), name in product(splits.items(), kinds):
        rid = name == WITHOUT
        features = kinds["histogram" if rid else name]
        rows = {part: places.sort().values for part, places in parts.items()}
        for (a, one), (b, two) in combinations(rows.items(), 2):
            given = (means[one], means[two]) if rid else None
            yield {
                "split": split,
                "features": name,
                "pair": f"{a}, {b}",
                "auc": classifier_auc(features[one], features[two], given=given),
                "p": permutation_p(
                    kinds[name][one], kinds[name][two], permutations=permutations, seed=seed
                ),
            }
