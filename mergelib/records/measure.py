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
    that the allocator had kept from before is not seen. On CUDA it is the allocator's own peak.
    """
    cuda = torch.device(device).type == "cuda"
    before = _reset_peak(cuda)
    cost, start = Cost(), time.perf_counter()
    yield cost
    if cuda:
        torch.cuda.synchronize()
    cost.seconds = time.perf_counter() - start
    after = _peak(cuda)
    if before is not None and after is not None:
        cost.peak_bytes = max(0, after - before)


def _reset_peak(cuda: bool) -> int | None:
    """Forget the high-water mark; the memory in use now."""
    if cuda:
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        return torch.cuda.memory_allocated()
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return None
    return _peak(cuda)


def _peak(cuda: bool) -> int | None:
    if cuda:
        return torch.cuda.max_memory_allocated()
    try:
        status = Path("/proc/self/status").read_text()
    except OSError:
        return None
    mark = re.search(r"VmHWM:\s+(\d+) kB", status)
    return int(mark[1]) * 1024 if mark else None
