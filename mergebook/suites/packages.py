"""Pretrained weights that come as ordinary packages of the package index, in the extra ``real``."""

import importlib.metadata
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from mergelib.hashing import sha256_of


@dataclass(frozen=True)
class Package:
    """An installed package that holds pretrained weights."""

    name: str  # on the index
    file: str  # of the weights, relative to where packages are installed
    read: Callable[[Path], dict[str, Tensor]]  # the state dict of the family's models
    needs: tuple[str, ...] = ()  # names of further packages

    def path(self) -> Path:
        """Where the weights are; ImportError if the package is not installed."""
        versions = self._versions()
        path = Path(str(importlib.metadata.distribution(self.name).locate_file(self.file)))
        if not path.is_file():
            raise ValueError(f"package {self.name!r} {versions[self.name]} has no {self.file}")
        return path

    def weights(self) -> dict[str, Tensor]:
        """The weights; errors as in `path`."""
        return self.read(self.path())

    def origin(self) -> dict[str, str]:
        """What tells which weights they are: packages' versions, and the SHA-256 of the file."""
        path = self.path()
        return {**self._versions(), path.name: f"sha256:{sha256_of(path)}"}

    def _versions(self) -> dict[str, str]:
        found = {}
        for name in (self.name, *self.needs):
            try:
                found[name] = importlib.metadata.version(name)
            except importlib.metadata.PackageNotFoundError as error:
                raise ImportError(
                    f"package {name!r} is not installed: pip install 'mergelib-book[real]' brings "
                    "the real pretrained networks"
                ) from error
        return found
