"""Compression: one shared model, and small parts that turn it into each expert again.

Where the task is known at inference, merging need not serve all tasks at once. A compression keeps
shared tensors and, for every task, masks of one bit an entry (really packed, eight to a byte) or
low-rank factors. `compress` makes a `Compressed`, which gives experts back, counts its bytes, and
goes to a file and back.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mergelib.compression.methods import RESTORE
from mergelib.io import AnyPath, Checkpoint, save_state_dict
from mergelib.merging import tied_keys
from mergelib.registry import get_method
from mergelib.statedict import Experts, StateDict, name_experts, nbytes

__all__ = ["Compressed", "compress", "load_compressed"]


@dataclass(frozen=True)
class Compressed:
    """Experts in compressed form.

    Attributes:
        method: the name of the compression.
        hyperparameters: all of them, JSON-serialisable.
        shared: part to state dict, e.g. ``shared["average"]``; stored once.
        own: task to part to tensors, e.g. ``own["mnist"]["mask"]``.
        aliases: tied key to the key whose tensor it shares.
    """

    method: str
    hyperparameters: dict[str, Any]
    shared: dict[str, dict[str, Tensor]]
    own: dict[str, dict[str, dict[str, Tensor]]]
    aliases: dict[str, str]

    @property
    def tasks(self) -> list[str]:
        return list(self.own)

    @property
    def shared_nbytes(self) -> int:
        """Bytes of what all tasks use, the pretrained model included where it is needed."""
        return sum(nbytes(part) for part in self.shared.values())

    def task_nbytes(self, task: str) -> int:
        """Bytes that one more task adds.

        Raises:
            ValueError: for a task that there is not.
        """
        return sum(nbytes(part) for part in self._own(task).values())

    @property
    def nbytes(self) -> int:
        """Bytes of everything."""
        return self.shared_nbytes + sum(map(self.task_nbytes, self.tasks))

    def expert(self, task: str) -> dict[str, Tensor]:
        """The expert of a task, as far as the compression kept it: a complete state dict.

        Raises:
            ValueError: for a task that there is not.
        """
        state = RESTORE[self.method](self.shared, self._own(task))
        return state | {key: state[first] for key, first in self.aliases.items()}

    def save(self, path: AnyPath) -> None:
        """Write everything to one ``.safetensors`` file; `load_compressed` reads it."""
        tensors = {
            f"shared/{part}/{key}": tensor
            for part, state in self.shared.items()
            for key, tensor in state.items()
        }
        for i, parts in enumerate(self.own.values()):
            for part, state in parts.items():
                tensors |= {f"{i}/{part}/{key}": tensor for key, tensor in state.items()}
        made = {
            "method": self.method,
            "hyperparameters": self.hyperparameters,
            "tasks": self.tasks,
            "aliases": self.aliases,
        }
        save_state_dict(tensors, path, metadata={"mergelib.compressed": json.dumps(made)})

    def _own(self, task: str) -> dict[str, dict[str, Tensor]]:
        if task not in self.own:
            raise ValueError(f"no task {task!r}; there are: {', '.join(self.own)}")
        return self.own[task]


@torch.no_grad()
def compress(
    method: str, experts: Experts, *, pretrained: StateDict | None = None, **hyperparameters: Any
) -> Compressed:
    """Compress experts into shared tensors and small parts of their own.

    Args:
        method: ``"emr"``, ``"tall_masks"`` or ``"cart_indexing"``; see `mergelib.methods`.
        experts: mapping of task to state dict, or a list of state dicts; as for `merge`.
        pretrained: the state dict they were fine-tuned from, where the method needs it.
        **hyperparameters: the method's own.

    Raises:
        ValueError: an unknown method; experts that are none or do not match; a NaN or Inf, naming
            the tensor; a hyperparameter out of range.
        TypeError: a hyperparameter that the method does not have.
    """
    chosen = get_method(method, "compression")
    chosen.check(hyperparameters, pretrained=pretrained is not None)
    named = name_experts(experts)
    base = {"pretrained": pretrained} if chosen.needs_pretrained else {}
    shared, own = chosen.function(named, **base, **hyperparameters)
    options = {**chosen.hyperparameters, **hyperparameters}
    aliases = tied_keys(pretrained if pretrained is not None else next(iter(named.values())))
    return Compressed(method, options, shared, own, aliases)


def load_compressed(path: AnyPath) -> Compressed:
    """Read what `Compressed.save` wrote.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: a file that is truncated, corrupt, or was not written by it.
    """
    checkpoint = Checkpoint(path)
    try:
        made = json.loads(checkpoint.metadata["mergelib.compressed"])
    except KeyError:
        raise ValueError(f"{Path(path)} holds no compressed experts") from None
    shared: dict[str, dict[str, Tensor]] = {}
    own: dict[str, dict[str, dict[str, Tensor]]] = {task: {} for task in made["tasks"]}
    for name, tensor in checkpoint.items():
        owner, part, key = name.split("/", 2)
        parts = shared if owner == "shared" else own[made["tasks"][int(owner)]]
        parts.setdefault(part, {})[key] = tensor.clone()
    return Compressed(made["method"], made["hyperparameters"], shared, own, made["aliases"])
