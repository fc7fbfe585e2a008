"""Read tables of tokens with their rows in the order of a common vocabulary."""

from collections.abc import Mapping, Set

import torch
from torch import Tensor

from mergelib.io.names import Renamed
from mergelib.statedict import StateDict


class Matched(Renamed):
    """A model whose ``tables`` are read as ``rows`` of what is stored; those it lacks are -1.

    They are taken from the model called "pretrained" in the ``group``, or if it lacks them, too,
    are the mean of the models that have them. Two more tables are held meanwhile at most: these
    rows, and another model's table.
    """

    def __init__(
        self, model: StateDict, rows: list[int], tables: Set[str], group: Mapping[str, "Matched"]
    ) -> None:
        super().__init__(model)
        self.rows, self.tables, self.group = torch.tensor(rows), tables, group

    def __getitem__(self, key: str) -> Tensor:
        table = super().__getitem__(key)
        if key not in self.tables or torch.equal(self.rows, torch.arange(len(table))):
            return table
        table = table[self.rows.clamp(min=0)]
        missing = (self.rows < 0).nonzero().flatten()
        if len(missing):
            table[missing] = self._mean(key, missing, table).to(table.dtype)
        return table

    def _mean(self, key: str, missing: Tensor, like: Tensor) -> Tensor:
        wide = torch.promote_types(like.dtype, torch.float32)
        total = torch.zeros(len(missing), *like.shape[1:], dtype=wide)
        counts = torch.zeros(len(missing), *(1 for _ in like.shape[1:]))
        donors = {name: donor for name, donor in self.group.items() if key in donor}
        base = donors.get("pretrained")
        of_base = missing < 0 if base is None else base.rows[missing] >= 0
        for donor in donors.values():
            has = (donor.rows[missing] >= 0) & (of_base if donor is base else ~of_base)
            if has.any():
                total[has] += super(Matched, donor).__getitem__(key)[donor.rows[missing[has]]]
                counts[has] += 1
        return total / counts

    @property
    def layout(self) -> dict[str, Tensor]:
        """Shapes and dtypes as tensors on the meta device."""
        layout = super().layout
        for key in self.tables & layout.keys():
            layout[key] = layout[key].new_empty(len(self.rows), *layout[key].shape[1:])
        return layout
