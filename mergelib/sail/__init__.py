"""SAIL: start a new model's training from transformed and merged old ones (Anonymous, 2025).

`grow` brings a trained network to the width and depth of a larger one; `proximal` has weights for
the average of several, from distances between data sets.
"""

from mergelib.sail.growing import grow

__all__ = ["grow"]
