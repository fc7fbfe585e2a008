"""The claims of FW-Merging (Chen et al., 2025), and how they are tested."""

from mergebook.frank_wolfe.claims.texts import CLAIMS

__all__ = ["CLAIMS"]
