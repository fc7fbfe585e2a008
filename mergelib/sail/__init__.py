"""SAIL: initialise a network from transformed and merged smaller ones (Anonymous, 2025).

`grow` makes a network wider and deeper, `grow_files` does so for a folder, `learn_growth` learns
the maps from data, and `shrink` makes a network smaller. `proximal` computes the weights of an
average from distances between data sets.
"""

from mergelib.sail.growth.files import grow_files
from mergelib.sail.growth.growing import grow
from mergelib.sail.growth.learning import learn_growth
from mergelib.sail.growth.shrinking import shrink

__all__ = ["grow", "grow_files", "learn_growth", "shrink"]
