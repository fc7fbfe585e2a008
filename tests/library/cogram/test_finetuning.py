"""Kickoff and fine-tuning against torch's optimisers run by hand."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mergelib.cogram.finetuning import fine_tune, kickoff


class Case:
    """A network with BatchNorm, and two tasks of 20 and 12 examples."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        # No bias before BatchNorm: its gradient is zero but for rounding, which Adam would amplify.
        self.model = nn.Sequential(
            nn.Linear(6, 8, bias=False), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 5)
        )
        self.state = {key: value.clone() for key, value in self.model.state_dict().items()}
        self.heads = {task: nn.Linear(5, 3) for task in ("a", "b")}
        self.data: Any = {
            task: (torch.randn(size, 6), torch.randint(3, (size,)))
            for task, size in (("a", 20), ("b", 12))
        }

    def run(self, method: Callable[..., Any], **options: Any) -> Any:
        given: dict[str, Any] = {
            "state": self.state,
            "model": self.model,
            "heads": self.heads,
            "data": self.data,
            "learning_rate": 0.01,
        }
        given.update(options)
        return method(given.pop("state"), **given)

    def loss(self, network: nn.Module) -> Tensor:
        """All examples at once: then an epoch is a step, and batches need no imitation."""
        parts = network(torch.cat([x for x, _ in self.data.values()])).split([20, 12])
        losses = [
            F.cross_entropy(self.heads[task](part), y)
            for part, (task, (_, y)) in zip(parts, self.data.items(), strict=True)
        ]
        return torch.stack(losses).mean()

    def by_hand(self, make: Callable[..., torch.optim.Optimizer], steps: int, clip: Any) -> Any:
        self.model.load_state_dict(self.state)
        self.model.train()
        optimiser = make(self.model.parameters())
        for _ in range(steps):
            optimiser.zero_grad()
            self.loss(self.model).backward()
            gradients = [p.grad for p in self.model.parameters() if p.grad is not None]
            norm = torch.cat([g.flatten() for g in gradients]).norm()
            if clip is not None and norm > clip:
                for gradient in gradients:
                    gradient *= clip / norm
            optimiser.step()
        return self.model.state_dict()


@pytest.fixture
def case() -> Case:
    return Case()


def close(found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert list(found) == list(expected)
    for key, value in expected.items():
        torch.testing.assert_close(found[key], value, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("clip", [None, 0.05])
@pytest.mark.parametrize("optimiser", ["adam", "sgd"])
def test_a_kickoff_is_torchs_optimiser_at_the_raised_rate(
    case: Case, optimiser: str, clip: float | None
) -> None:
    made = case.run(
        kickoff, optimiser=optimiser, momentum=0.8, clip=clip, epochs=4, factor=3, batch_size=20
    )
    makers: dict[str, Callable[..., torch.optim.Optimizer]] = {
        "adam": lambda parameters: torch.optim.Adam(parameters, lr=0.03),
        "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.03, momentum=0.8),
    }
    close(made.state, case.by_hand(makers[optimiser], 4, clip))
    assert made.state["1.num_batches_tracked"] == 4, "BatchNorm's counter comes along"


def test_momentum_and_clipping_by_hand() -> None:
    """Y = w on one example with target 0: the gradient is 2w, so every step is arithmetic."""
    model = nn.Linear(1, 1, bias=False)
    options: Any = {
        "model": model,
        "data": {"t": (torch.ones(1, 1), torch.zeros(1))},
        "heads": {"t": nn.Identity()},
        "learning_rate": 0.05,
        "factor": 2,
        "epochs": 2,
        "optimiser": "sgd",
        "momentum": 0.5,
    }
    start = {"weight": torch.tensor([[10.0]])}
    # g = 20, w = 10 - 2 = 8; g = 16, v = 16 + 10 = 26, w = 8 - 2.6 = 5.4
    made = kickoff(start, **options)
    assert made.state["weight"].item() == pytest.approx(5.4)
    assert made.history["t"].tolist() == pytest.approx([100.0, 64.0])
    # clipped to 3: w = 9.7; v = 3 + 1.5 = 4.5, w = 9.25
    clipped = kickoff(start, clip=3.0, **options)
    assert clipped.state["weight"].item() == pytest.approx(9.25, rel=1e-5)


def test_an_epoch_takes_every_example_once(case: Case) -> None:
    """At a rate of nearly nothing, the means of an epoch are those over all data.

    Evaluation statistics play no part: BatchNorm is taken out, so that batches do not matter.
    """
    case.model = nn.Sequential(nn.Linear(6, 5), nn.Tanh())
    case.state = case.model.state_dict()
    case.data["c"] = (torch.randn(2, 6), torch.randint(3, (2,)))  # fewer examples than steps
    case.heads["c"] = nn.Linear(5, 3)
    made = case.run(fine_tune, learning_rate=1e-12, optimiser="sgd", epochs=3, batch_size=6)
    assert made.history["epoch"].tolist() == [0, 1, 2]
    assert list(made.history) == ["epoch", "a", "b", "c"]
    for task, (x, y) in case.data.items():
        expected = F.cross_entropy(case.heads[task](case.model(x)), y).item()
        assert made.history[task].tolist() == pytest.approx([expected] * 3, rel=1e-5)


def test_what_is_given_stays_and_runs_repeat(case: Case) -> None:
    before = {key: value.clone() for key, value in case.state.items()}
    head = case.heads["a"].weight.clone()
    made = case.run(kickoff, epochs=2, batch_size=8)
    assert all(torch.equal(case.state[key], before[key]) for key in before)
    assert all(torch.equal(value, before[key]) for key, value in case.model.state_dict().items())
    assert torch.equal(case.heads["a"].weight, head)
    again = case.run(kickoff, epochs=2, batch_size=8)
    assert all(torch.equal(made.state[key], again.state[key]) for key in made.state)
    other = case.run(kickoff, epochs=2, batch_size=8, seed=1)
    assert not torch.equal(made.state["0.weight"], other.state["0.weight"])
    none = case.run(kickoff, epochs=0)
    assert all(torch.equal(none.state[key], before[key]) for key in before)
    assert none.history.empty


def test_a_kickoff_is_fine_tuning_at_the_raised_rate(case: Case) -> None:
    raised = case.run(kickoff, epochs=2)
    plain = case.run(fine_tune, epochs=2, learning_rate=2.5 * 0.01)
    assert all(torch.equal(raised.state[key], plain.state[key]) for key in plain.state)
    slower = case.run(fine_tune, epochs=2)
    assert not torch.equal(raised.state["0.weight"], slower.state["0.weight"])


def test_training_learns(case: Case) -> None:
    made = case.run(fine_tune, epochs=60, learning_rate=0.02)
    assert (made.history[["a", "b"]].iloc[-1] < 0.5 * made.history[["a", "b"]].iloc[0]).all()


NAN = (torch.full((4, 6), torch.nan), torch.zeros(4, dtype=torch.long))


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"epochs": 10}, "epochs is 10, but a kickoff has fewer than 10"),
        ({"epochs": -1}, "epochs is -1"),
        ({"factor": 0.0}, "factor is 0"),
        ({"learning_rate": -1.0}, "learning_rate is -1.0"),
        ({"learning_rate": torch.nan}, "learning_rate is nan"),
        ({"optimiser": "lbfgs"}, "unknown optimiser 'lbfgs'; known: adamw, adam, sgd"),
        ({"momentum": 1.0}, "momentum is 1.0"),
        ({"clip": 0.0}, "clip is 0"),
        ({"batch_size": 0}, "batch_size is 0"),
        ({"data": {}}, "no data"),
        ({"data": {"b": NAN}}, "inputs of task 'b' holds NaN or Inf"),
        ({"data": {"b": torch.zeros(4, 6)}}, r"training needs labels: .* task 'b'"),
        ({"data": {"z": NAN}}, "task 'z' has no head"),
        ({"state": {}}, "state lacks key '0.weight'"),
    ],
)
def test_bad_input(case: Case, options: dict[str, Any], match: str) -> None:
    with pytest.raises(ValueError, match=match):
        case.run(kickoff, **options)
