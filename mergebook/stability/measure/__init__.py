"""Studies of the stability framework (Li et al., 2026)."""
