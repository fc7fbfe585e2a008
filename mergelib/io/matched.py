"""Read tables of tokens with their rows in the order of a common vocabulary."""

from collections.abc import Hashable, Iterator, Mapping, Sequence
from functools import cached_property

import torch
from torch import Tensor

from mergelib.io.checkpoint import Checkpoint
from mergelib.statedict import layout_of, tied_keys


class Matched(Checkpoint):
    """A model whose tables have one row for each entry of a common vocabulary.

    A table is rearranged when it is read. An entry that the model lacks gets the reference's row,
    or if the reference lacks it, too, the mean of the models that have it. At most two more
    tables are held meanwhile: the rows of missing entries, and the table of another model.

    Args:
        model: the model as it is stored.
        places: the row of each of its entries.
        entries: the common vocabulary.
        axes: the key of each table, with the axis of its rows.
        group: all models, the reference first; this one is added.
    """

    def __init__(
        self,
        model: Checkpoint,
        places: Mapping[Hashable, int],
        entries: Sequence[Hashable],
        axes: Mapping[str, int],
        group: list["Matched"],
    ) -> None:
        self.path, self.shards, self.metadata = model.path, model.shards, model.metadata
        self.model, self.axes, self.group = model, axes, group
        self.rows = torch.tensor([places.get(entry, -1) for entry in entries])
        self.size = len(places)
        group.append(self)

    def __getitem__(self, key: str) -> Tensor:
        stored = self.model[key]
        if key not in self.axes or self._unchanged:
            return stored
        result = stored.index_select(self.axes[key], self.rows.clamp(min=0))
        del stored
        missing = (self.rows < 0).nonzero().flatten()
        return self._fill(key, result, missing) if len(missing) else result

    @cached_property
    def _unchanged(self) -> bool:
        return torch.equal(self.rows, torch.arange(self.size))

    def _fill(self, key: str, result: Tensor, missing: Tensor) -> Tensor:
        """Put the rows of other models in place of those that this model lacks."""
        axis, (reference, *others) = self.axes[key], self.group
        lacked = reference.rows[missing] < 0 if key in reference.model else missing >= 0
        shape = [*result.shape]
        shape[axis] = len(missing)
        total = torch.zeros(shape, dtype=torch.promote_types(result.dtype, torch.float32))
        counts = torch.zeros(len(missing), dtype=torch.int64)
        for donor, asked in ((reference, ~lacked), *((other, lacked) for other in others)):
            has = (asked & (donor.rows[missing] >= 0)).nonzero().flatten()
            if len(has) and key in donor.model:
                rows = donor.model[key].index_select(axis, donor.rows[missing[has]])
                total.index_add_(axis, has, rows.to(total.dtype))
                counts[has] += 1
        if not counts.all():
            raise ValueError(
                f"{key!r} of {self.path} lacks tokens that no model with this tensor has: leave it "
                "out with exclude="
            )
        total = total.movedim(axis, -1).div_(counts).movedim(-1, axis)
        return result.index_copy_(axis, missing, total.to(result.dtype))

    @property
    def layout(self) -> dict[str, Tensor]:
        """Shapes and dtypes as tensors on the meta device."""
        layout = {**layout_of(self.model)}
        for key in self.axes.keys() & layout.keys():
            shape = [*layout[key].shape]
            shape[self.axes[key]] = len(self.rows)
            layout[key] = layout[key].new_empty(shape)
        return layout

    @cached_property
    def tied(self) -> dict[str, str]:
        """The model's own ties."""
        return tied_keys(self.model)

    def __contains__(self, key: object) -> bool:
        return key in self.model

    def __iter__(self) -> Iterator[str]:
        return iter(self.model)

    def __len__(self) -> int:
        return len(self.model)

    def check(self) -> None:
        """Raise ``ValueError`` if a file has changed since its header was read."""
        self.model.check()
