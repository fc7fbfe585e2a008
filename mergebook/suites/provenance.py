"""Provenance: what a measured number must carry to be believed and repeated."""

import datetime
import importlib.metadata
import platform
import re
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch


def provenance(**inputs: Any) -> dict[str, Any]:
    """A record of versions, device, commit and date, next to what the numbers were made from."""
    device = str(inputs.pop("device", "cpu"))
    packages = ["mergelib-book", "torch", "torchvision", "numpy"]
    packages += ["scikit-learn", "matplotlib", "pillow"]
    versions = dict.fromkeys(packages, "not installed")
    for name in packages:
        with suppress(importlib.metadata.PackageNotFoundError):
            versions[name] = importlib.metadata.version(name)
    return {
        **inputs,
        "versions": {"python": platform.python_version(), **versions},
        "device": _device_name(device),
        **({"float32_matmul": torch.get_float32_matmul_precision()} if "cuda" in device else {}),
        "threads": torch.get_num_threads(),
        "commit": _commit(),
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
    }


def _device_name(device: str) -> str:
    if device.startswith("cuda"):
        return torch.cuda.get_device_name(device)
    told = Path("/proc/cpuinfo")
    named = re.search(r"^model name\s*: (.+)", told.read_text() if told.exists() else "", re.M)
    return named[1].strip() if named else platform.processor() or platform.machine()


def _commit() -> str:
    """The commit of the checkout that holds the package, ``+`` when changed; else "unknown"."""
    folder = Path(__file__).parent

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(folder), *arguments]
        return subprocess.check_output(command, text=True, stderr=subprocess.DEVNULL).strip()

    try:
        git("ls-files", "--error-unmatch", __file__)
        changed = git("status", "--porcelain", "--untracked-files=no", "--", str(folder))
        return git("rev-parse", "HEAD") + ("+" if changed else "")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
