"""The version of this package, which results and merged files record."""

__version__ = "0.1.0"
