"""What chapter 41 reads out of the study ``variance``."""

import numpy as np
import pandas as pd

from mergebook.stability.measure.variance import CONTROLS

POINT = ["operator", "density"]
MEASURES = ("raw", "relative")
SCALES = ("printed", "chosen")
# With the scale chosen, the projection does not follow from the mask.
LINKED = [("printed", "projection"), *((scale, name) for scale in SCALES for name in MEASURES)]
# Of the study `variance`, by suite.
RESULTS = {"glyphs8": "glyphs8-variance", "vision8": "vision8-variance-vit_small"}
RESULTS["sentences8"] = "sentences8-variance"


def beside_losses(variance: pd.DataFrame, test: pd.DataFrame) -> pd.DataFrame:
    """Changes by an operator: log ratios ``raw`` and ``relative`` of variances, and of loss (nats).

    ``projection`` is of the step on that of the average, at the same kind of scale.
    """
    means = test.groupby(["seed", "scale", *POINT], sort=False)[["loss", "projection"]].mean()
    plain = means["loss"].xs(("none", 1.0), level=tuple(POINT))
    change = means.assign(change=means["loss"] - plain).drop(columns="loss").reset_index()
    ratios = variance.set_index(["seed", *POINT])[list(MEASURES)]
    before = ratios.xs(("none", 1.0), level=tuple(POINT))
    logs = (ratios / before).apply(np.log).reset_index()
    return change.merge(logs, on=["seed", *POINT], validate="many_to_one")


def links(changes: pd.DataFrame) -> pd.DataFrame:
    """Spearman's correlation of the loss change with the rest, by seed; said to be positive."""
    own = changes[~changes["operator"].isin(CONTROLS)]
    ranks = own.groupby(["scale", "seed"])[[*MEASURES, "projection", "change"]].corr("spearman")
    wide = ranks["change"].unstack("seed").rename_axis(["scale", "measure"])
    return wide.loc[[pair for pair in LINKED if pair in wide.index]].T
