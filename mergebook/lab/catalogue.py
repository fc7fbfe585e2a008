"""All studies by name (imported here) and all results: which study made each."""

import importlib
import pkgutil
import tomllib
from importlib import resources
from typing import Any

from mergebook import PAPERS
from mergebook.lab.measuring import Measurement
from mergebook.lab.runner import REGISTERED, Study

for _paper in PAPERS:
    _room = importlib.import_module(f"mergebook.{_paper}.measure")
    for _module in pkgutil.iter_modules(getattr(_room, "__path__", ())):
        importlib.import_module(f"{_room.__name__}.{_module.name}")


def get_study(name: str) -> Study:
    """The study of that name; ValueError names those that there are."""
    if name not in REGISTERED:
        raise ValueError(f"unknown study {name!r}; known: {', '.join(sorted(REGISTERED))}")
    return REGISTERED[name]


def entries() -> dict[str, dict[str, Any]]:
    """How each result is made, by its name; an entry with ``like`` takes another's as its own."""
    text = (resources.files("mergebook") / "results.toml").read_text(encoding="utf-8")
    tables = tomllib.loads(text)
    for name, table in tables.items():
        while "like" in table:
            other = tables[table.pop("like")]
            settings = {**other.get("settings", {}), **table.get("settings", {})}
            table = tables[name] = {**other, **table, "settings": settings}
    return tables


def planned(name: str, suite: str | None = None) -> Measurement:
    """How a result is measured, by its entry; or, by the name of a study, five seeds of it."""
    table = entries().get(name)
    if table is None:
        if name not in REGISTERED:
            where = "no result of mergebook/results.toml, and no study"
            raise ValueError(f"{name!r} is {where}: {', '.join(sorted(REGISTERED))}")
        if suite is None:
            raise ValueError(f"{name!r} is a study: name the suite to measure it on, with --suite")
        return Measurement(get_study(name), suite, range(5))
    if "command" in table:
        raise ValueError(f"{name} is not a study's: it is made by {table['command']}")
    first = table.get("first", 0)
    return Measurement(
        get_study(table["study"]),
        suite or table["suite"],
        range(first, first + table["seeds"]),
        model=table.get("model"),
        options={name: table[name] for name in ("tasks", "profile") if name in table},
        settings=table.get("settings", {}),
        points=table.get("points", [{}]),
    )
