"""SAIL: theory, networks, measurements, and its claims."""
