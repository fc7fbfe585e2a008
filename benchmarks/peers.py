"""Time and memory of merges beside those of mergekit and FusionBench, on the same weights.

Two cases: eight ViT-B/32 of torchvision as modules in memory, merged by this library and by
FusionBench; and eight folders of a Llama of about that size, merged to a folder by this library
and by mergekit. The *floor* is one pass: in memory a copy of the first and a sum in place of the
others, of files one read of all and one write. Each measurement is a process of its own with at
most `MEMORY_LIMIT`, the programs take turns, and all have the same number of threads; one that
ends otherwise or takes longer than `TIME_LIMIT` has no numbers. Needs mergekit and fusion-bench.
"""

import copy
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from torch import nn

from mergebook.lab.results import write_result
from mergebook.suites.provenance import provenance
from mergelib.evaluation.cost import measured
from mergelib.io import load_state_dict, save_state_dict
from mergelib.progress import progress

COUNT = 8  # experts
TIME_LIMIT = 300  # seconds, with the making of the models
MEMORY_LIMIT = 16 * 2**30  # bytes of addresses
# Of each case and method: this library's hyperparameters, then the peer's class or mergekit's name
MEMORY: dict[str, tuple[dict[str, Any], str, dict[str, Any]]] = {
    "average": ({}, "SimpleAverageAlgorithm", {}),
    "task_arithmetic": ({"scale": 0.3}, "TaskArithmeticAlgorithm", {"scaling_factor": 0.3}),
    "ties": (
        {"density": 0.2, "scale": 0.3, "reduce": "sum"},
        "TiesMergingAlgorithm",
        {"scaling_factor": 0.3, "threshold": 20, "remove_keys": [], "merge_func": "sum"},
    ),
    "dare": (
        {"drop_rate": 0.7, "scale": 0.3},
        "DareTaskArithmetic",
        {"scaling_factor": 0.3, "sparsity_ratio": 0.7, "only_on_linear_weights": False},
    ),
    "tsv": ({}, "TaskSingularVectorMerging", {"alpha": 1.0}),
    "iso_c": ({}, "ISO_C_Merge", {"scaling_factor": 1.0}),
}
FILES: dict[str, tuple[dict[str, Any], str, dict[str, Any]]] = {
    "average": ({}, "linear", {"weight": 1.0}),
    "task_arithmetic": ({"scale": 0.3}, "task_arithmetic", {"weight": 0.3}),
    "ties": ({"trim": "tensor"}, "ties", {"weight": 1.0, "density": 0.2}),
    "dare": ({"drop_rate": 0.7, "scale": 0.3}, "dare_linear", {"weight": 0.3, "density": 0.3}),
    "model_stock": ({}, "model_stock", {}),
}


def networks() -> list[nn.Module]:
    """A ViT-B/32 with random weights, and the experts, with small differences."""
    from torchvision.models import vit_b_32

    torch.manual_seed(0)
    models: list[nn.Module] = [vit_b_32(weights=None)]
    for seed in range(COUNT):
        generator = torch.Generator().manual_seed(seed)
        models.append(copy.deepcopy(models[0]))
        with torch.no_grad():
            for weight in models[-1].parameters():
                weight.add_(torch.randn(weight.shape, generator=generator), alpha=1e-3)
    return models


def write_folders(root: Path, small: bool) -> None:
    """Write a base and the experts as folders of a Llama of 12 blocks of width 768."""
    from transformers import LlamaConfig, LlamaForCausalLM

    width, blocks = (64, 2) if small else (768, 12)
    config = LlamaConfig(
        vocab_size=8192, hidden_size=width, intermediate_size=3 * width, num_hidden_layers=blocks
    )
    config.num_attention_heads = config.num_key_value_heads = width // 64
    torch.manual_seed(0)
    LlamaForCausalLM(config).save_pretrained(root / "base")
    base = load_state_dict(root / "base")
    for number in range(COUNT):
        generator = torch.Generator().manual_seed(number + 1)
        expert = {k: v + 1e-3 * torch.randn(v.shape, generator=generator) for k, v in base.items()}
        folder = root / f"expert{number}"
        save_state_dict(expert, folder / "model.safetensors")
        (folder / "config.json").write_text((root / "base" / "config.json").read_text())


def in_memory(who: str, method: str) -> Callable[[], Any]:
    """Return the call that merges modules."""
    base, *experts = networks()
    own, name, options = MEMORY.get(method, ({}, "", {}))
    if who == "floor":

        def floor() -> Any:
            total = {k: v.clone() for k, v in experts[0].state_dict().items()}
            for expert in experts[1:]:
                for key, value in expert.state_dict().items():
                    total[key] += value
            return total

        return floor
    if who == "mergelib":
        import mergelib as ml

        return lambda: ml.merge(method, experts, pretrained=base, **own)
    from fusion_bench import method as peers
    from fusion_bench.modelpool import BaseModelPool

    pool = BaseModelPool({"_pretrained_": base, **{f"e{i}": e for i, e in enumerate(experts)}})
    algorithm = getattr(peers, name)(**options)
    return lambda: algorithm.run(pool)


def of_files(who: str, method: str, root: Path) -> Callable[[], Any]:
    """Return the call that merges folders."""
    base, out = root / "base", root / f"files {who}"
    experts = [root / f"expert{i}" for i in range(COUNT)]
    own, name, options = FILES.get(method, ({}, "", {}))
    if who == "floor":

        def floor() -> None:
            for folder in (*experts, base):
                state = load_state_dict(folder)
            save_state_dict(state, out / "model.safetensors")

        return floor
    if who == "mergelib":
        import mergelib as ml

        return lambda: ml.merge_files(method, experts, out, pretrained=base, overwrite=True, **own)
    from mergekit.config import MergeConfiguration
    from mergekit.merge import MergeOptions, run_merge

    models = [{"model": str(expert), "parameters": options} for expert in experts]
    recipe = {"merge_method": name, "models": models, "dtype": "float32"}
    recipe |= {} if name == "linear" else {"base_model": str(base)}
    config = MergeConfiguration.model_validate(recipe)
    plain = MergeOptions(copy_tokenizer=False, quiet=True, write_model_card=False)
    return lambda: run_merge(config, str(out), plain)


def once(case: str, who: str, method: str, root: Path) -> dict[str, Any]:
    """Seconds and peak bytes of one merge in this process."""
    call = in_memory(who, method) if case == "memory" else of_files(who, method, root)
    with measured() as cost:
        start = time.perf_counter()
        call()
        seconds = time.perf_counter() - start
    return {"seconds": seconds, "peak_bytes": cost.peak_bytes}


def in_process(arguments: list[str]) -> dict[str, Any]:
    """What `once` returns in a process of its own, or how that ended."""
    command = [sys.executable, "-m", "benchmarks.peers", "--one", json.dumps(arguments)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIME_LIMIT)
    except subprocess.TimeoutExpired:
        return {"ended": f"more than {TIME_LIMIT} s"}
    if done.returncode:
        memory = "memory" in done.stderr.lower()
        return {"ended": "out of memory" if memory else f"status {done.returncode}"}
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def main(
    output: Annotated[Path, typer.Option()] = Path("results/peers-speed.json"),
    repeats: Annotated[int, typer.Option(min=1)] = 3,
    small: Annotated[bool, typer.Option(help="A Llama of toy size, to try the benchmark.")] = False,
    one: Annotated[str, typer.Option(hidden=True)] = "",
) -> None:
    """Measure all methods that both sides have."""
    if one:
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_LIMIT, MEMORY_LIMIT))
        case, who, method, folder = json.loads(one)
        print(json.dumps(once(case, who, method, Path(folder))))
        return
    peers = {"memory": ("fusion-bench", [*MEMORY]), "files": ("mergekit", [*FILES])}
    told = provenance()  # before minutes of measuring, in case that it fails
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as name:
        write_folders(Path(name), small)
        for case, (peer, methods) in peers.items():
            runs = [("floor", "floor"), *((who, m) for m in methods for who in ("mergelib", peer))]
            for repeat in progress(range(repeats), desc=case):
                for who, method in runs:
                    found = in_process([case, who, method, name])
                    row = {"case": case, "program": who, "method": method, "repeat": repeat}
                    rows.append(row | found)
    record = {
        "provenance": told,
        "versions": {peer: version(peer) for peer in ("mergekit", "fusion-bench")},
        "memory_limit": MEMORY_LIMIT,
        "experts": COUNT,
        "test": rows,
    }
    write_result(output, record)


if __name__ == "__main__":
    typer.run(main)
