"""Refusals, warnings, and short texts for values."""
