"""Interference of task vectors entry by entry: what chapter 03 counts, repairs and compares.

Task vectors τ_t = θ_t − θ_0 are the rows of a table, shape ``(T, n)``, with the sum Σ = Σ_t τ_t.
Rules that act entry by entry, up to a threshold, take such rows as if each were a model of one
tensor over a pretrained model of zeros.

Two steps from θ_0 are compared at equal *projection* a = ⟨step, Σ⟩ / ‖Σ‖², not at equal length: for
task arithmetic a is its scale λ, and a step at the cosine c from Σ is 1/c times as long. What is
perpendicular to Σ may repair something or be noise; `with_noise` is the control that tells.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pandas as pd
import torch
from scipy.stats import norm
from torch import Tensor

from mergebook.lab.comparison import accuracies, individual
from mergebook.lab.results import load_table
from mergebook.lab.statistics import both_intervals
from mergebook.stability.theory.variance import trim_rows
from mergebook.suites.types import (
    Zoo,
)
from mergelib.evaluation.loops import SplitName
from mergelib.merging import merge
from mergelib.rules.sparse import drop_and_rescale
from mergelib.statedict import StateDict, flatten, unflatten


def task_vectors(zoo: Zoo, start: StateDict | None = None) -> Tensor:
    """The ways from the pretrained model, or another, to the experts: rows, shape ``(T, n)``."""
    origin = flatten(zoo.pretrained if start is None else start)
    return torch.stack([flatten(expert) for expert in zoo.experts.values()]) - origin


def merge_rows(method: str, rows: Tensor, **hyperparameters: Any) -> Tensor:
    """The task vector, shape ``(n,)``, that a data-free rule makes of rows of task vectors."""
    experts = {f"expert {i}": {"all": row} for i, row in enumerate(rows)}
    zeros = {"all": torch.zeros_like(rows[0])}
    merged: Tensor = merge(method, experts, pretrained=zeros, **hyperparameters)["all"]
    return merged


def conflict_shares(rows: Tensor, densities: Sequence[float]) -> pd.DataFrame:
    """How much of the rows their largest entries hold, how many they share, and how many conflict.

    Returns:
        One row per density, shares in 0..1: ``squared length`` in the kept entries, mean over the
        rows, and the same ``if normal``; coordinates ``shared`` by two rows or more; of these,
        those ``in conflict``, with both signs, and the share expected ``by coins``.
    """
    table = {}
    for density in densities:
        kept = trim_rows(rows, density)
        users = (kept != 0).sum(0)
        shared = users >= 2
        conflict = (kept > 0).any(0) & (kept < 0).any(0)
        z = norm.isf(density / 2)
        table[density] = {
            "squared length": (kept.norm(dim=1) / rows.norm(dim=1)).square().mean().item(),
            "if normal": density + 2 * z * norm.pdf(z),
            "shared": shared.float().mean().item(),
            "in conflict": (conflict.sum() / shared.sum()).item(),
            "by coins": (1 - 0.5 ** (users[shared] - 1)).mean().item(),
        }
    return pd.DataFrame(table).T.rename_axis("density")


def own_accuracy(
    zoo: Zoo, rows: Sequence[Tensor] | Tensor, split: SplitName = "validation"
) -> float:
    """Mean accuracy (0..1) of experts rebuilt from task vectors, each on its own task."""
    origin = flatten(zoo.pretrained)
    states = [unflatten(origin + row, zoo.pretrained) for row in rows]
    rebuilt = replace(zoo, experts=dict(zip(zoo.experts, states, strict=True)))
    return float(individual(rebuilt, split, autocast=True)["accuracy"].mean())


def redundancy(
    zoo: Zoo, rows: Tensor, densities: Sequence[float], *, split: SplitName = "validation"
) -> pd.DataFrame:
    """`own_accuracy` when a share of every task vector is kept, in three ways.

    Returns:
        One row per density: ``random`` entries divided by their share, the ``largest`` as they
        are, and the ``largest, stretched`` so that their projection on τ_t is τ_t again.
    """
    generator = torch.Generator().manual_seed(zoo.suite.seed)
    table = {}
    for density in densities:
        largest = trim_rows(rows, density)
        stretch = (rows.norm(dim=1) / largest.norm(dim=1)).square()
        ways = {
            "random": [drop_and_rescale(row, 1 - density, generator) for row in rows],
            "largest, stretched": list(largest * stretch[:, None]),
            "largest": list(largest),
        }
        table[density] = {way: own_accuracy(zoo, kept, split) for way, kept in ways.items()}
    return pd.DataFrame(table).T


def with_noise(vector: Tensor, cosine: float, seed: int = 0) -> Tensor:
    """A vector plus Gaussian noise perpendicular to it, so that their cosine is as given."""
    if not 0 < cosine <= 1:
        raise ValueError(f"cosine is {cosine}, expected above 0 and at most 1")
    generator = torch.Generator().manual_seed(seed)
    noise = torch.randn(vector.shape, generator=generator).to(vector)
    noise -= float(noise @ vector / (vector @ vector)) * vector
    return vector + noise * float(vector.norm() / noise.norm() * (cosine**-2 - 1) ** 0.5)


def cosines(directions: Mapping[str, Tensor], total: Tensor) -> "pd.Series[float]":
    """The cosine of every direction with the sum of the task vectors."""
    found = {key: float(v @ total / (v.norm() * total.norm())) for key, v in directions.items()}
    return pd.Series(found)


def along(
    zoo: Zoo,
    directions: Mapping[str, Tensor],
    total: Tensor,
    projections: Sequence[float],
    *,
    split: SplitName = "validation",
) -> pd.DataFrame:
    """Accuracy of steps from θ_0 in several directions, at equal projections on the sum.

    Returns:
        Accuracies (0..1): one row per direction and projection, one column per task.
    """
    origin = flatten(zoo.pretrained)

    def candidates() -> Iterator[tuple[tuple[str, float], dict[str, Tensor]]]:
        for key, vector in directions.items():
            unit = (total @ total) / (vector @ total) * vector
            for a in projections:
                yield (key, a), unflatten(origin + a * unit, zoo.pretrained)

    table = accuracies(zoo, candidates(), split, autocast=True)
    table.index = pd.MultiIndex.from_tuples(table.index, names=["direction", "projection"])
    return table


def dropped(
    zoo: Zoo, rows: Tensor, rates: Sequence[float], scale: float, draws: int
) -> pd.DataFrame:
    """DARE over draws: mean validation accuracy and length against the drop rate.

    Returns:
        A row for each rate and draw: ``rate``, ``accuracy`` (0..1), ``length`` (times that of the
        vector without drops) and ``predicted``, the root of the length's mean square.
    """
    origin, total = flatten(zoo.pretrained), rows.sum(0)
    energy = float(rows.square().sum() / total.square().sum())
    table = []
    for rate in rates:
        predicted = (1 + rate / (1 - rate) * energy) ** 0.5
        for seed in range(draws):
            vector = merge_rows("dare", rows, drop_rate=rate, scale=scale, seed=seed)
            state = unflatten(origin + vector, zoo.pretrained)
            accuracy = accuracies(zoo, {0: state}, "validation", autocast=True).to_numpy().mean()
            length = float(vector.norm() / (scale * total.norm()))
            row = {"rate": rate, "accuracy": float(accuracy), "length": length}
            table.append({**row, "predicted": predicted})
    return pd.DataFrame(table)


def gains(
    suites: Sequence[str], methods: Sequence[str], reference: str = "task_arithmetic"
) -> pd.DataFrame:
    """What methods gain over a reference in the committed baselines of several suites.

    Returns:
        In points of mean test accuracy, a row for each suite and method that was run: ``suite``,
        ``method``, ``gain``, ``half_width`` (95 %, Student's over the seeds), and the ends ``low``
        and ``high`` of the 95 % interval over seeds and tasks.
    """
    parts = {}
    for suite in suites:
        table = load_table(f"{suite}-baselines")
        pairs = {m: (m, reference) for m in methods if m in set(table["method"])}
        parts[suite] = 100 * both_intervals(table, pairs)
    gained = pd.concat(parts, names=["suite", "method"]).rename(columns={"mean": "gain"})
    return gained.reset_index()


def chosen_scales(suites: Sequence[str], methods: Sequence[str]) -> pd.DataFrame:
    """The scales that validation data chose in the committed baselines: a row for each run.

    Returns:
        ``suite``, ``seed``, and a column for each method, NaN where it was not run.
    """
    rows = []
    for suite in suites:
        for run in load_table(f"{suite}-baselines", "chosen").to_dict("records"):
            scales = {m: run["settings"].get(m, {}).get("scale") for m in methods}
            rows.append({"suite": suite, "seed": run["seed"], **scales})
    return pd.DataFrame(rows)
