"""How long every rule takes, and how much memory, next to the least that any merge must do.

The inputs are random float32 experts of the shapes of CLIP's ViT-B/32 image tower. The *floor* is
one pass over them: copy the first, add the others in place, divide. Everything is measured in one
run on one machine, so the ratios to the floor mean something elsewhere too.

*Cold* is the first call, which gets its memory from the operating system and pays for every page
it touches. *Warm* is the best of some more, with an allocator told to keep what is freed (glibc
only); where the cold call takes longer than `PATIENCE`, its seconds stand for both. Peak memory is
what the cold call, its result included, adds to the process's resident memory at its worst; see
`mergelib.evaluation.cost.measured`.
"""

import ctypes
import math
import platform
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Console
from rich.table import Table
from torch import Tensor

import mergelib as ml
from mergebook.lab.results import write_result
from mergebook.suites.provenance import provenance
from mergelib.evaluation.cost import measured
from mergelib.numerics.linalg import low_rank
from mergelib.progress import progress
from mergelib.rules.spectral import iso_c, tsv

State = dict[str, Tensor]

SPECTRA = {"1/i": -1.0, "1/√i": -0.5}  # exponents of the decay of the singular values
PATIENCE = 20.0  # seconds of calls after which no further one is started


def tower_shapes(blocks: int, width: int) -> dict[str, tuple[int, ...]]:
    """Parameters of a vision transformer's image tower; 12 blocks of width 768 are ViT-B/32's."""
    shapes: dict[str, tuple[int, ...]] = {
        "conv1.weight": (width, 3, 32, 32),
        "class_embedding": (width,),
        "positional_embedding": (50, width),
        "ln_pre.weight": (width,),
        "ln_pre.bias": (width,),
    }
    for block in range(blocks):
        for name, (rows, columns) in block_matrices(width).items():
            shapes[f"blocks.{block}.{name}.weight"] = (rows, columns)
            shapes[f"blocks.{block}.{name}.bias"] = (rows,)
        for name in ("ln_1", "ln_2"):
            shapes[f"blocks.{block}.{name}.weight"] = (width,)
            shapes[f"blocks.{block}.{name}.bias"] = (width,)
    shapes |= {"ln_post.weight": (width,), "ln_post.bias": (width,)}
    return shapes | {"proj": (width, width * 2 // 3)}


def block_matrices(width: int) -> dict[str, tuple[int, int]]:
    """The four weight matrices of a transformer block."""
    return {
        "attn.qkv": (3 * width, width),
        "attn.out": (width, width),
        "mlp.fc1": (4 * width, width),
        "mlp.fc2": (width, 4 * width),
    }


def random_experts(
    shapes: dict[str, tuple[int, ...]], count: int, seed: int = 0
) -> tuple[State, list[State]]:
    """A random pretrained model, and experts a small random step away from it."""
    generator = torch.Generator().manual_seed(seed)

    def noise(deviation: float) -> dict[str, Tensor]:
        return {
            key: torch.randn(shape, generator=generator).mul_(deviation)
            for key, shape in shapes.items()
        }

    pretrained = noise(0.02)
    experts = [noise(1e-3) for _ in progress(range(count), desc="experts")]
    for expert in experts:
        for key, value in expert.items():
            value.add_(pretrained[key])
    return pretrained, experts


def mean_in_place(experts: list[State], out: State) -> None:
    """The floor: read every expert, write the mean."""
    for key, result in out.items():
        result.copy_(experts[0][key])
        for expert in experts[1:]:
            result.add_(expert[key])
        result.div_(len(experts))


class Allocator:
    """glibc's ``malloc``, as far as it decides between warm and cold memory."""

    TRIM_THRESHOLD, MMAP_MAX = -1, -4  # mallopt's numbers; the values set below are its defaults

    def __init__(self) -> None:
        glibc = platform.libc_ver()[0] == "glibc"
        self._library = ctypes.CDLL(None) if glibc else None

    def release(self) -> None:
        """Give all freed memory back to the operating system."""
        if self._library:
            self._library.malloc_trim(0)

    @contextmanager
    def keeping(self) -> Iterator[None]:
        """Keep freed memory for the next allocation."""
        self._set(self.TRIM_THRESHOLD, -1)
        self._set(self.MMAP_MAX, 0)
        yield
        self._set(self.TRIM_THRESHOLD, 2**17)
        self._set(self.MMAP_MAX, 2**16)
        self.release()

    def _set(self, parameter: int, value: int) -> None:
        if self._library:
            self._library.mallopt(parameter, value)


def seconds(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def measure(call: Callable[[], object], repeats: int) -> dict[str, Any]:
    """Cold and warm seconds of a call, and the peak memory of the cold one."""
    allocator, warm = Allocator(), list[float]()
    allocator.release()
    with measured() as cold:
        call()
    with allocator.keeping():
        if cold.seconds < PATIENCE:
            call()
            while len(warm) < repeats and sum(warm) < PATIENCE:
                warm.append(seconds(call))
    return {
        "cold_seconds": cold.seconds,
        "warm_seconds": min(warm, default=cold.seconds),
        "peak_bytes": cold.peak_bytes,
    }


def measure_rules(
    pretrained: State, experts: list[State], names: list[str], repeats: int
) -> list[dict[str, Any]]:
    """Every rule with its defaults, and the floor for as many experts as it merges."""
    rows = []
    for name in progress(names, desc="rules"):
        chosen = experts[:2] if "slerp" in name else experts
        floor = measure_floor(chosen, repeats)
        row = measure(partial(ml.merge, name, chosen, pretrained=pretrained), repeats)
        ratios = {
            f"{kind}_ratio": row[f"{kind}_seconds"] / floor[f"{kind}_seconds"]
            for kind in ("cold", "warm")
        }
        rows.append({"rule": name, "experts": len(chosen), **row, **ratios})
    return rows


def measure_floor(experts: list[State], repeats: int) -> dict[str, Any]:
    """The floor into new memory (cold) and into memory that is there already (warm)."""
    cold = measure(
        lambda: mean_in_place(experts, {k: torch.empty_like(v) for k, v in experts[0].items()}), 1
    )
    out = {key: torch.zeros_like(value) for key, value in experts[0].items()}
    warm = min(seconds(lambda: mean_in_place(experts, out)) for _ in range(repeats))
    return {**cold, "warm_seconds": warm, "experts": len(experts)}


def measure_low_rank(
    blocks: int, width: int, count: int, ratio: float, spectrum: str
) -> dict[str, Any]:
    """Σ_t SVD_k(D_t), CART's update: the truncated way against full decompositions.

    The D_t have singular values of the given decay and random singular vectors. Blocks differ by
    a permutation of rows and columns, which is cheap and leaves the spectrum alone.
    """
    generator = torch.Generator().manual_seed(0)
    rank = math.ceil(ratio * width)
    taken = {"truncated": 0.0, "exact": 0.0}
    error = total = 0.0
    for rows, columns in progress(list(block_matrices(width).values()), desc=spectrum):
        originals = [decaying(rows, columns, SPECTRA[spectrum], generator) for _ in range(count)]
        for _ in range(blocks):
            p, q = (torch.randperm(n, generator=generator) for n in (rows, columns))
            differences = [matrix[p][:, q].contiguous() for matrix in originals]
            updates = {}
            for way in taken:
                start = time.perf_counter()
                update = torch.zeros(rows, columns)
                for matrix in differences:
                    update += low_rank(matrix, rank, exact=way == "exact")
                taken[way] += time.perf_counter() - start
                updates[way] = update.double()
            error += float((updates["truncated"] - updates["exact"]).square().sum())
            total += float(updates["exact"].square().sum())
    return {
        "spectrum": spectrum,
        "rank": rank,
        "matrices": 4 * blocks * count,
        "truncated_seconds": taken["truncated"],
        "exact_seconds": taken["exact"],
        "speedup": taken["exact"] / taken["truncated"],
        "relative_error": math.sqrt(error / total),
    }


def measure_spectral(width: int, count: int, spectrum: str) -> list[dict[str, Any]]:
    """TSV and Iso-C on the matrices of one block, against the plain way with full decompositions.

    Task matrices as in `measure_low_rank`. The plain way takes T + 2 decompositions for TSV, and
    one for Iso-C.
    """
    generator = torch.Generator().manual_seed(0)
    ways = {"tsv": (tsv, plain_tsv), "iso_c": (iso_c, plain_iso_c)}
    totals = {name: [0.0, 0.0, 0.0, 0.0] for name in ways}  # ours, plain, squared error and size
    for rows, columns in progress(list(block_matrices(width).values()), desc=spectrum):
        tasks = [decaying(rows, columns, SPECTRA[spectrum], generator) for _ in range(count)]
        for name, pair in ways.items():
            merged = []
            for i, way in enumerate(pair):
                start = time.perf_counter()
                merged.append(way(tasks, torch.zeros(rows, columns)).double())
                totals[name][i] += time.perf_counter() - start
            totals[name][2] += float((merged[0] - merged[1]).square().sum())
            totals[name][3] += float(merged[1].square().sum())
    return [
        {
            "rule": name,
            "spectrum": spectrum,
            "seconds": ours,
            "plain_seconds": plain,
            "speedup": plain / ours,
            "relative_error": math.sqrt(error / size),
        }
        for name, (ours, plain, error, size) in totals.items()
    ]


def plain_tsv(experts: Sequence[Tensor], pretrained: Tensor) -> Tensor:
    """`tsv` with full decompositions, of every task matrix and of both sets of factors."""
    rank = min(pretrained.shape) // len(experts)
    parts = [torch.linalg.svd(expert - pretrained, full_matrices=False) for expert in experts]
    u, _, vh = zip(*parts, strict=True)
    s = torch.cat([values[:rank] for _, values, _ in parts])
    left = torch.linalg.svd(torch.cat([factor[:, :rank] for factor in u], 1), full_matrices=False)
    right = torch.linalg.svd(torch.cat([factor[:rank] for factor in vh]), full_matrices=False)
    merged: Tensor = pretrained + (left[0] @ left[2] * s) @ (right[0] @ right[2])
    return merged


def plain_iso_c(experts: Sequence[Tensor], pretrained: Tensor) -> Tensor:
    """`iso_c` with a full decomposition."""
    total = torch.stack(list(experts)).sum(0) - len(experts) * pretrained
    u, s, vh = torch.linalg.svd(total, full_matrices=False)
    merged: Tensor = pretrained + s.mean() * u @ vh
    return merged


def decaying(rows: int, columns: int, exponent: float, generator: torch.Generator) -> Tensor:
    """A float32 matrix with singular values i^exponent and random singular vectors."""
    size = min(rows, columns)
    u, v = (torch.linalg.qr(torch.randn(n, size, generator=generator)).Q for n in (rows, columns))
    matrix: Tensor = (u * torch.arange(1, size + 1) ** exponent) @ v.T
    return matrix


def show(report: dict[str, Any]) -> None:
    """The report as tables."""
    console = Console()
    inputs, floor = report["inputs"], report["floor"]
    table = Table(
        title=f"{inputs['experts']} experts of {inputs['parameters'] / 1e6:.1f} M parameters; "
        "ratios are to the floor of as many experts"
    )
    for heading in ("rule", "warm s", "ratio", "cold s", "ratio", "peak MB"):
        table.add_column(heading, justify="left" if heading == "rule" else "right")
    for row in [{"rule": "floor", **floor, "warm_ratio": 1.0, "cold_ratio": 1.0}, *report["rules"]]:
        peak = "–" if row["peak_bytes"] is None else f"{row['peak_bytes'] / 1e6:.0f}"
        name = row["rule"] + (" (2 experts)" if row["experts"] == 2 else "")
        times = [
            f"{row[f'{kind}_{what}']:.{digits}f}"
            for kind in ("warm", "cold")
            for what, digits in (("seconds", 3), ("ratio", 1))
        ]
        table.add_row(name, *times, peak)
    console.print(table)
    table = Table(title="Σ SVD_k(D): truncated against full decompositions")
    for heading in ("spectrum", "rank", "matrices", "truncated s", "full s", "speed-up", "error"):
        table.add_column(heading, justify="right")
    for row in report["low_rank"]:
        table.add_row(
            row["spectrum"],
            str(row["rank"]),
            str(row["matrices"]),
            f"{row['truncated_seconds']:.2f}",
            f"{row['exact_seconds']:.2f}",
            f"{row['speedup']:.1f}",
            f"{row['relative_error']:.1e}",
        )
    console.print(table)
    table = Table(title="One block: spectral rules against the plain way")
    for heading in ("rule", "spectrum", "s", "plain s", "speed-up", "error"):
        table.add_column(heading, justify="right")
    for row in report["spectral"]:
        times = [f"{row[key]:.2f}" for key in ("seconds", "plain_seconds")]
        error = f"{row['relative_error']:.1e}"
        table.add_row(row["rule"], row["spectrum"], *times, f"{row['speedup']:.1f}", error)
    console.print(table)


def main(
    output: Annotated[Path, typer.Option(help="The JSON file to write.")] = Path(
        "results/benchmarks.json"
    ),
    rules: Annotated[str, typer.Option(help="Comma-separated names; all if left out.")] = "",
    small: Annotated[bool, typer.Option(help="A model of toy size, to try the benchmark.")] = False,
    repeats: Annotated[int, typer.Option(min=1, help="Warm calls, of which the best counts.")] = 3,
) -> None:
    """Time rules and calibrations against the floor, and what avoids full SVDs against these."""
    blocks, width, count = (2, 48, 3) if small else (12, 768, 8)
    families = ml.methods()["family"]
    known = [*families.index[families == "rule"]]
    known += [f"task_arithmetic+{name}" for name in families.index[families == "calibration"]]
    names = rules.split(",") if rules else known
    if unknown := set(names) - set(known):
        raise typer.BadParameter(f"no such rule: {', '.join(sorted(unknown))}")
    pretrained, experts = random_experts(tower_shapes(blocks, width), count)
    report = {
        "provenance": provenance(),
        "inputs": {
            "experts": count,
            "parameters": sum(value.numel() for value in pretrained.values()),
            "dtype": "float32",
            "repeats": repeats,
        },
        "floor": measure_floor(experts, repeats),
        "rules": measure_rules(pretrained, experts, names, repeats),
        "low_rank": [measure_low_rank(blocks, width, count, 0.08, name) for name in SPECTRA],
        "spectral": [row for name in SPECTRA for row in measure_spectral(width, count, name)],
    }
    show(report)
    write_result(output, report)
