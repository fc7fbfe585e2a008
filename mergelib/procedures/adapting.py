"""The one door to all procedures: `mergelib.adapt`."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from mergelib.inspection.companions import check_all, stamped
from mergelib.inspection.kinds import Matrices, kinds_of
from mergelib.io import Model, Models, as_state, as_states, renamed
from mergelib.messages.refusals import check_device
from mergelib.parts import ALL, Missing, Parts, Patterns
from mergelib.problems.calling import Transforms
from mergelib.problems.placing import is_lazy, viewed
from mergelib.problems.problem import (
    IsMatrix,
    Problem,
    checked_states,
    with_data,
)
from mergelib.procedures.common import Adapted, complete
from mergelib.registry import get_method
from mergelib.statedict import is_finite, is_matrix, layout_of, named
from mergelib.training import seeded


@torch.inference_mode(False)
@torch.enable_grad()
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
    rename: Mapping[str, str] | None = None,
    **hyperparameters: Any,
) -> Adapted:
    """Merge experts with the help of data.

    Arguments that a procedure does not need are ignored; `mergelib.methods` lists what each needs.
    Where losses have gradients by weights of 16 bits, or precisions differ, it computes in float32
    (float64 if a weight has it); the result has the precision of the base and of the given heads.

    >>> base, expert = nn.Linear(3, 2), nn.Linear(3, 2)
    >>> data = {"digits": torch.rand(8, 3)}
    >>> adapt("adamerging", {"digits": expert}, pretrained=base, data=data, steps=2).history.shape
    (2, 2)

    Args:
        method: a procedure of `mergelib.methods`.
        experts: name to state dict, or a list; here and below a module or path may replace a state
            dict.
        pretrained: the base model.
        model: the architecture; its own weights are not used. Defaults to ``pretrained`` if that is
            a module. Of the outputs of Hugging Face models ``logits`` are used, else
            ``pooler_output``, else ``last_hidden_state``.
        data: task to examples: a tensor or dictionary of inputs, examples in the first dimension,
            with or without ``labels``; a pair of inputs and labels; or a `DataLoader` of these,
            which is read once. Shorter sequences are padded. Labels that repeat ``input_ids`` are
            those of a causal language model.
        heads: task to a module that maps outputs to logits; None if the outputs are logits.
        transform: maps a batch of inputs to the model's; one for all tasks, or task to its own.
        start: the initial merged weights, for some procedures.
        statistics: expert to statistics computed elsewhere, for `esm`, `fisher` and `regmean`; such
            an expert needs no data.
        is_matrix: predicate (key, tensor) of what low-rank methods treat as a matrix.
        device: where to compute; by default where the model is. Results return to the inputs'
            device.
        include: patterns of the keys to merge, as in `merge`. Elsewhere the result equals the base.
        exclude: patterns of keys that are not merged, though included.
        missing: what happens to keys that some model lacks or has in another shape: ``"error"``,
            ``"base"``, or ``"skip"``, which leaves them out of the result.
        rename: patterns of experts' keys with their new names, as in `merge`.
        **hyperparameters: the procedure's own.

    Returns:
        The merged state dict, coefficients, history and heads; see `Adapted`.

    Raises:
        ValueError: for an unknown method, a missing argument, experts, data, heads or labels that
            do not fit or are not finite, a loss that is not finite, a hyperparameter out of range,
            and whatever `merge` refuses.
        TypeError: for a hyperparameter or argument that the method does not have.

    Warns:
        UserWarning: as `merge`.
    """
    check_device(device)
    chosen = get_method(method, "procedure")
    chosen.check(hyperparameters)
    needs, kind = chosen.requires, chosen.settings
    assert needs is not None
    assert kind is not None
    settings = kind(**hyperparameters)
    parts = Parts(include, exclude, missing, rename)
    if missing == "experts":
        raise ValueError("missing='experts' is for merges of weights alone: pass heads= to adapt")
    if model is None and isinstance(pretrained, nn.Module):
        model = pretrained
    models = named(experts)
    stamps = stamped([pretrained, start, *models.values(), *(statistics or {}).values()])
    own = None if pretrained is None else as_state(pretrained, lazy=True)
    states = renamed(as_states(models, lazy=True, base=own), own, rename)
    complete = states.keys() <= (statistics or {}).keys()
    running = needs.model and not (needs.every_expert and complete)
    for name, useless in (("start", start), ("statistics", statistics)):
        if useless is not None and name not in needs.accepts:
            raise TypeError(f"{method} does not accept {name}=")
    if replace(parts, rename=None) != ALL and not needs.parts:
        raise TypeError(f"{method} cannot merge parts of models, because it trains the whole model")
    needed = (("pretrained", pretrained, needs.pretrained), ("model", model, running))
    for name, value, is_needed in (*needed, ("data", data, running)):
        if is_needed and value is None:
            article = "the pretrained model" if name == "pretrained" else name
            raise ValueError(f"{method} needs {article}: pass {name}=")
    for name in statistics or {}:
        if name not in states:
            raise ValueError(
                f"statistics name {name!r}, which is not an expert; there are: {', '.join(states)}"
            )
    base = None if parts == ALL and not needs.pretrained else pretrained
    problem = Problem(
        states,
        pretrained={} if base is None else as_state(base),
        model=model if running and model is not None else nn.Identity(),
        transform=transform,
        start=None if start is None else as_state(start),
        statistics={name: as_state(values) for name, values in (statistics or {}).items()},
    )
    problem = checked_states(problem, parts, {"pretrained": base, **models})
    predicate = Matrices(is_matrix, layout_of(problem.reference), kinds_of([model]))
    problem = given = replace(problem, is_matrix=predicate, heads=heads or {})
    if running and data is not None:
        problem = with_data(method, problem, needs, settings, data, heads)
    check_all(stamps)  # later reads compare their files with these
    with seeded(getattr(settings, "seed", 0)):  # for models that draw
        result = chosen.function(problem if device is None else problem.to(device), settings)
    return _finished(method, result, given)


def _finished(method: str, result: Adapted, problem: Problem) -> Adapted:
    """Return the result on the inputs' device, in their precision, with the base where unmerged.

    It is refused unless it is finite, and shares no memory with the inputs.
    """
    reference, layout = problem.reference, layout_of(problem.reference)
    home = next(iter(reference.values())).device
    made = {key: tensor.detach() for key, tensor in result.state.items()}
    state = viewed({key: (made, key) for key in made}, layout, home)
    weights = [tensor for tensor in layout.values() if tensor.is_floating_point()]
    for task, head in result.heads.items():
        head.to(home, [*problem.heads.get(task, nn.Identity()).parameters(), *weights][0].dtype)
    of_heads = {f"{t}: {k}": v for t, h in result.heads.items() for k, v in h.state_dict().items()}
    for key, tensor in {**state, **of_heads}.items():
        if tensor.is_floating_point() and not is_finite(tensor):
            raise ValueError(
                f"the result of {method} holds NaN or Inf in {key!r}: lower its learning rate if "
                "it has one, or pass the models in float32"
            )
    given = [problem.pretrained, problem.start or {}, *problem.experts.values()]
    held = {_address(tensor) for s in given if not is_lazy(s) for tensor in s.values()}
    if any(_address(tensor) in held for tensor in state.values()):
        state = complete({}, state)
    selection = problem.selection
    if selection is not None and selection.merged != reference.keys():
        state = {
            key: state[key] if key in selection.merged else reference[key].clone()
            for key in selection.keys
        }
    return replace(result, state=dict(state))


def _address(tensor: Tensor) -> int:
    """Return where a tensor's memory begins."""
    return tensor.untyped_storage().data_ptr()
