"""Fisher information against autograd loops and closed forms, and the merge it weighs."""

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import mergelib as ml
from mergebook.suites.models import GPT, VisionTransformer
from mergelib.procedures.fisher import diagonal_fisher

State = dict[str, Tensor]


def merge(case: Any, **options: Any) -> State:
    state: State = case.adapt("fisher", **{"labels": "true", **options}).state
    return state


def loop(model: nn.Module, state: State, head: nn.Module, x: Tensor, y: Tensor) -> State:
    """The definition, an example at a time."""
    model.load_state_dict(state)
    model.eval()
    parameters = dict(model.named_parameters())
    total = {name: torch.zeros_like(p) for name, p in parameters.items()}
    for each, label in zip(x, y, strict=True):
        logits = head(model(each[None])).flatten(0, -2)
        loss = F.cross_entropy(logits, label.flatten(), reduction="sum")
        for name, gradient in zip(
            parameters, torch.autograd.grad(loss, list(parameters.values())), strict=True
        ):
            total[name] += gradient.square()
    return {name: each / len(x) for name, each in total.items()}


@pytest.mark.parametrize("batch_size", [1, 7, 64])
def test_fisher_is_the_loop_over_examples(case: Any, batch_size: int) -> None:
    x, y = case.data["a"]
    expected = loop(case.model, case.experts["a"], case.heads["a"], x, y)
    found = diagonal_fisher(
        case.model, case.experts["a"], case.heads["a"], x, y, batch_size=batch_size
    )
    assert found.keys() == expected.keys()
    for key in expected:
        torch.testing.assert_close(found[key], expected[key], rtol=1e-5, atol=1e-8)


def test_fisher_of_transformers_is_the_loop(case: Any) -> None:
    torch.manual_seed(1)
    vit, pictures = VisionTransformer(width=16, depth=1, heads=2), torch.randn(3, 3, 32, 32)
    gpt, texts = GPT(width=16, depth=1, heads=2, vocabulary=9, context=7), torch.randint(9, (3, 7))
    cases = [
        (vit, nn.Linear(16, 3), pictures, torch.tensor([0, 2, 1])),
        (gpt, nn.Identity(), texts, texts.roll(1)),
    ]
    for model, head, x, y in cases:
        state = {key: value.clone() for key, value in model.state_dict().items()}
        expected = loop(model, state, head, x, y)
        found = diagonal_fisher(model, state, head, x, y)
        for key in expected:
            torch.testing.assert_close(found[key], expected[key], rtol=1e-4, atol=1e-7)


def test_drawn_labels_give_the_fisher_information_in_the_mean() -> None:
    """Softmax regression has a closed form: E_x [p_c (1 − p_c) x_j²] for weight (c, j)."""
    torch.manual_seed(0)
    model = nn.Linear(4, 3, bias=False)
    x = torch.randn(1, 4)
    p = model(x).softmax(1)[0]
    exact = (p * (1 - p))[:, None] * x.square()
    many = x.expand(20_000, -1)
    generator = torch.Generator().manual_seed(0)
    found = diagonal_fisher(
        model,
        model.state_dict(),
        nn.Identity(),
        many,
        batch_size=5000,
        generator=generator,
    )["weight"]
    torch.testing.assert_close(found, exact.detach(), rtol=0.05, atol=0)


def test_merge_by_hand(case: Any) -> None:
    merged = merge(case, floor=1e-3)
    weights = {}
    for task, (x, y) in case.data.items():
        information = loop(case.model, case.experts[task], case.heads[task], x, y)
        weights[task] = {key: each.clamp(min=1e-3) for key, each in information.items()}
    for key in weights["a"]:
        a, b = weights["a"][key], weights["b"][key]
        expected = (a * case.experts["a"][key] + b * case.experts["b"][key]) / (a + b)
        torch.testing.assert_close(merged[key], expected, rtol=1e-4, atol=1e-6)
    mean = (case.experts["a"]["norm.running_mean"] + case.experts["b"]["norm.running_mean"]) / 2
    torch.testing.assert_close(merged["norm.running_mean"], mean)
    assert merged["norm.num_batches_tracked"] == case.pretrained["norm.num_batches_tracked"]


def test_identities(case: Any) -> None:
    same = dict.fromkeys(case.experts, case.experts["a"])
    for key, value in merge(case, experts=same).items():
        if value.is_floating_point():
            torch.testing.assert_close(value, case.experts["a"][key])
    high = merge(case, floor=1e6)  # everything weighs the same
    average = ml.merge("average", case.experts)
    for key in dict(case.model.named_parameters()):
        torch.testing.assert_close(high[key], average[key])


def test_drawn_labels_repeat_with_the_seed_and_need_none(case: Any) -> None:
    unlabelled = {task: inputs for task, (inputs, _) in case.data.items()}
    first, again, pairs, other = (
        merge(case, labels="model", data=data, seed=seed)["first.weight"]
        for data, seed in ((unlabelled, 3), (unlabelled, 3), (case.data, 3), (unlabelled, 4))
    )
    assert torch.equal(first, again)
    assert torch.equal(first, pairs)
    assert not torch.equal(first, other)


def test_nothing_given_is_changed(case: Any) -> None:
    case.model.train()
    before = {key: value.clone() for key, value in case.model.state_dict().items()}
    merge(
        case,
    )
    assert case.model.training
    assert all(torch.equal(value, before[key]) for key, value in case.model.state_dict().items())


def test_bad_input(case: Any) -> None:
    x, y = case.data["a"]
    bad: list[tuple[dict[str, Any], str]] = [
        ({"data": {}}, "no data"),
        ({"data": {"a": (x, y)}}, "task 'b' has no data; there are: a"),
        ({"data": {"a": x, "b": (x, y)}}, r"needs labels: pass \(inputs, labels\) for task 'a'"),
        ({"data": {"a": (x, y[:3]), "b": (x, y)}}, "task 'a' has 20 inputs and 3 labels"),
        ({"data": {"a": (x[:0], y[:0]), "b": (x, y)}}, "task 'a' has no inputs"),
        ({"heads": {"a": case.heads["a"]}}, "task 'b' has no head"),
        ({"labels": "guess"}, "labels is 'guess', expected 'model' or 'true'"),
        ({"floor": 0.0}, "floor is 0.0, expected a positive number"),
        ({"data": {"a": (x * torch.nan, y), "b": (x, y)}}, "inputs of task 'a' holds NaN or Inf"),
        (
            {"labels": "model", "data": {"a": x * torch.nan, "b": x}},
            "inputs of task 'a' holds NaN or Inf",
        ),
    ]
    for options, message in bad:
        with pytest.raises(ValueError, match=message):
            merge(case, **options)
    with pytest.raises(ValueError, match="fisher needs model: pass model="):
        merge(case, model=None)


def test_without_heads_the_outputs_are_the_logits(case: Any) -> None:
    identity = dict.fromkeys(case.heads, nn.Identity())
    without, given = merge(case, heads=None), merge(case, heads=identity)
    assert all(torch.equal(without[key], given[key]) for key in given)


@pytest.mark.parametrize("labels", ["model", "true"])
def test_statistics_from_elsewhere_give_the_same(case: Any, tmp_path: Path, labels: str) -> None:
    """Bit for bit; drawn labels if one generator draws them in the order of the experts."""
    generator = torch.Generator().manual_seed(3)
    files = {}
    for task, (x, y) in case.data.items():
        information = diagonal_fisher(
            case.model,
            case.experts[task],
            case.heads[task],
            x,
            y if labels == "true" else None,
            generator=generator,
        )
        files[task] = tmp_path / f"{task}.safetensors"
        ml.save_state_dict(information, files[task])
    direct = merge(case, labels=labels, seed=3)
    elsewhere = ml.adapt("fisher", case.experts, pretrained=case.pretrained, statistics=files)
    assert all(torch.equal(elsewhere.state[key], direct[key]) for key in direct)
    if labels == "true":
        mixed = merge(case, statistics={"a": files["a"]}, data={"b": case.data["b"]})
        assert all(torch.equal(mixed[key], direct[key]) for key in direct)


def test_statistics_that_do_not_fit(case: Any) -> None:
    good = diagonal_fisher(
        case.model, case.experts["a"], case.heads["a"], case.data["a"][0], case.data["a"][1]
    )
    fewer = {key: value for key, value in good.items() if key != "first.bias"}
    for wrong, message in (
        ({"z": good}, "statistics name 'z', which is not an expert; there are: a, b"),
        ({"a": good}, "task 'b' has no data"),
        ({"a": good, "b": fewer}, "information of 'b' lacks key 'first.bias'"),
        ({"a": {**good, "first.bias": torch.ones(2)}, "b": good}, "does not fit expert 'a'"),
        (
            {"a": {**good, "first.bias": torch.full((8,), torch.nan)}, "b": good},
            "'first.bias' in expert 'a' holds NaN",
        ),
    ):
        with pytest.raises(ValueError, match=message):
            merge(case, statistics=wrong, data={"a": case.data["a"]})
