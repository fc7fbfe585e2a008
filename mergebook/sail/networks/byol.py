"""BYOL: what a network learns from images without labels (Grill et al., 2020).

An online network (body, projector, predictor; weights θ) predicts what a target network (weights ξ
← τξ + (1 − τ)θ) makes of another view; only the body is kept. Views are by `augment`; the paper's
crops and colours change far more. Simple classifiers of frozen features judge.
"""

import copy
import math
from collections.abc import Collection
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mergebook.suites.pretraining import augment
from mergelib.evaluation.tasks import Split
from mergelib.problems import calling
from mergelib.training import make_optimiser, seeded, shuffled, train

HIDDEN = 128  # units of projector's and predictor's hidden layer; the paper has 4,096
PROJECTION = 32  # size of a projection and of its prediction; the paper has 256


class BYOL(nn.Module):
    """The online network and its target; either normalises by its own batches, each view apart."""

    def __init__(
        self,
        body: nn.Module,  # pictures `(B, ...)` to features `(B, width)`; it is trained in place
        width: int,  # of its features
        *,
        momentum: float = 0.996,  # τ at the start of the training, 0..1
    ) -> None:
        super().__init__()
        self.online = nn.Sequential(body, _perceptron(width))
        self.predictor = _perceptron(PROJECTION)
        self.target = copy.deepcopy(self.online).requires_grad_(False)
        self.momentum = momentum

    def loss(self, first: Tensor, second: Tensor) -> Tensor:
        """Equation 2 in both directions: the sum of two means of 2 − 2 cos, 0..8."""
        views = (first, second)
        predicted = [self.predictor(self.online(view)) for view in views]
        with torch.no_grad():
            projected = [self.target(view) for view in views]
        pairs = zip(predicted, reversed(projected), strict=True)
        cosines = torch.stack([F.cosine_similarity(*pair, dim=1) for pair in pairs])
        return (2 - 2 * cosines).mean(1).sum()

    @torch.no_grad()
    def update(self, share_of_training: float) -> None:
        """Let the target follow: τ = 1 − (1 − τ_base)(cos πs + 1)/2 at a share s of training."""
        momentum = 1 - (1 - self.momentum) * (math.cos(math.pi * share_of_training) + 1) / 2
        for slow, fast in zip(self.target.parameters(), self.online.parameters(), strict=True):
            slow.mul_(momentum).add_(fast, alpha=1 - momentum)


def _perceptron(inputs: int) -> nn.Sequential:
    first = [nn.Linear(inputs, HIDDEN), nn.BatchNorm1d(HIDDEN), nn.ReLU()]
    return nn.Sequential(*first, nn.Linear(HIDDEN, PROJECTION))


def two_views(images: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Two random views of every image, each drawn by `augment`."""
    flips = torch.zeros(len(images), dtype=torch.bool, device=images.device)
    return augment(images, flips, generator), augment(images, flips, generator)


def train_byol(
    body: nn.Module,  # float pictures to features `(B, width)`; it is left as it is
    inputs: Tensor,  # float pictures `(N, 3, 32, 32)` in -1..1
    *,
    steps: int,  # of the whole training
    batch_size: int,  # pictures of a step, at least 2
    learning_rate: float,  # of every step
    kept_at: Collection[int],
    seed: int,  # draws whatever is random
    momentum: float = 0.996,  # as for `BYOL`
) -> dict[int, dict[str, Tensor]]:
    """Train a copy of a body by BYOL, with Adam at a constant rate; its state dicts on the way."""
    device = next(body.parameters()).device
    pictures = inputs.to(device)
    width = calling.features(body, body.state_dict(), pictures[:2]).shape[1]
    trained = copy.deepcopy(body)
    with seeded(seed):
        network = BYOL(trained, width, momentum=momentum).to(device).train()
    generator = torch.Generator(device).manual_seed(seed)
    kept: dict[int, dict[str, Tensor]] = {}

    def loss(rows: Tensor) -> Tensor:
        return network.loss(*two_views(pictures[rows], generator))

    def follow(step: int, _: float) -> None:
        network.update(step / steps)
        if step + 1 in kept_at:
            kept[step + 1] = {key: value.clone() for key, value in trained.state_dict().items()}

    batches = shuffled(len(pictures), batch_size, generator, steps=steps)
    optimiser = make_optimiser(network, "adam", learning_rate, fused=True)
    train(network, batches, loss, optimiser, on_step=follow)
    return kept


def linear_classifier() -> Any:
    """A logistic regression on standardised features; it is not fitted yet."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    return make_pipeline(StandardScaler(), LogisticRegression(C=0.1, max_iter=1000))


def linear_probe(train: Split, *tests: Split) -> list[tuple[float, float]]:
    """Loss (nats) and accuracy (0..1) on test rows of a linear classifier of features."""
    for test in tests:
        if strange := sorted(set(test.labels.tolist()) - set(train.labels.tolist())):
            raise ValueError(f"class {strange[0]} of the test rows is not among the training rows")
    model = linear_classifier().fit(*_arrays(train))
    found = []
    for test in tests:
        features, labels = _arrays(test)
        columns = np.searchsorted(model.classes_, labels)
        chosen = model.predict_log_proba(features)[np.arange(len(labels)), columns]
        found.append((-float(chosen.mean()), float(model.score(features, labels))))
    return found


def _arrays(rows: Split) -> tuple[np.ndarray, np.ndarray]:
    return rows.inputs.double().cpu().numpy(), rows.labels.cpu().numpy()
