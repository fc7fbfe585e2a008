"""The claims of SAIL (Anonymous, 2025): what they say, and by setting how they are tested."""

from mergebook.sail.claims.texts import CLAIMS

__all__ = ["CLAIMS"]
