"""``mergebook zoo`` and ``mergebook data``: experts, backbones and image sets."""

from pathlib import Path
from typing import Annotated

import typer

from mergebook.cli.apps import Model, Seed, SuiteName, data_app, load_suite_shown, zoo_app
from mergebook.cli.printing import print_frame
from mergelib.cli.apps import Device


@zoo_app.command("build")
def zoo_build(
    suite: SuiteName = "glyphs8", seed: Seed = 0, model: Model = None, device: Device = "cpu"
) -> None:
    """Fine-tune the experts of a suite into the cache, and tell where they lie."""
    from mergebook.suites.zoo import load_zoo

    zoo = load_zoo(load_suite_shown(suite, seed), model=model, device=device)
    for task, file in zoo.files.items():
        typer.echo(f"{task}\t{file}")


@zoo_app.command("pretrain")
def zoo_pretrain(
    output: Annotated[Path, typer.Option("--output", "-o", help="The .safetensors file to write.")],
    model: Annotated[str, typer.Option(help="Which model, e.g. vit, vit_small or gpt.")] = "vit",
    epochs: Annotated[
        int | None, typer.Option(help="Passes over the data.", show_default="the model's usual")
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
    import pandas as pd

    from mergebook.suites.data.prepared import CATALOGUE, find_file

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
    print_frame(pd.DataFrame(rows))


@data_app.command("prepare")
def data_prepare(
    names: Annotated[list[str], typer.Argument(help="Image sets; see: mergebook data list")],
    folder: Annotated[
        Path | None, typer.Option(help="Where to write; by default the cache.")
    ] = None,
) -> None:
    """Download image sets through torchvision and prepare them in the suites' schema."""
    from mergebook.suites.data.prepared import prepare

    for name in names:
        typer.echo(f"{name}\t{prepare(name, folder)}")
