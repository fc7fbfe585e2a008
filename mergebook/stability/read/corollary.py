"""What chapter 41 reads out of the study ``variance``, and a small case of Remark 4."""

from collections.abc import Mapping

import numpy as np
import pandas as pd
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from mergebook.lab.statistics import both_intervals
from mergebook.stability.measure.variance import CONTROLS
from mergelib.align import git_rebasin, permute, random_permutations
from mergelib.statedict import StateDict, flatten
from mergelib.structure import structure_of

POINT = ["operator", "density"]
MEASURES = ("raw", "relative")
SCALES = ("printed", "chosen")
# With the scale chosen, the projection is no consequence of the mask.
LINKED = [("printed", "projection"), *((scale, name) for scale in SCALES for name in MEASURES)]


RESULTS = {  # of the study `variance`, by suite
    "glyphs8": "glyphs8-variance",
    "vision8": "vision8-variance-vit_small",
    "sentences8": "sentences8-variance",
}


def beside_losses(variance: pd.DataFrame, test: pd.DataFrame) -> pd.DataFrame:
    """What an operator changes in variance, and in the merge's loss.

    Returns:
        A row for each ``seed``, ``operator``, ``density`` and ``scale``: ``raw`` and ``relative``,
        logarithms of the ratio of either variance after and before; and ``change``, the mean test
        loss over tasks (nats) less that without an operator, at the same kind of scale; and
        ``projection``, of the step on that of the average.
    """
    means = test.groupby(["seed", "scale", *POINT], sort=False)[["loss", "projection"]].mean()
    plain = means["loss"].xs(("none", 1.0), level=tuple(POINT))
    change = means.assign(change=means["loss"] - plain).drop(columns="loss").reset_index()
    ratios = variance.set_index(["seed", *POINT])[list(MEASURES)]
    before = ratios.xs(("none", 1.0), level=tuple(POINT))
    logs = (ratios / before).apply(np.log).reset_index()
    return change.merge(logs, on=["seed", *POINT], validate="many_to_one")


def links(changes: pd.DataFrame) -> pd.DataFrame:
    """Spearman's correlation of the loss change with others over operators and densities.

    Returns:
        A row for each ``seed``, and a column for each ``scale`` that there is and ``measure``:
        ``raw`` and ``relative``, which the corollary says are positive, and at weights 1/T
        ``projection``.
    """
    own = changes[~changes["operator"].isin(CONTROLS)]
    groups = dict(list(own.groupby("scale")))
    columns = {
        (scale, measure): {
            seed: part[measure].corr(part["change"], method="spearman")
            for seed, part in groups[scale].groupby("seed")
        }
        for scale, measure in LINKED
        if scale in groups
    }
    return pd.DataFrame(columns).rename_axis("seed").rename_axis(columns=["scale", "measure"])


def over_points(changes: pd.DataFrame) -> pd.DataFrame:
    """Means over seeds of what an operator changes: one row per scale, operator and density."""
    own = changes[~changes["operator"].isin(CONTROLS)]
    return own.groupby(["scale", *POINT])[[*MEASURES, "change"]].mean()


def gains(test: pd.DataFrame, points: Mapping[str, tuple[str, float]], scale: str) -> pd.DataFrame:
    """F of the plain merge less F of masked ones, in nats of test loss: `both_intervals`."""
    names = {point: name for name, point in points.items()} | {("none", 1.0): "none"}
    own = test[test["scale"] == scale]
    keys = zip(own["operator"], own["density"], strict=True)
    labelled = own.assign(method=[names.get(key, "") for key in keys])
    labelled = labelled[labelled["method"] != ""]
    return both_intervals(labelled, {name: ("none", name) for name in points}, "loss")


def reordered(seed: int = 0, width: int = 16) -> dict[str, float]:
    """An expert, a copy with its hidden units in another order, and the copy matched to it.

    Returns:
        ``apart`` and ``matched``, the distance of the two before and after Git Re-Basin; and how
        far the gradients of two tasks' losses are from their mean, ``heterogeneity`` at the expert
        and ``heterogeneity, reordered`` at the copy.
    """
    generator = torch.Generator().manual_seed(seed)
    network = nn.Sequential(nn.Linear(4, width), nn.Tanh(), nn.Linear(width, 1)).double()
    inputs = torch.randn(50, 4, generator=generator, dtype=torch.float64)
    wanted = torch.randn(2, 50, 1, generator=generator, dtype=torch.float64)
    state = {
        key: torch.randn(value.shape, generator=generator, dtype=torch.float64)
        for key, value in network.state_dict().items()
    }
    structure = structure_of(network)
    copy = permute(state, structure, random_permutations(structure, seed=seed + 1))
    matched = git_rebasin(state, copy, structure).state

    def heterogeneity(at: StateDict) -> float:
        gradients = [flatten(_gradient(network, at, inputs, target)) for target in wanted]
        return float((gradients[0] - gradients[1]).norm() / 2)

    return {
        "apart": float((flatten(copy) - flatten(state)).norm()),
        "matched": float((flatten(matched) - flatten(state)).norm()),
        "heterogeneity": heterogeneity(state),
        "heterogeneity, reordered": heterogeneity(copy),
    }


def _gradient(network: nn.Module, at: StateDict, inputs: Tensor, target: Tensor) -> StateDict:
    def loss(state: dict[str, Tensor]) -> Tensor:
        return F.mse_loss(functional_call(network, state, (inputs,)), target)

    gradient: dict[str, Tensor] = torch.func.grad(loss)(dict(at))
    return gradient
