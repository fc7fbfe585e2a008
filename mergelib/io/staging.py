"""Outputs that are whole or absent, also where runs are killed or write to one place at a time.

An output is written under a hidden name beside its target, ``.NAME.<8 hex digits>.partial``,
flushed to the disk and put in place. A file takes the place of another in one step. So does a
folder where the system can exchange two names (Linux); elsewhere the old folder is moved to
``.NAME.<8 hex digits>.replaced`` first, and a run killed between the two steps leaves it there,
for the next run to bring back.

Who writes a hidden file or folder holds a lock on it for as long as it lives. What can be locked is
of the dead, and removed: what is partial before the next output is computed, what was replaced only
when something stands in its place.
"""

import contextlib
import ctypes
import errno
import os
import re
import secrets
import shutil
import stat
import time
import warnings
from collections.abc import Iterator
from pathlib import Path

try:
    import fcntl
except ImportError:  # Windows, where an open file cannot be deleted anyway
    fcntl = None  # type: ignore[assignment]

_PARTIAL, _REPLACED = "partial", "replaced"
_TRIES, _PAUSE = 1000, 0.01  # of what another process may get in the way of; seconds in between
_OVERTAKEN = {errno.ENOTEMPTY, errno.EEXIST, errno.ENOENT}  # another one put or took a folder
_HERE, _EXCHANGE = -100, 2  # Linux's AT_FDCWD and RENAME_EXCHANGE
_CANNOT = {errno.ENOSYS, errno.EINVAL, errno.ENOTSUP, errno.EPERM}  # that system or file system


@contextlib.contextmanager
def staged(output: Path, *, folder: bool = False) -> Iterator[Path]:
    """A hidden new file or folder that becomes ``output`` if the block succeeds, else vanishes.

    What the output replaces hands its permissions on. An output that is a link stays one: what it
    points to is replaced.

    Raises:
        OSError: naming the output, if it cannot be written.
    """
    named, output = output, resolved(output)
    _make_parent(output)
    _restore(output)
    _sweep(output, _PARTIAL)
    try:
        with _created(output, folder) as partial:
            yield partial
            _flush(partial)
            _take_modes(output, partial, folder)
            _put(partial, output)
            _flush_folder(output.parent)
    except OSError as error:
        if error.filename is None or f".{output.name}." in str(error.filename):
            raise OSError(error.errno, error.strerror or str(error), str(named)) from error
        raise
    _sweep(output, _REPLACED)


def resolved(path: Path) -> Path:
    """The path without links.

    Raises:
        OSError: for links in a circle.
    """
    try:
        return path.resolve()
    except (RuntimeError, OSError):  # the former before Python 3.13
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path)) from None


def _make_parent(output: Path) -> None:
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
    except FileExistsError:
        message = os.strerror(errno.ENOTDIR)
        raise NotADirectoryError(errno.ENOTDIR, message, str(output.parent)) from None


@contextlib.contextmanager
def _created(output: Path, folder: bool) -> Iterator[Path]:
    """A new hidden file or folder, locked and nobody else's, that is removed in the end."""
    partial, lock = _create(output, folder)
    try:
        with contextlib.suppress(FileNotFoundError):
            mode = stat.S_IMODE(output.stat().st_mode)  # as private from the start, and writable
            os.chmod(partial, stat.S_IRWXU if folder else mode | stat.S_IRUSR | stat.S_IWUSR)
        yield partial
    finally:
        _remove(partial)
        if lock is not None:
            os.close(lock)


def _create(output: Path, folder: bool) -> tuple[Path, int | None]:
    for _ in range(_TRIES):
        partial = _hidden(output, _PARTIAL)
        try:
            partial.mkdir() if folder else partial.touch(exist_ok=False)
            lock = _lock(partial)
        except (_Taken, FileNotFoundError):  # by another run's sweep, before it was locked
            _make_parent(output)
            continue
        return partial, lock
    raise OSError(errno.EBUSY, os.strerror(errno.EBUSY), str(output))


def _take_modes(output: Path, partial: Path, folder: bool) -> None:
    """Give the new the permissions of the old, a folder's files those of its files."""
    pairs = [(output, partial)]
    if folder:
        pairs += [(output / new.name, new) for new in partial.iterdir()]
    for old, new in pairs:
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            found = old.lstat()
            if stat.S_IFMT(found.st_mode) == stat.S_IFMT(new.lstat().st_mode):
                os.chmod(new, stat.S_IMODE(found.st_mode))


def _flush(path: Path) -> None:
    """Bring a file, or a folder with all that is in it, to the disk."""
    if path.is_dir():
        for inner in path.iterdir():
            if not inner.is_symlink():
                _flush(inner)
        _flush_folder(path)
        return
    with open(path, "rb") as stream:
        os.fsync(stream.fileno())


def _flush_folder(path: Path) -> None:
    """Bring a folder's list of names to the disk, where the system lets folders be flushed."""
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except OSError:  # Windows; a folder that may be written and not read
        return
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in _CANNOT | {errno.EBADF}:
            raise
    finally:
        os.close(descriptor)


def _put(partial: Path, output: Path) -> None:
    """Let the new take the old's place, whatever other processes put there meanwhile."""
    for _ in range(_TRIES):
        try:
            if not (output.is_dir() and partial.is_dir()):
                os.replace(partial, output)
            elif not _exchange(partial, output):
                _replace_folder(partial, output)
            return
        except OSError as error:
            if not partial.is_dir() or error.errno not in _OVERTAKEN:
                raise
        time.sleep(_PAUSE)
    raise OSError(errno.EBUSY, os.strerror(errno.EBUSY), str(output))


def _exchange(one: Path, other: Path) -> bool:
    """Exchange two names in one step; False where the system cannot."""
    try:
        rename = ctypes.CDLL(None, use_errno=True).renameat2
    except (OSError, AttributeError, TypeError):  # another system, or an old C library
        return False
    if rename(_HERE, os.fsencode(one), _HERE, os.fsencode(other), _EXCHANGE) == 0:
        return True
    code = ctypes.get_errno()
    if code in _CANNOT:
        return False
    raise OSError(code, os.strerror(code), str(one))


def _replace_folder(partial: Path, output: Path) -> None:
    """Two renames in place of an exchange; what was there comes back if the second one fails."""
    try:
        lock = _lock(output)
    except _Taken:  # another run is replacing it
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(output)) from None
    old = _hidden(output, _REPLACED)
    try:
        os.replace(output, old)
        os.replace(partial, output)
    except BaseException:
        if os.path.lexists(old) and not os.path.lexists(output):
            os.replace(old, output)
        raise
    else:
        _remove(old)
    finally:
        if lock is not None:
            os.close(lock)


def _restore(output: Path) -> None:
    """Bring a replaced folder back where a killed run left nothing in its place."""
    for old in _leftovers(output, _REPLACED):
        if os.path.lexists(output):
            return
        with _held(old) as ours:
            if ours:
                with contextlib.suppress(OSError):  # another run was faster
                    os.rename(old, output)


def _sweep(output: Path, kind: str) -> None:
    """Remove what dead runs left."""
    for stale in _leftovers(output, kind):
        with _held(stale) as ours:
            if ours:
                _remove(stale)


def _leftovers(output: Path, kind: str) -> list[Path]:
    """What has exactly a name that is given here."""
    ours = re.compile(rf"\.{re.escape(output.name)}\.[0-9a-f]{{8}}\.{kind}")
    try:
        return sorted(path for path in output.parent.iterdir() if ours.fullmatch(path.name))
    except PermissionError:  # a folder that may be written and not listed
        return []


def _hidden(output: Path, kind: str) -> Path:
    return output.with_name(f".{output.name}.{secrets.token_hex(4)}.{kind}")


class _Taken(Exception):
    """Another process holds the lock, or the path has become another file's."""


@contextlib.contextmanager
def _held(path: Path) -> Iterator[bool]:
    """Whether this process could lock what a dead one left."""
    try:
        lock = _lock(path)
    except (_Taken, OSError):
        lock = None
    try:
        yield lock is not None
    finally:
        if lock is not None:
            os.close(lock)


def _lock(path: Path) -> int | None:
    """Lock a file or folder for as long as this process lives.

    Returns the descriptor that holds the lock, or None where the file system knows no locks (then
    what a killed run leaves stays until someone removes it).

    Raises:
        _Taken: if another process has it, or has put another in its place since.
        FileNotFoundError: if there is no such path.
    """
    if fcntl is None:
        return None
    descriptor = os.open(path, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        ours, there = os.fstat(descriptor), os.lstat(path)
    except (BlockingIOError, FileNotFoundError):
        os.close(descriptor)
        raise _Taken from None
    except OSError:
        os.close(descriptor)
        return None
    if (ours.st_dev, ours.st_ino) != (there.st_dev, there.st_ino):
        os.close(descriptor)
        raise _Taken
    return descriptor


def _remove(path: Path) -> None:
    """Remove a file or folder; what cannot be removed is left, with a warning."""
    try:
        if not os.path.lexists(path):
            return
        shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
    except FileNotFoundError:  # another run's sweep is at it
        if os.path.lexists(path):
            shutil.rmtree(path, ignore_errors=True)
    except OSError as error:
        warnings.warn(f"{path} is left behind: {error.strerror or error}", stacklevel=2)
