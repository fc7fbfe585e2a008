"""How faults are made: processes killed at a chosen step, small models, tries short and long."""

import os
import random
import signal
import threading
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from tqdm import tqdm

from mergelib.io import Checkpoint, staging

State = dict[str, Tensor]
SCALE = float(os.environ.get("MERGELIB_FAULTS", "1"))  # of the long suites
# What puts, names, flushes and removes; a run is killed before and after each. The first two, and
# an exchange of folders, are where something can be lost.
STEPS = ("replace", "rename", "fsync", "chmod", "mkdir", "unlink", "rmdir")


def tries(short: int, long: int) -> pytest.MarkDecorator:
    """A test's ``tries``: few in every run, many with ``make faults``."""
    many = pytest.param(max(1, round(long * SCALE)), marks=pytest.mark.faults)
    return pytest.mark.parametrize("tries", [short, many], ids=["short", "long"])


def make_state(value: float) -> State:
    """Four tensors of one value."""
    return {f"w{i}": torch.full((5 + i, 3), float(value)) for i in range(4)}


def value_of(path: Path) -> float | None:
    """The one value of a whole model, or None where there is nothing.

    Raises:
        AssertionError: for a model that is not whole.
    """
    if not path.exists():
        return None
    model = Checkpoint(path).load()
    assert set(model) == {f"w{i}" for i in range(4)}
    values = {float(value) for tensor in model.values() for value in tensor.flatten()}
    assert len(values) == 1, values
    return values.pop()


def hidden(folder: Path) -> list[str]:
    """What killed runs left in a folder."""
    return sorted(name for name in os.listdir(folder) if name.startswith("."))


def in_child(work: Callable[[], object]) -> int:
    """Start a process that does some work and leaves: 0 if all went well."""
    if not hasattr(os, "fork"):
        pytest.skip("needs POSIX")
    child = os.fork()
    if child:
        return child
    status = 1
    try:
        tqdm.set_lock(threading.RLock())  # a thread of the parent may have held its own
        work()
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(status)


def ended(child: int) -> int:
    """How a child ended: its exit status, or a signal's number below zero."""
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def kill_at(step: int, work: Callable[[], object], steps: Sequence[str] = STEPS) -> bool:
    """Do some work in a process that is killed at one of its steps; False if it has fewer."""

    def doomed() -> None:
        left = iter(range(step, -1, -1))

        def die() -> None:
            if next(left) == 0:
                os.kill(os.getpid(), signal.SIGKILL)

        def mortal(function: Callable[..., Any]) -> Callable[..., Any]:
            def called(*arguments: Any, **options: Any) -> Any:
                die()
                result = function(*arguments, **options)
                die()
                return result

            return called

        for name in steps:
            setattr(os, name, mortal(getattr(os, name)))
        staging._exchange = mortal(staging._exchange)
        work()

    status = ended(in_child(doomed))
    assert status in (0, -signal.SIGKILL), status
    return status != 0


def mutate(content: bytes, draw: random.Random, limit: int | None = None) -> bytes:
    """Bytes with a few changed, removed, doubled or put in, below ``limit``; or cut short."""
    changed = bytearray(content)
    limit = min(limit or len(content), len(content))
    for _ in range(draw.randint(1, 4)):
        at, how = draw.randrange(max(1, min(limit, len(changed)))), draw.randrange(8)
        if how < 4:
            changed[at : at + 1] = bytes([draw.randrange(256)])
        elif how == 4:
            changed[at : at + 1] = bytes([changed[at] ^ 1 << draw.randrange(8)]) if changed else b""
        elif how == 5:
            del changed[at : at + draw.randint(1, 8)]
        elif how == 6:
            changed[at:at] = changed[at : at + draw.randint(1, 8)]
        else:
            del changed[draw.randrange(len(changed) + 1) :]
    return bytes(changed)
