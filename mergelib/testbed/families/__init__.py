"""The families of suites that come with the package; importing this registers them all."""

from mergelib.testbed.families import (
    clip,
    digits,
    glue,
    glyphs,
    imagenet,
    sentences,
    synthetic,
    texts,
    vision,
)
from mergelib.testbed.registry import (
    FAMILIES,
    Family,
    Pretraining,
    family_of,
    family_with,
    known_suites,
    register,
)

__all__ = [
    "FAMILIES",
    "Family",
    "Pretraining",
    "clip",
    "digits",
    "family_of",
    "family_with",
    "glue",
    "glyphs",
    "imagenet",
    "known_suites",
    "register",
    "sentences",
    "synthetic",
    "texts",
    "vision",
]
