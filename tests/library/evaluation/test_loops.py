"""Evaluation against a plain loop; grids never held at once; models that stay as they are."""

import gc
import re
import weakref
from collections.abc import Iterator
from dataclasses import replace

import pandas as pd
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mergebook.suites.models import Head, scale_pixels
from mergelib.evaluation import loops as evaluation
from mergelib.evaluation.loops import SplitName, evaluate, evaluate_many, normalised_accuracy
from mergelib.evaluation.tasks import Split, Suite, Task

State = dict[str, Tensor]


class Small(nn.Module):
    """Convolution, BatchNorm and dropout, so that training and evaluation differ."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0
        self.net = nn.Sequential(
            nn.Conv2d(3, 6, 4, 4), nn.BatchNorm2d(6), nn.Dropout(0.5), nn.GELU(), nn.Flatten()
        )

    def forward(self, images: Tensor) -> Tensor:
        self.calls += 1
        output: Tensor = self.net(images)
        return output


@pytest.fixture(scope="module")
def digits() -> Suite:
    """Random pictures of two tasks."""
    generator = torch.Generator().manual_seed(0)

    def split(size: int) -> Split:
        images = torch.randint(256, (size, 3, 32, 32), dtype=torch.uint8, generator=generator)
        return Split(images, torch.randint(5, (size,), generator=generator))

    def task(name: str) -> Task:
        parts = [split(size) for size in (120, 24, 60)]
        return Task(name, tuple("01234"), parts[0], parts[1], parts[2], transform=scale_pixels)

    tasks = {name: task(name) for name in ("digits_low", "digits_high")}
    return Suite("digits2", 0, tasks, {})


@pytest.fixture
def model() -> Small:
    torch.manual_seed(0)
    return Small()


@pytest.fixture
def heads() -> dict[str, nn.Module]:
    torch.manual_seed(1)
    return {name: Head(torch.randn(5, 384), 5.0) for name in ("digits_low", "digits_high")}


def random_state(model: nn.Module, seed: int) -> State:
    """Weights, running means and variances of which none is the model's own."""
    torch.manual_seed(seed)
    return {
        key: torch.rand_like(value) if value.is_floating_point() else value + 1
        for key, value in model.state_dict().items()
    }


@torch.no_grad()
def plain_loop(
    model: Small, state: State, heads: dict[str, nn.Module], suite: Suite, split: str
) -> pd.DataFrame:
    fresh = Small().eval()
    fresh.load_state_dict(state)
    rows = []
    for name, task in suite.tasks.items():
        part, correct, loss = getattr(task, split), 0, 0.0
        for image, label in zip(part.inputs, part.labels, strict=True):
            logits = heads[name](fresh((image[None].float() - 127.5) / 127.5))
            correct += int(logits.argmax()) == int(label)
            loss += F.cross_entropy(logits, label[None]).item()
        n = len(part.labels)
        row = {"task": name, "accuracy": correct / n, "loss": loss / n}
        rows.append({**row, "correct": correct, "n": n})
    return pd.DataFrame(rows)


@pytest.mark.parametrize("split", ["train", "validation", "test"])
def test_evaluate_is_the_plain_loop(
    model: Small, heads: dict[str, nn.Module], digits: Suite, split: SplitName
) -> None:
    state = random_state(model, 2)
    expected = plain_loop(model, state, heads, digits, split)
    assert expected["correct"].between(1, expected["n"] - 1).all(), "a case worth testing"
    for batch_size in (7, 500):
        table = evaluate(model, state, heads, digits, split=split, batch_size=batch_size)
        pd.testing.assert_frame_equal(table, expected, rtol=1e-4)


@pytest.mark.parametrize("training", [True, False])
def test_the_model_stays_as_it_is(
    model: Small, heads: dict[str, nn.Module], digits: Suite, training: bool
) -> None:
    model.train(training)
    before = {key: value.clone() for key, value in model.state_dict().items()}
    state = random_state(model, 2)
    kept = {key: value.clone() for key, value in state.items()}
    first = evaluate(model, state, heads, digits)
    pd.testing.assert_frame_equal(first, evaluate(model, state, heads, digits))
    assert model.training is training
    assert all(torch.equal(model.state_dict()[key], before[key]) for key in before)
    assert all(torch.equal(state[key], kept[key]) for key in state)


def test_many_is_each(model: Small, heads: dict[str, nn.Module], digits: Suite) -> None:
    states = {f"seed {seed}": random_state(model, seed) for seed in (2, 3, 4)}
    table = evaluate_many(model, states, heads, digits, split="validation")
    assert list(table.columns) == ["candidate", "task", "accuracy", "loss", "correct", "n"]
    assert list(table["candidate"]) == [label for label in states for _ in range(2)]
    for label, state in states.items():
        part = table[table["candidate"] == label].drop(columns="candidate").reset_index(drop=True)
        expected = evaluate(model, state, heads, digits, split="validation")
        pd.testing.assert_frame_equal(part, expected)
    pairs = evaluate_many(model, list(states.items()), heads, digits, split="validation")
    pd.testing.assert_frame_equal(pairs, table)


def test_a_generator_is_consumed_one_at_a_time(
    model: Small, heads: dict[str, nn.Module], digits: Suite
) -> None:
    calls, alive = [], []
    weights: list[weakref.ref[Tensor]] = []

    def candidates() -> Iterator[tuple[int, State]]:
        for seed in range(5):
            calls.append(model.calls)
            gc.collect()
            alive.append(sum(reference() is not None for reference in weights))
            state = random_state(model, seed)
            weights.append(weakref.ref(state["net.0.weight"]))
            yield seed, state
            del state

    table = evaluate_many(model, candidates(), heads, digits, split="validation")
    assert len(table) == 10
    assert calls == [0, 2, 4, 6, 8], "each is judged on both tasks before the next is made"
    assert max(alive) <= 1, "at most one is held while the next is made"


def test_autocast_is_close_and_not_the_same(
    model: Small, heads: dict[str, nn.Module], digits: Suite, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(evaluation, "has_bfloat16", lambda device: True)
    state = random_state(model, 2)
    exact = evaluate(model, state, heads, digits)
    rough = evaluate(model, state, heads, digits, autocast=True)
    assert (exact["loss"] - rough["loss"]).abs().between(1e-7, 0.02).all()
    assert (exact["accuracy"] - rough["accuracy"]).abs().max() < 0.05


def test_autocast_is_left_out_where_bfloat16_is_emulated(
    model: Small, heads: dict[str, nn.Module], digits: Suite, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(evaluation, "has_bfloat16", lambda device: False)
    state = random_state(model, 2)
    exact = evaluate(model, state, heads, digits)
    pd.testing.assert_frame_equal(evaluate(model, state, heads, digits, autocast=True), exact)


def test_what_does_not_fit_is_named(
    model: Small, heads: dict[str, nn.Module], digits: Suite
) -> None:
    state = random_state(model, 2)
    lone = {"digits_low": heads["digits_low"]}
    with pytest.raises(ValueError, match="'digits_high' has no head; there are: digits_low"):
        evaluate(model, state, lone, digits)
    part = replace(digits, tasks={"digits_low": digits.tasks["digits_low"]})
    assert list(evaluate(model, state, lone, part)["task"]) == ["digits_low"]
    message = "candidate 'state' lacks key 'net.0.bias' compared with the model"
    with pytest.raises(ValueError, match=re.escape(message)):
        evaluate(model, {k: v for k, v in state.items() if k != "net.0.bias"}, heads, digits)
    message = "candidate 7['net.0.bias'] has shape (9,), expected (6,) as in the model"
    with pytest.raises(ValueError, match=re.escape(message)):
        evaluate_many(model, {7: {**state, "net.0.bias": torch.zeros(9)}}, heads, digits)


def test_normalised_accuracy() -> None:
    own = pd.DataFrame({"task": ["a", "b"], "accuracy": [0.8, 0.5]})
    table = pd.DataFrame({"task": ["b", "a", "b"], "accuracy": [0.5, 0.4, 0.6]})
    assert list(normalised_accuracy(table, own)) == pytest.approx([1, 0.5, 1.2])


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_cuda_agrees_with_the_cpu(model: Small, heads: dict[str, nn.Module], digits: Suite) -> None:
    state = random_state(model, 2)
    expected = evaluate(model, state, heads, digits)
    table = evaluate(model.cuda(), state, heads, digits)
    assert (table["correct"] - expected["correct"]).abs().max() <= 1
    pd.testing.assert_series_equal(table["loss"], expected["loss"], rtol=1e-2)


def test_one_task_at_a_time_is_on_the_device(
    model: Small, heads: dict[str, nn.Module], digits: Suite, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else all of a suite would have to fit at once."""
    there: list[weakref.ref[Tensor]] = []

    def moved(inputs: Tensor, labels: Tensor) -> Split:
        gc.collect()
        assert not [tensor for tensor in there if tensor() is not None], "the last task is gone"
        copy = Split(inputs.clone(), labels.clone())
        there.append(weakref.ref(copy.inputs))
        return copy

    monkeypatch.setattr(evaluation, "Split", moved)
    states = {seed: random_state(model, seed) for seed in range(2)}
    evaluate_many(model, states, heads, digits)
    assert len(there) == 4


def test_bfloat16_is_asked_of_the_device_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """And not of the current one."""
    current: list[str] = []

    class Chosen:
        def __init__(self, device: object) -> None:
            self.device = str(device)

        def __enter__(self) -> None:
            current.append(self.device)

        def __exit__(self, *_: object) -> None:
            current.pop()

    def supported(**_: object) -> bool:
        return current == ["cuda:1"]

    monkeypatch.setattr(torch.cuda, "device", Chosen)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", supported)
    assert evaluation.has_bfloat16(torch.device("cuda:1"))
