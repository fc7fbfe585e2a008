"""CoGraM's passes against the plain loop of whole forward passes that gives the same decisions.

The network is the paper's (32-64-20), trained as a synthetic pair; the data are one arithmetic
prototype a class, 20 examples, or ten examples a class. Both sides compute in double precision, on
one process's threads, and their logs are compared before anything is timed. The loop changes the
network in place and runs all of it for every candidate: no copies, nothing that a careful author of
a loop would not save too. It is the tests' reference.
"""

import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import pandas as pd
import torch
import typer
from torch import Tensor, nn

import mergelib as ml
from mergebook.cogram.synthetic import synthetic_pair, train_pair
from mergebook.lab.results import write_result
from mergebook.suites.provenance import provenance
from mergelib.cogram import prototypes
from mergelib.progress import progress
from tests.library.cogram.reference import Plain

LEVELS = ("neuron", "weight")
ORDERS = ("simultaneous", "sequential")
DECISION = ["layer", "level", "unit", "weight", "case", "accepted"]
Data = dict[str, tuple[Tensor, Tensor]]


def problem(seed: int, hidden: int) -> tuple[nn.Module, dict[str, Any], dict[str, Data]]:
    """A model, experts and start, and the data: kind to task to examples."""
    pair = synthetic_pair(seed, heterogeneous=True)
    model, a, b = train_pair(pair, seed=seed, hidden=hidden)
    inputs = torch.cat([pair.a.inputs, pair.b.inputs])
    labels = torch.cat([pair.a.labels, pair.b.labels])
    data = {
        "prototypes": prototypes(inputs, labels, kind="arithmetic"),
        "batch": prototypes(inputs, labels, kind="batch", per_class=10, seed=seed),
    }
    start = ml.merge("average", [a, b])
    states = {"experts": {"a": a, "b": b}, "start": start}
    return model, states, {name: {"pair": examples} for name, examples in data.items()}


def compare(
    model: nn.Module, states: dict[str, Any], data: Data, level: str, order: str, repeats: int
) -> dict[str, Any]:
    """Median seconds of our call and of the loop's, after one of each that does not count.

    A call also checks, copies the model and makes a table, whatever the size of the pass. So a pass
    is timed too, as a fifth of what five further iterations take.

    Raises:
        RuntimeError: if they decide differently.
    """
    heads = {"pair": nn.Identity()}
    experts, start = states["experts"], states["start"]
    settings: Any = {"levels": (level,), "order": order}
    layers = {"0": True, "2": True}

    def ours(iterations: int = 1) -> Any:
        chosen = {**settings, "iterations": iterations}
        return ml.adapt(
            "cogram", experts, model=model, heads=heads, data=data, start=start, **chosen
        ).history

    def loop(iterations: int = 1) -> Any:
        chosen = {**settings, "iterations": iterations}
        plain = Plain(model, start, [*experts.values()], data, heads, layers, **chosen)
        return pd.DataFrame(plain.run()[1])

    decided = ours()[DECISION]
    if not decided.equals(loop()[DECISION]):
        raise RuntimeError(f"CoGraM and its loop decide differently: {level}, {order}")
    works: list[Callable[[], Any]] = [ours, partial(ours, 6), loop, partial(loop, 6)]
    fast, long, slow, slower = interleaved(works, repeats)
    passes = [(long - fast) / 5, (slower - slow) / 5]
    return {
        "level": level,
        "order": order,
        "examples": len(data["pair"][0]),
        "decisions": len(decided),
        "seconds": fast,
        "loop_seconds": slow,
        "speedup": slow / fast,
        "pass_seconds": passes[0],
        "pass_speedup": passes[1] / passes[0],
    }


def interleaved(
    works: Sequence[Callable[[], Any]],
    repeats: int,
    clock: Callable[[], float] = time.perf_counter,
) -> list[float]:
    """Median seconds of each in turn: once, or as often as asked and for two seconds at least."""
    times: list[list[float]] = [[] for _ in works]
    began = time.perf_counter()
    while len(times[0]) < repeats or (repeats > 1 and time.perf_counter() - began < 2):
        for work, kept in zip(works, times, strict=True):
            start = clock()
            work()
            kept.append(clock() - start)
    return [statistics.median(kept) for kept in times]


def main(
    output: Annotated[Path, typer.Option("--output", "-o", help="The JSON file to write.")] = Path(
        "results/cogram-speed.json"
    ),
    hidden: Annotated[int, typer.Option(min=1, help="Neurons of the hidden layer.")] = 64,
    repeats: Annotated[int, typer.Option(min=1)] = 5,
    seed: Annotated[int, typer.Option(help="Of the synthetic pair.")] = 0,
) -> None:
    """Time CoGraM's neuron and weight levels in both orders against plain loops."""
    model, states, data = problem(seed, hidden)
    runs = [(kind, level, order) for kind in data for level in LEVELS for order in ORDERS]
    rows = [
        {"data": kind, **compare(model, states, data[kind], level, order, repeats)}
        for kind, level, order in progress(runs, desc="cogram")
    ]
    record = {
        "provenance": provenance(),
        "threads": torch.get_num_threads(),
        "network": [32, hidden, 20],
        "repeats": repeats,
        "passes": rows,
    }
    write_result(output, record)
    for row in rows:
        print(
            f"{row['data']:10} {row['level']:6} {row['order']:12} {row['decisions']:5} decisions: "
            f"{row['seconds']:7.3f} s, loop {row['loop_seconds']:7.3f} s, {row['speedup']:5.1f}x; "
            f"a pass {row['pass_seconds']:7.4f} s, {row['pass_speedup']:5.1f}x"
        )


if __name__ == "__main__":
    typer.run(main)
