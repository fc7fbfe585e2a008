"""What the ledger reads out of the study ``diffusion``, and what chapter 56 runs: it is small."""

import copy
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, get_args

import numpy as np
import pandas as pd
import torch
import torch.nn.functional as F
from torch import Tensor

from mergebook.lab.results import load_table
from mergebook.sail.costs import Account, Costs
from mergebook.sail.measure import diffusion as study
from mergebook.sail.measure.latents import Plan, World, by_rows, quality
from mergebook.sail.networks.diffusion.flow import draw, on_the_way
from mergebook.sail.networks.diffusion.networks import SiT

FILE = "vision8-diffusion-vit_small"
ONE_RATE = f"{FILE}-one_rate"  # all trainings at 3e-3
LONGER = f"{study.REPA}, equal cost"


def judged(name: str = FILE) -> pd.DataFrame:
    """Table ``quality`` of a result of the study, with ``log``, the logarithm of ``frechet``."""
    table = load_table(name, "quality")
    unit = table[table["arm"] == study.REPA].assign(account="cost")
    other = table.loc[table["account"] == "A", "arm"].unique()
    alike = table[(table["account"] == "steps") & ~table["arm"].isin(other)].assign(account="A")
    table = pd.concat([table, unit, alike], ignore_index=True)
    return table.assign(log=np.log(table["frechet"]))


def against_repa(name: str = FILE) -> pd.DataFrame:
    """`judged` with ``nearer``, REPA's ``log`` less the row's own, of the same seed."""
    table, keys = judged(name), ["seed", "read", "account"]
    repa = table.loc[table["arm"] == study.REPA, [*keys, "log"]]
    both = table.merge(repa, on=keys, suffixes=("", "_repa"))
    return both.assign(nearer=both["log_repa"] - both["log"])


def floor() -> pd.DataFrame:
    """Table ``floor`` without the rows that runs of single arms repeat."""
    table = load_table(FILE, "floor").drop_duplicates()
    return table.assign(log=np.log(table["frechet"]))


class Compared(NamedTuple):
    """The arms of the study, trained."""

    networks: Mapping[str, SiT]  # by arm, with averaged weights
    losses: pd.DataFrame
    judged: pd.DataFrame  # by arm, `frechet`, `kernel` and `accuracy` of what it draws in the end
    costs: pd.DataFrame  # by arm, FLOPs of a `step`, and of all steps by account


def compare(world: World, plan: Plan) -> Compared:
    """Train all arms, and judge what they draw after the last step."""
    made = {arm.name: arm for arm in study.arms(world, plan)}
    unit = made[study.REPA].step
    costs = pd.DataFrame({name: _costs(arm, plan.steps) for name, arm in made.items()}).T / unit
    longer = round(costs["C"].to_dict()[study.ALIGNED])
    networks: dict[str, SiT] = {}
    losses: list[dict[str, Any]] = []
    judged: dict[str, dict[str, float]] = {}
    for arm in made.values():
        ends: dict[str, int] = {arm.name: plan.steps}
        ends |= {LONGER: longer} if arm.name == study.REPA else {}
        length = max(ends.values())
        kept, velocities = study.trained(
            arm.parts, world, arm.name, plan, ends.values(), steps=length
        )
        for name, step in ends.items():
            network = networks[name] = copy.deepcopy(arm.parts.network)
            network.load_state_dict(kept[step])
            judged[name] = quality(world, network, plan)
        for step in range(study.EVERY, length + 1, study.EVERY):
            mean = sum(velocities[step - study.EVERY : step]) / study.EVERY
            losses.append({"arm": arm.name, "step": step, "velocity": mean})
    table = pd.DataFrame.from_dict(judged, orient="index")
    return Compared(networks, pd.DataFrame(losses), table, costs)


def _costs(arm: study.Arm, steps: int) -> dict[str, float]:
    """FLOPs of a step, and of all steps by account."""
    costs = Costs(arm.step, *((0, arm.before) if arm.name == study.GROWN else (arm.before, 0)))
    count = torch.tensor(float(steps))
    return {"step": arm.step, **{name: float(costs.of(count, name)) for name in get_args(Account)}}


def paths(
    world: World, network: SiT, row: int, *, euler: int = 20, seed: int = 0
) -> tuple[Tensor, Tensor]:
    """A latent's line to a noise, and a network's way back, as five pictures ``(5, 3, 32, 32)``."""
    latent, label = world.latents[row : row + 1], world.labels[row : row + 1]
    seen: list[Tensor] = []

    def watched(x: Tensor, times: Tensor, labels: Tensor) -> Tensor:
        seen.append(x)
        moved: Tensor = network(x, times, labels)
        return moved

    generator = torch.Generator().manual_seed(seed)
    last = draw(watched, label, latent.shape[1:], steps=euler, generator=generator)
    back = [*seen, last][:: -euler // 4]
    times = torch.linspace(0, 1, 5)
    there = on_the_way(latent.expand(5, -1, -1, -1), seen[0], times)
    return world.picture(there), world.picture(torch.cat(back))


def explained(world: World, times: Sequence[float], *, rows: int = 300) -> pd.Series:
    """Share of the variance of the backbone's tokens that f_P explains from z_t, by t."""
    x, wanted = world.latents[:rows], world.wanted[:rows]
    noise = torch.randn(x.shape, generator=torch.Generator().manual_seed(world.seed))
    shares = {}
    for time in times:
        noisy = on_the_way(x, noise, torch.full((len(x),), time))
        error = F.mse_loss(by_rows(world.represent, noisy), wanted)
        shares[time] = float(1 - error / wanted.var(0).mean())
    return pd.Series(shares, name="explained").rename_axis("t")
