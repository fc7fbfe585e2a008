"""The tree of commands, and the options that several of them take."""

import json
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mergelib.cli import printing
from mergelib.version import __version__

if TYPE_CHECKING:
    from mergelib.testbed.tasks import Suite

app = typer.Typer(
    help="Merge fine-tuned models, and measure what merging keeps.",
    epilog="Start with: mergelib demo",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
zoo_app = typer.Typer(help="Backbones and fine-tuned experts to merge.", no_args_is_help=True)
data_app = typer.Typer(help="Image sets of the vision suites.", no_args_is_help=True)
app.add_typer(zoo_app, name="zoo")
app.add_typer(data_app, name="data")


def _tell_version(asked: bool) -> None:
    if asked:
        typer.echo(f"mergelib {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool,
        typer.Option("--version", help="Show the version.", callback=_tell_version, is_eager=True),
    ] = False,
) -> None:
    """What stands before a command's name."""


def usable(device: str) -> str:
    """The device, if PyTorch can compute on it."""
    from mergelib.messages.refusals import check_device

    check_device(device)
    return device


SuiteName = Annotated[
    str,
    typer.Option(
        "--suite",
        help="digits2, glyphs8/14/20 (nothing to download), vision8/14/20, imagenet8/14/20, "
        "text4, sentences8, clip8/14/20 or glue8.",
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
        help="vit, vit_small, vit_large, resnet18, resnet18_strided, resnet18_narrow, mlp; "
        "efficientnet_lite0 for imagenet8/14/20; gpt for text4, minilm for sentences8; "
        "clip-vit-base-patch32, clip-vit-large-patch14 or a CLIP's folder for clip8/14/20; a "
        "RoBERTa for glue8.",
        show_default="the usual one",
    ),
]


Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set", "-s", help="A setting, e.g. --set scale=0.4 or weights=0.3,0.7; repeatable."
    ),
]


def read_settings(texts: Sequence[str] | None, option: str = "--set") -> dict[str, Any]:
    """``name=value`` of each text: JSON where it is JSON, a list where it has commas, else text."""
    settings: dict[str, Any] = {}
    for text in texts or ():
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise ValueError(f"{option} takes name=value, got {text!r}")
        settings[name] = _read_value(value)
    return settings


def split_settings(text: str) -> list[str]:
    """Several ``name=value`` in one text; a value may hold blanks."""
    return re.split(r"\s+(?=\w+=)", text.strip()) if text.strip() else []


def _read_value(text: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return [_read_value(part.strip()) for part in text.split(",")] if "," in text else text


def split_commas(texts: Sequence[str] | None) -> list[str] | None:
    """The parts of an option that is repeated, or takes several separated by commas."""
    return [
        part.strip() for text in texts or () for part in text.split(",") if part.strip()
    ] or None


def load_suite_shown(name: str, seed: int) -> "Suite":
    """A suite, loaded under a spinner."""
    from mergelib.testbed.suites import load_suite

    with printing.console.status(f"loading {name}"):
        return load_suite(name, seed=seed)
