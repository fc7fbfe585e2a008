"""An autoencoder for 32x32 images, and SiT, the transformer that learns to draw its latents.

In SiT (Ma et al., 2024) time and class scale and shift the norms and gate the branches, closed at
first. At time t a latent is x_t = (1 − t) x + t ε with ε ~ N(0, 1), and its velocity ε − x: noise
at t = 1 becomes data at t = 0. REPA and SAIL's appendix J pull its tokens to another network's.
"""

import math
from collections.abc import Callable
from typing import cast

import torch
import torch.nn.functional as F
from torch import Generator, Tensor, nn

from mergebook.suites.models import Attention
from mergelib.structure import Features, Scope, describes

CHANNELS, SIDE = 4, 8  # of the latents of a picture
TIMES = 64  # sines and cosines of a moment
Velocity = Callable[[Tensor, Tensor, Tensor], Tensor]  # of latents, times and labels


class AutoEncoder(nn.Sequential):
    """Encoder of images ``(B, 3, 32, 32)`` in -1..1 to latents ``(B, 4, 8, 8)``, and decoder."""

    def __init__(self, width: int = 32) -> None:
        wide = 2 * width
        halved = [nn.Conv2d(3, width, 3, stride=2, padding=1), nn.GELU()]
        halved += [nn.Conv2d(width, wide, 3, stride=2, padding=1), nn.GELU()]
        encoder = nn.Sequential(*halved, nn.Conv2d(wide, CHANNELS, 1))
        doubled = [nn.Conv2d(CHANNELS, wide, 3, padding=1), nn.GELU()]
        doubled += [nn.ConvTranspose2d(wide, width, 4, stride=2, padding=1), nn.GELU()]
        decoder = nn.Sequential(*doubled, nn.ConvTranspose2d(width, 3, 4, stride=2, padding=1))
        super().__init__(encoder, decoder)


class GatedBlock(nn.Module):
    """A transformer block whose norms and branches a condition scales, shifts and gates."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width, elementwise_affine=False)
        self.attn = Attention(width, heads)
        self.norm2 = nn.LayerNorm(width, elementwise_affine=False)
        self.fc1, self.fc2 = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.modulation = nn.Linear(width, 6 * width)

    def forward(self, x: Tensor, condition: Tensor) -> Tensor:
        shifts_scales_gates = self.modulation(F.silu(condition))[:, None].chunk(6, -1)
        shift, scale, gate = shifts_scales_gates[:3]
        x = x + gate * self.attn(self.norm1(x) * (1 + scale) + shift)
        shift, scale, gate = shifts_scales_gates[3:]
        hidden = F.gelu(self.fc1(self.norm2(x) * (1 + scale) + shift), approximate="tanh")
        out: Tensor = x + gate * self.fc2(hidden)
        return out


class SiT(nn.Module):
    """A transformer over the 16 patches of 2x2 of a latent, told time and class."""

    pos_embed: Tensor

    def __init__(self, width: int, depth: int, heads: int, classes: int = 10) -> None:
        super().__init__()
        self.width, self.classes = width, classes
        patch = CHANNELS * 4
        self.embed = nn.Linear(patch, width)
        self.register_buffer("pos_embed", _grid(SIDE // 2, width))
        self.time = nn.Sequential(nn.Linear(TIMES, width), nn.SiLU(), nn.Linear(width, width))
        self.label = nn.Embedding(classes + 1, width)
        self.blocks = nn.ModuleList([GatedBlock(width, heads) for _ in range(depth)])
        self.norm = nn.LayerNorm(width, elementwise_affine=False)
        self.modulation = nn.Linear(width, 2 * width)
        self.out = nn.Linear(width, patch)
        self._initialise()

    def forward(self, latents: Tensor, times: Tensor, labels: Tensor) -> Tensor:
        velocities, _ = self.with_tokens(latents, times, labels, len(self.blocks))
        return velocities

    def with_tokens(
        self, latents: Tensor, times: Tensor, labels: Tensor, block: int
    ) -> tuple[Tensor, Tensor]:
        """The velocities, and the tokens ``(B, 16, width)`` after this number of blocks."""
        condition = self.time(_waves(times)) + self.label(labels)
        patches = F.unfold(latents, 2, stride=2).transpose(1, 2)  # `(B, 16, 16)`
        x = self.embed(patches) + self.pos_embed
        tokens = x
        for number, each in enumerate(self.blocks, 1):
            x = each(x, condition)
            tokens = x if number == block else tokens
        shift, scale = self.modulation(F.silu(condition))[:, None].chunk(2, -1)
        moved = self.out(self.norm(x) * (1 + scale) + shift).transpose(1, 2)
        return F.fold(moved, (SIDE, SIDE), 2, stride=2), tokens

    def _initialise(self) -> None:
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.xavier_uniform_(module.weight)
                nn.init.zeros_(module.bias)
        for module in (self.time[0], self.time[2], self.label):
            nn.init.normal_(cast(Tensor, module.weight), std=0.02)
        gates = [cast(GatedBlock, block).modulation for block in self.blocks]
        for linear in (*gates, self.modulation, self.out):
            nn.init.zeros_(linear.weight)  # its bias is zero already


class Projector(nn.Sequential):
    """From tokens ``(B, 16, width)`` to as many representations ``(B, 16, size)``, as in REPA."""

    def __init__(self, width: int, size: int) -> None:
        first, second = nn.Linear(width, 2 * width), nn.Linear(2 * width, 2 * width)
        super().__init__(first, nn.SiLU(), second, nn.SiLU(), nn.Linear(2 * width, size))


class LatentToRepresentation(nn.Module):
    """f_P of appendix J: latents ``(B, 4, 8, 8)`` to a representation of each patch of 2x2."""

    def __init__(self, size: int, hidden: int = 32) -> None:
        super().__init__()
        first = nn.Conv2d(CHANNELS, hidden, 3, padding=1)
        halved = nn.Conv2d(hidden, 2 * hidden, 2, stride=2)
        last = nn.Conv2d(2 * hidden, size, 3, padding=1)
        self.layers = nn.Sequential(first, nn.GELU(), halved, nn.GELU(), last)

    def forward(self, latents: Tensor) -> Tensor:
        tokens: Tensor = self.layers(latents).flatten(2).transpose(1, 2)
        return tokens


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


def repa_loss(projected: Tensor, wanted: Tensor) -> Tensor:
    """Mean of −cos over tokens, in -1..1 (REPA, Yu et al., 2024)."""
    return -F.cosine_similarity(projected, wanted, dim=-1).mean()


def _waves(times: Tensor) -> Tensor:
    """Cosines and sines of the moments, ``(B, TIMES)``."""
    steps = torch.arange(TIMES // 2, device=times.device) / (TIMES // 2)
    angles = times[:, None] * torch.exp(-math.log(10_000) * steps).to(times)
    return torch.cat([angles.cos(), angles.sin()], 1)


def _grid(side: int, width: int) -> Tensor:
    """Sines and cosines of row and column, ``(side², width)``."""
    if width % 4:
        raise ValueError(f"width is {width}, expected a multiple of 4")
    rates = 10_000 ** -(torch.arange(width // 4) / (width / 4))
    places = torch.arange(side).float()[:, None] * rates
    waves = torch.cat([places.sin(), places.cos()], 1)
    rows, columns = waves.repeat_interleave(side, 0), waves.repeat(side, 1)
    return torch.cat([columns, rows], 1)


@describes(GatedBlock)
def _gated_block(block: GatedBlock, scope: Scope, x: Features, condition: Features) -> Features:
    _declare_gates(scope, x, condition, parts=6)
    x = cast(Features, scope.add(x, scope.chain(x, "norm1", "attn")))
    return cast(Features, scope.add(x, scope.chain(x, "norm2", "fc1", "fc2")))


@describes(SiT)
def _sit(net: SiT, scope: Scope, _: Features | None) -> Features | None:
    x: Features = scope("embed", None)
    scope.declare("pos_embed", ("index", None), ("write", x))
    condition = cast(Features, scope.add(scope("time", None), scope("label", None)))
    for number in range(len(net.blocks)):
        x = scope(f"blocks.{number}", x, condition=condition)
    _declare_gates(scope, x, condition, parts=2)
    return scope.chain(x, "norm", "out")


def _declare_gates(scope: Scope, x: Features, condition: Features, parts: int) -> None:
    """One factor, or summand, for each feature of the stream in each part."""
    gates = Features(x.layout * parts)
    scope.declare("modulation.weight", ("scale", gates), ("read", condition))
    scope.declare("modulation.bias", ("scale", gates))
