"""The flow that SiT learns: straight lines from data to noise, and the way back along velocities.

At time t a latent is x_t = (1 − t) x + t ε with ε ~ N(0, 1), and moves with the velocity ε − x
(Ma et al., 2024). A network that knows the mean velocity at each x_t turns noise at t = 1 into data
at t = 0.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Generator, Tensor

Velocity = Callable[[Tensor, Tensor, Tensor], Tensor]  # of latents, times and labels


def on_the_way(latents: Tensor, noise: Tensor, times: Tensor) -> Tensor:
    """Where latents ``(B, …)`` are at times ``(B,)`` in 0..1 on their way to the noise."""
    t = times.view(-1, *[1] * (latents.dim() - 1))
    return (1 - t) * latents + t * noise


def velocity_loss(velocities: Tensor, latents: Tensor, noise: Tensor) -> Tensor:
    """Mean squared error of velocities against ε − x."""
    return F.mse_loss(velocities, noise - latents)


@torch.no_grad()
def draw(
    network: Velocity, labels: Tensor, shape: tuple[int, ...], *, steps: int, generator: Generator
) -> Tensor:
    """Latents of the classes ``labels``, by Euler's method from noise at t = 1 to t = 0."""
    x = torch.randn(len(labels), *shape, generator=generator).to(labels.device)
    for step in range(steps, 0, -1):
        times = torch.full((len(x),), step / steps, device=x.device)
        x = x - network(x, times, labels) / steps
    return x
