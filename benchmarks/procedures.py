"""How long every procedure takes, and how much memory, with its default hyperparameters.

It adapts eight random experts of the testbed's ViT on 100 random inputs of each of eight tasks.
CoGraM, which is made for few examples and small networks, has a benchmark of its own.
Of procedures with more than `STEPS` steps, none and `STEPS` are timed, and the rest follows.
"""

from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from torch import nn

import mergelib as ml
from mergebook.lab.results import write_result
from mergebook.suites.models import PICTURE_MODELS
from mergebook.suites.provenance import provenance
from mergelib.evaluation.cost import Cost, measured
from mergelib.progress import progress
from mergelib.registry import get_method
from mergelib.training import seeded

STEPS, TASKS, CLASSES, EXAMPLES = 20, 8, 10, 100


def inputs(name: str) -> dict[str, Any]:
    """Arguments of `ml.adapt`, with random weights and data."""
    with seeded(0):
        model = PICTURE_MODELS[name]()
        start = {key: value.clone() for key, value in model.state_dict().items()}
        experts, heads, data = {}, {}, {}
        for task in map("task {}".format, range(TASKS)):
            experts[task] = {
                key: value + 0.01 * torch.randn_like(value) for key, value in start.items()
            }
            images = torch.randn(EXAMPLES, 3, 32, 32)
            heads[task] = nn.Linear(model(images[:1]).shape[1], CLASSES)
            data[task] = images, torch.arange(EXAMPLES) % CLASSES
    return {"experts": experts, "pretrained": start, "model": model, "heads": heads, "data": data}


def cost_of(method: str, model: str) -> dict[str, Any]:
    """Seconds of a second call of a procedure, and peak memory of the first, in a fresh process."""
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        return pool.submit(measure, method, model).result()


def measure(method: str, model: str) -> dict[str, Any]:
    """The same in this process."""
    given, steps = inputs(model), get_method(method, "procedure").hyperparameters.get("steps", 0)
    learns = steps > STEPS

    def timed(**options: Any) -> Cost:
        with measured() as cost:
            ml.adapt(method, **given, **options)
        return cost

    first, second = (timed(**({"steps": STEPS} if learns else {})) for _ in range(2))
    seconds = second.seconds
    if learns:
        start = timed(steps=0).seconds
        seconds = start + (seconds - start) * steps / STEPS
    return {"method": method, "steps": steps, "seconds": seconds, "peak_bytes": first.peak_bytes}


def main(
    output: Annotated[Path, typer.Option("--output", "-o", help="The JSON file to write.")] = Path(
        "results/procedures-speed.json"
    ),
    model: Annotated[str, typer.Option(help="A network of the testbed.")] = "vit",
) -> None:
    """Time every procedure, and measure its memory."""
    known = ml.methods()
    names = known.index[known["family"] == "procedure"].drop("cogram")
    rows = []
    for name in progress(names, desc="procedures"):
        row = cost_of(name, model)
        print(f"{name:18} {row['steps']:6} steps {row['seconds']:8.1f} s", row["peak_bytes"])
        rows.append(row)
    write_result(output, {"provenance": provenance() | {"model": model}, "procedures": rows})


if __name__ == "__main__":
    typer.run(main)
