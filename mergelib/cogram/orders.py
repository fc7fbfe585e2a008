"""The two orders of deciding a layer's units and weights.

*Sequential*: a change takes effect before the next decision. *Simultaneous*: all units are decided
against the same network, then improvements are applied together and checked once more, one reading
of the paper's *finalization*.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from mergelib.cogram.decisions import Judgement, Log, Rules, mixing_weights
from mergelib.cogram.site import BUDGET, Site


def sequential(site: Site, experts: Tensor, groups: Tensor, rules: Rules, log: Log) -> None:
    """Decide the units of a layer in turn, each followed by its weights.

    ``experts`` holds the layer's matrices, ``(n, rows, fan_in + 1)``, and ``groups`` the rows of
    each unit, ``(units, rows)``. The site and the log are updated.
    """
    before = site.network.loss()
    units = _units(site, experts, groups)
    last = "weight" not in rules.levels
    neurons = _Series(rules, "neuron", last)
    for unit, (rows, proposals) in enumerate(zip(groups, units, strict=True)):
        if "neuron" in rules.levels:
            accepted = neurons.decide(site.at(rows), proposals, before, unit, -1)
            if accepted is not None:
                weights, mixed, before = accepted
                site.write(rows, mixed)
                site.matrix[rows] = torch.tensordot(weights, experts[:, rows], 1)
        if not (last or neurons.merged):
            neurons.write(log)
            for place, row in enumerate(rows):
                before = _row(site, experts, unit, place, row[None], before, rules, log)
    neurons.write(log)
    site.commit()


def _units(site: Site, experts: Tensor, groups: Tensor) -> Tensor:
    """Return every unit of every expert, ``(units, n, rows, N, ...)``."""
    return torch.stack([site.outputs(expert)[groups] for expert in experts], 1)


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
    """Decide a row's weights in turn; return the loss afterwards."""
    losses, present = site.at(row), site.units[row]
    columns = torch.arange(experts.shape[2], device=row.device)
    features = site.features(row.expand_as(columns), columns)
    values, entries = experts[:, row[0]].T.contiguous(), site.matrix[row[0]]
    moved = values - entries[:, None]
    moved = moved.view(*moved.shape, *[1] * features.dim())
    series = _Series(rules, "weight", True)
    for i, (move, feature) in enumerate(zip(moved.unbind(), features.unbind(), strict=True)):
        proposals = torch.addcmul(present, move, feature)
        accepted = series.decide(losses, proposals, before, unit, place * len(columns) + i)
        if accepted is not None:
            weights, present, before = accepted
            entries[i] = weights @ values[i]
    site.write(row, present)
    series.write(log)
    return before


class _Series:
    """Successive decisions at one level; ``last`` says that no finer level follows."""

    def __init__(self, rules: Rules, level: str, last: bool) -> None:
        self.rules, self.level, self.last = rules, level, last
        self.merged = False
        self._losses: list[Tensor] = []
        self._rows: list[tuple[int, int, float, float, bool]] = []

    def decide(
        self,
        losses: Callable[[Tensor], Tensor],
        proposals: Tensor,
        before: float,
        unit: int,
        weight: int,
    ) -> tuple[Tensor, Tensor, float] | None:
        """Decide a part whose units are ``(n, r, N, ...)`` with each expert's values.

        Returns:
            If the mixture is accepted: the experts' weights, the mixed units ``(r, N, ...)`` and
            the new loss. Units are linear in their weights, so mixing units mixes weights.
        """
        values = losses(proposals)
        self._losses.append(values)
        self.merged = self.last or self.rules.merges(self.level, values.tolist())
        after, accepted = float("nan"), False
        if self.merged:
            weights = mixing_weights(values, self.rules.steepness, self.rules.shrinkage)
            mixed = (weights @ proposals.flatten(1)).view(proposals[:1].shape)
            after = losses(mixed).item()
            accepted = after < self.rules.ceiling(self.level, before)
        self._rows.append((unit, weight, before, after, accepted))
        return (weights, mixed[0], after) if accepted else None

    def write(self, log: Log) -> None:
        """Log the decisions since the last call as one block."""
        if self._rows:
            judgement = self.rules.judge(self.level, torch.stack(self._losses), last=self.last)
            units, weights, before, after, accepted = map(list, zip(*self._rows, strict=True))
            judgement.after = torch.tensor(after, dtype=torch.float64)
            log.add(self.level, units, weights, judgement, before, accepted)
            self._losses, self._rows = [], []


def simultaneous(site: Site, experts: Tensor, groups: Tensor, rules: Rules, log: Log) -> None:
    """Decide all units of a layer against the same network, then the weights of undecided units.

    Arguments are as in `sequential`.
    """
    before = site.network.loss()
    left = torch.arange(len(groups), device=groups.device)
    columns = torch.arange(experts.shape[2], device=groups.device)
    if "neuron" in rules.levels:
        proposals = _units(site, experts, groups)
        judgement = _judge_all(
            site, rules, "neuron", groups, proposals, "weight" not in rules.levels
        )
        ceiling = rules.ceiling("neuron", before)
        accepted, after = _consolidate(
            site, experts, groups[..., None], columns, judgement, ceiling
        )
        log.add("neuron", left.tolist(), -1, judgement, before, accepted.tolist())
        left = left[judgement.after.isnan()]
        if accepted.any() and len(left):
            before, site = after, Site(site.network, site.layer)
    if "weight" in rules.levels and len(left):
        rows = groups[left].flatten().repeat_interleave(len(columns))
        columns = columns.repeat(len(rows) // len(columns))
        size = max(1, 8 * BUDGET // (len(experts) * site.units[0].numel()))
        parts = []
        for part, places in zip(rows.split(size), columns.split(size), strict=True):
            proposals = _with_weights(site, experts, part, places)
            parts.append(_judge_all(site, rules, "weight", part[:, None], proposals, True))
        judgement = Judgement.join(parts)
        ceiling = rules.ceiling("weight", before)
        accepted, _ = _consolidate(site, experts, rows, columns, judgement, ceiling)
        count = len(rows) // len(left)
        units = left.repeat_interleave(count).tolist()
        log.add("weight", units, [*range(count)] * len(left), judgement, before, accepted.tolist())


def _with_weights(site: Site, experts: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """Return units ``(K, n, 1, N, ...)`` with one matrix entry taken from each expert."""
    moved = (experts[:, rows, columns] - site.matrix[rows, columns]).T
    features = site.features(rows, columns)[:, None]
    proposals = (
        site.units[rows][:, None] + moved.view(*moved.shape, *[1] * (features.dim() - 2)) * features
    )
    return proposals.unsqueeze(2)


def _judge_all(
    site: Site, rules: Rules, level: str, rows: Tensor, proposals: Tensor, last: bool
) -> Judgement:
    """Evaluate proposals ``(K, n, r, N, ...)`` for rows ``(K, r)`` against the same network."""
    count, experts = proposals.shape[:2]
    losses = site.losses(rows.repeat_interleave(experts, 0), proposals.flatten(0, 1))
    judgement = rules.judge(level, losses.view(count, experts), last=last)
    mixed = (judgement.weights.view(count, experts, *[1] * (proposals.dim() - 2)) * proposals).sum(
        1
    )
    merging = torch.tensor(judgement.merging, dtype=torch.long, device=rows.device)
    if len(merging):
        judgement.after[merging] = site.losses(rows[merging], mixed[merging])
    return judgement


def _consolidate(
    site: Site, experts: Tensor, rows: Tensor, columns: Tensor, judgement: Judgement, ceiling: float
) -> tuple[Tensor, float]:
    """Apply all mixtures that help alone; while that does not help, only the better half of them.

    Returns:
        Which parts are accepted, bool ``(K,)``, and the loss with them. The site is committed.
    """
    accepted = torch.zeros_like(judgement.after, dtype=torch.bool)
    applied = judgement.after.argsort()[: int((judgement.after < ceiling).sum())]
    present = site.matrix
    while len(applied):
        where = rows[applied], columns if rows.dim() > 1 else columns[applied]
        values = experts[:, *where]
        weights = judgement.weights[applied].T
        site.matrix = present.clone()
        mixed = (weights.view(*weights.shape, *[1] * (values.dim() - 2)) * values).sum(0)
        site.matrix[where] = mixed
        site.commit()
        loss = site.network.loss()
        if loss < ceiling:
            accepted[applied] = True
            return accepted, loss
        applied = applied[: len(applied) // 2]
    site.matrix = present
    site.commit()
    return accepted, float("nan")
