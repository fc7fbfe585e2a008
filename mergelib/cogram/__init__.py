"""CoGraM: experts merged part by part, by the loss that each part has in its place.

The procedure is ``mergelib.adapt("cogram", ...)``; here are the prototypes on which it may judge,
and the short training that may follow it.
"""

from mergelib.cogram.kickoff import fine_tune, kickoff
from mergelib.cogram.prototypes import prototypes
from mergelib.cogram.refine import attention_heads, cogram

__all__ = ["attention_heads", "cogram", "fine_tune", "kickoff", "prototypes"]
