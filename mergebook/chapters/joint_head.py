"""Evaluate models with an unknown task: one head holds the classes of all tasks."""

from collections.abc import Mapping
from dataclasses import replace

import pandas as pd
import torch

from mergebook.lab import comparison
from mergebook.suites.models import Head
from mergebook.suites.types import Zoo
from mergelib.statedict import StateDict


def one_question(zoo: Zoo) -> Zoo:
    """Return the zoo with one head for the stacked classes of all tasks, and labels to match."""
    heads = [zoo.heads[name] for name in zoo.suite.tasks]
    joint = Head(torch.cat([head.get_parameter("weight") for head in heads]))
    classes = tuple(name for task in zoo.suite.tasks.values() for name in task.class_names)
    tasks, first = {}, 0
    for name, task in zoo.suite.tasks.items():
        parts = {split: getattr(task, split) for split in ("train", "validation", "test")}
        moved = {split: replace(part, labels=part.labels + first) for split, part in parts.items()}
        tasks[name] = replace(task, class_names=classes, **moved)
        first += len(task.class_names)
    return replace(zoo, suite=replace(zoo.suite, tasks=tasks), heads=dict.fromkeys(tasks, joint))


def accuracies(zoo: Zoo, candidates: Mapping[str, StateDict]) -> pd.DataFrame:
    """Return each candidate's test accuracy in % on each task, and its mean across tasks."""
    wide = 100 * comparison.accuracies(zoo, candidates).rename_axis(index=None, columns=None)
    return wide.assign(mean=wide.mean(axis=1))
