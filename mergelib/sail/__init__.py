"""SAIL: start a new model's training from transformed and merged old ones (Anonymous, 2025).

`grow` brings a trained network to the width and depth of a larger one, `grow_files` does so for a
folder, and `learn_growth` learns the maps from data; `shrink` goes the other way. `proximal` has
weights for the average of several, from distances between data sets.
"""

from mergelib.sail.growth.files import grow_files
from mergelib.sail.growth.growing import grow
from mergelib.sail.growth.learning import learn_growth
from mergelib.sail.growth.shrinking import shrink

__all__ = ["grow", "grow_files", "learn_growth", "shrink"]
