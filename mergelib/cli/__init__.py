"""The command line: ``mergelib demo``, ``methods``, ``merge``, ``evaluate``, ``zoo``, ``data``."""

import sys

from mergelib.cli import merging, studies, testbed  # each adds its commands to the app
from mergelib.cli.apps import app

__all__ = ["app", "main", "merging", "studies", "testbed"]


def main() -> None:
    """Entry point: errors that a user can mend are one line and status 1, no traceback."""
    try:
        app()
    except (ValueError, TypeError, OSError, FloatingPointError) as error:
        print(f"mergelib: {' '.join(str(error).split())}", file=sys.stderr)
        sys.exit(1)
