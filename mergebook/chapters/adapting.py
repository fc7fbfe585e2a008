"""Procedures on one zoo at the same pictures: what chapter 20 tries."""

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd
import torch
from torch import Tensor, nn

from mergebook.lab.comparison import adapted, merge_zoo
from mergebook.suites.types import Zoo
from mergelib.evaluation.loops import has_bfloat16
from mergelib.problems.calling import features
from mergelib.procedures import Adapted
from mergelib.procedures.objectives import entropy
from mergelib.statedict import StateDict, is_matrix


@torch.no_grad()
def judge(
    zoo: Zoo,
    state: StateDict,
    heads: Mapping[str, nn.Module] | None = None,
    tasks: Sequence[str] | None = None,
) -> pd.DataFrame:
    """Test accuracy (0..1) and mean entropy of the predictions (nats): one row per task."""
    device = next(iter(zoo.pretrained.values())).device
    heads = {**zoo.heads, **(heads or {})}
    scores = {}
    for name in zoo.suite.tasks if tasks is None else tasks:
        task = zoo.suite.tasks[name]
        with torch.autocast(device.type, torch.bfloat16, enabled=has_bfloat16(device)):
            z = features(zoo.model, state, task.test.inputs, transform=task.transform)
        logits = heads[name](z.float())
        right = (logits.argmax(1) == task.test.labels.to(device)).float().mean().item()
        scores[name] = {"accuracy": right, "entropy": entropy(logits).item()}
    return pd.DataFrame(scores).T


class Trials:
    """Merges and procedures tried on one zoo: what each was given, and what it reached.

    Given are what it ``sees`` when it merges, and the number of ``labels`` that were spent on
    learning it or on choosing its hyperparameters.
    """

    def __init__(self, zoo: Zoo) -> None:
        self.zoo = zoo  # whose test splits judge
        self.scores: dict[str, pd.DataFrame] = {}  # `judge` of every trial, by title
        self.given: dict[str, dict[str, Any]] = {}

    def note(
        self,
        title: str,
        state: StateDict,
        heads: Mapping[str, nn.Module] | None = None,
        *,
        sees: str = "nothing",
        labels: int = 0,
    ) -> None:
        """Judge weights, and heads where they come with them."""
        self.scores[title] = judge(self.zoo, state, heads)
        self.given[title] = {"sees": sees, "labels": labels}

    def merge(
        self, title: str, method: str, *, labels: int = 0, **hyperparameters: Any
    ) -> dict[str, Tensor]:
        """Merge by a data-free rule, and note it."""
        state = merge_zoo(method, self.zoo, **hyperparameters)
        self.note(title, state, labels=labels)
        return state

    def adapt(
        self,
        title: str,
        method: str,
        data: Mapping[str, Any],
        *,
        sees: str = "pictures",
        labels: int = 0,
        **options: Any,
    ) -> Adapted:
        """Run a procedure, and note what it made."""
        result = adapted(self.zoo, method, data, **options)
        self.note(title, result.state, result.heads, sees=sees, labels=labels)
        return result

    def table(self) -> pd.DataFrame:
        """One row per trial: mean ``accuracy`` (0..1) and ``entropy``, ``sees`` and ``labels``."""
        means = pd.DataFrame({title: scores.mean() for title, scores in self.scores.items()}).T
        return means.join(pd.DataFrame(self.given).T)


def place(key: str) -> str:
    """Where a tensor of a vision transformer sits: the stem, or attention or MLP of a block."""
    parts = key.split(".")
    if parts[0] != "blocks":
        return "stem"
    return f"block {parts[1]} " + ("attention" if "attn" in key else "MLP")


def by_place(values: pd.DataFrame, pretrained: StateDict) -> pd.DataFrame:
    """Mean over the matrices of each `place`."""
    keys = [key for key in values if is_matrix(str(key), pretrained[str(key)])]
    return values[keys].T.groupby(place, sort=False).mean().T
