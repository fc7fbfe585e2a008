"""Records of one study put together: what they share is said once, what differs by seed."""

from collections.abc import Mapping, Sequence
from typing import Any

from mergebook.lab.results import Tables

ASKED = ("study", "suite", "model", "recipe", "settings", "points", "code")


def join(records: Sequence[Mapping[str, Any]], *, any_code: bool = False) -> dict[str, Any]:
    """One record from those of one study with different seeds, e.g. of several machines.

    Args:
        records: as of `measure_study`, or `read_result`.
        any_code: join records whose code differs, too, and tell it by seed. Whoever says so has
            seen that the difference does not touch the numbers.

    Returns:
        What `measure_study` would have returned for all seeds; ``command`` lists the commands.

    Raises:
        ValueError: no record, a seed that two records have, or records of something else: another
            study, suite, model, recipe, setting or code.
    """
    if not records:
        raise ValueError("no records to join")
    asked = [name for name in ASKED if not (any_code and name == "code")]
    origins = [record["provenance"] for record in records]
    for origin in origins[1:]:
        for name in asked:
            if origin.get(name) != origins[0].get(name):
                values = f"{origins[0].get(name)} and {origin.get(name)}"
                raise ValueError(f"records differ in {name}, they can't be joined: {values}")
    seeds = [seed for origin in origins for seed in origin["seeds"]]
    for seed in seeds:
        if seeds.count(seed) > 1:
            raise ValueError(f"two records have seed {seed}")
    told = {*asked, "seeds", "command"}
    made = {
        str(seed): {
            name: value[str(seed)] if _is_by_seed(value, origin["seeds"]) else value
            for name, value in origin.items()
            if name not in told
        }
        for origin in origins
        for seed in origin["seeds"]
    }
    common = {name: origins[0][name] for name in asked if name in origins[0]}
    common |= {"seeds": seeds, "command": [origin["command"] for origin in origins]}
    return {"provenance": {**common, **said_once(made)}, **stacked(records)}


def _is_by_seed(value: Any, seeds: Sequence[int]) -> bool:
    return isinstance(value, dict) and [*value] == [str(seed) for seed in seeds]


def said_once(made: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """What stands behind each seed, once where it is the same for all, else by seed."""
    first = next(iter(made.values()))
    common = {}
    for name in first:
        values = {seed: part[name] for seed, part in made.items()}
        same = all(value == first[name] for value in values.values())
        common[name] = first[name] if same and name not in ("sources", "zoo") else values
    return common


def stacked(records: Sequence[Mapping[str, Any]]) -> Tables:
    """The tables of all records, one below the other."""
    tables: Tables = {}
    for record in records:
        for name, rows in record.items():
            if name != "provenance":
                tables.setdefault(name, []).extend(rows)
    return tables
