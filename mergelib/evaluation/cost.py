"""Time and peak memory of a block of code."""

import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch


@dataclass
class Cost:
    """Cost of a block of code."""

    seconds: float = 0.0  # wall-clock time
    peak_bytes: int | None = None  # above the memory in use before; None unless Linux or CUDA


@contextmanager
def measured(device: torch.device | str = "cpu") -> Iterator[Cost]:
    """Measure the body of a ``with`` block; read the yielded `Cost` afterwards.

    On the CPU the peak is Linux's resident high-water mark, which misses memory that the allocator
    already held; on CUDA it is the allocator's peak on that device.
    """
    where = torch.device(device)
    cuda = where if where.type == "cuda" else None
    before = _reset_peak(cuda)
    cost, start = Cost(), time.perf_counter()
    yield cost
    _wait_for(where)
    cost.seconds = time.perf_counter() - start
    after = _peak(cuda)
    if before is not None and after is not None:
        cost.peak_bytes = max(0, after - before)


def _wait_for(device: torch.device) -> None:
    """Wait until an asynchronous device has finished."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()


def _reset_peak(cuda: torch.device | None) -> int | None:
    """Reset the high-water mark and return the memory in use."""
    if cuda is not None:
        _wait_for(cuda)
        torch.cuda.reset_peak_memory_stats(cuda)
        return torch.cuda.memory_allocated(cuda)
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return None
    return _peak(cuda)


def _peak(cuda: torch.device | None) -> int | None:
    if cuda is not None:
        return torch.cuda.max_memory_allocated(cuda)
    try:
        status = Path("/proc/self/status").read_text()
    except OSError:
        return None
    mark = re.search(r"VmHWM:\s+(\d+) kB", status)
    return int(mark[1]) * 1024 if mark else None
