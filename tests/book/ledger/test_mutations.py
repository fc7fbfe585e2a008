"""No check that cannot fail: every claim must notice that its results were spoiled."""

from pathlib import Path
from types import SimpleNamespace

import pytest
from mutate_ledger import CLAIMS, CONTRASTS, WAYS, found, noticed, spoiled

from mergebook.lab import results
from mergebook.ledger import Claim, judge
from mergebook.ledger.verdicts import outcomes
from mergebook.sail.claims import arms


def test_every_claim_says_what_it_compares() -> None:
    assert sorted(CONTRASTS) == sorted(claim.key for claim in CLAIMS)


@pytest.mark.parametrize("claim", CLAIMS, ids=[claim.key for claim in CLAIMS])
def test_without_results_no_claim_is_tested(
    claim: Claim, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "results").mkdir()
    monkeypatch.setattr(results, "resources", SimpleNamespace(files=lambda _: tmp_path))
    table, checks = judge([claim])
    assert table["verdict"].tolist() == ["not tested"]
    assert table["ours"].item().endswith("there are: none")
    assert checks.empty


@pytest.mark.parametrize("claim", CLAIMS, ids=[claim.key for claim in CLAIMS])
def test_spoiled_results_are_noticed(claim: Claim) -> None:
    verdicts = {way: found(claim, way) for way in WAYS[1:]}
    assert {way: verdicts[way] for way in verdicts if not noticed(way, verdicts[way])} == {}


@pytest.mark.parametrize("suite", ["imagenet8", "sentences8"])
@pytest.mark.parametrize(
    ("key", "study"),
    [
        ("C1", "baselines"),
        ("C2", "surface"),
        ("C5", "surface"),
    ],
)
def test_each_real_network_decides(key: str, study: str, suite: str) -> None:
    """All results speak for the claim but that one, so it must not hold."""
    claim = next(claim for claim in CLAIMS if claim.key == key)
    kinds = {True: spoiled(key, "against"), False: spoiled(key, "for")}
    worst = f"{suite}-{study}"
    ledger, _ = judge([claim], lambda name, *part: kinds[name == worst](name, *part))
    assert ledger["verdict"].item() in ("mixed", "does not hold here")


@pytest.mark.parametrize(("way", "outcome"), [("for", "holds"), ("against", "fails")])
def test_every_cell_of_the_factorial_is_noticed(way: str, outcome: str) -> None:
    """They are secondary, so that no verdict tells."""
    checks = arms.merged(spoiled("S16", way))
    assert len(checks) == 3 * 5 + 2 * 3 * 3
    assert {result.shown for result in outcomes(checks)} == {outcome}
