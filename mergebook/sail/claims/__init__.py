"""SAIL's claims (Anonymous, 2025), as far as they are tested; each setting adds its checks."""

from collections.abc import Iterable
from functools import partial
from typing import Any

from mergebook.ledger import Check, Comparison, Load, read_claims
from mergebook.sail.claims import arms, diffusion, growing, spirals, text

TESTS: dict[str, tuple[Any, ...]] = {
    "S1": (spirals.faster, arms.faster),
    "S2": (text.followed,),
    "S3": (spirals.spike, text.spike),
    "S4": (text.symmetric,),
    "S5": (text.transferred,),
    "S6": (arms.ahead,),
    "S7": (growing.kept,),
    "S8": (diffusion.nearer,),
    "S9": (growing.risks,),
    "S10": (spirals.better, arms.better),
    "S11": (arms.labelled,),
    "S12": (spirals.calmer,),
    "S13": (arms.fading,),
    "S14": (spirals.nearer, text.nearer),
    "S15": (spirals.near_ends, text.near_ends),
    "S16": (spirals.together, arms.together, arms.merged),
    "S17": (arms.sizes,),
    "S18": (spirals.chained,),
    "S19": (arms.taught,),
    "S20": (growing.clusters,),
    "S21": (text.carried,),
}


def _joined(tests: tuple[Any, ...], load: Load) -> Iterable[Comparison | Check]:
    return (each for test in tests for each in test(load))


_CHECKS = {key: partial(_joined, tests) for key, tests in TESTS.items()}
_LIMITS = {"aligned": text.ALIGNED, "near_points": spirals.NEAR_POINTS, "half": growing.HALF}
_LIMITS |= {"sure": growing.SURE, "clear": growing.CLEAR, "grouped": growing.GROUPED}
CLAIMS = read_claims("mergebook.sail", _CHECKS, **_LIMITS)
