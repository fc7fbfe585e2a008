"""The claims of SAIL (Anonymous, 2025): what they say, and by setting how they are tested."""

from mergelib.ledger.sail.claims import CLAIMS

__all__ = ["CLAIMS"]
