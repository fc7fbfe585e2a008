"""No fault may make a test wait for ever."""

import signal
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def alarm() -> Iterator[None]:
    """The process ends where a test hangs, as at a pipe that nobody writes to."""
    signal.alarm(900)
    yield
    signal.alarm(0)
