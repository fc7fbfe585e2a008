"""The registry of merging methods: names, requirements and hyperparameters.

A data-free method is a *rule*: a plain function on one parameter tensor of all experts. Its
decorator only records how `mergelib.merging` must call it. Procedures and compressions are
registered too.
"""

import dataclasses
import difflib
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from mergelib.messages.kinds import annotations_of, check_fits
from mergelib.settings import check_settings

if TYPE_CHECKING:
    import pandas as pd

Rule = Callable[..., Any]
Function = TypeVar("Function", bound=Rule)


@cache
def parameters_of(function: Rule) -> Mapping[str, inspect.Parameter]:
    """Return the parameters of a function by name."""
    return inspect.signature(function).parameters


@dataclass(frozen=True)
class Needs:
    """What a procedure needs besides the experts.

    Attributes:
        pretrained: the base model.
        model: the architecture and inputs of every task.
        heads: a head per task; without heads the model's own outputs are the logits.
        classes: heads give logits of at least two classes.
        labels: ``"classes"`` of the heads, ``"targets"`` that the procedure checks itself, or none.
        unless: a setting, and the value of it with which labels are not needed.
        every_expert: each expert has data or statistics under its name.
        every_task: each task of the data has an expert of its name.
        parts: whether it can merge parts of models.
        accepts: optional arguments of `mergelib.adapt`: ``"start"``, ``"statistics"``.
    """

    pretrained: bool = True
    model: bool = True
    heads: bool = True
    classes: bool = True
    labels: Literal["", "classes", "targets"] = ""
    unless: tuple[str, str] | None = None
    every_expert: bool = False
    every_task: bool = False
    parts: bool = True
    accepts: tuple[str, ...] = ()


@dataclass(frozen=True)
class Method:
    """A registered method and how it must be called.

    Attributes:
        paper: bibliography key of its source.
        elementwise: entries do not interact, so the rule accepts flat chunks of a tensor.
        rowwise: rows do not interact, so it accepts some of them, shape ``(rows, n)``; a row is one
            index of the first dimension, and a vector is one row.
        linear: a NaN or Inf in an input always reaches the output, which is checked.
        affine_in: a hyperparameter in which every result entry is affine, so that the merges at two
            values determine all others.
        elsewhere: for a method of matrices, the rule for all other tensors.
        prepare: a first pass that returns further keyword arguments per key. It is called with a
            function that yields key and group of every tensor, and with the hyperparameters at
            every key.
        prepared: names of these and other arguments that are not hyperparameters.
        draws: has a ``seed``, from which every tensor's own seed is derived.
        family: ``"rule"``, ``"calibration"``, ``"compression"`` or ``"procedure"``.
        data: the data that a procedure needs, in words.
        settings: a procedure's hyperparameters, a frozen dataclass with annotations.
        requires: what a procedure needs.
        then: the calibration of the merged matrices, if any.
    """

    name: str
    function: Rule
    paper: str
    elementwise: bool = False
    rowwise: bool = False
    linear: bool = False
    affine_in: str = ""
    elsewhere: Rule | None = None
    prepare: Callable[..., Mapping[str, dict[str, Any]]] | None = None
    prepared: tuple[str, ...] = ()
    draws: bool = False
    family: str = "rule"
    data: str = ""
    settings: type[Any] | None = None
    requires: Needs | None = None
    then: "Method | None" = None

    @cached_property
    def annotations(self) -> Mapping[str, Any]:
        """The known annotations of the hyperparameters."""
        further = {} if self.then is None else self.then.annotations
        return {**annotations_of(self.settings or self.function), **further}

    @property
    def needs_pretrained(self) -> bool:
        if self.then is not None and self.then.needs_pretrained:
            return True
        if self.requires is not None:
            return self.requires.pretrained
        base = parameters_of(self.function).get("pretrained")
        return base is not None and base.default is inspect.Parameter.empty

    @property
    def needs(self) -> str:
        """What the method needs, in words."""
        parts = ["experts", "pretrained" if self.needs_pretrained else "", self.data]
        if (usual := self.requires) is not None:
            parts[2:2] = ["model" if usual.model else "", "heads" if usual.heads else ""]
        return ", ".join(filter(None, parts))

    @property
    def hyperparameters(self) -> dict[str, Any]:
        """Names and defaults, in the order of the signature."""
        if self.settings is not None:
            return {field.name: field.default for field in dataclasses.fields(self.settings)}
        own = {
            name: parameter.default
            for name, parameter in parameters_of(self.function).items()
            if parameter.kind is inspect.Parameter.KEYWORD_ONLY
            and parameter.default is not inspect.Parameter.empty
            and name not in (*self.prepared, getattr(self.prepare, "name", None))
        }
        return own if self.then is None else {**own, **self.then.hyperparameters}

    @property
    def summary(self) -> str:
        return (inspect.getdoc(self.function) or "").split("\n")[0]

    def check(self, hyperparameters: Mapping[str, Any], *, pretrained: bool = True) -> None:
        """Refuse an unknown or unfit hyperparameter, and a missing pretrained model."""
        defaults = self.hyperparameters
        for name in hyperparameters:
            if name not in defaults:
                names = ", ".join(defaults) or "none"
                names += "; use merge_files" if name in ("tokenizer", "chat_template") else ""
                near = difflib.get_close_matches(name, defaults, 1)
                names += f"; did you mean {near[0]!r}?" if near else ""
                names += "; the base is pretrained=" if name in ("base", "base_model") else ""
                raise TypeError(f"{self.name} has no hyperparameter {name!r}; it has: {names}")
        fitting = check_settings if self.family == "rule" else check_fits
        fitting(self.annotations, hyperparameters)
        if self.needs_pretrained and not pretrained:
            raise ValueError(f"{self.name} needs the pretrained model: pass pretrained=")


# What mergekit and PEFT call a method, and what it is called here, with settings.
_ELSEWHERE = {
    **dict.fromkeys(("linear", "mean", "soup"), ("average", "")),
    "task_vector": ("task_arithmetic", ""),
    **dict.fromkeys(("ties_svd", "ties_merging"), ("ties", "")),
    "dare_linear": ("dare", ""),
    "dare_ties": ("dare", " with combine='ties'"),
    "magnitude_prune": ("breadcrumbs", ""),
    "breadcrumbs_ties": ("breadcrumbs", " with combine='ties'"),
    "della_linear": ("della", " with combine='task_arithmetic'"),
    "multislerp": ("karcher", " with steps=0"),
    "ramplus_tl": ("ram", " with r=0.1"),
}

_METHODS: dict[str, Method] = {}


def rule(*, paper: str, **traits: Any) -> Callable[[Function], Function]:
    """Register a function as the merging rule of its own name; the traits are `Method`'s.

    Hyperparameters must fit their annotations, also ranges such as `mergelib.messages.kinds.Share`.
    A rule gets their values for its tensor, and lists only where it accepts
    `mergelib.messages.kinds.PerExpert`.

    Raises:
        ValueError: if another method has the name already, or ``affine_in`` is not a
            hyperparameter.
    """

    def register(function: Function) -> Function:
        method = Method(function.__name__, function, paper, **traits)
        if method.affine_in and method.affine_in not in method.hyperparameters:
            raise ValueError(
                f"{method.name} is declared affine in {method.affine_in!r}, which is not one of "
                f"its hyperparameters: {', '.join(method.hyperparameters) or 'none'}"
            )
        registered = _METHODS.get(method.name)
        if registered is not None and registered.function.__module__ != function.__module__:
            raise ValueError(
                f"a {registered.family} named {method.name!r} is registered already, "
                f"by {registered.function.__module__}"
            )
        _METHODS[method.name] = method
        return function

    return register


def procedure(
    *, paper: str, data: str, settings: type[Any], needs: Needs
) -> Callable[[Function], Function]:
    """Register a function of a problem and settings as the procedure of its own name."""
    return rule(paper=paper, family="procedure", data=data, settings=settings, requires=needs)


def method_names(family: str = "rule") -> list[str]:
    """Return the names of a family's methods, in the order of registration."""
    return [name for name, method in _METHODS.items() if method.family == family]


def get_method(name: str, family: str = "rule") -> Method:
    """Return the method of this name; ValueError, with the nearest names, if there is none.

    A rule's name may end in that of a calibration, as in ``"ties+svc"``.
    """
    if not isinstance(name, str):
        kind = type(name).__name__
        raise TypeError(f"the method is a {kind}, expected its name before the models")
    names = method_names(family)
    first, plus, last = name.partition("+")
    if plus and family == "rule" and (first in names or last in method_names("calibration")):
        chosen, then = get_method(first), get_method(last, "calibration")
        return dataclasses.replace(chosen, name=name, linear=False, affine_in="", then=then)
    if name not in names:
        low = name.lower()  # TSV and TIES are how the papers write it
        alternative, options = _ELSEWHERE.get(low, ("", ""))
        near = [alternative] if alternative in names else difflib.get_close_matches(low, names)
        hint = f"did you mean {near[0]!r}{options}?" if near else f"known: {', '.join(names)}"
        if not name.isidentifier() and family == "rule":  # a path, say
            hint = f"the method comes before the models; {hint}"
        if name in _METHODS:
            hint = f"it is a {_METHODS[name].family}; {hint}"
        if name in method_names("calibration"):
            hint = f"it calibrates a merge: add it to a method's name, as in 'ties+{name}'"
        raise ValueError(f"unknown method {name!r}; {hint}")
    return _METHODS[name]


def methods() -> "pd.DataFrame":
    """Return a table of all methods: what each does and needs, hyperparameters, paper."""
    import pandas as pd

    rows = [
        {
            "method": method.name,
            "what it does": method.summary,
            "family": method.family,
            "needs": method.needs,
            "hyperparameters": ", ".join(f"{k}={v!r}" for k, v in method.hyperparameters.items()),
            "paper": method.paper,
        }
        for method in _METHODS.values()
    ]
    return pd.DataFrame(rows).set_index("method")
