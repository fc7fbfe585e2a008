"""Peak memory of Frank-Wolfe merging against the number of expert files.

Each measurement has a process of its own, as what an allocator has kept hides the next peak. The
objective is a quadratic, so that all memory is that of the walk itself: no activations, no graph.
"""

import tempfile
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from torch import Tensor

from mergebook.lab.results import write_result
from mergebook.suites.provenance import provenance
from mergelib.evaluation.cost import measured
from mergelib.io import Checkpoint, save_state_dict
from mergelib.procedures.walk import minimise
from mergelib.progress import progress

State = dict[str, Tensor]
LAYERS = 4


class Bowl:
    """‖θ‖², the cheapest objective there is."""

    def value(self, parameters: State) -> float:
        return sum(float(tensor.square().sum()) for tensor in parameters.values())

    def gradient(self, parameters: State) -> tuple[float, State]:
        return self.value(parameters), {key: 2 * tensor for key, tensor in parameters.items()}


def write_experts(folder: Path, count: int, rows: int) -> None:
    """Random experts of `LAYERS` float32 matrices ``(rows, 1024)``, a file each."""
    for i in range(count):
        generator = torch.Generator().manual_seed(i)
        state = {f"layer{j}": torch.randn(rows, 1024, generator=generator) for j in range(LAYERS)}
        save_state_dict(state, folder / f"expert{i:02}.safetensors")


def peak_bytes(folder: Path, count: int, variant: str) -> int | None:
    """The peak of a short walk over the first ``count`` files, in a fresh process."""
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        return pool.submit(_walk, folder, count, variant).result()


def _walk(folder: Path, count: int, variant: Any) -> int | None:
    files = sorted(folder.glob("*.safetensors"))[:count]
    experts = {file.stem: Checkpoint(file) for file in files}
    start = {key: value.clone() for key, value in experts[files[0].stem].items()}
    with measured() as cost:
        minimise(Bowl(), start, experts, variant=variant, steps=2, inner_steps=2)
    return cost.peak_bytes


def measure_memory(counts: Sequence[int], rows: int, repeats: int) -> list[dict[str, Any]]:
    """Rows of ``variant``, ``experts``, ``repeat`` and ``peak_bytes``."""
    with tempfile.TemporaryDirectory() as name:
        write_experts(Path(name), max(counts), rows)
        return [
            {"variant": variant, "experts": count, "repeat": repeat, "peak_bytes": peak}
            for repeat in progress(range(repeats), desc="memory")
            for variant in ("hard", "soft")
            for count in counts
            if (peak := peak_bytes(Path(name), count, variant)) is not None
        ]


def main(
    output: Annotated[Path, typer.Option(help="The JSON file to write.")] = Path(
        "results/frank_wolfe-memory.json"
    ),
    rows: Annotated[int, typer.Option(min=1, help="Rows of each of the four matrices.")] = 2048,
    repeats: Annotated[int, typer.Option(min=1)] = 5,
) -> None:
    """Measure the peak memory of Frank-Wolfe merging with 4 and with 20 expert files."""
    record = {
        "provenance": provenance(),
        "expert_bytes": LAYERS * rows * 1024 * 4,
        "peaks": measure_memory((4, 20), rows, repeats),
    }
    write_result(output, record)


if __name__ == "__main__":
    typer.run(main)
