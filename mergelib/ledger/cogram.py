"""The claims of CoGraM (Lenz, 2025), G1–G5, each tested on the files in ``results/``.

Each check is made on both tests of the paper, homogeneous and heterogeneous data, for networks from
common and from own initial weights, on synthetic data and on real digits: 30 seeds each.
"""

from collections.abc import Iterator
from itertools import product

import numpy as np
import pandas as pd
from scipy import stats

from mergelib.ledger import Check, Claim, positive
from mergelib.records.results import load_table

SOURCES = ("synthetic", "digits")
CASES = tuple(product(("homogeneous", "heterogeneous"), ("common", "own")))
FINER = ("layer, neuron", "layer, neuron, weight")


def _runs(study: str) -> Iterator[tuple[str, pd.DataFrame]]:
    """Each case of each source, in words, with its rows; accuracies in per cent."""
    for source in SOURCES:
        table = load_table(f"{source}-{study}")
        scaled = table.columns.str.startswith("accuracy")
        table.loc[:, scaled] *= 100
        for data, start in CASES:
            mine = table[(table["data"] == data) & (table["start"] == start)]
            yield f"{source}, {data}, {start} weights", mine


def _of(table: pd.DataFrame, column: str = "accuracy", **chosen: object) -> pd.Series:
    """One column by seed, of the rows where columns match.

    Raises:
        ValueError: if that is not one row a seed.
    """
    for name, value in chosen.items():
        table = table[table[name] == value]
    if table.empty or table["seed"].duplicated().any():
        raise ValueError(f"{len(table)} rows with {chosen}, expected one a seed")
    return table.set_index("seed")[column]


def _cogram(
    table: pd.DataFrame, kind: str = "arithmetic", levels: str = "layer", iterations: int = 1
) -> pd.Series:
    chosen = {"method": "cogram", "prototypes": kind, "levels": levels}
    return _of(table, **chosen, iterations=iterations)


def _gain() -> list[Check]:
    return [
        positive(
            f"{case}, {kind} prototypes: above Fisher",
            _cogram(table, kind) - _of(table, method="fisher"),
        )
        for case, table in _runs("fusion")
        for kind in ("geometric", "arithmetic")
    ]


def _levels() -> list[Check]:
    checks = []
    for case, table in _runs("fusion"):
        layer = _cogram(table)
        for levels in FINER:
            finer = _cogram(table, levels=levels)
            checks.append(positive(f"{case}: layer above {levels}", layer - finer))
            # squared distances from the mean, so that their mean difference is that of variances
            spread = (finer - finer.mean()) ** 2 - (layer - layer.mean()) ** 2
            what = f"{case}: {levels} varies more than layer"
            checks.append(positive(what, spread, "points²"))
    return checks


def _iterations() -> list[Check]:
    return [
        positive(
            f"{case}, {levels}: 3 iterations above 1",
            _cogram(table, levels=levels, iterations=3) - _cogram(table, levels=levels),
        )
        for case, table in _runs("fusion")
        for levels in ("layer", FINER[-1])
    ]


def _tuning() -> list[Check]:
    checks = []
    for case, table in _runs("tuning"):
        tuned = {
            column: _of(table, column, method="cogram", training="kickoff")
            for column in ("accuracy", "accuracy_a", "accuracy_b")
        }
        for party in ("a", "b"):
            own = _of(table, f"accuracy_{party}", method=party, training="none")
            what = f"{case}: above {party.upper()} on its own kind of data"
            checks.append(positive(what, tuned[f"accuracy_{party}"] - own))
            before = _of(table, method=party, training="none")
            what = f"{case}: above {party.upper()} on all"
            checks.append(positive(what, tuned["accuracy"] - before))
        plain = _of(table, method="cogram", training="fine-tuning")
        what = f"{case}: with kickoff above fine-tuning for as long"
        checks.append(positive(what, tuned["accuracy"] - plain))
        trained = _of(table, method="a", training="fine-tuning")
        what = f"{case}: above A, fine-tuned for as long"
        checks.append(positive(what, tuned["accuracy"] - trained))
    return checks


def _weak() -> list[Check]:
    checks = []
    for case, table in _runs("fusion"):
        merged, fisher = _cogram(table), _of(table, method="fisher")
        strength = (_of(table, method="a") + _of(table, method="b")) / 2
        spread = (merged - merged.mean()) ** 2 - (fisher - fisher.mean()) ** 2
        checks.append(positive(f"{case}: varies more than Fisher", spread, "points²"))
        what = f"{case}: falls further below A and B where these are weak"
        checks.append(_correlation(what, strength - merged, -strength))
    return checks


def _correlation(what: str, first: pd.Series, second: pd.Series) -> Check:
    """Spearman's correlation over seeds, with its 95 % interval (Bonett & Wright, 2000)."""
    value = float(stats.spearmanr(first, second).statistic)
    error = np.sqrt((1 + value**2 / 2) / (len(first) - 3))
    low, high = np.tanh(np.arctanh(value) + np.array([-1, 1]) * stats.norm.ppf(0.975) * error)
    return Check(what, value, float(low), float(high), "Spearman's ρ")


_PAPER = "lenz2025cogram"
_PAGE = "notebooks/31-cogram-experiments"

CLAIMS = (
    Claim(
        "G1",
        _PAPER,
        "Figures 3 and 4",
        "CoGraM lifts a Fisher merge, on homogeneous and on heterogeneous data",
        "clearly superior on average over 30 seeds, in both tests; no numbers in the text",
        "layers only, λ = 5.5, one prototype a class: geometric, as in the paper, and arithmetic",
        _PAGE,
        _gain,
    ),
    Claim(
        "G2",
        _PAPER,
        "Results; Discussion",
        "the level of layers is best; finer levels raise the variance and lower the mean",
        "higher variances and, on average, lower accuracy; no numbers",
        "arithmetic prototypes, thresholds chosen on validation data of other seeds",
        _PAGE,
        _levels,
    ),
    Claim(
        "G3",
        _PAPER,
        "Idea of the Iterative Approach",
        "repeating CoGraM on its own result improves the accuracy further",
        "argued for, no test",
        "3 iterations against 1, arithmetic prototypes",
        _PAGE,
        _iterations,
    ),
    Claim(
        "G4",
        _PAPER,
        "Discussion",
        "a kickoff of 8 epochs and 20 epochs of fine-tuning bring the fused network above both "
        "sub-networks, on each one's data and on both; the kickoff helps",
        "accuracy clearly above that of the sub-networks; no numbers",
        "training on both parties' data; also against 28 epochs at one rate, and against network A "
        "trained on for as long",
        _PAGE,
        _tuning,
    ),
    Claim(
        "G5",
        _PAPER,
        "Results; Discussion",
        "CoGraM varies more over seeds than Fisher, and drops where the sub-networks are weak",
        "a higher standard deviation; drops often on seeds where the sub-networks perform poorly",
        "variances over 30 seeds, and the correlation of CoGraM's distance below the sub-networks "
        "with their weakness",
        _PAGE,
        _weak,
    ),
)
