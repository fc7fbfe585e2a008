"""Studies of Structured-Initialization Learning (Anonymous, 2025)."""
