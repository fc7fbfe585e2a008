"""``mergelib methods`` and ``mergelib merge``."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

from mergelib.cli import printing
from mergelib.cli.apps import Device, Settings, app, read_settings

if TYPE_CHECKING:
    from mergelib.parts import Missing


@app.command("methods")
def list_methods() -> None:
    """List the merging methods with their hyperparameters and defaults."""
    from mergelib.registry import methods

    for name, row in methods().iterrows():
        printing.console.print(f"[bold]{name}[/bold]  needs {row['needs']}", highlight=False)
        printing.console.print(f"    {row['what it does']}", highlight=False)
        printing.console.print(f"    {row['hyperparameters']}", style="dim", highlight=False)


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
    settings: Settings = None,
    include: Annotated[
        list[str] | None,
        typer.Option(help="Pattern of keys to merge, e.g. 'bert.*'; repeatable. Default: all."),
    ] = None,
    exclude: Annotated[
        list[str] | None,
        typer.Option(help="Pattern of keys not to merge: they stay pretrained; repeatable."),
    ] = None,
    missing: Annotated[
        str,
        typer.Option(
            help="For keys that a model lacks or has in another shape: error, base (take the "
            "pretrained tensor) or skip (leave the key out)."
        ),
    ] = "error",
    device: Device = "cpu",
    overwrite: Annotated[bool, typer.Option(help="Replace an output that exists.")] = False,
) -> None:
    """Merge model files, streaming tensor by tensor (the models need not fit into memory).

    Example: mergelib merge ties a.safetensors b.safetensors -p base.safetensors -o out.safetensors
    --set density=0.2
    """
    from mergelib import merge_files

    hyperparameters = read_settings(settings)
    written = merge_files(
        method,
        experts,
        output,
        pretrained=pretrained,
        include=include or None,
        exclude=exclude or None,
        missing=cast("Missing", missing),  # which is checked there
        device=device,
        overwrite=overwrite,
        **hyperparameters,
    )
    typer.echo(f"Wrote {written}")
