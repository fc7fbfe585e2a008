"""Measurements of CART."""
