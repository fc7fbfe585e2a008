"""SyMerge: coefficients and every task's head, learned from the experts' predictions.

The merged weights are those of `mergelib.procedures.adamerging` on task arithmetic, θ_l = θ_0,l +
Σ_t λ_{t,l} τ_{t,l}. One layer of each task is learned with λ, by the cross-entropy of the merged
model's predictions with those of the task's expert (Jung et al., 2026).
"""

import copy
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch

from mergelib.messages.kinds import Count, Size
from mergelib.problems.calling import evaluating, features, transform_of
from mergelib.problems.examples import Examples
from mergelib.problems.problem import Problem
from mergelib.procedures.adamerging import AdaMergingSettings, learned
from mergelib.procedures.common import Adapted
from mergelib.registry import Needs, procedure


@dataclass(frozen=True)
class SyMergeSettings:
    """Hyperparameters of `symerge`; the defaults are the released code's.

    Attributes:
        init: initial λ.
        learning_rate: of Adam, for λ and heads.
        steps: number of steps.
        batch_size: inputs of each task per step.
        seed: of the batches.
    """

    init: float = 0.3
    learning_rate: float = 1e-2
    steps: Count = 500
    batch_size: Size = 32
    seed: int = 0


@procedure(
    paper="jung2026symerge",
    data="unlabelled inputs of every task (the paper: test inputs)",
    settings=SyMergeSettings,
    needs=Needs(every_task=True),
)
def symerge(problem: Problem, settings: SyMergeSettings) -> Adapted:
    """SyMerge: learn λ and the heads so that the merged model predicts what each expert predicts.

    The layer that is learned for each task is its head, which begins as the expert's. Labels are
    the classes that the experts predict, and λ stays in 0..1, as in the released code. A step has
    the sum of the tasks' losses; that code steps after each task, and leaves out inputs of which
    the merged model is surer than the expert and disagrees.

    Returns:
        The merged state; ``heads``, task to its new head; ``coefficients``, one row per expert and
        one column per tensor; ``history``, one row per step with each task's loss before it (nats).
    """
    heads = {task: copy.deepcopy(problem.heads[task]).requires_grad_() for task in problem.data}
    for task, head in heads.items():
        if not [*head.parameters()]:
            raise ValueError(
                f"symerge trains the head of every task, and that of {task!r} has no parameters: "
                "pass heads="
            )
    data = {task: predicted(problem, task, settings.batch_size) for task in problem.data}
    problem = replace(problem, data=data, heads=heads)
    trained = [parameter for head in heads.values() for parameter in head.parameters()]
    of_scales = AdaMergingSettings(clamp=True, **asdict(settings))
    made = learned(problem, of_scales, "symerge", trained)
    return replace(made, heads={task: head.requires_grad_(False) for task, head in heads.items()})


@torch.no_grad()
def predicted(problem: Problem, task: str, batch_size: int) -> Examples:
    """Return a task's inputs with the classes that its expert predicts."""
    examples, head = problem.data[task], problem.heads[task]
    how: Any = {"batch_size": batch_size, "transform": transform_of(problem.transform, task)}
    outputs = features(problem.model, problem.experts[task], examples, **how)
    with evaluating(head):
        return Examples(examples.inputs, head(outputs).argmax(-1))
