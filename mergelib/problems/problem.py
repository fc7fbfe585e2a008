"""The input of every procedure: experts and data, validated once."""

import copy
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial, reduce
from typing import Any

import torch
from torch import Tensor, nn

from mergelib.inspection.kinds import IsMatrix as IsMatrix
from mergelib.merging import compare, is_weight
from mergelib.merging.applying import not_finite
from mergelib.messages.brief import Brief
from mergelib.parts import ALL, Parts, Selection
from mergelib.problems.calling import (
    Transform,
    Transforms,
    evaluating,
    output_of,
    run_with,
    tied_names,
    transform_of,
    transformed,
)
from mergelib.problems.checks import check_labelled, check_labels, check_tasks
from mergelib.problems.examples import Examples, Inputs, as_examples, read_examples
from mergelib.problems.placing import state_to, viewed
from mergelib.registry import Needs
from mergelib.statedict import (
    StateDict,
    check_compatible,
    check_mapping,
    is_finite,
    is_matrix,
    layout_of,
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
        selection: the keys that are merged; elsewhere the experts equal the base.
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
    selection: Selection | None = None

    @property
    def first(self) -> StateDict:
        """The initial weights: ``start``, or the pretrained model."""
        return self.pretrained if self.start is None else self.start

    @property
    def reference(self) -> StateDict:
        """The pretrained model, else the first expert."""
        return self.pretrained or next(iter(self.experts.values()))

    def to(
        self, device: torch.device | str | None = None, dtype: torch.dtype | None = None
    ) -> "Problem":
        """Return the problem on a device and in a precision; data follow batch by batch."""
        states = partial(state_to, device=device, dtype=dtype)

        def moved(module: nn.Module) -> nn.Module:
            return copy.deepcopy(module).to(device=device, dtype=dtype)

        return replace(
            self,
            experts={name: states(state) for name, state in self.experts.items()},
            pretrained=states(self.pretrained),
            model=moved(self.model),
            heads={task: moved(head) for task, head in self.heads.items()},
            start=None if self.start is None else states(self.start),
            statistics={name: states(own) for name, own in self.statistics.items()},
        )

    def widened(self) -> "Problem":
        """Return the problem in float32, or in float64 if a weight has it; inputs are cast, too."""
        kinds = {t.dtype for t in layout_of(self.reference).values() if t.is_floating_point()}
        dtype = reduce(torch.promote_types, kinds, torch.float32)

        def ready(transform: Transform | None, inputs: Any) -> Inputs:
            examples = as_examples(transformed(inputs, transform))
            return examples.each(lambda x: x.to(dtype) if x.is_floating_point() else x).inputs

        transforms = {t: partial(ready, transform_of(self.transform, t)) for t in self.data}
        return replace(self.to(dtype=dtype), transform=transforms)


def checked_states(
    problem: Problem, parts: Parts = ALL, given: Mapping[str, object] | None = None
) -> Problem:
    """Return the problem with tied, compatible and finite state dicts.

    Outside ``parts`` the experts equal the base afterwards. The files beside ``given``, the models
    as the caller gave them, are compared as well.
    """
    ties = tied_names(problem.model)
    experts = {name: _tied(name, state, ties) for name, state in problem.experts.items()}
    base = problem.pretrained and _tied("pretrained", problem.pretrained, ties)
    start = problem.start and _tied("start", problem.start, ties)
    if base and start is not None:
        check_compatible(base, {"start": start}, "pretrained")
    if not isinstance(problem.model, nn.Identity):
        what, reference = ("pretrained", base) if base else next(iter(experts.items()))
        layout = layout_of(reference)
        expected = {
            key: torch.empty(t.shape, dtype=layout.get(key, t).dtype, device="meta")
            for key, t in problem.model.state_dict().items()
        }
        check_compatible(expected, {what: layout}, "the model")
    source = compare(experts, base or None, parts, given)
    source.check()
    selection, reference = source.selection, source.reference
    experts = {name: _selected(state, reference, selection) for name, state in experts.items()}
    replace(source, experts=experts).look_through()
    for key, tensor in (start or {}).items():
        if is_weight(key, tensor) and not is_finite(tensor):
            raise ValueError(not_finite(f"start[{key!r}]", tensor))
    return replace(problem, experts=experts, pretrained=base, start=start, selection=selection)


def _selected(expert: StateDict, reference: StateDict, selection: Selection) -> StateDict:
    """Return an expert in the reference's dtypes, with its tensors where nothing is merged."""
    kinds = {key: tensor.dtype for key, tensor in layout_of(expert).items()}
    same_dtypes = all(kinds.get(key) == t.dtype for key, t in layout_of(reference).items())
    if same_dtypes and expert.keys() == reference.keys() == selection.merged:
        return expert
    parts = {key: (expert if key in selection.merged else reference, key) for key in reference}
    return viewed(parts, layout_of(reference))


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
    layout = {key: layout_of(state)[held] for key, held in names.items()}
    return viewed({key: (state, held) for key, held in names.items()}, layout)


def with_data(
    method: str,
    problem: Problem,
    needs: Needs,
    settings: Any,
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
    for task, head in task_heads.items() if needs.heads else ():
        _check_head(task, head)
    examples = {task: read_examples(task, part) for task, part in data.items()}
    setting, free = needs.unless or ("", "")
    value = getattr(settings, setting, None)
    labels = "" if needs.unless and value == free else needs.labels
    if labels:
        check_labelled(f"{method} with {setting}={value!r}" if setting else method, examples)
    else:
        examples = {task: part.unlabelled for task, part in examples.items()}
    problem = replace(problem, data=examples, heads=task_heads if needs.heads else {})
    with torch.random.fork_rng(devices=[]):  # for models that draw
        kinds = {t.dtype for t in layout_of(problem.reference).values()}
        if needs.heads and kinds & {torch.float16, torch.bfloat16}:  # for gradients
            problem = problem.widened()
        runs, check = False, partial(_check_runs, needs=needs, given=heads is not None)
        with suppress(ValueError):  # perhaps because precisions differ
            check(problem)
            runs = True
        if not runs:
            check(problem := problem.widened())
        if labels == "classes":
            check_labels(examples, problem.model, problem.first, problem.heads, problem.transform)
    return problem


def _check_head(task: str, head: object) -> None:
    """Refuse a head that is not a module, or holds NaN or Inf."""
    if not isinstance(head, nn.Module):
        raise TypeError(
            f"the head of task {task!r} is a {type(head).__name__}, expected a torch.nn.Module"
        )
    for key, tensor in head.state_dict().items():
        if tensor.is_floating_point() and not is_finite(tensor):
            raise ValueError(not_finite(f"{key!r} of the head of task {task!r}", tensor))


def _check_runs(problem: Problem, needs: Needs, *, given: bool) -> None:
    """Refuse a model or head that does not run on a task's inputs, or gives no logits for them.

    If no heads are ``given``, the model itself has to return logits.
    """
    model = problem.model
    device = next((p.device for p in model.parameters()), torch.device("cpu"))
    for task, examples in problem.data.items():
        few, head = examples[:2].to(device), problem.heads.get(task)
        inputs = transformed(few.inputs, transform_of(problem.transform, task))
        try:
            output, logits = _tried(model, inputs, head)
        except RuntimeError as error:
            parts = "model" if head is None or not given else "model with the head"
            shapes = {name: tuple(x.shape) for name, x in as_examples(inputs).named.items()}
            kinds = {x.dtype for x in as_examples(inputs).named.values()}
            advice = "; for torch.uint8 pass transform=" if kinds == {torch.uint8} else ""
            raise ValueError(
                f"the {parts} does not run on inputs of task {task!r} of shape "
                f"{shapes.get('inputs', shapes)}: {error}{advice}"
            ) from error
        if head is None:
            continue
        if not (given or isinstance(output, Tensor) or hasattr(output, "logits")):
            raise ValueError("the model returns features instead of logits: pass heads=")
        shape = tuple(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
        who = f"the {'head' if given else 'model'} returns {shape} for {len(few)} examples of task"
        if not isinstance(logits, Tensor) or logits.shape[:1] != (len(few),):
            raise ValueError(f"{who} {task!r}, expected a tensor with a row for each example")
        if needs.classes and (logits.dim() < 2 or logits.shape[-1] < 2):
            raise ValueError(
                f"{who} {task!r}, expected logits of at least two classes, because the prediction "
                "of a single class is always certain"
            )


@torch.no_grad()
def _tried(model: nn.Module, inputs: Inputs, head: nn.Module | None) -> tuple[Any, Any]:
    """Return the output of a model, and that of a head on it."""
    with evaluating(model, *([] if head is None else [head])):
        output = run_with(model, {}, inputs)
        return output, None if head is None else head(output_of(output))
