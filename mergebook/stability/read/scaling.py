"""What the chapter on scaling laws reads off the study `scaling`, by seed, one parameter at a time.

E_G is test loss minus training loss, and E_O the training loss, up to one floor for all.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from mergebook.lab.runner import REGISTERED
from mergebook.lab.statistics import both_intervals, interval, plus_minus
from mergebook.stability.measure.scaling import scaling
from mergebook.stability.theory import bounds
from mergebook.stability.theory.steps import Training

SETTING = ("learning_rate", "batch_size", "share")
USUAL = {name: REGISTERED[scaling.__name__].settings[name] for name in SETTING}
EXAMPLES = 3700  # in the middle of the training sets
PARTS = ("loss", "train_loss", "generalisation")

# Laws of the generalisation error, printed and corrected, beside the sweep.
ANCHOR = 100  # steps where the rate is swept
LAWS = ("printed", "root", "root_loss")
POWERS = np.linspace(-4, 4, 1601)


def apart(table: pd.DataFrame) -> pd.DataFrame:
    """The table with ``generalisation``, E_G, beside ``train_loss``, which is E_O and the floor."""
    return table.assign(generalisation=table["loss"] - table["train_loss"])


def gained(rows: pd.DataFrame, experts: pd.DataFrame) -> pd.DataFrame:
    """What rows differ by from the pretrained model, on the same seed, task and examples."""
    parts, keys = ["accuracy", *PARTS], ["seed", "task", *SETTING]
    start = experts[experts["steps"] == 0].groupby(keys)[parts].first()
    own = start.loc[pd.MultiIndex.from_frame(rows[keys])].to_numpy()
    return rows.assign(**{name: rows[name] - own[:, i] for i, name in enumerate(parts)})


def at(table: pd.DataFrame, **chosen: Any) -> pd.DataFrame:
    """The rows of the usual setting, but for what is chosen."""
    asked = {name: value for name, value in {**USUAL, **chosen}.items() if value is not None}
    return table[np.logical_and.reduce([table[name] == value for name, value in asked.items()])]


def spread(rows: pd.DataFrame, column: str, value: str = "accuracy") -> pd.DataFrame:
    """By seed and task, a column per value, ascending; high is good: per cent, or minus a loss."""
    wide = rows.groupby(["seed", "task", column])[value].mean().unstack(column)
    if wide.empty or wide.isna().any(axis=None):
        raise ValueError(f"not every seed and task was measured at every {column}")
    return wide * _sign(value)


def _sign(value: str) -> int:
    return 100 if "accuracy" in value else -1


def chosen_elsewhere(wide: pd.DataFrame, among: Sequence[Any]) -> dict[Any, Any]:
    """For every seed the column that is best on average in the others: seed to column."""
    means = wide.groupby("seed").mean()[list(among)]
    return {seed: means.drop(seed).mean().idxmax() for seed in means.index}


def taken(wide: pd.DataFrame, choice: Mapping[Any, Any]) -> pd.Series:
    """What stands in each seed's chosen column, indexed as ``wide``."""
    parts: list[pd.Series] = [wide.loc[[seed], column] for seed, column in choice.items()]
    return pd.Series(pd.concat(parts))


def difference(values: pd.Series) -> tuple[float, float]:
    """Mean and half width of Student's 95 % interval over seeds, of values by seed and task."""
    return interval(values.groupby("seed").mean().tolist())


def told(values: pd.Series, digits: int = 1) -> str:
    """A `difference` to read."""
    return plus_minus(*difference(values), digits)


def curve(rows: pd.DataFrame, column: str, value: str = "accuracy") -> pd.DataFrame:
    """``mean`` and ``half_width`` over seeds (NaN of one) against a column, which is the index."""
    wide = abs(_sign(value)) / _sign(value) * spread(rows, column, value)
    if rows["seed"].nunique() == 1:
        return pd.DataFrame({"mean": wide.mean(), "half_width": np.nan})
    found = [difference(wide[name]) for name in wide]
    return pd.DataFrame(found, index=wide.columns, columns=["mean", "half_width"])


def changes(rows: pd.DataFrame, first: Mapping[str, Any], last: Mapping[str, Any]) -> pd.DataFrame:
    """`both_intervals` of the change in each of `PARTS` between two settings, in nats."""
    ends = {"first": at(rows, **first), "last": at(rows, **last)}
    table = pd.concat([each.assign(method=name) for name, each in ends.items()])
    both = table.groupby(["method", "seed", "task"])[[*PARTS]].mean().reset_index()
    return pd.concat([both_intervals(both, {part: ("last", "first")}, part) for part in PARTS])


def plan_of(setting: Mapping[Any, Any], tasks: int) -> Training:
    """The training of a merge of the study, as the bounds take it."""
    steps, rate, batch = (setting[name] for name in ("steps", "learning_rate", "batch_size"))
    return Training.alike(tasks, steps, rate, batch, round(EXAMPLES * setting["share"]))


def agreement(merged: pd.DataFrame, method: str, value: str = "accuracy") -> pd.Series:
    """How often a method and the average change in the same direction, in per cent, by seed.

    One step of one parameter at a time; where one of the two does not change counts as a half.
    """
    groups = merged.loc[merged["method"] == method, "group"].unique()
    part = merged[merged["group"].isin(groups)]
    steps: dict[str, list[pd.DataFrame]] = {method: [], "average": []}
    for column, chosen in sweeps(merged).items():
        for name, found in steps.items():
            means = spread(at(part, method=name, **chosen), column, value)
            found.append(means.groupby("seed").mean().diff(axis=1).iloc[:, 1:])
    first, second = (np.sign(pd.concat(found, axis=1).to_numpy()) for found in steps.values())
    seeds = sorted(merged["seed"].unique())
    return pd.Series(100 * (1 + first * second).mean(1) / 2, index=seeds)


def sweeps(merged: pd.DataFrame) -> dict[str, dict[str, Any]]:
    """By parameter, for `at`: itself as None, at the most steps that all its values have."""
    found: dict[str, dict[str, Any]] = {"steps": {"steps": None}}
    for name in SETTING:
        rows = at(merged, method="average", **{name: None})
        counts = rows.groupby(name)["steps"].agg(set)
        found[name] = {name: None, "steps": max(set.intersection(*counts))}
    return found


def shared_tasks(counts: pd.DataFrame, method: str, value: str = "accuracy") -> pd.DataFrame:
    """Means over the tasks that even the smallest merge holds, by seed and count."""
    rows = counts[counts["method"] == method]
    first = rows[rows["count"] == rows["count"].min()][["seed", "task"]]
    return rows.merge(first).pivot_table(index="seed", columns="count", values=value) * _sign(value)


def slopes(counts: pd.DataFrame, method: str, value: str = "accuracy") -> pd.Series:
    """How a method's lead over the average grows per doubling of the number of tasks, by seed."""
    means = counts.groupby(["method", "count", "seed"])[value].mean() * _sign(value)
    lead = (means[method] - means["average"]).unstack("count")
    doublings = np.log2(lead.columns.to_numpy(dtype=float))
    fitted = np.polyfit(doublings, lead.to_numpy().T, 1)[0]
    return pd.Series(fitted, index=lead.index)


def stabilities(setting: Mapping[str, Any], known: bounds.Losses) -> tuple[float, float]:
    """An expert's stability s by Lemma 3, and by `bounds.local_stability` for convex losses."""
    plan = plan_of(setting, 1)
    printed = bounds.printed_local_stability(known, plan)
    return float(printed), float(bounds.local_stability(known, plan, convex=True))


def beside_theory(
    averages: pd.DataFrame, experts: pd.DataFrame, known: bounds.Losses
) -> dict[str, pd.DataFrame]:
    """E_G of the average against every parameter, and what the bounds make of it.

    ``mean`` and ``half_width`` are nats above the pretrained model. `LAWS` have one factor each,
    fitted by least squares at the usual rate: ``printed``, Lemma 3; ``root``, √s, as in √(S·V) at
    the same V; ``root_loss``, √(s·f) with the training loss f, as V ≤ 2Lf.
    """
    gains, tables = gained(averages, experts), {}
    for column, varied in sweeps(gains).items():
        table = curve(at(gains, **varied), column, "generalisation")
        loss = at(averages, **varied).groupby(column)["train_loss"].mean()
        usual = {**USUAL, "steps": varied["steps"] or ANCHOR}
        pairs = [stabilities({**usual, column: value}, known) for value in table.index]
        printed, moved = np.array(pairs).T
        roots = {"root": moved**0.5, "root_loss": (moved * loss) ** 0.5}
        tables[column] = table.assign(printed=printed, **roots)
    fitted = pd.concat([table for column, table in tables.items() if column != "learning_rate"])
    for law in LAWS:
        values = fitted[law].to_numpy(dtype=float)
        factor = float(fitted["mean"].to_numpy() @ values) / float(values @ values)
        for table in tables.values():
            table[law] *= factor
    return tables


def exponents(gains: pd.DataFrame, tables: Mapping[str, pd.DataFrame]) -> pd.DataFrame:
    """The powers of E_G and of its laws by parameter; half widths are by a jackknife over seeds."""
    rows = {}
    for column, varied in sweeps(gains).items():
        if column == "learning_rate":
            continue
        parts = spread(at(gains, **varied), column, "generalisation")
        wide = -parts.groupby("seed").mean()
        whole = _power(wide.mean())
        left_out = [_power(wide.drop(seed).mean()) for seed in wide.index]
        pseudo = [len(wide) * whole - (len(wide) - 1) * part for part in left_out]
        laws = {law: _power(tables[column][law]) for law in LAWS}
        rows[column] = {"measured": whole, "half_width": interval(pseudo)[1], **laws}
    return pd.DataFrame(rows).T


def _power(values: pd.Series) -> float:
    """The power p of the least squares fit a·x^p to values, x being their index."""
    x = values.index.to_numpy(dtype=float)
    powers = (x / x.mean()) ** POWERS[:, None]
    factors = powers @ values.to_numpy() / (powers**2).sum(1)
    misfit = ((values.to_numpy() - factors[:, None] * powers) ** 2).sum(1)
    return float(POWERS[misfit.argmin()])
