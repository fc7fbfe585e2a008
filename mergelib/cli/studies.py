"""``mergelib demo``, ``evaluate`` and ``study``: what is measured on a suite."""

from pathlib import Path
from typing import Annotated, Any

import typer

from mergelib.cli import printing
from mergelib.cli.apps import Device, Model, Seed, SuiteName, app, load_suite_shown

DEMO = ("average", "task_arithmetic", "ties", "cart")


@app.command()
def demo(
    suite: SuiteName = "glyphs8",
    seed: Seed = 0,
    tune: Annotated[
        bool, typer.Option(help="Choose scales and ranks on validation data (a minute more).")
    ] = False,
    output: Annotated[
        Path, typer.Option(help="Folder for the table (CSV) and the figure (PNG).")
    ] = Path("mergelib-demo"),
    device: Device = "cpu",
) -> None:
    """Fine-tune experts from the shipped backbone, merge them four ways, and compare.

    Writes TABLE.csv and FIGURE.png, named after the suite. The experts are cached: a second run
    only merges and evaluates.
    """
    from mergelib.studies.comparison import GRIDS, choose, compare
    from mergelib.testbed.zoo import load_zoo

    loaded = load_suite_shown(suite, seed)
    output.mkdir(parents=True, exist_ok=True)  # before the work, lest it be in vain
    zoo = load_zoo(loaded, device=device)
    settings: dict[str, dict[str, Any]] = {method: {} for method in DEMO}
    if tune:
        settings = {method: choose(zoo, method, GRIDS[method])[0] for method in DEMO}
    table = compare(zoo, settings)
    table.to_csv(output / f"{suite}.csv", index=False)
    printing.save_figure(table, output / f"{suite}.png")
    printing.print_comparison(table, settings)
    typer.echo(f"Wrote {output / suite}.csv and {output / suite}.png")


@app.command("evaluate")
def evaluate_command(
    checkpoint: Annotated[Path, typer.Argument(help="Backbone weights: .safetensors or .pt")],
    suite: SuiteName = "glyphs8",
    seed: Seed = 0,
    model: Model = None,
    device: Device = "cpu",
) -> None:
    """Evaluate backbone weights on every task of a suite, under its frozen few-shot heads."""
    from mergelib.io import load_state_dict
    from mergelib.testbed.evaluation import evaluate
    from mergelib.testbed.suites import load_suite, usual_model
    from mergelib.testbed.training import Recipe
    from mergelib.testbed.zoo import load_backbone, make_heads

    if suite.startswith("clip"):
        raise ValueError("evaluate knows heads from examples only: use study baselines for clip")
    state = load_state_dict(checkpoint)
    loaded = load_suite(suite, seed=seed)
    backbone = load_backbone(model or usual_model(suite), device)
    heads = make_heads(backbone, loaded, Recipe(), seed)
    table = evaluate(backbone, state, heads, loaded)
    means, totals = table[["accuracy", "loss"]].mean(), table[["correct", "n"]].sum()
    table.loc[len(table)] = {"task": "mean", **means, **totals}
    printing.print_frame(table)


@app.command()
def study(
    name: Annotated[str, typer.Argument(help="What to measure; see mergelib.studies.runner.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="The JSON file to write.")],
    suite: SuiteName = "vision8",
    seeds: Annotated[int, typer.Option(help="How many seeds.", min=1)] = 5,
    first: Annotated[int, typer.Option(help="The first seed.", min=0)] = 0,
    model: Model = None,
    device: Device = "cpu",
) -> None:
    """Measure over several seeds, with provenance: baselines, ranks, task_counts and others.

    This is the command behind the files in results/. Hyperparameters are chosen on validation
    data. A killed run resumes with the seed it was at. The studies of pairs, fusion, thresholds
    and tuning, take --suite synthetic or digits.
    """
    from mergelib.studies.results import write_result
    from mergelib.studies.runner import PAIR_STUDIES, STUDIES, measure_pairs, measure_study

    repeats = range(first, first + seeds)
    if name in PAIR_STUDIES:
        record = measure_pairs(PAIR_STUDIES[name], repeats, suite)
    elif name in STUDIES:
        record = measure_study(STUDIES[name], suite, repeats, model=model, device=device)
    else:
        raise ValueError(f"unknown study {name!r}; known: {', '.join([*STUDIES, *PAIR_STUDIES])}")
    write_result(output, record)
    typer.echo(f"Wrote {output}")
