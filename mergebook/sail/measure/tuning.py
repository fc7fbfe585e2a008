"""Rates, scales and goals for starts of a larger network, measured on seeds that nothing else uses.

`mergebook.sail.read.tuning` reads both out of the results.
"""

from collections.abc import Sequence

from mergebook.lab.results import Tables
from mergebook.lab.runner import study
from mergebook.sail.measure.arms import ARMS, EVERY, Sources
from mergebook.sail.measure.grounds import transfer_of
from mergebook.sail.measure.rates import Rates
from mergebook.sail.measure.transfers import Transfer

FIRST = 1000  # seed of tuning; all other studies use lower ones


@study(load=transfer_of)
def starts_tuning(
    transfer: Transfer,  # data, networks, trainings; its seed is at least `FIRST`
    *,
    others: Sequence[str] = ("wikitext2_test",),  # the second text; for texts alone
    target: str = "",  # see `mergebook.sail.measure.arms.arms`
    known: str = "",
    learning: str = "labels",
    start: str = "shared",  # of the second source
    size: str = "half wider",  # of the larger network
    only: Sequence[str] = ("scratch",),  # names of `ARMS`
    steps: int = 1000,  # of retraining, read every `EVERY`
    rates: Sequence[Sequence[float]] = (),  # the grid, each entry the fields of `Rates` in order
) -> Tables:
    """Loss on the way from some starts, at every rate of a grid.

    Returns:
        ``curves``: rows of ``start``, ``size``, and of pictures ``modality`` and ``target``;
        ``arm``, the fields of `Rates`, ``step``, ``choose`` and ``judge`` (nats), ``accuracy``.
    """
    if transfer.seed < FIRST:
        raise ValueError(
            f"seed {transfer.seed} is used by other studies: tune on seeds from {FIRST}, with "
            f"--first {FIRST}"
        )
    pair = Sources(transfer, start, size)
    pair.check(only)
    reads = range(0, steps + 1, EVERY)
    tables: Tables = {"curves": []}
    for name in only:
        for own in [Rates(*row) for row in rates] or [pair.rates(name)]:
            begun = pair.start(ARMS[name], own)
            rows = transfer.retrained(begun.net, reads, own.training, begun.split)
            tables["curves"] += [{"arm": name, **own._asdict(), **row} for row in rows]
    return transfer.placed(tables, start=start, size=size)
