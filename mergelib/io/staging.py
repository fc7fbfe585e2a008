"""Write outputs completely or not at all, also if a run is killed or several runs compete.

The README of this folder explains the protocol of hidden names, locks and renames.
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
    """Yield a hidden new file or folder that replaces ``output`` if the block succeeds.

    The permissions of a replaced output are kept. If the output is a link, its target is replaced.
    An OSError names the output.
    """
    named, output = output, resolved(output)
    _make_parent(output)
    _restore(output)
    _sweep(output)
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
    _sweep(output)


@contextlib.contextmanager
def scratch(output: Path) -> Iterator[Path]:
    """Yield a hidden folder beside an output; it is removed, if a run is killed by the next one."""
    output = resolved(output)
    _make_parent(output)
    _sweep(output)
    with _created(output, folder=True) as folder:
        yield folder


def move(source: Path, output: Path) -> None:
    """Replace an output, as `staged` does, by a finished file or folder of `scratch`."""
    folder, lock = source.is_dir(), _lock(source)  # of a file, under its hidden name, too
    try:
        with staged(output, folder=folder) as partial:
            for path in [*source.iterdir()] if folder else [source]:
                os.replace(path, partial / path.name if folder else partial)
    finally:
        _unlock(lock)


def resolved(path: Path) -> Path:
    """Return the path with all links resolved; OSError if they form a circle."""
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
    """Create a hidden file or folder, lock it, and remove it at the end."""
    for _ in range(_TRIES):
        partial = _hidden(output, _PARTIAL)
        try:
            partial.mkdir() if folder else partial.touch(exist_ok=False)
            lock = _lock(partial)
            break
        except (_Taken, FileNotFoundError):  # by another run's sweep, before it was locked
            _make_parent(output)
    else:
        raise OSError(errno.EBUSY, os.strerror(errno.EBUSY), str(output))
    try:
        with contextlib.suppress(FileNotFoundError):
            mode = stat.S_IMODE(output.stat().st_mode)  # as private from the start, and writable
            os.chmod(partial, stat.S_IRWXU if folder else mode | stat.S_IRUSR | stat.S_IWUSR)
        yield partial
    finally:
        _remove(partial)
        _unlock(lock)


def _take_modes(output: Path, partial: Path, folder: bool) -> None:
    """Copy the permissions of the old output, and of a folder's files, to the new one."""
    pairs = [(output, partial)]
    if folder:
        pairs += [(output / new.name, new) for new in partial.iterdir()]
    for old, new in pairs:
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            status = old.lstat()
            if stat.S_IFMT(status.st_mode) == stat.S_IFMT(new.lstat().st_mode):
                os.chmod(new, stat.S_IMODE(status.st_mode))


def _flush(path: Path) -> None:
    """Flush a file, or a folder with its content, to the disk."""
    if path.is_dir():
        for inner in path.iterdir():
            if not inner.is_symlink():
                _flush(inner)
        _flush_folder(path)
        return
    mode = "rb" if os.name == "posix" else "r+b"  # Windows flushes only what it may write to
    with open(path, mode) as stream:
        os.fsync(stream.fileno())


def _flush_folder(path: Path) -> None:
    """Flush a folder's list of names to the disk, if the system allows it."""
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
    """Move the new output into place, whatever other processes put there meanwhile."""
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
    """Exchange two names in one step; return False if the system cannot."""
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
    """Replace a folder by two renames; the old one returns if the second rename fails."""
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
        _unlock(lock)


def _restore(output: Path) -> None:
    """Restore a replaced folder if a killed run left nothing in its place."""
    for old in _abandoned(output, _REPLACED):
        if not os.path.lexists(output):
            with contextlib.suppress(OSError):  # another run was faster
                os.rename(old, output)


def _sweep(output: Path) -> None:
    """Remove what killed runs left; replaced folders only while something is in their place.

    This is done before the next folder is replaced, so that the one to restore is never in doubt.
    """
    for kind in (_PARTIAL, _REPLACED):
        for stale in _abandoned(output, kind):
            if kind == _PARTIAL or os.path.lexists(output):
                _remove(stale)


def _abandoned(output: Path, kind: str) -> Iterator[Path]:
    """Yield the paths with a name of `_hidden` whose run was killed; each is locked meanwhile."""
    ours = re.compile(rf"\.{re.escape(output.name)}\.[0-9a-f]{{8}}\.{kind}")
    paths: list[Path] = []
    with contextlib.suppress(PermissionError):  # a folder that may be written and not listed
        paths += sorted(path for path in output.parent.iterdir() if ours.fullmatch(path.name))
    for path in paths:
        try:
            lock = _lock(path)
        except (_Taken, OSError):
            continue
        try:
            if lock is not None:
                yield path
        finally:
            _unlock(lock)


def _hidden(output: Path, kind: str) -> Path:
    return output.with_name(f".{output.name}.{secrets.token_hex(4)}.{kind}")


class _Taken(Exception):
    """Another process holds the lock, or the path now names another file."""


def _lock(path: Path) -> int | None:
    """Lock a path for the life of this process; None where the system has no locks."""
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


def _unlock(lock: int | None) -> None:
    if lock is not None:
        os.close(lock)


def _remove(path: Path) -> None:
    """Remove a file or folder; warn if that fails."""
    try:
        if not os.path.lexists(path):
            return
        shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
    except FileNotFoundError:  # another run's sweep is at it
        if os.path.lexists(path):
            shutil.rmtree(path, ignore_errors=True)
    except OSError as error:
        warnings.warn(f"{path} could not be removed: {error.strerror or error}", stacklevel=2)
