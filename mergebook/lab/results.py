"""Result files: JSON that holds tables by column, so that they say more in less.

A record in memory is ``provenance`` and tables, lists of rows. In a file a column is::

    {"values": ["average", "cart"], "codes": [0, 0, 1, 1]}

or, where that is shorter, the list of its values; ``codes`` null: one value in all rows. Where rows
differ in keys or their order, ``layouts`` lists the kinds, ``layout`` has each row's, and ``null``
fills the rest. Reading gives back what was written, to the last bit and every number's type.
"""

import json
import os
from collections.abc import Mapping, Sequence
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

import pandas as pd

from mergelib.io import staged

Rows = list[dict[str, Any]]
Tables = dict[str, Rows]

_COMPACT = (",", ":")


class MissingResult(ValueError):
    """No result of that name has been measured."""


def write_result(path: Path, record: Mapping[str, Any]) -> None:
    """Write a record, whole or not at all; ValueError for NaN, or a part named ``tables``."""
    if "tables" in record:
        raise ValueError("a record's tables are its parts: none may be named 'tables'")
    tables = {name: encode(part) for name, part in record.items() if _is_table(part)}
    rest = {name: part for name, part in record.items() if not _is_table(part)}
    text = _written({**rest, "tables": tables}, depth=4) + "\n"
    with staged(path) as file, open(file, "w", encoding="utf-8") as stream:
        stream.write(text)
        stream.flush()
        os.fsync(stream.fileno())  # on the disk before it takes its name


def read_result(path: Traversable) -> dict[str, Any]:
    """The record in a file, its tables as rows; ValueError names a file that is damaged."""
    try:
        content: dict[str, Any] = json.loads(path.read_bytes())
        if "tables" not in content:
            raise ValueError("it has no tables")
        tables = content.pop("tables")
        return content | {name: decode(table) for name, table in tables.items()}
    except (ValueError, KeyError, IndexError, TypeError, AttributeError) as error:
        reason = f"no {error}" if isinstance(error, KeyError) else str(error)
        raise ValueError(f"{path} is damaged, or no result: {reason}") from None


def load_result(name: str) -> dict[str, Any]:
    """A record that ships with the package, from ``results/NAME.json``, or MissingResult."""
    package = resources.files("mergebook")
    shipped = package / "results"  # in the package, or beside it where it runs from a checkout
    folder = shipped if shipped.is_dir() else package / ".." / "results"
    file = folder / f"{name}.json"
    if not file.is_file():
        files = folder.iterdir() if folder.is_dir() else ()
        known = sorted(f.name.removesuffix(".json") for f in files if f.name.endswith(".json"))
        raise MissingResult(f"no result {name!r}; there are: {', '.join(known) or 'none'}")
    return read_result(file)


def load_table(name: str, part: str = "test") -> pd.DataFrame:
    """One table of such a record, e.g. its ``"test"`` rows; ValueError if it has no such one."""
    record = load_result(name)
    if not _is_table(record.get(part)):
        parts = ", ".join(key for key, value in record.items() if _is_table(value))
        raise ValueError(f"result {name!r} has no table {part!r}; it has: {parts or 'none'}")
    return pd.DataFrame(record[part])


def encode(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """A table by columns, as the module describes it."""
    names = dict.fromkeys(name for row in rows for name in row)
    table: dict[str, Any] = {"rows": len(rows)}
    layouts = dict.fromkeys(tuple(row) for row in rows)
    if len(layouts) > 1:
        numbers = {layout: number for number, layout in enumerate(layouts)}
        table["layouts"] = [list(layout) for layout in layouts]
        table["layout"] = [numbers[tuple(row)] for row in rows]
    table["columns"] = {name: _encode_column([row.get(name) for row in rows]) for name in names}
    return table


def decode(table: Mapping[str, Any]) -> Rows:
    """The rows of a table by columns."""
    count = table["rows"]
    columns = {name: _decode_column(part, count) for name, part in table["columns"].items()}
    layouts = table.get("layouts", [list(columns)])
    kinds = table.get("layout", [0] * count)
    return [{name: columns[name][i] for name in layouts[kind]} for i, kind in enumerate(kinds)]


def _encode_column(values: list[Any]) -> Any:
    written = [json.dumps(value, allow_nan=False) for value in values]  # tells 1 from 1.0 and True
    distinct = dict(zip(written, values, strict=True))
    codes = {text: code for code, text in enumerate(distinct)}
    coded = {
        "values": list(distinct.values()),
        "codes": [codes[text] for text in written] if len(codes) > 1 else None,
    }
    plain = sum(map(len, written)) + len(values)
    return coded if len(json.dumps(coded, separators=_COMPACT)) < plain else values


def _decode_column(part: Any, count: int) -> list[Any]:
    column: list[Any] = part
    if not isinstance(part, list):
        values, codes = part["values"], part["codes"]
        column = values * count if codes is None else [values[code] for code in codes]
    if len(column) != count:
        raise ValueError(f"a column of {len(column)} in a table of {count} rows")
    return column


def _is_table(part: Any) -> bool:
    return isinstance(part, list) and all(isinstance(row, dict) for row in part)


def _written(value: Any, depth: int, indent: int = 0) -> str:
    """JSON with a line for each entry of the outer dictionaries, compact inside."""
    if not depth or not isinstance(value, dict) or not value:
        return json.dumps(value, allow_nan=False, separators=_COMPACT)
    gap = " " * (indent + 1)
    entries = [
        f"{gap}{json.dumps(name)}: {_written(part, depth - 1, indent + 1)}"
        for name, part in value.items()
    ]
    return "{\n" + ",\n".join(entries) + "\n" + " " * indent + "}"
