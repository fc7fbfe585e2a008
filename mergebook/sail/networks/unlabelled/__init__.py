"""Learning from pictures without labels, and judging what was learned."""
