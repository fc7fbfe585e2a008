"""Fine-tuning: what it leaves alone, repeats, lowers and refuses."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mergebook.suites.heads import features, few_shot_head
from mergebook.suites.models import Head, scale_pixels
from mergebook.suites.training import Recipe, fine_tune
from mergelib.evaluation.tasks import Split, Suite


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("optimiser", "adam", "'adamw' or 'sgd'"),
        ("learning_rate", 0, "a positive number"),
        ("epochs", 0, "an integer of at least 1"),
        ("batch_size", -1, "an integer of at least 1"),
        ("weight_decay", -0.1, "at least 0"),
        ("warmup", 1.5, "0..1"),
        ("shots", 0, "an integer of at least 1"),
        ("head_scale", math.nan, "a positive number"),
    ],
)
def test_recipes_out_of_range(name: str, value: object, expected: str) -> None:
    with pytest.raises(ValueError, match=f"{name} is {value!r}, expected {expected}"):
        Recipe(**{name: value})  # type: ignore[arg-type]


def make_model() -> nn.Sequential:
    torch.manual_seed(0)
    shrink = [nn.AvgPool2d(4), nn.Flatten(), nn.Linear(192, 16), nn.BatchNorm1d(16), nn.GELU()]
    return nn.Sequential(*shrink, nn.Linear(16, 8))


@pytest.fixture
def task(digits: Suite) -> Split:
    return digits.tasks["digits_low"].train


def tune(model: nn.Module, task: Split, seed: int = 0, **options: object) -> dict[str, Tensor]:
    head = few_shot_head(model, task, 5, transform=scale_pixels, shots=3, scale=10.0, seed=0)
    recipe = Recipe(**{"epochs": 2, "learning_rate": 3e-3, "batch_size": 50, **options})  # type: ignore[arg-type]
    return fine_tune(model.train(), head, task, recipe, transform=scale_pixels, seed=seed)


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
    head = few_shot_head(model, task, 5, transform=scale_pixels, shots=3, scale=10.0, seed=0)
    losses = []
    for state in (before, tuned):
        model.load_state_dict(state)
        losses.append(
            F.cross_entropy(head(features(model, task.inputs, scale_pixels)), task.labels).item()
        )
    assert losses[1] < 0.7 * losses[0]


def test_the_head_stays(task: Split) -> None:
    model, trainable = make_model(), nn.Linear(8, 5)
    before = trainable.weight.detach().clone()
    fine_tune(model, trainable, task, Recipe(epochs=1), transform=scale_pixels)
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

    def tell(step: int, loss: float) -> None:
        steps.append(step)

    fine_tune(make_model(), head, task, recipe, transform=scale_pixels, on_step=tell)
    assert steps == list(range(3 * 3)), "240 pictures are two batches and a rest"
