"""The folder of caches, also where there is no home."""

import os
from pathlib import Path

import pytest

from mergelib.io import cache_folder


def test_the_variable_decides(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("MERGELIB_CACHE", "~/mine")
    assert cache_folder() == tmp_path / "mine"
    monkeypatch.delenv("MERGELIB_CACHE")
    assert cache_folder() == tmp_path / ".cache" / "mergelib"


@pytest.mark.skipif(os.name != "posix", reason="homes are found otherwise")
@pytest.mark.parametrize("chosen", [None, "~nobody-of-this-name/cache"])
def test_no_home(monkeypatch: pytest.MonkeyPatch, chosen: str | None) -> None:
    """As in some containers: an unknown user without the variable."""
    import pwd

    def unknown(_: object) -> None:
        raise KeyError("no such user")

    monkeypatch.setattr(pwd, "getpwuid", unknown)
    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.delenv("MERGELIB_CACHE")
    if chosen is not None:
        monkeypatch.setenv("MERGELIB_CACHE", chosen)
    with pytest.raises(ValueError, match="no home folder for a cache: set MERGELIB_CACHE"):
        cache_folder()
