"""A registry to spoil."""

import pytest

from mergelib import registry


@pytest.fixture
def spare_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rules that a test registers are gone after it."""
    monkeypatch.setattr(registry, "_METHODS", dict(registry._METHODS))
