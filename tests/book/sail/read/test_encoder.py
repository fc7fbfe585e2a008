"""What chapter 50 reads of grown encoders, on numbers that can be worked out by hand."""

from typing import Any

import pandas as pd
import pytest

from mergebook.plots import use_style
from mergebook.sail.draw import growing
from mergebook.sail.read import encoder


@pytest.fixture(autouse=True)
def result(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two seeds, two tasks: the source at 0.6 and 0.8, and one that is 0.2 worse on the second."""
    tasks: list[dict[str, Any]] = []
    encoders: list[dict[str, Any]] = []
    for seed in (0, 1):
        for way, loss in (("source", 0.0), ("svd", 0.2)):
            for task, accuracy in (("one", 0.6), ("two", 0.8 - loss)):
                row = {"seed": seed, "way": way, "task": task}
                tasks.append({**row, "accuracy": accuracy + seed / 10, "agreement": 1 - loss})
            encoders.append({"seed": seed, "way": way, "correlation": 1 - loss, "change": loss})
    refused = [{"seed": seed, "way": way, "reason": ""} for seed in (0, 1) for way in ("b", "a")]
    tables = {"tasks": tasks, "encoders": encoders, "refused": refused}
    monkeypatch.setattr(encoder, "load_table", lambda _, part: pd.DataFrame(tables[part]))


def test_means_over_tasks() -> None:
    table = encoder.measured().set_index(["seed", "way"])
    assert table["accuracy"].to_dict() == pytest.approx(
        {(0, "source"): 0.7, (0, "svd"): 0.6, (1, "source"): 0.8, (1, "svd"): 0.7}
    )
    worse = table.xs((1, "svd"))
    assert (worse["agreement"], worse["correlation"]) == pytest.approx((0.8, 0.8))
    assert encoder.refused() == ["b", "a"]


def test_the_figure_shows_means_over_seeds() -> None:
    plt = pytest.importorskip("matplotlib.pyplot")
    use_style()
    fig, axes = plt.subplots(1, 2)
    growing.encoders(encoder.measured(), axes)
    accuracy, correlation = (ax.lines[0] for ax in axes)
    assert accuracy.get_xdata().tolist() == pytest.approx([0.75, 0.65])
    assert correlation.get_xdata().tolist() == pytest.approx([1, 0.8])
    assert [text.get_text() for text in axes[0].get_yticklabels()] == ["source", "svd"]
    plt.close(fig)
