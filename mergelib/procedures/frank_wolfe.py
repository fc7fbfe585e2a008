"""Frank-Wolfe merging: minimise a loss over the convex hull of the experts (Chen et al., 2025).

`mergelib.procedures.walk` explains the algorithm. Experts are read tensor by tensor, so they may be
`mergelib.Checkpoint`s larger than memory.
"""

from dataclasses import dataclass
from typing import Literal

from mergelib.messages.kinds import Size
from mergelib.problems.problem import Problem
from mergelib.procedures.common import Adapted, complete
from mergelib.procedures.objectives import CalibrationLoss
from mergelib.procedures.walk import Walk, combination, minimise
from mergelib.registry import Needs, procedure
from mergelib.statedict import is_statistic, proportions


@dataclass(frozen=True)
class FrankWolfeSettings(Walk):
    """Hyperparameters of `frank_wolfe`: those of a `Walk`, and two more.

    Attributes:
        loss: on calibration data; ``"entropy"`` of predictions needs no labels.
        batch_size: inputs at once.
    """

    loss: Literal["cross_entropy", "entropy"] = "cross_entropy"
    batch_size: Size = 200


@procedure(
    paper="chen2025fwmerging",
    data="labelled examples of every task (100; unlabelled for the entropy)",
    settings=FrankWolfeSettings,
    needs=Needs(labels="classes", unless=("loss", "entropy"), accepts=("start",)),
)
def frank_wolfe(problem: Problem, settings: FrankWolfeSettings) -> Adapted:
    """Frank-Wolfe merging: go towards the expert, or the best mixture of a few, that lowers a loss.

    The experts are the vertices of the hull. The first point is ``problem.start``, which has a
    coefficient of its own, or the pretrained model.

    Returns:
        The merged state; ``coefficients``, one row per vertex and one for the ``start``, one column
        per parameter: they sum to one, and θ = Σ coefficient · vertex. Unless ``constraint`` is
        ``"none"`` they are not negative, which proves that θ lies in the hull. ``history``, one row
        per step: ``step``, ``loss`` before it, ``gap``, ``vertex`` (with layers, the most frequent)
        and ``moved``, one minus the weight of the current point.
    """
    first, pretrained, experts = problem.first, problem.pretrained, problem.experts
    keys = [key for key, _ in problem.model.named_parameters()]
    begin = {key: first[key] for key in keys}
    fixed = {key: tensor for key, tensor in first.items() if key not in begin}
    objective = CalibrationLoss(
        problem.model, fixed, problem.heads, problem.data, settings.batch_size, problem.transform
    )
    theta, table, history = minimise(objective, begin, experts, settings)
    weights = table.mean(axis=1).tolist()  # for statistics positive ones
    shares = {key: proportions(weights) if is_statistic(key) else weights for key in fixed}
    buffers = {
        key: combination(shares[key], tensor.float(), experts, key)
        for key, tensor in fixed.items()
        if tensor.is_floating_point()
    }
    return Adapted(complete({**buffers, **theta}, pretrained), table, history)
