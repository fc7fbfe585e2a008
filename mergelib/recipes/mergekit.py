"""mergekit's methods and parameters in the words of this library."""

import copy
from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

from mergelib.messages.kinds import is_list
from mergelib.settings import LAYERS, depths
from mergelib.statedict import StateDict

# What mergekit's files may say besides, without a meaning here.
WITHOUT_EFFECT = ("int8_mask", "eps")
BASELESS = ("average", "linear", "slerp", "karcher", "passthrough")  # a base is one of the models

Fault = Callable[..., ValueError]  # of a text and a line, by default the merge's first
Translation = Callable[[dict[str, Any], Fault], tuple[str, dict[str, Any]]]


class PerModel(list[Any]):
    """A parameter that each model has for itself; a plain list is a gradient over layers."""


def _summed(method: str, *, elect: bool = False, mean: bool = False, **usual: Any) -> Translation:
    """A sum of task vectors that a method prunes; of what an election finds to agree in them."""
    rescaled = method in ("dare", "della")

    def translate(values: dict[str, Any], fault: Fault) -> tuple[str, dict[str, Any]]:
        factor, divided = values.pop("lambda", 1.0), values.pop("normalize", mean)
        weights = _required("weight", values, fault)
        if (rescale := values.pop("rescale", rescaled)) is not rescaled:
            raise fault(f"rescale is {rescale}, expected {rescaled} for this method")
        if method == "breadcrumbs":  # whose usual density is another one in mergekit
            values["density"] = _required("density", values, fault)
        values = {**usual, **values}
        if rescaled:
            values["drop_rate"] = _mapped(values.pop("density", 1.0), lambda share: 1 - share)
        if method == "della":  # whose epsilon is the whole width here
            values["epsilon"] = _mapped(values.pop("epsilon", 0.15), lambda half: 2 * half)
        if elect:
            reduce = "mean" if divided else "sum"
            return method, {"scale": factor, "weights": weights, "reduce": reduce, **values}
        if divided:
            if factor != 1 or method != "task_arithmetic":
                raise fault("normalize is supported for task_arithmetic with lambda 1 alone")
            values["normalise"] = True
        return method, {"scale": _mapped(weights, lambda weight: factor * weight), **values}

    return translate


def _nuslerp(values: dict[str, Any], fault: Fault) -> tuple[str, dict[str, Any]]:
    weights = _required("weight", values, fault)
    along = "tensor" if values.pop("nuslerp_flatten", True) else "rows"
    if values.pop("nuslerp_row_wise", False) and along == "rows":
        raise fault("nuslerp_row_wise, which means columns, is not supported")
    return "nuslerp", {"weights": weights, "along": along, **values}


def _renamed(method: str, usual: Mapping[str, Any] | None = None, **names: str) -> Translation:
    """A method whose parameters have these or the same names here."""

    def translate(values: dict[str, Any], fault: Fault) -> tuple[str, dict[str, Any]]:
        if "weight" in names:
            values["weight"] = _required("weight", values, fault)
        own = {names.get(name, name): value for name, value in values.items()}
        return method, {**(usual or {}), **own}

    return translate


TRANSLATED: dict[str, Translation] = {
    "linear": _renamed("average", {"normalise": True}, weight="weights", normalize="normalise"),
    "task_arithmetic": _summed("task_arithmetic"),
    "ties": _summed("ties", elect=True, mean=True, density=1.0, trim="tensor"),
    "dare_linear": _summed("dare"),
    "dare_ties": _summed("dare", elect=True, combine="ties"),
    "breadcrumbs": _summed("breadcrumbs"),
    "breadcrumbs_ties": _summed("breadcrumbs", elect=True, combine="ties"),
    "della": _summed("della", elect=True, mean=True),
    "della_linear": _summed("della", combine="task_arithmetic"),
    "slerp": _renamed("slerp"),
    "nuslerp": _nuslerp,
    "multislerp": _renamed(
        "karcher", {"steps": 0}, weight="weights", normalize_weights="normalise"
    ),
    "karcher": _renamed("karcher", max_iter="steps", tol="tolerance"),
    "sce": _renamed("sce", select_topk="density"),
    "ram": _renamed("ram"),
    "ramplus_tl": _renamed("ram", {"r": 0.1}),
    "arcee_fusion": _renamed("arcee_fusion"),
    "nearswap": _renamed("nearswap"),
    "model_stock": _renamed("model_stock"),
    "passthrough": _renamed("average", scale="weights"),
}


def _required(name: str, values: dict[str, Any], fault: Fault) -> Any:
    if name not in values:
        raise fault(f"no model has a {name} among its parameters")
    return values.pop(name)


def _mapped(value: Any, change: Callable[[float], float]) -> Any:
    """Change the numbers of a parameter, in lists and filters, too."""
    if isinstance(value, Mapping):
        mapped: Any = copy.copy(value)  # with the lines of its fields
        mapped.update({k: _mapped(v, change) for k, v in value.items() if k != "filter"})
        return mapped
    if is_list(value):
        return type(value)(_mapped(each, change) for each in value)
    return change(value)


def patterns_of(value: Any, keys: Sequence[str], model: StateDict, fault: Fault) -> Any:
    """Return a parameter of one model in the words of `mergelib.settings`."""
    if isinstance(value, Mapping) and "value" in value:
        value = [value]
    if not is_list(value) or not value:
        return value
    if not isinstance(value[0], Mapping):
        places = depths(model)
        layered = sum(key in places for key in keys)
        rest = {"*": value[0]} if layered < len(keys) else {}
        return {LAYERS: [*value], **rest} if layered else value[0]
    patterns: dict[str, Any] = {}
    for each in value:
        name = each.get("filter") or "*"
        pattern = "*" if name == "*" else f"*{name}*"
        decided = [key for key in keys if fnmatchcase(key, pattern)]
        if not decided:
            lines = getattr(each, "lines", {})
            at = [lines[field] for field in ("filter", "value") if field in lines]
            raise fault(f"the filter {name!r} matches no key that is left", *at[:1])
        patterns[pattern] = patterns_of(each["value"], decided, model, fault)
        keys = [key for key in keys if key not in decided]
    return patterns
