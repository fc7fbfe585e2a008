"""The folder for trained experts, downloads and prepared data sets."""

import os
from pathlib import Path


def cache_folder() -> Path:
    """Return ``MERGELIB_CACHE`` if it is set, else ``~/.cache/mergelib``.

    Raises:
        ValueError: if there is no home folder and the variable is not an absolute path.
    """
    chosen = os.environ.get("MERGELIB_CACHE")
    try:
        return Path(chosen).expanduser() if chosen else Path.home() / ".cache" / "mergelib"
    except RuntimeError:
        raise ValueError(
            "there is no home folder for a cache: set MERGELIB_CACHE to a folder"
        ) from None
