"""EMR-Merging, TALL masks and CART-Indexing, tensor by tensor.

Each returns shared parts and parts per task, made from task vectors τ_t = θ_t − θ_0 (centred ones
for CART); `restore` rebuilds an expert.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from mergelib.merging import compare, merge_checked, weights_of
from mergelib.messages.kinds import Share
from mergelib.numerics.linalg import truncated_svd
from mergelib.registry import rule
from mergelib.rules.low_rank import rank_of
from mergelib.rules.masks import uses
from mergelib.statedict import StateDict, is_matrix, is_statistic, tied_keys

Parts = dict[str, dict[str, Tensor]]
Result = tuple[Parts, dict[str, Parts]]


def _copies(state: StateDict) -> dict[str, Tensor]:
    """Return a copy of a state dict without second names of tied tensors."""
    aliases = tied_keys(state)
    return {key: tensor.clone() for key, tensor in state.items() if key not in aliases}


def _bits(device: torch.device) -> Tensor:
    return torch.tensor([1, 2, 4, 8, 16, 32, 64, 128], dtype=torch.uint8, device=device)


def pack(mask: Tensor) -> Tensor:
    """Return the bits of a boolean mask of n entries as uint8 ``(ceil(n / 8),)``."""
    flat = mask.reshape(-1).to(torch.uint8)
    padded = torch.nn.functional.pad(flat, (0, -len(flat) % 8)).view(-1, 8)
    return (padded * _bits(mask.device)).sum(1, dtype=torch.uint8)


def unpack(packed: Tensor, shape: Sequence[int]) -> Tensor:
    """Return the boolean mask of this shape; ``ValueError`` if the number of bytes does not fit."""
    entries = torch.Size(shape).numel()
    if len(packed) != -(-entries // 8):
        raise ValueError(f"{len(packed)} bytes of a mask, expected {-(-entries // 8)}")
    bits = packed[:, None].bitwise_and(_bits(packed.device)).ne(0)
    return bits.view(-1)[:entries].view(shape)


@rule(paper="huang2024emr", family="compression")
def emr(experts: Mapping[str, StateDict], pretrained: StateDict) -> Result:
    """EMR-Merging: elect one task vector, then mask and rescale it per task.

    The elected vector has the sign of Σ τ_t at every coordinate and the largest magnitude among
    entries with this sign. Task t masks entries of the other sign and rescales by Σ |τ_t| / Σ
    |masked| over the whole model. Stored: θ_0, the elected vector, and one bit per weight and one
    number per task. BatchNorm statistics that differ from θ_0 are stored per task, because a
    rescaled variance can be negative.
    """
    shared: Parts = {"pretrained": _copies(pretrained), "elected": {}}
    per_task: dict[str, Parts] = {task: {"mask": {}} for task in experts}
    sizes = dict.fromkeys(experts, (0.0, 0.0))
    for key, (tuned, base) in weights_of(compare(experts, pretrained)):
        assert base is not None
        if is_statistic(key):
            for task, expert in experts.items():
                value = expert[key].to(pretrained[key], copy=True)
                if not torch.equal(value, pretrained[key]):
                    per_task[task].setdefault("statistics", {})[key] = value
            continue
        task_vectors = torch.stack([tensor - base for tensor in tuned])
        sign = task_vectors.sum(0).sign()
        elected = (task_vectors * sign).relu().amax(0) * sign
        shared["elected"][key] = elected.to(pretrained[key].dtype)
        for task, task_vector in zip(experts, task_vectors, strict=True):
            mask = task_vector * elected > 0
            per_task[task]["mask"][key] = pack(mask)
            before, after = sizes[task]
            masked = float((elected * mask).abs().sum())
            sizes[task] = (before + float(task_vector.abs().sum()), after + masked)
    for task, (before, after) in sizes.items():
        per_task[task]["rescale"] = {"": torch.tensor(before / after if after else 0.0)}
    return shared, per_task


@rule(paper="wang2024localizing", family="compression")
def tall_masks(
    experts: Mapping[str, StateDict],
    pretrained: StateDict,
    *,
    mask_scale: float | Mapping[str, float] = 0.4,
    base: Literal["task_arithmetic", "ties"] = "task_arithmetic",
) -> Result:
    """TALL masks: θ_0 plus the merged task vector where the task uses it.

    A task uses coordinates with |τ_t| > mask_scale · |τ − τ_t| (`mergelib.rules.masks.uses`), where
    τ is the merged task vector. Stored: θ_0, τ, and one bit per weight and task.

    Hyperparameters:
        mask_scale: one number, or one per task, at least 0; the paper chooses it per task from
            0.2..0.6 on validation data.
        base: how τ is merged: sum of task vectors, or the elected sum of TIES.
    """
    scales = mask_scale if isinstance(mask_scale, Mapping) else dict.fromkeys(experts, mask_scale)
    for task in experts:
        if not scales.get(task, -1.0) >= 0:
            raise ValueError(f"mask_scale of {task!r} is {scales.get(task)}, expected at least 0")
    options: dict[str, Any] = {"reduce": "sum"} if base == "ties" else {}
    merged = merge_checked(base, experts, pretrained, scale=1.0, **options)
    shared: Parts = {"pretrained": _copies(pretrained), "merged": {}}
    per_task: dict[str, Parts] = {task: {"mask": {}} for task in experts}
    for key, (tuned, origin) in weights_of(compare(experts, pretrained)):
        assert origin is not None
        total = merged[key].to(origin.dtype) - origin
        shared["merged"][key] = total.to(pretrained[key].dtype)
        for task, expert in zip(experts, tuned, strict=True):
            per_task[task]["mask"][key] = pack(uses(expert - origin, total, scales[task]))
    return shared, per_task


@rule(paper="choi2025revisiting", family="compression", prepared=("is_matrix",))
def cart_indexing(
    experts: Mapping[str, StateDict],
    *,
    rank_ratio: Share = 0.08,
    rounding: Literal["ceil", "floor"] = "ceil",
    rest: Literal["own", "average"] = "own",
    is_matrix: Callable[[str, Tensor], bool] = is_matrix,
) -> Result:
    """CART-Indexing: θ_avg + SVD_k(θ_t − θ_avg) on matrices, each task's own tensors elsewhere.

    Appendix C.2 of the paper, and its released code. Stored: θ_avg, and per task the factors U S
    and Vᵀ of each matrix, k (m + n) numbers, and its ``rest``. A tensor that is equal in all
    experts is stored once.

    Hyperparameters:
        rank_ratio: k = ceil(rank_ratio · min(m, n)), in 0..1.
        rounding: as in `mergelib.rules.low_rank.cart`.
        rest: tables, norms, biases, statistics and counters: ``"own"`` stores each task's where it
            differs (the released code), ``"average"`` uses the average and the first expert's
            counters.
        is_matrix: predicate (key, tensor), whether the tensor is a matrix; a convolution is folded,
            one filter per row.
    """
    average = merge_checked("average", experts)
    shared: Parts = {"average": _copies(average)}
    per_task: dict[str, Parts] = {task: {"left": {}, "right": {}, "rest": {}} for task in experts}
    for key, (tuned, _) in weights_of(compare(experts, None)):
        reference = average[key]
        if not is_matrix(key, reference):
            continue
        rank = rank_of(reference.flatten(1).shape, rank_ratio, rounding)
        if _agree(tuned):
            continue
        for task, expert in zip(experts, tuned, strict=True):
            centred = expert - reference.to(expert.dtype)
            u, s, vh = truncated_svd(centred.flatten(1), rank)
            per_task[task]["left"][key] = (u * s).to(reference.dtype)
            per_task[task]["right"][key] = vh.to(reference.dtype).contiguous()
    factored = {key for parts in per_task.values() for key in parts["left"]}
    for key, common in shared["average"].items():
        if key in factored:
            continue
        tensors = [expert[key].to(common) for expert in experts.values()]
        if _agree(tensors):  # their average may be off by a rounding
            shared["average"][key] = tensors[0].clone()
        elif rest == "own":
            for task, tensor in zip(experts, tensors, strict=True):
                if not torch.equal(tensor, common):
                    per_task[task]["rest"][key] = tensor.clone()
    return shared, per_task


def _agree(tensors: list[Tensor]) -> bool:
    return all(torch.equal(tensor, tensors[0]) for tensor in tensors[1:])


def restore(shared: Parts, parts: Parts) -> dict[str, Tensor]:
    """Return an expert: shared tensors or the task's own, plus masked vectors or low-rank factors.

    A part without tensors leaves no trace in a file.
    """
    common = shared["average"] if "average" in shared else shared["pretrained"]
    whole = common | parts.get("rest", {}) | parts.get("statistics", {})
    state = {key: tensor.clone() for key, tensor in whole.items()}
    task_vector = shared["elected"] if "elected" in shared else shared.get("merged", {})
    for key, mask in parts.get("mask", {}).items():
        masked = unpack(mask, task_vector[key].shape) * task_vector[key].float()
        if "rescale" in parts:
            masked = masked * parts["rescale"][""]
        state[key] = (state[key].float() + masked).to(task_vector[key].dtype)
    for key, left in parts.get("left", {}).items():
        dtype = torch.promote_types(left.dtype, torch.float32)
        update = left.to(dtype) @ parts["right"][key].to(dtype)
        average = state[key]
        state[key] = (average.to(dtype) + update.view(average.shape)).to(left.dtype)
    return state
