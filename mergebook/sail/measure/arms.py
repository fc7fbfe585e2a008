"""Starts of a larger network compared (Anonymous, 2025, Table 2, Figures 3 and 5, section 4.5)."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from mergebook.lab.results import Tables
from mergebook.lab.runner import study
from mergebook.sail.costs import check_tuning
from mergebook.sail.measure.grounds import transfer_of
from mergebook.sail.measure.rates import FACTORIAL, Rates
from mergebook.sail.measure.sources import ARMS, NOISE, Arm, Sources
from mergebook.sail.measure.transfers import Transfer

EVERY = 20  # steps between readings
KINDS = {"shared": "shared", "own": "own", "re-basin": "own"}  # starts, by those of `Sources`
SCRATCH = "scratch"  # in the place of maps
MAPS = {  # from the source's shape to the target's
    "replicate": Arm(width="replicate", noise=NOISE),
    "mean": Arm(width="mean"),
    "LiGO alone": Arm(width="mean", depth="stack", mode="alone"),
    "LiGO joint": Arm(width="mean", depth="stack", mode="joint"),
    "svd_random": Arm(width="svd_random"),
}


class Cell(NamedTuple):
    """A cell of the factorial."""

    sources: int  # 0 for scratch, 1 for the nearest alone, 2 for both with Theorem 3's weights
    start: str  # of the second source, one of `KINDS`; "shared" for one source, empty for none
    maps: str  # one of `MAPS`, or `SCRATCH`


CELLS = {Cell(0, "", SCRATCH): Arm()}
for _maps, _arm in MAPS.items():
    if _arm.mode != "joint":  # which for one source is the same as alone
        CELLS[Cell(1, "shared", _maps)] = _arm._replace(weights="nearest")
    for _start in KINDS:
        _matched = _start == "re-basin"
        CELLS[Cell(2, _start, _maps)] = _arm._replace(weights="theorem", matched=_matched)

# A start to be trained: the words that tell its rows in the tables, both sources, how it is made of
# them, rates, and steps.
Trial = tuple[Mapping[str, Any], Sources, Arm, Rates, int]


def trained(trials: Iterable[Trial]) -> Tables:
    """``curves`` and ``costs`` of `arms`, of the start of every trial, read every `EVERY` steps."""
    tables: Tables = {"curves": [], "costs": []}
    for words, pair, arm, rates, steps in trials:
        begun = pair.start(arm, rates)
        reads = range(0, steps + 1, EVERY)
        rows = pair.transfer.retrained(begun.net, reads, rates.training, begun.split)
        tables["curves"] += [{**words, **row} for row in rows]
        tables["costs"].append({**words, **pair.costs(begun)})
    return tables


@study(load=transfer_of)
def arms(
    transfer: Transfer,
    *,
    target: str = "",  # a task of pictures, by default the first; with `halves` `tiny_imagenet20`
    known: str = "",  # of pictures: a kind each, or `halves` of the classes of one set
    learning: str = "labels",  # of pictures: `labels`, `labels, probed` or `byol`
    start: str = "shared",  # of the second source, `shared` (the first one's) or `own`
    size: str = "half wider",  # of the larger network, one of the transfer's
    only: Sequence[str] = (),  # names of `ARMS`, by default all that transfer and start allow
    steps: int = 400,  # of retraining
    noise: float = NOISE,  # of all starts that add any to copies of units, see `grow`
    rates: Mapping[str, Sequence[float]] = {},  # by arm; of others, those of `usual_rates`
) -> Tables:
    """Loss on the way from every start.

    Rows with ``start``, ``size``, and of images ``modality`` and ``target``. ``curves``: of each
    ``arm``, ``step``, ``choose`` and ``judge`` (nats) and ``accuracy``. ``costs``: of each ``arm``,
    ``step_flops``, ``added_flops`` (whatever the start takes beside its sources) and
    ``source_flops``. ``distances``: MMD² ``first`` (of D_1 and D*), ``second`` and ``between``,
    ``p``, of a ``between`` as large if D_1 and D_2 have one law, and ``gamma``, θ_1's weight.
    """
    pair = Sources(transfer, start, size)
    names = [*only] or pair.allowed()
    pair.check(names)
    trials: list[Trial] = []
    for name in names:
        arm = ARMS[name]._replace(noise=noise) if ARMS[name].noise else ARMS[name]
        own = Rates(*rates[name]) if name in rates else pair.rates(name)
        trials.append(({"arm": name}, pair, arm, own, steps))
    tables = trained(trials) | {"distances": [pair.distances]}
    return transfer.placed(tables, start=start, size=size)


@study(load=transfer_of)
def factorial(
    transfer: Transfer,
    *,
    target: str = "",  # this and the next one as in `arms`
    known: str = "",
    size: str = "twice",
    steps: int = 300,  # of retraining
    longer: int = 3,  # times as many of scratch, which else reaches no loss of the others
    rates: Mapping[str, Sequence[float]] = {},  # by maps, or `SCRATCH`; else those of `FACTORIAL`
) -> Tables:
    """`arms` for every cell of `CELLS`: ``sources``, ``start`` and ``maps`` in place of ``arm``."""
    pairs = {kind: Sources(transfer, kind, size) for kind in KINDS.values()}
    usual: dict[str, Sequence[float]] = {**FACTORIAL.get(transfer.name, {}), **rates}
    trials: list[Trial] = []
    for cell, arm in CELLS.items():
        pair = pairs[KINDS.get(cell.start, "shared")]
        if pair.refusal(arm):
            continue
        if cell.maps not in usual:
            name = transfer.name
            raise ValueError(f"no rates of {cell.maps!r} are known for {name}: pass them as rates")
        length = steps if cell.sources else longer * steps
        trials.append((cell._asdict(), pair, arm, Rates(*usual[cell.maps]), length))
    return transfer.placed(trained(trials), size=size)


@study(load=transfer_of)
def starts_tuning(
    transfer: Transfer,  # its seed is one of tuning, from 1000
    *,
    target: str = "",  # this and the next four as in `arms`
    known: str = "",
    learning: str = "labels",
    start: str = "shared",
    size: str = "half wider",
    only: Sequence[str] = ("scratch",),  # names of `ARMS` or `MAPS`; maps get both sources
    steps: int = 1000,
    rates: Sequence[Sequence[float]] = (),  # the grid, each the fields of `Rates`; or the usual
) -> Tables:
    """``curves`` of `arms` from some starts at every rate of a grid, with the fields of `Rates`."""
    check_tuning(transfer.seed)
    pair = Sources(transfer, start, size)
    tried = {name: arm._replace(weights="theorem") for name, arm in MAPS.items()} | ARMS
    pair.check(only, tried)
    trials = [
        ({"arm": name, **own._asdict()}, pair, tried[name], own, steps)
        for name in only
        for own in [Rates(*row) for row in rates] or [pair.rates(name)]
    ]
    return transfer.placed({"curves": trained(trials)["curves"]}, start=start, size=size)
