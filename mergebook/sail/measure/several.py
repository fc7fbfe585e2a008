"""More than two sources, checkpoints of one training, a larger source (Anonymous, 2025, App. I)."""

from functools import partial
from typing import Any

from mergebook.lab.results import Tables
from mergebook.lab.runner import study
from mergebook.sail.measure.text import FACTORS, described, divided, mixed, texts_of
from mergebook.sail.measure.training import State, Texts, load_corpus
from mergebook.suites.models import GPT, to_tokens
from mergelib import merge, shrink
from mergelib.hashing import stable_seed
from mergelib.problems.checks import check_choice
from mergelib.sail.divergences import mmd_table
from mergelib.sail.proximal import proximal_weights
from mergelib.statedict import StateDict
from mergelib.training import seeded

OTHERS = ("wikitext2_test", "don_quijote_es", "names")
SHARES = (0.4, 0.3, 0.2, 0.1)  # of the texts in the target, rotated by the seed
SHRUNK_ON = 256  # windows that tell the activations


@study(load=partial(texts_of, others=OTHERS))
def several_sources(
    source: Texts,  # its seed, and texts: one of every source
    *,
    start: str = "shared",  # of the sources, `shared` or `own`
) -> Tables:
    """Loss on a mixture of texts from starts of one to all sources.

    ``curves``: rows of ``start``, ``arm``, ``sources``, ``step``, ``choose``, ``judge`` (nats per
    token). Arms: ``nearest`` source; ``theorem`` and ``uniform`` of the nearest ones; with a shared
    start ``scratch``, ``longer`` (the nearest, trained as long as all four), ``checkpoints`` (its
    mean with itself after 5/7 and 6/7 of training, as in the paper), ``larger`` (a larger source,
    shrunk) and ``checkpoints, larger``. ``weights``: a source's ``share`` of the target, and
    Theorem 3's.
    """
    check_choice("start", start, ("shared", "own"))
    corpus = load_corpus(source, factors=FACTORS)
    seen, fresh = divided(corpus, thirds=False)
    turn = source.seed % len(seen)
    shares = [*SHARES[turn:], *SHARES[:turn]]
    rows = mixed(fresh, shares, source.seed)
    squares = mmd_table([described(corpus, "histogram", part) for part in (*seen, rows.train)])
    order = squares[-1, :-1].argsort().tolist()
    nearest, steps = order[0], corpus.plan.source_steps

    def trained(number: int, *lengths: int) -> list[State]:
        begun = corpus.model("shared" if start == "shared" else f"own {number}")
        split, rate = corpus.windows(seen[number]), corpus.plan.source_rate
        return [*corpus.trained(begun, split, lengths, rate, number).values()]

    *checkpoints, longer = trained(nearest, 5 * steps // 7, 6 * steps // 7, steps, 4 * steps)
    sources = [checkpoints[-1], *(trained(number, steps)[0] for number in order[1:])]
    starts: list[tuple[str, int, StateDict]] = [("nearest", 1, sources[0])]
    weights: list[dict[str, Any]] = []
    for count in range(2, len(order) + 1):
        chosen = order[:count]
        found = proximal_weights(squares[-1, chosen], squares[chosen][:, chosen]).weights.tolist()
        for number, weight in zip(chosen, found, strict=True):
            weights.append({"sources": count, "share": shares[number], "theorem": weight})
        starts.append(("theorem", count, merge("average", sources[:count], weights=found)))
        starts.append(("uniform", count, merge("average", sources[:count])))
    if start == "shared":
        plan = corpus.plan
        with seeded(stable_seed("start", "larger", corpus.seed)):
            size = {"vocabulary": plan.vocabulary, "context": plan.context, "mlp_ratio": 8}  # not 4
            large = GPT(plan.width, 2 * plan.depth, plan.heads, **size).to(corpus.device)
        inputs = to_tokens(corpus.windows(seen[nearest], SHRUNK_ON).inputs.to(corpus.device))
        state = corpus.source(large, seen[nearest], "larger")
        shrunk = shrink(large, corpus.model("shared"), inputs, state=state)
        starts += [
            ("scratch", 0, corpus.model("scratch").state_dict()),
            ("longer", 1, longer),
            ("checkpoints", 3, merge("average", checkpoints)),
            ("larger", 1, shrunk),
            ("checkpoints, larger", 4, merge("average", [*checkpoints, shrunk])),
        ]
    target = corpus.target(rows)
    curves = [
        {"start": start, "arm": arm, "sources": count, **row}
        for arm, count, state in starts
        for row in corpus.retrained(state, target)
    ]
    return {"curves": curves, "weights": [{"start": start, **row} for row in weights]}
