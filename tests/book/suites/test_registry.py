"""A family of one's own: loaded, fine-tuned on, judged; and what is refused."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import mergelib as ml
from mergebook import Recipe, load_suite, load_zoo
from mergebook.lab.comparison import compare
from mergebook.suites import registry
from mergebook.suites.registry import (
    Family,
    LoadedTask,
    Pretraining,
    Sizes,
    family_of,
    register,
)
from mergebook.suites.types import (
    LabelledSet,
    Zoo,
)
from mergelib.evaluation.tasks import (
    Split,
    Task,
)

RECIPE = Recipe(epochs=8, learning_rate=1e-2)


@pytest.fixture(autouse=True)
def families(monkeypatch: pytest.MonkeyPatch) -> dict[str, Family]:
    """A register of the test's own, so that what it adds is gone after it."""
    families = dict(registry.FAMILIES)
    monkeypatch.setattr(registry, "FAMILIES", families)
    return families


def load_table(
    name: str, sizes: Sizes, seed: int, data: str | Path | None, /, *, noise: float = 0.3
) -> LoadedTask:
    """Float tables (N, 4): the class is the largest of the first or of the last three columns."""
    generator = torch.Generator().manual_seed(seed)
    splits = []
    for size in sizes:
        labels = torch.arange(size or 50) % 3
        inputs = noise * torch.randn(len(labels), 4, generator=generator)
        inputs[torch.arange(len(labels)), labels + (name == "last")] += 1
        splits.append(Split(inputs, labels))
    return Task(name, ("a", "b", "c"), *splits), {name: "0123"}  # type: ignore[arg-type]


def pretrain(model: nn.Module, sets: list[LabelledSet], recipe: Recipe) -> list[Any]:
    """None: the start is random."""
    return []


def no_sets(data: str | Path | None = None) -> list[LabelledSet]:
    return []


def make_family() -> Family:
    return Family(
        "tables",
        {"tables2": ("first", "last")},
        load_table,
        {"default": (60, 20, 50)},
        model="narrow",
        models={"narrow": lambda: nn.Sequential(nn.Linear(4, 16), nn.GELU(), nn.Linear(16, 16))},
        recipe=RECIPE,
        pretraining=Pretraining(pretrain, no_sets, RECIPE, no_sets, RECIPE),
    )


def test_a_family_of_float_tables() -> None:
    register(make_family())
    suite = load_suite("tables2", noise=0.1)
    assert suite.tasks["first"].train.inputs.dtype == torch.float32
    assert (family_of("tables2").model, family_of("tables2").recipe) == ("narrow", RECIPE)
    zoo = load_zoo(suite)
    table = compare(zoo, {"average": {}}).set_index(["method", "task"])
    assert (table["accuracy"]["individual"] > 0.95).all()
    again = load_zoo(suite)
    assert again.files == zoo.files
    assert all(file.exists() for file in zoo.files.values())


def test_given_experts() -> None:
    """A family that loads its zoo hands on what it is given."""
    asked = []

    def hand_on(suite: ml.Suite, /, **options: Any) -> Zoo:
        asked.append(options)
        state: dict[str, Tensor] = {}
        return Zoo(suite, nn.Identity(), state, {}, {}, {}, "0123")

    family = replace(make_family(), recipe=None, pretraining=None, load_zoo=hand_on)
    register(family)
    zoo = load_zoo(load_suite("tables2"), model="wide")
    assert zoo.fingerprint == "0123"
    assert asked == [{"model": "wide", "device": "cpu"}]


def test_unknown_suites_list_all(families: dict[str, Family]) -> None:
    register(make_family())
    with pytest.raises(ValueError, match=r"unknown suite 'tables3'; known: .*glyphs20.*, tables2$"):
        load_suite("tables3")
    known = "clip digits glyphs imagenet lite sentences texts vision"
    assert set(families) == {*known.split(), "tables"}


def test_what_is_refused(families: dict[str, Family]) -> None:
    register(make_family())
    with pytest.raises(ValueError, match="a family 'tables' is registered already"):
        register(make_family())
    taken = replace(make_family(), name="other", suites={"digits2": ("first",)})
    with pytest.raises(ValueError, match="suite 'digits2' is one of family 'digits' already"):
        register(taken)
    assert "other" not in families
    with pytest.raises(ValueError, match="family 'tables' needs load_zoo, or to make"):
        replace(make_family(), recipe=None)
    with pytest.raises(TypeError, match="noisy"):
        load_suite("tables2", noisy=0.1)
