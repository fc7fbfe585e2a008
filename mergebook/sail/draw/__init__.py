"""Figures of SAIL."""
