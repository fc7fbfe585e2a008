"""Search the hyperparameters of a method by a score of your own."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from mergelib.inspection.companions import check_all, stamped
from mergelib.io import Model, Models, resolve_base
from mergelib.merging import merge
from mergelib.messages.brief import Brief
from mergelib.messages.kinds import is_finite_number
from mergelib.progress import progress
from mergelib.registry import get_method
from mergelib.statedict import StateDict, lerp, named

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

Grid = Mapping[str, Sequence[Any]]
Merge = Callable[..., dict[str, Tensor]]
SHARES = ("rank_ratio", "density", "drop_rate")  # hyperparameters of at most 1
SHORT = (torch.float16, torch.bfloat16)
AROUND = (1 / 2, math.sqrt(1 / 2), 1, math.sqrt(2), 2)  # times the default: a grid of scales


@dataclass(frozen=True, repr=False)
class Search(Brief):
    """What `search` found."""

    best: dict[str, Any]  # hyperparameters
    score: float  # with them
    state: dict[str, Tensor]  # merged with them
    table: "pd.DataFrame"  # a row per candidate: its hyperparameters and ``score``

    def plot(self, ax: "Axes | None" = None) -> "Axes":
        """Draw the score against the first hyperparameter, a line for each value of the others."""
        first, *others = self.best
        table = self.table.apply(lambda values: values if _numbers(values) else values.map(str))
        lines = table.pivot_table("score", first, others) if others else table
        options: dict[str, Any] = {"x": first, "y": "score", "legend": False}
        options = {} if others else options
        axes: Axes = lines.sort_values(first).plot(ax=ax, marker="o", ylabel="score", **options)
        return axes


def search(
    method: str,
    experts: Models,
    *,
    score: Callable[[dict[str, Tensor]], float],
    grid: Grid | None = None,
    pretrained: Model | None = None,
    **options: Any,
) -> Search:
    """Merge with every combination of a grid's values, and keep the model of the highest score.

    Choose on validation data: the score of the best candidate is too optimistic. An axis of three
    positive values or more is continued, geometrically and at most four times, where the best lies
    at its end. Where a result is affine in a hyperparameter, as in most methods' ``scale``, two
    merges give the models at all its values.

    Args:
        method: a rule, see `mergelib.methods`.
        experts: as in `mergelib.merge`.
        score: of a merged state dict, higher is better, e.g. the mean accuracy of
            `mergelib.evaluate`, which puts weights into a model without rebuilding it.
        grid: values by hyperparameter; by default five values of ``scale``, from half the method's
            default to twice.
        pretrained: as in `mergelib.merge`.
        **options: further arguments of `mergelib.merge`, the same for all candidates.

    Returns:
        The best hyperparameters with their score, the merged state dict and a table of all
        candidates. Of equal scores the first counts.

    Raises:
        ValueError: an axis without values, no grid for a method without a number as default
            ``scale``, or a score that is not a finite number; and the errors of `mergelib.merge`.
        TypeError: a hyperparameter that the method lacks.

    >>> found = search("cart", experts, score=accuracy)                        # doctest: +SKIP
    >>> found.best                                                             # doctest: +SKIP
    {'scale': 1.41}
    """
    import pandas as pd

    chosen = get_method(method)
    if grid is None:
        usual = chosen.hyperparameters.get("scale")
        if not isinstance(usual, float):
            raise ValueError(f"{method} has no number as default scale: pass grid={{name: values}}")
        grid = {"scale": [float(f"{usual * factor:.3g}") for factor in AROUND]}
    if empty := [name for name, values in grid.items() if not values]:
        raise ValueError(f"the grid has no values for {empty[0]!r}")
    models = named(experts)
    stamps = stamped(models.values())
    pretrained = resolve_base(models, pretrained)
    stamps += stamped([pretrained])
    for point in points(grid):
        chosen.check(point, pretrained=pretrained is not None)

    def merged(**point: Any) -> dict[str, Tensor]:
        return merge(method, experts, pretrained=pretrained, **options, **point)

    def scored(part: Grid) -> "pd.DataFrame":
        rows = points(part)
        bar = progress(merged_grid(merged, method, part), total=len(rows), desc=method)
        for number, state in bar:
            value = score(state)
            if not is_finite_number(value):
                raise ValueError(f"the score is {value!r} at {rows[number]}, expected a number")
            rows[number]["score"] = float(value)
        return pd.DataFrame(rows)

    table = widened(grid, scored, lambda found: [int(found["score"].argmax())])
    place = int(table["score"].argmax())
    best = {name: table[name].tolist()[place] for name in grid}
    state = merged(**best)
    check_all(stamps)  # all candidates are merged from one version of it
    return Search(best, table["score"].tolist()[place], state, table)


def points(grid: Grid) -> list[dict[str, Any]]:
    """Return all combinations of a grid's values."""
    return [dict(zip(grid, values, strict=True)) for values in product(*grid.values())]


def merged_grid(merged: Merge, method: str, grid: Grid) -> Iterator[tuple[int, StateDict]]:
    """Yield the merged model at every point of a grid, with the point's number, in any order.

    ``merged`` merges by the method at a point. Two merges give the models at all values of the
    hyperparameter that it declares itself affine in (`mergelib.registry.Method.affine_in`), unless
    they are rounded to 16 bits.
    """
    chosen, axis = points(grid), get_method(method).affine_in
    values = grid.get(axis, [])
    affine = _numbers(values) and len(set(values)) > 2
    for other in points({name: those for name, those in grid.items() if name != axis}):
        own = [i for i, point in enumerate(chosen) if {**point, **other} == point]
        if affine:
            low, high = min(values), max(values)
            first, last = (merged(**other, **{axis: end}) for end in (low, high))
            affine = not any(value.dtype in SHORT for value in first.values())
        for i in own:
            share = (chosen[i][axis] - low) / (high - low) if affine else 0.0
            yield i, lerp(first, last, share) if affine else merged(**chosen[i])


def widened(
    grid: Grid,
    score: Callable[[Grid], "pd.DataFrame"],
    bests: Callable[["pd.DataFrame"], list[int]],
) -> "pd.DataFrame":
    """Return the scores of a grid that is continued where it ends at one of its best points.

    Axes of three ascending positive values and more are continued, geometrically, until the best
    points are inner ones, at most four times as often. Shorter ones are left as they are.
    """
    import pandas as pd

    axes = {name: list(values) for name, values in grid.items()}
    table = score(axes)
    for _ in range(4 * len(axes)):
        ends = (_beyond(axes, {n: table[n].tolist()[i] for n in axes}) for i in bests(table))
        further = next(filter(None, ends), None)
        if further is None:
            break
        name, value = further
        table = pd.concat([table, score({**axes, name: [value]})], ignore_index=True)
        axes[name] = sorted([*axes[name], value])
    return table


def _beyond(axes: Grid, best: Mapping[str, Any]) -> tuple[str, float] | None:
    """Return the first axis that ends at the best point and its next value, if any does."""
    for name, values in axes.items():
        if len(values) < 3 or not _numbers(values) or best[name] not in (values[0], values[-1]):
            continue
        end, inner = (values[0], values[1]) if best[name] == values[0] else values[:-3:-1]
        if min(end, inner) <= 0:
            continue
        value = float(f"{end * end / inner:.3g}")
        if name in SHARES:
            value = min(value, 1.0)
        if value != end:
            return name, value
    return None


def _numbers(values: Iterable[Any]) -> bool:
    """Whether all values are numbers, and not texts, lists or mappings."""
    return all(map(is_finite_number, values))
