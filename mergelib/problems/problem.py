"""The problem that every procedure is given: experts and data, validated once."""

import copy
import os
from collections.abc import Mapping, Sequence
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
    """What a procedure works on. What it does not need is empty, and it does not look at it.

    `mergelib.adapt` makes one from what users have, and checks it; whoever makes one otherwise
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
        parts: what of the models is merged; the experts have the base's tensors elsewhere.
        selection: the keys that this comes to.
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


def check_needs(
    method: str, needs: Needs, given: Mapping[str, Any], *, running: bool, parts: bool
) -> None:
    """Compare what a procedure needs with the arguments of `mergelib.adapt` that it was given.

    Args:
        method: the procedure's name, for messages.
        needs: what it needs.
        given: argument to value, None where there is none.
        running: whether it will run the model, as not all do who have statistics.
        parts: whether only parts of the models are to be merged.

    Raises:
        ValueError: an argument that is missing.
        TypeError: an argument that the procedure has no use for.
    """
    for name in ("start", "statistics"):
        if given[name] is not None and name not in needs.accepts:
            raise TypeError(f"{method} takes no {name}=")
    if parts and not needs.parts:
        raise TypeError(f"{method} takes no parts of models: it trains the whole one")
    for name, needed in (("pretrained", needs.pretrained), ("model", running), ("data", running)):
        if needed and given[name] is None:
            article = "the pretrained model" if name == "pretrained" else name
            raise ValueError(f"{method} needs {article}: pass {name}=")


def read_experts(experts: Models) -> dict[str, StateDict]:
    """Experts by name; files are read tensor by tensor, when they are needed."""

    def read(model: Model) -> StateDict:
        if isinstance(model, str | os.PathLike):
            return Checkpoint(model)
        return model if isinstance(model, Checkpoint) else as_state(model)

    return name_experts({name: read(expert) for name, expert in named(experts).items()})


def read_statistics(
    statistics: Mapping[str, Model], experts: Mapping[str, StateDict]
) -> dict[str, StateDict]:
    """Statistics by expert, each of which there is."""
    for name in statistics:
        if name not in experts:
            raise ValueError(
                f"statistics name {name!r}, which is no expert; there are: {', '.join(experts)}"
            )
    return {name: as_state(given) for name, given in statistics.items()}


def checked_states(problem: Problem) -> Problem:
    """Ties as in the model, keys, shapes and dtypes alike, everything finite."""
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
    """Compare the files beside weights, of a checked problem's models as the caller gave them.

    See `mergelib.inspection.companions.check_companions`.
    """
    assert problem.selection is not None
    base = {"pretrained": pretrained} if problem.pretrained else {}
    reference = problem.pretrained or next(iter(problem.experts.values()))
    merged, keys = problem.selection.merged, {*problem.selection.keys}
    check_companions({**base, **experts}, layout_of(reference), merged, keys)


def _selected(expert: StateDict, reference: StateDict, selection: Selection) -> StateDict:
    """An expert with the reference's tensors where it is not merged, in the reference's dtypes."""
    kinds = {key: tensor.dtype for key, tensor in layout_of(expert).items()}
    alike = all(kinds.get(key) == t.dtype for key, t in layout_of(reference).items())
    if alike and expert.keys() == reference.keys() == selection.merged:
        return expert
    if is_lazy(expert):
        parts = {key: (expert if key in selection.merged else reference, key) for key in reference}
        return LazyState(parts, layout_of(reference))
    return {
        key: expert[key].to(tensor.dtype) if key in selection.merged else tensor
        for key, tensor in reference.items()
    }


def _tied(name: str, state: StateDict, ties: Mapping[str, str]) -> StateDict:
    """A state dict in which keys that the model ties are one tensor.

    Files often hold it under one of its keys only.
    """
    check_mapping(state, name)
    known = {key: first for key, first in ties.items() if key in state or first in state}
    if not known:
        return state
    names = {key: key for key in state}  # and by which of its own keys each is to be read
    for key, first in known.items():
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
    own = model.state_dict()
    check_keys(own, state, name, "the model")
    for key, tensor in own.items():
        if tensor.shape != state[key].shape:
            raise ValueError(
                f"{name}[{key!r}] has shape {tuple(state[key].shape)}, "
                f"expected {tuple(tensor.shape)} as in the model"
            )


def _look_through(experts: Mapping[str, StateDict], base: StateDict, selection: Selection) -> None:
    """Refuse what is not finite, and warn of unrelated models and copies; one tensor at a time."""
    watch = Watch([*experts], pretrained=bool(base))
    models = {**experts, **({"pretrained": base} if base else {})}
    states = list(models.values())
    for key, kind in layout_of(states[-1]).items():
        samples = []
        for name, state in models.items():
            tensor = state[key]
            _check_finite(name, key, tensor)
            samples.append(watch.sample(tensor))
            del tensor
        if key in selection.merged and kind.is_floating_point():
            watch.add_samples(samples, kind.dim(), partial(_tensor_of, states, key))
    watch.tell()


def _tensor_of(states: Sequence[StateDict], key: str, number: int) -> Tensor:
    return states[number][key]


def _check_finite(name: str, key: str, tensor: Tensor) -> None:
    if is_weight(key, tensor) and not is_finite(tensor):
        kind = "NaN" if tensor.isnan().any() else "Inf"
        count = int((~torch.isfinite(tensor)).sum())
        raise ValueError(f"{name}[{key!r}] holds {kind} in {count} of {tensor.numel()} entries")


def with_data(
    method: str,
    problem: Problem,
    needs: Needs,
    data: Mapping[str, Any],
    heads: Mapping[str, nn.Module] | None,
) -> Problem:
    """The problem with its data and heads, which fit each other, the model and the experts."""
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
            who = f"{method} with {needs.setting}" if needs.setting else method
            raise ValueError(f"{who} needs labels: pass (inputs, labels) for task {task!r}")
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
    device = next((p.device for p in model.parameters()), torch.device("cpu"))
    inputs = transformed(examples[:1].to(device).inputs, transform_of(problem.transform, task))
    with torch.no_grad(), evaluating(model):
        output = run_with(model, {}, inputs)
    if not isinstance(output, Tensor) and getattr(output, "logits", None) is None:
        raise ValueError("the model gives features and no logits: pass heads=")
