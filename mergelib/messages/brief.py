"""A short ``repr`` for large records, without tensors."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor, nn

LONGEST = 60  # characters of a plain value
SHOWN = 3  # names of a mapping
_PLAIN = (bool, int, float, str, type(None))


class Brief:
    """A dataclass with a one-line ``repr``; use it with ``@dataclass(repr=False)``."""

    def __repr__(self) -> str:
        fields = dataclasses.fields(self)  # type: ignore[arg-type]
        texts = (f"{field.name}={brief(getattr(self, field.name))}" for field in fields)
        return f"{type(self).__name__}({', '.join(texts)})"


def brief(value: Any) -> str:
    """Return a short text for a value: shapes, sizes and first names, but no tensors or tables."""
    if isinstance(value, Tensor):
        return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
    if isinstance(value, nn.Module):
        return f"{type(value).__name__}(…)"
    if isinstance(value, Mapping):
        return _mapping(value)
    if hasattr(value, "columns"):
        return f"table of {len(value)} × {len(value.columns)}"
    if isinstance(value, Brief):
        name = getattr(value, "name", None)
        return f"{type(value).__name__}({'…' if name is None else repr(name)})"
    if callable(value) and hasattr(value, "__name__"):
        return str(value.__name__)
    text = repr(value)
    if len(text) <= LONGEST:
        return text
    if isinstance(value, Sequence | set | frozenset) and not isinstance(value, str | bytes):
        return f"{type(value).__name__} of {len(value)}"
    return f"{text[: LONGEST - 1]}…"


def _mapping(value: Mapping[Any, Any]) -> str:
    value = getattr(value, "layout", value)  # of a checkpoint, so that no tensor is read
    if value and all(isinstance(part, Tensor) for part in value.values()):
        size = sum(part.nbytes for part in value.values())
        return f"<{len(value)} tensors, {as_bytes(size)}>"
    text = repr(value) if all(isinstance(v, _PLAIN) for v in value.values()) else ""
    if not value or 0 < len(text) <= LONGEST:
        return text or "{}"
    names = [str(name) for name in value][:SHOWN]
    return f"<{len(value)}: {', '.join(names)}{', …' if len(value) > SHOWN else ''}>"


def as_bytes(size: float) -> str:
    """Return a size in words, such as 1.5 GB."""
    for unit in ("B", "kB", "MB"):
        if size < 1000:
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:.3g} GB"
