"""Hyperparameters that differ between experts, keys and layers.

A number holds for every expert and key. A list always has one value per expert, so it never means
layers. A mapping has one value per pattern of keys, e.g. ``{"*mlp*": 0.5, "*": 0.3}``: the first
pattern that matches decides. Its name ``"over_layers"`` stands for all keys in numbered layers and
has a list of numbers from the first layer to the last, between which it interpolates. Values of
mappings may be lists or mappings, and those of lists mappings. All of it is JSON, so the same text
works in Python, on the command line and in the header of a merged file.
"""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from fnmatch import fnmatchcase
from typing import Any

from mergelib.messages.brief import brief
from mergelib.messages.kinds import (
    T,
    described,
    is_finite_number,
    is_list,
    kind_per_expert,
)

LAYERS = "over_layers"
NUMBERED = re.compile(r"((?:[^.]+\.)*?)(\d+)(?:\.|$)")  # a list of modules, and a layer's number


def per_expert(name: str, value: T | Sequence[T], count: int) -> list[T]:
    """Return the value of every expert; ValueError for a list of another length."""
    plain: Any = value.tolist() if hasattr(value, "tolist") else value
    values: list[T] = [*plain] if is_list(plain) else [plain] * count
    if len(values) != count:
        raise ValueError(f"{name} has {len(values)} entries, expected {count}, one per expert")
    return values


def normalised(name: str, factors: Sequence[float]) -> list[float]:
    """Return the factors divided by their sum; ValueError if it is 0."""
    total = math.fsum(factors)
    if abs(total) < 1e-8:
        raise ValueError(f"{name} is {[*factors]}, whose sum 0 cannot be normalised to 1")
    return [factor / total for factor in factors]


def check_settings(kinds: Mapping[str, Any], values: Mapping[str, Any]) -> None:
    """Raise ``ValueError`` for the first value, in lists and mappings too, that does not fit."""
    for name, value in values.items():
        _check(name, value, kinds.get(name, Any))


def _check(path: str, value: Any, kind: Any) -> None:
    words, fits = described(kind)
    if fits(value):
        return
    own = kind_per_expert(kind)
    if isinstance(value, Mapping) and value:
        for pattern, inner in value.items():
            where = f"{path}[{pattern!r}]"
            if pattern == LAYERS:
                _check_layers(where, inner, kind)
            else:
                _check(where, inner, kind)
    elif is_list(value) and own is not None:
        for i, inner in enumerate(value):
            _check(f"{path}[{i}]", inner, own)
    else:
        same = ", the same for all experts" if is_list(value) else ""
        raise ValueError(f"{path} is {brief(value)}, expected {words}{same}")


def _check_layers(path: str, values: Any, kind: Any) -> None:
    if not is_list(values) or len(values) < 2:
        raise ValueError(
            f"{path} is {brief(values)}, expected a list of two numbers or more, from the first "
            "layer to the last"
        )
    for i, value in enumerate(values):
        if not is_finite_number(value):
            raise ValueError(f"{path}[{i}] is {brief(value)}, expected a finite number")
        _check(f"{path}[{i}]", value, kind)


def settings_at(
    kinds: Mapping[str, Any],
    values: Mapping[str, Any],
    keys: Sequence[str],
    model: Iterable[str],
    count: int,
) -> dict[str, dict[str, Any]]:
    """Return the hyperparameters of every key that is merged.

    Args:
        kinds: annotations of the hyperparameters.
        values: the hyperparameters, as `check_settings` accepts them.
        keys: the keys that are merged, in order.
        model: all keys of the model, among which layers are numbered.
        count: T, the number of experts.

    Raises:
        ValueError: for a list that does not have T values, a pattern that decides for no key, or a
            key that no pattern matches.
    """
    places = depths(model)

    def matches(pattern: str, key: str) -> bool:
        return key in places if pattern == LAYERS else fnmatchcase(key, pattern)

    def at_keys(path: str, value: Any, kind: Any, keys: Sequence[str]) -> dict[str, Any]:
        own = kind_per_expert(kind)
        if own is not None and is_list(value):
            parts = per_expert(path, value, count)
            columns = [at_keys(f"{path}[{i}]", part, own, keys) for i, part in enumerate(parts)]
            return {key: [column[key] for column in columns] for key in keys}
        if not isinstance(value, Mapping) or described(kind)[1](value) or not keys:
            return dict.fromkeys(keys, value)
        result: dict[str, Any] = {}
        rest = keys
        for pattern, inner in value.items():
            where, decided = f"{path}[{pattern!r}]", [key for key in rest if matches(pattern, key)]
            if not decided and any(matches(pattern, key) for key in keys):
                raise ValueError(
                    f"{where} is never used, because earlier patterns match all of its keys: put "
                    "it before them"
                )
            if not decided:
                hint = nearest(pattern, keys) if pattern != LAYERS else ""
                raise ValueError(f"{where} matches none of the merged keys{hint}")
            if pattern == LAYERS:
                result |= {key: _interpolated(inner, places[key]) for key in decided}
            else:
                result |= at_keys(where, inner, kind, decided)
            rest = [key for key in rest if key not in result]
        if rest:
            number = ", whose name has no layer number" if LAYERS in value else ""
            raise ValueError(
                f"no pattern of {path} matches {rest[0]!r}{number}: add '*' with the value of the "
                "others"
            )
        return result

    columns = {name: at_keys(name, values[name], kinds.get(name, Any), keys) for name in values}
    return {key: {name: column[key] for name, column in columns.items()} for key in keys}


def nearest(pattern: str, keys: Sequence[str]) -> str:
    """Return the end of a message about a pattern that matches no key."""
    near = get_close_matches(pattern, keys, n=1, cutoff=0.0)
    return f"; the nearest is {near[0]!r}" if near else ""


def depths(keys: Iterable[str]) -> dict[str, float]:
    """Return where the keys of numbered layers lie, from 0 in the first layer to 1 in the last.

    A layer's number is the first whole number between the dots of a key. What stands before it
    names the list of layers, whose last layer has the largest number. A single layer is the last.
    """
    places = {key: (match[1], int(match[2])) for key in keys if (match := NUMBERED.match(key))}
    last: dict[str, int] = {}
    for layers, number in places.values():
        last[layers] = max(number, last.get(layers, 0))
    return {key: n / last[layers] if last[layers] else 1.0 for key, (layers, n) in places.items()}


def _interpolated(values: Sequence[float], depth: float) -> float:
    """Return the value at a depth of 0..1 on the straight lines between the values."""
    part, low = math.modf(depth * (len(values) - 1))
    first, *others = values[int(low) :]
    return first + part * (others[0] - first) if part else first
