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
    before = _memory(where, reset=True)
    cost, start = Cost(), time.perf_counter()
    yield cost
    _wait_for(where)
    cost.seconds = time.perf_counter() - start
    after = _memory(where)
    if before is not None and after is not None:
        cost.peak_bytes = max(0, after - before)


def _wait_for(device: torch.device) -> None:
    """Wait until an asynchronous device has finished."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()


def _memory(device: torch.device, *, reset: bool = False) -> int | None:
    """Return the high-water mark; with ``reset``, set it to the memory in use first."""
    if device.type == "cuda":
        if not reset:
            return torch.cuda.max_memory_allocated(device)
        _wait_for(device)
        torch.cuda.reset_peak_memory_stats(device)
        return torch.cuda.memory_allocated(device)
    try:
        if reset:
            Path("/proc/self/clear_refs").write_text("5")
        status = Path("/proc/self/status").read_text()
    except OSError:
        return None
    mark = re.search(r"VmHWM:\s+(\d+) kB", status)
    return int(mark[1]) * 1024 if mark else None
