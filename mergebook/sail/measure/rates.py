"""Rates of `arms` and `factorial`, and where they come from."""

from collections.abc import Sequence
from typing import NamedTuple


class Rates(NamedTuple):
    """Of Adam, and of random weights."""

    training: float  # rate of retraining
    maps: float = 0.0  # rate of maps, where they are learned
    embeddings: float = 1.0  # what a GPT's random embeddings are multiplied by, in "tuned" arms
    matrices: float = 1.0  # factor on all its other matrices


class Row(NamedTuple):
    """Rates of some arms in some places; later rows overrule earlier ones."""

    modalities: Sequence[str]  # names of transfers
    arms: Sequence[str]  # names of arms
    rates: Rates  # of all of them there
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
# Rates are the best, or near the best, of grids on seeds from 1000, which are in
# results/*-starts_tuning-rates.json; those of GPTs' random weights have the least `choose` loss in
# results/tinyshakespeare-starts_tuning.json. No grid was tried for features without labels, for the
# size "deepest", for the farther source, for "scratch, published" and learned maps of pictures, nor
# at "deeper" for more than scratch, the nearest source and SAIL: these have rates of arms alike.
TABLE = (
    Row(_GPT, ("scratch", "scratch, published", "farther source"), Rates(1e-3)),
    Row(_GPT, ("nearest source", "Net2Net", "greedy soup", "bert2BERT", "SAIL"), Rates(1e-3)),
    Row(_GPT, ("own size", "stack", "uniform", "SAIL, distilled"), Rates(3e-3)),
    Row(_GPT, ("LiGO", "SAIL, learned"), Rates(1e-3, 1e-3)),
    Row(_GPT, ("LiGO, published",), Rates(1e-3, 1e-2)),
    Row(_GPT, ("SAIL", "SAIL, distilled"), Rates(3e-3), starts=("own",)),
    Row(_GPT, ("SAIL, matched",), Rates(1e-3), starts=("own",)),
    Row(_GPT, ("scratch, tuned",), Rates(5.2e-3, 0.0, 11.0), sizes=("half wider",)),
    Row(_GPT, ("scratch, tuned",), Rates(5.2e-3, 0.0, 5.0), sizes=("twice",)),
    Row(_GPT, ("random, same scale",), Rates(5.2e-3)),
    Row(_ALL, _PICTURED, Rates(1e-3), sizes=("half wider",)),
    Row(_ALL, _PICTURED, Rates(3e-3), sizes=("deeper", "deepest")),
    Row(_ALL, ("LiGO",), Rates(3e-3, 1e-3)),
    Row(_ALL, ("SAIL, learned",), Rates(1e-3, 1e-3)),
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


def usual_rates(modality: str, start: str, size: str, arm: str) -> Rates:
    """Return the rates of an arm by `TABLE`."""
    for row in reversed(TABLE):
        places = ((modality, row.modalities), (arm, row.arms), (size, row.sizes))
        if all(not known or name in known for name, known in (*places, (start, row.starts))):
            return row.rates
    raise ValueError(
        f"no rates of {arm!r} are known for {modality}, {size}, {start} start: pass them with "
        "the setting 'rates'"
    )
