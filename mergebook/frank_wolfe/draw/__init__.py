"""Figures of Frank-Wolfe."""
