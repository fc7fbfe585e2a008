"""The claims of the stability framework (Li et al., 2026), in order of their numbers."""

from mergebook.stability.claims import bound, remedies, scaling, variance

CLAIMS = tuple(
    sorted(
        (*variance.CLAIMS, *scaling.CLAIMS, *bound.CLAIMS, *remedies.CLAIMS),
        key=lambda claim: int(claim.key.removeprefix("T")),
    )
)
