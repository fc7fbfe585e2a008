"""γ_1 of texts under other features and kernels (SAIL, Anonymous, 2025, section 4.4).

The paper's one number, γ* = −0.1244, comes from MMD², of which it names neither kernel nor
features. Which of them find the right weight is seen where it is known, on mixtures.
"""

from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any

import torch

from mergebook.lab.results import Tables
from mergebook.lab.runner import study
from mergebook.sail.distances import total_variation
from mergebook.sail.measure import text
from mergebook.sail.measure.training import Texts, load_corpus, planned
from mergebook.sail.thirds import mean_thirds

TOKENS = {"characters": 0, "byte pairs": 512}  # sizes of vocabularies that are learned
FACTORS = (0.5, 1.0, 2.0, 100.0)  # of the median distance; the last one is nearly a linear kernel
VARIATION = "total variation"


@study(load=text.texts_of)
def text_kernels(source: Texts, *, factors: Sequence[float] = FACTORS) -> Tables:
    """Eq. 11 for thirds by mean token value: ``distances``, as `weighed`, by token and factor."""
    distances = []
    for tokens, pairs in TOKENS.items():
        corpus = load_corpus(source, planned(source.profile, {"pairs": pairs}))
        own = (~corpus.held).nonzero()[:, 0]
        thirds = [own[rows] for rows in mean_thirds(corpus.blocks[own])]
        for name, factor in product(text.FEATURES, factors):
            found = text.weighed(corpus, thirds, name, factor)
            distances.append({"tokens": tokens, "factor": factor, **found})
    return {"distances": distances}


@study(load=text.texts_of)
def mixture_weights(
    source: Texts,  # its seed, and texts: D_1 and D_2, or one, to be cut into thirds
    *,
    others: Sequence[str] = ("wikitext2_test",),  # the name of D_2; none for thirds
    shares: Sequence[float] = text.SHARES,  # values of ρ
    factors: Sequence[float] = FACTORS,  # as in `text_kernels`
    plan: Mapping[str, Any] = {},  # sizes of blocks and vocabularies, and what is held out
) -> Tables:
    """Eq. 11 for the mixtures of `mixture`, where γ_1 is the share, in all features and kernels.

    ``weights``: rows of ``share``, ``features``, ``kernel`` (the factor, or `VARIATION`, that of
    all tokens of a part), and ``gamma``.
    """
    corpus = load_corpus(source, planned(source.profile, plan))
    seen, fresh = text.divided(corpus, thirds=not others)
    rows, size = [], corpus.plan.vocabulary
    for share in shares:
        parts = [*seen, text.mixed(fresh, (share, 1 - share), source.seed).train]
        found = {
            (name, f"{factor:g}"): text.weighed(corpus, parts, name, factor)["gamma"]
            for name, factor in product(text.FEATURES, factors)
        }
        tokens = [corpus.blocks[rows].flatten() for rows in parts]
        counts = torch.stack([torch.bincount(each, minlength=size) for each in tokens])
        variations = total_variation(counts[:, None], counts[None])  # of each part and each
        found["histogram", VARIATION] = text.first_weight(variations.square())
        for (name, kernel), gamma in found.items():
            rows.append({"share": share, "features": name, "kernel": kernel, "gamma": gamma})
    return {"weights": rows}
