"""Pretrained weights that come as ordinary packages of the package index, in the extra ``real``."""

import importlib.metadata
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from mergelib.hashing import sha256_of
from mergelib.messages.brief import Brief


@dataclass(frozen=True, repr=False)
class Weights(Brief):
    """Pretrained weights, and what they come from: versions of packages and the file's SHA-256."""

    state: dict[str, Tensor]
    origin: dict[str, str]


def packaged(package: str, file: str, needs: Sequence[str] = ()) -> tuple[Path, dict[str, str]]:
    """A file of an installed package, with the versions and the SHA-256 that tell what it is.

    Args:
        package: its name on the index.
        file: its path, relative to where packages are installed.
        needs: further packages that are needed to use it.

    Raises:
        ImportError: for a package that is not installed; it says how to get it.
        ValueError: for a package without the file.
    """
    versions = {}
    for name in (package, *needs):
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError as error:
            raise ImportError(
                f"package {name!r} is not installed: pip install 'mergelib[real]' brings the real "
                "pretrained networks"
            ) from error
    path = Path(str(importlib.metadata.distribution(package).locate_file(file)))
    if not path.is_file():
        raise ValueError(f"package {package!r} {versions[package]} has no file {file}")
    return path, {**versions, path.name: f"sha256:{sha256_of(path)}"}
