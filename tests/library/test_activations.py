"""Inputs of layers against the layers computed one by one."""

import copy
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import mergelib as ml
from mergelib.activations import layer_inputs, normalising_by_batch, recalibrate_batchnorm


def test_layer_inputs_are_what_the_layers_get() -> None:
    torch.manual_seed(0)
    first, second = nn.Linear(3, 4), nn.Linear(4, 2)
    x = torch.randn(5, 6, 3)
    seen = layer_inputs(nn.Sequential(first, nn.ReLU(), second), x)
    assert list(seen) == ["0.weight", "2.weight"]
    assert torch.equal(seen["0.weight"], x.flatten(0, 1))
    torch.testing.assert_close(seen["2.weight"], first(x).relu().flatten(0, 1).detach())


def test_layer_inputs_with_other_weights() -> None:
    torch.manual_seed(0)
    model, other = (nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)) for _ in range(2))
    x = torch.randn(5, 3)
    seen = layer_inputs(model, x, other.state_dict())
    torch.testing.assert_close(seen["2.weight"], other[:2](x).detach())
    assert not model._forward_pre_hooks
    assert not any(module._forward_pre_hooks for module in model), "nothing is left behind"


def test_recalibrated_statistics_are_those_of_the_inputs(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.BatchNorm1d(4))
    before = {key: value.clone() for key, value in model.state_dict().items()}
    other = {key: value + 1 for key, value in before.items() if value.is_floating_point()}
    batches = list(5 + torch.randn(2, 50, 3))
    found = recalibrate_batchnorm(model, {**before, **other}, batches)
    seen = [batch @ other["0.weight"].T + other["0.bias"] for batch in batches]
    for name, values in (("mean", [x.mean(0) for x in seen]), ("var", [x.var(0) for x in seen])):
        torch.testing.assert_close(found[f"1.running_{name}"], torch.stack(values).mean(0))
    assert torch.equal(found["0.weight"], other["0.weight"])
    assert all(torch.equal(model.state_dict()[key], before[key]) for key in before)
    ml.save_state_dict({**before, **other}, tmp_path / "merged.safetensors")
    read = recalibrate_batchnorm(model, tmp_path / "merged.safetensors", batches)
    assert all(torch.equal(read[key], found[key]) for key in found)
    alone = recalibrate_batchnorm(model, before, batches[:1])
    model.load_state_dict(alone)
    normalised = model.eval()[:2](batches[0])
    torch.testing.assert_close(normalised.mean(0), torch.zeros(4), atol=1e-5, rtol=0)


def test_a_batch_s_own_statistics_leave_those_at_rest() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.BatchNorm1d(4), nn.Dropout(0.5)).eval()
    before = {key: value.clone() for key, value in model.state_dict().items()}
    x = 5 + torch.randn(50, 4)
    with normalising_by_batch(model):
        seen = model(x)
    torch.testing.assert_close(seen.mean(0), torch.zeros(4), atol=1e-5, rtol=0)
    assert all(torch.equal(model.state_dict()[key], before[key]) for key in before)
    assert not torch.allclose(model(x), seen)
    assert not any(module.training for module in model.modules())
    model.train()(x)
    assert model.state_dict()["0.num_batches_tracked"] == 1, "and are kept again"


def test_batches_by_name_are_batches() -> None:
    norm, x = nn.BatchNorm1d(4), 5 + torch.randn(2, 50, 4)
    wanted = recalibrate_batchnorm(norm, norm.state_dict(), [*x])
    found = recalibrate_batchnorm(norm, norm.state_dict(), [{"input": batch} for batch in x])
    assert all(torch.equal(found[key], value) for key, value in wanted.items())


def test_recalibrating_refuses_what_it_cannot_do() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
    with pytest.raises(ValueError, match="no batch"):
        recalibrate_batchnorm(model, model.state_dict(), [])
    with pytest.raises(ValueError, match="no BatchNorm"):
        recalibrate_batchnorm(model[0], model[0].state_dict(), [torch.ones(2, 3)])


@pytest.mark.parametrize(
    ("library", "name"), [("torchvision", "resnet18"), ("timm", "resnet18"), ("timm", "resnet50")]
)
def test_statistics_of_real_networks_are_pytorchs(library: str, name: str) -> None:
    """Against `torch.optim.swa_utils.update_bn`, on the average of two networks."""
    found = pytest.importorskip(library)
    build = found.create_model if library == "timm" else found.models.get_model
    torch.manual_seed(0)
    experts = [build(name) for _ in range(2)]
    model, batches = experts[0], [*torch.randn(2, 4, 3, 64, 64)]
    merged = ml.merge("average", [expert.state_dict() for expert in experts])
    measured = ml.recalibrate_batchnorm(model, merged, batches)
    model.load_state_dict(merged)
    torch.optim.swa_utils.update_bn(batches, model)
    for key, value in model.state_dict().items():
        torch.testing.assert_close(measured[key], value, msg=key)
    assert not torch.equal(measured["bn1.running_mean"], merged["bn1.running_mean"])


def gratings(count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Noisy waves in eight directions, which are the classes."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, 8, (count,), generator=generator)
    along = torch.linspace(0, 2 * math.pi, 16)
    y, x = torch.meshgrid(along, along, indexing="ij")
    angles, phases = (
        each.view(-1, 1, 1)
        for each in (labels * math.pi / 8, 2 * math.pi * torch.rand(count, generator=generator))
    )
    waves = torch.sin(angles.cos() * x + angles.sin() * y + phases).unsqueeze(1)
    return waves + 1.5 * torch.randn(count, 3, 16, 16, generator=generator), labels


def test_a_soup_of_three_timm_resnets() -> None:
    """Accuracy on unseen gratings: recalibration gains more than a tenth, without any label.

    The networks are one network after a few steps, fine-tuned on three other sequences of batches.
    """
    package = pytest.importorskip("timm.models.resnet")
    torch.manual_seed(0)
    sizes: dict[str, Any] = {"channels": (8, 16, 24, 32), "num_classes": 8, "stem_width": 8}
    model = package.ResNet(package.BasicBlock, [1, 1, 1, 1], **sizes)

    def trained(steps: int, rate: float, seed: int) -> dict[str, Tensor]:
        optimiser = torch.optim.SGD(model.train().parameters(), rate, momentum=0.9)
        for step in range(steps):
            inputs, labels = gratings(64, 1000 * seed + step)
            optimiser.zero_grad()
            nn.functional.cross_entropy(model(inputs), labels).backward()
            optimiser.step()
        return copy.deepcopy(model.state_dict())

    def accuracy(state: dict[str, Tensor]) -> float:
        model.load_state_dict(state)
        inputs, labels = gratings(400, 99)
        with torch.no_grad():
            return float((model.eval()(inputs).argmax(1) == labels).float().mean())

    base = trained(30, 0.05, seed=1)
    experts = []
    for seed in (2, 3, 4):
        model.load_state_dict(base)
        experts.append(trained(30, 0.3, seed))
    merged = ml.merge("average", experts, pretrained=base)
    batches = [gratings(100, 500 + number)[0] for number in range(4)]
    measured = ml.recalibrate_batchnorm(model, merged, batches)
    assert accuracy(measured) > accuracy(merged) + 0.1
    assert accuracy(measured) > max(map(accuracy, experts))
    assert "recalibrate_batchnorm" in ml.inspect(experts, pretrained=base).reason
    bare = [{k: v for k, v in e.items() if "running" not in k} for e in (*experts, base)]
    assert "recalibrate" not in ml.inspect(bare[:-1], pretrained=bare[-1]).reason
