"""The commands of ``mergelib``."""

from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from mergelib.cli import printing
from mergelib.cli.apps import Device, Settings, WithSettings, app, read_settings, split_commas
from mergelib.cli.words import in_shell_words

if TYPE_CHECKING:
    from mergelib.parts import Missing, Nan

EXACT = 1e-5  # relative error of an adapter that is only rounded
# What a setting may not be, and the option that is meant.
_SAME = ["output", "pretrained", "include", "exclude", "missing", "rename", "device", "dtype"]
_SAME += ["tokenizer", "chat_template", "max_shard_size", "dequantise", "overwrite", "nan"]
_OPTIONS = {
    **{name: f"--{name.replace('_', '-')}" for name in _SAME},
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


MethodName = Annotated[
    str,
    typer.Argument(
        help="A method's name, or METHOD+svc; see: mergelib methods",
        autocompletion=_complete_method,
    ),
]


def _fetched(paths: list[Path] | Path | None) -> list[Path] | Path | None:
    """Fetch what has a name on the hub."""
    from mergelib.io.hub import fetched

    if isinstance(paths, list):
        return [Path(fetched(path)) for path in paths]
    return paths and Path(fetched(paths))


Models = Annotated[
    list[Path],
    typer.Argument(
        help="Fine-tuned models: .safetensors files, folders, .pt files (a.pt::ema), or names on "
        "the Hugging Face hub (ORG/NAME@REVISION).",
        callback=_fetched,
    ),
]
Pretrained = Annotated[
    Path | None,
    typer.Option(
        "--pretrained", "-p", help="The model they were fine-tuned from.", callback=_fetched
    ),
]
Include = Annotated[
    list[str] | None,
    typer.Option(help="Patterns of keys to merge, e.g. 'bert.*,pooler.*'; repeatable."),
]
Rename = Annotated[
    list[str] | None,
    typer.Option(help="New names of experts' keys, e.g. 'module.*=*'; repeatable."),
]
NotFinite = Annotated[
    str, typer.Option(help="For NaN and Inf: error, or base (take the pretrained entries).")
]
Tokenizer = Annotated[
    str | None, typer.Option(help="Whose vocabulary to write: base, union, or a path.")
]
ChatTemplate = Annotated[
    str | None, typer.Option(help="Whose chat template to write: experts, or a path.")
]
Overwrite = Annotated[bool, typer.Option(help="Replace an output that exists.")]
Dtype = Annotated[
    str | None,
    typer.Option(help="What to write: float32, float16 or bfloat16; by default, as the inputs."),
]


def _hyperparameters(settings: list[str] | None) -> dict[str, Any]:
    """Return the method's settings; ValueError for one that is an option."""
    hyperparameters = read_settings(settings)
    for name in hyperparameters:
        if name in _OPTIONS:
            raise ValueError(
                f"--set is for the method's own settings: use {_OPTIONS[name]} in place of --set "
                f"{name}"
            )
    return hyperparameters


@app.command("merge", cls=WithSettings)
def merge_command(
    method: MethodName,
    experts: Models,
    output: Annotated[
        Path, typer.Option("--output", "-o", help="Where to write the merged model.")
    ],
    pretrained: Pretrained = None,
    settings: Settings = None,
    include: Include = None,
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
    rename: Rename = None,
    nan: NotFinite = "error",
    fold_convolutions: Annotated[
        bool,
        typer.Option(
            "--fold-convolutions",
            help="Treat each convolution as a matrix with one row per filter.",
        ),
    ] = False,
    device: Device = "cpu",
    dtype: Dtype = None,
    tokenizer: Tokenizer = None,
    chat_template: ChatTemplate = None,
    max_shard_size: Annotated[
        str | None, typer.Option(help="The largest file of an output folder, e.g. 5GB.")
    ] = None,
    dequantise: Annotated[
        bool, typer.Option("--dequantise", help="Merge FP8 and MXFP4 weights times their scales.")
    ] = False,
    overwrite: Overwrite = False,
) -> None:
    """Merge model files, streaming tensor by tensor (the models need not fit into memory).

    Example: mergelib merge tsv a.safetensors b.safetensors c.safetensors -p base.safetensors -o
    out.safetensors --set scale=1.2
    """
    from mergelib import Checkpoint, is_kernel, merge_files
    from mergelib.statedict import is_matrix, is_statistic

    written = merge_files(
        method,
        experts,
        output,
        pretrained=pretrained,
        include=split_commas(include),
        exclude=split_commas(exclude),
        missing=cast("Missing", missing),  # which is checked there
        rename=read_settings(rename, "--rename") or None,
        nan=cast("Nan", nan),
        device=device,
        dtype=dtype,
        tokenizer=tokenizer,
        chat_template=chat_template,
        max_shard_size=max_shard_size,
        dequantise=dequantise,
        is_matrix=is_kernel if fold_convolutions else is_matrix,
        overwrite=overwrite,
        **_hyperparameters(settings),
    )
    typer.echo(f"Wrote {written}")
    note = "It has merged BatchNorm statistics: measure them with ml.recalibrate_batchnorm"
    with suppress(OSError, ValueError):  # another run may be replacing the output
        if any(map(is_statistic, Checkpoint(written))):
            typer.echo(note)


@app.command("merge-adapters", cls=WithSettings)
def merge_adapters_command(
    method: MethodName,
    adapters: Annotated[
        list[Path],
        typer.Argument(help="Folders of LoRA adapters, as PEFT saves them.", callback=_fetched),
    ],
    output: Annotated[
        Path, typer.Option("--output", "-o", help="The folder of the merged adapter.")
    ],
    rank: Annotated[
        int | None,
        typer.Option(help="Largest rank of a module; by default, the sum of the adapters' ranks."),
    ] = None,
    pretrained: Annotated[
        Path | None,
        typer.Option(
            "--pretrained",
            "-p",
            help="Their base; only DoRA and whole modules can need it.",
            callback=_fetched,
        ),
    ] = None,
    settings: Settings = None,
    include: Include = None,
    exclude: Annotated[
        list[str] | None, typer.Option(help="Patterns of keys to leave out; repeatable.")
    ] = None,
    rename: Rename = None,
    device: Device = "cpu",
    dtype: Annotated[
        str | None,
        typer.Option(help="What to write: float32 (by default), float16 or bfloat16."),
    ] = None,
    overwrite: Overwrite = False,
) -> None:
    """Merge LoRA adapters into one adapter, and print how exact it is where it is truncated.

    Example: mergelib merge-adapters average lora_a/ lora_b/ -o lora_ab/ --set weights=0.7,0.3
    """
    from mergelib import merge_adapters

    table = merge_adapters(
        method,
        adapters,
        output,
        pretrained=pretrained,
        rank=rank,
        include=split_commas(include),
        exclude=split_commas(exclude),
        rename=read_settings(rename, "--rename") or None,
        device=device,
        dtype=dtype,
        overwrite=overwrite,
        **_hyperparameters(settings),
    )
    exact = table["relative error"] <= EXACT
    for module, row in table[~exact].iterrows():
        error = row["relative error"]
        typer.echo(f"{module}  rank {row['rank']:.0f}  relative error {error:.2g}")
    typer.echo(f"{exact.sum()} of {len(table)} modules are exact (relative error below {EXACT:g})")
    typer.echo(f"Wrote {output}")


@app.command("inspect")
def inspect_command(
    experts: Models,
    pretrained: Pretrained = None,
    include: Include = None,
    exclude: Annotated[
        list[str] | None, typer.Option(help="Patterns of keys not to merge; repeatable.")
    ] = None,
    missing: Annotated[
        str, typer.Option(help="For keys that models do not share; as in: mergelib merge")
    ] = "error",
    rename: Rename = None,
    nan: NotFinite = "error",
    tokenizer: Tokenizer = None,
    chat_template: ChatTemplate = None,
    layers: Annotated[bool, typer.Option("--layers", help="Add the norms per layer.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON object.")] = False,
) -> None:
    """Report what a merge would do and refuse, before it is run; status 1 if it would be refused.

    Example: mergelib inspect a/ b/ --pretrained base/
    """
    from mergelib import inspect

    report = inspect(
        experts,
        pretrained=pretrained,
        include=split_commas(include),
        exclude=split_commas(exclude),
        missing=cast("Missing", missing),
        rename=read_settings(rename, "--rename") or None,
        nan=cast("Nan", nan),
        tokenizer=tokenizer,
        chat_template=chat_template,
        layers=layers,
    )
    report = replace(
        report,
        refusals=tuple(map(in_shell_words, report.refusals)),
        warnings=tuple(map(in_shell_words, report.warnings)),
        reason=in_shell_words(report.reason),
    )
    typer.echo(report.to_json() if as_json else str(report))
    raise typer.Exit(1 if report.refusals else 0)


@app.command("run")
def run_command(
    recipe: Annotated[
        Path,
        typer.Argument(help="A YAML file, as mergekit has them, or a merged folder's README.md."),
    ],
    output: Annotated[
        Path, typer.Option("--output", "-o", help="Where to write the merged model.")
    ],
    device: Device = "cpu",
    overwrite: Overwrite = False,
) -> None:
    """Merge as a recipe says, in mergekit's words or with a method's own hyperparameters.

    Example: mergelib run recipe.yml -o merged/
    """
    from mergelib.recipes import run_recipe

    typer.echo(f"Wrote {run_recipe(recipe, output, device=device, overwrite=overwrite)}")
