"""Structured-initialization learning (SAIL): small trained networks as the start of a larger one.

`grow` brings a trained network to the width and depth of a larger one.
"""

from mergelib.sail.growing import grow

__all__ = ["grow"]
