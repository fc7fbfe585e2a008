"""Gradients of several small networks at once, by vmap, against one after the other.

Sweeps train many experts from one start. `torch.func.vmap` over stacked weights is one way to train
several in the time of one; this says whether it is faster here. The gradients are compared first.
"""

from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from torch import Tensor
from torch.func import functional_call, grad, vmap

from benchmarks.cogram import interleaved
from mergebook.lab.results import write_result
from mergebook.suites.models import PICTURE_MODELS
from mergebook.suites.provenance import provenance
from mergelib.progress import progress
from mergelib.training import seeded

MODELS = ("mlp", "vit_small", "vit")


def compare(name: str, count: int, batch: int, repeats: int, seed: int) -> dict[str, Any]:
    """Median seconds of a gradient of all networks, both ways.

    Raises:
        RuntimeError: if the gradients differ.
    """
    with seeded(seed):
        model = PICTURE_MODELS[name]()
        inputs = torch.randn(count, batch, 3, 32, 32)
        start = {key: value.detach() for key, value in model.named_parameters()}
        stacked = {
            key: torch.stack([value + 0.01 * torch.randn_like(value) for _ in range(count)])
            for key, value in start.items()
        }

    def loss(parameters: dict[str, Tensor], x: Tensor) -> Tensor:
        value: Tensor = functional_call(model, parameters, (x,)).square().mean()
        return value

    every = vmap(grad(loss))

    def together() -> dict[str, Tensor]:
        found: dict[str, Tensor] = every(stacked, inputs)
        return found

    def alone() -> list[tuple[Tensor, ...]]:
        found = []
        for place in range(count):
            own = {key: stacked[key][place].requires_grad_() for key in stacked}
            found.append(torch.autograd.grad(loss(own, inputs[place]), list(own.values())))
        return found

    both = together(), alone()
    for place, key in enumerate(stacked):
        expected = torch.stack([parts[place] for parts in both[1]])
        if not torch.allclose(both[0][key], expected, rtol=1e-3, atol=1e-6):
            raise RuntimeError(f"{name}: gradients by vmap differ in {key}")
    fast, slow = interleaved([together, alone], repeats)
    return {
        "model": name,
        "networks": count,
        "batch": batch,
        "vmap_seconds": fast,
        "loop_seconds": slow,
        "speedup": slow / fast,
    }


def main(
    output: Annotated[Path, typer.Option("--output", "-o", help="The JSON file to write.")] = Path(
        "results/stacking-speed.json"
    ),
    networks: Annotated[int, typer.Option(min=2, help="How many at once.")] = 4,
    batch: Annotated[int, typer.Option(min=1, help="Examples of each.")] = 32,
    repeats: Annotated[int, typer.Option(min=1)] = 9,
    seed: Annotated[int, typer.Option()] = 0,
) -> None:
    """Time gradients of several networks by vmap and by a loop."""
    rows = [compare(name, networks, batch, repeats, seed) for name in progress(MODELS)]
    record = {
        "provenance": provenance(),
        "threads": torch.get_num_threads(),
        "repeats": repeats,
        "gradients": rows,
    }
    write_result(output, record)
    for row in rows:
        print(
            f"{row['model']:10} {row['networks']} networks, batches of {row['batch']}: "
            f"vmap {row['vmap_seconds']:.3f} s, loop {row['loop_seconds']:.3f} s, "
            f"{row['speedup']:.2f}x"
        )


if __name__ == "__main__":
    typer.run(main)
