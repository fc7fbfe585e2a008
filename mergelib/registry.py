"""The registry of merging methods: what each is called, needs and takes.

A data-free method is a *rule*: a plain function on one parameter tensor of all experts. The
decorator only records how the rule wants to be called; `mergelib.merging` does the rest for every
method alike. Procedures and compressions are registered beside the rules, as they are.
"""

import dataclasses
import difflib
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from mergelib.messages.brief import brief
from mergelib.messages.kinds import annotations_of, fits, in_words

if TYPE_CHECKING:
    import pandas as pd

Rule = Callable[..., Any]
SomeRule = TypeVar("SomeRule", bound=Rule)
Procedure = TypeVar("Procedure", bound=Callable[..., Any])


@dataclass(frozen=True)
class Needs:
    """What a procedure needs besides the experts.

    Attributes:
        pretrained: the state dict that the experts were fine-tuned from.
        model: the architecture, and inputs of tasks to run it on.
        heads: what turns its outputs into logits, for every task of the data; where a user gives
            none, the model's own outputs are the logits.
        labels: ``"classes"`` for labels that are classes of the heads, ``"targets"`` for any that
            the procedure checks itself, empty where they are not used.
        setting: that asks for labels, for messages.
        every_expert: each expert has data, or statistics, under its name.
        every_task: each task of the data has an expert of its name.
        parts: whether it can merge parts of models only.
        accepts: further arguments of `mergelib.adapt` that it has a use for: ``"start"`` and
            ``"statistics"``.
    """

    pretrained: bool = True
    model: bool = True
    heads: bool = True
    labels: Literal["", "classes", "targets"] = ""
    setting: str = ""
    every_expert: bool = False
    every_task: bool = False
    parts: bool = True
    accepts: tuple[str, ...] = ()


@dataclass(frozen=True)
class Method:
    """A registered rule and how it wants to be called.

    Attributes:
        name: what `merge` calls it.
        function: the rule itself.
        paper: bibliography key of its source.
        elementwise: entries do not interact, so the rule may be fed flat chunks of a tensor.
        rowwise: rows do not interact, so it may be fed some of them, shape ``(rows, n)``; a row is
            what lies under one index of the first dimension, and a vector is one row.
        linear: a NaN or Inf in an input it takes always shows in the output, which is checked.
        affine_in: the hyperparameter, if any, in which every entry of the result is affine, so that
            the merges at two of its values give those at all values.
        elsewhere: the rule is for matrices, and this rule takes every other tensor.
        prepare: a first pass over all tensors; gives each key further keyword arguments.
        prepared: the names of these and other arguments that are no hyperparameters.
        draws: has a ``seed``, from which every tensor gets one of its own.
        family: ``"rule"``, ``"compression"`` or ``"procedure"``: whether `merge`,
            `mergelib.compression` or `mergelib.procedures` calls it.
        data: what data a procedure needs, in words.
        settings: a procedure's hyperparameters, a frozen dataclass that checks itself.
        requires: what a procedure needs, the same always or from its settings.
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
    requires: Needs | Callable[[Any], Needs] | None = None

    @cached_property
    def parameters(self) -> Mapping[str, inspect.Parameter]:
        return inspect.signature(self.function).parameters

    @cached_property
    def annotations(self) -> Mapping[str, Any]:
        """What kind each hyperparameter is of, as far as that is known."""
        return annotations_of(self.function if self.settings is None else self.settings)

    def needs_with(self, settings: Any) -> Needs:
        """What a procedure needs with these settings."""
        assert self.requires is not None
        return self.requires if isinstance(self.requires, Needs) else self.requires(settings)

    @property
    def needs_pretrained(self) -> bool:
        if self.settings is not None:
            return self.needs_with(self.settings()).pretrained
        return "pretrained" in self.parameters

    @property
    def needs(self) -> str:
        """What it takes, in words."""
        parts = ["experts", "pretrained" if self.needs_pretrained else "", self.data]
        if self.settings is not None:
            usual = self.needs_with(self.settings())
            parts[2:2] = ["model" if usual.model else "", "heads" if usual.heads else ""]
        return ", ".join(filter(None, parts))

    @property
    def hyperparameters(self) -> dict[str, Any]:
        """Names and defaults, in the order of the signature."""
        if self.settings is not None:
            return {field.name: field.default for field in dataclasses.fields(self.settings)}
        return {
            name: parameter.default
            for name, parameter in self.parameters.items()
            if parameter.kind is inspect.Parameter.KEYWORD_ONLY
            and parameter.default is not inspect.Parameter.empty
            and name not in self.prepared
        }

    @property
    def summary(self) -> str:
        return (inspect.getdoc(self.function) or "").split("\n")[0]

    def settings_from(self, hyperparameters: Mapping[str, Any]) -> Any:
        """A procedure's settings from keywords.

        Raises:
            TypeError: a hyperparameter that it does not have, naming those that it has.
            ValueError: one out of range.
        """
        assert self.settings is not None
        self._check_hyperparameters(hyperparameters)
        return self.settings(**hyperparameters)

    def check(self, hyperparameters: Mapping[str, Any], *, pretrained: bool) -> None:
        """Raise for a hyperparameter unknown or of another kind, or a missing pretrained model."""
        self._check_hyperparameters(hyperparameters)
        if self.needs_pretrained and not pretrained:
            raise ValueError(f"{self.name} needs the pretrained model: pass pretrained=")

    def _check_hyperparameters(self, hyperparameters: Mapping[str, Any]) -> None:
        known = self.hyperparameters
        for name, value in hyperparameters.items():
            if name not in known:
                names = ", ".join(known) or "none"
                raise TypeError(f"{self.name} has no hyperparameter {name!r}; it has: {names}")
            kind = self.annotations.get(name)
            if name in self.annotations and not fits(kind, value):
                raise ValueError(f"{name} is {brief(value)}, expected {in_words(kind)}")


# What mergekit and PEFT call a method, and what it is called here, with settings.
_ELSEWHERE = {
    **dict.fromkeys(("linear", "mean", "soup"), ("average", "")),
    "task_vector": ("task_arithmetic", ""),
    **dict.fromkeys(("ties_svd", "ties_merging"), ("ties", "")),
    "dare_linear": ("dare", ""),
    "dare_ties": ("dare", " with combine='ties'"),
    **dict.fromkeys(("breadcrumbs_ties", "magnitude_prune"), ("breadcrumbs", "")),
    "della_linear": ("della", ""),
}

_METHODS: dict[str, Method] = {}


def _register(method: Method) -> None:
    """Add a method to those that there are; a name is taken once.

    Raises:
        ValueError: if another function has the name already, or ``affine_in`` names nothing.
    """
    if method.affine_in and method.affine_in not in method.hyperparameters:
        raise ValueError(
            f"{method.name} is declared affine in {method.affine_in!r}, which is not one of its "
            f"hyperparameters: {', '.join(method.hyperparameters) or 'none'}"
        )
    known = _METHODS.get(method.name)
    if known is not None and known.function.__module__ != method.function.__module__:
        raise ValueError(
            f"a {known.family} named {method.name!r} is registered already, "
            f"by {known.function.__module__}"
        )
    _METHODS[method.name] = method


def rule(*, paper: str, **traits: Any) -> Callable[[SomeRule], SomeRule]:
    """Register a function as the merging rule of its own name; the traits are `Method`'s.

    Raises:
        ValueError: if another method has the name already.
    """

    def register(function: SomeRule) -> SomeRule:
        _register(Method(function.__name__, function, paper, **traits))
        return function

    return register


def procedure(
    *, paper: str, data: str, settings: type[Any], needs: Needs | Callable[[Any], Needs]
) -> Callable[[Procedure], Procedure]:
    """Register a function of a problem and settings as the procedure of its own name.

    Args:
        paper: bibliography key of its source.
        data: what data it needs, in words.
        settings: its hyperparameters, a frozen dataclass with a default for each, which raises
            ValueError for those out of range.
        needs: what it needs besides, always or from the settings.

    Raises:
        ValueError: if another method has the name already.
    """

    def register(function: Procedure) -> Procedure:
        name = function.__name__
        _register(
            Method(
                name,
                function,
                paper,
                family="procedure",
                data=data,
                settings=settings,
                requires=needs,
            )
        )
        return function

    return register


def compression(*, paper: str, **traits: Any) -> Callable[[Any], Any]:
    """Register a function as the compression of its own name; the traits are `Method`'s.

    Raises:
        ValueError: if another method has the name already.
    """

    def register(function: Any) -> Any:
        _register(Method(function.__name__, function, paper, family="compression", **traits))
        return function

    return register


def method_names(family: str = "rule") -> list[str]:
    """The names of a family's methods, in the order of registration."""
    return [name for name, method in _METHODS.items() if method.family == family]


def get_method(name: str, family: str = "rule") -> Method:
    """The method of that name.

    Raises:
        ValueError: if there is none in the family; the message names the nearest ones.
    """
    names = method_names(family)
    if name not in names:
        known, options = _ELSEWHERE.get(name, ("", ""))
        near = [known] if known in names else difflib.get_close_matches(name, names)
        hint = f"did you mean {near[0]!r}{options}?" if near else f"known: {', '.join(names)}"
        if name in _METHODS:
            hint = f"it is a {_METHODS[name].family}; {hint}"
        raise ValueError(f"unknown method {name!r}; {hint}")
    return _METHODS[name]


def methods() -> "pd.DataFrame":
    """A table of all methods: what each does and needs, its hyperparameters, its paper."""
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
