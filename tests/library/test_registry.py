"""The registry: its table, and methods that stay plain functions."""

import inspect
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import torch

import mergelib as ml
from mergelib import registry
from mergelib.registry import get_method

NAMES = registry.method_names()


def test_methods_lists_names_defaults_and_papers() -> None:
    table = ml.methods().query("family == 'rule'")
    assert list(table.index) == NAMES
    assert set(NAMES) >= {"average", "task_arithmetic", "ties", "dare", "slerp", "cart"}
    assert table.loc["task_arithmetic", "hyperparameters"] == "scale=0.3, normalise=False"
    ties = table.loc["ties", "hyperparameters"]
    assert ties == "density=0.2, weights=None, scale=1.0, reduce='mean', trim='model'"
    assert table.loc["ties", "needs"] == "experts, pretrained"
    assert table.loc["cart", "needs"] == "experts"
    assert (table["paper"].str.fullmatch(r"[a-z]+\d{4}[a-z]+")).all()
    assert (table["what it does"].str.len() > 20).all()


@pytest.mark.parametrize("name", NAMES)
def test_a_registered_method_is_still_a_plain_function(name: str) -> None:
    function = get_method(name).function
    assert inspect.isfunction(function)
    assert getattr(sys.modules[function.__module__], name) is function
    tensors = [torch.randn(6, 4) for _ in range(3)]
    arguments: Iterator[Any] = iter((tensors[1:], tensors[0]))
    result = (
        function(*arguments) if get_method(name).needs_pretrained else function(next(arguments))
    )
    assert result.shape == (6, 4)
