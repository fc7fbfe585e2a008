"""CoGraM: merge experts part by part, by the loss that each part has in place.

Call it as ``mergelib.adapt("cogram", ...)``. `prototypes` makes representatives to compare on, and
`kickoff` and `fine_tune` train the merged network.
"""

from mergelib.cogram.finetuning import fine_tune, kickoff
from mergelib.cogram.refine import attention_heads, cogram
from mergelib.cogram.representatives import prototypes

__all__ = ["attention_heads", "cogram", "fine_tune", "kickoff", "prototypes"]
