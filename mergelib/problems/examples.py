"""Examples of a task: inputs as the model takes them, with or without labels.

Inputs are a tensor, or a dictionary of tensors as for Hugging Face models. `read_examples` reads
tensors, pairs, dictionaries and loaders once; every procedure then sees the same small class.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from mergelib.messages.brief import Brief

Inputs = Tensor | Mapping[str, Tensor]
IGNORED = -100  # the label of positions that are not judged, as in `torch.nn.functional`
MASK = "attention_mask"


@dataclass(frozen=True, repr=False)
class Examples(Brief):
    """Examples of one task in memory; the first dimension of inputs and labels counts them."""

    inputs: Inputs
    labels: Tensor | None = None

    def __len__(self) -> int:
        return len(next(iter(self.named.values())))

    def __getitem__(self, rows: Tensor | slice) -> "Examples":
        """Return a copy of some examples, by a slice or by row numbers on any device.

        It is a copy because a transform may work in place.
        """
        numbers = rows if isinstance(rows, Tensor) else torch.arange(len(self))[rows]
        return self.each(lambda x: x[numbers.to(x.device)])

    def each(self, function: Callable[[Tensor], Tensor]) -> "Examples":
        """Return the examples with a function applied to inputs and labels."""
        labels = None if self.labels is None else function(self.labels)
        if isinstance(self.inputs, Tensor):
            return Examples(function(self.inputs), labels)
        return Examples({name: function(x) for name, x in self.inputs.items()}, labels)

    @property
    def named(self) -> Mapping[str, Tensor]:
        """The inputs by name, ``inputs`` if they are one tensor."""
        return {"inputs": self.inputs} if isinstance(self.inputs, Tensor) else self.inputs

    @property
    def unlabelled(self) -> "Examples":
        """The same examples without labels."""
        return Examples(self.inputs)

    @property
    def pair(self) -> "tuple[Tensor | Examples, Tensor]":
        """Inputs and labels, which can be indexed by rows and moved; ValueError without labels."""
        if self.labels is None:
            raise ValueError("these examples have no labels")
        inputs = self.inputs if isinstance(self.inputs, Tensor) else self.unlabelled
        return inputs, self.labels

    def to(self, device: torch.device | str) -> "Examples":
        """Return the examples on a device."""
        return self.each(lambda x: x.to(device))

    def batches(self, size: int) -> Iterator["Examples"]:
        """Yield all examples in order, ``size`` at a time."""
        for start in range(0, len(self), size):
            yield self[start : start + size]

    def own_positions(self, outputs: Tensor) -> Tensor:
        """Cut outputs ``(N, L, …)`` of a jointly padded batch to these examples' own length."""
        if isinstance(self.inputs, Tensor) or "input_ids" not in self.inputs or outputs.dim() < 3:
            return outputs
        return outputs[:, : self.inputs["input_ids"].shape[1]]

    def rows_of(self, outputs: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return outputs ``(N, …, C)`` as rows ``(M, C)``, and their labels ``(M,)``.

        Positions of a sequence are rows; padding, where the attention mask is 0, is left out.
        """
        positions = self._positions(outputs)
        if positions is None:
            return outputs.flatten(0, -2), None if self.labels is None else self.labels.flatten()
        labels = None if self.labels is None else self.labels[positions.to(self.labels.device)]
        return outputs[positions], labels

    def without_padding(self, outputs: Tensor) -> Tensor:
        """Return outputs ``(N, …)``, as rows ``(M, width)`` without padding if there is a mask."""
        positions = self._positions(outputs)
        return outputs if positions is None else outputs[positions]

    def _positions(self, outputs: Tensor) -> Tensor | None:
        """Return which positions of outputs ``(N, L, width)`` are not padding, if known."""
        mask = None if isinstance(self.inputs, Tensor) else self.inputs.get(MASK)
        if mask is None or outputs.dim() != 3 or outputs.shape[:2] != mask.shape:
            return None
        return mask.bool().to(outputs.device)


Part = Examples | Inputs | tuple[Inputs | Examples, Tensor | None]


def as_examples(part: Part) -> Examples:
    """Return inputs, or a pair of inputs and labels, as examples."""
    if isinstance(part, tuple):
        return Examples(as_examples(part[0]).inputs, part[1])
    return part if isinstance(part, Examples) else Examples(part)


def join(parts: Sequence[Examples]) -> Examples:
    """Concatenate examples; sequences are padded to the longest.

    If lengths differ, the result has an attention mask, 0 on padding, where labels are `IGNORED`.
    """
    if len(parts) == 1:
        return parts[0]
    dictionaries = [dict(part.named) for part in parts]
    lengths = {d["input_ids"].shape[1] for d in dictionaries if "input_ids" in d}
    if len(lengths) > 1 or any(MASK in d for d in dictionaries):
        for d in dictionaries:
            if "input_ids" in d:
                d.setdefault(MASK, torch.ones_like(d["input_ids"]))
    names = list(dictionaries[0])
    for other in dictionaries[1:]:
        if set(other) != set(names):
            raise ValueError(
                f"batches have the inputs {', '.join(names)} and {', '.join(other)}: "
                "expected the same ones everywhere (a tensor by itself is called inputs)"
            )
    labels = [part.labels for part in parts if part.labels is not None]
    with_labels = len(labels) == len(parts)
    if isinstance(parts[0].inputs, Tensor):
        inputs = torch.cat([d["inputs"] for d in dictionaries])
        return Examples(inputs, torch.cat(labels) if with_labels else None)
    padded = {name: _padded([d[name] for d in dictionaries], 0) for name in names}
    return Examples(padded, _padded(labels, IGNORED) if with_labels else None)


def read_examples(task: str, data: Any) -> Examples:
    """Read a user's data of one task into memory and check them.

    Args:
        task: its name, for messages.
        data: a tensor; a dictionary of tensors, from which ``labels`` are removed; a pair of either
            and labels; or an iterable of such batches, e.g. a `DataLoader`, which is read once.

    Raises:
        TypeError: for other data.
        ValueError: if there are no examples, numbers of labels differ, or inputs are not finite.
    """
    one = isinstance(data, Examples | Tensor | Mapping | tuple | str)
    if one or not isinstance(data, Iterable):
        return _next_token(_checked(task, _one(task, data)))
    batches = [_checked(task, _one(task, tuple(b) if isinstance(b, list) else b)) for b in data]
    if not batches:
        raise ValueError(f"task {task!r} has no inputs")
    try:
        return _next_token(join(batches))
    except RuntimeError as error:
        shapes = [tuple(next(iter(batch.named.values())).shape) for batch in batches]
        raise ValueError(
            f"task {task!r} has batches of shapes that cannot be joined, from {shapes[0]} to "
            f"{shapes[-1]}: give all inputs one shape, and pass inputs with labels as a tuple, "
            "because a list is read as batches"
        ) from error


def _one(task: str, batch: Any) -> Examples:
    """Return one batch of any kind as examples."""
    if isinstance(batch, tuple):
        if len(batch) not in (1, 2):
            raise ValueError(f"task {task!r} has batches of {len(batch)} parts, expected 1 or 2")
        inputs, labels = _one(task, batch[0]).inputs, batch[1] if len(batch) == 2 else None
        if labels is not None and not isinstance(labels, Tensor):
            raise TypeError(f"labels of task {task!r} are a {type(labels).__name__}, not a tensor")
        return Examples(inputs, labels)
    if isinstance(batch, Examples | Tensor):
        return as_examples(batch)
    if not isinstance(batch, Mapping):
        raise TypeError(
            f"data of task {task!r} are a {type(batch).__name__}, expected a tensor, a pair of "
            "inputs and labels, a dictionary of tensors, or a loader of these"
        )
    inputs = {name: x for name, x in batch.items() if name != "labels"}
    for name, x in batch.items():
        if not isinstance(x, Tensor):
            kind = type(x).__name__
            raise TypeError(f"{name!r} of task {task!r} is a {kind}, expected a tensor")
    if not inputs:
        raise ValueError(f"task {task!r} has no inputs")
    return Examples(inputs, batch.get("labels"))


def _checked(task: str, examples: Examples) -> Examples:
    """Refuse examples that are empty, differ in number or are not finite."""
    count = len(examples)
    for name, x in examples.named.items():
        if len(x) != count:
            raise ValueError(f"task {task!r} has {count} inputs and {len(x)} {name!r}")
        if x.is_floating_point() and not torch.isfinite(x).all():
            raise ValueError(f"{name} of task {task!r} holds NaN or Inf: look at the inputs")
    if examples.labels is not None and len(examples.labels) != count:
        raise ValueError(f"task {task!r} has {count} inputs and {len(examples.labels)} labels")
    if not count:
        raise ValueError(f"task {task!r} has no inputs")
    return examples


def _next_token(examples: Examples) -> Examples:
    """Shift labels that repeat ``input_ids`` to the position that predicts them; ignore padding."""
    inputs, labels = examples.inputs, examples.labels
    if isinstance(inputs, Tensor) or labels is None or "input_ids" not in inputs:
        return examples
    tokens = inputs["input_ids"]
    if labels.shape != tokens.shape or labels.dim() != 2:
        return examples
    if MASK in inputs:
        labels = labels.masked_fill(inputs[MASK] == 0, IGNORED)
    counted = labels != IGNORED
    if torch.equal(labels[counted], tokens[counted]):
        labels = F.pad(labels[:, 1:], (0, 1), value=IGNORED)
    return Examples(inputs, labels)


def _padded(tensors: Sequence[Tensor], value: int) -> Tensor:
    """Concatenate tensors; the second dimension is padded to the longest."""
    if tensors[0].dim() < 2:
        return torch.cat(list(tensors))
    longest = max(tensor.shape[1] for tensor in tensors)
    parts = []
    for tensor in tensors:
        end = (0, 0) * (tensor.dim() - 2) + (0, longest - tensor.shape[1])
        parts.append(F.pad(tensor, end, value=value) if end[-1] else tensor)
    return torch.cat(parts)
