"""Refuse values that do not fit an annotation, which is described in words."""

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from numbers import Integral
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from mergelib.messages.brief import brief

# Numbers in a range: the type, the range in words, and whether a number of the type lies in it.
Share = Annotated[float, "0..1", lambda x: 0 <= x <= 1]
BelowOne = Annotated[float, "at least 0 and below 1", lambda x: 0 <= x < 1]
NotNegative = Annotated[float, "at least 0", lambda x: x >= 0]
Positive = Annotated[float, "a positive number", lambda x: x > 0]
Count = Annotated[int, "an integer of at least 0", lambda n: n >= 0]
Size = Annotated[int, "an integer of at least 1", lambda n: n >= 1]
Density = Annotated[float, "above 0 and at most 1", lambda x: 0 < x <= 1]
T = TypeVar("T")
PerExpert = Union[T, Sequence[T]]  # noqa: UP007  # one value for all experts, or one for each


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
        annotations = get_type_hints(function, include_extras=True)
    except NameError:  # of a name that is only known where the function was written
        annotations = {}
    numbers = {
        name: float
        for name, parameter in inspect.signature(function).parameters.items()
        if isinstance(parameter.default, float)
    }
    return {**numbers, **annotations}


def check_fits(annotations: Mapping[str, Any], values: Mapping[str, Any]) -> None:
    """Raise ``ValueError`` for the first value that does not fit its annotation."""
    for name, value in values.items():
        words, fits = described(annotations.get(name, Any))
        if not fits(value):
            raise ValueError(f"{name} is {brief(value)}, expected {words}")


def described(kind: Any) -> tuple[str, Callable[[Any], bool]]:
    """Return an annotation in words, and whether a value fits it.

    Methods check lengths themselves, with messages of their own.
    """
    origin, inner = get_origin(kind), get_args(kind)
    if kind is None or (isinstance(kind, type) and kind in _SIMPLE):
        return _SIMPLE[kind]
    if origin is Annotated:
        words, fits = described(inner[0])
        if len(inner) != 3 or not callable(inner[2]):  # what others annotate
            return words, fits
        return inner[1], lambda value: fits(value) and inner[2](value)
    if origin in (Union, UnionType):
        parts = [described(part) for part in inner]
        own = kind_per_expert(kind)
        words = " or ".join(
            f"{words} (or one per expert)" if part == own else words
            for part, (words, _) in zip(inner, parts, strict=True)
            if get_origin(part) is not Sequence or get_args(part) != (own,)
        )
        return words, lambda value: any(fits(value) for _, fits in parts)
    if origin is Literal:
        words = " or ".join(map(repr, inner))
        return words, lambda value: isinstance(value, str) and value in inner
    if origin is Callable:
        return "a function", callable
    if origin is Mapping:
        words, fits = described(inner[1])
        return (
            f"a mapping of names, each to {words}",
            lambda value: isinstance(value, Mapping) and all(map(fits, value.values())),
        )
    if origin is Sequence:
        words, fits = described(inner[0])
        if inner[0] is str:
            words, fits = "a text", lambda value: isinstance(value, str)
        return f"a list (each {words})", lambda value: is_list(value) and all(map(fits, value))
    return getattr(kind, "__name__", str(kind)), lambda value: True


def kind_per_expert(kind: Any) -> Any:
    """Return X of an annotation ``PerExpert[X]``, also beside None; None for another."""
    parts = get_args(kind) if get_origin(kind) in (Union, UnionType) else ()
    lists = [get_args(part)[0] for part in parts if get_origin(part) is Sequence]
    return next((part for part in lists if part in parts), None)


def is_list(value: Any) -> bool:
    """Whether a value is a list, a tuple, or an array or tensor with dimensions."""
    if isinstance(value, str | bytes | Mapping) or not getattr(value, "ndim", 1):
        return False
    return hasattr(value, "__len__") and hasattr(value, "__getitem__")


_SIMPLE: dict[Any, tuple[str, Callable[[Any], bool]]] = {
    None: ("None", lambda value: value is None),
    NoneType: ("None", lambda value: value is None),
    float: ("a finite number", lambda x: is_finite_number(x) and not isinstance(x, bool)),
    int: ("an integer", lambda n: isinstance(n, Integral) and not isinstance(n, bool)),
    bool: ("True or False", lambda value: isinstance(value, int) and value in (0, 1)),
    str: ("a text", lambda value: True),
}
