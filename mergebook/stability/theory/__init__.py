"""How steps, noise and differing tasks bear on a merge (Li et al., 2026)."""
