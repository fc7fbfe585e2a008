"""EMR-Merging, TALL masks and CART-Indexing, tensor by tensor.

Each makes shared parts, and parts of every task's own, from task vectors τ_t = θ_t − θ_0 (CART:
from centred ones), and each has a function in `RESTORE` that puts a task's expert together again.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal

import torch
from torch import Tensor

from mergelib.compression.packing import pack, unpack
from mergelib.merging import in_memory, is_weight, merge_checked, tied_keys
from mergelib.merging.applying import explain_not_finite
from mergelib.numerics.linalg import truncated_svd
from mergelib.registry import compression
from mergelib.rules.low_rank import rank_of
from mergelib.rules.masks import uses
from mergelib.statedict import StateDict, is_finite, is_matrix, is_statistic

Parts = dict[str, dict[str, Tensor]]
Result = tuple[Parts, dict[str, Parts]]


def _weights(
    experts: Mapping[str, StateDict], pretrained: StateDict | None
) -> Iterator[tuple[str, list[Tensor], Tensor | None]]:
    """Every floating tensor, not tied ones twice: key, experts' and pretrained tensor, checked.

    In float32 at least, as rules compute.
    """
    source = in_memory(experts, pretrained)
    for key in source:
        group, base = source.load(key)
        if key in source.aliases or not is_weight(key, group[0]):
            continue
        tensors = [*group] if base is None else [*group, base]
        if not all(map(is_finite, tensors)):
            raise ValueError(explain_not_finite(key, source.names, group, base))
        dtype = torch.promote_types(group[0].dtype, torch.float32)
        yield key, [tensor.to(dtype) for tensor in group], None if base is None else base.to(dtype)


def _copies(state: StateDict) -> dict[str, Tensor]:
    """A state dict of its own memory, without tied tensors' second names."""
    aliases = tied_keys(state)
    return {key: tensor.clone() for key, tensor in state.items() if key not in aliases}


@compression(paper="huang2024emr")
def emr(experts: Mapping[str, StateDict], pretrained: StateDict) -> Result:
    """EMR-Merging: elect one task vector, then mask and rescale it for every task.

    The elected vector has at every coordinate the sign of Σ τ_t and the largest magnitude among
    the entries that have this sign. Task t masks it where its own entry has the other sign, and
    rescales it by Σ |τ_t| / Σ |masked|, over the whole model. Kept: θ_0, the elected vector, and
    for every task one bit an entry and one number. Running statistics of BatchNorm are kept for
    every task that has others than θ_0, as a rescaled variance can fall below zero.
    """
    shared: Parts = {"pretrained": _copies(pretrained), "elected": {}}
    own: dict[str, Parts] = {task: {"mask": {}} for task in experts}
    sizes = dict.fromkeys(experts, (0.0, 0.0))
    for key, tuned, base in _weights(experts, pretrained):
        assert base is not None
        if is_statistic(key):
            for task, expert in experts.items():
                value = expert[key].to(pretrained[key], copy=True)
                if not torch.equal(value, pretrained[key]):
                    own[task].setdefault("statistics", {})[key] = value
            continue
        task_vectors = torch.stack([tensor - base for tensor in tuned])
        sign = task_vectors.sum(0).sign()
        elected = (task_vectors * sign).relu().amax(0) * sign
        shared["elected"][key] = elected.to(pretrained[key].dtype)
        for task, task_vector in zip(experts, task_vectors, strict=True):
            mask = task_vector * elected > 0
            own[task]["mask"][key] = pack(mask)
            before, after = sizes[task]
            masked = float((elected * mask).abs().sum())
            sizes[task] = (before + float(task_vector.abs().sum()), after + masked)
    for task, (before, after) in sizes.items():
        own[task]["rescale"] = {"": torch.tensor(before / after if after else 0.0)}
    return shared, own


def _restore_emr(shared: Parts, own: Parts) -> dict[str, Tensor]:
    state = {key: tensor.clone() for key, tensor in shared["pretrained"].items()}
    for key, mask in own["mask"].items():
        elected = shared["elected"][key]
        masked = unpack(mask, elected.shape) * elected.float() * own["rescale"][""]
        state[key] = (state[key].float() + masked).to(elected.dtype)
    return state | {key: tensor.clone() for key, tensor in own.get("statistics", {}).items()}


@compression(paper="wang2024localizing")
def tall_masks(
    experts: Mapping[str, StateDict],
    pretrained: StateDict,
    *,
    mask_scale: float | Mapping[str, float] = 0.4,
    base: Literal["task_arithmetic", "ties"] = "task_arithmetic",
) -> Result:
    """TALL masks: θ_0 plus the merged task vector where the task uses it.

    A task uses a coordinate where |τ_t| > mask_scale · |τ − τ_t| (`mergelib.rules.masks.uses`),
    with τ the merged task vector. Kept: θ_0, τ, and one bit an entry for every task.

    Args:
        experts: task to state dict.
        pretrained: θ_0.
        mask_scale: one number, or one a task, at least 0; the paper chooses it from 0.2..0.6 on
            validation data, for every task by itself.
        base: how τ is merged: the sum of the task vectors, or TIES' elected sum.

    Raises:
        ValueError: another ``base``, a task without a ``mask_scale``, or a negative one.
    """
    scales = mask_scale if isinstance(mask_scale, Mapping) else dict.fromkeys(experts, mask_scale)
    for task in experts:
        if not scales.get(task, -1.0) >= 0:
            raise ValueError(f"mask_scale of {task!r} is {scales.get(task)}, expected at least 0")
    if base not in ("task_arithmetic", "ties"):
        raise ValueError(f"base is {base!r}, expected 'task_arithmetic' or 'ties'")
    options: dict[str, Any] = {"reduce": "sum"} if base == "ties" else {}
    merged = merge_checked(base, experts, pretrained, scale=1.0, **options)
    shared: Parts = {"pretrained": _copies(pretrained), "merged": {}}
    own: dict[str, Parts] = {task: {"mask": {}} for task in experts}
    for key, tuned, origin in _weights(experts, pretrained):
        assert origin is not None
        total = merged[key].to(origin.dtype) - origin
        shared["merged"][key] = total.to(pretrained[key].dtype)
        for task, expert in zip(experts, tuned, strict=True):
            own[task]["mask"][key] = pack(uses(expert - origin, total, scales[task]))
    return shared, own


def _restore_tall(shared: Parts, own: Parts) -> dict[str, Tensor]:
    state = {key: tensor.clone() for key, tensor in shared["pretrained"].items()}
    for key, mask in own["mask"].items():
        merged = shared["merged"][key]
        masked = unpack(mask, merged.shape) * merged.float()
        state[key] = (state[key].float() + masked).to(merged.dtype)
    return state


@compression(paper="choi2025revisiting", prepared=("is_matrix",))
def cart_indexing(
    experts: Mapping[str, StateDict],
    *,
    rank_ratio: float = 0.08,
    rounding: Literal["ceil", "floor"] = "ceil",
    rest: Literal["own", "average"] = "own",
    is_matrix: Callable[[str, Tensor], bool] = is_matrix,
) -> Result:
    """CART-Indexing: θ_avg + SVD_k(θ_t − θ_avg) on matrices, each task's own tensors elsewhere.

    Appendix C.2 of the paper, and its released code. Kept: θ_avg, and for every task the factors
    U S and Vᵀ of each matrix, of k (m + n) numbers, and its own ``rest``. A tensor that is the same
    in all experts is kept once, as it is.

    Args:
        experts: task to state dict.
        rank_ratio: k = ceil(rank_ratio · min(m, n)), in 0..1.
        rounding: as in `mergelib.rules.cart`.
        rest: tensors that are no matrices: tables, norms, biases, BatchNorm's statistics and
            counters. Each task has its own (the released code), where it differs from the shared
            one, or all have the average, and the first expert's counters.
        is_matrix: tells from key and tensor what is a matrix; a convolution that is accepted is
            folded, one filter per row.

    Raises:
        ValueError: another ``rest``.
    """
    if rest not in ("own", "average"):
        raise ValueError(f"rest is {rest!r}, expected 'own' or 'average'")
    average = merge_checked("average", experts)
    shared: Parts = {"average": _copies(average)}
    own: dict[str, Parts] = {task: {"left": {}, "right": {}, "rest": {}} for task in experts}
    for key, tuned, _ in _weights(experts, None):
        reference = average[key]
        if not is_matrix(key, reference):
            continue
        rank = rank_of(reference.flatten(1).shape, rank_ratio, rounding)
        if _agree(tuned):
            continue
        for task, expert in zip(experts, tuned, strict=True):
            centred = expert - reference.to(expert.dtype)
            u, s, vh = truncated_svd(centred.flatten(1), rank)
            own[task]["left"][key] = (u * s).to(reference.dtype)
            own[task]["right"][key] = vh.to(reference.dtype).contiguous()
    factored = {key for parts in own.values() for key in parts["left"]}
    for key, common in shared["average"].items():
        if key in factored:
            continue
        tensors = [expert[key].to(common) for expert in experts.values()]
        if _agree(tensors):  # their average may be off by a rounding
            shared["average"][key] = tensors[0].clone()
        elif rest == "own":
            for task, tensor in zip(experts, tensors, strict=True):
                if not torch.equal(tensor, common):
                    own[task]["rest"][key] = tensor.clone()
    return shared, own


def _agree(tensors: list[Tensor]) -> bool:
    return all(torch.equal(tensor, tensors[0]) for tensor in tensors[1:])


def _restore_cart(shared: Parts, own: Parts) -> dict[str, Tensor]:
    # A part without tensors leaves no trace in a file.
    whole = shared["average"] | own.get("rest", {})
    state = {key: tensor.clone() for key, tensor in whole.items()}
    for key, left in own.get("left", {}).items():
        dtype = torch.promote_types(left.dtype, torch.float32)
        update = left.to(dtype) @ own["right"][key].to(dtype)
        average = state[key]
        state[key] = (average.to(dtype) + update.view(average.shape)).to(left.dtype)
    return state


RESTORE: dict[str, Callable[[Parts, Parts], dict[str, Tensor]]] = {
    "emr": _restore_emr,
    "tall_masks": _restore_tall,
    "cart_indexing": _restore_cart,
}
