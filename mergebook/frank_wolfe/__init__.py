"""FW-Merging: theory, measurements, and its claims."""
