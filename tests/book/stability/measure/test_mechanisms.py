"""The study of Remark 4: its tables against procedures called by hand."""

import pandas as pd
import pytest

from mergebook.lab.comparison import adapted, cut, examples_of, individual, merge_zoo
from mergebook.stability.measure.remedies import mechanisms
from mergebook.suites.types import (
    Zoo,
)
from mergelib.evaluation.loops import evaluate
from mergelib.procedures.common import unlabelled


@pytest.fixture(scope="module")
def tables(tiny_zoo: Zoo) -> dict[str, pd.DataFrame]:
    found = mechanisms(
        tiny_zoo, examples=30, parts=3, steps=5, learning_rate=0.05, mending=20, pictures=50
    )
    return {name: pd.DataFrame(rows) for name, rows in found.items()}


def test_coefficients_are_those_of_adamerging(
    tiny_zoo: Zoo, tables: dict[str, pd.DataFrame]
) -> None:
    inputs = unlabelled(examples_of(tiny_zoo, None, "test"))
    table = tables["coefficients"].set_index(["granularity", "task"])
    for fine in ("task", "layer"):
        result = adapted(
            tiny_zoo, "adamerging", inputs, steps=5, learning_rate=0.05, granularity=fine
        )
        expected = result.coefficients.mean(axis=1)
        assert table.loc[fine]["coefficient"].to_dict() == pytest.approx(expected.to_dict())
    assert table.loc["task"]["heterogeneity"].equals(table.loc["layer"]["heterogeneity"])


def test_errors_are_measured_on_both_splits(tiny_zoo: Zoo, tables: dict[str, pd.DataFrame]) -> None:
    table = tables["test"].set_index(["method", "of", "task"]).sort_index()
    average = table["train_loss"]["average", ""]
    whole = evaluate(
        tiny_zoo.model,
        merge_zoo("average", tiny_zoo),
        tiny_zoo.heads,
        tiny_zoo.suite,
        split="train",
    ).set_index("task")
    for name, task in tiny_zoo.suite.tasks.items():
        assert len(task.train) > 50, "so that cutting shows"
        assert average[name] == pytest.approx(whole["loss"][name], rel=0.3)
        assert average[name] != pytest.approx(whole["loss"][name], rel=1e-3)
    alone = individual(cut(tiny_zoo, 50), autocast=True).set_index("task")
    assert table["loss"]["individual", ""].to_dict() == alone["loss"].to_dict()


def test_surgery_sees_one_split(tables: dict[str, pd.DataFrame]) -> None:
    table = tables["test"]
    mended = table[table["method"] == "surgery"]
    assert list(dict.fromkeys(mended["of"])) == ["train", "validation", "test"]
    losses = mended.groupby("of")["loss"].mean()
    assert losses.nunique() == 3
    assert (losses < table.loc[table["method"] == "average", "loss"].mean()).all()
