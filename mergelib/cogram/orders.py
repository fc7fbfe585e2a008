"""The two orders in which the units of a layer, and their weights, are decided.

*Sequential*: a change that is kept is in force for the next decision. *Simultaneous*: all units are
judged against the same network, then what helps is put in together and checked once more; the
paper's *finalization* allows that reading.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from mergelib.cogram.decisions import Judgement, Log, Rules, mixing_weights
from mergelib.cogram.site import BUDGET, Site


def sequential(site: Site, experts: Tensor, groups: Tensor, rules: Rules, log: Log) -> None:
    """Decide the units of a layer one after the other, and the weights of each right after it.

    Args:
        site: the layer in its place; it is changed.
        experts: the layer's matrix in every expert, ``(n, rows, fan_in + 1)``.
        groups: the rows of each unit, ``(units, rows)``.
        rules: what decides.
        log: gets a row a decision.
    """
    given = torch.stack([site.outputs(each) for each in experts])
    before = site.loss(site.units)
    last = "weight" not in rules.levels
    for unit, rows in enumerate(groups):
        merges = False
        if "neuron" in rules.levels:
            judged, mixed = _judge(site.at(rows), rules, "neuron", given[:, rows], last)
            after, merges = judged.after.item(), bool(judged.merging)
            kept = after < rules.ceiling("neuron", before)
            log.add("neuron", unit, -1, judged, before, kept)
            if kept:
                site.write(rows, mixed)
                site.matrix[rows] = torch.tensordot(judged.weights[0], experts[:, rows], 1)
                before = after
        if not (merges or last):
            for place, row in enumerate(rows):
                before = _row(site, experts, unit, place, row[None], before, rules, log)
    site.commit()


def _row(
    site: Site,
    experts: Tensor,
    unit: int,
    place: int,
    row: Tensor,
    before: float,
    rules: Rules,
    log: Log,
) -> float:
    """Decide a row's weights one after the other; returns the loss after them."""
    losses, present = site.at(row), site.units[row]
    columns = torch.arange(experts.shape[2], device=row.device)
    features = site.features(row.expand_as(columns), columns)
    values, entries = experts[:, row[0]].T.contiguous(), site.matrix[row[0]]
    moved = values - entries[:, None]
    shape = (-1, *[1] * features.dim())
    found, afters, befores, kept = [], [], [], []
    for i, (each, feature) in enumerate(zip(moved.unbind(), features.unbind(), strict=True)):
        found.append(losses(torch.addcmul(present, each.view(shape), feature)))
        weights = mixing_weights(found[-1], rules.steepness, rules.shrinkage)
        mixed = torch.addcmul(present, weights @ each, feature)
        after = losses(mixed[None]).item()
        afters.append(after)
        befores.append(before)
        kept.append(after < rules.ceiling("weight", before))
        if kept[-1]:
            present, before = mixed, after
            entries[i] = weights @ values[i]
    site.write(row, present)
    judged = rules.judge("weight", torch.stack(found), last=True)
    judged.after = torch.tensor(afters, dtype=torch.float64)
    places = (place * len(columns) + columns).tolist()
    log.add("weight", unit, places, judged, befores, kept)
    return before


def _judge(
    losses: Callable[[Tensor], Tensor], rules: Rules, level: str, given: Tensor, last: bool
) -> tuple[Judgement, Tensor]:
    """Judge one proposal against the network as it stands.

    Args:
        losses: of candidates ``(K, r, N, ...)``.
        rules: what decides.
        level: of the proposal.
        given: its units as each expert makes them, ``(n, r, N, ...)``.
        last: no finer level follows.

    Returns:
        The judgement, and the mixed units ``(r, N, ...)``: as a unit is linear in its weights,
        they are the mixture of what is given.
    """
    judged = rules.judge(level, losses(given)[None], last=last)
    mixed = torch.tensordot(judged.weights[0], given, 1)
    if judged.merging:
        judged.after = losses(mixed[None])
    return judged, mixed


def simultaneous(site: Site, experts: Tensor, groups: Tensor, rules: Rules, log: Log) -> None:
    """Decide all units of a layer against the same network, then all weights of those left.

    Arguments as in `sequential`.
    """
    before = site.loss(site.units)
    left = torch.arange(len(groups), device=groups.device)
    columns = torch.arange(experts.shape[2], device=groups.device)
    if "neuron" in rules.levels:
        given = torch.stack([site.outputs(each)[groups] for each in experts], 1)
        last = "weight" not in rules.levels
        judged = _judge_all(site, rules, "neuron", groups, given, last)
        ceiling = rules.ceiling("neuron", before)
        kept, after = _consolidate(site, experts, groups[..., None], columns, judged, ceiling)
        log.add("neuron", left.tolist(), -1, judged, before, kept.tolist())
        before = after if kept.any() else before
        left = left[judged.after.isnan()]
    if "weight" in rules.levels and len(left):
        rows = groups[left].flatten().repeat_interleave(len(columns))
        columns = columns.repeat(len(rows) // len(columns))
        size = max(1, 8 * BUDGET // (len(experts) * site.units[0].numel()))
        parts = []
        for some, which in zip(rows.split(size), columns.split(size), strict=True):
            given = _with_weights(site, experts, some, which)
            parts.append(_judge_all(site, rules, "weight", some[:, None], given, True))
        judged = Judgement.join(parts)
        ceiling = rules.ceiling("weight", before)
        kept, _ = _consolidate(site, experts, rows, columns, judged, ceiling)
        each = len(rows) // len(left)
        units = left.repeat_interleave(each).tolist()
        log.add("weight", units, [*range(each)] * len(left), judged, before, kept.tolist())
    site.commit()


def _with_weights(site: Site, experts: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """Units ``(K, n, 1, N, ...)`` with one entry of the matrix from each expert: (row, column)."""
    moved = (experts[:, rows, columns] - site.matrix[rows, columns]).T
    features = site.features(rows, columns)[:, None]
    given = (
        site.units[rows][:, None] + moved.view(*moved.shape, *[1] * (features.dim() - 2)) * features
    )
    return given.unsqueeze(2)


def _judge_all(
    site: Site, rules: Rules, level: str, rows: Tensor, given: Tensor, last: bool
) -> Judgement:
    """`_judge` for K proposals at once: rows ``(K, r)``, given ``(K, n, r, N, ...)``."""
    count, experts = given.shape[:2]
    losses = site.losses(rows.repeat_interleave(experts, 0), given.flatten(0, 1))
    judged = rules.judge(level, losses.view(count, experts), last=last)
    mixed = (judged.weights.view(count, experts, *[1] * (given.dim() - 2)) * given).sum(1)
    merging = judged.merging
    if merging:
        judged.after[merging] = site.losses(rows[merging], mixed[merging])
    return judged


def _consolidate(
    site: Site,
    experts: Tensor,
    rows: Tensor,
    columns: Tensor,
    judged: Judgement,
    ceiling: float,
) -> tuple[Tensor, float]:
    """Put in together the mixtures that help alone; if that does not help, the better half of them.

    Args:
        site: the layer in its place; its matrix and units are changed.
        experts: the layer's matrix in every expert.
        rows: of the entries that each part is made of, a part in the first dimension.
        columns: of them.
        judged: the parts.
        ceiling: what the loss must stay below, alone and together.

    Returns:
        Which parts are kept, bool ``(K,)``, and the loss with them.
    """
    kept = torch.zeros_like(judged.after, dtype=torch.bool)
    chosen = judged.after.argsort()[: int((judged.after < ceiling).sum())]
    while len(chosen):
        where = rows[chosen], columns if rows.dim() > 1 else columns[chosen]
        values = experts[:, *where]
        weights = judged.weights[chosen].T
        trial = site.matrix.clone()
        trial[where] = (weights.view(*weights.shape, *[1] * (values.dim() - 2)) * values).sum(0)
        units = site.outputs(trial)
        loss = site.loss(units)
        if loss < ceiling:
            site.write(torch.arange(len(units), device=units.device), units)
            site.matrix = trial
            kept[chosen] = True
            return kept, loss
        chosen = chosen[: len(chosen) // 2]
    return kept, float("nan")
