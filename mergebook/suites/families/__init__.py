"""The families of suites that come with the package; importing this registers them all."""

from mergebook.suites.families import clip, imagenet, pictures, sentences, texts
from mergebook.suites.registry import FAMILIES, Family, family_of, family_with, known_suites

__all__ = ["FAMILIES", "Family", "family_of", "family_with", "known_suites"]
__all__ += ["clip", "imagenet", "pictures", "sentences", "texts"]
