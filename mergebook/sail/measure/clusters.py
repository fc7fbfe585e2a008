"""Are parts of texts clusters (SAIL, Anonymous, 2025, Figures 2a and 4), or what a sort makes?"""

from collections.abc import Iterable, Sequence
from itertools import combinations, product
from typing import Any

import torch
from torch import Tensor

from mergebook.lab.results import Tables
from mergebook.lab.runner import study
from mergebook.sail.distances import classifier_auc, residuals
from mergebook.sail.measure.text import texts_of
from mergebook.sail.measure.training import Texts
from mergebook.sail.thirds import cut_blocks, held_stretch, histograms, mean_thirds, random_thirds
from mergebook.suites.data.texts import CHARACTERS, encode
from mergelib.sail.divergences import permutation_p

BLOCK = 1024  # characters
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
    left_out: float = 0.2,  # fraction of each text, one stretch, so that seeds differ in it
    permutations: int = 999,  # for p, which is at least 1/(permutations + 1)
) -> Tables:
    """How far thirds of a text, or two texts, are apart, beside random parts (Fig. 2a and 4).

    ``separation``: rows of ``split`` (``thirds`` by mean token value, or ``texts``, and
    ``random``), ``features`` (``mean``, ``histogram``, ``histogram without mean``), ``pair`` of
    parts, ``auc`` of a classifier and ``p`` of one pool, by MMD.
    """
    blocks, splits = _divided(source, left_out)
    kinds, means = described(blocks), blocks.double().mean(1)
    tests: dict[str, Any] = {"permutations": permutations, "seed": source.seed}
    found: list[dict[str, Any]] = []
    for (split, parts), name in product(splits.items(), kinds):
        rid = name == WITHOUT
        features = kinds["histogram" if rid else name]
        rows = {part: places.sort().values for part, places in parts.items()}
        for (a, one), (b, two) in combinations(rows.items(), 2):
            given = (means[one], means[two]) if rid else None
            row: dict[str, Any] = {"split": split, "features": name, "pair": f"{a}, {b}"}
            row["auc"] = classifier_auc(features[one], features[two], given=given)
            found.append(row | {"p": permutation_p(kinds[name][one], kinds[name][two], **tests)})
    return {"separation": found}


@study(load=texts_of)
def silhouettes(
    source: Texts, *, others: Sequence[str] = (), left_out: float = 0.2, turns: int = 500
) -> Tables:
    """Mean silhouettes of thirds of a text, or of two texts, beside random parts.

    Parts whose mean is at most 0.25 are usually taken for no clusters (Kaufman and Rousseeuw,
    1990). ``silhouettes``: rows of ``split`` (``thirds`` by mean token value, or ``texts``, and
    ``random``), ``space`` (``histogram``, each feature over its spread, or `MAP`, the plane that
    t-SNE makes of it) and ``silhouette`` (−1..1).
    """
    from sklearn.metrics import silhouette_score

    blocks, splits = _divided(source, left_out)
    shares = described(blocks)["histogram"]
    spaces = {"histogram": shares / shares.std(0), MAP: on_a_plane(shares, source.seed, turns)}
    rows: list[dict[str, Any]] = []
    for split, parts in splits.items():
        placed = torch.cat([*parts.values()])  # thirds leave out what is over
        sizes = torch.tensor([*map(len, parts.values())])
        labels = torch.arange(len(parts)).repeat_interleave(sizes)
        for space, points in spaces.items():
            score = float(silhouette_score(points[placed].numpy(), labels.numpy()))
            rows.append({"split": split, "space": space, "silhouette": score})
    return {"silhouettes": rows}


@study(load=texts_of)
def text_map(
    source: Texts, *, others: Sequence[str] = ("wikitext2_test",), blocks: int = 200
) -> Tables:
    """Blocks of texts on a plane, by t-SNE (Fig. 4).

    ``map``: a row per block: ``text``, ``features`` (``histogram``, or without mean), ``x``, ``y``.
    """
    tables = [cut_blocks(encode(text), BLOCK) for text in source.texts.values()]
    own = [table[:: -(-len(table) // blocks)] for table in tables]
    names = [name for name, table in zip(source.texts, own, strict=True) for _ in table]
    kinds, rows = described(torch.cat(own)), []
    for name in ("histogram", WITHOUT):
        for text, (x, y) in zip(names, on_a_plane(kinds[name], source.seed).tolist(), strict=True):
            rows.append({"text": text, "features": name, "x": round(x, 2), "y": round(y, 2)})
    return {"map": rows}


def _divided(source: Texts, left_out: float) -> tuple[Tensor, Splits]:
    """Blocks of texts less a stretch of each, and their parts: of one text thirds, or the texts."""
    tables = [cut_blocks(encode(text), BLOCK) for text in source.texts.values()]
    own = [table[~held_stretch(len(table), left_out, source.seed)] for table in tables]
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


def described(blocks: Tensor) -> dict[str, Tensor]:
    """Features of blocks: their mean, a histogram, and that less its regression on the mean."""
    means = blocks.double().mean(1)
    shares = histograms(blocks, len(CHARACTERS))
    shares = shares[:, (shares > 0).double().mean(0) >= 0.5]
    return {"mean": means[:, None], "histogram": shares, WITHOUT: residuals((shares, means))[0]}
