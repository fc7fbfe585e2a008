"""The claims of the stability framework (Li et al., 2026), in order of their numbers."""

from mergelib.ledger.stability import remedies

CLAIMS = tuple(sorted(remedies.CLAIMS, key=lambda claim: int(claim.key.removeprefix("T"))))
