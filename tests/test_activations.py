"""Inputs of layers against the layers computed one by one."""

import torch
from torch import nn

from mergelib.activations import layer_inputs


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
