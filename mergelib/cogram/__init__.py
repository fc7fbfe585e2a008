"""CoGraM: experts merged part by part, by the loss that each part has in its place.

The procedure is ``mergelib.adapt("cogram", ...)``; here are the prototypes on which it may judge,
and the short training that may follow it.
"""

from mergelib.cogram.finetuning import fine_tune, kickoff
from mergelib.cogram.refine import attention_heads, cogram
from mergelib.cogram.representatives import prototypes

__all__ = ["attention_heads", "cogram", "fine_tune", "kickoff", "prototypes"]
