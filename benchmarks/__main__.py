"""``python -m benchmarks`` runs `benchmarks.merging`."""

import typer

from benchmarks.merging import main

typer.run(main)
