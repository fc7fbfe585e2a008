"""Media: how a glyph's coverage becomes an image, each of one task; the plain ones pretrain.

Coverages are (N, 1, 32, 32) in [0, 1], images (N, 3, 32, 32) in about [0, 1].
"""

import math
from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Generator, Tensor

Medium = Callable[[Tensor, Generator], Tensor]
Colour = Sequence[float]


# --- building blocks -------------------------------------------------------------------------


def uniform(low: float, high: float, shape: Sequence[int], generator: Generator) -> Tensor:
    """Numbers drawn uniformly from [low, high)."""
    return low + (high - low) * torch.rand(*shape, generator=generator)


def colours(like: Tensor, low: Colour, high: Colour, generator: Generator) -> Tensor:
    """One colour per image of the batch `like`, from the box between `low` and `high`."""
    box = torch.tensor([low, high]).reshape(2, 1, 3, 1, 1)
    return torch.lerp(box[0], box[1], torch.rand(len(like), 3, 1, 1, generator=generator))


def cloud(like: Tensor, cells: int, generator: Generator) -> Tensor:
    """Smooth noise of mean 0 and about unit spread, (N, 1, 32, 32)."""
    side = like.shape[-1]
    noise = torch.randn(len(like), 1, cells, cells, generator=generator)
    return F.interpolate(noise, (side, side), mode="bicubic", align_corners=False)


def speckle(like: Tensor, generator: Generator, channels: int = 1) -> Tensor:
    """White noise of unit spread, (N, channels, 32, 32)."""
    return torch.randn(len(like), channels, *like.shape[-2:], generator=generator)


def blur(image: Tensor, sigma: float) -> Tensor:
    """Gaussian blur with the given standard deviation in pixels, edges repeated."""
    reach = math.ceil(2.5 * sigma)
    offsets = torch.arange(-reach, reach + 1, dtype=image.dtype)
    kernel = torch.exp(-0.5 * (offsets / sigma) ** 2)
    row = (kernel / kernel.sum()).expand(image.shape[1], 1, 1, -1)
    for pad, line in (((reach, reach, 0, 0), row), ((0, 0, reach, reach), row.mT)):
        image = F.conv2d(F.pad(image, pad, "replicate"), line, groups=image.shape[1])
    return image


def paint(ground: Tensor, figure: Tensor, mask: Tensor) -> Tensor:
    """The figure's colour where the mask covers, the ground's elsewhere."""
    return ground + (figure - ground) * mask


def relief(height: Tensor) -> Tensor:
    """Light from the upper left on a height field: positive on slopes that face it."""
    padded = F.pad(height, (1, 1, 1, 1), "replicate")
    return padded[..., 2:, 2:] - padded[..., :-2, :-2]


def grid(like: Tensor) -> tuple[Tensor, Tensor]:
    """Pixel coordinates (y, x) in [-1, 1], each broadcastable to the batch."""
    axis = torch.linspace(-1, 1, like.shape[-1])
    return axis.reshape(1, 1, -1, 1), axis.reshape(1, 1, 1, -1)


def ramp(like: Tensor, generator: Generator) -> Tensor:
    """A linear gradient from 0 to 1 in a random direction, (N, 1, 32, 32)."""
    angle = uniform(0, 2 * math.pi, (len(like), 1, 1, 1), generator)
    y, x = grid(like)
    return 0.5 + 0.35 * (torch.cos(angle) * x + torch.sin(angle) * y)


def stripes(like: Tensor, angle: float, period: float, generator: Generator) -> Tensor:
    """A sine grating in [0, 1] with random phase; `period` in pixels, `angle` in radians."""
    y, x = grid(like)
    pixels = (like.shape[-1] - 1) / 2
    phase = uniform(0, 2 * math.pi, (len(like), 1, 1, 1), generator)
    turn = angle + uniform(-0.15, 0.15, (len(like), 1, 1, 1), generator)
    along = pixels * (torch.cos(turn) * x + torch.sin(turn) * y)
    return 0.5 + 0.5 * torch.sin(2 * math.pi * along / period + phase)


# --- media of the tasks ----------------------------------------------------------------------


def ink(mask: Tensor, generator: Generator) -> Tensor:
    """Bleeding ink on stained parchment."""
    paper = colours(mask, (0.78, 0.68, 0.48), (0.96, 0.9, 0.74), generator)
    paper = paper + 0.07 * cloud(mask, 5, generator) + 0.04 * speckle(mask, generator)
    bled = (blur(mask, 0.6) * (1 + 0.35 * cloud(mask, 9, generator))).clamp(0, 1)
    return paint(paper, colours(mask, (0.05, 0.03, 0.1), (0.3, 0.2, 0.25), generator), bled)


def neon(mask: Tensor, generator: Generator) -> Tensor:
    """A glowing tube before a dark wall."""
    wall = 0.08 + 0.03 * cloud(mask, 6, generator)
    hue = uniform(0, 1, (len(mask), 1, 1, 1), generator)
    thirds = torch.tensor([0.0, 1 / 3, 2 / 3]).reshape(1, 3, 1, 1)
    light = 0.5 + 0.5 * torch.cos(2 * math.pi * (hue - thirds))
    edge = (blur(mask, 0.7) - blur(mask, 1.6)).clamp(min=0)
    glow = 0.9 * blur(mask, 2.2) + 2.4 * edge
    return wall + light * glow + 0.5 * edge + 0.05 * speckle(mask, generator, 3)


def emboss(mask: Tensor, generator: Generator) -> Tensor:
    """Pressed into card: no colour of its own, only light and shade."""
    card = colours(mask, (0.5, 0.5, 0.45), (0.75, 0.75, 0.72), generator)
    height = blur(mask, 0.9) + 0.09 * cloud(mask, 10, generator)
    return card + 0.4 * relief(height) + 0.04 * speckle(mask, generator)


def chalk(mask: Tensor, generator: Generator) -> Tensor:
    """Broken chalk strokes on a smeared green board."""
    board = colours(mask, (0.08, 0.2, 0.15), (0.16, 0.34, 0.26), generator)
    board = board + 0.06 * cloud(mask, 4, generator) + 0.03 * speckle(mask, generator)
    broken = mask * (0.75 + 0.45 * speckle(mask, generator)).clamp(0, 1)
    dust = 0.2 * blur(mask, 2.0)
    tint = colours(mask, (0.8, 0.75, 0.65), (1.0, 1.0, 1.0), generator)
    return paint(board, tint, (broken + dust).clamp(0, 1))


def wood(mask: Tensor, generator: Generator) -> Tensor:
    """Burnt into grained wood, or inlaid bright."""
    rings = stripes(mask, 0.0, 7.0, generator) + 0.5 * cloud(mask, 3, generator)
    grain = 0.10 * rings + 0.09 * cloud(mask, 16, generator).mean(2, keepdim=True)
    plank = colours(mask, (0.5, 0.3, 0.14), (0.75, 0.5, 0.28), generator) + grain
    dark = colours(mask, (0.15, 0.08, 0.03), (0.28, 0.16, 0.08), generator) + 0.5 * grain
    bright = colours(mask, (0.85, 0.72, 0.5), (0.98, 0.9, 0.7), generator) + 0.5 * grain
    inlaid = torch.rand(len(mask), 1, 1, 1, generator=generator) < 0.5
    return paint(plank, torch.where(inlaid, bright, dark), 0.85 * mask)


def halftone(mask: Tensor, generator: Generator) -> Tensor:
    """Newspaper dots: darkness becomes the size of the dots."""
    tone = 0.2 + 0.62 * blur(mask, 0.8) + 0.08 * cloud(mask, 4, generator)
    y, x = grid(mask)
    phase = uniform(0, 2 * math.pi, (2, len(mask), 1, 1, 1), generator)
    turn, step = math.pi / 4, 2 * math.pi / 3.3 * (mask.shape[-1] - 1) / 2
    rows = torch.cos(step * (math.cos(turn) * x + math.sin(turn) * y) + phase[0])
    columns = torch.cos(step * (math.cos(turn) * y - math.sin(turn) * x) + phase[1])
    dots = torch.sigmoid(5 * (2.6 * (tone - 0.5) + 0.5 * (rows + columns)))
    paper = colours(mask, (0.85, 0.82, 0.75), (1.0, 0.98, 0.94), generator)
    return paint(paper, colours(mask, (0.0, 0.0, 0.0), (0.25, 0.2, 0.45), generator), dots)


def pixels(mask: Tensor, generator: Generator) -> Tensor:
    """A 16 x 16 sprite with hard pixels and few colours."""
    small = F.avg_pool2d(mask, 2)
    ground = colours(mask, (0.05, 0.1, 0.3), (0.4, 0.35, 0.6), generator)
    figure = colours(mask, (0.75, 0.55, 0.2), (1.0, 1.0, 0.6), generator)
    sprite = paint(ground, figure, (small * 3).round() / 3)
    sprite = sprite + 0.07 * torch.randn(*sprite.shape, generator=generator)
    return sprite.repeat_interleave(2, 2).repeat_interleave(2, 3)


def watermark(mask: Tensor, generator: Generator) -> Tensor:
    """A faint lighter figure over a colourful gradient."""
    first = colours(mask, (0.1, 0.1, 0.2), (0.8, 0.7, 0.8), generator)
    second = colours(mask, (0.1, 0.2, 0.1), (0.8, 0.8, 0.9), generator)
    scene = torch.lerp(first, second, ramp(mask, generator)) + 0.08 * cloud(mask, 4, generator)
    return scene + 0.2 * mask + 0.03 * speckle(mask, generator, 3)


def stencil(mask: Tensor, generator: Generator) -> Tensor:
    """Sprayed through a stencil onto a concrete wall."""
    wall = 0.64 + 0.06 * cloud(mask, 6, generator) + 0.05 * speckle(mask, generator)
    spray = (
        blur(mask, 0.9) + 0.14 * speckle(mask, generator) + 0.3 * cloud(mask, 3, generator) * mask
    )
    figure = colours(mask, (0.5, 0.0, 0.0), (0.95, 0.45, 0.3), generator)
    return paint(wall.expand(-1, 3, -1, -1), figure, ((spray - 0.25) * 1.6).clamp(0, 1))


def gold(mask: Tensor, generator: Generator) -> Tensor:
    """Gold leaf, shining along a gradient, on deep blue."""
    night = colours(mask, (0.02, 0.04, 0.2), (0.1, 0.18, 0.45), generator)
    night = night + 0.05 * cloud(mask, 5, generator)
    shine = ramp(mask, generator) + 0.2 * cloud(mask, 7, generator)
    leaf = torch.tensor([1.0, 0.82, 0.4]).reshape(1, 3, 1, 1) * (0.35 + 0.75 * shine)
    return paint(night, leaf, mask) + 0.05 * speckle(mask, generator)


def blueprint(mask: Tensor, generator: Generator) -> Tensor:
    """White lines on blue squared paper."""
    sheet = colours(mask, (0.08, 0.25, 0.5), (0.2, 0.42, 0.72), generator)
    lines = (stripes(mask, 0.0, 5.0, generator) ** 8).maximum(
        stripes(mask, math.pi / 2, 5.0, generator) ** 8
    )
    outline = (3.2 * (mask - blur(mask, 1.0)).abs()).clamp(0, 1).maximum(0.35 * mask)
    drawn = (0.45 * lines).maximum(outline)
    return sheet + 0.6 * drawn + 0.03 * speckle(mask, generator)


def screen(mask: Tensor, generator: Generator) -> Tensor:
    """A green monitor with scan lines and a lit background."""
    y, _ = grid(mask)
    lines = 0.62 + 0.38 * torch.cos(math.pi * (mask.shape[-1] - 1) / 2 * (y + 1))
    light = (
        0.16 + 0.85 * blur(mask, 0.6) + 0.12 * blur(mask, 2.5) + 0.05 * cloud(mask, 4, generator)
    )
    glow = (light + 0.1 * speckle(mask, generator)) * lines
    return glow * colours(mask, (0.1, 0.75, 0.2), (0.45, 1.0, 0.5), generator)


def motion(mask: Tensor, generator: Generator) -> Tensor:
    """Smeared sideways, as in a photograph of something passing."""
    kernel = torch.ones(1, 1, 1, 3) / 3
    smeared = blur(F.conv2d(F.pad(mask, (1, 1, 0, 0)), kernel), 0.6)
    ground = colours(mask, (0.3, 0.35, 0.4), (0.6, 0.6, 0.6), generator)
    streaks = cloud(mask, 8, generator).mean(3, keepdim=True)
    figure = colours(mask, (0.85, 0.85, 0.6), (1.0, 1.0, 1.0), generator)
    return paint(ground + 0.2 * streaks, figure, smeared) + 0.03 * speckle(mask, generator, 3)


def coin(mask: Tensor, generator: Generator) -> Tensor:
    """Struck on a round metal coin."""
    y, x = grid(mask)
    radius = (x**2 + y**2).sqrt()
    disc = torch.sigmoid(30 * (0.95 - radius))
    rim = torch.exp(-((radius - 0.86) ** 2) / 0.002)
    height = 0.9 * blur(mask, 0.6) + rim + 0.06 * cloud(mask, 12, generator)
    metal = colours(mask, (0.5, 0.4, 0.28), (0.75, 0.66, 0.58), generator)
    struck = metal + 0.3 * relief(height) + 0.12 * mask + 0.15 * (ramp(mask, generator) - 0.5)
    return paint(torch.full_like(struck, 0.12), struck, disc) + 0.03 * speckle(mask, generator)


def mosaic(mask: Tensor, generator: Generator) -> Tensor:
    """Dots of all lightnesses, as in a colour-vision test: only the hue shows the figure."""
    side = mask.shape[-1] // 2
    light = uniform(0.45, 1.0, (len(mask), 1, side, side), generator)
    light = light.repeat_interleave(2, 2).repeat_interleave(2, 3)
    ground = colours(mask, (0.3, 0.55, 0.2), (0.5, 0.8, 0.35), generator)
    figure = colours(mask, (0.75, 0.35, 0.15), (0.95, 0.5, 0.3), generator)
    dots = paint(ground, figure, (mask + 0.15 * speckle(mask, generator)).clamp(0, 1)) * light
    return dots + 0.05 * speckle(mask, generator)


def marble(mask: Tensor, generator: Generator) -> Tensor:
    """Carved into veined marble."""
    veins = torch.exp(-6 * cloud(mask, 4, generator).abs())
    stone = colours(mask, (0.78, 0.76, 0.74), (0.95, 0.93, 0.92), generator) - 0.3 * veins
    carved = stone - 0.3 * relief(blur(mask, 0.7)) - 0.16 * mask
    return carved + 0.02 * speckle(mask, generator)


def weave(mask: Tensor, generator: Generator) -> Tensor:
    """Knitted: threads over and under in two colours."""
    y, x = grid(mask)
    step = math.pi * (mask.shape[-1] - 1) / 2
    thread = 0.8 + 0.2 * torch.cos(step * x / 1.5 + step * y / 3) * torch.cos(step * y / 1.5)
    ground = colours(mask, (0.35, 0.05, 0.1), (0.65, 0.25, 0.3), generator)
    figure = colours(mask, (0.7, 0.7, 0.6), (0.98, 0.95, 0.9), generator)
    ragged = (mask + 0.13 * speckle(mask, generator) > 0.35).float()
    return paint(ground, figure, blur(ragged, 0.4)) * thread


def sky(mask: Tensor, generator: Generator) -> Tensor:
    """Drawn by stars in a cloudy night sky."""
    clouds = 0.12 + 0.06 * cloud(mask, 4, generator)
    night = clouds * colours(mask, (0.6, 0.4, 1.2), (1.2, 0.9, 1.8), generator)
    chance = 0.015 + 0.65 * mask
    lit = (torch.rand(*mask.shape, generator=generator) < chance).float()
    stars = lit * uniform(0.5, 1.1, mask.shape, generator)
    return night + stars + 0.6 * blur(stars, 0.8)


def heat(mask: Tensor, generator: Generator) -> Tensor:
    """A thermal camera: warm figure, cool ground, colours from black over red to white."""
    warmth = 0.22 + 0.5 * blur(mask, 1.0) + 0.1 * cloud(mask, 4, generator)
    warmth = warmth + uniform(-0.08, 0.12, (len(mask), 1, 1, 1), generator)
    warmth = warmth + 0.03 * speckle(mask, generator)
    shift = torch.tensor([0.0, 1.0, 2.0]).reshape(1, 3, 1, 1)
    violet = torch.tensor([0.0, 0.0, 0.45]).reshape(1, 3, 1, 1) * torch.exp(
        -((warmth - 0.3) ** 2) / 0.02
    )
    return (2.6 * warmth - 0.85 * shift).clamp(0, 1) + violet


def glass(mask: Tensor, generator: Generator) -> Tensor:
    """Seen through ribbed glass: rows shifted to and fro."""
    y, x = grid(mask)
    phase = uniform(0, 2 * math.pi, (len(mask), 1, 1), generator)
    shift = 0.055 * torch.sin(2 * math.pi * 3.5 * y[:, 0] + phase).expand(-1, -1, mask.shape[-1])
    points = torch.stack([x[:, 0].expand_as(shift) + shift, y[:, 0].expand_as(shift)], dim=-1)
    bent = F.grid_sample(mask, points, align_corners=True)
    ground = colours(mask, (0.3, 0.55, 0.55), (0.6, 0.85, 0.85), generator)
    figure = colours(mask, (0.0, 0.15, 0.2), (0.2, 0.35, 0.5), generator)
    gleam = 0.12 * torch.cos(2 * math.pi * 3.5 * y + phase[..., None])
    return paint(ground, figure, blur(bent, 0.5)) + gleam + 0.03 * speckle(mask, generator)


# --- media of pretraining --------------------------------------------------------------------


def plain(mask: Tensor, generator: Generator) -> Tensor:
    """One random colour on another, kept apart in lightness."""
    dark = colours(mask, (0.0, 0.0, 0.0), (0.45, 0.45, 0.45), generator)
    light = colours(mask, (0.55, 0.55, 0.55), (1.0, 1.0, 1.0), generator)
    swapped = torch.rand(len(mask), 1, 1, 1, generator=generator) < 0.5
    return paint(torch.where(swapped, dark, light), torch.where(swapped, light, dark), mask)


def blurred(mask: Tensor, generator: Generator) -> Tensor:
    """As `plain`, out of focus."""
    return plain(blur(mask, 1.2), generator)


def noisy(mask: Tensor, generator: Generator) -> Tensor:
    """As `plain`, with strong white noise."""
    return plain(mask, generator) + 0.15 * speckle(mask, generator, 3)


def textured(mask: Tensor, generator: Generator) -> Tensor:
    """As `plain`, with smooth texture on figure and ground."""
    return plain(mask, generator) + 0.13 * cloud(mask, 6, generator)


PLAIN_MEDIA: tuple[Medium, ...] = (plain, blurred, noisy, textured)
