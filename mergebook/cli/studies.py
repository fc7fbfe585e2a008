"""``mergebook demo``, ``evaluate``, ``measure`` and ``stale``: results and their files."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from mergebook.cli.apps import Model, Seed, SuiteName, app, load_suite_shown
from mergebook.cli.printing import print_comparison, print_frame, save_figure
from mergelib.cli.apps import Device, Settings, read_settings, split_commas

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
    from mergebook.lab.comparison import choose, compare
    from mergebook.lab.grids import GRIDS
    from mergebook.suites.zoo import load_zoo

    loaded = load_suite_shown(suite, seed)
    output.mkdir(parents=True, exist_ok=True)  # fails before the work begins, not after it
    zoo = load_zoo(loaded, device=device)
    settings: dict[str, dict[str, Any]] = {method: {} for method in DEMO}
    if tune:
        settings = {method: choose(zoo, method, GRIDS[method])[0] for method in DEMO}
    table = compare(zoo, settings)
    table.to_csv(output / f"{suite}.csv", index=False)
    save_figure(table, output / f"{suite}.png")
    print_comparison(table, settings)
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
    from mergebook.suites.backbones import load_backbone
    from mergebook.suites.loading import load_suite, usual_model, usual_recipe
    from mergebook.suites.zoo import make_heads
    from mergelib.evaluation.loops import evaluate
    from mergelib.io import load_state_dict

    if usual_recipe(suite) is None:
        raise ValueError(f"heads of {suite} come with its public experts: use measure baselines")
    state = load_state_dict(checkpoint)
    loaded = load_suite(suite, seed=seed)
    backbone = load_backbone(model or usual_model(suite), device)
    heads = make_heads(backbone, loaded)
    table = evaluate(backbone, state, heads, loaded)
    means, totals = table[["accuracy", "loss"]].mean(), table[["correct", "n"]].sum()
    table.loc[len(table)] = {"task": "mean", **means, **totals}
    print_frame(table)


@app.command()
def measure(
    name: Annotated[
        str, typer.Argument(help="A result of mergebook/results.toml, or a study (with --suite).")
    ],
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="The JSON file.", show_default="results/NAME.json"),
    ] = None,
    seeds: Annotated[
        int | None, typer.Option(help="How many seeds.", min=1, show_default="the result's, or 5")
    ] = None,
    first: Annotated[
        int | None, typer.Option(help="The first seed; a file that is there is added to.", min=0)
    ] = None,
    suite: Annotated[
        str | None,
        typer.Option(
            help="A suite; for pairs of networks synthetic, synthetic_positive, digits; spirals.",
            show_default="the result's",
        ),
    ] = None,
    model: Model = None,
    profile: Annotated[
        str | None,
        typer.Option(help="How much data: smoke, default or full.", show_default="default"),
    ] = None,
    tasks: Annotated[
        list[str] | None, typer.Option(help="Some of the suite's tasks.", show_default="all")
    ] = None,
    settings: Settings = None,
    points: Annotated[
        list[str] | None,
        typer.Option(
            "--at",
            help='Further settings to measure at, e.g. --at "learning_rate=1e-3 batch_size=8"; '
            "repeatable, each is a run of its own with every seed.",
        ),
    ] = None,
    backend: Annotated[
        str, typer.Option(help="How runs are spread: serial, joblib or ray.")
    ] = "joblib",
    jobs: Annotated[
        int | None, typer.Option(help="Runs at a time.", show_default="one; with ray all CPUs")
    ] = None,
    device: Device = "cpu",
    any_code: Annotated[
        bool, typer.Option("--any-code", help="Add seeds although the code differs; it is told.")
    ] = False,
) -> None:
    """Measure a result of the book again, or a study on a suite of your choice, with provenance.

    This is the command behind the files in results/. Hyperparameters are chosen on validation
    data. A killed sweep resumes with the runs it was at. An unknown setting is answered with those
    that the study has, and their defaults.

    Examples: mergebook measure glyphs8-baselines;
    mergebook measure ranks --suite glyphs8 --seeds 3 --set rank_ratios=[0.04,0.08] -o r.json
    """
    from mergebook.lab import measuring
    from mergebook.lab.catalogue import planned
    from mergebook.lab.results import read_result, write_result
    from mergebook.lab.runner import REGISTERED

    options: dict[str, Any] = {"profile": profile, "tasks": split_commas(tasks)}
    options = {name: value for name, value in options.items() if value is not None}
    if output is None and (name in REGISTERED or suite or model or options or settings or points):
        raise ValueError("name the file to write, with --output: this is not the book's result")
    output = output or Path("results") / f"{name}.json"
    plan = planned(name, suite)
    start = plan.seeds[0] if first is None else first
    last = start + seeds if seeds else plan.seeds[-1] + 1
    if last <= start:
        raise ValueError(f"{name} has no seed from {start} on: say how many with --seeds")
    plan = replace(
        plan,
        seeds=range(start, last),
        model=model or plan.model,
        options={**plan.options, **options},
        settings={**plan.settings, **read_settings(settings)},
        points=[read_settings(split_settings(text), "--at") for text in points or ()]
        or plan.points,
    )
    record = measuring.measure(plan, device=device, backend=backend, jobs=jobs)  # type: ignore[arg-type]  # checked there
    if first is not None and output.exists():
        record = measuring.append(read_result(output), record, any_code=any_code)
    write_result(output, record)
    typer.echo(f"Wrote {output}, with {len(record['provenance']['seeds'])} seeds")


@app.command()
def stale(
    folder: Annotated[Path, typer.Argument(help="Where result files are.")] = Path("results"),
) -> None:
    """List the results that were measured by other code than today's, and say why.

    A difference in code need not change a number: it is a reason to look, or to measure again.

    Example: mergebook stale results
    """
    from mergebook.lab.catalogue import stale_results

    reasons = stale_results(folder)
    for name, reason in reasons.items():
        typer.echo(f"{name}: {reason}")
    typer.echo(f"{len(reasons)} of {len([*folder.glob('*.json')])} results")


def split_settings(text: str) -> list[str]:
    """Split several ``name=value`` in one text; a value may hold blanks."""
    return re.split(r"\s+(?=\w+=)", text.strip()) if text.strip() else []
