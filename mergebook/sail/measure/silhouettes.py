"""Are thirds of a text clusters (SAIL, Anonymous, 2025, Fig. 2a)? Silhouettes measure it."""

from collections.abc import Sequence
from typing import Any

import torch

from mergebook.lab.results import Tables
from mergebook.lab.runner import study
from mergebook.sail.measure.clusters import (
    BLOCK,
    described,
    on_a_plane,
    split_blocks,
    split_texts,
)
from mergebook.sail.measure.text import texts_of
from mergebook.sail.measure.training import Texts
from mergebook.sail.thirds import cut_blocks, held_stretch
from mergebook.suites.data.texts import encode

MAP = "t-SNE map"


@study(load=texts_of)
def silhouettes(
    source: Texts, *, others: Sequence[str] = (), left_out: float = 0.2, turns: int = 500
) -> Tables:
    """Mean silhouettes of thirds of a text, or of two texts, beside random parts.

    A block's silhouette is (b − a)/max(a, b), with a its mean distance to blocks of its own part
    and b that to the nearest other part. Parts whose mean is at most 0.25 are usually taken for no
    clusters (Kaufman and Rousseeuw, 1990).

    Returns:
        ``silhouettes``: rows of ``split`` (``thirds`` by mean token value, or ``texts``, and
        ``random``), ``space`` (``histogram``, each feature over its spread, or `MAP`, the plane
        that t-SNE makes of it) and ``silhouette`` (−1..1).
    """
    from sklearn.metrics import silhouette_score

    tables = [cut_blocks(encode(text), BLOCK) for text in source.texts.values()]
    seed = source.seed
    own = [table[~held_stretch(len(table), left_out, seed)] for table in tables]
    splits = split_texts(source.texts, own, seed) if others else split_blocks(own[0], seed)
    shares = described(torch.cat(own))["histogram"]
    spaces = {"histogram": shares / shares.std(0), MAP: on_a_plane(shares, seed, turns)}
    rows: list[dict[str, Any]] = []
    for split, parts in splits.items():
        placed = torch.cat([*parts.values()])  # thirds leave out what is over
        labels = torch.arange(len(parts)).repeat_interleave(
            torch.tensor([*map(len, parts.values())])
        )
        for space, points in spaces.items():
            score = float(silhouette_score(points[placed].numpy(), labels.numpy()))
            rows.append({"split": split, "space": space, "silhouette": score})
    return {"silhouettes": rows}
