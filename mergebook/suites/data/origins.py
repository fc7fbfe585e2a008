"""Sources of data in ``sources/NAME.toml``: files at fixed commits, with a hash to prove it."""

import csv
import hashlib
import tomllib
import urllib.request
from collections.abc import Callable, Sequence
from http.client import HTTPException
from importlib import resources
from pathlib import Path
from typing import TypeVar

from mergelib.io import staged

Record = TypeVar("Record")


def records(name: str, kind: Callable[..., Record]) -> dict[str, Record]:
    """A record of every entry of a table, in its order; lists become tuples."""
    file = resources.files("mergebook.suites.data") / "sources" / f"{name}.toml"
    return {
        key: kind(**{k: tuple(v) if isinstance(v, list) else v for k, v in entry.items()})
        for key, entry in tomllib.loads(file.read_text(encoding="utf-8")).items()
    }


def download(
    what: str,
    urls: Sequence[str],
    make: Callable[[Sequence[bytes]], bytes],
    sha256: str,
    target: Path,
) -> Path:
    """Write and return `target`, which `make` makes of the URLs' contents, if it has its hash."""
    contents = []
    for url in urls:
        try:
            with urllib.request.urlopen(url, timeout=60) as response:
                contents.append(response.read())
        except (OSError, HTTPException) as error:
            place = f"is not in the data folder's subfolder {target.parent.name!r}"
            raise ValueError(f"{what} {place}, and {url} cannot be read: {error}") from error
    sources = " and ".join(urls)
    try:
        made = make(contents)
    except (ValueError, LookupError, TypeError, csv.Error) as error:
        reason = f"{type(error).__name__}: {error}"
        raise ValueError(f"{what}: what {sources} gives makes no sense: {reason}") from error
    if (found := hashlib.sha256(made).hexdigest()) != sha256:
        raise ValueError(f"{what}: what {sources} gives has the SHA-256 {found}, expected {sha256}")
    with staged(target) as draft:
        draft.write_bytes(made)
    return target
