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
_NUMBERED = re.compile(r"((?:[^.]+\.)*?)(\d+)(?:\.|$)")  # a list of modules, and a layer's number


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


class Settings:
    """The hyperparameters of a merge, at every key that it merges.

    Args:
        values: hyperparameters by name.
        kinds: their annotations.
        keys: the keys that are merged, in order.
        model: all keys of the model, among which layers are numbered.
        count: T, the number of experts.

    Raises:
        ValueError: for a list that does not have T values, a pattern that decides for no key, or a
            key that no pattern matches.
    """

    def __init__(
        self,
        values: Mapping[str, Any],
        kinds: Mapping[str, Any],
        keys: Sequence[str],
        model: Iterable[str],
        count: int,
    ) -> None:
        self._kinds, self._keys, self._count = kinds, keys, count
        self._depths, self._used = depths(model), set[str]()
        fixed, varying = dict(values), {}
        for name, value in values.items():
            if not described(kinds.get(name, Any))[1](value):
                varying[name] = fixed.pop(name)
            elif kind_per_expert(kinds.get(name)) and is_list(value):
                fixed[name] = per_expert(name, value, count)
        self.at = dict.fromkeys(keys, fixed)
        if varying:
            for key in keys:
                own = {name: self._value(name, value, key) for name, value in varying.items()}
                self.at[key] = {**fixed, **own}
        if keys:
            for name, value in varying.items():
                self._check_used(name, value)

    def _value(self, path: str, value: Any, key: str) -> Any:
        """Return a value at one key."""
        if is_list(value):
            own = [self._value(f"{path}[{i}]", inner, key) for i, inner in enumerate(value)]
            return per_expert(path, own, self._count)
        if not isinstance(value, Mapping):
            return value
        for pattern, inner in value.items():
            where = f"{path}[{pattern!r}]"
            if self._matches(key, pattern):
                self._used.add(where)
                if pattern == LAYERS:
                    return _interpolated(inner, self._depths[key])
                return self._value(where, inner, key)
        number = ", whose name has no layer number" if LAYERS in value else ""
        raise ValueError(
            f"no pattern of {path} matches {key!r}{number}: add '*' with the value of the others"
        )

    def _matches(self, key: str, pattern: str) -> bool:
        return key in self._depths if pattern == LAYERS else fnmatchcase(key, pattern)

    def _check_used(self, path: str, value: Any) -> None:
        """Raise ``ValueError`` for the first pattern that decides for no key."""
        if is_list(value):
            for i, inner in enumerate(value):
                self._check_used(f"{path}[{i}]", inner)
        elif isinstance(value, Mapping):
            for pattern, inner in value.items():
                where = f"{path}[{pattern!r}]"
                if where not in self._used:
                    if any(self._matches(key, pattern) for key in self._keys):
                        raise ValueError(
                            f"{where} is never used, because earlier patterns match all of its "
                            "keys: put it before them"
                        )
                    hint = nearest(pattern, self._keys) if pattern != LAYERS else ""
                    raise ValueError(f"{where} matches none of the merged keys{hint}")
                if pattern != LAYERS:
                    self._check_used(where, inner)


def nearest(pattern: str, keys: Sequence[str]) -> str:
    """Return the end of a message about a pattern that matches no key."""
    near = get_close_matches(pattern, keys, n=1, cutoff=0.0)
    return f"; the nearest is {near[0]!r}" if near else ""


def depths(keys: Iterable[str]) -> dict[str, float]:
    """Return where the keys of numbered layers lie, from 0 in the first layer to 1 in the last.

    A layer's number is the first whole number between the dots of a key. What stands before it
    names the list of layers, whose last layer has the largest number. A single layer is the last.
    """
    places = {key: (match[1], int(match[2])) for key in keys if (match := _NUMBERED.match(key))}
    last: dict[str, int] = {}
    for layers, number in places.values():
        last[layers] = max(number, last.get(layers, 0))
    return {key: n / last[layers] if last[layers] else 1.0 for key, (layers, n) in places.items()}


def _interpolated(values: Sequence[float], depth: float) -> float:
    """Return the value at a depth of 0..1 on the straight lines between the values."""
    place = depth * (len(values) - 1)
    low = int(place)
    if place == low:
        return values[low]
    return values[low] + (place - low) * (values[low + 1] - values[low])
