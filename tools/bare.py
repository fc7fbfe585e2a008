"""Link into an environment what the library and its tests require, from the one that runs this.

No download and no copy: every file is a hard link, and packages that nothing requires stay out.
"""

import os
import re
import sys
import sysconfig
from importlib.metadata import Distribution, distribution
from importlib.util import cache_from_source
from pathlib import Path

from packaging.requirements import Requirement

LIBRARY = "mergelib-book"
TESTS = ("pytest", "pytest-xdist", "hypothesis")


def required(*names: str) -> dict[str, Distribution]:
    """The distributions that these need, by name, with those that they need in turn."""
    found: dict[str, Distribution] = {}
    todo = [(name, "") for name in names]
    seen = set(todo)
    for name, extra in todo:
        found[name] = distribution(name)
        for need in map(Requirement, found[name].requires or ()):
            if need.marker is None or need.marker.evaluate({"extra": extra}):
                key = re.sub(r"[-_.]+", "-", need.name).lower()
                new = {(key, each) for each in ("", *need.extras)} - seen
                seen |= new
                todo += sorted(new)
    return found


def link(package: Distribution, target: Path) -> None:
    """Link a package's files, and what was compiled from them."""
    source = Path(str(package.locate_file("")))
    files = [Path(file) for file in package.files or () if ".." not in file.parts]  # no scripts
    compiled = [Path(cache_from_source(str(file))) for file in files if file.suffix == ".py"]
    for file in {*files, *compiled}:
        if (source / file).is_file():
            (target / file).parent.mkdir(parents=True, exist_ok=True)
            if not (target / file).exists():  # some packages share a file
                os.link(source / file, target / file)


def main(folder: str) -> None:
    paths = sysconfig.get_paths("venv", {"base": folder, "platbase": folder})
    for name, package in required(LIBRARY, *TESTS).items():
        if name != LIBRARY:
            link(package, Path(paths["purelib"]))


if __name__ == "__main__":
    main(sys.argv[1])
