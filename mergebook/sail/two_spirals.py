"""Two spirals, sources that saw a part of them, and many small networks trained as one.

SAIL's appendix K gives no size, turns or noise, and two readings of what D_1 has seen.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Generator, Tensor, nn
from torch.nn.functional import softplus

from mergelib.evaluation.tasks import Split
from mergelib.hashing import stable_seed
from mergelib.messages.brief import Brief

TURNS = 1.5
NOISE = 0.1
RADIUS = 3.0
SIZES = (500, 250, 250)  # to train, to evaluate on the way, to judge by
SHARE = 0.4
WIDTHS = (2, 50, 2)

State = Mapping[str, Tensor]


@dataclass(frozen=True, repr=False)
class Spirals(Brief):
    """Points of two spirals: inputs float32 ``(N, 2)``, labels int64 ``(N,)``."""

    train: Split  # D*
    validation: Split  # further draws
    test: Split  # further draws
    places: Tensor  # of the points of `train`, 0 at the centre, 1 at the outer end


def spirals(seed: int) -> Spirals:
    """Draw 1,000 points: half of each part from each spiral, in random order."""
    generator = Generator().manual_seed(stable_seed("spirals", seed))
    parts, places = [], []
    for size in SIZES:
        labels = torch.randperm(size, generator=generator) % 2
        place = torch.rand(size, generator=generator).sqrt()  # even along the arm
        angle = 2 * math.pi * TURNS * place + math.pi * labels
        arm = RADIUS * place[:, None] * torch.stack([angle.cos(), angle.sin()], 1)
        parts.append(Split(arm + NOISE * torch.randn(size, 2, generator=generator), labels))
        places.append(place)
    train, validation, test = parts
    return Spirals(train, validation, test, places[0])


def readings(data: Spirals, seed: int) -> dict[str, tuple[Tensor, Tensor]]:
    """Rows of D_1 and D_2 in D*, disjoint, 40 % each, by reading."""
    count = round(SHARE * len(data.train))
    generator = Generator().manual_seed(stable_seed("readings", seed))
    order = torch.randperm(len(data.train), generator=generator)
    one, two = (order[data.train.labels[order] == label][:count] for label in (0, 1))
    sorted_rows = data.places.argsort()
    return {
        "one class": (one, two),
        "inner, outer": (sorted_rows[:count], sorted_rows[-count:]),
        "random": (order[:count], order[count : 2 * count]),
    }


def perceptron() -> nn.Sequential:
    """The paper's MLP, 2-50-2 with ReLU, as PyTorch starts it."""
    return nn.Sequential(nn.Linear(*WIDTHS[:2]), nn.ReLU(), nn.Linear(*WIDTHS[1:]))


class Linears(nn.Module):
    """M linear layers side by side: from ``(n, in)`` or ``(M, n, in)`` to ``(M, n, out)``."""

    def __init__(self, weight: Tensor, bias: Tensor) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(weight), nn.Parameter(bias)

    def forward(self, inputs: Tensor) -> Tensor:
        inputs = inputs.expand(len(self.weight), *inputs.shape[-2:])
        return torch.baddbmm(self.bias[:, None], inputs, self.weight.mT)


def side_by_side(states: Sequence[State]) -> nn.Sequential:
    """Networks of `perceptron` as one model, whose parameters have them along the first axis."""
    rows = {key: torch.stack([state[key] for state in states]) for key in states[0]}
    layers = [Linears(rows[f"{at}.weight"], rows[f"{at}.bias"]) for at in (0, 2)]
    return nn.Sequential(layers[0], nn.ReLU(inplace=True), layers[1])


def taken_apart(model: nn.Module) -> list[dict[str, Tensor]]:
    """The state dict of each network that `side_by_side` put into a model."""
    state = {key: part.detach().clone() for key, part in model.state_dict().items()}
    count = len(next(iter(state.values())))
    return [{key: part[i] for key, part in state.items()} for i in range(count)]


def scores(model: nn.Module, data: Split) -> tuple[Tensor, Tensor]:
    """Cross-entropy in nats and accuracy of each network, ``(M,)``."""
    logits = model(data.inputs)
    margins = (logits[..., 1] - logits[..., 0]) * (2 * data.labels - 1)
    return softplus(-margins).mean(-1), (margins > 0).float().mean(-1)
