"""Decide which weights are matrices for low-rank methods, and warn about doubtful ones.

Structure decides first: a module shows its layers, and a weight with a bias belongs to a linear
layer, because tables have none. Otherwise names decide.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence

from torch import Tensor, nn

from mergelib.messages.warned import warn
from mergelib.statedict import StateDict, is_kernel, is_matrix, is_stack, names_table, weight_key

IsMatrix = Callable[[str, Tensor], bool]

# The usual names of tables, of which nothing is said: the last module's, or a bare parameter's.
_USUAL = re.compile(
    r"(\w*(tok|word|pos|class|cls|type|segment|label|vocab)\w*|emb|embed|embeddings?|wte|wpe"
    r"|shared|embed_in|relative_\w+)$"
)


def layer_kinds(module: nn.Module) -> dict[str, bool]:
    """Map the keys of linear layers and tables to whether they are matrices.

    A weight that a linear layer shares with a table counts as a table.
    """
    tables = [m.weight for m in module.modules() if isinstance(m, nn.Embedding | nn.EmbeddingBag)]
    kinds = {}
    for name, part in module.named_modules():
        if isinstance(part, nn.Linear | nn.Embedding | nn.EmbeddingBag):
            shared = any(part.weight is table for table in tables)
            kinds[weight_key(name)] = not shared
    return kinds


def kinds_of(models: Iterable[object]) -> dict[str, bool]:
    """Return the `layer_kinds` of the first module among the models."""
    return next((layer_kinds(model) for model in models if isinstance(model, nn.Module)), {})


def _with_bias(layout: StateDict) -> dict[str, bool]:
    """Return the keys of weights that have a bias; all of them are matrices."""
    kinds: dict[str, bool] = {}
    for key, tensor in layout.items():
        bias = layout.get(key.removesuffix("weight") + "bias")
        if key.endswith("weight") and bias is not None and bias.dim() == 1 and tensor.dim() == 2:
            kinds |= {key: True} if len(bias) in tensor.shape else {}
    return kinds


class Matrices:
    """A predicate (key, tensor) that decides what is a matrix, and records what is not.

    It follows a user's predicate; the library's two are overruled by ``known`` layers and by
    biases.
    """

    def __init__(
        self, decide: IsMatrix, layout: StateDict, known: Mapping[str, bool] | None = None
    ) -> None:
        self._decide = decide
        self._ours = decide in (is_matrix, is_kernel)
        self._known = {**_with_bias(layout), **(known or {})}
        self._left: dict[str, list[str]] = {"kernels": [], "stacks": [], "tables": []}

    def __call__(self, key: str, tensor: Tensor) -> bool:
        if not self._ours or tensor.dim() != 2 or key not in self._known or is_stack(key, tensor):
            return self._decide(key, tensor)
        return self._known[key] and tensor.is_floating_point() and min(tensor.shape) > 1

    def stacked(self, key: str, tensor: Tensor) -> bool:
        """Whether a merge takes a tensor of three dimensions for matrices, one by one."""
        return self._ours and tensor.dim() == 3 and is_stack(key, tensor)

    def note(self, key: str, tensor: Tensor) -> None:
        """Record a tensor if the method left it although it may be made of matrices."""
        if not self._ours or tensor.dim() < 2 or min(tensor.flatten(1).shape) < 2:
            return
        if self(key, tensor):
            return
        if is_stack(key, tensor):
            self._left["stacks"].append(key)
        elif tensor.dim() > 2 and is_kernel(key, tensor):
            self._left["kernels"].append(key)
        elif tensor.dim() == 2 and key not in self._known and _is_doubtful(key):
            self._left["tables"].append(key)

    def tell(self, method: str, fate: str) -> None:
        """Warn in one line about the recorded tensors, and what becomes of them (``fate``)."""
        advice = {
            "kernels": ("convolutions", "pass is_matrix=mergelib.is_kernel to fold them, one row "
                        "per filter"),
            "stacks": ("stacks of matrices, such as a mixture's experts in one tensor",
                       "they merge as matrices only where each expert has a key of its own, as in "
                       "many model folders"),
            "tables": ("weights whose names look like those of tables",
                       "pass is_matrix= if they are linear layers"),
        }  # fmt: skip
        parts = [
            f"{what} ({named(keys)}): {hint}"
            for (what, hint), keys in zip(advice.values(), self._left.values(), strict=True)
            if keys
        ]
        if parts:
            warn(f"not factorised: {method} works on matrices, and it {fate} {'; '.join(parts)}")


def _is_doubtful(key: str) -> bool:
    """Whether a name resembles a table's, but not a usual one."""
    owner = key.lower().removesuffix(".weight").rpartition(".")[2]
    return names_table(key) and not _USUAL.match(owner)


def named(keys: Sequence[str], most: int = 3) -> str:
    """Return the first keys, and how many more there are."""
    more = f" and {len(keys) - most} more" if len(keys) > most else ""
    return ", ".join(map(repr, keys[:most])) + more
