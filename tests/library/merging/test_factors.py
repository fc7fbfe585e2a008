"""Weights and scales in the wrong unit are warned of, and right ones are not."""

import warnings
from typing import Any

import pytest
import torch

import mergelib as ml

BASE = {"layers.0.w": torch.zeros(2, 2), "layers.1.w": torch.ones(3)}
EXPERTS = [{key: value + i for key, value in BASE.items()} for i in (1.0, 2.0, 4.0)]


@pytest.mark.parametrize(
    ("weights", "total"),
    [
        ([50, 30, 20], "100"),
        (0.5, "1.5"),  # one number for each of three experts
        ([0.5, 0.3, 0.1], "0.9"),
        ([1, 1, -1.0], None),
        ([0.2, 0.3, 0.5], None),
        ({"over_layers": [1 / 3, 1]}, "3"),
        ([-1, 1, 0], "0"),
    ],
)
def test_weights_that_do_not_sum_to_one(weights: Any, total: str | None) -> None:
    def merge(**options: Any) -> None:
        ml.merge("average", EXPERTS, weights=weights, **options)

    if total is None:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            merge()
    else:
        with pytest.warns(UserWarning, match=f"experts sum to {total} and not to 1, so the result"):
            merge()
    if total not in (None, "0"):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            merge(normalise=True)


def test_a_single_model_may_be_scaled() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ml.merge("average", EXPERTS[:1], weights=[0.5])


@pytest.mark.parametrize("decay", ["linear", "cosine", "1-sqrt"])
def test_weights_of_a_decay_sum_to_one(decay: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ml.merge("wsm", EXPERTS, decay=decay)


@pytest.mark.parametrize("method", ["task_arithmetic", "ties", "tsv", "dare"])
@pytest.mark.parametrize("scale", [30, [0.3, 30.0, 0.3], {"*": -30}])
def test_a_scale_in_percent(method: str, scale: Any) -> None:
    if isinstance(scale, list) and method in ("ties", "tsv"):
        scale = {"layers.1.*": 0.3, "*": 30}
    with pytest.warns(UserWarning, match=r"scale is 30, .* and 30 % is scale=0.3"):
        ml.merge(method, EXPERTS, pretrained=BASE, scale=scale)


@pytest.mark.parametrize("scale", [0.3, 2, -1, [1.0, 0.0, 10.0]])
def test_scales_that_are_used(scale: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ml.merge("task_arithmetic", EXPERTS, pretrained=BASE, scale=scale)
