"""What tests of studies share."""

import pytest
import torch
from torch import Tensor

from mergebook.sail.measure.latents import World
from mergebook.sail.networks.diffusion import LatentToRepresentation
from mergelib.training import seeded


@pytest.fixture
def world() -> World:
    """Random latents of two classes, which are their own pictures."""
    generator = torch.Generator().manual_seed(7)

    def noise(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator)

    with seeded(0):
        represent = LatentToRepresentation(6, 8).requires_grad_(False)
    return World(
        latents=noise(40, 4, 8, 8),
        labels=torch.arange(40) % 2,
        names=("even", "odd"),
        wanted=noise(40, 16, 6),
        represent=represent,
        picture=lambda latents: latents,
        judge=lambda pictures: pictures.mean((2, 3)),
        real=noise(40, 4),
        floor=[],
        flops=1000,
        seed=0,
    )
