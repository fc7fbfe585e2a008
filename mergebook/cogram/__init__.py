"""CoGraM: data, measurements, and its claims."""
