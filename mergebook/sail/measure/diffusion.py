"""SAIL in diffusion: SiT, representation alignment, and appendix J's start and loss.

J's "proximal" start is a SiT of which only the alignment to f_P is trained (Eq. 14, 15): it is no
merge. A SiT grown from a smaller one, the way of SAIL's section 4, stands beside it.
"""

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mergebook.lab.results import Tables
from mergebook.lab.runner import study
from mergebook.sail.costs import count_flops
from mergebook.sail.measure.latents import Plan, World, prepare, quality
from mergebook.sail.networks.diffusion import Projector, SiT, on_the_way, repa_loss, velocity_loss
from mergebook.suites.types import Zoo
from mergelib.sail import grow
from mergelib.training import make_optimiser, seeded, shuffled, train

HEAD = 16  # dimensions of a head
DROPPED = 0.1  # share of labels that training hides
AVERAGED = 0.99  # what the moving average of weights keeps in a step, in the end
NOISE = 0.05  # added to copies of grown networks


class Weights(NamedTuple):
    """Of the losses; Table 3 has one half for both alignments."""

    velocity: float = 1.0
    repa: float = 0.0
    align: float = 0.0


PLAIN, REPA, ALIGNED, GROWN = "SiT", "REPA", "REPA + J", "REPA, grown"
_HALF = Weights(repa=0.5)
ARMS = {PLAIN: Weights(), REPA: _HALF, ALIGNED: _HALF._replace(align=0.5), GROWN: _HALF}
ALONE, SOURCE = "alignment alone", "source"  # what comes before `ALIGNED` (Eq. 14) and `GROWN`
TRAININGS = {**ARMS, ALONE: Weights(velocity=0.0, align=1.0), SOURCE: Weights()}
RATES: Mapping[str, float] = {  # of 1e-3, 3e-3, 1e-2 and 3e-2, at which some trainings diverge
    **dict.fromkeys((PLAIN, REPA, ALIGNED), 1e-2),
    **dict.fromkeys((GROWN, SOURCE), 3e-3),
    ALONE: 1e-3,
}


class Parts(nn.Module):
    """A SiT and its projectors, trained together; equal sizes begin with equal weights."""

    def __init__(self, world: World, width: int, depth: int) -> None:
        super().__init__()
        with seeded(world.seed):
            self.network = SiT(width, depth, width // HEAD, classes=len(world.names))
            size = world.wanted.shape[-1]
            self.repa, self.align = (Projector(width, size) for _ in range(2))
        self.to(world.latents.device)
        self.block = max(1, depth // 3)  # whose tokens are aligned


class Arm(NamedTuple):
    """A SiT at its start."""

    name: str  # one of `ARMS`
    parts: Parts  # to be trained
    step: int  # FLOPs of a step of training
    before: int  # FLOPs that the start has taken; of `GROWN` its source, which C alone counts


@study(settings=Plan)
def diffusion(zoo: Zoo, **settings: Any) -> Tables:
    """How well a SiT draws one task's images after some steps of training, from four starts.

    ``REPA`` pulls tokens to the backbone's, too; ``REPA + J`` begins where alignment alone has led
    and adds its loss; ``REPA, grown`` begins with a smaller SiT, trained for as many steps.
    ``quality``: rows of ``arm``, ``step``, ``read`` (the share), ``account`` (``"steps"``; ``"A"``,
    at REPA's FLOPs; ``"cost"``, with those of the start: C of `Costs`, and B of ``REPA + J``; of
    ``REPA, grown``, ``"steps"`` is A and B), ``frechet`` and ``kernel`` (unbiased). ``cost``: FLOPs
    of a ``step``, and ``before`` the first. ``floor``: see `World`.
    """
    plan = Plan(**settings)
    for what, names, known in (("arm", plan.only, ARMS), ("training", plan.rates, TRAININGS)):
        if unknown := [name for name in names if name not in known]:
            raise ValueError(f"unknown {what} {unknown[0]!r}; known: {'; '.join(known)}")
    world = prepare(zoo, plan)
    tables: Tables = {"quality": [], "cost": [], "floor": world.floor}
    at = {share: max(1, round(share * plan.steps)) for share in plan.reads}
    rival = step_flops(Parts(world, plan.width, plan.depth), world, REPA, plan)
    for arm in arms(world, plan):
        accounts = {"steps": at}
        for account, before in (("A", 0), ("cost", arm.before)):
            if before or (account == "A" and arm.step != rival):
                accounts[account] = {
                    share: max(0, (step * rival - before) // arm.step) for share, step in at.items()
                }
        wanted = {step for account in accounts.values() for step in account.values()}
        kept = trained(arm.parts, world, arm.name, plan, wanted)
        tables["cost"].append({"arm": arm.name, "step": arm.step, "before": arm.before})
        for account, read in accounts.items():
            for share, step in read.items():
                arm.parts.network.load_state_dict(kept[step])
                row = {"arm": arm.name, "step": step, "read": share, "account": account}
                tables["quality"].append(row | quality(world, arm.parts.network, plan))
    return tables


def arms(world: World, plan: Plan) -> Iterator[Arm]:
    """Some of `ARMS` at their starts, by default all, each made when it is asked for."""
    for name in plan.only or ARMS:
        parts, before = Parts(world, plan.width, plan.depth), 0
        if name == ALIGNED:
            before = world.flops + plan.aligned * step_flops(parts, world, ALONE, plan)
            trained(parts, world, ALONE, plan, {plan.aligned})
        elif name == GROWN:
            small = Parts(world, *plan.source)
            before = plan.steps * step_flops(small, world, SOURCE, plan)
            state = trained(small, world, SOURCE, plan, {plan.steps})[plan.steps]
            draws = torch.Generator().manual_seed(world.seed)
            grown = grow(small.network, parts.network, state=state, noise=NOISE, generator=draws)
            parts.network.load_state_dict(grown)
        yield Arm(name, parts, step_flops(parts, world, name, plan), before)


def trained(
    parts: Parts,  # at their start
    world: World,  # what all arms share
    name: str,  # one of `TRAININGS`
    plan: Plan,  # how to train
    wanted: Collection[int],  # numbers of steps, the largest of which ends the training
) -> dict[int, dict[str, Tensor]]:
    """Train in place, all arms on the same batches, times and noise; averaged weights by step."""
    average = {key: value.clone() for key, value in parts.network.state_dict().items()}
    kept: dict[int, dict[str, Tensor]] = {}

    def keep(step: int, _: float = 0.0) -> None:
        share = min(AVERAGED, (step + 1) / (step + 10))  # so that the initial weights fade out
        for key, value in parts.network.state_dict().items():
            average[key].lerp_(value, 1 - share)
        if step + 1 in wanted:
            kept[step + 1] = {key: value.clone() for key, value in average.items()}

    keep(-1)
    generator = torch.Generator().manual_seed(world.seed + 1)
    train(
        parts,
        shuffled(len(world.latents), plan.batch_size, generator, steps=max(wanted)),
        _loss_of(parts, world, name),
        make_optimiser(parts, "adamw", {**RATES, **plan.rates}[name], weight_decay=0.0),
        on_step=keep,
    )
    return kept


def step_flops(parts: Parts, world: World, name: str, plan: Plan) -> int:
    """FLOPs of a step of one of `TRAININGS`."""
    loss = _loss_of(parts, world, name)
    rows = torch.arange(plan.batch_size) % len(world.latents)
    return count_flops(lambda: loss(rows).backward())


def _loss_of(parts: Parts, world: World, name: str) -> Callable[[Tensor], Tensor]:
    generator = torch.Generator().manual_seed(world.seed)
    weights = TRAININGS[name]

    def loss(rows: Tensor) -> Tensor:
        x, count = world.latents[rows], len(rows)
        hidden = (torch.rand(count, generator=generator) < DROPPED).to(x.device)
        labels = world.labels[rows].masked_fill(hidden, len(world.names))
        times = torch.rand(count, generator=generator).to(x.device)
        noise = torch.randn(x.shape, generator=generator).to(x.device)
        noisy = on_the_way(x, noise, times)
        moved, tokens = parts.network.with_tokens(noisy, times, labels, parts.block)
        total = torch.zeros((), device=x.device)
        if weights.velocity:  # else no gradient passes through the later blocks, nor is paid for
            total = total + weights.velocity * velocity_loss(moved, x, noise)
        if weights.repa:
            total = total + weights.repa * repa_loss(parts.repa(tokens), world.wanted[rows])
        if weights.align:  # ‖f_P(z_t) − f_A(h_t)‖², as printed (Eq. 16), over its size
            gap = F.mse_loss(parts.align(tokens), world.represent(noisy))
            total = total + weights.align * gap
        return total

    return loss
