"""Algebra on state dicts, and the checks that every method relies on.

A model is its state dict: a mapping from parameter names to tensors. Task arithmetic consists of
subtract, add, scale and interpolate. Entries that are not floating, such as BatchNorm's
``num_batches_tracked``, are counters; every operation copies them from its first argument.
"""

import math
import os
import re
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import TypeVar

import torch
from torch import Tensor, nn

T = TypeVar("T")
StateDict = Mapping[str, Tensor]
Experts = Mapping[str, StateDict] | Sequence[StateDict]

# The floating dtypes that methods compute with.
FLOATS = frozenset({torch.float16, torch.bfloat16, torch.float32, torch.float64})

# Words that mark an embedding or a position table in the usual model families.
_TABLE = re.compile(
    r"(^|[._])(emb\w*|\w*embed\w*|wte|wpe|pos|position\w*|relative_(position|attention)\w*|"
    r"shared(?!_expert)|cls_token|class_token)([._]|$)"
)


# What lies under the experts of a mixture without an expert's number: all of them in one tensor.
_FUSED = re.compile(r"(^|\.)experts(\.(?!\d+(\.|$))|$)")
_LONGEST_KERNEL = 32


class Misfit(ValueError):
    """Models that differ in keys, shapes or tokens; ``options`` are those that the text advises."""

    def __init__(self, text: str, **options: str) -> None:
        super().__init__(text)
        self.options = options


def named(experts: Mapping[str, T] | Iterable[T]) -> dict[str, T]:
    """Return experts by name: a mapping keeps its keys, a list is numbered from ``expert 0``.

    Raises:
        ValueError: if there is no expert.
        TypeError: if ``experts`` is a single path or module.
    """
    if isinstance(experts, str | os.PathLike | nn.Module):
        kind = type(experts).__name__
        raise TypeError(f"experts is a single {kind}, expected a list or mapping of models")
    if not isinstance(experts, Mapping):
        experts = {f"expert {i}": expert for i, expert in enumerate(experts)}
    if not experts:
        raise ValueError("nothing to merge: experts is empty")
    return dict(experts)


def name_experts(experts: Experts) -> dict[str, StateDict]:
    """Return state dicts by name, as `named` does; TypeError if an expert is not a mapping."""
    states = named(experts)
    for name, expert in states.items():
        if not isinstance(expert, Mapping):
            hint = "; is this a single state dict? experts is a list or mapping OF state dicts"
            kind, hint = type(expert).__name__, hint if isinstance(expert, Tensor) else ""
            raise TypeError(f"expert {name!r} is a {kind}, expected a state dict{hint}")
    return states


def repeated(names: Mapping[str, Hashable]) -> dict[str, str]:
    """Map every key whose value an earlier key has to the first key of that value."""
    first: dict[Hashable, str] = {}
    return {
        key: first[value] for key, value in names.items() if first.setdefault(value, key) != key
    }


def memory_aliases(state: StateDict) -> dict[str, str]:
    """Map keys whose tensor shares its memory with an earlier key's to that key."""
    held = {
        key: tensor
        for key, tensor in state.items()  # at once, as memory that is freed is used again
        if isinstance(tensor, Tensor) and tensor.numel()
    }
    return repeated({key: (t.data_ptr(), t.shape, t.stride(), t.dtype) for key, t in held.items()})


def tied_keys(state: StateDict) -> dict[str, str]:
    """Map each further name of a tied tensor to its first name, in memory or in files."""
    tied: dict[str, str] | None = getattr(state, "tied", None)
    return memory_aliases(state) if tied is None else tied


def layout_of(state: StateDict) -> StateDict:
    """Return a state dict to read shapes and dtypes from: for a file its header."""
    layout: StateDict = getattr(state, "layout", state)
    return layout


def weight_key(module: str) -> str:
    """Return the key of a module's weight; the module of the whole model has no name."""
    return f"{module}.weight" if module else "weight"


def check_values(name: str, state: StateDict) -> None:
    """Raise ``ValueError`` for sparse, nested or meta tensors, naming model and key."""
    for key, tensor in state.items():
        if not isinstance(tensor, Tensor):
            continue  # which is refused where models are compared
        nested = tensor.is_nested
        if nested or tensor.layout != torch.strided or tensor.is_meta:
            kind = "nested" if nested else "on the meta device" if tensor.is_meta else "sparse"
            raise ValueError(f"{name}[{key!r}] is {kind}, expected a dense tensor with values")


def check_compatible(
    reference: StateDict, others: Mapping[str, StateDict], what: str, *, mixed: bool = False
) -> None:
    """Check that every state dict has the keys, shapes and dtypes of the reference.

    Args:
        reference: the state dict that the others must match.
        others: name to state dict.
        what: the reference's name in messages, e.g. ``"pretrained"``.
        mixed: whether the dtypes in `FLOATS` may replace each other.

    Raises:
        ValueError: naming the expert, the first unfit key and what was expected.
        TypeError: if a state dict is not a mapping.
    """
    for name, other in {what: reference, **others}.items():
        check_mapping(other, name)
        check_keys(reference.keys(), other.keys(), name, what)
        for key, tensor in reference.items():
            check_tensor(key, tensor, other[key], name, what, mixed=mixed)


def check_mapping(model: object, name: str) -> None:
    """Raise ``TypeError`` unless the model is a mapping."""
    if not isinstance(model, Mapping):
        raise TypeError(f"{name} is a {type(model).__name__}, expected a state dict")


def check_keys(expected: Iterable[str], actual: Iterable[str], name: str, what: str) -> None:
    """Raise ``ValueError`` naming the first missing, else the first extra key of ``name``."""
    expected, actual = list(expected), set(actual)
    missing = [key for key in expected if key not in actual]
    extra = sorted(actual - set(expected))
    for label, keys in (("lacks", missing), ("has the extra", extra)):
        if keys:
            more = f" (and {len(keys) - 1} more)" if len(keys) > 1 else ""
            raise Misfit(f"{name} {label} key {keys[0]!r}{more} compared with {what}")


def check_tensor(
    key: str, expected: Tensor, actual: object, name: str, what: str, *, mixed: bool = False
) -> None:
    """Raise ``ValueError`` unless ``actual`` is a tensor of the expected shape and dtype."""
    if not isinstance(actual, Tensor):
        hint = ": pass that alone if it holds the weights" if isinstance(actual, Mapping) else ""
        kind = type(actual).__name__
        raise ValueError(f"{name}[{key!r}] is a {kind}, expected a tensor{hint}")
    if actual.shape != expected.shape:
        raise Misfit(
            f"{name}[{key!r}] has shape {tuple(actual.shape)}, "
            f"expected {tuple(expected.shape)} as in {what}"
        )
    if mixed and {actual.dtype, expected.dtype} <= FLOATS:
        return
    if actual.dtype != expected.dtype:
        raise ValueError(
            f"{name}[{key!r}] has dtype {actual.dtype}, expected {expected.dtype} as in {what}"
        )


def is_matrix(key: str, tensor: Tensor) -> bool:
    """Whether low-rank methods treat this parameter as a matrix, by shape and name.

    True for floating tensors of exactly two dimensions, both above 1, whose name is not that of an
    embedding or position table. Fused ``qkv`` and ``gate_up`` weights are one matrix. `merge` asks
    only if structure does not decide: a module shows its layers, and a weight with a bias belongs
    to a linear layer.
    """
    return (
        tensor.is_floating_point()
        and tensor.dim() == 2
        and min(tensor.shape) > 1
        and not names_table(key)
        and not is_stack(key, tensor)
    )


def names_table(key: str) -> bool:
    """Whether a name is that of an embedding or position table in the usual model families."""
    return _TABLE.search(key.lower()) is not None


def is_stack(key: str, tensor: Tensor) -> bool:
    """Whether a tensor stacks the matrices, or biases, of a mixture's experts.

    Decided by the name, or in three dimensions by last two dimensions longer than kernels.
    """
    if _FUSED.search(key):
        return tensor.dim() in (2, 3)
    return tensor.dim() == 3 and min(tensor.shape[1:]) > _LONGEST_KERNEL and not names_table(key)


def is_kernel(key: str, tensor: Tensor) -> bool:
    """`is_matrix`, or whether a parameter is a convolution, which folds to one row per filter.

    Pass it as ``is_matrix=`` of `merge`. Stacks of matrices are excluded, because folding mixes
    their experts. A transposed convolution folds by its inputs instead.
    """
    return not is_stack(key, tensor) and is_matrix(
        key, tensor if tensor.dim() < 3 else tensor.flatten(1)
    )


def is_statistic(key: str) -> bool:
    """Whether the key is a running mean or variance, by PyTorch's names.

    These are not directions in weight space: a scaled task vector can make a variance negative, and
    then the output is NaN.
    """
    return key.rpartition(".")[2] in ("running_mean", "running_var")


def proportions(weights: Sequence[float]) -> list[float]:
    """Return weights for running statistics, not negative and of sum 1; ValueError if all are 0."""
    positive = [max(float(weight), 0.0) for weight in weights]
    total = math.fsum(positive)
    if not total > 0:
        raise ValueError(
            f"weights is {list(weights)}, expected at least one positive weight, because the "
            "running statistics of BatchNorm are averaged with them"
        )
    if abs(total - 1) < 1e-9:
        return positive  # bit for bit as given
    return [weight / total for weight in positive]


def is_finite(tensor: Tensor) -> bool:
    """Whether a floating tensor holds no NaN and no infinity (one pass, no temporary)."""
    if tensor.numel() == 0 or math.isfinite(tensor.sum().item()):
        return True
    # A finite tensor's sum may still overflow, so a suspicious sum is looked at closely.
    return bool(torch.isfinite(tensor).all())


def _map(
    function: Callable[..., Tensor], first: StateDict, *others: StateDict
) -> dict[str, Tensor]:
    check_compatible(
        first, {f"operand {i + 2}": other for i, other in enumerate(others)}, "operand 1"
    )
    return {
        key: function(tensor, *(other[key] for other in others))
        if tensor.is_floating_point()
        else tensor.clone()
        for key, tensor in first.items()
    }


def subtract(a: StateDict, b: StateDict) -> dict[str, Tensor]:
    """Return ``a - b``; for a fine-tuned and a pretrained model this is the task vector."""
    return _map(torch.sub, a, b)


def add(a: StateDict, b: StateDict, alpha: float = 1.0) -> dict[str, Tensor]:
    """Return ``a + alpha · b``."""
    return _map(lambda x, y: x + alpha * y, a, b)


def scale(a: StateDict, factor: float) -> dict[str, Tensor]:
    """Return ``factor · a``."""
    return _map(lambda x: factor * x, a)


def lerp(a: StateDict, b: StateDict, weight: float) -> dict[str, Tensor]:
    """Return ``(1 - weight) · a + weight · b``, the straight path from ``a`` (0) to ``b`` (1)."""
    return _map(lambda x, y: torch.lerp(x, y, weight), a, b)


def flatten(a: StateDict) -> Tensor:
    """Return all floating entries as one vector of shape ``(n,)``, in the order of the keys."""
    return torch.cat([tensor.reshape(-1) for tensor in a.values() if tensor.is_floating_point()])


def unflatten(vector: Tensor, like: StateDict) -> dict[str, Tensor]:
    """Invert `flatten`: a vector as a state dict like ``like``, whose other tensors are copied.

    Raises:
        ValueError: if the vector does not have as many entries as ``like``.
    """
    sizes = [tensor.numel() for tensor in like.values() if tensor.is_floating_point()]
    if vector.shape != (sum(sizes),):
        raise ValueError(f"the vector has shape {tuple(vector.shape)}, expected ({sum(sizes)},)")
    parts = iter(torch.split(vector, sizes))
    return {
        key: next(parts).view(tensor.shape).to(tensor.dtype)
        if tensor.is_floating_point()
        else tensor.clone()
        for key, tensor in like.items()
    }


def nbytes(a: StateDict) -> int:
    """Return the bytes of all entries, tied tensors once; a `Checkpoint` is not read.

    Views that differ in shape, strides or dtype count separately, as in a file.
    """
    aliases = tied_keys(a)
    return sum(t.nbytes for key, t in layout_of(a).items() if key not in aliases)
