"""γ_1 of texts under other features and kernels (SAIL, Anonymous, 2025, section 4.4).

The paper names neither for its one number, γ* = −0.1244; on mixtures the right one is known.
"""

from functools import partial
from itertools import product

from mergebook.lab.results import Tables
from mergebook.lab.runner import study
from mergebook.sail.measure import text
from mergebook.sail.measure.training import Texts, load_corpus
from mergebook.sail.thirds import mean_thirds

TOKENS = {"characters": 0, "byte pairs": 512}  # sizes of vocabularies that are learned
FACTORS = (0.5, 1.0, 2.0, 100.0)  # of the median distance; the last one is nearly a linear kernel


@study(load=text.texts_of)
def text_kernels(source: Texts) -> Tables:
    """Eq. 11 for thirds by mean token value: ``distances``, as `weighed`, by token and factor."""
    distances = []
    for tokens, pairs in TOKENS.items():
        corpus = load_corpus(source, {"pairs": pairs})
        own = (~corpus.held).nonzero()[:, 0]
        thirds = [own[rows] for rows in mean_thirds(corpus.blocks[own])]
        for name, factor in product(text.FEATURES, FACTORS):
            found = text.weighed(corpus, thirds, name, factor)
            distances.append({"tokens": tokens, "factor": factor, **found})
    return {"distances": distances}


@study(load=partial(text.texts_of, others=(text.SECOND,)))
def mixture_weights(source: Texts) -> Tables:
    """Eq. 11 in all features and kernels for `mixture`, where ``gamma`` should be ``share``."""
    corpus = load_corpus(source)
    seen, fresh = text.divided(corpus, thirds=False)
    rows = []
    for share in text.SHARES:
        parts = [*seen, text.mixed(fresh, (share, 1 - share), source.seed).train]
        for name, factor in product(text.FEATURES, FACTORS):
            gamma = text.weighed(corpus, parts, name, factor)["gamma"]
            row = {"share": share, "features": name, "kernel": f"{factor:g}", "gamma": gamma}
            rows.append(row)
    return {"weights": rows}
