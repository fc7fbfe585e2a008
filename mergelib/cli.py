"""The command line: ``mergelib demo``, ``methods``, ``merge``, ``evaluate``, ``zoo``, ``data``."""

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    import pandas as pd

    from mergelib.testbed.suites import Suite

app = typer.Typer(
    help="Merge fine-tuned models, and measure what merging keeps.",
    epilog="Start with: mergelib demo",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
zoo_app = typer.Typer(help="Backbones and fine-tuned experts to merge.", no_args_is_help=True)
data_app = typer.Typer(help="Image sets of the vision suites.", no_args_is_help=True)
app.add_typer(zoo_app, name="zoo")
app.add_typer(data_app, name="data")
console = Console()


def _usable(device: str) -> str:
    import torch

    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:  # the latter where PyTorch has no CUDA
        raise ValueError(f"device {device!r} cannot be used: {error}") from None
    return device


SuiteName = Annotated[
    str,
    typer.Option(
        "--suite",
        help="digits2, glyphs8/14/20 (nothing to download), vision8/14/20, text4 or clip8/14/20.",
    ),
]
Seed = Annotated[int, typer.Option(help="Draws splits, heads and the order of training.")]
Device = Annotated[
    str,
    typer.Option(help="Where to compute: cpu, cuda, cuda:1 …", callback=_usable),
]
Model = Annotated[
    str | None,
    typer.Option(
        help="vit, vit_small, vit_large, resnet18, mlp; gpt for texts; clip-vit-base-patch32, "
        "clip-vit-large-patch14 or a CLIP's folder for clip8/14/20.",
        show_default="the usual one",
    ),
]

DEMO = ("average", "task_arithmetic", "ties", "cart")


def main() -> None:
    """Entry point: errors that a user can mend are one line and status 1, no traceback."""
    try:
        app()
    except (ValueError, TypeError, OSError, FloatingPointError) as error:
        print(f"mergelib: {' '.join(str(error).split())}", file=sys.stderr)
        sys.exit(1)


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
    from mergelib.testbed.comparison import GRIDS, choose, compare
    from mergelib.testbed.zoo import load_zoo

    loaded = _suite(suite, seed)
    output.mkdir(parents=True, exist_ok=True)  # before the work, lest it be in vain
    zoo = load_zoo(loaded, device=device)
    settings: dict[str, dict[str, Any]] = {method: {} for method in DEMO}
    if tune:
        settings = {method: choose(zoo, method, GRIDS[method])[0] for method in DEMO}
    table = compare(zoo, settings)
    table.to_csv(output / f"{suite}.csv", index=False)
    _save_figure(table, output / f"{suite}.png")
    _print_comparison(table, settings)
    typer.echo(f"Wrote {output / suite}.csv and {output / suite}.png")


@app.command("methods")
def list_methods() -> None:
    """List the merging methods with their hyperparameters and defaults."""
    from mergelib.registry import methods

    for name, row in methods().iterrows():
        console.print(f"[bold]{name}[/bold]  needs {row['needs']}", highlight=False)
        console.print(f"    {row['what it does']}", highlight=False)
        console.print(f"    {row['hyperparameters']}", style="dim", highlight=False)


@app.command("merge")
def merge_command(
    method: Annotated[str, typer.Argument(help="A method's name; see: mergelib methods")],
    experts: Annotated[
        list[Path],
        typer.Argument(help="Fine-tuned models: .safetensors files or folders, .pt files."),
    ],
    output: Annotated[
        Path, typer.Option("--output", "-o", help="Where to write the merged model.")
    ],
    pretrained: Annotated[
        Path | None, typer.Option("--pretrained", "-p", help="The model they were fine-tuned from.")
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", "-s", help="A hyperparameter, e.g. --set scale=0.4; repeatable."),
    ] = None,
    device: Device = "cpu",
    overwrite: Annotated[bool, typer.Option(help="Replace an output that exists.")] = False,
) -> None:
    """Merge model files, streaming tensor by tensor (the models need not fit into memory).

    Example: mergelib merge ties a.safetensors b.safetensors -p base.safetensors -o out.safetensors
    --set density=0.2
    """
    from mergelib import merge_files

    hyperparameters = dict(_setting(text) for text in settings or [])
    written = merge_files(
        method, pretrained, experts, output, device=device, overwrite=overwrite, **hyperparameters
    )
    typer.echo(f"Wrote {written}")


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
    _print_frame(table)


@app.command()
def study(
    name: Annotated[str, typer.Argument(help="What to measure; see mergelib.testbed.studies.")],
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
    from mergelib.provenance import write_result
    from mergelib.testbed.studies import PAIR_STUDIES, STUDIES, measure_pairs, measure_study

    repeats = range(first, first + seeds)
    if name in PAIR_STUDIES:
        record = measure_pairs(PAIR_STUDIES[name], repeats, suite)
    elif name in STUDIES:
        record = measure_study(STUDIES[name], suite, repeats, model=model, device=device)
    else:
        raise ValueError(f"unknown study {name!r}; known: {', '.join([*STUDIES, *PAIR_STUDIES])}")
    write_result(output, record)
    typer.echo(f"Wrote {output}")


@zoo_app.command("build")
def zoo_build(
    suite: SuiteName = "glyphs8", seed: Seed = 0, model: Model = None, device: Device = "cpu"
) -> None:
    """Fine-tune the experts of a suite into the cache, and tell where they lie."""
    from mergelib.testbed.zoo import load_zoo

    zoo = load_zoo(_suite(suite, seed), model=model, device=device)
    for task, file in zoo.files.items():
        typer.echo(f"{task}\t{file}")


@zoo_app.command("pretrain")
def zoo_pretrain(
    output: Annotated[Path, typer.Option("--output", "-o", help="The .safetensors file to write.")],
    model: Annotated[str, typer.Option(help="Which model, e.g. vit, vit_small or gpt.")] = "vit",
    seed: Seed = 0,
    device: Device = "cpu",
) -> None:
    """Pretrain a backbone as the shipped one was: half an hour on two cores.

    Uses tiny_imagenet32 and omniglot_small from the data folder where they are, and rendered
    scripts, or wikitext2_valid for the language model; none of them is a task of a suite.
    """
    from mergelib.testbed.pretraining import write_backbone
    from mergelib.testbed.suites import pretraining_sets, pretraining_texts

    sets = pretraining_texts() if model == "gpt" else pretraining_sets()
    write_backbone(output, model, sets, seed=seed, device=device)
    typer.echo(f"Wrote {output} and {output.with_suffix('.json')}")


@data_app.command("list")
def data_list() -> None:
    """List the known image sets and where each was found."""
    import pandas as pd

    from mergelib.testbed.data import CATALOGUE, find_file

    rows = [
        {
            "set": entry.name,
            "what": entry.what,
            "classes": entry.classes,
            "licence": entry.licence,
            "found": str(find_file(entry.name) or "-"),
        }
        for entry in CATALOGUE.values()
    ]
    _print_frame(pd.DataFrame(rows))


@data_app.command("prepare")
def data_prepare(
    names: Annotated[list[str], typer.Argument(help="Image sets; see: mergelib data list")],
    folder: Annotated[
        Path | None, typer.Option(help="Where to write; by default the cache.")
    ] = None,
) -> None:
    """Download image sets through torchvision and prepare them in the suites' schema."""
    from mergelib.testbed.data import prepare

    for name in names:
        typer.echo(f"{name}\t{prepare(name, folder)}")


def _suite(name: str, seed: int) -> "Suite":
    from mergelib.testbed.suites import load_suite

    with console.status(f"loading {name}"):
        return load_suite(name, seed=seed)


def _setting(text: str) -> tuple[str, Any]:
    """``name=value`` with the value read as JSON where it is JSON, else as text."""
    name, found, value = text.partition("=")
    if not found or not name:
        raise ValueError(f"--set takes name=value, got {text!r}")
    try:
        return name, json.loads(value)
    except json.JSONDecodeError:
        return name, value


def _print_frame(frame: "pd.DataFrame") -> None:
    table = Table(show_edge=False, header_style="bold")
    for column in frame.columns:
        numeric = frame[column].dtype.kind in "if"
        table.add_column(str(column), justify="right" if numeric else "left", overflow="fold")
    for row in frame.itertuples(index=False):
        table.add_row(*(f"{v:.3f}" if isinstance(v, float) else str(v) for v in row))
    console.print(table)


def _print_comparison(table: "pd.DataFrame", settings: dict[str, dict[str, Any]]) -> None:
    """A column a method: accuracy per task in per cent, the means, and what merging cost."""
    from mergelib.plots import label

    groups = [str(method) for method in table["method"].unique()]
    shown = Table(
        show_edge=False,
        header_style="bold",
        title="test accuracy, %",
        pad_edge=False,
        padding=(0, 0, 0, 1),
    )
    shown.add_column("task", no_wrap=True)
    for method in groups:
        shown.add_column(label(method), justify="right")
    by_task = table.pivot(index="task", columns="method", values="accuracy")
    for task in table["task"].unique():
        shown.add_row(task, *(f"{100 * by_task.loc[task, method]:.1f}" for method in groups))
    shown.add_section()
    means = table.groupby("method")[["accuracy", "normalised", "seconds", "peak_bytes"]].mean()
    means = means.loc[groups]
    lines = (
        ("mean", "accuracy", 100, ".1f"),
        ("normalised", "normalised", 100, ".1f"),
        ("seconds to merge", "seconds", 1, ".2f"),
        ("peak MB", "peak_bytes", 1e-6, ".0f"),
    )
    for name, column, unit, form in lines:
        values = [unit * float(value) for value in means[column].tolist()]
        shown.add_row(name, *("" if value != value else f"{value:{form}}" for value in values))
    console.print(shown)
    for method, options in settings.items():
        if options:
            typer.echo(f"{label(method)}: {', '.join(f'{k}={v}' for k, v in options.items())}")


def _save_figure(table: "pd.DataFrame", path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    from mergelib.plots import accuracy_by_task, use_style

    use_style()
    accuracy_by_task(table).savefig(path, dpi=150)
    plt.close("all")


if __name__ == "__main__":
    main()
