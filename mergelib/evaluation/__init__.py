"""Tasks and suites, and the evaluation of models on them."""

from mergelib.evaluation.cost import measured
from mergelib.evaluation.loops import evaluate, evaluate_many, normalised_accuracy
from mergelib.evaluation.tasks import Metric, Split, Suite, Task

__all__ = [
    "Metric",
    "Split",
    "Suite",
    "Task",
    "evaluate",
    "evaluate_many",
    "measured",
    "normalised_accuracy",
]
