"""A study is a function that returns tables; its keyword-only parameters are its settings.

A `Run` is a study on one suite, seed and choice of settings: what is cached, and resumed.
"""

import inspect
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, fields
from functools import partial
from typing import Any, NamedTuple, TypeVar

import torch

from mergebook.lab.dependencies import code_key
from mergebook.lab.results import Tables
from mergebook.suites.loading import load_suite
from mergebook.suites.provenance import provenance
from mergebook.suites.training import Recipe
from mergebook.suites.types import Zoo
from mergebook.suites.zoo import load_beginning, load_zoo
from mergelib.hashing import digest, fingerprint, plain

Function = TypeVar("Function", bound=Callable[..., Tables])


class Loaded(NamedTuple):
    """What a study works on."""

    arguments: tuple[Any, ...]  # of the study's function, before its settings
    inputs: Mapping[str, Any]  # hashes and sizes of what made them, JSON-ready; all are in the key


def zoo_of(run: "Run") -> Loaded:
    """The zoo of a run's suite, its experts fine-tuned now if they are not in the cache."""
    suite = load_suite(run.suite, seed=run.seed, **run.options)
    return _loaded(load_zoo(suite, model=run.model, recipe=run.recipe, device=run.device))


def beginning_of(run: "Run") -> Loaded:
    """Backbone and heads of a run's suite, a zoo without experts, for studies that train them."""
    suite = load_suite(run.suite, seed=run.seed, **run.options)
    zoo = load_beginning(suite, model=run.model, recipe=run.recipe, device=run.device)
    loaded = _loaded(zoo)
    trained = {name: len(task.train) for name, task in suite.tasks.items()}
    return loaded._replace(inputs={**loaded.inputs, "trained": trained})


def refuse_zoo_settings(run: "Run", what: str, *, profiles: Collection[str] = ()) -> str:
    """The profile of a run that works on no zoo; ValueError names a setting that only zoos have."""
    options = {"model": run.model, "recipe": run.recipe, **run.options}
    profile = options.pop("profile", None) if profiles else None
    for name, value in options.items():
        if value is not None:
            raise ValueError(f"{what} take no {name}, got {value!r}")
    if profile is not None and profile not in profiles:
        known = ", ".join(profiles)
        raise ValueError(f"{what} have no profile {profile!r}; they have: {known}")
    return profile or "default"


def seed_alone(suite: str, what: str) -> Callable[["Run"], Loaded]:
    """What loads the runs of a study of `what`, which draws its examples itself, from the seed."""

    def load(run: "Run") -> Loaded:
        if run.suite != suite:
            raise ValueError(f"the study of {what} has no suite {run.suite!r}, only {suite!r}")
        refuse_zoo_settings(run, what)
        return Loaded((run.seed,), {"sources": {}})

    return load


def _loaded(zoo: Zoo) -> Loaded:
    suite = zoo.suite
    inputs: dict[str, Any] = {
        "zoo": zoo.fingerprint,
        "backbone": digest(tensor for _, tensor in sorted(zoo.pretrained.items())),
        "sources": suite.sources,
        "sizes": {name: [len(t.validation), len(t.test)] for name, t in suite.tasks.items()},
    }
    if zoo.revisions:
        inputs["revisions"] = dict(zoo.revisions)
    return Loaded((zoo,), inputs)


@dataclass(frozen=True)
class Study:
    """A study, and what it needs."""

    function: Callable[..., Tables]  # of what is loaded and, by keyword only, its settings
    load: Callable[["Run"], Loaded] = zoo_of  # what the function works on
    options: type[Any] | None = None  # its fields are the settings; else the parameters are

    @property
    def name(self) -> str:
        return self.function.__name__

    @property
    def settings(self) -> dict[str, Any]:
        if self.options is not None:
            usual = self.options()
            return {part.name: getattr(usual, part.name) for part in fields(usual)}
        parameters = inspect.signature(self.function).parameters.values()
        return {part.name: part.default for part in parameters if part.kind is part.KEYWORD_ONLY}

    def complete(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        """All settings: defaults, and those given (one value is a list of one), if it has them."""
        own = self.settings
        for name in settings:
            if name not in own:
                known = ", ".join(f"{key}={value!r}" for key, value in own.items()) or "none"
                raise ValueError(f"{self.name} has no setting {name!r}; it has: {known}")
        lists = {name for name, value in own.items() if isinstance(value, (tuple, list))}
        given = {
            name: [value] if name in lists and isinstance(value, (str, int, float)) else value
            for name, value in settings.items()
        }
        return {**own, **given}

    @property
    def code(self) -> str:
        return code_key(self.function)


@dataclass(frozen=True)
class Run:
    """A study on one suite with one seed."""

    study: Study
    suite: str
    seed: int  # draws splits, heads' examples, the order of training, and what studies draw
    model: str | None = None  # backbone of the zoo, where a study has one
    recipe: Recipe | None = None  # how experts are fine-tuned, where a study has a zoo
    options: Mapping[str, Any] = field(default_factory=dict)  # of `load_suite`, e.g. ``profile``
    settings: Mapping[str, Any] = field(default_factory=dict)  # all of the study's
    device: str = "cpu"
    code: str = ""  # hash of the code it depends on, see `mergebook.lab.dependencies`

    @property
    def name(self) -> str:
        """Names its files: the same as long as what is asked for is the same."""
        asked = [self.model, self.recipe, self._changed(), torch.device(self.device).type]
        options = {name: str(value) for name, value in self.options.items()}
        digits = fingerprint([*asked, options])
        return f"{self.suite}-{self.study.name}-{self.seed}-{digits}"

    def prepare(self) -> tuple[str, Callable[[], dict[str, Any]]]:
        """The key of all that the record depends on, and what measures it."""
        loaded = self.study.load(self)
        return self.key(loaded.inputs), partial(self._measure, loaded)

    def key(self, inputs: Mapping[str, Any]) -> str:
        """Hash of inputs, code, PyTorch's version and the settings that are not defaults."""
        asked = [self.study.name, self.suite, self.seed, self._changed()]
        device = torch.device(self.device).type
        return fingerprint([*asked, inputs, self.code, str(torch.__version__), device])

    def _changed(self) -> dict[str, Any]:
        usual = self.study.settings
        return {
            name: value
            for name, value in self.settings.items()
            if name not in usual or plain(value) != plain(usual[name])
        }

    def _measure(self, loaded: Loaded) -> dict[str, Any]:
        tables = self.study.function(*loaded.arguments, **self.settings)
        made = provenance(**loaded.inputs, code=self.code, device=self.device)
        rows = {name: [{"seed": self.seed, **row} for row in part] for name, part in tables.items()}
        return {"provenance": made, **rows}


REGISTERED: dict[str, Study] = {}


def study(
    *, load: Callable[[Run], Loaded] = zoo_of, settings: type[Any] | None = None
) -> Callable[[Function], Function]:
    """Register a function as the study of its own name; the arguments are those of `Study`."""

    def register(function: Function) -> Function:
        REGISTERED[function.__name__] = Study(function, load, settings)
        return function

    return register
