"""Do bounds rank and choose the settings of real experts? What chapter 43 reads, by seed."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pandas as pd
import torch

from mergebook.stability.read.quadratics import HABIT
from mergebook.stability.read.scaling import SETTING, USUAL, plan_of
from mergebook.stability.theory import bounds
from mergebook.stability.theory.estimators import pl_constant
from mergebook.stability.theory.steps import Training

Curvature = Literal["example", "mean"] | float
Value = Literal["accuracy", "loss"]

GUIDES = ("printed", "theorem_3", "best_gamma", "repaired")
PARTS = ("optimisation", "stability")  # ε and S of Theorem 3, apart
RIVALS = ("progress", "distance")
DEFAULT_STEPS = 400
FITTED = tuple(float(10**power) for power in np.arange(-1, 4.5, 0.5))  # values of L to choose from
KEYS = ["seed", *SETTING, "steps"]

Score = Callable[[pd.DataFrame], pd.Series]


@dataclass(frozen=True)
class Start:
    """What bounds take from θ_0, each task having the mean σ² and ζ² of all."""

    losses: bounds.Losses  # L, and σ and ζ in the mean square
    largest: bounds.Losses  # the same with the largest σ of each task
    loss: float  # f, ``squared`` ‖∇f‖² on the same examples, and ``unbiased``, its estimate for all
    squared: float
    unbiased: float
    dissimilarity: float  # κ² of equal weights


def starts(
    record: Mapping[str, pd.DataFrame], tasks: int, curvature: Curvature = "example"
) -> dict[int, Start]:
    """By seed, for merges of this number of tasks."""
    parts = [record[name] for name in ("curvature", "gradients", "points")]
    curved, gradients, points = (part[part["point"] == "pretrained"] for part in parts)
    found = {}
    for seed, row in points.set_index("seed").iterrows():
        bent, own = curved[curved["seed"] == seed], gradients[gradients["seed"] == seed]
        measured = bent.loc[bent["of"] == curvature, "smoothness"].max()
        smooth = float(measured if isinstance(curvature, str) else curvature)
        means = [own["noise"], own["largest"] ** 2, own["heterogeneity"].clip(lower=0)]
        noise, largest, apart = (
            torch.full((tasks,), float(part.mean()) ** 0.5, dtype=torch.float64) for part in means
        )
        found[int(str(seed))] = Start(
            bounds.Losses(smooth, noise, apart),
            bounds.Losses(smooth, largest, apart),
            *(float(row[name]) for name in ("loss", "squared")),
            *(max(0.0, float(row[name])) for name in ("unbiased", "dissimilarity")),
        )
    return found


def totals(start: Start, plan: Training) -> dict[str, float]:
    """What each of `GUIDES` says of a merge with equal steps and weights; the least loss is 0.

    ``printed`` is Theorem 3 with its own √(T/K) in ε and γ = 1; ``theorem_3`` has the rate of
    ``plan``, ``best_gamma`` γ* besides; ``repaired`` is for convex losses, which favours it.
    """
    known, smooth = start.losses, start.losses.smoothness
    pl = pl_constant(torch.tensor([start.loss]), torch.tensor([start.squared]), smooth)
    cases: dict[str, Any] = {"printed": {"own_rate": True}, "theorem_3": {}}
    found = {}
    for name, case in (cases | {"best_gamma": {"gamma": None}}).items():
        parts, free, moved = bounds.theorem_3(known, plan, start.loss, pl, **case)
        found[name] = sum(parts.values())
    opening = (start.loss, start.unbiased, start.dissimilarity)
    parts = bounds.descent_bound(opening, known, plan)
    loss = {"loss": max(0.0, sum(parts.values()))}  # far outside its domain it may be below 0
    repaired = sum(bounds.convex_excess_bound(loss, 0.0, start.largest, plan).values())
    return {**found, "optimisation": free, "stability": moved, "repaired": repaired}


def settings(
    merged: pd.DataFrame,
    experts: pd.DataFrame,
    record: Mapping[str, pd.DataFrame],
    curvature: Curvature = "example",
) -> pd.DataFrame:
    """Every setting that was measured, with its average, its experts, `GUIDES` and `PARTS`.

    Means over groups and tasks; accuracies in per cent; ``moved``, of averages the mean ‖θ − θ_0‖;
    ``progress`` ηK; ``distance``, of experts the mean ‖τ_t‖.
    """
    rows = merged[merged["method"] == "average"]
    measured = ["loss", "train_loss", "accuracy", "train_accuracy", "distance"]
    table = rows.groupby(KEYS)[measured].mean().rename(columns={"distance": "moved"})
    alone = ["distance", "validation_accuracy", "validation_loss"]
    table = table.join(experts.groupby(KEYS)[alone].mean())
    table[["accuracy", "train_accuracy", "validation_accuracy"]] *= 100
    table = table.reset_index()
    table["progress"] = table["learning_rate"] * table["steps"]
    tasks = merged_tasks(merged)
    known = starts(record, tasks, curvature)
    said = [totals(known[row["seed"]], plan_of(row, tasks)) for row in table.to_dict("records")]
    return table.join(pd.DataFrame(said))


def merged_tasks(merged: pd.DataFrame) -> int:
    """How many tasks each average of the study `scaling` merges."""
    rows = merged[merged["method"] == "average"]
    return int(rows.groupby([*KEYS, "group"]).size().max())


def validated(table: pd.DataFrame, merged: pd.DataFrame) -> pd.DataFrame:
    """The settings whose merges were judged on validation examples as ``merge_validation``."""
    rows = merged[merged["method"] == "average"]
    means = 100 * rows.groupby(KEYS)["validation_accuracy"].mean()
    return table.merge(means.rename("merge_validation").reset_index(), on=KEYS)


def correlations(table: pd.DataFrame) -> pd.DataFrame:
    """Spearman's with test loss over settings; a rival's sign is the one of the other seeds."""
    names = [name for name in (*GUIDES, *PARTS, *RIVALS) if name in table]
    ranks = table.groupby("seed")[[*names, "loss"]].rank().groupby(table["seed"])
    found = pd.DataFrame(ranks.apply(lambda g: g[names].corrwith(g["loss"])))
    for rival in RIVALS:
        others = (found[rival].sum() - found[rival]) / (len(found) - 1)
        found[rival] = found[rival] * np.sign(others)
    return found


def regrets(table: pd.DataFrame, value: Value = "accuracy") -> pd.DataFrame:
    """What each way to choose a setting loses against the best on test examples, by seed.

    Ties count by their mean. `HABIT` is the ηK that was best in the other seeds; ``search``, by
    training accuracy of all merges; ``experts`` and ``experts_loss``, by single experts'
    validation; ``elsewhere``, by other seeds' merges; ``validated``, by validation of all merges;
    ``default``, the study's, after `DEFAULT_STEPS`; ``random``, the mean.
    """
    full = table[table["share"] == 1].set_index(KEYS).unstack("seed")
    accuracy = pd.DataFrame(full["accuracy"])
    others = accuracy.rsub(accuracy.sum(axis=1), axis=0) / (accuracy.shape[1] - 1)
    lengths = np.log(full["progress"])
    usual = pd.Series({seed: lengths.loc[others[seed].idxmax(), seed] for seed in others})
    costs = {guide: full[guide] for guide in GUIDES if guide in full}
    costs[HABIT] = (lengths - usual).abs().round(6)
    costs |= {"search": -full["train_accuracy"], "experts": -full["validation_accuracy"]}
    costs |= {"experts_loss": full["validation_loss"], "elsewhere": -others}
    if "merge_validation" in full:
        costs["validated"] = -full["merge_validation"]
    default = pd.Series([(*USUAL.values(), DEFAULT_STEPS) == place for place in accuracy.index])
    costs["default"] = accuracy.mul(0).sub(default.to_numpy(dtype=float), axis=0)
    costs["random"] = accuracy.mul(0)
    good = accuracy if value == "accuracy" else -full["loss"]
    taken = {name: good.where(each == each.min()).mean() for name, each in costs.items()}
    return pd.DataFrame({name: good.max() - mean for name, mean in taken.items()})


def ranking(table: pd.DataFrame) -> pd.Series:
    """How well Theorem 3 ranks each seed's `settings`: its part of `correlations`."""
    return correlations(table)["theorem_3"]


def choosing(table: pd.DataFrame) -> pd.Series:
    """How well Theorem 3 chooses for each seed: minus its `regrets` in loss."""
    return -regrets(table, "loss")["theorem_3"]


def fitted(table: pd.DataFrame, known: Mapping[int, Start], score: Score) -> pd.DataFrame:
    """Settings with Theorem 3 at the L of `FITTED` that scores best on all other seeds."""
    own = table.drop(columns=[name for name in GUIDES if name != "theorem_3"])
    tables = {smooth: with_smoothness(own, known, smooth) for smooth in FITTED}
    scores = pd.DataFrame({smooth: score(tables[smooth]) for smooth in FITTED})
    best = {seed: tables[scores.drop(seed).mean().idxmax()] for seed in scores.index}
    parts: list[pd.DataFrame] = [rows[rows["seed"] == seed] for seed, rows in best.items()]
    return pd.concat(parts, ignore_index=True)


def with_smoothness(table: pd.DataFrame, known: Mapping[int, Start], smooth: float) -> pd.DataFrame:
    """Settings with Theorem 3 for another L, in closed form for equal steps and weights."""
    of_seed = {}
    for seed, start in known.items():
        roots = (start.losses.noise[0], start.losses.heterogeneity[0])
        of_seed[seed] = start.loss, start.squared, *(float(root) ** 2 for root in roots)
    loss, squared, noise, apart = np.array([of_seed[seed] for seed in table["seed"]]).T
    tasks = len(next(iter(known.values())).losses.noise)
    rate, steps, batch = (table[name] for name in ("learning_rate", "steps", "batch_size"))
    epsilon = 2 * (
        4 * loss / (rate * steps)
        + 4 * rate * smooth * noise / (batch * tasks)
        + 6 * (rate * smooth) ** 2 * noise / batch * (steps - 1)
        + 12 * (rate * smooth) ** 2 * apart * steps * (steps - 1)
    )
    pl = np.maximum(loss / squared, 1 / (2 * smooth))
    total = (smooth + 1) / 2 * table["stability"] + (pl + 0.5) * epsilon
    return table.assign(theorem_3=total, optimisation=epsilon, smoothness=smooth)


def predicted(known: Mapping[int, Start], *, noise_share: float = 0.0) -> pd.DataFrame:
    """`best_progress` from gradients at θ_0, by seed, and the first-order ``distance`` ηK ‖∇f‖."""
    rows = {}
    for seed, start in known.items():
        losses, length = start.losses, start.unbiased**0.5
        noise = noise_share * float(losses.noise.square().mean())
        known_at = (length, start.dissimilarity**0.5, losses.smoothness)
        progress = bounds.best_progress(*known_at, noise=noise, tasks=len(losses.noise))
        rows[seed] = {"progress": progress, "distance": progress * length}
    return pd.DataFrame.from_dict(rows, orient="index").rename_axis("seed")


def costs(
    merged: pd.DataFrame, experts: pd.DataFrame, swept: Mapping[str, Any], known: Mapping[str, Any]
) -> pd.DataFrame:
    """Computations before a choice: gradients, Hessian products, merges, examples judged."""
    seeds, tasks = merged["seed"].nunique(), experts["task"].nunique()
    rows = merged[(merged["method"] == "average") & (merged["share"] == 1)]
    trained = experts[(experts["share"] == 1) & (experts["steps"] > 0)]
    runs = trained.groupby(["seed", *SETTING, "task"])["steps"].max().reset_index()
    training = int((runs["steps"] * runs["batch_size"]).sum()) // seeds
    merges = rows.groupby([*KEYS, "group"]).ngroups // seeds
    products = tasks * known["singles"] * (known["products"] // 2)
    counts = {
        "bounds": (tasks * known["pictures"], products, 0, 0),
        "search": (training, 0, merges, len(rows) // seeds * swept["seen"]),
        "experts": (training, 0, 0, len(trained) // seeds * swept["pictures"]),
    }
    columns = ["gradients", "products", "merges", "forward"]
    return pd.DataFrame.from_dict(counts, orient="index", columns=columns)
