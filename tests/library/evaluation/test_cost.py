"""Costs: seconds and peaks of work whose cost is known."""

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from mergelib.evaluation.cost import measured

MEGABYTE = 2**20


def test_seconds() -> None:
    with measured() as cost:
        time.sleep(0.05)
    assert 0.05 <= cost.seconds < 1


WORK = """
from mergelib.evaluation.cost import measured

MEGABYTE = 2**20
before = bytearray(200 * MEGABYTE)
bytearray(400 * MEGABYTE)
for _ in range(3):  # the system may page idle memory out meanwhile, so a peak can be too low
    with measured() as cost:
        first, second = (bytearray(64 * MEGABYTE) for _ in "ab")
        del first
        third = bytearray(64 * MEGABYTE)
    print(cost.peak_bytes)
    del second, third
with measured() as cost:
    pass
print(cost.peak_bytes)
"""


@pytest.mark.skipif(not os.access("/proc/self/clear_refs", os.W_OK), reason="needs Linux")
def test_peak_is_what_was_held_at_once() -> None:
    """Three times 64 MB one after the other, 128 MB of them at once; the rest is forgotten.

    In a process of its own, where the allocator has nothing left from other tests.
    """
    done = subprocess.run([sys.executable, "-c", WORK], capture_output=True, text=True, check=True)
    *peaks, nothing = map(int, done.stdout.split())
    assert 120 * MEGABYTE < max(peaks) < 160 * MEGABYTE
    assert nothing < 8 * MEGABYTE, "earlier peaks are forgotten"


def test_no_peak_where_the_system_does_not_tell(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError

    monkeypatch.setattr(Path, "write_text", refuse)
    with measured() as cost:
        pass
    assert cost.peak_bytes is None
    assert cost.seconds >= 0


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_peak_on_cuda() -> None:
    kept = torch.zeros(8 * MEGABYTE, device="cuda")
    with measured("cuda") as cost:
        torch.zeros(16 * MEGABYTE, device="cuda")
        torch.zeros(4 * MEGABYTE, device="cuda")
    assert kept.numel()
    assert cost.peak_bytes == 64 * MEGABYTE


def test_the_device_that_is_named_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second of two devices, each waited for before the clock starts and before it stops."""
    calls: list[tuple[str, str]] = []
    peaks = {"memory_allocated": 100, "max_memory_allocated": 130}

    def fake(name: str) -> Callable[..., int | None]:
        def call(device: object = "the current one") -> int | None:
            calls.append((name, str(device)))
            return peaks.get(name)

        return call

    for name in ("synchronize", "reset_peak_memory_stats", *peaks):
        monkeypatch.setattr(torch.cuda, name, fake(name))
    with measured("cuda:1") as cost:
        calls.append(("work", "cuda:1"))
    assert cost.peak_bytes == 30
    assert {device for _, device in calls} == {"cuda:1"}
    names = [name for name, _ in calls]
    assert names[0] == "synchronize"
    assert names[names.index("work") + 1] == "synchronize"
