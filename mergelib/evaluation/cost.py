"""Time and peak memory of a piece of work."""

import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch


@dataclass
class Cost:
    """What a piece of work cost.

    Attributes:
        seconds: wall-clock time.
        peak_bytes: the most memory held at once above what was held at the start; ``None`` where
            the system does not tell (it takes Linux, or a CUDA device).
    """

    seconds: float = 0.0
    peak_bytes: int | None = None


@contextmanager
def measured(device: torch.device | str = "cpu") -> Iterator[Cost]:
    """Measure the body of a ``with`` block; read the yielded `Cost` after it.

    On the CPU the peak is the process's resident high-water mark, which Linux can reset; memory
    that the allocator had kept from before is not seen. On CUDA it is the allocator's own peak on
    that device, which is waited for before and after.
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
    """Wait until a device has done what it was told, as it computes on its own."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()


def _reset_peak(cuda: torch.device | None) -> int | None:
    """Forget the high-water mark; the memory in use now."""
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
