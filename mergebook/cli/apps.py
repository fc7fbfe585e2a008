"""The tree of the laboratory's commands, and the options that several of them take."""

from typing import TYPE_CHECKING, Annotated

import typer

from mergelib.cli import printing
from mergelib.cli.apps import root

if TYPE_CHECKING:
    from mergelib.evaluation.tasks import Suite

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
        "text4, sentences8, clip8/14/20 or glue8.",
    ),
]
Seed = Annotated[int, typer.Option(help="Draws splits, heads and the order of training.")]
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


def load_suite_shown(name: str, seed: int) -> "Suite":
    """A suite, loaded under a spinner."""
    from mergebook.suites.loading import load_suite

    with printing.console.status(f"loading {name}"):
        return load_suite(name, seed=seed)
