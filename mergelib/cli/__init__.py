"""The command line of the library: merging files."""

import sys
import warnings
from typing import Any

import typer

from mergelib.cli import merging  # adds its commands to the app
from mergelib.cli.apps import app
from mergelib.cli.words import in_shell_words

__all__ = ["app", "main", "merging", "run"]


def main() -> None:
    """Entry point of ``mergelib``."""
    run(app, "mergelib")


def run(app: typer.Typer, program: str) -> None:
    """Run a command line; errors that users can fix print one line and exit with status 1."""

    def say(text: str) -> None:
        print(f"{program}: {in_shell_words(text)}", file=sys.stderr)

    def show(message: Warning | str, *_: Any, **__: Any) -> None:
        say(f"warning: {message}")

    with warnings.catch_warnings():
        warnings.showwarning = show
        try:
            app()
        except ModuleNotFoundError as error:
            if error.name is None or error.name.partition(".")[0] in ("mergelib", "mergebook"):
                raise
            extras = dict.fromkeys(("transformers", "datasets", "huggingface_hub"), "hub")
            extras |= {"ray": "cluster"}
            extras |= {"scipy": "align", "sklearn": "align", "yaml": "recipes"}
            extra = extras.get(error.name.partition(".")[0], "lab")
            say(f"this needs the package {error.name}: pip install 'mergelib-book[{extra}]'")
            sys.exit(1)
        except (ValueError, TypeError, OSError, FloatingPointError) as error:
            say(str(error) or type(error).__name__)
            sys.exit(1)
