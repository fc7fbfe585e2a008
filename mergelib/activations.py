"""Inputs of linear layers, and statistics of BatchNorm."""

import copy
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.conv import _ConvNd

from mergelib.io import Model, as_state
from mergelib.problems.calling import run_with
from mergelib.problems.examples import MASK, Inputs
from mergelib.statedict import StateDict, weight_key

Hook = Callable[..., None]


@contextmanager
def hooked(
    model: nn.Module, before: Hook | None = None, after: Hook | None = None
) -> Iterator[None]:
    """Call ``before`` and ``after`` around every run of every module within a ``with`` block.

    They receive the module's name, the module, its tuple of inputs and, afterwards, its output.
    """
    handles = []
    for name, module in model.named_modules():
        if before is not None:
            handles.append(module.register_forward_pre_hook(partial(before, name)))
        if after is not None:
            handles.append(module.register_forward_hook(partial(after, name)))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


@torch.no_grad()
def layer_inputs(
    model: nn.Module, inputs: Inputs, state: StateDict | None = None, *, convolutions: bool = False
) -> dict[str, Tensor]:
    """Return the inputs of every linear layer: key of the weight to rows ``(count, n)``.

    Positions of a sequence are rows; padding, where ``attention_mask`` is 0, is left out. The model
    runs in its own mode, with ``state`` in place of its weights if given; a dictionary of inputs is
    passed by name. With ``convolutions``, theirs are included: rows are positions, columns
    channels.
    """
    mask = None if isinstance(inputs, Tensor) else inputs.get(MASK)
    seen: dict[str, Tensor] = {}
    kinds: tuple[type[nn.Module], ...] = (nn.Linear, *transposed_linear())
    kinds += (_ConvNd,) if convolutions else ()

    def keep(name: str, module: nn.Module, inputs: Any) -> None:
        if not isinstance(module, kinds):
            return
        key, x = weight_key(name), inputs[0].detach()
        if isinstance(module, _ConvNd):
            x = x.movedim(1 - module.weight.dim(), -1)
        if mask is not None and x.dim() == 3 and x.shape[:2] == mask.shape:
            seen[key] = x[mask.bool()]
        else:
            seen[key] = x.flatten(0, -2)

    with hooked(model, before=keep):
        run_with(model, state or {}, inputs)
    return seen


@contextmanager
def normalising_by_batch(model: nn.Module) -> Iterator[None]:
    """Let BatchNorm use each batch's statistics; the running ones stay unchanged."""
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
def recalibrate_batchnorm(
    model: nn.Module, state: Model, batches: Iterable[Inputs]
) -> dict[str, Tensor]:
    """Return the state with BatchNorm's statistics measured again, on unlabelled inputs.

    A merged network's activations have other means and smaller variances than its experts' (Jordan
    et al., 2023, "REPAIR"), so averaged statistics are wrong.

    Args:
        model: the architecture; it is not changed.
        state: the merged weights, or their file or folder; the network runs in their dtypes and on
            their devices.
        batches: model inputs (a dictionary is passed by name), e.g. a few batches that mix all
            tasks; each batch has the same weight.

    Raises:
        ValueError: if the model has no BatchNorm statistics, or there is no batch.
    """
    network = copy.deepcopy(model).eval()
    weights = {key: value.detach().clone() for key, value in as_state(state).items()}
    network.load_state_dict(weights, assign=True)
    norms = _running(network)
    if not norms:
        raise ValueError("the model has no BatchNorm with running statistics")
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = None  # the plain mean over batches
        norm.train()
    for batch in batches:
        network(batch) if isinstance(batch, Tensor) else network(**batch)
    if not any(norm.num_batches_tracked for norm in norms):
        raise ValueError("no batch to measure statistics on")
    return {key: value.detach().clone() for key, value in network.state_dict().items()}


def _running(model: nn.Module) -> list[_BatchNorm]:
    """Return the BatchNorm modules that keep running statistics."""
    norms = (module for module in model.modules() if isinstance(module, _BatchNorm))
    return [norm for norm in norms if norm.track_running_stats]


def transposed_linear() -> tuple[type[nn.Module], ...]:
    """Return linear layers that store their weight as ``(in, out)``: GPT-2's Conv1D, if loaded."""
    loaded = sys.modules.get("transformers.pytorch_utils")
    return () if loaded is None else (loaded.Conv1D,)
