"""Losses and metrics of tasks that do not use cross-entropy and accuracy."""

import torch.nn.functional as F
from torch import Tensor

from mergelib.evaluation.tasks import Metric
from mergelib.messages.extras import needs


def squared_error(outputs: Tensor, labels: Tensor, *, reduction: str = "mean") -> Tensor:
    """Return the squared error of one output per label, ``(N, 1)`` or ``(N,)`` and ``(N,)``."""
    if outputs.numel() != labels.numel():
        raise ValueError(
            f"outputs have shape {tuple(outputs.shape)}, expected one for each of the "
            f"{labels.numel()} labels"
        )
    return F.mse_loss(outputs.flatten(), labels.flatten().to(outputs.dtype), reduction=reduction)


def matthews(outputs: Tensor, labels: Tensor) -> float:
    """Return Matthews' correlation of predicted classes and labels, -1..1."""
    with needs("align"):
        from sklearn.metrics import matthews_corrcoef

    return float(matthews_corrcoef(labels.numpy(), outputs.argmax(1).numpy()))


def correlation(outputs: Tensor, labels: Tensor) -> float:
    """Return the mean of Pearson's and Spearman's correlation of outputs ``(N, 1)`` and labels."""
    with needs("align"):
        from scipy.stats import pearsonr, spearmanr

    pair = outputs.flatten().numpy(), labels.numpy()
    return float((pearsonr(*pair).statistic + spearmanr(*pair).statistic) / 2)


MATTHEWS = Metric("matthews", matthews)
CORRELATION = Metric("correlation", correlation, of_classes=False)
