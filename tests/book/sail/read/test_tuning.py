"""Goals and rates as they follow from curves on tuning seeds, made up and measured."""

from collections.abc import Iterator
from typing import Any

import pandas as pd
import pytest

from mergebook.lab.results import load_table
from mergebook.sail.costs import TUNING
from mergebook.sail.measure.rates import FACTORIAL, TABLE, Rates, usual_rates
from mergebook.sail.measure.sources import ARMS
from mergebook.sail.read import tuning as module

# The size of each modality's networks in the factorial.
CROSSED = {"GPT": "twice", "ResNet": "half wider", "ResNet, halves": "half wider"}


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Scratch loses a nat in 100 steps at 0.003 and half of that at 0.001; choose is 1 above."""
    rows: list[dict[str, Any]] = []

    def put(arm: str, rate: float, scale: float, slope: float, last: int, **where: str) -> None:
        for seed, step in (
            (seed, step) for seed in (1000, 1001) for step in range(0, last + 1, 20)
        ):
            loss = 9 + 0.1 * (seed - 1000) - slope * step
            rates = Rates(rate, 0.0, scale)._asdict()
            row = {"seed": seed, "arm": arm, **rates, "step": step, "judge": loss}
            rows.append({**row, "choose": loss + 1, **where})

    for size in ("half wider", "twice"):
        put("scratch, tuned", 1e-3, 1, 0.005, 640, size=size)
        put("scratch, tuned", 3e-3, 5, 0.01, 640, size=size)
        put("nearest source", 1e-3, 1, 0.02, 400, size=size)
    pictures = [{"modality": "ResNet", "target": "mnist", "size": "deeper"}]
    put("scratch", 3e-3, 1, 0.05, 100, **pictures[0])
    tables = {module.TEXT: [row for row in rows if "target" not in row]}
    tables["pictures"] = [row for row in rows if "target" in row]
    monkeypatch.setattr(module, "RESULTS", tuple(tables))
    monkeypatch.setattr(module, "load_table", lambda name, _: pd.DataFrame(tables.get(name, [])))
    module.goals.cache_clear()
    yield
    module.goals.cache_clear()


def test_goals_are_those_of_the_best_rate(made: None) -> None:
    """After 300 and 600 of 1,000 steps; of pictures after 40 and 80, the last readings in time.

    Measured goals overrule those of earlier tuning.
    """
    assert module.best_rates(module.tuned(), "twice", "scratch, tuned") == Rates(3e-3, 0.0, 5)
    text = module.goals_for("GPT", "half wider")
    assert text == pytest.approx({"easy": 6.05, "hard": 3.05, "late": 9.05 - 0.02 * 200})
    pictures = module.goals_for("ResNet", "deeper", "mnist")
    assert pictures == pytest.approx({"easy": 9.05 - 2, "hard": 9.05 - 4})
    assert module.goals_for("ResNet", "deeper", "stl10") == {}, "where none was trained"


def test_random_weights_are_compared_where_the_goals_are(made: None) -> None:
    curves = module.tuned()
    random = module.grid(curves, "twice", "scratch, tuned")
    assert random.tolist() == pytest.approx([10.05 - 0.005 * 450, 10.05 - 0.01 * 450])
    assert module.grid(curves, "twice", "nearest source").tolist() == pytest.approx([10.05 - 8])


def test_tuned_rates_are_those_of_the_result() -> None:
    """The rows of the table for random weights of GPTs are the best of its grids."""
    curves = module.tuned()
    assert curves["seed"].min() >= TUNING
    rows = [row for row in TABLE if "GPT" in row.modalities and {*row.arms} <= {*module.RANDOM}]
    assert {arm for row in rows for arm in row.arms} == {*module.RANDOM}
    for row in rows:
        for size in row.sizes or ("half wider", "twice"):
            for arm in row.arms:
                assert module.best_rates(curves, size, arm) == row.rates, (size, arm)


@pytest.mark.parametrize("arm", ["SAIL", "nearest source"])
@pytest.mark.parametrize("size", ["half wider", "twice"])
def test_coarser_rates_of_warm_starts_cost_little(size: str, arm: str) -> None:
    """The study ``arms`` has them at 1e-3: at their best they end less than 0.02 nats lower."""
    losses = module.grid(module.tuned(), size, arm)
    usual = losses.xs(1e-3, level="training").item()
    assert usual - losses.min() < 0.02


def test_rates_are_near_the_best_of_their_grids() -> None:
    """But for two, of which chapter 53 names the one that a primary check needs."""
    suites = ("tinyshakespeare", "vision8", "vision14")
    rows = pd.concat([load_table(f"{suite}-starts_tuning-rates", "curves") for suite in suites])
    rows = rows.fillna({"modality": "GPT"})
    rows = rows[rows["step"] == rows.groupby("modality")["step"].transform("max")]
    assert {*rows["modality"]} == {*CROSSED}
    excess, best = {}, []
    for names, part in rows.groupby(["modality", "start", "size", "arm"]):
        modality, start, size, arm = map(str, names)
        losses = part.groupby(["training", "maps"])["choose"].mean()
        usual = {"arms": usual_rates(modality, start, size, arm)} if arm in ARMS else {}
        if (size, start) == (CROSSED[modality], "shared"):
            maps = FACTORIAL[modality].get("mean" if arm == "SAIL" else arm)
            usual |= {"factorial": maps} if maps else {}
        for study, rates in usual.items():
            same = losses.xs(rates.training, level="training")
            loss = same[rates.maps] if rates.maps else same.item()  # starts without maps
            excess[study, modality, size, arm] = loss - losses.min()
            best.append(losses.reset_index()["training"][losses.argmin()] == rates.training)
    assert min(excess.values()) == 0
    assert sum(best) > len(best) / 2
    behind = [key for key, loss in excess.items() if loss > (0.02 if "GPT" in key else 0.05)]
    assert behind == [
        ("arms", "GPT", "half wider", "scratch, published"),
        ("arms", "ResNet", "deeper", "nearest source"),
    ]
