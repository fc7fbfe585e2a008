"""The figures of the chapters on the stability framework."""
