"""Call a model with other weights.

Only this module knows about tied weights, dictionaries of inputs and outputs of Hugging Face
models.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from mergelib.problems.examples import Examples, Inputs, as_examples
from mergelib.statedict import StateDict, repeated

Transform = Callable[[Any], Any]
Transforms = Transform | Mapping[str, Transform] | None


def tied_names(model: nn.Module) -> dict[str, str]:
    """Map names of shared parameters and buffers to the first name of each."""
    parameters = dict(model.named_parameters(remove_duplicate=False))
    return repeated({**parameters, **dict(model.named_buffers(remove_duplicate=False))})


def run_with(model: nn.Module, state: StateDict, inputs: Inputs) -> Any:
    """Return a model's raw output with other weights.

    Tied weights are passed under their first name; PyTorch ties the other names again. Inputs and
    buffers are copied, because some models change them in place.
    """
    ties = tied_names(model)
    weights = {key: value for key, value in state.items() if ties.get(key) not in state}
    for key, buffer in model.named_buffers():
        weights[key] = weights.get(key, buffer).clone()
    if isinstance(inputs, Tensor):
        return functional_call(model, weights, (inputs.clone(),))
    return functional_call(model, weights, (), {name: x.clone() for name, x in inputs.items()})


def call_with(model: nn.Module, state: StateDict, inputs: Inputs) -> Tensor:
    """Return a model's output with other weights as one tensor; see `output_of`."""
    return output_of(run_with(model, state, inputs))


def output_of(output: Any) -> Tensor:
    """Return a model's output as one tensor.

    For outputs of Hugging Face models this is ``logits``, else ``pooler_output`` ``(B, width)``,
    else ``last_hidden_state`` ``(B, N, width)``; TypeError if there is none of them.
    """
    if isinstance(output, Tensor):
        return output
    for name in ("logits", "pooler_output", "last_hidden_state"):
        value = output.get(name) if isinstance(output, Mapping) else getattr(output, name, None)
        if isinstance(value, Tensor):
            return value
    raise TypeError(
        f"the model returns a {type(output).__name__}, expected a tensor, or an output with "
        "logits, pooler_output or last_hidden_state"
    )


def transform_of(transform: Transforms, task: str) -> Transform | None:
    """Return a task's transform, from one for all tasks or one per task."""
    return transform.get(task) if isinstance(transform, Mapping) else transform


def transformed(inputs: Inputs, transform: Transform | None) -> Inputs:
    """Return inputs as the model takes them."""
    ready: Inputs = inputs if transform is None else transform(inputs)
    return ready


@contextmanager
def evaluating(*models: nn.Module) -> Iterator[None]:
    """Put models into evaluation mode, and every submodule back into its own mode afterwards."""
    modes = [(module, module.training) for model in models for module in model.modules()]
    try:
        for model in models:
            model.eval()
        yield
    finally:
        for module, training in modes:
            module.training = training


@torch.no_grad()
def features(
    model: nn.Module,
    state: StateDict,
    inputs: Inputs | Examples,
    *,
    batch_size: int = 500,
    transform: Transform | None = None,
) -> Tensor:
    """Return the features ``(N, …, width)`` that a model passes to its head, in evaluation mode."""
    device = next(model.parameters()).device
    moved = {key: value.to(device) for key, value in state.items()}
    parts = []
    with evaluating(model):
        for batch in as_examples(inputs).batches(batch_size):
            ready = transformed(batch.to(device).inputs, transform)
            parts.append(call_with(model, moved, ready))
    return torch.cat(parts)
