"""The input of every procedure: experts and data, validated once."""

import copy
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from mergelib.inspection.companions import check_companions
from mergelib.inspection.kinds import IsMatrix as IsMatrix
from mergelib.inspection.watch import Watch
from mergelib.io import Checkpoint, Model, Models, as_state
from mergelib.merging import check_agreement, is_weight, tied_keys
from mergelib.merging.applying import not_finite
from mergelib.messages.brief import Brief
from mergelib.parts import Parts, Selection, select
from mergelib.problems.calling import (
    Transforms,
    evaluating,
    run_with,
    tied_names,
    transform_of,
    transformed,
)
from mergelib.problems.checks import check_labels, check_tasks
from mergelib.problems.examples import Examples, read_examples
from mergelib.problems.placing import LazyState, is_lazy, state_to
from mergelib.registry import Needs
from mergelib.statedict import (
    StateDict,
    check_compatible,
    check_keys,
    check_mapping,
    is_finite,
    is_matrix,
    layout_of,
    name_experts,
    named,
)


@dataclass(frozen=True, repr=False)
class Problem(Brief):
    """The input of a procedure; what it does not need is empty.

    `mergelib.adapt` makes and checks one; code that makes one itself must ensure that it is valid.

    Attributes:
        experts: name to state dict, at least one.
        pretrained: the base model's state dict, which sets the order of keys.
        model: the architecture; its own weights are not used.
        data: task to examples, with labels if the procedure reads them.
        heads: task to a module that maps the model's output to logits.
        transform: maps a batch of inputs to the model's; one for all tasks, or one per task.
        start: the initial weights, if given.
        statistics: expert to precomputed statistics of its data.
        is_matrix: predicate (key, tensor) of what low-rank methods treat as a matrix.
        parts: which parts of the models are merged; elsewhere the experts equal the base.
        selection: the corresponding keys.
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
    parts: Parts | None = None
    selection: Selection | None = None

    @property
    def first(self) -> StateDict:
        """The initial weights: ``start``, or the pretrained model."""
        return self.pretrained if self.start is None else self.start

    def to(self, device: torch.device | str) -> "Problem":
        """Return the problem on a device; data follow batch by batch."""
        return replace(
            self,
            experts={name: state_to(state, device) for name, state in self.experts.items()},
            pretrained=state_to(self.pretrained, device),
            model=copy.deepcopy(self.model).to(device),
            heads={task: copy.deepcopy(head).to(device) for task, head in self.heads.items()},
            start=None if self.start is None else state_to(self.start, device),
            statistics={name: state_to(s, device) for name, s in self.statistics.items()},
        )


def check_needs(
    method: str, needs: Needs, arguments: Mapping[str, Any], *, running: bool, parts: bool
) -> None:
    """Raise ValueError for a missing argument of `mergelib.adapt`, TypeError for a useless one."""
    for name in ("start", "statistics"):
        if arguments[name] is not None and name not in needs.accepts:
            raise TypeError(f"{method} does not accept {name}=")
    if parts and not needs.parts:
        raise TypeError(f"{method} cannot merge parts of models, because it trains the whole model")
    for name, needed in (("pretrained", needs.pretrained), ("model", running), ("data", running)):
        if needed and arguments[name] is None:
            article = "the pretrained model" if name == "pretrained" else name
            raise ValueError(f"{method} needs {article}: pass {name}=")


def read_experts(experts: Models) -> dict[str, StateDict]:
    """Return experts by name; files are read tensor by tensor, on access."""

    def read(model: Model) -> StateDict:
        if isinstance(model, str | os.PathLike):
            return Checkpoint(model)
        return model if isinstance(model, Checkpoint) else as_state(model)

    return name_experts({name: read(expert) for name, expert in named(experts).items()})


def read_statistics(
    statistics: Mapping[str, Model], experts: Mapping[str, StateDict]
) -> dict[str, StateDict]:
    """Return statistics by expert; ValueError for a name that is not an expert."""
    for name in statistics:
        if name not in experts:
            raise ValueError(
                f"statistics name {name!r}, which is not an expert; there are: {', '.join(experts)}"
            )
    return {name: as_state(given) for name, given in statistics.items()}


def checked_states(problem: Problem) -> Problem:
    """Return the problem with tied, compatible and finite state dicts."""
    ties = tied_names(problem.model)
    experts = {name: _tied(name, state, ties) for name, state in problem.experts.items()}
    base = problem.pretrained and _tied("pretrained", problem.pretrained, ties)
    start = problem.start and _tied("start", problem.start, ties)
    if base and start is not None:
        check_compatible(base, {"start": start}, "pretrained")
    what, reference = ("pretrained", base) if base else next(iter(experts.items()))
    if not isinstance(problem.model, nn.Identity):
        _check_fits(problem.model, what, layout_of(reference))
    parts = problem.parts or Parts()
    layouts = {name: layout_of(state) for name, state in experts.items()}
    selection = select(layouts, base or None, parts, tied=tied_keys(reference))
    experts = {name: _selected(state, reference, selection) for name, state in experts.items()}
    models: dict[str, StateDict] = {**({"pretrained": base} if base else {}), **experts}
    check_agreement(models, selection.merged, tied_keys(reference))
    _look_through(experts, base, selection)
    for key, tensor in (start or {}).items():
        _check_finite("start", key, tensor)
    return replace(problem, experts=experts, pretrained=base, start=start, selection=selection)


def check_models(
    problem: Problem, experts: Mapping[str, object], pretrained: object | None = None
) -> None:
    """Compare the files beside the weights of a checked problem's models."""
    assert problem.selection is not None
    base = {"pretrained": pretrained} if problem.pretrained else {}
    reference = problem.pretrained or next(iter(problem.experts.values()))
    merged, keys = problem.selection.merged, {*problem.selection.keys}
    check_companions({**base, **experts}, layout_of(reference), merged, keys)


def _selected(expert: StateDict, reference: StateDict, selection: Selection) -> StateDict:
    """Return an expert in the reference's dtypes, with its tensors where nothing is merged."""
    kinds = {key: tensor.dtype for key, tensor in layout_of(expert).items()}
    same_dtypes = all(kinds.get(key) == t.dtype for key, t in layout_of(reference).items())
    if same_dtypes and expert.keys() == reference.keys() == selection.merged:
        return expert
    if is_lazy(expert):
        parts = {key: (expert if key in selection.merged else reference, key) for key in reference}
        return LazyState(parts, layout_of(reference))
    return {
        key: expert[key].to(tensor.dtype) if key in selection.merged else tensor
        for key, tensor in reference.items()
    }


def _tied(name: str, state: StateDict, ties: Mapping[str, str]) -> StateDict:
    """Return a state dict in which keys that the model ties are one tensor."""
    check_mapping(state, name)
    model_ties = {key: first for key, first in ties.items() if key in state or first in state}
    if not model_ties:
        return state
    names = {key: key for key in state}  # and by which of its own keys each is to be read
    for key, first in model_ties.items():
        held = names.setdefault(first, key)
        if key in state and held != key:
            tensor, other = state[key], state[held]
            if tensor is not other and not torch.equal(tensor, other):
                raise ValueError(f"the model ties {key!r} to {first!r}, but in {name} they differ")
        names[key] = held
    if is_lazy(state):
        layout = {key: layout_of(state)[held] for key, held in names.items()}
        return LazyState({key: (state, held) for key, held in names.items()}, layout)
    return {key: state[held] for key, held in names.items()}


def _check_fits(model: nn.Module, name: str, state: StateDict) -> None:
    """Refuse a state dict without the model's keys and shapes."""
    expected = model.state_dict()
    check_keys(expected, state, name, "the model")
    for key, tensor in expected.items():
        if tensor.shape != state[key].shape:
            raise ValueError(
                f"{name}[{key!r}] has shape {tuple(state[key].shape)}, "
                f"expected {tuple(tensor.shape)} as in the model"
            )


def _look_through(experts: Mapping[str, StateDict], base: StateDict, selection: Selection) -> None:
    """Refuse values that are not finite, and warn about unrelated models, one tensor at a time."""
    watch = Watch([*experts], pretrained=bool(base))
    models = {**experts, **({"pretrained": base} if base else {})}
    states = list(models.values())

    def whole(key: str, number: int) -> Tensor:
        return states[number][key]

    for key, kind in layout_of(states[-1]).items():
        samples = []
        for name, state in models.items():
            tensor = state[key]
            _check_finite(name, key, tensor)
            samples.append(watch.sample(tensor))
            del tensor
        if key in selection.merged and kind.is_floating_point():
            watch.add_samples(samples, kind.dim(), partial(whole, key))
    watch.tell()


def _check_finite(name: str, key: str, tensor: Tensor) -> None:
    if is_weight(key, tensor) and not is_finite(tensor):
        raise ValueError(not_finite(f"{name}[{key!r}]", tensor))


def with_data(
    method: str,
    problem: Problem,
    needs: Needs,
    data: Mapping[str, Any],
    heads: Mapping[str, nn.Module] | None,
) -> Problem:
    """Return the problem with its data and heads, checked against model and experts."""
    task_heads = dict.fromkeys(data, nn.Identity()) if heads is None else heads
    check_tasks(data, task_heads if needs.heads else data, "head")
    if needs.every_task:
        check_tasks(data, problem.experts, "expert")
    if needs.every_expert:
        check_tasks(problem.experts, {**data, **problem.statistics}, "data")
    examples = {task: read_examples(task, part) for task, part in data.items()}
    if not needs.labels:
        examples = {task: part.unlabelled for task, part in examples.items()}
    for task, part in examples.items():
        if needs.labels and part.labels is None:
            who = f"{method} with {needs.setting}" if needs.setting else method
            raise ValueError(f"{who} needs labels: pass (inputs, labels) for task {task!r}")
    problem = replace(problem, data=examples, heads=task_heads if needs.heads else {})
    if needs.heads and heads is None:
        _check_logits(problem)
    if needs.labels == "classes":
        check_labels(examples, problem.model, problem.first, task_heads, problem.transform)
    return problem


def _check_logits(problem: Problem) -> None:
    """Refuse a model that returns features instead of logits, if there is no head."""
    task, examples = next(iter(problem.data.items()))
    model = problem.model
    device = next((p.device for p in model.parameters()), torch.device("cpu"))
    inputs = transformed(examples[:1].to(device).inputs, transform_of(problem.transform, task))
    with torch.no_grad(), evaluating(model):
        output = run_with(model, {}, inputs)
    if not isinstance(output, Tensor) and getattr(output, "logits", None) is None:
        raise ValueError("the model returns features instead of logits: pass heads=")
