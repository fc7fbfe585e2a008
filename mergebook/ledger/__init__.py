"""The claims ledger: what the papers claim, put to the test here, with verdicts that code gives.

A `Claim` says what a paper states and where, what it reports, and how it is tested here. Its test
reads files in ``results/`` and returns `Check` records: quantities that the claim says lie above a
bound. Only primary checks decide. One rule gives the roles of all claims:

* *Primary* checks repeat the paper's own setting and words (its baselines, its way to count cost,
  its metric) on every network of the book's main comparison. Where the paper is silent between
  readings, each reading is primary. Of two metrics of one statement, that of the argument is
  primary: the loss for bounds, the accuracy for tables of accuracy. No check is a copy of another.
* *Secondary* checks ask the same in settings that the paper does not have, or a weaker form of it.
* *Controls* ask what the paper never claimed; our own repairs and algorithms belong here.

Roles and tolerances of a new measurement are committed before its result, in ``results/plan.toml``.
"""

from mergebook.ledger.checks import Check
from mergebook.ledger.comparisons import Comparison, Load, comparison
from mergebook.ledger.verdicts import Claim, judge, outcomes, read_claims, verdict

__all__ = ["Check", "Claim", "Comparison", "Load", "comparison"]
__all__ += ["judge", "outcomes", "read_claims", "verdict"]
