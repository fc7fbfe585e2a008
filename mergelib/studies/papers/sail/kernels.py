"""γ_1 of thirds of a text under other features and kernels (SAIL, Anonymous, 2025, section 4.4).

The paper's one number, γ* = −0.1244, comes from MMD², of which it names neither kernel nor
features.
"""

from collections.abc import Sequence
from itertools import product

from mergelib.records.results import Tables
from mergelib.sail.blocks import mean_thirds
from mergelib.studies.papers.sail.text import FEATURES, texts_of, weighed
from mergelib.studies.papers.sail.training import Texts, load_corpus, planned
from mergelib.studies.runner import study

TOKENS = {"characters": 0, "byte pairs": 512}  # sizes of vocabularies that are learned
FACTORS = (0.5, 1.0, 2.0, 100.0)  # of the median distance; the last one is nearly a linear kernel


@study(methods=[], load=texts_of)
def text_kernels(source: Texts, *, factors: Sequence[float] = FACTORS) -> Tables:
    """Eq. 11 for thirds by mean token value, in all features, tokens and bandwidths.

    Args:
        source: one text, to be cut into thirds; its seed draws the stretch, a fifth of the text,
            that is left out.
        factors: bandwidths of the Gaussian kernel, in median distances. Far above 1, MMD² is
            nearly the squared distance of means, over the squared bandwidth.

    Returns:
        ``distances``: rows of ``tokens`` (``characters``, ``byte pairs``), ``factor`` and what
        `mergelib.studies.papers.sail.text.weighed` has.
    """
    distances = []
    for tokens, pairs in TOKENS.items():
        corpus = load_corpus(source, planned(source.profile, {"pairs": pairs}))
        own = (~corpus.held).nonzero()[:, 0]
        thirds = [own[rows] for rows in mean_thirds(corpus.blocks[own])]
        for name, factor in product(FEATURES, factors):
            found = weighed(corpus, thirds, name, factor)
            distances.append({"tokens": tokens, "factor": factor, **found})
    return {"distances": distances}
