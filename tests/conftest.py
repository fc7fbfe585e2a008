"""What all tests share: a cache of their own, and a register of rules to spoil."""

import gc
from collections.abc import Generator
from itertools import count
from pathlib import Path

import pytest
import torch
from hypothesis import settings

from mergelib import registry


def pytest_addoption(parser: pytest.Parser) -> None:
    what = "run the first case of every parametrised test: enough to see what is not installed"
    parser.addoption("--first-cases", action="store_true", help=what)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("first_cases"):
        items[:] = {item.nodeid.partition("[")[0]: item for item in items[::-1]}.values()


settings.register_profile("patient", deadline=None, max_examples=40)
settings.load_profile("patient")
NUMBERS = count()


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Garbage is looked for only among what tests make, not among all that they import."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_unconfigure() -> None:
    gc.unfreeze()


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No test sees the user's cache, nor data that happens to lie on this machine.

    Most tests write nothing, and get no folder: pytest looks at all others to name a new one.
    """
    cache = tmp_path_factory.getbasetemp() / f"cache{next(NUMBERS)}"
    monkeypatch.setenv("MERGELIB_CACHE", str(cache))
    monkeypatch.delenv("MERGELIB_DATA", raising=False)
    return cache


@pytest.fixture(autouse=True)
def same_draws() -> None:
    """What a test draws without a generator of its own does not depend on the tests before it."""
    torch.manual_seed(0)


@pytest.fixture
def spare_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rules that a test registers are gone after it."""
    monkeypatch.setattr(registry, "_METHODS", dict(registry._METHODS))
