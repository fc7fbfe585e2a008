"""The laboratory's command line: the demo, suites and experts, studies and their results."""

import math
import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from mergelib.cli import printing, run
from mergelib.cli.apps import Device, Settings, read_settings, root, split_commas

if TYPE_CHECKING:
    import pandas as pd

    from mergelib.evaluation.tasks import Suite

DEMO = ("average", "task_arithmetic", "ties", "cart")

app = typer.Typer(
    help="Measure what merging keeps: the experiments of the book.",
    epilog="Start with: mergebook demo",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
zoo_app = typer.Typer(help="Backbones and fine-tuned experts to merge.", no_args_is_help=True)
data_app = typer.Typer(help="Image sets of the vision suites.", no_args_is_help=True)
app.add_typer(zoo_app, name="zoo")
app.add_typer(data_app, name="data")

app.callback()(root)  # its --version is the library's

SuiteName = Annotated[
    str,
    typer.Option(
        "--suite",
        help="digits2, glyphs8/14/20 (nothing to download), vision8/14/20, imagenet8/14/20, "
        "lite8, text4, sentences8 or clip8/14/20.",
    ),
]
Seed = Annotated[int, typer.Option(help="Draws splits, heads and the order of training.")]
Model = Annotated[
    str | None,
    typer.Option(
        help="vit, vit_small, resnet18, resnet18_strided, resnet18_narrow, mlp; "
        "efficientnet_lite0 for imagenet8/14/20, lite0_imagenet or lite0_small for lite8; "
        "gpt for text4, minilm for sentences8; "
        "clip-vit-base-patch32, clip-vit-large-patch14 or a CLIP's folder for clip8/14/20.",
        show_default="the usual one",
    ),
]


def main() -> None:
    """Entry point of ``mergebook``."""
    run(app, "mergebook")


def load_suite_shown(name: str, seed: int) -> "Suite":
    """A suite, loaded under a spinner."""
    from mergebook.suites.loading import load_suite

    with printing.console.status(f"loading {name}"):
        return load_suite(name, seed=seed)


def print_comparison(table: "pd.DataFrame", settings: dict[str, dict[str, Any]]) -> None:
    """A column a method: accuracy per task in per cent, the means, and what merging cost."""
    from mergebook.plots import label

    tight: dict[str, Any] = {"show_edge": False, "pad_edge": False, "padding": (0, 0, 0, 1)}
    shown = Table(header_style="bold", title="test accuracy, %", **tight)
    shown.add_column("task", no_wrap=True)
    for method in table["method"].unique():
        shown.add_column(label(method), justify="right")
    for task, own in table.groupby("task", sort=False):
        shown.add_row(str(task), *(f"{100 * value:.1f}" for value in own["accuracy"]))
    shown.add_section()
    lines = {
        "accuracy": ("mean", 100, ".1f"),
        "normalised": ("normalised", 100, ".1f"),
        "seconds": ("seconds to merge", 1, ".2f"),
        "peak_bytes": ("peak MB", 1e-6, ".0f"),
    }
    means = table.groupby("method", sort=False)[[*lines]].mean()
    for column, (name, unit, form) in lines.items():
        cells = (unit * value for value in means[column])
        shown.add_row(name, *("" if math.isnan(value) else f"{value:{form}}" for value in cells))
    printing.console.print(shown)
    for method, options in settings.items():
        if options:
            typer.echo(f"{label(method)}: {', '.join(f'{k}={v}' for k, v in options.items())}")


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

    Writes TABLE.csv and FIGURE.png, named after the suite. The experts are cached.
    """
    import matplotlib as mpl

    from mergebook import plots
    from mergebook.lab.comparison import best_of, compare
    from mergebook.lab.grids import GRIDS
    from mergebook.suites.zoo import load_zoo

    loaded = load_suite_shown(suite, seed)
    output.mkdir(parents=True, exist_ok=True)  # fails before the work begins, not after it
    zoo = load_zoo(loaded, device=device)
    grids = {method: GRIDS[method] if tune else {} for method in DEMO}
    settings = {name: best_of(zoo, name, grid, autocast=False) for name, grid in grids.items()}
    table = compare(zoo, settings)
    table.to_csv(output / f"{suite}.csv", index=False)
    mpl.use("Agg")
    with mpl.rc_context():
        plots.use_style()
        plots.accuracy_by_task(table).savefig(output / f"{suite}.png", dpi=150)
    print_comparison(table, settings)
    typer.echo(f"Wrote {output / suite}.csv and {output / suite}.png")


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
        int | None, typer.Option(help="The first seed.", min=0, show_default="the result's")
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
    jobs: Annotated[int, typer.Option(help="Runs at a time.", min=1)] = 1,
    device: Device = "cpu",
) -> None:
    """Measure a result of the book again, or a study on a suite of your choice, with provenance.

    This is the command behind the files in results/. Hyperparameters are chosen on validation
    data. A sweep that was stopped resumes where it was. An unknown setting is refused, and the
    study's own settings are listed with their defaults.

    Examples: mergebook measure glyphs8-baselines;
    mergebook measure ranks --suite glyphs8 --seeds 3 --set rank_ratios=[0.04,0.08] -o r.json
    """
    from mergebook.lab import measuring
    from mergebook.lab.catalogue import planned
    from mergebook.lab.results import write_result
    from mergebook.lab.runner import REGISTERED

    given = {"profile": profile, "tasks": split_commas(tasks)}
    options = {name: value for name, value in given.items() if value is not None}
    changed = suite or model or options or settings or points or first is not None
    if output is None and (name in REGISTERED or changed):
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
    record = measuring.measure(plan, device=device, jobs=jobs)
    write_result(output, record)
    typer.echo(f"Wrote {output}, with {len(record['provenance']['seeds'])} seeds")


def split_settings(text: str) -> list[str]:
    """Split several ``name=value`` in one text; a value may hold blanks."""
    return re.split(r"\s+(?=\w+=)", text.strip()) if text.strip() else []


@zoo_app.command("build")
def zoo_build(
    suite: SuiteName = "glyphs8", seed: Seed = 0, model: Model = None, device: Device = "cpu"
) -> None:
    """Fine-tune the experts of a suite into the cache, and print their paths."""
    from mergebook.suites.zoo import load_zoo

    zoo = load_zoo(load_suite_shown(suite, seed), model=model, device=device)
    for task, file in zoo.files.items():
        typer.echo(f"{task}\t{file}")


@zoo_app.command("pretrain")
def zoo_pretrain(
    output: Annotated[Path, typer.Option("--output", "-o", help="The .safetensors file to write.")],
    model: Annotated[str, typer.Option(help="Which model, e.g. vit, vit_small or gpt.")] = "vit",
    epochs: Annotated[
        int | None, typer.Option(help="Passes over the data.", min=1, show_default="the usual")
    ] = None,
    seed: Seed = 0,
    device: Device = "cpu",
) -> None:
    """Pretrain a backbone as the shipped ones were: half an hour on two cores.

    Uses tiny_imagenet32 and omniglot_small from the data folder where they are, and rendered
    scripts, or wikitext2_valid for the language model; none of them is a task of a suite.
    """
    from mergebook.suites.backbones import write_backbone

    write_backbone(output, model, epochs=epochs, seed=seed, device=device)
    typer.echo(f"Wrote {output} and {output.with_suffix('.json')}")


@data_app.command("list")
def data_list() -> None:
    """List the known image sets and where each was found."""
    from mergebook.suites.data.prepared import CATALOGUE, find_file

    for name, entry in CATALOGUE.items():
        cells = (name, entry["what"], f"{entry['classes']} classes", entry["licence"])
        typer.echo("\t".join([*cells, str(find_file(name) or "-")]))


@data_app.command("prepare")
def data_prepare(
    names: Annotated[list[str], typer.Argument(help="Image sets; see: mergebook data list")],
) -> None:
    """Download image sets through torchvision and prepare them in the cache."""
    from mergebook.suites.data.prepared import prepare

    for name in names:
        typer.echo(f"{name}\t{prepare(name)}")
