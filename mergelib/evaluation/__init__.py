"""Tasks and suites, and the evaluation of models on them."""

from mergelib.evaluation.cost import Cost, measured
from mergelib.evaluation.loops import (
    SplitName,
    evaluate,
    evaluate_many,
    has_bfloat16,
    normalised_accuracy,
)
from mergelib.evaluation.metrics import CORRELATION, MATTHEWS, squared_error
from mergelib.evaluation.tasks import (
    ACCURACY,
    LOSS,
    Loss,
    Metric,
    Split,
    Suite,
    Task,
    Transform,
    as_stored,
    cross_entropy,
)

__all__ = [
    "ACCURACY",
    "CORRELATION",
    "LOSS",
    "MATTHEWS",
    "Cost",
    "Loss",
    "Metric",
    "Split",
    "SplitName",
    "Suite",
    "Task",
    "Transform",
    "as_stored",
    "cross_entropy",
    "evaluate",
    "evaluate_many",
    "has_bfloat16",
    "measured",
    "normalised_accuracy",
    "squared_error",
]
