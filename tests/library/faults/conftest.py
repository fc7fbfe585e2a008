"""No fault may make a test wait for ever."""

import os
import signal
import threading
from collections.abc import Iterator

import pytest
from tqdm import tqdm

# These need named pipes and forked processes, which Windows does not have.
NEED_POSIX = ["test_command.py", "test_inputs.py", "test_kills.py", "test_races.py"]
collect_ignore = [] if os.name == "posix" else NEED_POSIX


@pytest.fixture(autouse=True)
def alarm() -> Iterator[None]:
    """The process ends where a test hangs, as at a pipe that nobody writes to."""
    tqdm.set_lock(threading.RLock())  # processes share its usual one, and may be killed with it
    set_alarm = getattr(signal, "alarm", None)  # Windows has none
    if set_alarm is not None:
        set_alarm(900)
    yield
    if set_alarm is not None:
        set_alarm(0)
