"""The claims of FW-Merging (Chen et al., 2025), and how they are tested."""

from mergelib.ledger.frank_wolfe.claims import CLAIMS

__all__ = ["CLAIMS"]
