"""What chapter 03 counts: cases worked by hand, and the control that repairs nothing."""

import pytest
import torch

from mergebook.chapters import interference
from mergebook.lab.results import load_table
from mergebook.suites.zoo import Zoo
from mergelib.evaluation.loops import evaluate
from mergelib.merging import merge
from mergelib.statedict import flatten

ROWS = torch.tensor([[4.0, 1, -3, 0], [2, -5, 1, 0], [-5, 1, 2, 0]])


def test_rows_are_merged_as_models_are(tiny_zoo: Zoo) -> None:
    rows = interference.task_vectors(tiny_zoo)
    merged = merge("ties", tiny_zoo.experts, pretrained=tiny_zoo.pretrained, density=0.2)
    ours = interference.merge_rows("ties", rows, density=0.2)
    assert torch.allclose(ours, flatten(merged) - flatten(tiny_zoo.pretrained), atol=1e-6)


def test_shares_of_a_case_worked_by_hand() -> None:
    shares = interference.conflict_shares(ROWS, [0.5]).loc[0.5]
    assert shares["shared"] == pytest.approx(2 / 4)  # the first coordinate and the third
    assert shares["in conflict"] == 1
    assert shares["by coins"] == pytest.approx((3 / 4 + 1 / 2) / 2)
    assert shares["squared length"] == pytest.approx((25 / 26 + 29 / 30 + 29 / 30) / 3)


def test_a_normal_rows_squared_length_is_as_predicted() -> None:
    torch.manual_seed(0)
    shares = interference.conflict_shares(torch.randn(3, 200_000), [0.2, 1.0])
    assert shares["squared length"].to_numpy() == pytest.approx(shares["if normal"], abs=0.01)


@pytest.mark.parametrize("cosine", [0.2, 0.77, 1.0])
def test_noise_is_perpendicular_and_as_long_as_asked(cosine: float) -> None:
    torch.manual_seed(1)
    vector = torch.randn(10_000)
    noisy = interference.with_noise(vector, cosine)
    found = interference.cosines({"noisy": noisy}, vector)["noisy"]
    assert found == pytest.approx(cosine, abs=1e-4)
    assert float(noisy @ vector / (vector @ vector)) == pytest.approx(1, abs=1e-4)


def test_noise_refuses_a_cosine_out_of_range() -> None:
    with pytest.raises(ValueError, match="cosine is 0"):
        interference.with_noise(torch.ones(3), 0)


def test_a_step_along_the_sum_is_task_arithmetic_at_any_length(tiny_zoo: Zoo) -> None:
    total = interference.task_vectors(tiny_zoo).sum(0)
    both = {"sum": total, "longer": 7 * total}
    table = interference.along(tiny_zoo, both, total, [0.2, 0.6])
    merged = merge("task_arithmetic", tiny_zoo.experts, pretrained=tiny_zoo.pretrained, scale=0.6)
    judged = evaluate(
        tiny_zoo.model, merged, tiny_zoo.heads, tiny_zoo.suite, split="validation", autocast=True
    )
    for name in both:
        row = table.xs(name).xs(0.6)
        assert row.to_dict() == judged.set_index("task")["accuracy"].to_dict()


def test_full_density_keeps_the_expert(tiny_zoo: Zoo) -> None:
    rows = interference.task_vectors(tiny_zoo)
    expert = interference.own_accuracy(tiny_zoo, rows)
    assert expert > interference.own_accuracy(tiny_zoo, torch.zeros_like(rows))
    ways = interference.redundancy(tiny_zoo, rows, [1.0])
    assert ways.to_numpy().tolist() == [[expert] * 3]


def test_dropping_nothing_changes_nothing(tiny_zoo: Zoo) -> None:
    rows = interference.task_vectors(tiny_zoo)
    drawn = interference.dropped(tiny_zoo, rows, [0.0, 0.9], scale=0.4, draws=2)
    none, most = (drawn[drawn["rate"] == rate] for rate in (0.0, 0.9))
    assert none["length"].tolist() == pytest.approx([1, 1])
    assert none["accuracy"].nunique() == 1
    assert most["length"].tolist() == pytest.approx(most["predicted"].tolist(), rel=0.1)


def test_gains_are_those_of_the_committed_results() -> None:
    found = interference.gains(["vision8", "vision14"], ["ties", "dare"])
    assert list(zip(found["suite"], found["method"], strict=True)) == [
        ("vision8", "ties"),
        ("vision8", "dare"),
        ("vision14", "ties"),
    ]
    means = load_table("vision8-baselines").groupby("method")["accuracy"].mean()
    first = found.iloc[0]
    assert first["gain"] == pytest.approx(100 * (means["ties"] - means["task_arithmetic"]))
    assert first["low"] < first["gain"] < first["high"]
    assert interference.chosen_scales(["vision8"], ["ties"])["ties"].between(0.5, 3).all()
