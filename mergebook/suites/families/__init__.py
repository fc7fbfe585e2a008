"""The families of suites that come with the package; importing this registers them all."""

from mergebook.suites.families import clip as clip
from mergebook.suites.families import imagenet as imagenet
from mergebook.suites.families import pictures as pictures
from mergebook.suites.families import sentences as sentences
from mergebook.suites.families import texts as texts
from mergebook.suites.registry import FAMILIES as FAMILIES
from mergebook.suites.registry import Family as Family
from mergebook.suites.registry import Pretraining as Pretraining
from mergebook.suites.registry import family_of as family_of
from mergebook.suites.registry import family_with as family_with
from mergebook.suites.registry import known_suites as known_suites
