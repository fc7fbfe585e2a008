"""The register of families: who loads a suite, and how its models and experts come about."""

import importlib.metadata
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from torch import Tensor, nn

from mergebook.suites.heads import few_shot_heads
from mergebook.suites.training import Recipe
from mergebook.suites.types import LabelledSet, Zoo
from mergelib.evaluation.tasks import Suite, Task
from mergelib.hashing import sha256_of
from mergelib.merging import IsMatrix
from mergelib.messages.extras import needs
from mergelib.statedict import is_matrix

Sizes = tuple[int, int, int | None]
LoadedTask = tuple[Task, dict[str, str]]
MakeHeads = Callable[[nn.Module, Suite, Recipe, int], dict[str, nn.Module]]


@dataclass(frozen=True)
class Pretraining:
    """How the backbones of a family are pretrained."""

    train: Callable[..., list[dict[str, float]]]  # (model, sets, recipe, seed=0), gives a log
    sets: Callable[[], list[LabelledSet]]
    recipe: Recipe
    short_sets: Callable[[], list[LabelledSet]]  # for models that no weights ship for
    short_recipe: Recipe


@dataclass(frozen=True)
class Package:
    """An installed package of the package index, of the extra ``real``, with pretrained weights."""

    name: str  # on the index
    file: str  # of the weights, relative to where packages are installed
    read: Callable[[Path], dict[str, Tensor]]  # the state dict of the family's models
    needs: tuple[str, ...] = ()  # names of further packages

    def path(self) -> Path:
        """Where the weights are; ImportError if the package is not installed."""
        versions = self._versions()
        path = Path(str(importlib.metadata.distribution(self.name).locate_file(self.file)))
        if not path.is_file():
            raise ValueError(f"package {self.name!r} {versions[self.name]} has no {self.file}")
        return path

    def weights(self) -> dict[str, Tensor]:
        return self.read(self.path())

    def origin(self) -> dict[str, str]:
        """What tells which weights they are: packages' versions, and the SHA-256 of the file."""
        path = self.path()
        return {**self._versions(), path.name: f"sha256:{sha256_of(path)}"}

    def _versions(self) -> dict[str, str]:
        with needs("real"):
            return {name: importlib.metadata.version(name) for name in (self.name, *self.needs)}


@dataclass(frozen=True)
class Family:
    """Suites that are loaded alike; experts are fine-tuned from one of `models`, or loaded."""

    name: str
    suites: Mapping[str, Sequence[str]]  # tasks
    # (name, sizes, seed, data, **options) loads a task and gives the SHA-256 of its sources.
    load_task: Callable[..., LoadedTask]
    # Examples in the training, validation and test split, by profile; None for all there are.
    sizes: Mapping[str, Sizes]
    model: str  # the usual one
    models: Mapping[str, Callable[[], nn.Module]] = field(default_factory=dict)
    recipe: Recipe | None = None  # the usual one; None if experts are given
    heads: MakeHeads = few_shot_heads
    # What a task's head is made from, unless it is examples or passes on what it gets.
    prompts: Callable[[Task], Sequence[str]] = lambda task: ()
    packages: Mapping[str, Package] = field(default_factory=dict)  # pretrained weights, by model
    pretraining: Pretraining | None = None  # of the other models
    is_matrix: IsMatrix = is_matrix
    load_zoo: Callable[..., Zoo] | None = None  # (suite, model=, device=)

    def __post_init__(self) -> None:
        weights = self.pretraining or self.packages
        if self.load_zoo is None and (self.recipe is None or not weights):
            made = "experts by a recipe, and pretraining or a package"
            raise ValueError(f"family {self.name!r} needs load_zoo, or to make {made}")


FAMILIES: dict[str, Family] = {}


def register(family: Family) -> Family:
    """Add a family, whose suites can then be loaded."""
    if family.name in FAMILIES:
        raise ValueError(f"a family {family.name!r} is registered already")
    for suite in family.suites:
        for other in FAMILIES.values():
            if suite in other.suites:
                raise ValueError(f"suite {suite!r} is one of family {other.name!r} already")
    FAMILIES[family.name] = family
    return family


def known_suites() -> dict[str, tuple[str, ...]]:
    """All suites there are, and their tasks."""
    return {
        name: tuple(tasks) for family in FAMILIES.values() for name, tasks in family.suites.items()
    }


def family_of(suite: str) -> Family:
    """The family that a suite belongs to, by its name."""
    for family in FAMILIES.values():
        if suite in family.suites:
            return family
    raise ValueError(f"unknown suite {suite!r}; known: {', '.join(known_suites())}")


def family_with(model: str) -> Family:
    """The first family whose experts can be fine-tuned from a model, by its name."""
    for family in FAMILIES.values():
        if model in family.models:
            return family
    known = dict.fromkeys(name for family in FAMILIES.values() for name in family.models)
    raise ValueError(f"unknown model {model!r}; known: {', '.join(known)}")
