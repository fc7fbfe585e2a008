"""Norms, cosines and agreement of task vectors, read tensor by tensor."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from mergelib.inspection.watch import Watch
from mergelib.merging import Source, is_weight
from mergelib.merging.applying import LONG, precision
from mergelib.settings import NUMBERED
from mergelib.statedict import is_statistic, layout_of, nbytes

if TYPE_CHECKING:
    import pandas as pd


class Numbers:
    """Products of task vectors, or of weights without a pretrained model, tensor by tensor."""

    def __init__(self, source: Source) -> None:
        self.source, self.names = source, [*source.experts]
        self.layout = layout_of(source.reference)
        self.watch = Watch(self.names, pretrained=source.pretrained is not None)
        count = len(self.names)
        self.products = torch.zeros(count, count, dtype=torch.float64)
        self.agreeing = torch.zeros_like(self.products)  # pairs of nonzero entries of one sign
        self.both = torch.zeros_like(self.products)  # pairs of nonzero entries
        self.base = 0.0  # the pretrained model's entries, squared and summed
        self.squares: dict[str, Tensor] = {}  # of each expert, by layer

    def add(self, key: str) -> None:
        """Read one tensor of every model; ValueError if it is not finite or of a wrong dtype."""
        source = self.source
        if key in source.aliases or key not in source.selection.merged:
            return
        if not is_weight(key, self.layout[key]):
            return
        tensors = [source.read(key, number) for number in range(len(source.models))]
        self.watch.add(tensors.__getitem__)
        if is_statistic(key):
            return
        numbered = NUMBERED.match(key)
        layer = numbered[1] + numbered[2] if numbered else key.rpartition(".")[0] or key
        squares = self.squares.setdefault(layer, torch.zeros(len(self.names), dtype=torch.float64))
        dtype = precision(tensors, None)
        flat = [tensor.reshape(-1) for tensor in tensors]
        for start in range(0, len(flat[0]), LONG):
            part = torch.stack([each[start : start + LONG].to("cpu", dtype) for each in flat])
            if source.pretrained is not None:
                self.base += float(part[-1].double().square().sum())
                part = part[:-1] - part[-1]
            products, signs = (part @ part.T).double(), part.sign()
            both = (signs.abs() @ signs.abs().T).double()
            self.products += products
            self.both += both
            self.agreeing += ((signs @ signs.T).double() + both) / 2
            squares += products.diagonal()

    def table(self, known: Mapping[str, object]) -> "pd.DataFrame":
        """Return a row for each model, with the file name of those that are paths."""
        import pandas as pd

        source = self.source
        norms = self.products.diagonal().sqrt()
        others = ~torch.eye(len(norms), dtype=torch.bool)
        cosines = self.products / torch.outer(norms, norms)
        agreement = self.agreeing / self.both  # NaN for a task vector that is zero
        rows = []
        for name, model in source.models.items():
            path = known[name]
            file = Path(path).name if isinstance(path, str | os.PathLike) else None
            row: dict[str, Any] = {"file": file, "tensors": len(model), "bytes": nbytes(model)}
            if name == "pretrained" and source.pretrained is not None:
                row["norm"] = self.base**0.5
            else:
                i = self.names.index(name)
                row["norm"] = float(norms[i])
                if source.pretrained is not None:
                    row["relative norm"] = float(norms[i]) / max(self.base**0.5, 1e-300)
                row["cosine"] = float(cosines[i][others[i]].nanmean())
                if source.pretrained is not None:
                    row["sign agreement"] = float(agreement[i][others[i]].nanmean())
            rows.append(row)
        columns = ["tensors", "bytes", "norm", "relative norm", "cosine", "sign agreement"]
        columns = ["file", *columns] if any(row["file"] for row in rows) else columns
        return pd.DataFrame(rows, pd.Index(source.models, name="model"), columns)

    def layers(self) -> "pd.DataFrame":
        """Return the norms per layer, one column for each expert."""
        import pandas as pd

        norms = {layer: squares.sqrt().tolist() for layer, squares in self.squares.items()}
        table = pd.DataFrame.from_dict(norms, orient="index", columns=self.names)
        return table.rename_axis("layer")
