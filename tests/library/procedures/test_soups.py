"""The greedy soup against its definition, on models whose accuracies can be counted by hand."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import mergelib as ml

State = dict[str, Tensor]


def threshold(value: float) -> State:
    """A model of one number: it answers class 1 where the input exceeds ``value``."""
    return {"weight": torch.ones(1, 1), "bias": torch.tensor([-float(value)])}


class TwoClasses(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([-x, x], dim=-1)


X = torch.arange(10.0)[:, None]  # the true threshold is 4.5
DATA = {"numbers": (X, (X[:, 0] > 4.5).long())}
MODEL, HEADS = nn.Linear(1, 1), {"numbers": TwoClasses()}


def soup(experts: dict[str, State] | list[State], **options: Any) -> Any:
    return ml.adapt(
        "greedy_soup",
        experts,
        pretrained=threshold(0),
        model=MODEL,
        heads=options.pop("heads", HEADS),
        data=options.pop("data", DATA),
        **options,
    )


def test_by_hand() -> None:
    # Of ten, 3.5 gets 9 right, 6.5 gets 8, and 8.5 gets 6. The mean of the first two is 5, which
    # calls 5 a draw and gets 9; that of all three is 6.17 and gets 8.
    made = soup({"far": threshold(8.5), "low": threshold(3.5), "high": threshold(6.5)})
    assert made.history["expert"].tolist() == ["low", "high", "far"]
    assert made.history["accuracy"].tolist() == pytest.approx([0.9, 0.8, 0.6])
    assert made.history["soup"].tolist() == pytest.approx([0.9, 0.9, 0.8])
    assert made.history["added"].tolist() == [True, True, False]
    assert made.coefficients["weight"].to_dict() == {"far": 0, "low": 0.5, "high": 0.5}
    torch.testing.assert_close(made.state["bias"], torch.tensor([-5.0]))


def test_it_is_never_worse_than_the_best_model() -> None:
    generator = torch.Generator().manual_seed(0)
    for _ in range(20):
        values = (9 * torch.rand(5, generator=generator)).tolist()
        made = soup([threshold(value) for value in values])
        last = made.history.loc[made.history["added"], "soup"].iloc[-1]
        assert last >= made.history["accuracy"].max()
        assert made.coefficients["weight"].sum() == pytest.approx(1)


def margin(logits: Tensor, labels: Tensor) -> Tensor:
    """The smallest logit of a true class: 5 − t or t − 4, of a threshold t between."""
    return logits.gather(1, labels[:, None]).min()


def test_another_score_by_hand() -> None:
    """All are always right; the mean of the first two is 4.475, and of all three 4.633."""
    experts = {"far": threshold(4.95), "low": threshold(4.25), "high": threshold(4.7)}
    assert soup(experts).history["added"].all()
    made = soup(experts, score=margin)
    assert made.history["expert"].tolist() == ["high", "low", "far"]
    assert made.history["score"].tolist() == pytest.approx([0.3, 0.25, 0.05], abs=1e-6)
    assert made.history["soup"].tolist() == pytest.approx([0.3, 0.475, 0.367], abs=1e-3)
    assert made.history["added"].tolist() == [True, True, False]
    torch.testing.assert_close(made.state["bias"], torch.tensor([-4.475]))


def test_a_score_below_zero_and_labels_that_are_not_judged() -> None:
    """Two positions a row, the second of which is ignored, as in texts; losses can only be low."""
    inputs, labels = X[:, None].expand(-1, 2, -1), DATA["numbers"][1]
    ignored = torch.stack([labels, torch.full_like(labels, -100)], dim=1)
    data = {"numbers": (inputs.contiguous(), ignored)}
    experts = {"far": threshold(8.5), "near": threshold(4.5)}

    def likelihood(logits: Tensor, labels: Tensor) -> Tensor:
        return -nn.functional.cross_entropy(logits, labels)

    made = soup(experts, data=data, score=likelihood)
    alone = soup(experts, score=likelihood)
    assert made.history["expert"].tolist() == ["near", "far"]
    assert (made.history["score"] < 0).all()
    assert made.history["score"].tolist() == pytest.approx(alone.history["score"].tolist())


def test_equal_models_are_all_taken() -> None:
    made = soup([threshold(4.5)] * 3)
    assert made.history["added"].all()
    torch.testing.assert_close(made.state, threshold(4.5))


def test_tasks_count_alike_however_long() -> None:
    """Two tasks that want opposite answers: half right, whatever their sizes and batches."""
    data = {"numbers": DATA["numbers"], "opposite": (X[:2], torch.ones(2, dtype=torch.long))}
    made = soup({"m": threshold(4.5)}, data=data, heads={**HEADS, "opposite": TwoClasses()})
    assert made.history["accuracy"].tolist() == [0.5]
    again = soup(
        {"m": threshold(4.5)},
        data=data,
        heads={**HEADS, "opposite": TwoClasses()},
        batch_size=3,
        transform=lambda x: x,
    )
    assert again.history["accuracy"].tolist() == [0.5]


def test_bad_input() -> None:
    experts = [threshold(1), threshold(2)]
    with pytest.raises(ValueError, match=r"greedy_soup needs labels: .* task 'numbers'"):
        soup(experts, data={"numbers": X})
    with pytest.raises(ValueError, match="task 'letters' has no head; there are: numbers"):
        soup(experts, data={"letters": DATA["numbers"]})
    with pytest.raises(ValueError, match="no data"):
        soup(experts, data={})
    with pytest.raises(ValueError, match="score is 'loss', expected a function"):
        soup(experts, score="loss")
    with pytest.raises(ValueError, match="the score on task 'numbers' is nan"):
        soup(experts, score=lambda logits, labels: float("nan"))
    with pytest.raises(ValueError, match="expert 1 lacks key 'bias'"):
        soup([threshold(1), {"weight": torch.ones(1, 1)}])


def test_uniform_soup_needs_no_data() -> None:
    made = ml.adapt(
        "uniform_soup", {"low": threshold(1), "high": threshold(4)}, pretrained=threshold(0)
    )
    torch.testing.assert_close(made.state, threshold(2.5))
    assert made.coefficients["weight"].to_dict() == {"low": 0.5, "high": 0.5}
    assert ml.methods().loc["uniform_soup", "needs"] == "experts, pretrained, no data"
    with pytest.raises(ValueError, match="expert 1 lacks key 'bias'"):
        ml.adapt(
            "uniform_soup", [threshold(1), {"weight": torch.ones(1, 1)}], pretrained=threshold(0)
        )


def test_what_is_missing_is_asked_for() -> None:
    with pytest.raises(ValueError, match="greedy_soup needs data: pass data="):
        soup([threshold(1)], data=None)
    with pytest.raises(ValueError, match="greedy_soup needs the pretrained model: pass"):
        ml.adapt("greedy_soup", [threshold(1)], model=MODEL, heads=HEADS, data=DATA)
