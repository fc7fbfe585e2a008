"""No fault may make a test wait for ever."""

import signal
import threading
from collections.abc import Iterator

import pytest
from tqdm import tqdm


@pytest.fixture(autouse=True)
def alarm() -> Iterator[None]:
    """The process ends where a test hangs, as at a pipe that nobody writes to."""
    tqdm.set_lock(threading.RLock())  # processes share its usual one, and may be killed with it
    signal.alarm(900)
    yield
    signal.alarm(0)
