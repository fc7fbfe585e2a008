"""The two orders of deciding a layer's units and weights.

*Sequential*: a change takes effect before the next decision. *Simultaneous*: all units are decided
against the same network, then improvements are applied together and checked once more, one reading
of the paper's *finalization*.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from mergelib.cogram.decisions import MERGE, Log, Part
from mergelib.cogram.site import BUDGET, Site, site_of

Judged = tuple[Tensor, Tensor]  # losses of K parts with each expert, ``(K, n)``; of the mixtures


def sequential(site: Site, experts: Tensor, groups: Tensor, before: float, log: Log) -> None:
    """Decide the units of a layer in turn, each followed by its weights.

    ``experts`` holds the layer's matrices, ``(n, rows, fan_in + 1)``, ``groups`` the rows of each
    unit, ``(units, rows)``, and ``before`` is the network's loss. The site and the log are updated.
    """
    units, finer = _units(site, experts, groups), "weight" in log.settings.levels
    for unit, (rows, proposals) in enumerate(zip(groups, units, strict=True)):
        after = math.nan
        if "neuron" in log.settings.levels:
            part = "neuron", unit, -1
            after, made = log.decide(part, site.at(rows), proposals, before, last=not finer)
            if made is not None:
                site.write(rows, made[1])
                site.matrix[rows] = torch.tensordot(made[0], experts[:, rows], 1)
                before = after
        if finer and math.isnan(after):
            for place, row in enumerate(rows):
                before = _row(site, experts, unit, place, row[None], before, log)
    site.commit()


def _units(site: Site, experts: Tensor, groups: Tensor) -> Tensor:
    """Return every unit of every expert, ``(units, n, rows, N, ...)``."""
    return torch.stack([site.outputs(expert)[groups] for expert in experts], 1)


def _row(
    site: Site, experts: Tensor, unit: int, place: int, row: Tensor, before: float, log: Log
) -> float:
    """Decide a row's weights in turn; return the loss afterwards."""
    losses, present = site.at(row), site.units[row]
    columns = torch.arange(experts.shape[2], device=row.device)
    features = site.features(row.expand_as(columns), columns)
    values, entries = experts[:, row[0]].T.contiguous(), site.matrix[row[0]]
    moved = values - entries[:, None]
    moved = moved.view(*moved.shape, *[1] * features.dim())
    for i, (move, feature) in enumerate(zip(moved.unbind(), features.unbind(), strict=True)):
        part = "weight", unit, place * len(columns) + i
        proposals = torch.addcmul(present, move, feature)
        after, made = log.decide(part, losses, proposals, before, last=True)
        if made is not None:
            weights, present = made
            entries[i] = weights @ values[i]
            before = after
    site.write(row, present)
    return before


def simultaneous(site: Site, experts: Tensor, groups: Tensor, before: float, log: Log) -> None:
    """Decide all units of a layer against the same network, then the weights of undecided units.

    Arguments are as in `sequential`.
    """
    left = torch.arange(len(groups), device=groups.device)
    columns = torch.arange(experts.shape[2], device=groups.device)
    if "neuron" in log.settings.levels:
        last = "weight" not in log.settings.levels
        judged = _judge(site, groups, _units(site, experts, groups), log, last)
        parts = [("neuron", unit, -1) for unit in left.tolist()]
        where = groups[..., None], columns.expand(len(groups), 1, -1)
        after = _apply(site, experts, where, parts, judged, before, log)
        left = left[judged[1].isnan()]
        if len(left) and not math.isnan(after):
            before, site = after, site_of(site.network, site.layer)
    if "weight" in log.settings.levels and len(left):
        rows = groups[left].flatten().repeat_interleave(len(columns))
        columns = columns.repeat(len(rows) // len(columns))
        size = max(1, 8 * BUDGET // (len(experts) * site.units[0].numel()))
        blocks = []
        for row, column in zip(rows.split(size), columns.split(size), strict=True):
            features, units = site.features(row, column)[:, None], site.units[row][:, None]
            moved = (experts[:, row, column] - site.matrix[row, column]).T
            moved = moved.view(*moved.shape, *[1] * (features.dim() - 2))
            blocks.append(_judge(site, row[:, None], (units + moved * features)[:, :, None], log))
        judged = torch.cat([block[0] for block in blocks]), torch.cat([b[1] for b in blocks])
        weights = range(len(rows) // len(left))
        parts = [("weight", unit, weight) for unit in left.tolist() for weight in weights]
        _apply(site, experts, (rows, columns), parts, judged, before, log)


def _judge(site: Site, rows: Tensor, proposals: Tensor, log: Log, last: bool = True) -> Judged:
    """Judge proposals ``(K, n, r, N, ...)`` for rows ``(K, r)`` against the same network.

    The loss of a mixture is NaN for neurons that are decided by weight, none of them if ``last``.
    """
    count, experts = proposals.shape[:2]
    losses = site.losses(rows.repeat_interleave(experts, 0), proposals.flatten(0, 1))
    losses = losses.view(count, experts)
    spreads = (losses.amax(1) - losses.amin(1)).tolist()
    merging = [i for i in range(count) if last or log.settings.case("neuron", spreads[i]) == MERGE]
    mixtures = torch.einsum("kn,kn...->k...", log.settings.weights(losses), proposals)
    after = torch.full_like(losses[:, 0], math.nan)
    if merging:
        after[merging] = site.losses(rows[merging], mixtures[merging])
    return losses, after


def _apply(
    site: Site,
    experts: Tensor,
    where: tuple[Tensor, Tensor],
    parts: Sequence[Part],
    judged: Judged,
    before: float,
    log: Log,
) -> float:
    """Apply all mixtures that help alone; while that does not help, only the better half of them.

    ``where`` holds the rows and columns of the matrix that belong to each part, ``(K, ...)``. The
    decisions are logged, and the site is committed.

    Returns:
        The loss with the accepted mixtures; NaN if there is none.
    """
    losses, after = judged
    ceiling = log.settings.ceiling(parts[0][0], before)
    entries = torch.einsum("kn,nk...->k...", log.settings.weights(losses), experts[:, *where])
    applied = after.argsort()[: int((after < ceiling).sum())]
    present, loss = site.matrix, math.nan
    while len(applied) and not loss < ceiling:
        site.matrix = present.clone()
        site.matrix[where[0][applied], where[1][applied]] = entries[applied]
        site.commit()
        loss = site.network.loss()
        if not loss < ceiling:
            applied = applied[: len(applied) // 2]
    if not len(applied):
        site.matrix, loss = present, math.nan
        site.commit()
    accepted = torch.zeros_like(after, dtype=torch.bool).index_fill(0, applied, True)
    rows = zip(parts, losses.tolist(), after.tolist(), accepted.tolist(), strict=True)
    for part, values, mixture, yes in rows:
        log.add(part, values, before, mixture, yes)
    return loss
