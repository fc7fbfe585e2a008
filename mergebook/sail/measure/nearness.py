"""Whether sources are nearer to an optimum than random weights, for GPTs (SAIL's Theorem 1)."""

from collections.abc import Mapping, Sequence
from typing import Any

from mergebook.lab.results import Tables
from mergebook.lab.runner import study
from mergebook.sail.measure.spirals import apart
from mergebook.sail.measure.text import texts_of, trained_pair
from mergebook.sail.measure.training import Texts, load_corpus, planned
from mergebook.sail.thirds import mean_thirds
from mergelib.problems.checks import check_choice

STARTS = ("shared", "own")


@study(load=texts_of)
def text_nearness(
    source: Texts, *, starts: Sequence[str] = STARTS, plan: Mapping[str, Any] = {}
) -> Tables:
    """Squared distances from an optimum of D_t, of sources of D_1 and D_2 and of random weights.

    D_1, D_2 and D_t are thirds of a text as `gamma_sweep` has them. The optimum θ* is trained as
    sources are, from their common start where they share it, else from one of its own.

    Returns:
        ``sources``: rows of ``start``, ``source`` (1, 2), ``parameters`` (squared distance of the
        source from θ*) and ``random`` (of a network that was not trained, another one than all
        starts).
    """
    for start in starts:
        check_choice("start", start, STARTS)
    corpus = load_corpus(source, planned(source.profile, plan))
    first, second, target = (corpus.parted(rows).train for rows in mean_thirds(corpus.blocks))
    random = corpus.model("random").state_dict()
    rows: list[dict[str, Any]] = []
    for start in starts:
        begun = corpus.model("shared" if start == "shared" else "optimum")
        optimum = corpus.source(begun, target, 3)
        pair = trained_pair(corpus, start, first, second)
        rows += [{"start": start, **row} for row in apart(pair, optimum, random)]
    return {"sources": rows}
