"""The one door to all procedures: `mergelib.adapt`."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from mergelib.inspection.kinds import Matrices, kinds_of
from mergelib.io import Model, Models, as_state
from mergelib.messages.refusals import check_device
from mergelib.parts import Missing, Parts, Patterns
from mergelib.problems.calling import Transforms
from mergelib.problems.placing import state_to
from mergelib.problems.problem import (
    IsMatrix,
    Problem,
    check_models,
    check_needs,
    checked_states,
    read_experts,
    read_statistics,
    with_data,
)
from mergelib.procedures.common import Adapted
from mergelib.registry import get_method
from mergelib.statedict import is_matrix, layout_of, named


def adapt(
    method: str,
    experts: Models,
    *,
    pretrained: Model | None = None,
    model: nn.Module | None = None,
    data: Mapping[str, Any] | None = None,
    heads: Mapping[str, nn.Module] | None = None,
    transform: Transforms = None,
    start: Model | None = None,
    statistics: Mapping[str, Model] | None = None,
    is_matrix: IsMatrix = is_matrix,
    device: torch.device | str | None = None,
    include: Patterns | None = None,
    exclude: Patterns | None = None,
    missing: Missing = "error",
    **hyperparameters: Any,
) -> Adapted:
    """Merge experts with the help of data.

    What a procedure does not need is not looked at; `mergelib.methods` tells what each needs.

    Args:
        method: a procedure of `mergelib.methods`.
        experts: mapping of name to state dict, or a list of them. Here and below a module or the
            path of a file may take the place of a state dict.
        pretrained: the state dict they were fine-tuned from.
        model: the architecture; its own weights are left alone. ``pretrained`` if that is a module.
            Models of Hugging Face are understood: of their output it is the logits that count, or
            without any what a head goes on with, ``pooler_output`` or ``last_hidden_state``.
        data: task to examples: the model's inputs, the first dimension counts them; a dictionary
            of inputs, with ``labels`` in it or not; a pair of inputs and labels; or a `DataLoader`
            of these, which is read once, shorter sequences padded where an attention mask is 0.
            Labels that repeat ``input_ids`` are those of a causal language model.
        heads: task to what turns the model's output into logits; when left out, the output itself.
        transform: from a batch of inputs to the model's, e.g. `Task.transform` of the testbed; one
            for all tasks, or a mapping of task to its own.
        start: the merged weights to begin with, for procedures that begin somewhere.
        statistics: expert to what was computed from its data elsewhere, for `fisher` and `regmean`;
            an expert with statistics needs no data.
        is_matrix: tells from key and tensor what low-rank methods take for a matrix, as in `merge`.
        device: where to compute; by default where model and state dicts are. The result lies where
            the inputs lie.
        include: patterns of the keys to merge, as in `merge`; all by default. Elsewhere the experts
            count as equal to the base, the pretrained model, and so does the result.
        exclude: patterns of keys that are not merged, though included.
        missing: what becomes of other keys that some model lacks or has in another shape:
            ``"error"``, ``"base"``, or ``"skip"``, which leaves them out of the result.
        **hyperparameters: the procedure's own.

    Returns:
        The merged state dict and what else the procedure tells; see `Adapted`.

    Raises:
        ValueError: an unknown method; what the procedure needs and is missing; experts, data or
            heads that do not fit, are empty or not finite; labels that are no classes; a
            hyperparameter out of range; what else `merge` refuses. The message names the culprit.
        TypeError: a hyperparameter, or an argument, that the method does not have.

    Warns:
        UserWarning: of what `merge` warns of.
    """
    check_device(device)
    chosen = get_method(method, "procedure")
    settings = chosen.settings_from(hyperparameters)
    needs = chosen.needs_with(settings)
    everything = include is None and exclude is None and missing == "error"
    if model is None and isinstance(pretrained, nn.Module):
        model = pretrained
    models = named(experts)
    states = read_experts(models)
    complete = states.keys() <= (statistics or {}).keys()
    running = needs.model and not (needs.every_expert and complete)
    given = {"pretrained": pretrained, "model": model, "data": data}
    given |= {"start": start, "statistics": statistics}
    check_needs(method, needs, given, running=running, parts=not everything)
    unused = everything and not needs.pretrained
    problem = Problem(
        states,
        pretrained={} if unused or pretrained is None else as_state(pretrained),
        model=model if running and model is not None else nn.Identity(),
        transform=transform,
        start=None if start is None else as_state(start),
        statistics=read_statistics(statistics or {}, states),
        parts=None if everything else Parts(include, exclude, missing),
    )
    problem = checked_states(problem)
    check_models(problem, models, pretrained)
    layout = layout_of(problem.pretrained or next(iter(problem.experts.values())))
    problem = replace(problem, is_matrix=Matrices(is_matrix, layout, kinds_of([model])))
    if running and data is not None:
        problem = with_data(method, problem, needs, data, heads)
    result: Adapted = chosen.function(problem if device is None else problem.to(device), settings)
    return _finished(result, problem, moved=device is not None)


def _finished(result: Adapted, problem: Problem, *, moved: bool) -> Adapted:
    """A result where the problem's tensors lie, with the base's tensors where nothing is merged."""
    reference = problem.pretrained or next(iter(problem.experts.values()))
    if moved:
        home = next(iter(reference.values())).device
        heads = {task: head.to(home) for task, head in result.heads.items()}
        result = replace(result, state=dict(state_to(result.state, home)), heads=heads)
    selection = problem.selection
    if problem.parts is None or selection is None:
        return result
    state = {
        key: result.state[key] if key in selection.merged else reference[key].clone()
        for key in selection.keys
    }
    return replace(result, state=state)
