"""Growth of models in Hugging Face folders."""

import copy
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from mergelib.inspection.companions import check_all, copy_needed, stamped
from mergelib.io import AnyPath, Checkpoint, hashing, save_state_dict, staged
from mergelib.parts import Parts
from mergelib.problems.calling import tied_names
from mergelib.sail.growth.depth import Depth
from mergelib.sail.growth.growing import grow
from mergelib.sail.growth.width import Width
from mergelib.statedict import StateDict
from mergelib.streaming import check_output, provenance

if TYPE_CHECKING:
    from transformers import PretrainedConfig

# What a configuration says about the function, beside sizes, as GPT-2 and BERT call it.
_FUNCTION = (
    *("activation_function", "hidden_act", "layer_norm_epsilon", "layer_norm_eps", "is_decoder"),
    *("scale_attn_weights", "scale_attn_by_inverse_layer_idx", "position_embedding_type"),
    "tie_word_embeddings",
)


def grow_files(
    source: AnyPath,
    target: "AnyPath | PretrainedConfig",
    output: AnyPath,
    *,
    width: Width = "replicate",
    depth: Depth = "identity",
    gap: float = math.inf,
    noise: float = 0.0,
    seed: int = 0,
    overwrite: bool = False,
) -> Path:
    """Grow the model in a Hugging Face folder, as `mergelib.grow` does in memory.

    Needs transformers but no network; both models are held in memory. ``source`` is a folder with
    ``config.json`` and weights of GPT-2 or BERT, with or without a head; its configuration names
    the class under ``architectures``. ``target`` is a ``config.json``, its folder, or a
    configuration of transformers that differs in widths, heads and numbers of layers only.
    ``output`` is a folder for `from_pretrained`: weights in the source's precision, the target's
    configuration, and the source's other files. ``seed`` also determines the target's
    initialisation; the other arguments are as in `mergelib.grow`.

    Returns:
        The output's path. The file's metadata record the inputs, as after `merge_files`.

    Raises:
        FileNotFoundError: the source or a configuration does not exist.
        ValueError: `mergelib.grow` refuses the pair, the configurations differ in family or
            function, or the output exists (without ``overwrite``). Nothing is written then.
        ImportError: transformers is not installed.
    """
    stamps, checkpoint, output = stamped([source], copied=True), Checkpoint(source), Path(output)
    before, after = _config(source), copy.deepcopy(_config(target))
    for name in ("model_type", *_FUNCTION):
        old, new = getattr(before, name, None), getattr(after, name, None)
        if old != new:
            raise ValueError(f"{name} is {old!r} in the source and {new!r} in the target")
    after.architectures = before.architectures
    inputs = {"source": checkpoint}
    check_output(output, inputs, folder=True, overwrite=overwrite)
    with torch.device("meta"):
        small = _network(before)
    weights = _complete(checkpoint.load(), small)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        large = _network(after)
    kinds = {tensor.dtype for tensor in weights.values() if tensor.is_floating_point()}
    large = large.to(kinds.pop()) if len(kinds) == 1 else large
    options: dict[str, Any] = {"width": width, "depth": depth, "gap": gap, "noise": noise}
    generator = torch.Generator().manual_seed(seed)
    state = grow(small, large, state=weights, generator=generator, **options)
    notes = provenance("grow", {**options, "seed": seed}, Parts(), inputs)
    with hashing(inputs) as hashes, staged(output, folder=True) as folder:
        if checkpoint.path.is_dir():
            copy_needed(checkpoint.path, folder, modules=False)
        save_state_dict(state, folder / "model.safetensors", notes | hashes())
        after.save_pretrained(folder)
        checkpoint.check()
        check_all(stamps)
    return output


def _config(config: "AnyPath | PretrainedConfig") -> "PretrainedConfig":
    """Return a configuration, read from a file if necessary."""
    from transformers import AutoConfig, PretrainedConfig

    if isinstance(config, PretrainedConfig):
        return config
    path = Path(config) / "config.json" if Path(config).is_dir() else Path(config)
    if not path.is_file():
        raise FileNotFoundError(f"there is no configuration at {path}")
    try:
        read: PretrainedConfig = AutoConfig.from_pretrained(path, trust_remote_code=False)
    except (OSError, ValueError, KeyError) as error:
        raise ValueError(f"{path} is not a configuration of transformers: {error}") from error
    return read


def _network(config: "PretrainedConfig") -> nn.Module:
    """Return an initialised model of the class that the configuration names."""
    import transformers

    names = config.architectures or []
    kind = getattr(transformers, str(names[0]), None) if len(names) == 1 else None
    if not (isinstance(kind, type) and issubclass(kind, transformers.PreTrainedModel)):
        raise ValueError(
            f"the source's architectures are {names}, expected one model class of transformers"
        )
    network: nn.Module = kind(config)
    return network


def _complete(weights: StateDict, network: nn.Module) -> StateDict:
    """Return the weights under every name of tied tensors; folders often store only one."""
    complete = dict(weights)
    for key, first in tied_names(network).items():
        for name, other in ((key, first), (first, key)):
            if other in complete:
                complete.setdefault(name, complete[other])
    return complete
