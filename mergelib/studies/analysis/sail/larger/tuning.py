"""Goals and tuned rates of larger networks, read from the results of ``starts_tuning``."""

from collections import defaultdict
from functools import cache
from statistics import median

import pandas as pd
import torch

from mergelib.records.results import load_table
from mergelib.sail.retraining import goals_of
from mergelib.studies.papers.sail.larger.rates import Rates

TEXT = "tinyshakespeare-starts_tuning"
RESULTS = (
    *(TEXT, "vision8-starts_tuning"),
    *(f"vision14-starts_tuning{part}" for part in ("", "-probed", "-byol")),
)
BUDGETS = {  # steps of the runs whose goals these are, where tuning had another number
    "GPT": 1000
}
LATE = {"late": 0.5}  # of the steps of the nearest source, which no source has at its start
CHOSEN_AT = (300, 600)  # steps after which GPTs' rates are compared: where the goals are
_CELL = ["modality", "size", "target"]
_RATES = list(Rates._fields)


def tuned() -> pd.DataFrame:
    """All curves on tuning seeds; texts have the modality ``GPT`` and no target."""
    rows = pd.concat([load_table(name, "curves") for name in RESULTS], ignore_index=True)
    missing = {"modality": "GPT", "target": ""}
    filled: pd.DataFrame = rows.assign(
        **{key: rows[key].fillna(word) if key in rows else word for key, word in missing.items()}
    )
    return filled


def grid(curves: pd.DataFrame) -> pd.DataFrame:
    """Mean ``choose`` loss at the steps `CHOSEN_AT` for every size, arm and rates of GPTs."""
    own = curves[(curves["modality"] == "GPT") & curves["step"].isin(CHOSEN_AT)]
    return own.groupby(["size", "arm", *_RATES], as_index=False)["choose"].mean()


def best_rates(curves: pd.DataFrame, size: str, arm: str) -> Rates:
    """Return the rates of a GPT's arm with the least loss in its `grid`."""
    table = grid(curves)
    own = table[(table["size"] == size) & (table["arm"] == arm)]
    return Rates(*(float(own.loc[own["choose"].idxmin(), name]) for name in _RATES))


@cache
def goals() -> dict[tuple[str, str, str], dict[str, float]]:
    """Goals in nats by modality, size and target: medians over tuning seeds, see `goals_of`.

    ``easy`` and ``hard`` are from scratch, of GPTs at its best rate and scale; ``late`` (GPTs) is
    what the nearest source has half-way.
    """
    curves = tuned()
    found: dict[tuple[str, str, str], dict[str, list[float]]] = {}
    for (modality, size, target), cell in curves.groupby(_CELL):
        losses = found.setdefault((modality, size, target), defaultdict(list))
        arms = {"scratch": {}, "nearest source": LATE}
        if modality == "GPT":
            arms = {"scratch, tuned": {}, "nearest source": LATE}
        for arm, fractions in arms.items():
            rows = cell[cell["arm"] == arm]
            if modality == "GPT":
                kept = best_rates(curves, size, arm)
                rows = rows[(rows[_RATES] == pd.Series(kept._asdict())).all(axis=1)]
            for _, run in rows.sort_values("step").groupby("seed"):
                steps, values = run["step"].tolist(), torch.tensor(run["judge"].to_numpy())
                budget = steps[-1] if fractions else BUDGETS.get(modality, steps[-1])
                options = {"fractions": fractions} if fractions else {}
                for name, loss in goals_of(steps, values, budget, **options).items():
                    losses[name].append(float(loss))
    return {
        cell: {name: median(values) for name, values in losses.items()}
        for cell, losses in found.items()
    }


def goals_for(modality: str, size: str, target: str = "") -> dict[str, float]:
    """Return the losses that arms are to reach, in nats, by their names.

    Raises:
        ValueError: for a cell whose scratch was not trained on tuning seeds.
    """
    known = goals()
    if (modality, size, target) not in known:
        cell = ", ".join(filter(None, (modality, size, target)))
        raise ValueError(
            f"no goals are known for {cell}: measure scratch with the study starts_tuning on seeds "
            "from 1000, and name its result in mergelib.studies.analysis.sail.larger.tuning"
        )
    return known[modality, size, target]
