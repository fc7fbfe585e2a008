"""Synthetic pairs: shapes, seeds, what the two kinds share, and that networks learn them."""

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.func import functional_call

from mergebook.cogram.synthetic import SyntheticPair, synthetic_pair, train_pair
from mergelib.evaluation.tasks import Split

PLAIN: dict[str, Any] = {"sine": (0, 0), "tangent": (0, 0)}


def parts(pair: SyntheticPair) -> tuple[Split, ...]:
    return pair.a, pair.b, pair.validation, pair.test


def accuracy(model: nn.Module, state: dict[str, Tensor], split: Split, rows: slice) -> float:
    predicted = functional_call(model, state, (split.inputs[rows],)).argmax(1)
    return float((predicted == split.labels[rows]).float().mean())


@pytest.mark.parametrize("heterogeneous", [False, True])
def test_shapes_classes_and_seeds(heterogeneous: bool) -> None:
    pair = synthetic_pair(3, heterogeneous=heterogeneous)
    for split, size in zip(parts(pair), (1000, 1000, 1000, 2000), strict=True):
        assert split.inputs.shape == (size, 32)
        assert split.inputs.dtype == torch.float32
        assert split.labels.dtype == torch.int64
        assert split.labels.bincount().tolist() == [size // 20] * 20
    again = synthetic_pair(3, heterogeneous=heterogeneous)
    other = synthetic_pair(4, heterogeneous=heterogeneous)
    for mine, same, different in zip(parts(pair), parts(again), parts(other), strict=True):
        assert torch.equal(mine.inputs, same.inputs)
        assert torch.equal(mine.labels, same.labels)
        assert not torch.equal(mine.inputs, different.inputs)
    assert not torch.equal(pair.a.inputs, pair.b.inputs)


@given(
    st.integers(0, 10**6),
    st.booleans(),
    st.tuples(*[st.floats(0, 1e3)] * 5),
)
@settings(max_examples=40)
def test_never_nan(seed: int, heterogeneous: bool, strengths: tuple[float, ...]) -> None:
    names = ("separation", "shift", "sine", "frequency", "tangent")
    ranges: dict[str, Any] = {
        name: (each, each) for name, each in zip(names, strengths, strict=True)
    }
    sizes: dict[str, Any] = {"train_size": 5, "validation_size": 1, "test_size": 3}
    pair = synthetic_pair(seed, heterogeneous=heterogeneous, **sizes, **ranges)
    assert all(torch.isfinite(split.inputs).all() for split in parts(pair))


def test_the_distortion_is_its_formula() -> None:
    """The same draws without distortion and noise, bent here number by number."""
    still: dict[str, Any] = {"noise": 0.0, "train_size": 20}
    plain = synthetic_pair(0, **PLAIN, **still).a.inputs
    bent = synthetic_pair(
        0, sine=(0.7, 0.7), frequency=(1.5, 1.5), tangent=(0.4, 0.4), **still
    ).a.inputs
    for x, found in zip(plain.flatten().tolist(), bent.flatten().tolist(), strict=True):
        expected = x + 0.7 * math.sin(1.5 * x) + 0.4 * math.tan(1.25 * math.tanh(x / 2))
        assert found == pytest.approx(expected, rel=1e-4, abs=1e-5)


def class_means(split: Split, rows: slice) -> Tensor:
    x, y = split.inputs[rows], split.labels[rows]
    return torch.stack([x[y == label].mean(0) for label in range(20)])


def test_the_two_kinds_share_what_they_should() -> None:
    """From many examples: homogeneous halves agree, heterogeneous ones in their centres alone."""
    options: dict[str, Any] = {**PLAIN, "train_size": 20, "test_size": 40_000}
    first, second = slice(0, 20_000), slice(20_000, 40_000)
    same = synthetic_pair(1, **options)
    gap = (class_means(same.test, first) - class_means(same.test, second)).norm(dim=1)
    assert gap.max() < 0.6, "the error of two means of 1000 examples"
    own = synthetic_pair(1, heterogeneous=True, **options)
    assert torch.equal(own.a.inputs, same.a.inputs), "A is the same in both"
    assert not torch.equal(own.b.inputs, same.b.inputs)
    gap = (class_means(own.test, first) - class_means(own.test, second)).norm(dim=1)
    assert gap.min() > 0.6, "subclusters of their own"
    centred = synthetic_pair(1, heterogeneous=True, **{**options, "shift": (0, 0)})
    gap = (class_means(centred.test, first) - class_means(centred.test, second)).norm(dim=1)
    assert gap.max() < 0.6, "without them the centres agree"


def test_test_data_are_noisier() -> None:
    """With nothing but noise, the standard deviations are the noise's."""
    nothing: dict[str, Any] = dict.fromkeys(("separation", "shift", "spread"), (0, 0))
    pair = synthetic_pair(0, **nothing, **PLAIN, noise=0.8, test_noise=1.5)
    assert pair.a.inputs.std().item() == pytest.approx(0.8, rel=0.02)
    assert pair.validation.inputs.std().item() == pytest.approx(0.8, rel=0.02)
    assert pair.test.inputs.std().item() == pytest.approx(1.2, rel=0.02)


def test_networks_learn_their_data_and_own_distributions_better() -> None:
    """20 classes: chance is 0.05."""
    first, second = slice(0, 1000), slice(1000, 2000)
    scores = []
    for seed in range(3):
        same = synthetic_pair(seed)
        model, a, b = train_pair(same, seed=seed)
        everything = slice(0, 2000)
        scores += [accuracy(model, state, same.test, everything) for state in (a, b)]
        own = synthetic_pair(seed, heterogeneous=True)
        model, a, b = train_pair(own, seed=seed)
        assert accuracy(model, a, own.test, first) > accuracy(model, a, own.test, second) + 0.1
        assert accuracy(model, b, own.test, second) > accuracy(model, b, own.test, first) + 0.1
    assert 0.7 < sum(scores) / len(scores) < 0.95
    assert min(scores) > 0.6


def test_starts_and_repetition() -> None:
    """After no epoch the states are the starts."""
    pair = synthetic_pair(0, train_size=40)
    model, a, b = train_pair(pair, seed=5, epochs=0)
    assert [tuple(value.shape) for value in a.values()] == [(64, 32), (64,), (20, 64), (20,)]
    assert all(torch.equal(a[key], b[key]) for key in a)
    assert all(torch.equal(a[key], value) for key, value in model.state_dict().items())
    _, same, other = train_pair(pair, seed=5, epochs=0, shared_start=False)
    assert all(torch.equal(a[key], same[key]) for key in a)
    assert not torch.equal(a["0.weight"], other["0.weight"])
    runs = [train_pair(pair, seed=5, epochs=2)[1:] for _ in range(2)]
    for first, second in zip(*runs, strict=True):
        assert all(torch.equal(first[key], second[key]) for key in first)
    assert not torch.equal(runs[0][0]["0.weight"], runs[0][1]["0.weight"])
