"""No check that cannot fail: every claim must notice that its results were spoiled."""

import pytest
from mutate_ledger import CLAIMS, CONTRASTS, WAYS, found, noticed

from mergelib.ledger import Claim


def test_every_claim_says_what_it_compares() -> None:
    assert sorted(CONTRASTS) == sorted(claim.key for claim in CLAIMS)


@pytest.mark.parametrize("claim", CLAIMS, ids=[claim.key for claim in CLAIMS])
def test_spoiled_results_are_noticed(claim: Claim) -> None:
    verdicts = {way: found(claim, way) for way in WAYS[1:]}
    assert {way: verdicts[way] for way in verdicts if not noticed(way, verdicts[way])} == {}
