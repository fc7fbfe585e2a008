"""What a merge makes of each tensor, and why."""

import re
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from torch import Tensor

from mergelib.merging import Source
from mergelib.parts import Parts
from mergelib.statedict import FLOATS, StateDict, is_statistic, layout_of

if TYPE_CHECKING:
    import pandas as pd

T = TypeVar("T")


def attempt(check: Callable[[], T], refusals: list[ValueError]) -> T | None:
    """Return a check's result; None if it refuses, which is recorded."""
    try:
        return check()
    except ValueError as error:
        refusals.append(error)
        return None


class Row(NamedTuple):
    """What becomes of a tensor, and why."""

    key: str
    fate: str
    reason: str
    size: int


def fates_of(models: Mapping[str, StateDict], parts: Parts, source: Source | None) -> list[Row]:
    """Return what becomes of every tensor: as in the source, or else where a merge would stop."""
    layouts = {name: layout_of(model) for name, model in models.items()}
    reference = next(iter(layouts.values()))
    every = dict.fromkeys(chain(*layouts.values()))
    selected = attempt(lambda: parts.selected(every), []) or set(every)
    rows = []
    for key in every:
        held = {name: layout[key] for name, layout in layouts.items() if key in layout}
        tensor = next(iter(held.values()))
        reason, fits = _compared(key, held, len(layouts))
        if key not in selected:
            reason = "not selected"
        if source is not None:
            fate = "merged" if key in source.selection.merged else "copied"
            fate = fate if key in source.selection.keys else "left out"
        elif key in selected:
            fate = "merged" if fits else "refused"
        else:
            fate = "copied" if key in reference else "left out"
        if source is not None and key in source.selection.owners:
            fate = "averaged"
        elif fate == "merged" and not tensor.is_floating_point():
            fate, reason = "copied", "integers"
        elif fate == "merged" and is_statistic(key):
            fate, reason = "averaged", "running statistics"
        rows.append(Row(key, fate, reason, tensor.nbytes))
    return rows


def _compared(key: str, held: Mapping[str, Tensor], count: int) -> tuple[str, bool]:
    """Return how a tensor differs between the models that hold it, and whether it may merge."""
    if len(held) < count:
        return f"only in {', '.join(held)}", False
    shapes, dtypes = defaultdict(list), defaultdict(list)
    for name, tensor in held.items():
        shapes[str(list(tensor.shape))].append(name)
        dtypes[tensor.dtype].append(name)
    if len(shapes) > 1:
        return _told("shape", shapes), False
    names = {str(dtype).removeprefix("torch."): models for dtype, models in dtypes.items()}
    return _told("dtype", names) if len(dtypes) > 1 else "weights", len(
        dtypes
    ) < 2 or dtypes.keys() <= FLOATS


def _told(what: str, models: Mapping[str, Sequence[str]]) -> str:
    return f"{what} " + "; ".join(f"{value} in {', '.join(n)}" for value, n in models.items())


def patterns_of(rows: Sequence[Row]) -> list[str]:
    """Return patterns of all refused keys and no others, as short as they can be."""
    fine = {part for row in rows if row.fate != "refused" for part in _parents(row.key)}
    patterns: dict[str, None] = {}
    for row in rows:
        if row.fate == "refused":
            parent = next((parent for parent in _parents(row.key) if parent not in fine), None)
            patterns[row.key if parent is None else f"{parent}.*"] = None
    return list(patterns)


def _parents(key: str) -> list[str]:
    """Return the modules that a key is in, the outermost first."""
    return [key[: match.start()] for match in re.finditer(r"\.", key)]


def table_of(rows: Sequence[Row]) -> "pd.DataFrame":
    """Return a row for each fate and reason."""
    import pandas as pd

    groups: dict[tuple[str, str], list[Row]] = defaultdict(list)
    for row in rows:
        groups[row.fate, row.reason].append(row)
    return pd.DataFrame(
        [
            {
                "fate": fate,
                "reason": reason,
                "tensors": len(group),
                "bytes": sum(row.size for row in group),
                "first key": group[0].key,
            }
            for (fate, reason), group in sorted(groups.items())
        ]
    )
