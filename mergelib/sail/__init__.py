"""SAIL: start a new model's training from transformed and merged old ones (Anonymous, 2025)."""
