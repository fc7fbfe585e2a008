"""The laboratory's command line: the demo, suites and experts, studies and their results."""

from mergebook.cli import studies, testbed  # each adds its commands to the app
from mergebook.cli.apps import app
from mergelib.cli import run

__all__ = ["app", "main", "studies", "testbed"]


def main() -> None:
    """Entry point of ``mergebook``."""
    run(app, "mergebook")
