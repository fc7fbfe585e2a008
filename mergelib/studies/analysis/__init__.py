"""What the chapters show: read from results, or computed on a zoo; one module per subject."""
