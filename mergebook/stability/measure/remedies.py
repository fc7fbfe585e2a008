"""What is done to experts while they are trained, so that they merge better.

A function of a zoo that returns tables, lists of rows. See `mergebook.lab.runner`.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from torch import Generator

from mergebook.lab.comparison import (
    choices,
    choose_wide,
    individual,
    merge_zoo,
    problem_of,
    records,
)
from mergebook.lab.grids import FIRST_GRIDS
from mergebook.lab.results import Rows, Tables
from mergebook.lab.runner import beginning_of, study
from mergebook.stability.theory.estimators import smoothness
from mergebook.stability.theory.task_loss import task_losses
from mergebook.suites.loading import usual_recipe
from mergebook.suites.models import Linearised
from mergebook.suites.training import fine_tune
from mergebook.suites.types import (
    Zoo,
)
from mergelib.evaluation.loops import evaluate

COLUMNS = ["task", "accuracy", "loss"]


@study(load=beginning_of)
def remedies(
    zoo: Zoo,
    *,
    epochs: int = 4,
    radii: Sequence[float] = (0.05, 0.2),
    methods: Sequence[str] = ("average", "task_arithmetic"),
    examples: int = 64,
) -> Tables:
    """Merges of experts that were trained plainly, sharpness-aware, or on the linearised network.

    Both remedies take two gradients where plain training takes one, so at equal cost they get half
    of its epochs; plain experts of that length stand beside them.

    Args:
        zoo: a suite, its backbone and heads; experts play no part.
        epochs: of the plain experts, even.
        radii: ρ of sharpness-aware training.
        methods: at settings chosen on validation data, for every kind of experts anew.
        examples: training examples of a task that its loss's curvature is measured on.

    Returns:
        ``test``: rows of ``kind``, ``method`` (also ``"individual"``), ``task``, ``accuracy`` and
        ``loss``; ``chosen``: rows of ``kind``, ``method`` and ``settings``; ``sharpness``: rows of
        ``kind``, ``task`` and ``sharpness``, the largest |eigenvalue| of the Hessian of a task's
        training loss at its expert, in that expert's own network.

    Raises:
        ValueError: an odd number of epochs, or a suite whose experts are public.
    """
    if epochs < 2 or epochs % 2:
        raise ValueError(f"epochs is {epochs}, expected an even number above 0")
    expansion = Linearised(zoo.model)
    tangent = replace(zoo, model=expansion, pretrained=expansion.state_dict())
    kinds = {
        "plain": partial(_trained, zoo, epochs),
        "plain, half as long": partial(_trained, zoo, epochs // 2),
        **{
            f"sharpness-aware, {radius:g}": partial(_trained, zoo, epochs // 2, radius)
            for radius in radii
        },
        "linearised": partial(_trained, tangent, epochs // 2),
    }
    tables: Tables = {"test": [], "chosen": [], "sharpness": []}
    for kind, train in kinds.items():
        made = train()
        tables["sharpness"] += [{"kind": kind, **row} for row in _sharpness(made, examples)]
        judged = {"individual": individual(made)}
        for method in methods:
            best = choose_wide(made, method, FIRST_GRIDS[method])[0]
            tables["chosen"] += choices({method: best}, kind=kind)
            merged = merge_zoo(method, made, **best)
            judged[method] = evaluate(made.model, merged, made.heads, made.suite)
        for method, table in judged.items():
            tables["test"] += records(table[COLUMNS].assign(kind=kind, method=method))
    return tables


def _trained(zoo: Zoo, epochs: int, radius: float = 0.0) -> Zoo:
    """The zoo with other experts, from the same start."""
    usual = usual_recipe(zoo.suite.name)
    if usual is None:
        raise ValueError(f"experts of {zoo.suite.name} are public, and not trained here")
    experts = {
        name: fine_tune(
            zoo.model,
            zoo.heads[name],
            task.train,
            replace(usual, epochs=epochs),
            transform=task.transform,
            loss=task.loss,
            radius=radius,
            seed=zoo.suite.seed,
        )
        for name, task in zoo.suite.tasks.items()
    }
    return replace(zoo, experts=experts)


def _sharpness(zoo: Zoo, count: int) -> Rows:
    """At every expert, of its own task's loss."""
    problem, rows = problem_of(zoo, count), []
    for name, expert in zoo.experts.items():
        loss = task_losses(problem, expert)[name]
        generator = Generator().manual_seed(zoo.suite.seed)
        rows.append({"task": name, "sharpness": smoothness([loss], generator=generator)})
    return rows
