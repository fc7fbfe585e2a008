"""Provenance: what a measured number must carry to be believed and repeated."""

import datetime
import importlib.metadata
import platform
import subprocess
from pathlib import Path
from typing import Any

import torch


def provenance(**inputs: Any) -> dict[str, Any]:
    """A record of versions, device, commit and date, next to what the numbers were made from."""
    device = str(inputs.pop("device", "cpu"))
    packages = ["mergelib-book", "torch", "torchvision", "numpy"]
    packages += ["scikit-learn", "matplotlib", "pillow"]
    return {
        **inputs,
        "versions": {"python": platform.python_version(), **{p: _version(p) for p in packages}},
        "device": _device_name(device),
        **({"float32_matmul": torch.get_float32_matmul_precision()} if "cuda" in device else {}),
        "threads": torch.get_num_threads(),
        "commit": _commit(),
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
    }


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def _device_name(device: str) -> str:
    if device.startswith("cuda"):
        return torch.cuda.get_device_name(device)
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def _commit() -> str:
    """The commit of the checkout that holds the package, ``+`` when changed; else "unknown"."""
    folder = Path(__file__).parent

    def git(*arguments: str) -> str:
        return subprocess.run(
            ["git", "-C", str(folder), *arguments], capture_output=True, text=True, check=True
        ).stdout.strip()

    try:
        git("ls-files", "--error-unmatch", __file__)
        changed = git("status", "--porcelain", "--untracked-files=no", "--", str(folder))
        return git("rev-parse", "HEAD") + ("+" if changed else "")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
