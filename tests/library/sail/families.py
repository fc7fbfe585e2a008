"""Small networks to grow, in float64 and with nothing left at zero or one."""

import pytest
import torch
from torch import Tensor, nn

from mergebook.suites import models


def perturbed(model: nn.Module, seed: int = 0) -> nn.Module:
    """Float64, evaluated, and nothing left at zero or one."""
    generator = torch.Generator().manual_seed(seed)
    model = model.double().eval()
    with torch.no_grad():
        for tensor in [*model.parameters(), *model.buffers()]:
            if tensor.is_floating_point():
                tensor.add_(0.1 * torch.rand(tensor.shape, generator=generator).double())
    return model


def gpt(width: int = 48, depth: int = 2, heads: int = 4) -> nn.Module:
    return perturbed(models.GPT(width, depth, heads, vocabulary=50, context=16))


def mlp(width: int = 24, depth: int = 2, classes: int = 5) -> nn.Module:
    return perturbed(nn.Sequential(models.MLP(width, depth), nn.Linear(width, classes)))


def resnet(width: int = 4, blocks: tuple[int, ...] = (1, 1, 1)) -> nn.Module:
    pytest.importorskip("torchvision")  # whose blocks it has
    net = models.ResNet(width, blocks)
    return perturbed(nn.Sequential(net, nn.Linear(net.width, 5)))


def vit(width: int = 32, depth: int = 2, heads: int = 4) -> nn.Module:
    return perturbed(
        nn.Sequential(models.VisionTransformer(width, depth, heads), nn.Linear(width, 5))
    )


def inputs(model: nn.Module) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    if isinstance(model, models.GPT):
        return torch.randint(0, 50, (2, 16), generator=generator)
    return torch.randn(4, 3, 32, 32, generator=generator).double()
