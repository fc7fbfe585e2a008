"""SAIL in diffusion: SiT, representation alignment, and appendix J's start and loss.

There the "proximal" start is no merge and no transformed network, but what a SiT becomes when only
its alignment to f_P is trained (Eq. 14); this loss then stays beside the velocity's (Eq. 15). The
way of SAIL's section 4 stands beside it: a SiT grown from a smaller one.
"""

import copy
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mergelib.hashing import stable_seed
from mergelib.messages.brief import Brief
from mergelib.records.results import Tables
from mergelib.sail import grow
from mergelib.sail.divergences import frechet_distance, kernel_distance
from mergelib.sail.retraining import count_flops
from mergelib.studies.runner import study
from mergelib.testbed.diffusion.alignment import (
    LatentToRepresentation,
    Projector,
    align_loss,
    repa_loss,
)
from mergelib.testbed.diffusion.flow import draw, on_the_way, velocity_loss
from mergelib.testbed.diffusion.networks import CHANNELS, SIDE, AutoEncoder, SiT
from mergelib.testbed.models import VisionTransformer
from mergelib.testbed.tasks import Zoo
from mergelib.training import make_optimiser, seeded, shuffled, train

HEAD = 16  # dimensions of a head
DROPPED = 0.1  # share of labels that training hides
AVERAGED = 0.99  # what the moving average of weights keeps in a step
NOISE = 0.05  # added to copies of grown networks
ROWS = 500  # pictures at a time, where nothing is trained


class Weights(NamedTuple):
    """Of the losses; Table 3 has one half for both alignments."""

    velocity: float = 1.0
    repa: float = 0.0
    align: float = 0.0


ARMS = {
    "SiT": Weights(),
    "REPA": Weights(repa=0.5),
    "REPA + J": Weights(repa=0.5, align=0.5),
    "REPA, grown": Weights(repa=0.5),
}


class Parts(nn.Module):
    """A SiT and what its tokens are projected by, which are trained together."""

    def __init__(self, network: SiT, size: int) -> None:
        super().__init__()
        self.network = network
        self.repa, self.align = (Projector(network.width, size) for _ in range(2))
        self.block = max(1, len(network.blocks) // 3)  # whose tokens are aligned


@dataclass(frozen=True, repr=False)
class World(Brief):
    """What all arms share.

    Attributes:
        latents: of the training pictures, ``(N, 4, 8, 8)``, each channel of mean 0, variance 1.
        labels: theirs, ``(N,)``.
        classes: how many there are.
        wanted: the backbone's tokens, ``(N, 16, size)``, each feature of mean 0 and variance 1.
        represent: f_P, frozen.
        printed: whether f_P sees the noisy latent or the clean one.
        picture: latents to pictures in -1..1.
        judge: pictures to an expert's features and classes.
        real: features of test pictures.
        seed: of everything drawn.
    """

    latents: Tensor
    labels: Tensor
    classes: int
    wanted: Tensor
    represent: nn.Module
    printed: bool
    picture: Callable[[Tensor], Tensor]
    judge: Callable[[Tensor], tuple[Tensor, Tensor]]
    real: Tensor
    seed: int


@study(methods=[])
def diffusion(
    zoo: Zoo,
    *,
    task: str = "fashion_mnist",
    width: int = 64,
    depth: int = 4,
    source: tuple[int, int] = (32, 2),
    steps: int = 1000,
    aligned: int = 100,
    prepared: int = 600,
    batch_size: int = 64,
    learning_rate: float = 1e-3,
    printed: bool = True,
    reads: Sequence[float] = (0.2, 0.5, 1.0),
    samples: int = 1000,
    euler: int = 25,
) -> Tables:
    """How well a SiT draws the pictures of one task, after so many steps, from four starts.

    ``SiT`` learns velocities; ``REPA`` pulls its tokens to those that the suite's backbone has of
    the clean picture, too; ``REPA + J`` begins where alignment alone has led and adds the alignment
    loss; ``REPA, grown`` begins with a smaller SiT, trained for as many steps. Pictures are judged
    by features of the task's expert, which no arm sees.

    Args:
        zoo: experts and their suite, of pictures, on a vision transformer.
        task: whose training pictures are learned.
        width: of the SiT, a multiple of 16; the tokens of its first third of blocks are aligned.
        depth: its blocks.
        source: width and depth of the smaller one; its width divides the other.
        steps: of training.
        aligned: steps of alignment alone.
        prepared: steps of the autoencoder and of f_P.
        batch_size: latents of a step.
        learning_rate: of AdamW, constant, without decay.
        printed: whether f_P sees the noisy latent, as Eq. 16 is printed, or the clean one.
        reads: shares of the steps after which pictures are drawn.
        samples: pictures drawn, and compared with as many test pictures, if there are.
        euler: steps of drawing.

    Returns:
        ``quality``: rows of ``arm``, ``step``, ``read`` (the share), ``account`` (``"steps"``, or
        ``"cost"``: of ``REPA + J``, as many steps as REPA's cost buys, all told), ``frechet``,
        ``kernel`` (unbiased) and ``accuracy``, the share of pictures that the expert takes for the
        class asked for. ``losses``: rows of ``arm``, ``step`` and ``velocity``. ``cost``: rows of
        ``part`` and ``flops``, of one step, or in all of what comes before training. ``floor``:
        ``frechet`` and ``kernel`` of training against test pictures, and their number
        ``pictures``.

    Raises:
        TypeError: a backbone that is no vision transformer.
    """
    world, floor, before = _prepare(zoo, task, samples, prepared, printed)
    learn = partial(_trained, batch_size=batch_size, learning_rate=learning_rate)
    tables: Tables = {"quality": [], "losses": [], "cost": [], "floor": [floor]}

    start, small = _parts(world, width, depth), _parts(world, *source)
    flops = {arm: _flops(start, world, weights, batch_size) for arm, weights in ARMS.items()}
    alone = Weights(velocity=0.0, align=1.0)
    before += aligned * _flops(start, world, alone, batch_size)
    flops["J, before training"] = before
    flops["source, before training"] = steps * _flops(small, world, ARMS["SiT"], batch_size)
    tables["cost"] = [{"part": part, "flops": count} for part, count in flops.items()]

    read = {max(1, round(share * steps)): share for share in reads}
    afford = {
        (step * flops["REPA"] - before) // flops["REPA + J"]: share for step, share in read.items()
    }
    afford = {step: share for step, share in afford.items() if step > 0}
    grown = learn(small, world, ARMS["SiT"], steps, {steps})[0][steps]
    learn(start, world, alone, aligned, ())
    large = _parts(world, width, depth)
    generator = torch.Generator().manual_seed(world.seed)
    large.network.load_state_dict(
        grow(small.network, large.network, state=grown, noise=NOISE, generator=generator)
    )
    starts = {"REPA + J": start, "REPA, grown": large}
    for arm, weights in ARMS.items():
        parts = starts.get(arm) or _parts(world, width, depth)
        bought = afford if arm == "REPA + J" else {}
        kept, velocities = learn(parts, world, weights, steps, {*read, *bought})
        tables["losses"] += [
            {"arm": arm, "step": step, "velocity": value}
            for step, value in enumerate(velocities)
            if step % 10 == 0
        ]
        for account, wanted in (("steps", read), ("cost", bought)):
            for step, share in wanted.items():
                parts.network.load_state_dict(kept[step])
                row = {"arm": arm, "step": step, "read": share, "account": account}
                tables["quality"].append(row | _quality(world, parts.network, samples, euler))
    return tables


def _prepare(
    zoo: Zoo, task: str, samples: int, steps: int, printed: bool
) -> tuple[World, dict[str, float], int]:
    """What all arms share, the distances of real pictures, and the FLOPs that f_P took."""
    model = zoo.model
    if not isinstance(model, VisionTransformer):
        raise TypeError(f"the backbone is a {type(model).__name__}, expected VisionTransformer")
    data, seed = zoo.suite.tasks[task], stable_seed("diffusion", zoo.suite.seed)
    pictures, shown = (data.transform(part.inputs) for part in (data.train, data.test))
    backbone, expert = copy.deepcopy(model).eval(), copy.deepcopy(model).eval()
    backbone.load_state_dict(zoo.pretrained)
    expert.load_state_dict(zoo.experts[task])

    def judge(rows: Tensor) -> tuple[Tensor, Tensor]:
        features = expert(rows)
        return features, zoo.heads[task](features).argmax(1)

    with seeded(seed):
        coder = AutoEncoder()
    _fit(coder, pictures, pictures, steps, seed)
    codes = _by_rows(coder.encode, pictures)
    spread, middle = torch.std_mean(codes, (0, 2, 3), keepdim=True)
    latents = (codes - middle) / spread
    tokens = _by_rows(backbone.tokens, pictures)
    spread_of, middle_of = torch.std_mean(tokens, (0, 1))
    wanted = (tokens - middle_of) / spread_of
    with seeded(seed):
        represent = LatentToRepresentation(wanted.shape[-1])
    flops = _fit(represent, latents, wanted, steps, seed)
    world = World(
        latents,
        data.train.labels,
        len(data.class_names),
        wanted,
        represent.requires_grad_(False),
        printed,
        lambda rows: coder.decode(rows * spread + middle).clamp(-1, 1),
        judge,
        _by_rows(lambda rows: judge(rows)[0], shown[:samples]),
        seed,
    )
    count = min(len(world.real), len(pictures))
    own = _by_rows(lambda rows: judge(rows)[0], pictures[:count])
    return world, {**_distances(own, world.real[:count]), "pictures": count}, flops


def _parts(world: World, width: int, depth: int) -> Parts:
    """A new SiT with projectors; equal sizes begin with equal weights."""
    with seeded(world.seed):
        network = SiT(width, depth, width // HEAD, classes=world.classes)
        return Parts(network, world.wanted.shape[-1])


def _fit(model: nn.Module, inputs: Tensor, targets: Tensor, steps: int, seed: int) -> int:
    """Least squares by Adam; the FLOPs."""
    generator = torch.Generator().manual_seed(seed)

    def loss(rows: Tensor) -> Tensor:
        return F.mse_loss(model(inputs[rows]), targets[rows])

    rows = torch.arange(min(64, len(inputs)))
    flops = steps * count_flops(lambda: loss(rows).backward())
    batches = shuffled(len(inputs), len(rows), generator, steps=steps)
    train(model, batches, loss, make_optimiser(model, "adam", 1e-3))
    return flops


@torch.no_grad()
def _by_rows(function: Callable[[Tensor], Tensor], rows: Tensor) -> Tensor:
    return torch.cat([function(part) for part in rows.split(ROWS)])


def _loss_of(
    parts: Parts, world: World, weights: Weights, velocities: list[float]
) -> Callable[[Tensor], Tensor]:
    """The loss of a batch of rows; that of the velocities is kept in a list."""
    generator = torch.Generator().manual_seed(world.seed)

    def loss(rows: Tensor) -> Tensor:
        x, count = world.latents[rows], len(rows)
        hidden = torch.rand(count, generator=generator) < DROPPED
        labels = world.labels[rows].masked_fill(hidden, world.classes)
        times = torch.rand(count, generator=generator)
        noise = torch.randn(x.shape, generator=generator)
        noisy = on_the_way(x, noise, times)
        moved, tokens = parts.network.with_tokens(noisy, times, labels, parts.block)
        value = velocity_loss(moved, x, noise)
        velocities.append(value.item())
        total = weights.velocity * value
        if weights.repa:
            total = total + weights.repa * repa_loss(parts.repa(tokens), world.wanted[rows])
        if weights.align:
            aim = world.represent(noisy if world.printed else x)
            total = total + weights.align * align_loss(parts.align(tokens), aim)
        return total

    return loss


def _trained(
    parts: Parts,
    world: World,
    weights: Weights,
    steps: int,
    wanted: Collection[int],
    *,
    batch_size: int,
    learning_rate: float,
) -> tuple[dict[int, dict[str, Tensor]], list[float]]:
    """Train in place; moving averages of the SiT's weights after some steps, and losses."""
    velocities: list[float] = []
    average = {key: value.clone() for key, value in parts.network.state_dict().items()}
    kept: dict[int, dict[str, Tensor]] = {}

    def keep(step: int, _: float) -> None:
        with torch.no_grad():
            for key, value in parts.network.state_dict().items():
                average[key].lerp_(value, 1 - AVERAGED)
        if step + 1 in wanted:
            kept[step + 1] = {key: value.clone() for key, value in average.items()}

    generator = torch.Generator().manual_seed(world.seed + 1)
    train(
        parts,
        shuffled(len(world.latents), batch_size, generator, steps=steps),
        _loss_of(parts, world, weights, velocities),
        make_optimiser(parts, "adamw", learning_rate, weight_decay=0.0),
        on_step=keep,
    )
    return kept, velocities


def _flops(parts: Parts, world: World, weights: Weights, batch_size: int) -> int:
    loss = _loss_of(parts, world, weights, [])
    return count_flops(lambda: loss(torch.arange(batch_size) % len(world.latents)).backward())


def _quality(world: World, network: SiT, samples: int, steps: int) -> dict[str, float]:
    """How near drawn pictures are to real ones, and how many show what was asked for."""
    generator = torch.Generator().manual_seed(world.seed + 2)
    features, right = [], []
    for labels in (torch.arange(samples) % world.classes).split(ROWS):
        shape = (CHANNELS, SIDE, SIDE)
        latents = draw(network.eval(), labels, shape, steps=steps, generator=generator)
        with torch.no_grad():
            seen, classes = world.judge(world.picture(latents))
        features.append(seen)
        right.append(classes == labels)
    network.train()
    accuracy = float(torch.cat(right).float().mean())
    return {**_distances(torch.cat(features), world.real), "accuracy": accuracy}


def _distances(first: Tensor, second: Tensor) -> dict[str, float]:
    return {
        "frechet": frechet_distance(first, second),
        "kernel": kernel_distance(first, second),
    }
