"""What measured merges say about the bounds of the stability framework (Li et al., 2026)."""
