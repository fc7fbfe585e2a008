"""The command line: merging, the testbed, and studies with their results."""

import sys
import warnings
from typing import Any

from mergelib.cli import merging, studies, testbed  # each adds its commands to the app
from mergelib.cli.apps import app
from mergelib.cli.words import in_shell_words

__all__ = ["app", "main", "merging", "studies", "testbed"]


def main() -> None:
    """Entry point: errors that a user can mend are one line and status 1, no traceback."""
    with warnings.catch_warnings():
        warnings.showwarning = _show
        try:
            app()
        except ModuleNotFoundError as error:
            if error.name is None or error.name.partition(".")[0] == "mergelib":
                raise
            extra = "cluster" if error.name == "ray" else "hub"
            _say(f"this needs the package {error.name}: pip install 'mergelib[{extra}]'")
            sys.exit(1)
        except (ValueError, TypeError, OSError, FloatingPointError) as error:
            _say(str(error) or type(error).__name__)
            sys.exit(1)


def _show(message: Warning | str, *_: Any, **__: Any) -> None:
    """A warning in one line, without the place in the code that Python would show."""
    _say(f"warning: {message}")


def _say(text: str) -> None:
    print(f"mergelib: {in_shell_words(text)}", file=sys.stderr)
