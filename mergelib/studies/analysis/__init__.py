"""What the chapters show of the studies: tables and figures from ``results/``, by subject."""
