"""Tables of sources, one file ``sources/NAME.toml`` each."""

import tomllib
from collections.abc import Callable
from importlib import resources
from typing import TypeVar

Record = TypeVar("Record")


def records(name: str, kind: Callable[..., Record]) -> dict[str, Record]:
    """A record of every entry of a table, in its order; lists become tuples."""
    file = resources.files("mergebook.suites.data") / "sources" / f"{name}.toml"
    return {
        key: kind(**{k: tuple(v) if isinstance(v, list) else v for k, v in entry.items()})
        for key, entry in tomllib.loads(file.read_text(encoding="utf-8")).items()
    }
