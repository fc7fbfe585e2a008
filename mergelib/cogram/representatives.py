"""Prototypes: a few representatives of a labelled batch on which candidates are compared.

CoGraM uses one prototype per class c instead of all its examples S_c (Lenz, Eq. 1), the geometric
mean of magnitudes (∏ (|x| + ε))^(1/|S_c|). It loses the sign of every feature; the other kinds,
some from the paper's outlook, keep it.
"""

import warnings
from collections.abc import Sequence

import torch
from torch import Generator, Tensor

from mergelib.messages.extras import needs
from mergelib.messages.kinds import Positive, Size, annotations_of, check_fits
from mergelib.problems.checks import check_choice, check_finite

KINDS = ("geometric", "arithmetic", "medoid", "kmeans", "batch")


def prototypes(
    inputs: Tensor,
    targets: Tensor,
    *,
    kind: str = "geometric",
    per_class: Size = 1,
    epsilon: Positive = 1e-6,
    seed: int = 0,
) -> tuple[Tensor, Tensor]:
    """Return representatives of every class.

    k-means splits the examples of a class into ``per_class`` groups (fewer if there are fewer
    distinct examples), and each group gets one representative.

    Args:
        inputs: floating ``(N, …)``, finite.
        targets: integer classes ``(N,)``.
        kind: ``"geometric"``: Eq. 1; features around zero lose most of their information.
            ``"arithmetic"`` or ``"kmeans"``: the mean. ``"medoid"``: the example with the smallest
            sum of distances to the others. ``"batch"``: ``per_class`` random examples, no groups.
        per_class: representatives per class, at least 1.
        epsilon: ε > 0 of the geometric mean.
        seed: seed of k-means and of random examples.

    Returns:
        Prototypes ``(P, …)`` and targets ``(P,)`` in the order of classes, with the inputs' dtypes
        and devices.

    Raises:
        ValueError: there are no examples, inputs and targets do not fit or are not finite, or a
            setting is invalid.
    """
    check_fits(annotations_of(prototypes), locals())
    check_choice("kind", kind, KINDS)
    _check(inputs, targets)
    values, labels = [], []
    generator = Generator().manual_seed(seed)
    for label in targets.unique():
        rows = (targets == label).nonzero()[:, 0].cpu()
        for part in _groups(inputs[rows], kind, per_class, seed, generator):
            examples = inputs[rows[part]].double()
            if kind == "geometric":
                mean = (examples.abs() + epsilon).log().mean(0).exp()
            else:
                mean = examples.mean(0)
            values.append(mean.to(inputs.dtype))
            labels.append(label)
    return torch.stack(values), torch.stack(labels)


def _check(inputs: Tensor, targets: Tensor) -> None:
    if not inputs.is_floating_point():
        raise ValueError(
            f"inputs are {inputs.dtype}, expected a floating dtype; apply the transform first"
        )
    if len(inputs) != len(targets):
        raise ValueError(f"there are {len(inputs)} inputs and {len(targets)} targets")
    if not len(inputs):
        raise ValueError("there are no examples; pass at least one")
    if targets.is_floating_point() or targets.dim() != 1:
        raise ValueError(
            f"targets are {targets.dtype} of shape {tuple(targets.shape)}, expected one integer "
            "class per input"
        )
    check_finite("the batch", inputs)


def _groups(
    points: Tensor, kind: str, per_class: int, seed: int, generator: Generator
) -> Sequence[Tensor]:
    """Return the rows behind each representative of one class with points ``(N, …)``."""
    if kind == "batch":
        return [*torch.randperm(len(points), generator=generator)[:per_class].split(1)]
    groups = _cluster(points, per_class, seed)
    if kind == "medoid":
        return [group[[_medoid(points[group])]] for group in groups]
    return groups


def _cluster(points: Tensor, count: int, seed: int) -> list[Tensor]:
    """Return the rows of each of at most ``count`` k-means clusters of points ``(N, …)``."""
    if count == 1:
        return [torch.arange(len(points))]
    with needs("align"):
        from sklearn.cluster import KMeans
        from sklearn.exceptions import ConvergenceWarning

    flat = points.detach().reshape(len(points), -1).double().cpu().numpy()
    with warnings.catch_warnings():  # of fewer distinct points than clusters
        warnings.simplefilter("ignore", ConvergenceWarning)
        kmeans = KMeans(min(count, len(flat)), n_init=10, random_state=seed)
        labels = torch.from_numpy(kmeans.fit_predict(flat))
    return [(labels == label).nonzero()[:, 0] for label in labels.unique()]


def _medoid(points: Tensor) -> int:
    """Return the first row with the smallest sum of distances to the others."""
    flat = points.reshape(len(points), -1).double()
    sums = torch.cat([torch.cdist(part, flat).sum(1) for part in flat.split(1024)])
    return int(sums.argmin())
