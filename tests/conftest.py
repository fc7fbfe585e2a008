"""What all tests share: a cache of their own, and no deadlines on machines that others share."""

from pathlib import Path

import pytest
from hypothesis import settings

settings.register_profile("patient", deadline=None)
settings.load_profile("patient")


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No test sees the user's cache, nor data that happens to lie on this machine."""
    monkeypatch.setenv("MERGELIB_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("MERGELIB_DATA", raising=False)
    return tmp_path / "cache"
