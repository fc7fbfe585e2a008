"""What the ledger and chapter 56 read out of the study ``diffusion``."""

from collections.abc import Sequence

import numpy as np
import pandas as pd
import torch
import torch.nn.functional as F

from mergebook.lab.results import load_table
from mergebook.sail.measure import diffusion as study
from mergebook.sail.measure.latents import World, by_rows
from mergebook.sail.networks.diffusion import on_the_way

FILE = "vision8-diffusion-vit_small"
ONE_RATE = f"{FILE}-one_rate"  # all trainings at 3e-3


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
    """Table ``floor`` by ``kind`` of images, without the rows that runs of single arms repeat."""
    table = load_table(FILE, "floor").drop_duplicates().rename(columns={"pictures": "kind"})
    return table.assign(log=np.log(table["frechet"]))


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
