"""What is done to experts while they are trained, so that they merge better."""

from collections.abc import Sequence
from dataclasses import replace

from torch import Generator

from mergebook.lab.comparison import choices, choose_wide, judged_alone, merge_zoo, problem_of
from mergebook.lab.experts import judge_merges, train_experts
from mergebook.lab.grids import FIRST_GRIDS
from mergebook.lab.results import Tables
from mergebook.lab.runner import beginning_of, study
from mergebook.stability.theory.estimators import smoothness
from mergebook.stability.theory.task_loss import task_losses
from mergebook.suites.families import family_of
from mergebook.suites.models import Linearised
from mergebook.suites.training import fine_tune
from mergebook.suites.types import Zoo


@study(load=beginning_of)
def remedies(
    zoo: Zoo,
    *,
    epochs: int = 4,  # of the plain experts, even
    radii: Sequence[float] = (0.05, 0.2),  # ρ of sharpness-aware training
    methods: Sequence[str] = ("average", "task_arithmetic"),  # chosen for every kind of experts
    examples: int = 64,  # of each task, on which its loss's curvature is measured
) -> Tables:
    """Merges of experts that were trained plainly, sharpness-aware, or on the linearised network.

    Both remedies take two gradients where plain training takes one, so at equal cost they get half
    of its epochs; plain experts of that length stand beside them.

    Returns:
        ``test``: rows of ``kind``, ``method`` (also ``"individual"``), ``task``, ``accuracy`` and
        ``loss``; ``chosen``: rows of ``kind``, ``method`` and ``settings``; ``sharpness``: rows of
        ``kind``, ``task`` and ``sharpness``, the largest |eigenvalue| of the Hessian of a task's
        training loss at its expert, in that expert's own network.
    """
    if epochs < 2 or epochs % 2:
        raise ValueError(f"epochs is {epochs}, expected an even number above 0")
    usual = family_of(zoo.suite.name).recipe
    if usual is None:
        raise ValueError(f"experts of {zoo.suite.name} are public, and not trained here")
    expansion = Linearised(zoo.model)
    tangent = replace(zoo, model=expansion, pretrained=expansion.state_dict())
    kinds = {"plain": (zoo, epochs, 0.0), "plain, half as long": (zoo, epochs // 2, 0.0)}
    kinds |= {f"sharpness-aware, {radius:g}": (zoo, epochs // 2, radius) for radius in radii}
    kinds["linearised"] = (tangent, epochs // 2, 0.0)
    tables: Tables = {"test": [], "chosen": [], "sharpness": []}
    for kind, (start, length, radius) in kinds.items():
        recipe = replace(usual, epochs=length)
        experts = train_experts(start, fine_tune, recipe=recipe, radius=radius)
        made = replace(start, experts=experts)
        problem = problem_of(made, examples)
        for name, expert in experts.items():
            loss = task_losses(problem, expert)[name]
            generator = Generator().manual_seed(zoo.suite.seed)
            sharp = smoothness([loss], generator=generator)
            tables["sharpness"].append({"kind": kind, "task": name, "sharpness": sharp})
        tables["test"] += judged_alone(made, autocast=False, kind=kind)
        for method in methods:
            best = choose_wide(made, method, FIRST_GRIDS[method])[0]
            tables["chosen"] += choices({method: best}, kind=kind)
            merges = {method: merge_zoo(method, made, **best)}
            for name, row in judge_merges(made, merges, autocast=False):
                tables["test"].append({**row, "kind": kind, "method": name})
    return tables
