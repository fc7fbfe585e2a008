"""Studies of SAIL (Anonymous, 2025)."""
