"""Pickled state dicts that hold only tensors; code in a pickle is never run.

Since PyTorch 1.6 the file is a zip archive of a pickle that describes the tensors and one member
per storage, so single tensors can be read. PyTorch's restricted unpickler reads the description;
it receives storages without memory, except for compressed members, which `torch.save` never writes
and which are read at once. (`torch.load` with ``mmap=True`` would need less code, but it maps the
file into memory and cannot read compressed members.)
"""

import argparse
import contextlib
import errno
import io
import pickle
import re
import struct
import sys
import zipfile
from collections.abc import Hashable, Mapping
from io import FileIO
from pathlib import Path
from typing import Any, TypeGuard

import torch
from torch import Tensor, _weights_only_unpickler
from torch.storage import TypedStorage, UntypedStorage

from mergelib.io.files import InputFile, Place
from mergelib.io.header import METADATA
from mergelib.messages.warned import warn

Entry = Tensor | Place

_MAGIC = b"PK\x03\x04"
_LOCAL = struct.Struct("<4s22xHH")  # the local header of a member: its name and extra field follow
_SLACK = 2**24  # bytes that tensors may take, or a description inflate to, beyond what files hold
_USUAL = ("state_dict", "model")  # names of weights that are read without being asked for
_UNREADABLE = 0x1 | 0x20 | 0x40  # flags of members that are encrypted or patched


def read_pickle(file: InputFile, key: str | None = None) -> dict[str, Entry]:
    """Return the state dict in a pickle, plain or under a name, such as ``ema`` or ``ema.module``.

    Tensors of an archive are returned as places, those of PyTorch's old format are read. Of several
    sets of weights the one under ``key`` is read; without a key the one under ``state_dict`` or
    ``model``, with a warning.

    Raises:
        ValueError: if the file is damaged, needs code, holds no such state dict or several, holds
            tensors without values or a reserved name, or claims far more bytes than it has.
    """
    with torch.serialization.safe_globals([argparse.Namespace]):  # options of training, by timm
        return _read(file, key)


def _read(file: InputFile, key: str | None) -> dict[str, Entry]:
    path = file.path
    try:
        if file.read(0, min(4, file.size)).numpy().tobytes() == _MAGIC:
            with file.opened() as stream:
                archive = _Archive(file, stream)
            return _checked(file, archive.content, key, archive.declared, archive)
        with file.opened() as stream:
            buffered = io.BufferedReader(stream)
            try:
                content = torch.load(buffered, map_location="cpu", weights_only=True)
            finally:
                buffered.detach()  # which would close the file with it
        return _checked(file, content, key, file.size)
    except pickle.UnpicklingError as error:
        raise ValueError(f"{path} is refused: {_explain_code(error)}") from None
    except _Refused:
        raise
    except Exception as error:  # a damaged pickle may raise anything
        file.check()
        if isinstance(error, OSError) and error.errno != errno.EINVAL:  # a seek to nowhere
            raise
        reason = str(error).strip().split("\n")[0]
        raise ValueError(f"{path} is truncated or not a pickled state dict: {reason}") from None


def _explain_code(error: pickle.UnpicklingError) -> str:
    """Explain why PyTorch refuses to read a pickle without running code."""
    names = getattr(error, "names", None) or re.findall(r"GLOBAL (\w+(?:\.\w+)+)", str(error))[:1]
    if not names:
        return "it is damaged or needs arbitrary code; convert it to safetensors"
    return (
        f"it holds {', '.join(names)} besides tensors, and to read these would run code; if you "
        "trust the file, read it with torch.load(path, weights_only=False), and pass its state "
        "dict, often under ['state_dict'], to mergelib.save_state_dict(state, 'new.safetensors')"
    )


def _foreign_names(description: bytes) -> list[str]:
    """Return the names in a pickle that PyTorch's restricted unpickler does not allow."""
    allowed = _weights_only_unpickler._get_allowed_globals()
    with contextlib.suppress(pickle.UnpicklingError, ValueError, IndexError):
        names = _weights_only_unpickler.get_globals_in_pkl(io.BytesIO(description))
        return sorted(name for name in names if name not in allowed)
    return []


def identity(entry: Entry) -> Hashable:
    """Return a value that is equal for all names of one tied tensor."""
    if isinstance(entry, Place):
        return entry
    return entry.data_ptr(), entry.shape, entry.stride(), entry.dtype


class _Refused(ValueError):
    """A pickle that is readable but not acceptable."""


class _Archive:
    """The zip archive of a pickle; the tensors in ``content`` are on the meta device.

    Those of compressed members have values.
    """

    def __init__(self, file: InputFile, stream: FileIO) -> None:
        self._file, self._stream = file, stream
        self._storages: dict[str, UntypedStorage] = {}
        self._keys: dict[int, str] = {}  # of storages, by their identity
        self._starts: dict[str, int] = {}
        self._zip = zipfile.ZipFile(stream)
        self._members = {member.filename: member for member in self._zip.infolist()}
        self._check_members(len(self._zip.infolist()))
        self._root, description = self._describe()
        self.declared = sum(member.file_size for member in self._members.values())
        unpickler = _weights_only_unpickler.Unpickler(io.BytesIO(description), encoding="utf-8")
        unpickler.persistent_load = self._load  # type: ignore[method-assign]
        try:
            self.content: object = unpickler.load()
        except pickle.UnpicklingError as error:
            error.names = _foreign_names(description)  # type: ignore[attr-defined]
            raise
        finally:  # else PyTorch checks these with the next pickle that anyone loads, and fails
            with contextlib.suppress(Exception):
                torch._utils._validate_loaded_sparse_tensors()

    def _check_members(self, count: int) -> None:
        members = self._members.values()
        if len(members) < count or sum(m.compress_size for m in members) > self._file.size:
            raise _Refused(f"{self._file.path} is refused: members of its archive overlap")
        for member in members:
            kinds = {zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED}
            if member.flag_bits & _UNREADABLE or member.compress_type not in kinds:
                raise _Refused(
                    f"{self._file.path} is refused: {member.filename!r} is encrypted or compressed "
                    "otherwise than by deflate"
                )

    def _describe(self) -> tuple[str, bytes]:
        """Return the name of the archive's one folder, and the pickle in it."""
        path = self._file.path
        descriptions = [
            m for name, m in self._members.items() if name.partition("/")[2] == "data.pkl"
        ]
        if len(descriptions) != 1:
            raise _Refused(f"{path} is truncated or not a pickled state dict: it holds no data.pkl")
        if descriptions[0].file_size > self._file.size + _SLACK:
            raise _Refused(f"{path} is refused: its data.pkl inflates far beyond the file's size")
        root = descriptions[0].filename.removesuffix("data.pkl")
        order = self._members.get(f"{root}byteorder")
        if order is not None and self._zip.open(order).read(9) != sys.byteorder.encode():
            raise _Refused(f"{path} is refused: it was written with another byte order")
        return root, self._zip.read(descriptions[0])

    def _load(self, saved: tuple[Any, ...]) -> TypedStorage:
        """Return a storage that the pickle refers to, without memory unless it is compressed."""
        kind, storage, key, _, numel = saved
        dtype = torch.uint8 if storage is UntypedStorage else storage.dtype
        size = numel * dtype.itemsize
        if kind != "storage" or self._member(key).file_size != size:
            raise _Refused(
                f"{self._file.path} is damaged: storage {key!r} does not have {size} bytes"
            )
        member = self._member(key)
        if key not in self._storages and size and member.compress_type != zipfile.ZIP_STORED:
            values = torch.frombuffer(bytearray(self._zip.read(member)), dtype=torch.uint8)
            self._storages[key] = values.untyped_storage()
        elif key not in self._storages:
            self._starts[key] = self._start(member)
            self._storages[key] = UntypedStorage(size, device="meta")
            self._keys[self._storages[key]._cdata] = key
        return TypedStorage(wrap_storage=self._storages[key], dtype=dtype, _internal=True)

    def _member(self, key: str) -> zipfile.ZipInfo:
        return self._members[f"{self._root}data/{key}"]

    def _start(self, member: zipfile.ZipInfo) -> int:
        """Return the offset in the file at which the bytes of a stored member start."""
        self._stream.seek(member.header_offset)
        magic, name, extra = _LOCAL.unpack(self._stream.read(_LOCAL.size))
        start: int = member.header_offset + _LOCAL.size + name + extra
        written = self._stream.read(name).decode("utf-8" if member.flag_bits & 0x800 else "cp437")
        whole = member.file_size in (0, member.compress_size)
        fits = whole and start + member.compress_size <= self._file.size
        if (magic, written) != (_MAGIC, member.orig_filename) or not fits:
            raise _Refused(f"{self._file.path} is damaged: {member.filename!r} is not in its place")
        return start

    def locate(self, tensor: Tensor) -> Entry:
        """Return the place of a tensor's values, or the tensor itself if it brought its own."""
        if not tensor.is_meta:
            return tensor.detach()
        key = self._keys.get(tensor.untyped_storage()._cdata)
        if key is None:
            return tensor
        shape, stride, size = tuple(tensor.shape), tensor.stride(), tensor.itemsize
        member, origin = self._member(key), self._starts[key]
        span = sum((n - 1) * step for n, step in zip(shape, stride, strict=True)) + 1
        start = int(tensor.storage_offset()) * size
        end = start + (span * size if tensor.numel() else 0)
        if end > member.file_size:
            raise _Refused(f"{self._file.path} is damaged: a tensor reaches beyond its storage")
        strides = None if tensor.is_contiguous() else stride
        return Place(self._file, tensor.dtype, shape, origin + start, origin + end, strides)


def _checked(
    file: InputFile,
    loaded: object,
    key: str | None,
    declared: int,
    archive: _Archive | None = None,
) -> dict[str, Entry]:
    """Return the chosen state dict of the content, if it needs no more bytes than declared."""
    path, chosen = file.path, _chosen(file.path, loaded, key)
    state: dict[str, Entry] = {}
    for key, tensor in chosen.items():
        state[key] = entry = tensor.detach() if archive is None else archive.locate(tensor)
        if isinstance(entry, Tensor) and entry.is_meta:
            raise _Refused(f"{path} is refused: {key!r} is on the meta device and has no values")
    if METADATA in state:
        raise _Refused(f"{path} is refused: {METADATA!r} cannot name a tensor in safetensors")
    sizes = {identity(state[key]): tensor.nbytes for key, tensor in chosen.items()}
    if sum(sizes.values()) > 2 * declared + _SLACK:
        raise _Refused(
            f"{path} is refused: its tensors would take {sum(sizes.values())} bytes and it holds "
            f"{declared}; save a .clone() of tensors that are expanded"
        )
    return state


def _chosen(path: Path, loaded: object, key: str | None) -> Mapping[str, Tensor]:
    """Return the only set of weights, or that of a name; a usual name comes before others."""
    sets = {"": loaded} if _is_state_dict(loaded) else _sets_of_weights(loaded)
    usual, others = ([n for n in sets if (n in _USUAL) == known] for known in (True, False))
    listed = ", ".join(repr(name) if name else "no name" for name in sets)
    if key is not None and key not in sets and sets:
        raise _Refused(f"{path} has no weights under {key!r}; it has weights under {listed}")
    if key is None and len(usual) == 1 and others:
        key = usual[0]
        warn(
            f"{path} holds several sets of weights: {key!r} is read, and "
            f"{', '.join(map(repr, others))} is not; to merge another set, pass {path}::{others[0]}"
        )
    if not sets or (key is None and len(sets) > 1):
        found = (
            f"{len(sets)} ({listed}): choose one, as in {path}::{next(iter(sets))}"
            if sets
            else "none"
        )
        raise _Refused(f"{path} is refused: expected one state dict of tensors, found {found}")
    return next(iter(sets.values())) if key is None else sets[key]


def _sets_of_weights(loaded: object, before: str = "") -> dict[str, Mapping[str, Tensor]]:
    """Return everything in a checkpoint that may be a model's weights, two levels deep, by name."""
    sets: dict[str, Mapping[str, Tensor]] = {}
    for name, part in loaded.items() if isinstance(loaded, Mapping) else ():
        if _is_state_dict(part):
            floats = (tensor for tensor in part.values() if tensor.is_floating_point())
            if (not before and name in _USUAL) or any(tensor.dim() > 1 for tensor in floats):
                sets[f"{before}{name}"] = part
        elif not before:
            sets |= _sets_of_weights(part, f"{name}.")
    return sets


def _is_state_dict(candidate: object) -> TypeGuard[Mapping[str, Tensor]]:
    return (
        isinstance(candidate, Mapping)
        and len(candidate) > 0
        and all(
            isinstance(key, str)
            and isinstance(tensor, Tensor)
            and tensor.layout == torch.strided
            and not (tensor.is_nested or tensor.is_quantized)
            for key, tensor in candidate.items()
        )
    )
