"""The stability framework: theory, measurements, and its claims."""
