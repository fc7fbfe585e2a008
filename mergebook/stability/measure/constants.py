"""The stability framework's constants on networks (Li et al., 2026, Assumptions 1 to 5)."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Generator, Tensor, nn

from mergebook.lab.comparison import merge_zoo, problem_of
from mergebook.lab.results import Rows, Tables
from mergebook.lab.runner import beginning_of, study
from mergebook.stability.measure.retraining import descend, rows_of
from mergebook.stability.measure.scaling import trained_checkpoints
from mergebook.stability.theory import estimators
from mergebook.stability.theory.steps import adam_residual
from mergebook.stability.theory.task_loss import TaskLoss, task_losses
from mergebook.suites.types import Zoo
from mergelib.hashing import stable_seed
from mergelib.statedict import StateDict
from mergelib.training import shuffled

BATCH = 32  # of Adam's steps


@study(load=beginning_of)
def stability(
    zoo: Zoo,
    *,
    after: Sequence[int] = (),  # also at averages of experts that Adam trained for these steps
    pictures: int = 128,  # training examples of each task whose gradients are taken
    curved: int = 16,  # number of these that curvatures are measured on
    singles: int = 6,  # number of these whose single curvatures are measured
    parts: int = 8,  # into which examples are cut for estimates without bias, at least 3
    products: int = 20,  # with each Hessian, at most; half as many for single examples
    adam: int = 20,  # steps of Adam from the pretrained model, to see what it makes of gradients
    learning_rate: float = 2e-4,  # of Adam, constant
) -> Tables:
    """The constants that the framework's bounds take, at the pretrained model and early merges.

    On training examples. ``curvature``: ``smoothness`` by ``point``, ``task`` and whether ``of``
    the ``mean`` or an ``example``. ``gradients``: ``loss``, ``noise`` σ², ``largest`` σ,
    ``heterogeneity`` ζ², also ``plugged_in`` with bias. ``points``: ``loss`` f, ``squared`` ‖∇f‖²
    and ``unbiased``, ``dissimilarity`` κ² for equal weights. ``adam``: see `adam_residual`.
    """
    generator = Generator().manual_seed(stable_seed("stability", zoo.suite.seed))
    problem = problem_of(zoo, pictures)
    states: dict[str, StateDict] = {"pretrained": zoo.pretrained}
    training = {"optimiser": "adam", "learning_rate": learning_rate, "batch_size": BATCH}
    early = trained_checkpoints(zoo, after, **training) if after else {}
    states |= {
        f"average after {count}": merge_zoo("average", replace(zoo, experts=dict(experts)))
        for count, experts in early.items()
    }
    tables: Tables = {"curvature": [], "gradients": [], "points": [], "adam": []}
    for point, state in states.items():
        losses = task_losses(problem, state)
        own = {name: loss[:curved] for name, loss in losses.items()}
        options: dict[str, Any] = {"steps": products // 2, "generator": generator}
        whole = estimators.smoothness([*own.values()], steps=products, generator=generator)
        row = {"point": point, "of": "mean", "task": "", "smoothness": whole}
        tables["curvature"].append(row)
        for task, loss in own.items():
            single = row | {"of": "example", "task": task}
            values = estimators.example_smoothness(loss[:singles], **options).tolist()
            tables["curvature"] += [single | {"smoothness": value} for value in values]
        rows, summary = _gradients(losses, parts)
        tables["gradients"] += [{"point": point, **row} for row in rows]
        tables["points"].append({"point": point, **summary})
    for name in zoo.suite.tasks:
        steps = _recorded(zoo, name, adam, learning_rate)
        tables["adam"] += [{"task": name, **row} for row in steps]
    return tables


def _gradients(losses: Mapping[str, TaskLoss], parts: int) -> tuple[Rows, dict[str, float]]:
    """What gradients tell at one point: of every task, and of all together."""
    table = estimators.gradient_products([*losses.values()], parts)
    apart = estimators.heterogeneity(table)
    rows: Rows = []
    for (name, loss), distance in zip(losses.items(), apart, strict=True):
        noise = estimators.gradient_noise(loss)
        row = {"task": name, "loss": float(loss.values().mean())}
        row |= {"noise": noise.square, "largest": noise.largest}
        rows.append(row | {"heterogeneity": distance.value, "plugged_in": distance.plug_in})
    even = torch.full((len(losses),), 1 / len(losses), dtype=torch.float64)
    gradient = estimators.squared_length(table, even)
    kappa = estimators.dissimilarity(table, even)
    mean = {"loss": sum(row["loss"] for row in rows) / len(rows), "squared": gradient.plug_in}
    return rows, mean | {"unbiased": gradient.value, "dissimilarity": kappa.value}


def _recorded(zoo: Zoo, name: str, steps: int, rate: float) -> Iterator[dict[str, float]]:
    gradients: list[Tensor] = []

    def keep(network: nn.Module, _: int) -> None:
        moved = (p.grad for p in network.parameters() if p.grad is not None)
        gradients.append(torch.cat([g.flatten() for g in moved]))

    generator = Generator().manual_seed(stable_seed("adam", name, zoo.suite.seed))
    rows = rows_of(zoo, name)
    batches = shuffled(len(rows), min(BATCH, len(rows)), generator, steps=steps)
    descend(zoo, name, rows, batches, "adam", rate, keep)
    for count in sorted({1, max(1, steps // 5), steps}):
        yield {"steps": count, "residual": adam_residual(torch.stack(gradients[:count]))}
