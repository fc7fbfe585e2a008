"""Every rule and the evaluation loop on a GPU, beside the same on the CPU of that machine.

Inputs are those of `benchmarks.merging`, eight experts of ViT-B/32's shapes, already where the
computation takes place; and one ViT-B/32 that classifies random images of 224 × 224 pixels.
"""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from torch import nn
from torchvision.models import vit_b_32

import mergelib as ml
from benchmarks.merging import random_experts, tower_shapes
from mergebook.lab.results import write_result
from mergebook.suites.provenance import provenance
from mergelib.evaluation.cost import measured
from mergelib.evaluation.loops import evaluate
from mergelib.evaluation.tasks import Split, Suite, Task
from mergelib.progress import progress

WHERE = ("cpu", "cuda")


def best_of(call: Callable[[], object], device: str, repeats: int) -> dict[str, Any]:
    """The least seconds of some calls after a first one, and the most memory of any."""
    call()
    costs = []
    for _ in range(repeats):
        with measured(device) as cost:
            call()
        costs.append(cost)
    peaks = [cost.peak_bytes for cost in costs if cost.peak_bytes is not None]
    return {
        "device": device,
        "seconds": min(cost.seconds for cost in costs),
        "peak_bytes": max(peaks, default=None),
    }


def time_rules(names: list[str], blocks: int, width: int, repeats: int) -> list[dict[str, Any]]:
    """Rows of ``rule``, ``device``, ``seconds`` and ``peak_bytes``."""
    pretrained, experts = random_experts(tower_shapes(blocks, width), 8)
    rows = []
    for device in WHERE:
        base, *others = ({k: v.to(device) for k, v in s.items()} for s in (pretrained, *experts))
        for name in progress(names, desc=device):
            chosen = others[:2] if name == "slerp" else others
            row = best_of(partial(ml.merge, name, chosen, pretrained=base), device, repeats)
            rows.append({"rule": name, **row})
    return rows


def time_evaluation(images: int, repeats: int) -> list[dict[str, Any]]:
    """Rows of ``autocast``, ``device``, ``seconds``, ``peak_bytes`` and ``images``."""
    model = vit_b_32()
    head, model.heads = model.heads, nn.Identity()
    split = Split(torch.randn(images, 3, 224, 224), torch.randint(1000, (images,)))
    task = Task("random", tuple(map(str, range(1000))), split, split, split)
    suite = Suite("random", 0, {"random": task}, {})
    rows = []
    for device in WHERE:
        net = model.to(device)
        for autocast in (False, True):
            options: dict[str, Any] = {"autocast": autocast, "batch_size": 256}
            heads = {"random": head.to(device)}
            call = partial(evaluate, net, net.state_dict(), heads, suite, **options)
            row = best_of(call, device, repeats)
            rows.append({"autocast": autocast, "images": images, **row})
    return rows


def main(
    output: Annotated[Path, typer.Option(help="The JSON file to write.")] = Path(
        "results/benchmarks-gpu.json"
    ),
    rules: Annotated[str, typer.Option(help="Comma-separated names; all if left out.")] = "",
    small: Annotated[bool, typer.Option(help="A model of toy size, to try the benchmark.")] = False,
    repeats: Annotated[int, typer.Option(min=1)] = 2,
) -> None:
    """Time every rule and the evaluation loop on both devices."""
    known = ml.methods()
    names = rules.split(",") if rules else list(known.index[known["family"] == "rule"])
    blocks, width, images = (2, 48, 4) if small else (12, 768, 1024)
    rows = time_rules(names, blocks, width, repeats)
    report = {
        "provenance": provenance(device="cuda"),
        "rules": rows,
        "evaluation": time_evaluation(images, repeats),
    }
    write_result(output, report)


if __name__ == "__main__":
    typer.run(main)
