"""The problem that every procedure is given: experts and data, validated once."""

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from mergelib.io import AnyPath, Checkpoint, load_state_dict
from mergelib.merging import is_weight
from mergelib.placing import state_to
from mergelib.procedures.calling import (
    Transforms,
    evaluating,
    run_with,
    tied_names,
    transform_of,
    transformed,
)
from mergelib.procedures.common import check_labels, check_tasks
from mergelib.procedures.examples import Examples, read_examples
from mergelib.registry import Needs
from mergelib.statedict import (
    StateDict,
    check_compatible,
    check_keys,
    is_finite,
    is_matrix,
    name_experts,
)

StateLike = StateDict | nn.Module | AnyPath
ExpertsLike = Mapping[str, StateLike] | Sequence[StateLike]
IsMatrix = Callable[[str, Tensor], bool]


@dataclass(frozen=True)
class Problem:
    """What a procedure works on. What it does not need is empty, and it does not look at it.

    `make_problem` makes one from what users have, and checks it; whoever makes one otherwise
    vouches for it.

    Attributes:
        experts: name to state dict, at least one.
        pretrained: the state dict they were fine-tuned from; it gives the order of keys.
        model: the architecture; its own weights are left alone.
        data: task to examples, with labels where the procedure reads them.
        heads: task to what turns the model's output into logits.
        transform: from a batch of inputs to the model's; one for all tasks, or task to its own.
        start: where a procedure begins, if a user says.
        statistics: expert to what was computed from its data elsewhere.
        is_matrix: tells from key and tensor what is a matrix for low-rank methods.
    """

    experts: Mapping[str, StateDict]
    pretrained: StateDict = field(default_factory=dict)
    model: nn.Module = field(default_factory=nn.Identity)
    data: Mapping[str, Examples] = field(default_factory=dict)
    heads: Mapping[str, nn.Module] = field(default_factory=dict)
    transform: Transforms = None
    start: StateDict | None = None
    statistics: Mapping[str, StateDict] = field(default_factory=dict)
    is_matrix: IsMatrix = is_matrix

    @property
    def first(self) -> StateDict:
        """The point to begin with: ``start``, or the pretrained model."""
        return self.pretrained if self.start is None else self.start

    def to(self, device: torch.device | str) -> "Problem":
        """The problem on a device, but for its data, which follow batch by batch."""
        return replace(
            self,
            experts={name: state_to(state, device) for name, state in self.experts.items()},
            pretrained=state_to(self.pretrained, device),
            model=copy.deepcopy(self.model).to(device),
            heads={task: copy.deepcopy(head).to(device) for task, head in self.heads.items()},
            start=None if self.start is None else state_to(self.start, device),
            statistics={name: state_to(s, device) for name, s in self.statistics.items()},
        )


def make_problem(
    method: str,
    needs: Needs,
    experts: ExpertsLike,
    *,
    pretrained: StateLike | None = None,
    model: nn.Module | None = None,
    data: Mapping[str, Any] | None = None,
    heads: Mapping[str, nn.Module] | None = None,
    transform: Transforms = None,
    start: StateLike | None = None,
    statistics: Mapping[str, StateLike] | None = None,
    is_matrix: IsMatrix = is_matrix,
) -> Problem:
    """A problem from what users have; see `mergelib.adapt` for the arguments.

    Args:
        method: the procedure's name, for messages.
        needs: what the procedure needs.
        **given: as for `mergelib.adapt`.

    Raises:
        ValueError: something that is missing, does not fit or is not finite; the message names it.
        TypeError: experts, data or arguments of a kind that is not taken.
    """
    for name, value in (("start", start), ("statistics", statistics)):
        if value is not None and name not in needs.accepts:
            raise TypeError(f"{method} takes no {name}=")
    if model is None and isinstance(pretrained, nn.Module):
        model = pretrained
    ready = _read_experts(experts)
    problem = Problem(ready, transform=transform, is_matrix=is_matrix)
    if statistics is not None:
        problem = replace(problem, statistics=_read_statistics(statistics, ready))
    needs_model = needs.model and not (needs.every_expert and ready.keys() <= problem.statistics.keys())
    if needs_model:
        if model is None:
            raise ValueError(f"{method} needs model: pass model=")
        problem = replace(problem, model=model)
    if needs.pretrained:
        if pretrained is None:
            raise ValueError(f"{method} needs the pretrained model: pass pretrained=")
        problem = replace(problem, pretrained=_read_state("pretrained", pretrained))
    if start is not None:
        problem = replace(problem, start=_read_state("start", start))
    problem = _checked_states(problem, needs)
    if needs_model:
        problem = _with_data(method, problem, needs, data, heads)
    return problem


def _read_state(name: str, given: StateLike) -> StateDict:
    """A state dict of what may be a module or a file."""
    if isinstance(given, nn.Module):
        return given.state_dict()
    state = load_state_dict(given) if isinstance(given, str | Path) else given
    if not isinstance(state, Mapping):
        raise TypeError(f"{name} is a {type(state).__name__}, expected a state dict")
    return state


def _read_experts(experts: ExpertsLike) -> dict[str, StateDict]:
    """Experts by name; files are read tensor by tensor, when they are needed."""

    def read(given: StateLike) -> StateDict:
        if isinstance(given, nn.Module):
            return given.state_dict()
        return Checkpoint(given) if isinstance(given, str | Path) else given

    if isinstance(experts, Mapping):
        return name_experts({name: read(expert) for name, expert in experts.items()})
    return name_experts([read(expert) for expert in experts])


def _read_statistics(
    statistics: Mapping[str, StateLike], experts: Mapping[str, StateDict]
) -> dict[str, StateDict]:
    for name in statistics:
        if name not in experts:
            raise ValueError(
                f"statistics name {name!r}, which is no expert; there are: {', '.join(experts)}"
            )
    return {
        name: _read_state(f"statistics of {name!r}", given) for name, given in statistics.items()
    }


def _checked_states(problem: Problem, needs: Needs) -> Problem:
    """Ties as in the model, keys, shapes and dtypes alike, everything finite."""
    ties = tied_names(problem.model)
    states = {
        name: _tied(name, state, ties)
        for name, state in (
            ("pretrained", problem.pretrained),
            ("start", {} if problem.start is None else problem.start),
            *problem.experts.items(),
        )
    }
    pretrained, start = states.pop("pretrained"), states.pop("start")
    if needs.pretrained:
        check_compatible(pretrained, states, "pretrained")
        if problem.start is not None:
            check_compatible(pretrained, {"start": start}, "pretrained")
        if needs.model and not isinstance(problem.model, nn.Identity):
            _check_fits(problem.model, pretrained)
    for name, state in {"pretrained": pretrained, "start": start, **states}.items():
        _check_finite(name, state)
    chosen = None if problem.start is None else start
    return replace(problem, pretrained=pretrained, start=chosen, experts=states)


def _tied(name: str, state: StateDict, ties: Mapping[str, str]) -> StateDict:
    """A state dict in which keys that the model ties are one tensor.

    Files often hold it under one of its keys only.
    """
    known = {key: first for key, first in ties.items() if key in state or first in state}
    if not known or not isinstance(state, Mapping):
        return state
    tied = dict(state)
    for key, first in known.items():
        tied.setdefault(first, tied.get(key))  # type: ignore[arg-type]
        value = tied.setdefault(key, tied[first])
        if value is not tied[first] and not torch.equal(value, tied[first]):
            raise ValueError(f"the model ties {key!r} to {first!r}, but in {name} they differ")
        tied[key] = tied[first]
    return tied


def _check_fits(model: nn.Module, pretrained: StateDict) -> None:
    own = model.state_dict()
    check_keys(own, pretrained, "pretrained", "the model")
    for key, tensor in own.items():
        if tensor.shape != pretrained[key].shape:
            raise ValueError(
                f"pretrained[{key!r}] has shape {tuple(pretrained[key].shape)}, "
                f"expected {tuple(tensor.shape)} as in the model"
            )


def _check_finite(name: str, state: StateDict) -> None:
    for key, tensor in state.items():
        if is_weight(key, tensor) and not is_finite(tensor):
            kind = "NaN" if tensor.isnan().any() else "Inf"
            count = int((~torch.isfinite(tensor)).sum())
            raise ValueError(
                f"{name}[{key!r}] holds {kind} in {count} of {tensor.numel()} entries"
            )


def _with_data(
    method: str,
    problem: Problem,
    needs: Needs,
    data: Mapping[str, Any] | None,
    heads: Mapping[str, nn.Module] | None,
) -> Problem:
    """The problem with its data and heads, which fit each other, the model and the experts."""
    if data is None:
        raise ValueError(f"{method} needs data: pass data=")
    given = dict.fromkeys(data, nn.Identity()) if heads is None else heads
    check_tasks(data, given if needs.heads else data, "head")
    if needs.every_task:
        check_tasks(data, problem.experts, "expert")
    if needs.every_expert:
        check_tasks(problem.experts, {**data, **problem.statistics}, "data")
    examples = {task: read_examples(task, part) for task, part in data.items()}
    if not needs.labels:
        examples = {task: part.unlabelled for task, part in examples.items()}
    for task, part in examples.items():
        if needs.labels and part.labels is None:
            raise ValueError(f"{method} needs labels: pass (inputs, labels) for task {task!r}")
    problem = replace(problem, data=examples, heads=given if needs.heads else {})
    if needs.heads and heads is None:
        _check_logits(problem)
    if needs.labels == "classes":
        check_labels(examples, problem.model, problem.first, given, problem.transform)
    return problem


def _check_logits(problem: Problem) -> None:
    """Refuse a model that gives features for a head, where there is no head."""
    task, examples = next(iter(problem.data.items()))
    model = problem.model
    device = next((each.device for each in model.parameters()), torch.device("cpu"))
    inputs = transformed(examples[:1].to(device).inputs, transform_of(problem.transform, task))
    with torch.no_grad(), evaluating(model):
        output = run_with(model, {}, inputs)
    if not isinstance(output, Tensor) and getattr(output, "logits", None) is None:
        raise ValueError("the model gives features and no logits: pass heads=")
