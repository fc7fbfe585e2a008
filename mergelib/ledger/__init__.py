"""The claims ledger: what the papers claim, put to the test here, with verdicts that code gives.

A `Claim` says what a paper states and where, what it reports, and how it is tested here. Its test
reads files in ``results/`` and returns `Check` records: quantities that the claim says lie above a
bound. Only its primary checks decide, which repeat the paper's own setting; secondary ones ask the
same of other settings, and controls ask what the paper does not.
"""

from mergelib.ledger.checks import Check
from mergelib.ledger.verdicts import Claim, judge, outcomes, verdict

__all__ = ["Check", "Claim", "judge", "outcomes", "verdict"]
