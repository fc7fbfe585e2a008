"""``mergelib methods`` and ``mergelib merge``."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

from mergelib.cli import printing
from mergelib.cli.apps import Device, Settings, app, read_settings, split_commas

if TYPE_CHECKING:
    from mergelib.parts import Missing


# What a setting may not be, and the option that is meant.
_SAME = ("output", "pretrained", "include", "exclude", "missing", "device", "dtype", "overwrite")
_OPTIONS = {
    **{name: f"--{name}" for name in _SAME},
    "max_shard_size": "--max-shard-size",
    "is_matrix": "--fold-convolutions",
    "method": "the first argument",
    "experts": "the arguments after the method",
}


@app.command("methods")
def list_methods() -> None:
    """List the merging methods with their hyperparameters and defaults."""
    from mergelib.registry import methods

    for name, row in methods().iterrows():
        printing.console.print(f"[bold]{name}[/bold]  needs {row['needs']}", highlight=False)
        printing.console.print(f"    {row['what it does']}", highlight=False)
        printing.console.print(f"    {row['hyperparameters']}", style="dim", highlight=False)


def _complete_method(incomplete: str) -> list[str]:
    from mergelib.registry import method_names

    return [name for name in method_names() if name.startswith(incomplete)]


@app.command("merge")
def merge_command(
    method: Annotated[
        str,
        typer.Argument(
            help="A method's name; see: mergelib methods", autocompletion=_complete_method
        ),
    ],
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
    settings: Settings = None,
    include: Annotated[
        list[str] | None,
        typer.Option(help="Patterns of keys to merge, e.g. 'bert.*,pooler.*'; repeatable."),
    ] = None,
    exclude: Annotated[
        list[str] | None,
        typer.Option(help="Patterns of keys not to merge: they stay pretrained; repeatable."),
    ] = None,
    missing: Annotated[
        str,
        typer.Option(
            help="For keys that a model lacks or has in another shape: error, base (take the "
            "pretrained tensor), skip (leave the key out) or experts (average it over those that "
            "have it)."
        ),
    ] = "error",
    fold_convolutions: Annotated[
        bool,
        typer.Option(
            "--fold-convolutions",
            help="Treat each convolution as a matrix with one row per filter.",
        ),
    ] = False,
    device: Device = "cpu",
    dtype: Annotated[
        str | None,
        typer.Option(help="What to write: float32, float16 or bfloat16 [default: as the inputs]."),
    ] = None,
    max_shard_size: Annotated[
        str | None, typer.Option(help="The largest file of an output folder, e.g. 5GB.")
    ] = None,
    overwrite: Annotated[bool, typer.Option(help="Replace an output that exists.")] = False,
) -> None:
    """Merge model files, streaming tensor by tensor (the models need not fit into memory).

    Example: mergelib merge tsv a.safetensors b.safetensors c.safetensors -p base.safetensors -o
    out.safetensors --set scale=1.2
    """
    from mergelib import Checkpoint, is_kernel, merge_files
    from mergelib.statedict import is_matrix, is_statistic

    hyperparameters = read_settings(settings)
    for name in hyperparameters:
        if name in _OPTIONS:
            raise ValueError(
                f"--set is for the method's own settings: use {_OPTIONS[name]} in place of --set "
                f"{name}"
            )
    written = merge_files(
        method,
        experts,
        output,
        pretrained=pretrained,
        include=split_commas(include),
        exclude=split_commas(exclude),
        missing=cast("Missing", missing),  # which is checked there
        device=device,
        dtype=dtype,
        max_shard_size=max_shard_size,
        is_matrix=is_kernel if fold_convolutions else is_matrix,
        overwrite=overwrite,
        **hyperparameters,
    )
    typer.echo(f"Wrote {written}")
    if any(map(is_statistic, Checkpoint(written))):
        typer.echo("It has merged BatchNorm statistics: measure them with ml.recalibrate_batchnorm")


@app.command("run")
def run_command(
    recipe: Annotated[Path, typer.Argument(help="A YAML file, as mergekit has them.")],
    output: Annotated[
        Path, typer.Option("--output", "-o", help="Where to write the merged model.")
    ],
    device: Device = "cpu",
    overwrite: Annotated[bool, typer.Option(help="Replace an output that exists.")] = False,
) -> None:
    """Merge as a recipe says, in mergekit's words or with a method's own hyperparameters.

    Example: mergelib run recipe.yml -o merged/
    """
    from mergelib.recipes import run_recipe

    typer.echo(f"Wrote {run_recipe(recipe, output, device=device, overwrite=overwrite)}")
