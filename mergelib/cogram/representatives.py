"""Prototypes: a few representatives of a labelled batch, on which candidates are judged.

CoGraM's losses are taken on one prototype of each class c instead of all its examples S_c (Lenz,
Eq. 1): fewer comparisons, and less variance. Its prototype is the geometric mean of magnitudes,
(∏ (|x| + ε))^(1/|S_c|), which forgets the sign of every feature; the other kinds keep it. The
paper's outlook names k-means and medoids.
"""

import warnings
from collections.abc import Sequence

import torch
from torch import Generator, Tensor

from mergelib.messages.extras import needs
from mergelib.problems.checks import check_finite

KINDS = ("geometric", "arithmetic", "medoid", "kmeans", "batch")


def prototypes(
    inputs: Tensor,
    targets: Tensor,
    *,
    kind: str = "geometric",
    per_class: int = 1,
    epsilon: float = 1e-6,
    clusters: int | None = None,
    seed: int = 0,
) -> tuple[Tensor, Tensor]:
    """Representatives of every class, or of every cluster of targets.

    The examples of a class are cut by k-means into ``per_class`` groups (of one: all of them; fewer
    where a class has fewer different examples), and each group gets one representative.

    Args:
        inputs: floating ``(N, …)``, finite.
        targets: classes, integer ``(N,)``; or what a regression predicts, floating ``(N,)`` or
            ``(N, D)``, whose k-means clusters take the place of classes.
        kind: what represents a group. ``"geometric"``: Eq. 1, the geometric mean of magnitudes; no
            sign survives, so features around zero lose most of what tells classes apart.
            ``"arithmetic"``: the mean; ``"kmeans"`` is its name for the centres of several groups.
            ``"medoid"``: the example with the least sum of Euclidean distances to the others.
            ``"batch"``: no groups, but ``per_class`` examples of the class at random.
        per_class: representatives of each class, at least 1.
        epsilon: ε > 0 of the geometric mean, which one zero would otherwise make zero.
        clusters: of floating targets, at least 1; only for these.
        seed: of k-means and of random examples.

    Returns:
        Prototypes ``(P, …)`` and targets ``(P,)`` or ``(P, D)``, with the dtype and device of what
        was given, in the order of classes. A floating target is the mean over the group; an example
        that stands for a group keeps its own.

    Raises:
        ValueError: no examples, not one target for each, integer inputs, NaN or Inf, an unknown
            kind, a number out of range.
    """
    _check(inputs, targets, kind, per_class, epsilon)
    values, wanted = [], []
    generator = Generator().manual_seed(seed)
    for rows in _classes(targets, clusters, seed):
        for part in _groups(inputs[rows], kind, per_class, seed, generator):
            group = rows[part]
            examples = inputs[group].double()
            if kind == "geometric":
                mean = (examples.abs() + epsilon).log().mean(0).exp()
            else:
                mean = examples.mean(0)
            values.append(mean.to(inputs.dtype))
            wanted.append(targets[group].double().mean(0).to(targets.dtype))
    return torch.stack(values), torch.stack(wanted)


def _check(inputs: Tensor, targets: Tensor, kind: str, per_class: int, epsilon: float) -> None:
    if kind not in KINDS:
        raise ValueError(f"unknown kind {kind!r}; known: {', '.join(KINDS)}")
    if per_class < 1:
        raise ValueError(f"per_class is {per_class}, expected at least 1")
    if not epsilon > 0:
        raise ValueError(f"epsilon is {epsilon}, expected a positive number")
    if not inputs.is_floating_point():
        raise ValueError(
            f"inputs are {inputs.dtype}, expected floating ones: "
            "apply what the model's inputs go through first"
        )
    if len(inputs) != len(targets):
        raise ValueError(f"there are {len(inputs)} inputs and {len(targets)} targets")
    if not len(inputs):
        raise ValueError("no examples to represent")
    most = 2 if targets.is_floating_point() else 1
    if targets.dim() > most:
        raise ValueError(
            f"targets of {targets.dtype} have shape {tuple(targets.shape)}, "
            f"expected at most {most} dimensions"
        )
    check_finite("the batch", inputs)
    if targets.is_floating_point():
        check_finite("the batch's targets", targets)


def _classes(targets: Tensor, clusters: int | None, seed: int) -> list[Tensor]:
    """The rows of each class, in order; of each k-means cluster of floating targets."""
    if targets.is_floating_point():
        if clusters is None or clusters < 1:
            raise ValueError(f"floating targets need clusters of at least 1, got {clusters}")
        return _cluster(targets, clusters, seed)
    if clusters is not None:
        raise ValueError(f"clusters is {clusters}, but targets are classes: leave it out")
    return [(targets == label).nonzero()[:, 0].cpu() for label in targets.unique()]


def _groups(
    points: Tensor, kind: str, per_class: int, seed: int, generator: Generator
) -> Sequence[Tensor]:
    """The rows behind each representative of one class with points ``(N, …)``."""
    if kind == "batch":
        rows = torch.randperm(len(points), generator=generator)[:per_class]
        return [row[None] for row in rows]
    groups = _cluster(points, per_class, seed)
    if kind == "medoid":
        return [group[[_medoid(points[group])]] for group in groups]
    return groups


def _cluster(points: Tensor, count: int, seed: int) -> list[Tensor]:
    """Rows of each of at most ``count`` k-means clusters of points ``(N, …)``."""
    if count == 1:
        return [torch.arange(len(points))]
    with needs("align"):
        from sklearn.cluster import KMeans
        from sklearn.exceptions import ConvergenceWarning

    flat = points.detach().reshape(len(points), -1).double().cpu().numpy()
    with warnings.catch_warnings():  # it warns of fewer different points than clusters
        warnings.simplefilter("ignore", ConvergenceWarning)
        chosen = KMeans(min(count, len(flat)), n_init=10, random_state=seed).fit_predict(flat)
    labels = torch.from_numpy(chosen)
    return [(labels == label).nonzero()[:, 0] for label in labels.unique()]


def _medoid(points: Tensor) -> int:
    """The row of points ``(N, …)`` with the least sum of distances to the others; the first."""
    flat = points.reshape(len(points), -1).double()
    sums = torch.cat([torch.cdist(part, flat).sum(1) for part in flat.split(1024)])
    return int(sums.argmin())
