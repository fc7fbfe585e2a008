"""Compression: a shared model, and small parts per task that restore each expert.

A compression stores shared tensors and, for every task, bit masks (eight to a byte) or low-rank
factors. `compress` returns a `Compressed`, which restores experts, counts bytes and saves itself.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mergelib.compression.methods import restore
from mergelib.hashing import digest_of_state, fingerprint
from mergelib.inspection.companions import check_all, stamped
from mergelib.io import AnyPath, Checkpoint, Model, Models, as_state, as_states, save_state_dict
from mergelib.io.names import renamed
from mergelib.merging import compare
from mergelib.messages.brief import Brief
from mergelib.messages.refusals import check_device
from mergelib.parts import Parts
from mergelib.problems.placing import state_to
from mergelib.registry import get_method
from mergelib.statedict import StateDict, is_matrix, named, nbytes

__all__ = ["Compressed", "compress", "load_compressed"]


@dataclass(frozen=True, repr=False)
class Compressed(Brief):
    """Experts in compressed form."""

    method: str
    hyperparameters: dict[str, Any]  # all of them, JSON-serialisable
    shared: dict[str, dict[str, Tensor]]  # part to state dict, e.g. shared["average"]
    own: dict[str, dict[str, dict[str, Tensor]]]  # task to part to tensors
    aliases: dict[str, str]  # tied key to the key whose tensor it shares

    @property
    def tasks(self) -> list[str]:
        """Names of the tasks."""
        return list(self.own)

    @property
    def shared_nbytes(self) -> int:
        """Bytes of the shared parts, including the pretrained model if it is needed."""
        return sum(nbytes(part) for part in self.shared.values())

    def task_nbytes(self, task: str) -> int:
        """Return the bytes of one task's parts; ``ValueError`` if there is no such task."""
        return sum(nbytes(part) for part in self._own(task).values())

    @property
    def nbytes(self) -> int:
        """Bytes of everything."""
        return self.shared_nbytes + sum(map(self.task_nbytes, self.tasks))

    def expert(self, task: str) -> dict[str, Tensor]:
        """Return the restored expert of a task; ``ValueError`` if there is no such task."""
        state = restore(self.shared, self._own(task))
        return state | {key: state[first] for key, first in self.aliases.items()}

    def save(self, path: AnyPath) -> None:
        """Write everything to one ``.safetensors`` file for `load_compressed`."""
        owners = {"shared": self.shared, **{str(i): p for i, p in enumerate(self.own.values())}}
        tensors = {
            f"{owner}/{part}/{key}": tensor
            for owner, parts in owners.items()
            for part, state in parts.items()
            for key, tensor in state.items()
        }
        header = {
            "method": self.method,
            "hyperparameters": self.hyperparameters,
            "tasks": self.tasks,
            "aliases": self.aliases,
        }
        header["digest"] = _digest(header, tensors)
        save_state_dict(tensors, path, metadata={"mergelib.compressed": json.dumps(header)})

    def _own(self, task: str) -> dict[str, dict[str, Tensor]]:
        if task not in self.own:
            raise ValueError(f"there is no task {task!r}; tasks are: {', '.join(self.own)}")
        return self.own[task]


@torch.no_grad()
def compress(
    method: str,
    experts: Models,
    *,
    pretrained: Model | None = None,
    rename: Mapping[str, str] | None = None,
    device: torch.device | str | None = None,
    is_matrix: Callable[[str, Tensor], bool] = is_matrix,
    **hyperparameters: Any,
) -> Compressed:
    """Compress experts into shared tensors and small parts per task.

    Args:
        method: ``"emr"``, ``"tall_masks"`` or ``"cart_indexing"``; see `mergelib.methods`.
        experts: mapping of task to model, or a list: state dicts, modules or paths.
        pretrained: the model they were fine-tuned from, if the method needs it.
        rename: patterns of experts' keys with their new names, as in `mergelib.merge`.
        device: where to compute; by default where the tensors are. The result is where the inputs
            are.
        is_matrix: predicate (key, tensor), whether low-rank methods treat the tensor as a matrix.
        **hyperparameters: the method's own.

    Raises:
        ValueError: the method is unknown, experts are missing or do not match, a tensor is not
            finite, a hyperparameter is out of range, or `merge` would refuse the input.
        TypeError: the method does not have a hyperparameter.

    Warns:
        UserWarning: as in `merge`.

    >>> base, experts = {"w": torch.zeros(8)}, [{"w": torch.ones(8)}, {"w": -torch.ones(8)}]
    >>> compress("emr", experts, pretrained=base).task_nbytes("expert 0")  # 8 bits and a float
    5
    """
    check_device(device)
    entry = get_method(method, "compression")
    entry.check(hyperparameters, pretrained=pretrained is not None)
    models, base = named(experts), pretrained if entry.needs_pretrained else None
    stamps = stamped([base, *models.values()])
    origin = None if base is None else as_state(base)
    states = renamed(as_states(models, base=origin), origin, Parts(rename=rename).rename)
    source = compare(states, origin, None, {"pretrained": base, **models})
    check_all(stamps)
    source.check(parts=False)
    source.look_through()
    matrices = source.matrices(is_matrix)
    inputs: dict[str, Any] = {"is_matrix": matrices} if "is_matrix" in entry.prepared else {}
    if origin is not None:
        inputs["pretrained"] = state_to(origin, device)
    moved = {name: state_to(state, device) for name, state in source.experts.items()}
    shared, per_task = entry.function(moved, **inputs, **hyperparameters)
    tensors = iter(source.reference.values())
    home = None if device is None else next((tensor.device for tensor in tensors), None)
    shared = {part: state_to(state, home) for part, state in shared.items()}
    per_task = {
        task: {part: state_to(state, home) for part, state in parts.items()}
        for task, parts in per_task.items()
    }
    options = {**entry.hyperparameters, **hyperparameters}
    if "is_matrix" in entry.prepared:
        for key in (key for key in source if key not in source.aliases):
            matrices.note(key, source.reference[key])
        whole = options.get("rest") == "own"
        matrices.tell(method, "keeps whole for every task" if whole else "leaves to average")
    return Compressed(method, options, shared, per_task, dict(source.aliases))


def _digest(header: Mapping[str, Any], tensors: StateDict) -> str:
    return fingerprint(json.dumps(header) + digest_of_state(tensors))


def load_compressed(path: AnyPath) -> Compressed:
    """Read a file that `Compressed.save` wrote.

    Raises:
        FileNotFoundError: the file does not exist.
        ValueError: the file is truncated, corrupt or of another kind.
    """
    checkpoint = Checkpoint(path)
    if "mergelib.compressed" not in checkpoint.metadata:
        raise ValueError(f"{Path(path)} does not contain compressed experts")
    tensors = checkpoint.load()
    try:
        header = json.loads(checkpoint.metadata["mergelib.compressed"])
        intact = header.pop("digest") == _digest(header, tensors)
    except (ValueError, KeyError, AttributeError, TypeError, RecursionError):
        intact = False
    if not intact:
        raise ValueError(
            f"{Path(path)} is damaged, because it does not hold what was saved: copy it again"
        )
    shared: dict[str, dict[str, Tensor]] = {}
    per_task: dict[str, dict[str, dict[str, Tensor]]] = {task: {} for task in header["tasks"]}
    for name, tensor in tensors.items():
        owner, part, key = name.split("/", 2)
        parts = shared if owner == "shared" else per_task[header["tasks"][int(owner)]]
        parts.setdefault(part, {})[key] = tensor
    return Compressed(
        header["method"], header["hyperparameters"], shared, per_task, header["aliases"]
    )
