"""The claims of the stability framework (Li et al., 2026); as its bound, they are about loss."""

from mergebook.ledger import read_claims
from mergebook.stability.claims import bound, remedies, scaling, variance

TESTS = (
    *(scaling.steps, scaling.batch, scaling.rate, scaling.data, scaling.tasks),
    *(variance.heterogeneity, bound.ranks, bound.choices, scaling.explosion, bound.powers),
    *(scaling.trends, variance.risk, scaling.needed),
    *(remedies.outliers, remedies.before, remedies.mended),
    *(scaling.stopped, scaling.opposite, remedies.uneven),
)
NUMBERS = {"near": scaling.NEAR, "near_nats": scaling.MARGINS["loss"]}
NUMBERS |= {"near_power": bound.NEAR_POWER, "same_trend": scaling.SAME_TREND}
CLAIMS = read_claims(
    "mergebook.stability",
    {f"T{i}": test for i, test in enumerate(TESTS, 1)},
    density=variance.DENSITY,
    **NUMBERS,
)
