"""What the layers of a network are given: inputs of linear layers, statistics of BatchNorm."""

import copy
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.modules.batchnorm import _BatchNorm

from mergelib.statedict import StateDict

MASK = "attention_mask"


@torch.no_grad()
def layer_inputs(
    model: nn.Module, inputs: Tensor | Mapping[str, Tensor], state: StateDict | None = None
) -> dict[str, Tensor]:
    """What the linear layers of a model are given: key of the weight to rows ``(count, n)``.

    Positions of a sequence count as rows of their own; those that are padding, where an
    ``attention_mask`` among the inputs is 0, are left out.

    Args:
        model: run as it is, in its own mode.
        inputs: what it takes; a dictionary is passed by name.
        state: weights in place of the model's own.
    """
    own = {} if state is None else dict(state)
    if isinstance(inputs, Tensor):
        return watched_inputs(model, lambda: functional_call(model, own, (inputs,)))
    mask = inputs.get(MASK)
    return watched_inputs(model, lambda: functional_call(model, own, (), dict(inputs)), mask)


@torch.no_grad()
def watched_inputs(
    model: nn.Module, run: Callable[[], object], mask: Tensor | None = None
) -> dict[str, Tensor]:
    """`layer_inputs` of whatever run of the model, with the attention mask of its inputs."""
    seen: dict[str, Tensor] = {}

    def keep(key: str, x: Tensor) -> None:
        if mask is not None and x.dim() == 3 and x.shape[:2] == mask.shape:
            seen[key] = x.detach()[mask.bool()]
        else:
            seen[key] = x.detach().flatten(0, -2)

    kinds: tuple[type[nn.Module], ...] = (nn.Linear, *transposed_linear())
    handles = [
        module.register_forward_pre_hook(lambda _, given, key=f"{name}.weight": keep(key, given[0]))
        for name, module in model.named_modules()
        if isinstance(module, kinds)
    ]
    try:
        run()
    finally:
        for handle in handles:
            handle.remove()
    return seen


@contextmanager
def normalising_by_batch(model: nn.Module) -> Iterator[None]:
    """BatchNorm takes the statistics of each batch, and its running ones stay as they are."""
    norms = _running(model)
    modes = [norm.training for norm in norms]
    for norm in norms:
        norm.training, norm.track_running_stats = True, False
    try:
        yield
    finally:
        for norm, training in zip(norms, modes, strict=True):
            norm.training, norm.track_running_stats = training, True


@torch.no_grad()
def recalibrate(
    model: nn.Module, state: StateDict, batches: Iterable[Tensor | Mapping[str, Tensor]]
) -> dict[str, Tensor]:
    """The state with BatchNorm's statistics measured anew, on inputs that need no labels.

    A merged network's activations have other means and variances than its experts', and smaller
    variances (Jordan et al., 2023, "REPAIR"); the average of their statistics is neither.

    Args:
        model: the architecture; it is left as it is.
        state: the merged weights.
        batches: what the model takes (a dictionary is passed by name), e.g. a few batches that mix
            all tasks; each counts alike.

    Raises:
        ValueError: for a model without BatchNorm's statistics, or no batch.
    """
    network = copy.deepcopy(model).eval()
    network.load_state_dict(dict(state))
    norms = _running(network)
    if not norms:
        raise ValueError("the model has no BatchNorm with running statistics")
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = None  # the plain mean over batches
        norm.train()
    count = 0
    for batch in batches:
        network(batch) if isinstance(batch, Tensor) else network(**batch)
        count += 1
    if not count:
        raise ValueError("no batch to measure statistics on")
    return {key: value.detach().clone() for key, value in network.state_dict().items()}


def _running(model: nn.Module) -> list[_BatchNorm]:
    """The modules of BatchNorm that keep running statistics."""
    norms = (module for module in model.modules() if isinstance(module, _BatchNorm))
    return [norm for norm in norms if norm.track_running_stats]


def transposed_linear() -> tuple[type[nn.Module], ...]:
    """Linear layers that keep their weight as ``(in, out)``: GPT-2's Conv1D, if it is loaded."""
    loaded = sys.modules.get("transformers.pytorch_utils")
    return () if loaded is None else (loaded.Conv1D,)
