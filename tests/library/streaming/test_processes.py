"""Killed runs and memory, in processes of their own: outputs whole or absent, little memory."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import mergelib as ml
from mergelib.io import save_state_dict
from mergelib.registry import method_names

KILLED = """
import os, shutil, signal, sys, threading, time, torch, tqdm
from pathlib import Path
from mergelib.io import load_state_dict
from mergelib.registry import rule
from mergelib.streaming import merge_files

@rule(paper="none")
def slow(experts):
    time.sleep(0.002)
    return experts[0] + 1

torch.set_num_threads(1)
# Its own lock is shared with forked children: one killed while it holds it stops all others.
tqdm.tqdm.set_lock(threading.RLock())

def merge():
    merge_files("slow", [source], output, max_shard_size=size, overwrite=True)

def check():
    merged = load_state_dict(output)
    for key, tensor in load_state_dict(source).items():
        assert torch.equal(merged[key], tensor + 1), key
    assert len(merged) == 20

def kill():
    start = time.perf_counter()
    merge()
    duration = time.perf_counter() - start
    absent = leftovers = 0
    for run in range(200):
        if run >= 25 and absent > 3 and leftovers > 3:
            break
        child = os.fork()
        if child == 0:
            merge()
            os._exit(0)
        # from nothing to more than a run takes; longer ones later, for a machine that is busy
        time.sleep(duration * (run % 25) / 20 * 2 ** (run // 25))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        leftovers += any(folder.glob(".*.partial"))
        assert len(list(folder.glob(".*.partial"))) <= 1  # each run cleans up after the one before
        if not output.exists():
            absent += 1
            continue
        check()
        if run % 3:
            shutil.rmtree(output) if output.is_dir() else output.unlink()
    assert absent > 3 and leftovers > 3, (absent, leftovers)  # else nothing was put to the test
    merge()
    check()
    assert sorted(os.listdir(folder)) == sorted(["in.safetensors", output.name])

for name, size in (("out.safetensors", None), ("out", 2000)):
    folder = Path(sys.argv[1], name)
    source, output = folder / "in.safetensors", folder / name
    kill()
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs POSIX")
def test_killed_run_leaves_all_or_nothing(tmp_path: Path) -> None:
    """Runs killed at 25 moments or more, to a file and to a sharded folder."""
    state = {f"w{i}": torch.full((100,), float(i)) for i in range(20)}
    for name in ("out.safetensors", "out"):
        save_state_dict(state, tmp_path / name / "in.safetensors")
    run_script(KILLED, tmp_path)


MEMORY = """
import json, sys, torch
from pathlib import Path
import mergelib

folder, limit, names = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]
torch.set_num_threads(1)

def peak():
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))

def merge(size):
    files = sorted((folder / size).glob("*.safetensors"))[: 3 if "slerp" in name else None]
    Path("/proc/self/clear_refs").write_text("5")
    before = peak()
    out = folder / "out.safetensors"
    mergelib.merge_files(name, files[1:], out, pretrained=files[0], overwrite=True)
    return peak() - before

peaks = {}
for name in names:
    # The small one loads whatever loads on first use; pages of libraries that the system takes
    # away and brings back come on top of some runs, so one that is too high gets a second try.
    merge("small")
    peaks[name] = merge("large")
    if peaks[name] > limit:
        peaks[name] = merge("large")
print(json.dumps(peaks))
"""


HALVES = ("average", "dare", "slerp", "cart", "tsv", "iso_cts")  # one of each kind


@pytest.mark.skipif(not os.access("/proc/self/clear_refs", os.W_OK), reason="needs Linux")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_memory_is_bounded_by_the_largest_tensor(tmp_path: Path, dtype: torch.dtype) -> None:
    """Of a language model's shapes: at most (experts + 3) copies of the largest.

    `knots` is left out: its joint basis alone takes as many copies as there are experts; and
    `doge`, which holds all task matrices beside the experts.
    In bfloat16, where experts are small beside what is computed, some stand for all.
    """
    experts, entries = 4, 16384 * 128
    shapes = {"embed.weight": (16384, 128)} | {f"w{i}": (4096, 128) for i in range(2)}
    for size, shrink in (("small", 64), ("large", 1)):
        for i in range(experts + 1):
            state = {k: torch.randn(a // shrink, b // shrink) for k, (a, b) in shapes.items()}
            state = {k: v.to(dtype) for k, v in state.items()}
            save_state_dict(state, tmp_path / size / f"{i}.safetensors")
    limit = entries * (experts * dtype.itemsize + 3 * 4)
    names = [name for name in method_names() if name not in ("knots", "doge")]
    names = [*HALVES] if dtype == torch.bfloat16 else names
    peaks = json.loads(run_script(MEMORY, tmp_path, limit, *names))
    assert max(peaks.values()) < limit, {k: v / entries for k, v in peaks.items()}
    assert min(peaks.values()) > entries * dtype.itemsize, peaks  # so something was measured


def run_script(script: str, *arguments: object) -> str:
    command = [sys.executable, "-c", script, *map(str, arguments)]
    environment = os.environ | {
        "OMP_NUM_THREADS": "1",
        "MALLOC_MMAP_THRESHOLD_": "65536",  # so that freed memory goes back at once
        "PYTHONPATH": str(Path(ml.__file__).parents[1]),
    }
    ran = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=600)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout
