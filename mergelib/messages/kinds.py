"""Check whether a value fits an annotation, and describe the annotation in words."""

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from numbers import Integral
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints


def is_finite_number(value: object) -> bool:
    """Whether a value is a number that is neither NaN nor infinite."""
    try:
        return math.isfinite(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, RuntimeError):  # the latter of tensors of several entries
        return False


def annotations_of(function: Callable[..., Any]) -> dict[str, Any]:
    """Return the annotations of a function's or dataclass's parameters, without unresolvable ones.

    A parameter without annotation counts as a number if its default is one.
    """
    try:
        annotations = get_type_hints(function)
    except NameError:  # of a name that is only known where the function was written
        annotations = {}
    numbers = {
        name: float
        for name, parameter in inspect.signature(function).parameters.items()
        if isinstance(parameter.default, float)
    }
    return {**numbers, **annotations}


def fits(kind: Any, value: Any) -> bool:
    """Whether a value fits an annotation; any text fits a ``Literal``.

    Methods check choices, lengths and ranges themselves, with messages of their own.
    """
    origin, inner = get_origin(kind), get_args(kind)
    if kind in (None, NoneType):
        return value is None
    if kind is float:
        return is_finite_number(value) and not isinstance(value, bool)
    if kind is int:
        return isinstance(value, Integral) and not isinstance(value, bool)
    if kind is bool:
        return isinstance(value, int) and value in (0, 1)
    if origin in (Union, UnionType):
        return any(fits(part, value) for part in inner)
    if origin is Literal:
        return isinstance(value, str)
    if origin is Mapping:
        return isinstance(value, Mapping) and all(fits(inner[1], part) for part in value.values())
    if origin is Sequence:
        listed = hasattr(value, "__len__") and hasattr(value, "__getitem__")
        if not listed or isinstance(value, str | bytes | Mapping) or not getattr(value, "ndim", 1):
            return False
        return inner[0] is not str or all(isinstance(part, str) for part in value)
    return True


def in_words(kind: Any) -> str:
    """Describe an annotation in words."""
    origin, inner = get_origin(kind), get_args(kind)
    simple = {float: "a finite number", int: "an integer", bool: "True or False", str: "a text"}
    if kind in (None, NoneType):
        return "None"
    if kind in simple:
        return simple[kind]
    if origin in (Union, UnionType):
        return " or ".join(map(in_words, inner))
    if origin is Literal:
        return " or ".join(map(repr, inner))
    if origin is Sequence:
        return "a list of texts" if inner[0] is str else "a list of numbers"
    if origin is Mapping:
        return f"a mapping of names, each to {in_words(inner[1])}"
    return getattr(kind, "__name__", str(kind))
