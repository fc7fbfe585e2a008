"""Few-shot heads by hand; fine-tuning: what it leaves alone, repeats, lowers and refuses."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mergelib.testbed.models import Head, normalise
from mergelib.testbed.tasks import Split, Suite
from mergelib.testbed.training import Recipe, features, few_shot_head, fine_tune


class Corner(nn.Module):
    """Features are a picture's first two bytes, as normalised."""

    def __init__(self) -> None:
        super().__init__()
        self.unused = nn.Parameter(torch.zeros(1))

    def forward(self, images: Tensor) -> Tensor:
        return images[:, 0, 0, :2]


def corners(pairs: list[tuple[int, int]], labels: list[int]) -> Split:
    images = torch.zeros(len(pairs), 3, 32, 32, dtype=torch.uint8)
    images[:, 0, 0, :2] = torch.tensor(pairs, dtype=torch.uint8)
    return Split(images, torch.tensor(labels))


def unit(x: float, y: float) -> Tensor:
    return torch.tensor([x, y]) / math.hypot(x, y)


def test_features_come_in_order_whatever_the_batch() -> None:
    split = corners([(0, 255), (255, 255), (51, 102)], [0, 0, 0])
    expected = torch.tensor([[-1.0, 1], [1, 1], [-0.6, -0.2]])
    for batch_size in (1, 2, 3):
        torch.testing.assert_close(features(Corner(), split.inputs, batch_size), expected)


def test_few_shot_head_by_hand() -> None:
    """Class 0 points to the mean of three directions, whatever their lengths."""
    pairs = [(255, 255), (255, 127), (102, 153), (0, 255)]
    split = corners(pairs, [0, 1, 0, 0])
    head = few_shot_head(Corner(), split, 2, shots=5, scale=7.0, seed=0)
    x = normalise(torch.tensor(pairs, dtype=torch.uint8)[..., None])[..., 0]
    mean = F.normalize(x[[0, 2, 3]], dim=1).mean(0)
    torch.testing.assert_close(head.weight[0], mean / mean.norm())
    torch.testing.assert_close(head.weight[1], unit(1, -1 / 255))
    assert head.scale == 7
    torch.testing.assert_close(head(3 * head.weight[:1])[0, 0], torch.tensor(7.0))


def test_few_shot_head_picks_shots_of_each_class_by_seed() -> None:
    angles = torch.linspace(0, math.pi / 2, 20)
    pairs = [
        (round(127.5 + 127 * a.cos().item()), round(127.5 + 127 * a.sin().item())) for a in angles
    ]
    split = corners(pairs, [0] * 20)
    directions = F.normalize(features(Corner(), split.inputs), dim=1)

    def picked(seed: int) -> int:
        weight = few_shot_head(Corner(), split, 1, shots=1, scale=1, seed=seed).weight[0]
        gaps = (directions - weight).norm(dim=1)
        assert gaps.min() < 1e-6, "one shot is one example"
        return int(gaps.argmin())

    assert picked(1) == picked(1)
    assert len({picked(seed) for seed in range(10)}) > 3


def test_few_shot_head_needs_examples() -> None:
    with pytest.raises(ValueError, match="class 1 has no example to build its head from"):
        few_shot_head(Corner(), corners([(0, 0)], [0]), 2, shots=1, scale=1, seed=0)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("learning_rate", 0),
        ("epochs", 0),
        ("batch_size", -1),
        ("shots", 0),
        ("head_scale", math.nan),
    ],
)
def test_recipes_out_of_range(name: str, value: float) -> None:
    with pytest.raises(ValueError, match=f"{name} is {value}, expected a positive number"):
        Recipe(**{name: value})
    with pytest.raises(ValueError, match="optimiser is 'adam', expected 'adamw' or 'sgd'"):
        Recipe(optimiser="adam")  # type: ignore[arg-type]


def make_model() -> nn.Sequential:
    torch.manual_seed(0)
    shrink = [nn.AvgPool2d(4), nn.Flatten(), nn.Linear(192, 16), nn.BatchNorm1d(16), nn.GELU()]
    return nn.Sequential(*shrink, nn.Linear(16, 8))


@pytest.fixture
def task(digits: Suite) -> Split:
    return digits.tasks["digits_low"].train


def tune(model: nn.Module, task: Split, seed: int = 0, **options: object) -> dict[str, Tensor]:
    head = few_shot_head(model, task, 5, shots=3, scale=10.0, seed=0)
    recipe = Recipe(**{"epochs": 2, "learning_rate": 3e-3, "batch_size": 50, **options})  # type: ignore[arg-type]
    return fine_tune(model.train(), head, task, recipe, seed=seed)


@pytest.mark.parametrize("optimiser", ["adamw", "sgd"])
def test_fine_tuning_leaves_its_inputs_alone_and_lowers_the_loss(
    task: Split, optimiser: str
) -> None:
    model = make_model()
    before = {key: value.clone() for key, value in model.state_dict().items()}
    rate = {"adamw": 3e-3, "sgd": 3e-2}[optimiser]
    tuned = tune(model, task, optimiser=optimiser, learning_rate=rate)
    assert all(torch.equal(model.state_dict()[key], before[key]) for key in before)
    assert model.training
    assert all(p.requires_grad and p.grad is None for p in model.parameters())
    assert not any(value.requires_grad for value in tuned.values())
    assert tuned["3.num_batches_tracked"] == 10, "two epochs of five steps"
    head = few_shot_head(model, task, 5, shots=3, scale=10.0, seed=0)
    losses = []
    for state in (before, tuned):
        model.load_state_dict(state)
        losses.append(F.cross_entropy(head(features(model, task.inputs)), task.labels).item())
    assert losses[1] < 0.7 * losses[0]


def test_the_head_stays(task: Split) -> None:
    model, trainable = make_model(), nn.Linear(8, 5)
    before = trainable.weight.detach().clone()
    fine_tune(model, trainable, task, Recipe(epochs=1))
    assert torch.equal(trainable.weight, before)
    assert trainable.weight.requires_grad
    assert trainable.weight.grad is None


def test_fine_tuning_repeats_with_a_seed(task: Split) -> None:
    states = []
    for seed, noise in ((0, 1), (0, 2), (1, 1)):
        torch.manual_seed(noise)  # what the caller drew before has no say
        states.append(tune(make_model(), task, seed=seed))
    once, again, other = states
    assert all(torch.equal(once[key], again[key]) for key in once)
    assert not torch.equal(once["2.weight"], other["2.weight"])


def test_divergence_is_an_error_that_names_the_rate(task: Split) -> None:
    with pytest.raises(
        FloatingPointError, match=r"the loss became (nan|inf) in step \d+, at learning rate 1e\+30"
    ):
        tune(make_model(), task, learning_rate=1e30)


def test_every_step_is_told(task: Split) -> None:
    steps: list[int] = []
    head, recipe = Head(torch.randn(5, 8)), Recipe(epochs=3, batch_size=100)
    fine_tune(make_model(), head, task, recipe, on_step=lambda step, loss: steps.append(step))
    assert steps == list(range(3 * 3)), "240 pictures are two batches and a rest"
