"""What chapters 51 and 53 compute once, over seeds: Theorem 4's bound, and clusters of a text."""

from collections.abc import Sequence

from mergelib.data.texts import encode
from mergelib.records.results import Tables
from mergelib.sail.blocks import cut_blocks, held_stretch
from mergelib.studies.analysis.sail.proximal import risks
from mergelib.studies.analysis.sail.text import BLOCK, separation
from mergelib.studies.comparison import records
from mergelib.studies.papers.sail.text import texts_of
from mergelib.studies.runner import Loaded, Run, refuse_zoo_settings, study


def drawn_for(run: Run) -> Loaded:
    """The seed: examples are drawn by the study.

    Raises:
        ValueError: another suite than ``gaussians``, or a setting of zoos.
    """
    if run.suite != "gaussians":
        raise ValueError(f"the study of risks has no suite {run.suite!r}, only 'gaussians'")
    refuse_zoo_settings(run, "studies of risks")
    return Loaded((run.seed,), {"sources": {}})


@study(methods=[], load=drawn_for)
def risk(
    seed: int, *, examples: Sequence[int] = (100, 300, 1000, 3000), draws: int = 200
) -> Tables:
    """Theorem 4, printed and repaired, for linear classifiers of two Gaussians.

    Args:
        seed: of the draws.
        examples: n, of a source.
        draws: of each.

    Returns:
        ``bounds``: rows of ``examples``, ``form`` (``printed``, ``repaired``), ``bound`` and the
        risk itself, ``truth``, means over draws; and the shares of draws in which the bound
        ``holds``, and ``tells`` something, see `mergelib.studies.analysis.sail.proximal.risks`.
    """
    table = risks(examples, draws=draws, seed=seed)
    rows = []
    for form in ("printed", "repaired"):
        names = {form: "bound", f"{form} holds": "holds", f"{form} tells": "tells"}
        own = table[["examples", "truth", *names]].rename(columns=names)
        rows += records(own.assign(form=form))
    return {"bounds": rows}


@study(methods=[], load=texts_of)
def clusters(seed: int, text: str, *, left_out: float = 0.2) -> Tables:
    """How well a classifier tells thirds of a text apart, beside random thirds (Fig. 2a and 4).

    Args:
        seed: of the stretch that is left out, and of random thirds.
        text: cut into blocks of 1,024 characters.
        left_out: share of the text, one stretch, so that seeds differ in the text as well.

    Returns:
        ``separation``: rows of ``split`` (``thirds`` by mean token value, ``random``),
        ``features`` (``mean``, ``histogram``, ``histogram without mean``), ``pair`` of parts and
        ``auc``.
    """
    blocks = cut_blocks(encode(text), BLOCK)
    own = blocks[~held_stretch(len(blocks), left_out, seed)]
    wide = separation(own, seed)
    long = wide.melt(["split", "features"], var_name="pair", value_name="auc")
    return {"separation": records(long)}
