"""Measurements of Frank-Wolfe merging."""
