"""Synthetic data for two networks, as in CoGraM's tests (Lenz, section Results), and the networks.

*Homogeneous*: A and B draw from one distribution. *Heterogeneous*: they share the classes' centres,
and each has its own subclusters, covariances and distortion. The paper gives no strengths; those
here were chosen by A and B alone, which are right on about four of five homogeneous test examples.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Generator, Tensor, nn

from mergebook.suites.data.sampling import balanced_labels
from mergelib.cogram.finetuning import fine_tune
from mergelib.evaluation.tasks import Split
from mergelib.hashing import stable_seed
from mergelib.messages.brief import Brief
from mergelib.training import seeded

# The tangent's argument stays within ±1.25, off the poles at ±π/2: it is at most tan 1.25 = 3.
_LIMIT = 1.25

Range = tuple[float, float]
Draw = Callable[[int, float, Generator], Split]


@dataclass(frozen=True, repr=False)
class SyntheticPair(Brief):
    """Data of networks A and B: `inputs` float32 (N, dimensions), `labels` int64 (N,).

    Half of `validation` and of `test` comes from A's distribution (the first rows), half from B's.
    """

    a: Split
    b: Split
    validation: Split
    test: Split


@dataclass(frozen=True)
class Settings:
    """Sizes and strengths; from each range the seed draws one value for a distribution."""

    classes: int = 20  # each equally often
    dimensions: int = 32
    subclusters: int = 3  # of each class
    train_size: int = 1000  # examples of each network
    validation_size: int = 1000  # examples together, half from each distribution
    test_size: int = 2000
    separation: Range = (0.5, 0.6)  # standard deviation of a centre's coordinates, for both
    shift: Range = (2.5, 4.0)  # distance of a subcluster's mean from its class's centre
    spread: Range = (0.8, 1.1)  # standard deviation within one, quadratic mean over directions
    sine: Range = (0.3, 1.0)  # amplitude of the sine that is added to every coordinate
    frequency: Range = (0.5, 2.0)  # of this sine, in radians per unit
    tangent: Range = (0.1, 0.6)  # strength of the tangent that is added to every coordinate
    noise: float = 0.5  # standard deviation of what is added last
    test_noise: float = 1.25  # what this is multiplied by in the test data


def synthetic_pair(seed: int, *, heterogeneous: bool = False, **changes: Any) -> SyntheticPair:
    """The data of two networks, of `Settings` with some changes; A's do not depend on B's."""
    made = Settings(**changes)

    def generator(*what: object) -> Generator:
        return Generator().manual_seed(stable_seed("synthetic", *what, seed))

    ours = generator("centres")
    shape = made.classes, made.dimensions
    centres = _uniform(made.separation, ours) * torch.randn(shape, generator=ours)
    names = ("a", "b") if heterogeneous else ("a", "a")
    a, b = (_distribution(centres, made, generator("party", name)) for name in names)
    train = [
        party(made.train_size, made.noise, generator("train", i)) for i, party in enumerate((a, b))
    ]
    held_out = []
    for part, size, strength in (
        ("validation", made.validation_size, made.noise),
        ("test", made.test_size, made.noise * made.test_noise),
    ):
        drawn = generator(part)
        first = a((size + 1) // 2, strength, drawn)
        second = b(size // 2, strength, drawn)
        held_out.append(together(first, second))
    return SyntheticPair(*train, *held_out)


def together(a: Split, b: Split) -> Split:
    """The examples of both, one after the other."""
    return Split(torch.cat([a.inputs, b.inputs]), torch.cat([a.labels, b.labels]))


def _distribution(centres: Tensor, made: Settings, generator: Generator) -> Draw:
    """What draws one network's examples: x distorted by a·sin(f·x) and t·tan(limit·tanh(x / 2))."""
    ranges = (made.shift, made.spread, made.sine, made.frequency, made.tangent)
    shift, spread, sine, frequency, tangent = (_uniform(each, generator) for each in ranges)
    classes, dimensions = centres.shape
    direction = torch.randn(classes, made.subclusters, dimensions, generator=generator)
    means = centres[:, None] + shift * direction / direction.norm(dim=-1, keepdim=True)
    # L Lᵀ has a mean eigenvalue of 1, and a class varies much more in some directions than others.
    factors = torch.randn(classes, dimensions, dimensions, generator=generator) / dimensions**0.5
    factors = spread * factors

    def draw(size: int, noise: float, generator: Generator) -> Split:
        labels = balanced_labels(size, classes, generator)
        part = torch.randint(made.subclusters, (size,), generator=generator)
        normal = torch.randn(size, dimensions, 1, generator=generator)
        x = means[labels, part] + (factors[labels] @ normal)[..., 0]
        distorted = sine * torch.sin(frequency * x)
        distorted += tangent * torch.tan(_LIMIT * torch.tanh(x / 2))
        noises = noise * torch.randn(size, dimensions, generator=generator)
        return Split(x + distorted + noises, labels)

    return draw


def _uniform(bounds: Range, generator: Generator) -> float:
    low, high = bounds
    return low + (high - low) * torch.rand((), generator=generator).item()


def train_pair(
    pair: SyntheticPair, *, seed: int, shared_start: bool = True, hidden: int = 64, epochs: int = 20
) -> tuple[nn.Sequential, dict[str, Tensor], dict[str, Tensor]]:
    """Train A and B by Adam, each on its own data: A's network as it started, and both states."""
    dimensions = pair.a.inputs.shape[1]
    classes = int(torch.cat([pair.a.labels, pair.b.labels]).max()) + 1
    models, states = [], []
    for name, split in (("a", pair.a), ("b", pair.b)):
        start = "a" if shared_start else name
        with seeded(stable_seed("start", start, seed)):
            model = nn.Sequential(
                nn.Linear(dimensions, hidden), nn.ReLU(), nn.Linear(hidden, classes)
            )
        trained = fine_tune(
            model.state_dict(),
            model=model,
            data={name: (split.inputs, split.labels)},
            heads={name: nn.Identity()},
            learning_rate=3e-3,
            epochs=epochs,
            batch_size=64,
            seed=stable_seed("batches", name, seed),
        )
        models.append(model)
        states.append(trained.state)
    return models[0], states[0], states[1]
