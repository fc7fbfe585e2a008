"""How often the ledger's intervals and verdicts are wrong when nothing is there to be found.

Tables of seeds and tasks are drawn whose true mean is zero, so that every interval that excludes
zero is an error. A test at 5 % should be wrong in 5 % of them. The rules that the ledger had
before, a percentile bootstrap over seeds and tasks and Pitman and Morgan's test of spreads, stand
beside its present ones.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from scipy import stats

from mergebook.lab.results import write_result
from mergebook.lab.statistics import crossed, log_ratio_of_spreads
from mergebook.ledger import Check, outcomes, verdict
from mergebook.suites.provenance import provenance
from mergelib.progress import progress

SHAPES = ((3, 4), (3, 8), (3, 20), (5, 4), (5, 8), (5, 20))
# Standard deviations of seed, task and residual; the first is what our own tables look like.
EFFECTS = {
    "tasks differ most": (0.4, 3.0, 1.5),
    "seeds differ most": (3.0, 0.4, 1.5),
    "all differ alike": (1.0, 1.0, 1.0),
    "only noise": (0.0, 0.0, 1.0),
}
OUTLIER = "one task differs much"  # by ten standard deviations of the others
SAMPLES: Mapping[str, Callable[[np.random.Generator, tuple[int, ...]], np.ndarray]] = {
    "normal": lambda random, shape: random.normal(size=shape),
    "Laplace": lambda random, shape: random.laplace(size=shape),
    "exponential": lambda random, shape: random.exponential(size=shape),
}
LEVEL = 0.05


def tables(
    random: np.random.Generator, kind: str, shape: tuple[int, int], count: int
) -> np.ndarray:
    """Tables with mean zero, shape ``(count, seeds, tasks)``."""
    seeds, tasks = shape
    of_seed, of_task, residual = EFFECTS.get(kind, (0.4, 1.0, 1.5))
    by_task = of_task * random.normal(size=(count, 1, tasks))
    if kind == OUTLIER:
        by_task[:, 0, 0] += random.choice([-10.0, 10.0], size=count)
    values = of_seed * random.normal(size=(count, seeds, 1)) + by_task
    return np.asarray(values + residual * random.normal(size=(count, seeds, tasks)))


def bootstrap_misses(random: np.random.Generator, values: np.ndarray, draws: int = 1000) -> float:
    """Fraction of tables whose percentile interval, or Student's over seeds, excludes zero in both.

    The wider of the two decided in the ledger's former rule.
    """
    count, seeds, tasks = values.shape
    missed = 0
    for table in values:
        rows = random.multinomial(seeds, np.full(seeds, 1 / seeds), size=draws) / seeds
        columns = random.multinomial(tasks, np.full(tasks, 1 / tasks), size=draws) / tasks
        low, high = np.quantile(((rows @ table) * columns).sum(1), [LEVEL / 2, 1 - LEVEL / 2])
        student = stats.ttest_1samp(table.mean(1), 0).pvalue < LEVEL
        missed += bool(student and (low > 0 or high < 0))
    return float(missed / count)


def interval_rows(random: np.random.Generator, count: int) -> list[dict[str, Any]]:
    """Error rates of intervals of a mean, one row per rule, shape and kind of table."""
    rows = []
    for kind in progress((*EFFECTS, OUTLIER)):
        for shape in SHAPES:
            values = tables(random, kind, shape, count)
            errors = {
                "crossed model": np.mean([_p(crossed(table)) < LEVEL for table in values]),
                "Student over seeds": np.mean(
                    stats.ttest_1samp(values.mean(2), 0, axis=1).pvalue < LEVEL
                ),
                "bootstrap (before)": bootstrap_misses(random, values[: max(2, count // 10)]),
            }
            rows += [
                {
                    "rule": rule,
                    "kind": kind,
                    "seeds": shape[0],
                    "tasks": shape[1],
                    "error": float(e),
                }
                for rule, e in errors.items()
            ]
    return rows


def _p(estimate: Any) -> float:
    return 2 * float(min(estimate.one_sided(0.0)))


def spread_rows(random: np.random.Generator, count: int) -> list[dict[str, Any]]:
    """Error rates of two tests of equal spread, for uncorrelated pairs of one distribution."""
    rows = []
    for kind, draw in SAMPLES.items():
        for pairs in (5, 10, 30):
            first, second = draw(random, (2, count, pairs))
            ratio = [
                _p(log_ratio_of_spreads(*both)) < LEVEL for both in zip(first, second, strict=True)
            ]
            morgan = stats.pearsonr(first + second, first - second, axis=1).pvalue < LEVEL
            for rule, missed in (
                ("mean absolute deviations", ratio),
                ("Pitman and Morgan (before)", morgan),
            ):
                rows.append({"rule": rule, "kind": kind, "pairs": pairs, "error": np.mean(missed)})
    return rows


def verdict_rows(random: np.random.Generator, count: int) -> list[dict[str, Any]]:
    """Verdicts on claims of six checks: some are true by far, for the others nothing is there."""
    rows = []
    for true in (0, 5, 6):
        lead = 20.0 * (np.arange(6) < true)
        found: dict[str, int] = {}
        for _ in range(count):
            values = tables(random, "tasks differ most", (5, 8), 6) + lead[:, None, None]
            shown = outcomes([Check("", each) for each in values])
            name = verdict([result.shown for result in shown])
            found[name] = found.get(name, 0) + 1
        rows += [
            {"true": true, "verdict": name, "fraction": times / count}
            for name, times in sorted(found.items())
        ]
    return rows


def main(
    output: Annotated[Path, typer.Option("--output", "-o", help="The JSON file to write.")] = Path(
        "results/error-rates.json"
    ),
    count: Annotated[int, typer.Option(min=2, help="Tables of each kind.")] = 10_000,
    seed: Annotated[int, typer.Option()] = 0,
) -> None:
    """Simulate tables without an effect, and count how often each rule finds one."""
    random = np.random.default_rng(seed)
    record: dict[str, Any] = {
        "provenance": {
            **provenance(),
            "command": f"python -m benchmarks.error_rates --count {count} --seed {seed}",
        },
        "count": count,
        "intervals": interval_rows(random, count),
        "spreads": spread_rows(random, count),
        "verdicts": verdict_rows(random, max(2, count // 10)),
    }
    write_result(output, record)
    for row in record["intervals"]:
        print(
            f"{row['kind']:22} {row['seeds']} x {row['tasks']:2} {row['rule']:20} "
            f"{row['error']:.3f}"
        )


if __name__ == "__main__":
    typer.run(main)
