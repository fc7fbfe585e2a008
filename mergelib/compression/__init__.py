"""Compression: one shared model, and small parts that turn it into each expert again.

Where the task is known at inference, merging need not serve all tasks at once. A compression keeps
shared tensors and, for every task, masks of one bit an entry (really packed, eight to a byte) or
low-rank factors. `compress` makes a `Compressed`, which gives experts back, counts its bytes, and
goes to a file and back.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mergelib.compression.methods import RESTORE
from mergelib.inspection.kinds import Matrices, kinds_of
from mergelib.io import AnyPath, Checkpoint, Model, Models, as_state, as_states, save_state_dict
from mergelib.merging import in_memory, tied_keys, watch_in_memory
from mergelib.messages.brief import Brief
from mergelib.messages.refusals import check_device
from mergelib.problems.placing import state_to
from mergelib.registry import get_method
from mergelib.statedict import is_matrix, nbytes
from mergelib.statedict import named as named_models

__all__ = ["Compressed", "compress", "load_compressed"]


@dataclass(frozen=True, repr=False)
class Compressed(Brief):
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
        header = {
            "method": self.method,
            "hyperparameters": self.hyperparameters,
            "tasks": self.tasks,
            "aliases": self.aliases,
        }
        save_state_dict(tensors, path, metadata={"mergelib.compressed": json.dumps(header)})

    def _own(self, task: str) -> dict[str, dict[str, Tensor]]:
        if task not in self.own:
            raise ValueError(f"no task {task!r}; there are: {', '.join(self.own)}")
        return self.own[task]


@torch.no_grad()
def compress(
    method: str,
    experts: Models,
    *,
    pretrained: Model | None = None,
    device: torch.device | str | None = None,
    is_matrix: Callable[[str, Tensor], bool] = is_matrix,
    **hyperparameters: Any,
) -> Compressed:
    """Compress experts into shared tensors and small parts of their own.

    Args:
        method: ``"emr"``, ``"tall_masks"`` or ``"cart_indexing"``; see `mergelib.methods`.
        experts: mapping of task to model, or a list of models: state dicts, modules or paths.
        pretrained: the model they were fine-tuned from, where the method needs it.
        device: where to compute; by default where the tensors are. The result lies where the
            inputs lie.
        is_matrix: tells from key and tensor what low-rank methods take for a matrix, as in `merge`.
        **hyperparameters: the method's own.

    Raises:
        ValueError: an unknown method; experts that are none or do not match; a NaN or Inf, naming
            the tensor; a hyperparameter out of range; what else `merge` refuses.
        TypeError: a hyperparameter that the method does not have.

    Warns:
        UserWarning: of what `merge` warns of.
    """
    check_device(device)
    chosen = get_method(method, "compression")
    chosen.check(hyperparameters, pretrained=pretrained is not None)
    models = named_models(experts)
    named = as_states(models)
    base = None if pretrained is None else as_state(pretrained)
    source = in_memory(named, base if chosen.needs_pretrained else None)
    source.check(parts=False)
    source.check_companions(models, pretrained if chosen.needs_pretrained else None)
    watch_in_memory(source)
    reference = next(iter(named.values())) if base is None else base
    home = next((tensor.device for tensor in reference.values()), None)
    given: dict[str, Any] = {}
    matrices = Matrices(is_matrix, source.reference, kinds_of([pretrained, *models.values()]))
    if "is_matrix" in chosen.prepared:
        given["is_matrix"] = matrices
    if chosen.needs_pretrained and base is not None:
        given["pretrained"] = base if device is None else state_to(base, device)
    if device is not None:
        named = {name: state_to(state, device) for name, state in named.items()}
    options = {**chosen.hyperparameters, **hyperparameters}
    shared, own = chosen.function(named, **given, **hyperparameters)
    if device is not None and home is not None:
        shared = {part: state_to(state, home) for part, state in shared.items()}
        own = {
            task: {part: state_to(state, home) for part, state in parts.items()}
            for task, parts in own.items()
        }
    if "is_matrix" in chosen.prepared:
        for key in (key for key in source if key not in source.aliases):
            matrices.note(key, source.reference[key])
        whole = options.get("rest") == "own"
        matrices.tell(method, "keeps whole for every task" if whole else "leaves to average")
    return Compressed(method, options, shared, own, tied_keys(reference))


def load_compressed(path: AnyPath) -> Compressed:
    """Read what `Compressed.save` wrote.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: a file that is truncated, corrupt, or was not written by it.
    """
    checkpoint = Checkpoint(path)
    try:
        header = json.loads(checkpoint.metadata["mergelib.compressed"])
    except KeyError:
        raise ValueError(f"{Path(path)} holds no compressed experts") from None
    shared: dict[str, dict[str, Tensor]] = {}
    own: dict[str, dict[str, dict[str, Tensor]]] = {task: {} for task in header["tasks"]}
    for name, tensor in checkpoint.items():
        owner, part, key = name.split("/", 2)
        parts = shared if owner == "shared" else own[header["tasks"][int(owner)]]
        parts.setdefault(part, {})[key] = tensor.clone()
    return Compressed(header["method"], header["hyperparameters"], shared, own, header["aliases"])
