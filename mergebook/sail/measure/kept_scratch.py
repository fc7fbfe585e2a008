"""The control of `kept`: what training from scratch reaches at the cost of learning the maps."""

from collections.abc import Sequence
from typing import Any

from mergebook.lab.results import Tables
from mergebook.lab.runner import study
from mergebook.sail.measure.kept import GROWN, Bench, Ground, ground_of
from mergebook.sail.measure.training import by_adam
from mergelib.hashing import stable_seed
from mergelib.problems.checks import check_choice


@study(load=ground_of)
def kept_scratch(
    ground: Ground,  # data and networks
    seed: int,  # of all that is drawn
    *,
    source_steps: int = 300,  # of Adam, for a source
    source_rate: float = 3e-3,  # of every such step
    steps: int = 120,  # of training from scratch
    every: int = 20,  # steps between two readings
    rates: Sequence[float] = (3e-3, 1e-2),  # of training
    only: Sequence[str] = (),  # families, by default all of the ground
) -> Tables:
    """Fraction of a source's learning that larger networks reach from their random start.

    The fraction is that of `kept`, with its data, sources and random starts, so that learned maps
    can be compared with training that costs as much and has no source.

    Returns:
        ``curve``: rows of ``family``, ``grown`` (`GROWN`), ``step``, ``rate``, ``loss`` (nats, on
        ``judge``) and ``kept``, which is (random − loss)/(random − source).
    """
    for family in only:
        check_choice("family", family, [*ground.builds])
    rows: list[dict[str, Any]] = []
    order = stable_seed("order", seed)
    for family in only or ground.builds:
        bench = Bench(ground, ground.builds[family], seed, 0, (), 0, rates)
        source = bench.loss(bench.source("common", 0, source_steps, source_rate))
        for grown in GROWN:
            fresh = bench.fresh(grown)
            random = bench.loss(fresh)
            stops = range(every, steps + 1, every)
            states = {
                rate: by_adam(
                    fresh, ground.parts[2], stops, rate, batch_size=ground.batch_size, seed=order
                )
                for rate in rates
            }
            for step in stops:
                losses: dict[float, float] = {}
                for rate in rates:
                    fresh.load_state_dict(states[rate][step])
                    losses[rate] = bench.loss(fresh, ground.choose)
                best = min(losses, key=lambda rate: losses[rate])
                fresh.load_state_dict(states[best][step])
                loss = bench.loss(fresh)
                share = (random - loss) / (random - source)
                row = {"family": family, "grown": grown, "step": step, "rate": best}
                rows.append({**row, "loss": loss, "kept": share})
    return {"curve": rows}
