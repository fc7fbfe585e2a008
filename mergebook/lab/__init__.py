"""Running measurements: studies, sweeps over seeds, results and their statistics."""
