"""`import mergelib` stays light: what only some work needs is loaded by that work."""

import subprocess
import sys
from pathlib import Path

import mergelib

HEAVY = {
    "IPython",
    "PIL",
    "datasets",
    "joblib",
    "matplotlib",
    "pandas",
    "ray",
    "scipy",
    "seaborn",
    "sklearn",
    "torchvision",
    "transformers",
}
SCRIPT = "import sys, mergelib; print(*{name.partition('.')[0] for name in sys.modules})"


def test_what_is_not_loaded() -> None:
    ran = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(mergelib.__file__).parents[1],
    )
    loaded = set(ran.stdout.split())
    assert {"torch", "mergelib"} <= loaded
    assert not loaded & HEAVY
