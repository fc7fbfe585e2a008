"""Procedures on one zoo at the same pictures: what chapter 20 tries, counts and looks into."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pandas as pd
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from mergebook.lab.comparison import adapted, merge_zoo
from mergebook.lab.results import load_table
from mergebook.lab.statistics import both_intervals
from mergebook.suites.types import (
    Zoo,
)
from mergelib.evaluation.loops import has_bfloat16
from mergelib.problems.calling import features
from mergelib.procedures import Adapted
from mergelib.procedures.fisher import diagonal_fisher
from mergelib.procedures.objectives import entropy
from mergelib.procedures.regmean import layer_grams
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

    Attributes:
        zoo: whose test splits judge.
        scores: `judge` of every trial, by title.
        given: title to what it ``sees`` when it merges, and the number of ``labels`` that were
            spent on learning it or on choosing its hyperparameters.
    """

    def __init__(self, zoo: Zoo) -> None:
        self.zoo = zoo
        self.scores: dict[str, pd.DataFrame] = {}
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


def batch_fisher(
    zoo: Zoo, task: str, inputs: Tensor, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """The Fisher information of an expert, example by example, and as a batch would estimate it.

    Returns:
        The mean of the squares, and B times the square of the mean gradient, each ``(n,)``.
    """
    expert, head = zoo.experts[task], zoo.heads[task]
    leaves = {key: expert[key].clone().requires_grad_() for key, _ in zoo.model.named_parameters()}
    device = next(iter(expert.values())).device
    ready = zoo.suite.tasks[task].transform(inputs.to(device))
    logits = head(functional_call(zoo.model.eval(), {**expert, **leaves}, (ready,)))
    chances = logits.detach().cpu().softmax(1)
    drawn = torch.multinomial(chances, 1, generator=generator)[:, 0].to(device)
    batch = torch.autograd.grad(F.cross_entropy(logits, drawn), list(leaves.values()))
    exact = diagonal_fisher(zoo.model, expert, head, ready, drawn)
    examples = torch.cat([exact[key].flatten() for key in leaves])
    return examples, len(ready) * torch.cat([part.flatten() for part in batch]).square()


def fisher_shares(
    information: Mapping[str, Mapping[str, Tensor]], floor: float = 1e-6
) -> dict[str, Tensor]:
    """What each expert weighs in a Fisher merge: key to ``(T, …)``, summing to one over experts."""
    keys = next(iter(information.values()))
    floored = {
        key: torch.stack([own[key] for own in information.values()]).clamp(min=floor)
        for key in keys
    }
    return {key: stack / stack.sum(0) for key, stack in floored.items()}


def layer_errors(
    zoo: Zoo, states: Mapping[str, StateDict], inputs: Mapping[str, Tensor]
) -> pd.DataFrame:
    """Error of every linear layer against the experts', on the inputs that these get.

    It is tr (W − W_t) G_t (W − W_t)ᵀ / tr W_t G_t W_tᵀ with the Gram matrix G_t of expert t's layer
    inputs: the mean square of the gap between outputs, over that of the expert's output.

    Returns:
        One row per layer, one column per name; means over the tasks.
    """
    errors: dict[str, dict[str, list[float]]] = {name: {} for name in states}
    for task, expert in zoo.experts.items():
        own = zoo.suite.tasks[task].transform
        for key, gram in layer_grams(zoo.model, expert, inputs[task], transform=own).items():
            size = ((expert[key].double() @ gram) * expert[key]).sum()
            for name, state in states.items():
                gap = (state[key] - expert[key]).double()
                errors[name].setdefault(key, []).append(float(((gap @ gram) * gap).sum() / size))
    return pd.DataFrame({name: pd.DataFrame(found).mean() for name, found in errors.items()})


@torch.no_grad()
def representation_bias(
    zoo: Zoo, state: StateDict, mend: Mapping[str, Callable[[Tensor], Tensor]]
) -> pd.DataFrame:
    """Mean |f − z| between a merged model's features and the expert's, on test inputs.

    Returns:
        One row per task, with columns ``before`` and ``after``.
    """
    rows = {}
    for name, task in zoo.suite.tasks.items():
        merged, wanted = (
            features(zoo.model, weights, task.test.inputs, transform=task.transform)
            for weights in (state, zoo.experts[name])
        )
        after = F.l1_loss(mend[name](merged), wanted)
        rows[name] = {"before": F.l1_loss(merged, wanted).item(), "after": after.item()}
    return pd.DataFrame(rows).T


@torch.no_grad()
def mean_shift(zoo: Zoo, state: StateDict, task: str, inputs: Tensor) -> nn.Module:
    """A task's head behind f − b, with b the mean of f − z over inputs of the task."""
    transform = zoo.suite.tasks[task].transform
    merged, wanted = (
        features(zoo.model, weights, inputs, transform=transform)
        for weights in (state, zoo.experts[task])
    )
    move = nn.Linear(merged.shape[1], merged.shape[1]).to(merged).requires_grad_(False)
    nn.init.eye_(move.weight)
    move.bias.copy_(-(merged - wanted).mean(0))
    return nn.Sequential(move, zoo.heads[task])


def over_seeds_and_tasks(pairs: Mapping[str, tuple[str, str]], result: str) -> pd.DataFrame:
    """Differences in points of mean test accuracy in a committed result.

    Returns:
        ``points``, ``half_width`` (95 %, Student's over the seeds), and the ends ``low`` and
        ``high`` of the 95 % interval over seeds and tasks.
    """
    return 100 * both_intervals(load_table(result), pairs).rename(columns={"mean": "points"})
