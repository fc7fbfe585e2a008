"""Rates of `arms` and `factorial`, and where each comes from."""

from collections.abc import Sequence
from typing import NamedTuple


class Rates(NamedTuple):
    """Of Adam, and of random weights."""

    training: float  # rate of retraining
    maps: float = 0.0  # rate of maps, where they are learned
    embeddings: float = 1.0  # what a GPT's random embeddings are multiplied by, in "tuned" arms
    matrices: float = 1.0  # factor on all its other matrices


NOT_TUNED = "not tuned"
TUNED = "results/tinyshakespeare-starts_tuning.json"  # the least `choose` loss on seeds from 1000
# Rates of a grid on seeds from 1000, of which each of these is the best or near it, see
# `mergebook.sail.read.tuning.excess`.
TRIED = "results/*-starts_tuning-rates.json"


class Row(NamedTuple):
    """Rates of some arms in some places; later rows overrule earlier ones."""

    modalities: Sequence[str]  # names of transfers
    arms: Sequence[str]  # names of arms
    rates: Rates  # of all of them there
    origin: str = TRIED  # where they come from
    sizes: Sequence[str] = ()  # of larger networks; none for all
    starts: Sequence[str] = ()  # of the second source; none for all


_GPT = ("GPT",)
_HALVES = ("ResNet, halves",)
_UNLABELLED = ("ResNet, halves, probed", "ResNet, halves, BYOL")
_ALL = ("ResNet", *_HALVES, *_UNLABELLED)
_FROM_WEIGHTS = (
    *("nearest source", "farther source", "own size", "Net2Net", "uniform", "SAIL"),
    *("SAIL, matched", "random, same scale"),
)
_MAIN = ("nearest source", "SAIL")
_PICTURED = ("scratch", "scratch, published", *_FROM_WEIGHTS)
# `excess` tells which arms were tried. No grid was tried for features without labels, for the size
# "deepest", for the farther source, for "scratch, published" and learned maps of pictures, nor at
# "deeper" for more than scratch, the nearest source and SAIL: these have rates of arms alike.
TABLE = (
    Row(_GPT, ("scratch", "scratch, published"), Rates(1e-3)),
    Row(_GPT, ("nearest source", "Net2Net", "greedy soup", "bert2BERT", "SAIL"), Rates(1e-3)),
    Row(_GPT, ("farther source",), Rates(1e-3), NOT_TUNED),
    Row(_GPT, ("own size", "stack", "uniform", "SAIL, distilled"), Rates(3e-3)),
    Row(_GPT, ("LiGO", "SAIL, learned"), Rates(1e-3, 1e-3)),
    Row(_GPT, ("LiGO, published",), Rates(1e-3, 1e-2)),
    Row(_GPT, ("SAIL", "SAIL, distilled"), Rates(3e-3), starts=("own",)),
    Row(_GPT, ("SAIL, matched",), Rates(1e-3), starts=("own",)),
    Row(_GPT, ("scratch, tuned",), Rates(5.2e-3, 0.0, 11.0), TUNED, sizes=("half wider",)),
    Row(_GPT, ("scratch, tuned",), Rates(5.2e-3, 0.0, 5.0), TUNED, sizes=("twice",)),
    Row(_GPT, ("random, same scale",), Rates(5.2e-3), TUNED),
    Row(_ALL, _PICTURED, Rates(1e-3), sizes=("half wider",)),
    Row(_ALL, _PICTURED, Rates(3e-3), sizes=("deeper", "deepest")),
    Row(_ALL, ("LiGO",), Rates(3e-3, 1e-3), NOT_TUNED),
    Row(_ALL, ("SAIL, learned",), Rates(1e-3, 1e-3), NOT_TUNED),
    Row((*_HALVES, *_UNLABELLED), _MAIN, Rates(3e-3), sizes=("half wider",)),
    Row(_HALVES, ("own size", "Net2Net", "SAIL, matched"), Rates(3e-3), sizes=("half wider",)),
    Row(_HALVES, ("uniform",), Rates(3e-3), sizes=("half wider",), starts=("own",)),
)
# Of the factorial, tried in the same way for two sources that share their start. Learned maps of
# pictures were not tried.
_COPIED = ("replicate", "mean", "svd_random")
_LEARNED = dict.fromkeys(("LiGO alone", "LiGO joint"), Rates(3e-3, 1e-3))  # LiGO's in `arms`
FACTORIAL = {  # by modality and maps
    "GPT": {
        **dict.fromkeys(("scratch", "replicate", "mean"), Rates(1e-3)),
        **dict.fromkeys(("LiGO alone", "LiGO joint"), Rates(1e-3, 1e-3)),
        "svd_random": Rates(3e-3),
    },
    "ResNet": {**dict.fromkeys(("scratch", *_COPIED), Rates(3e-3)), **_LEARNED},
    "ResNet, halves": {"scratch": Rates(1e-3), **dict.fromkeys(_COPIED, Rates(3e-3)), **_LEARNED},
}


def find_rates(modality: str, start: str, size: str, arm: str) -> Rates | None:
    """The rates of an arm by `TABLE`, if it has any."""
    for row in reversed(TABLE):
        places = ((modality, row.modalities), (arm, row.arms), (size, row.sizes))
        if all(not known or name in known for name, known in (*places, (start, row.starts))):
            return row.rates
    return None


def usual_rates(modality: str, start: str, size: str, arm: str) -> Rates:
    """Return the rates of an arm by `TABLE`."""
    if rates := find_rates(modality, start, size, arm):
        return rates
    raise ValueError(
        f"no rates of {arm!r} are known for {modality}, {size}, {start} start: pass them with "
        "the setting 'rates'"
    )
