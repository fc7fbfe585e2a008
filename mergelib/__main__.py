"""``python -m mergelib``: the command line where no script is installed."""

from mergelib.cli import main

main()
