"""``python -m mergebook``: the command line where no script is installed."""

from mergebook.cli import main

main()
