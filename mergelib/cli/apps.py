"""The tree of commands, and the options that several of them take."""

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mergelib.cli import printing

if TYPE_CHECKING:
    from mergelib.testbed.tasks import Suite

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


def usable(device: str) -> str:
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
        help="digits2, glyphs8/14/20 (nothing to download), vision8/14/20, text4, clip8/14/20"
        " or glue8.",
    ),
]
Seed = Annotated[int, typer.Option(help="Draws splits, heads and the order of training.")]
Device = Annotated[
    str,
    typer.Option(help="Where to compute: cpu, cuda, cuda:1 …", callback=usable),
]
Model = Annotated[
    str | None,
    typer.Option(
        help="vit, vit_small, vit_large, resnet18, mlp; gpt for texts; clip-vit-base-patch32, "
        "clip-vit-large-patch14 or a CLIP's folder for clip8/14/20; a RoBERTa for glue8.",
        show_default="the usual one",
    ),
]


Settings = Annotated[
    list[str] | None,
    typer.Option("--set", "-s", help="A setting, e.g. --set scale=0.4; repeatable."),
]


def read_settings(texts: Sequence[str] | None) -> dict[str, Any]:
    """``name=value`` of each text, the value read as JSON where it is JSON, else as text."""
    settings: dict[str, Any] = {}
    for text in texts or ():
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise ValueError(f"--set takes name=value, got {text!r}")
        try:
            settings[name] = json.loads(value)
        except json.JSONDecodeError:
            settings[name] = value
    return settings


def load_suite_shown(name: str, seed: int) -> "Suite":
    from mergelib.testbed.suites import load_suite

    with printing.console.status(f"loading {name}"):
        return load_suite(name, seed=seed)
