"""Latents of a task's images, which a SiT learns, and the expert that judges drawn images."""

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mergebook.lab.results import Rows
from mergebook.sail.costs import count_flops
from mergebook.sail.distances import frechet_distance, kernel_distance
from mergebook.sail.networks import diffusion as nets
from mergebook.suites.models import VisionTransformer
from mergebook.suites.types import Zoo
from mergelib.hashing import stable_seed
from mergelib.messages.brief import Brief
from mergelib.training import make_optimiser, seeded, shuffled, train

ROWS = 500  # pictures at a time, where nothing is trained


@dataclass(frozen=True, repr=False)
class World(Brief):
    """What all arms share."""

    latents: Tensor  # of the training pictures, `(N, 4, 8, 8)`, each channel of mean 0, variance 1
    labels: Tensor  # theirs, `(N,)`
    names: tuple[str, ...]  # of the classes
    wanted: Tensor  # the backbone's tokens, `(N, 16, size)`, each feature of mean 0 and variance 1
    represent: nn.Module  # f_P, frozen
    picture: Callable[[Tensor], Tensor]  # latents to pictures in -1..1
    judge: Callable[[Tensor], Tensor]  # pictures to an expert's features
    real: Tensor  # features of the pictures that drawn ones are compared with
    floor: Rows  # rows of `pictures`, their `count`, `frechet` and `kernel`
    flops: int  # of f_P's training
    seed: int  # of everything drawn


@dataclass(frozen=True)
class Plan:
    """The settings of the study `diffusion`."""

    width: int = 64  # of the SiT, a multiple of 16; tokens of its first third of blocks are aligned
    depth: int = 4  # its blocks
    source: tuple[int, int] = (32, 2)  # width and depth of the smaller one; its width divides
    task: str = "fashion_mnist"  # whose training pictures are learned
    only: Sequence[str] = ()  # arms, by default all; one resumes by itself if it is a point
    steps: int = 1000  # of training
    aligned: int = 100  # of alignment alone
    prepared: int = 600  # of the autoencoder, with batches of 64
    represented: int = 300  # of f_P, which predicts the backbone's tokens; batches of 64
    batch_size: int = 64  # latents of a step
    # Of AdamW, constant, without decay, by names of trainings; of others, the best ones by this
    # study itself, on validation pictures and half as long, on seeds that no result has.
    rates: Mapping[str, float] = field(default_factory=dict)
    reads: Sequence[float] = (0.2, 0.5, 1.0)  # shares of the steps after which pictures are drawn
    samples: int = 1000  # pictures drawn, and compared with as many real ones, if there are
    euler: int = 25  # steps of drawing


def prepare(zoo: Zoo, plan: Plan) -> World:
    """Train autoencoder and f_P on a task's training images, on the backbone's device."""
    model = zoo.model
    if not isinstance(model, VisionTransformer):
        raise TypeError(f"the backbone is a {type(model).__name__}, expected VisionTransformer")
    data, seed = zoo.suite.tasks[plan.task], stable_seed("diffusion", zoo.suite.seed)
    device = next(model.parameters()).device
    parts = (data.train, data.test)
    pictures, shown = (data.transform(part.inputs.to(device)) for part in parts)
    backbone, expert = copy.deepcopy(model).eval(), copy.deepcopy(model).eval()
    backbone.load_state_dict(zoo.pretrained)
    expert.load_state_dict(zoo.experts[plan.task])

    def judge(rows: Tensor) -> Tensor:
        return by_rows(expert, rows).cpu()

    with seeded(seed):
        coder = nets.AutoEncoder().to(device)
    _fit(coder, pictures, pictures, plan.prepared, seed)
    encode, decode = coder
    codes = by_rows(encode, pictures)
    spread, middle = torch.std_mean(codes, (0, 2, 3), keepdim=True)
    tokens = by_rows(backbone.tokens, pictures)
    spread_of, middle_of = torch.std_mean(tokens, (0, 1))
    latents, wanted = (codes - middle) / spread, (tokens - middle_of) / spread_of
    with seeded(seed):
        represent = nets.LatentToRepresentation(wanted.shape[-1]).to(device)
    flops = _fit(represent, latents, wanted, plan.represented, seed)

    def picture(rows: Tensor) -> Tensor:
        return by_rows(lambda part: decode(part * spread + middle).clamp(-1, 1), rows)

    real = judge(shown[: plan.samples])
    near = {"real": pictures[: len(real)], "decoded": picture(latents[: len(real)])}
    floor: Rows = [
        {"pictures": name, "count": len(rows), **_distances(judge(rows), real)}
        for name, rows in near.items()
    ]
    labels, names = data.train.labels.to(device), tuple(data.class_names)
    represent.requires_grad_(False)
    return World(
        latents, labels, names, wanted, represent, picture, judge, real, floor, flops, seed
    )


def drawn(world: World, network: nets.SiT, labels: Tensor, steps: int) -> Tensor:
    """Images in -1..1 of some classes; every network begins with the same noise."""
    generator = torch.Generator().manual_seed(world.seed + 2)
    shape = (nets.CHANNELS, nets.SIDE, nets.SIDE)
    network.eval()
    latents = [
        nets.draw(network, rows.to(world.latents.device), shape, steps=steps, generator=generator)
        for rows in labels.split(ROWS)
    ]
    network.train()
    return world.picture(torch.cat(latents))


def quality(world: World, network: nets.SiT, plan: Plan) -> dict[str, float]:
    """``frechet`` and ``kernel`` of drawn images, evenly of all classes, from real ones."""
    labels = torch.arange(plan.samples) % len(world.names)
    return _distances(world.judge(drawn(world, network, labels, plan.euler)), world.real)


@torch.no_grad()
def by_rows(function: Callable[[Tensor], Tensor], rows: Tensor) -> Tensor:
    """A function of a batch, of some rows at a time, without a graph."""
    return torch.cat([function(part) for part in rows.split(ROWS)])


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


def _distances(first: Tensor, second: Tensor) -> dict[str, float]:
    return {"frechet": frechet_distance(first, second), "kernel": kernel_distance(first, second)}
