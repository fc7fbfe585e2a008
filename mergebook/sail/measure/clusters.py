"""Are parts of texts clusters (SAIL, Anonymous, 2025, Figures 2a and 4), or what a sort makes?"""

from collections.abc import Iterable, Sequence
from functools import partial
from itertools import combinations, product
from typing import Any

import torch
from torch import Tensor

from mergebook.lab.results import Tables
from mergebook.lab.runner import study
from mergebook.sail.distances import classifier_auc
from mergebook.sail.measure.text import SECOND, texts_of
from mergebook.sail.measure.training import Texts
from mergebook.sail.thirds import cut_blocks, held_stretch, histograms, mean_thirds, random_thirds
from mergebook.suites.data.texts import CHARACTERS, encode

BLOCK = 1024  # characters
LEFT_OUT = 0.2  # fraction of each text, one stretch, so that seeds differ in it
MAPPED = 200  # blocks of a text at most on the map
PARTS = ("D1", "D2", "Dt")
HALVES = ("one half", "other half")
WITHOUT = "histogram without mean"
MAP = "t-SNE map"

Splits = dict[str, dict[str, Tensor]]  # rows of blocks, by split and part


@study(load=texts_of)
def clusters(
    source: Texts,  # texts, to be cut into blocks of 1,024 characters, one for thirds of it
    *,
    others: Sequence[str] = (),  # the name of a second text, to compare both with each other
) -> Tables:
    """How far thirds of a text, or two texts, are apart, beside random parts (Fig. 2a and 4).

    ``separation``: rows of ``split`` (``thirds`` by mean token value, or ``texts``, and
    ``random``), ``features`` (``histogram``, or that less its regression on the mean, ``histogram
    without mean``), ``pair`` of parts, and ``auc`` of a classifier.
    """
    blocks, splits = _divided(source)
    shares, means = described(blocks), blocks.double().mean(1)
    found: list[dict[str, Any]] = []
    for (split, parts), name in product(splits.items(), ("histogram", WITHOUT)):
        rows = {part: places.sort().values for part, places in parts.items()}
        for (a, one), (b, two) in combinations(rows.items(), 2):
            given = (means[one], means[two]) if name == WITHOUT else None
            auc = classifier_auc(shares[one], shares[two], given=given)
            found.append({"split": split, "features": name, "pair": f"{a}, {b}", "auc": auc})
    return {"separation": found}


@study(load=texts_of)
def silhouettes(source: Texts, *, others: Sequence[str] = ()) -> Tables:
    """Mean silhouettes (−1..1) of the parts of `clusters`; up to 0.25 there are usually none.

    ``silhouettes``: by ``split``, and ``space``: ``histogram``, scaled, or `MAP`, the plane of
    t-SNE.
    """
    from sklearn.metrics import silhouette_score

    blocks, splits = _divided(source)
    shares = described(blocks)
    spaces = {"histogram": shares / shares.std(0), MAP: on_a_plane(shares, source.seed)}
    rows: list[dict[str, Any]] = []
    for split, parts in splits.items():
        placed = torch.cat([*parts.values()])  # thirds leave out what is over
        sizes = torch.tensor([*map(len, parts.values())])
        labels = torch.arange(len(parts)).repeat_interleave(sizes)
        for space, points in spaces.items():
            score = float(silhouette_score(points[placed].numpy(), labels.numpy()))
            rows.append({"split": split, "space": space, "silhouette": score})
    return {"silhouettes": rows}


@study(load=partial(texts_of, others=(SECOND,)))
def text_map(source: Texts) -> Tables:
    """``map``: blocks of two texts as ``x`` and ``y``, by t-SNE of their histograms (Fig. 4)."""
    tables = [cut_blocks(encode(text), BLOCK) for text in source.texts.values()]
    own = [table[:: -(-len(table) // MAPPED)] for table in tables]
    names = [name for name, table in zip(source.texts, own, strict=True) for _ in table]
    places = on_a_plane(described(torch.cat(own)), source.seed).tolist()
    rows = [
        {"text": text, "features": "histogram", "x": round(x, 2), "y": round(y, 2)}
        for text, (x, y) in zip(names, places, strict=True)
    ]
    return {"map": rows}


def _divided(source: Texts) -> tuple[Tensor, Splits]:
    """Blocks of texts less a stretch of each, and their parts: of one text thirds, or the texts."""
    tables = [cut_blocks(encode(text), BLOCK) for text in source.texts.values()]
    own = [table[~held_stretch(len(table), LEFT_OUT, source.seed)] for table in tables]
    if len(own) == 1:
        return own[0], split_blocks(own[0], source.seed)
    return torch.cat(own), split_texts(source.texts, own, source.seed)


def on_a_plane(features: Tensor, seed: int, turns: int = 500) -> Tensor:
    """Places ``(n, 2)`` of rows by t-SNE from principal directions, features over their spread."""
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


def described(blocks: Tensor) -> Tensor:
    """Histograms of blocks, of the characters that at least half of the blocks have."""
    shares = histograms(blocks, len(CHARACTERS))
    return shares[:, (shares > 0).double().mean(0) >= 0.5]
