"""Activation matching: known permutations come back; copies are matched as by their weights."""

import pytest
import torch
from torch import Tensor, nn

from mergelib.align import (
    activation_matching,
    git_rebasin,
    permute,
    random_permutations,
)
from mergelib.structure import structure_of
from tests.library.align.families import barrier, build, inverted, outputs, weights
from tests.library.align.test_matching import digits, digits_loss, digits_model, equal, trained

# One of each kind: fused and separate attention, convolutions, tied and token-type tables.
SEEN = ("chain", "mlp with head", "vit", "gpt", "resnet18", "bert classifier", "gpt2")


def batch(family: str) -> Tensor:
    generator = torch.Generator().manual_seed(3)
    if family.startswith(("bert", "gpt")):
        return torch.randint(1, 50, (16, 12), generator=generator)
    return torch.randn(32, 3, 32, 32, generator=generator)


@pytest.mark.parametrize("family", SEEN)
def test_a_known_permutation_is_recovered_exactly(family: str) -> None:
    model = build(family, seed=1)
    structure, a = structure_of(model), weights(model)
    drawn = random_permutations(structure, seed=2)
    b = permute(a, structure, drawn)
    result = activation_matching(a, b, model, batch(family))
    assert equal(result.state, a)
    inverse = inverted(structure, drawn)
    assert all(torch.equal(result.permutations[name], inverse[name]) for name in drawn)
    assert result.permutations.keys() == drawn.keys()
    assert result.objective[0] < result.objective[1] == pytest.approx(1.0, abs=1e-5)
    assert equal(weights(model), a)


@pytest.mark.parametrize("family", ["mlp", "vit"])
def test_copies_are_matched_as_by_their_weights(family: str) -> None:
    model = build(family, seed=1)
    structure, a = structure_of(model), weights(model)
    b = permute(a, structure, random_permutations(structure, seed=4))
    by_weights = git_rebasin(a, b, structure).permutations
    by_activations = activation_matching(a, b, model, batch(family)).permutations
    assert by_weights.keys() == by_activations.keys()
    assert all(torch.equal(by_weights[name], by_activations[name]) for name in by_weights)


@pytest.mark.parametrize("family", ["vit with head"])
def test_the_function_of_another_network_stays_the_same(family: str) -> None:
    a, b = weights(build(family, seed=1)), weights(build(family, seed=2))
    model = build(family)
    result = activation_matching(a, b, model, batch(family))
    before, after = (outputs(model, state, family) for state in (b, result.state))
    assert torch.allclose(before, after, atol=1e-4)
    assert result.objective[1] > result.objective[0] + 0.05


def test_pairs_by_hand_and_dead_units() -> None:
    model = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1))
    a = weights(model)
    a["0.weight"] = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.0, 0.0]])
    b = {key: tensor.clone() for key, tensor in a.items()}
    b["0.weight"] = torch.tensor([[0.0, 5.0], [0.0, 0.0], [0.1, 0.1]])  # of A: second, none, first
    result = activation_matching(a, b, model, torch.eye(2).repeat(4, 1) * torch.arange(8)[:, None])
    assert result.permutations["0"].tolist() == [2, 0, 1]


def test_networks_trained_apart_come_nearer() -> None:
    inputs, _ = digits()
    reference, other = trained(0), trained(1)
    aligned = activation_matching(reference, other, digits_model(), inputs[:500]).state
    assert digits_loss(aligned) == pytest.approx(digits_loss(other), abs=1e-5)
    before = barrier(digits_loss, reference, other)
    assert barrier(digits_loss, reference, aligned) < 0.3 * before


def test_errors_name_what_is_wrong() -> None:
    model = build("torchvision vit")
    a = weights(model)
    with pytest.raises(ValueError, match="embedding writes"):
        activation_matching(a, a, model, batch("torchvision vit"))
    model = build("mlp")
    a = weights(model)
    with pytest.raises(ValueError, match=r"b\['layers.0.bias'\] has shape \(3,\)"):
        activation_matching(a, {**a, "layers.0.bias": torch.zeros(3)}, model, batch("mlp"))
