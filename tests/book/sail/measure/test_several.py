"""The study of more than two sources, on short texts of random letters."""

import pandas as pd
import pytest

from mergebook.sail.measure import training
from mergebook.sail.measure.several import several_sources
from mergebook.sail.measure.training import Texts
from tests.book.sail.measure.test_text import SMALL, words

PLAN = {**SMALL, "source_steps": 7, "block": 100}
ALPHABETS = ("abcdefgh", "ijklmnop", "qrstuvwx", "ABCDEFGH")


@pytest.mark.filterwarnings("ignore:unrelated models")
def test_theorem_3_finds_the_shares_of_a_mixture_and_all_arms_are_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(training.PROFILES, "default", PLAN)
    texts = {name: words(i, name, 20000) for i, name in enumerate(ALPHABETS)}
    tables = several_sources(Texts(1, texts))
    weights = pd.DataFrame(tables["weights"]).query("sources == 4")
    assert weights["share"].tolist() == [0.4, 0.3, 0.2, 0.1], "more of a text is nearer"
    assert weights["theorem"].tolist() == pytest.approx(weights["share"].tolist(), abs=0.03)
    curves = pd.DataFrame(tables["curves"])
    arms = curves.groupby("arm")["sources"].unique().map(list).to_dict()
    merged = {"theorem": [2, 3, 4], "uniform": [2, 3, 4], "checkpoints": [3]}
    single = {"nearest": [1], "longer": [1], "larger": [1], "scratch": [0]}
    assert arms == merged | single | {"checkpoints, larger": [4]}
    assert curves.groupby(["arm", "sources"])["step"].unique().map(list).tolist() == [[0, 2]] * 12

    own = several_sources(Texts(1, texts), start="own")
    assert {row["arm"] for row in own["curves"]} == {"nearest", "theorem", "uniform"}
    with pytest.raises(ValueError, match="start is 're-basin', expected 'shared' or 'own'"):
        several_sources(Texts(1, texts), start="re-basin")
