"""Many runs: in this process, or on the cores of a machine by joblib.

Every run's record is written whole, under a name that holds its key: a sweep that was killed goes
on. A failed run leaves its traceback, the others finish, and the next call tries it again.
Processes that share a folder divide the runs among them, on a cluster as well.
"""

import contextlib
import errno
import pickle
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from filelock import FileLock, Timeout
from joblib import Parallel, delayed

from mergebook.lab.results import read_result, write_result
from mergelib.io import staged
from mergelib.messages.brief import Brief
from mergelib.progress import progress

Record = Mapping[str, Any]


class Work(Protocol):
    """A unit of work: what can be sent to another process, measured there, and kept."""

    @property
    def name(self) -> str:
        """Names its files; another one for each run of a sweep."""

    def prepare(self) -> tuple[str, Callable[[], Record]]:
        """The key of all that the record depends on, for a file's name, and what measures it."""


@dataclass(frozen=True, repr=False)
class Outcome(Brief):
    """What became of a run: without record or error, another process is at it."""

    name: str
    record: dict[str, Any] | None = None
    error: Exception | None = None


def map(works: Sequence[Work], *, folder: Path, jobs: int = 1) -> list[Outcome]:
    """The outcome of every run, in their order; those in the folder are not repeated."""
    names = [work.name for work in works]
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"two runs have the name {name!r}")
    folder = folder.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    parallel = Parallel(n_jobs=jobs, return_as="generator_unordered")
    outcomes: dict[str, Outcome] = {}
    with progress(total=len(works), desc="runs") as bar:
        for wait in (False, True):  # others' runs come last, when they may be done
            left = [work for work in works if work.name not in outcomes]
            for outcome in parallel(delayed(perform)(work, folder, wait) for work in left):
                if outcome.record is not None or outcome.error is not None:
                    outcomes[outcome.name] = outcome
                    bar.update()
    return [outcomes[name] for name in names]


def perform(work: Work, folder: Path, wait: bool) -> Outcome:
    """Measure a run or read its record, keeping an error; `wait` for a process that is at it."""
    failure = folder / f"{work.name}.failed.txt"
    try:
        with _locked(folder / f"{work.name}.lock", wait):
            key, measure = work.prepare()
            file = folder / f"{work.name}-{key}.json"
            record = _kept(file)
            if record is None:
                write_result(file, measure())
                record = read_result(file)
            with contextlib.suppress(OSError):  # where the folder is read-only
                failure.unlink(missing_ok=True)
    except Timeout:
        return Outcome(work.name)
    except Exception as error:
        with contextlib.suppress(OSError), staged(failure) as partial:
            partial.write_text(traceback.format_exc())
        return Outcome(work.name, error=_portable(error))
    return Outcome(work.name, record)


@contextlib.contextmanager
def _locked(file: Path, wait: bool) -> Iterator[None]:
    """Hold a lock, or raise Timeout; none where the folder cannot be written, only read."""
    lock = FileLock(file, timeout=-1 if wait else 0)
    try:
        lock.acquire()
    except OSError as error:  # a Timeout is one, without a number
        if error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS):
            raise
    try:
        yield
    finally:
        lock.release()


def _kept(file: Path) -> dict[str, Any] | None:
    """The record in a file; None if it is absent, or damaged, which is warned of."""
    try:
        return read_result(file)
    except FileNotFoundError:
        return None
    except ValueError as error:
        warnings.warn(f"{error}: it is measured again", stacklevel=2)
        return None


def _portable(error: Exception) -> Exception:
    """The error, or where it cannot be sent to another process, what it says."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:  # a class may fail to pickle, or to be made again, in any way
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error
