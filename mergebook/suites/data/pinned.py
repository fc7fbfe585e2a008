"""Files made of what public GitHub repositories hold at fixed commits, with a hash to prove it."""

import csv
import hashlib
import urllib.request
from collections.abc import Callable, Sequence
from http.client import HTTPException
from pathlib import Path

from mergelib.io import staged


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
