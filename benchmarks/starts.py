"""What SAIL's starts take, in seconds of one thread and in FLOPs, both in steps of retraining.

Chapters compare starts by FLOPs, which count products of matrices alone: neither what moves tensors
about, nor QR and singular values, nor the memory that small networks wait for. Here every start of
the main cells is made and a step is trained in turn, in one process on one thread. Weights of
Theorem 3 are counted with all starts that choose by distances, without describing the data.
"""

import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from benchmarks.cogram import interleaved
from mergebook.lab.catalogue import get_study
from mergebook.lab.results import write_result
from mergebook.lab.runner import Run
from mergebook.sail.measure.sources import ARMS, Sources
from mergebook.sail.measure.transfers import TARGET, Transfer
from mergebook.suites.provenance import provenance
from mergelib.sail.divergences import mmd_table
from mergelib.sail.proximal import proximal_weights

CELLS: dict[str, dict[str, Any]] = {  # suites and settings of `arms`
    "tinyshakespeare": {"size": "half wider"},
    "vision14": {"size": "half wider", "known": "halves", "target": "cifar10"},
}
STEPS = 10  # in which a step's seconds are measured
CHOSEN = ("theorem", "nearest", "farther")  # weights that need distances


def compare(
    transfer: Transfer, size: str, arms: Sequence[str], repeats: int
) -> list[dict[str, Any]]:
    """Median seconds of every start and of a step from there; of all arms that fit, by default."""
    pair = Sources(transfer, "shared", size)
    pair.check(arms)
    names = [*arms] or pair.allowed()
    rates = {name: pair.rates(name) for name in names}
    begun = {name: pair.start(ARMS[name], rates[name]) for name in names}
    works: list[Callable[[], Any]] = [partial(_weights, transfer)]
    works += [partial(pair.start, ARMS[name], rates[name]) for name in names]
    works += [
        partial(_trained, transfer, start, rates[name].training) for name, start in begun.items()
    ]
    for work in works:  # once that does not count
        work()
    weights, *seconds = interleaved(works, repeats, time.process_time)
    rows = []
    for place, name in enumerate(names):
        costs, step = pair.costs(begun[name]), seconds[len(names) + place] / STEPS
        start = seconds[place] + (weights if ARMS[name].weights in CHOSEN else 0.0)
        row = {"modality": transfer.name, "arm": name, "seconds": start, "step_seconds": step}
        row |= {"in_steps": start / step, "flops": costs["added_flops"]}
        row["step_flops"] = costs["step_flops"]
        rows.append(row | {"flops_in_steps": costs["added_flops"] / costs["step_flops"]})
    return rows


def _weights(transfer: Transfer) -> None:
    table = mmd_table(transfer.described)
    proximal_weights(table[2, :2], table[:2, :2])


def _trained(transfer: Transfer, start: Any, rate: float) -> None:
    transfer.trained(start.net, start.split or transfer.parts[TARGET], [STEPS], rate)


def main(
    output: Annotated[Path, typer.Option("--output", "-o", help="The JSON file to write.")] = Path(
        "results/starts-speed.json"
    ),
    suites: Annotated[str, typer.Option(help="Of these, by commas.")] = ",".join(CELLS),
    arms: Annotated[str, typer.Option(help="Starts, by commas; by default all that fit.")] = "",
    repeats: Annotated[int, typer.Option(min=1)] = 5,
    seed: Annotated[int, typer.Option()] = 0,
) -> None:
    """Time SAIL's starts and a step from each."""
    torch.set_num_threads(1)
    names = [name for name in arms.split(",") if name]
    cells = {suite: CELLS.get(suite, {"size": "deeper"}) for suite in suites.split(",")}
    study, loaded, rows = get_study("arms"), {}, []
    for suite, cell in cells.items():
        run = Run(study, suite, seed, settings=study.complete(cell))
        loaded[suite] = study.load(run)
        (transfer,) = loaded[suite].arguments
        rows += compare(transfer, cell["size"], names, repeats)
    command = f"python -m benchmarks.starts --suites {suites} --repeats {repeats} --seed {seed}"
    command += f" --arms '{arms}'" if arms else ""
    inputs = {suite: own.inputs for suite, own in loaded.items()}
    made = provenance() | {"command": command, "cells": cells, "inputs": inputs}
    write_result(output, {"provenance": made, "repeats": repeats, "seed": seed, "starts": rows})
    for row in rows:
        print(
            f"{row['modality']:16} {row['arm']:20} start {row['seconds']:7.3f} s = "
            f"{row['in_steps']:6.1f} steps, by FLOPs {row['flops_in_steps']:6.1f}"
        )


if __name__ == "__main__":
    typer.run(main)
