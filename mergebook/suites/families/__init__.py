"""The families of suites that come with the package; importing this registers them all."""

from mergebook.suites.families import (
    clip,
    digits,
    glue,
    glyphs,
    imagenet,
    sentences,
    texts,
    vision,
)
from mergebook.suites.registry import (
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
    "texts",
    "vision",
]
