"""SAIL's claims (Anonymous, 2025), as far as spirals decide them; each setting adds its checks."""

from functools import partial

from mergelib.ledger.sail import spirals
from mergelib.ledger.verdicts import Claim

_DATA = (
    "inputs of the target and of both sources for the weights; goals are set on other seeds; "
    "losses on validation points, accuracy and final losses on test points"
)
_SETTING = (
    "two spirals, sources on 40 % of the points by three readings, from a shared start or own "
    "ones; SAIL's start is the average with Theorem 3's weights, by MMD of inputs"
)
_claim = partial(
    Claim, paper="anonymous2025structured", page="notebooks/52-sail-vision", data=_DATA
)

CLAIMS = (
    _claim(
        key="S1",
        place="Abstract, Proposition 1, Fig. 8",
        statement="SAIL's start reaches a loss faster than scratch",
        reported="curves without numbers",
        method=f"{_SETTING}. log₂ of FLOPs of scratch over SAIL's to a loss fixed beforehand, of "
        "two difficulties, divergences counted (account B); who never gets there counts as if at "
        "the end. Secondary: retraining alone (A), sources counted (C); control: the nearest "
        "source alone",
        test=spirals.faster,
    ),
    _claim(
        key="S3",
        place="Section 4.4",
        statement="the loss has a spike at γ = 0.5, where two sources are averaged evenly",
        reported="a figure, on a grid that does not have 0.5",
        method=f"{_SETTING}. Loss at γ = ½ less the mean of both ends, before retraining and on "
        "the way. Secondary: sources that share their start, and sources matched by Git Re-Basin",
        test=spirals.spike,
    ),
    _claim(
        key="S10",
        place="Abstract, Fig. 8",
        statement="SAIL ends at least as well as scratch",
        reported="a higher final accuracy; no number",
        method=f"{_SETTING}. Test accuracy after 300 epochs. Secondary: whether it is within "
        f"{spirals.NEAR_POINTS} points",
        test=spirals.better,
    ),
    _claim(
        key="S12",
        place="Appendix K, Fig. 9",
        statement="gradients are smaller early in training",
        reported="curves without numbers",
        method=f"{_SETTING}. Mean log ratio of gradient norms over the first tenth of steps, and "
        "at equal loss, where at least four seeds in five reach it from both starts",
        test=spirals.calmer,
    ),
    _claim(
        key="S14",
        place="Theorem 1",
        statement="sources are nearer to the target's optimum than random weights",
        reported="a bound, for weights from N(0, I)",
        method=f"{_SETTING}. Log ratio of squared distances, against weights as PyTorch draws "
        "them. The optimum is trained from the sources' start where they share it, and else from a "
        "fresh one",
        test=spirals.nearer,
    ),
    _claim(
        key="S15",
        place="Section 4.4",
        statement="the best weight is near 0 or 1",
        reported="−0.1244",
        method=f"{_SETTING}. Share of seeds whose best of 31 weights after 50 steps is within "
        "0.15 of 0 or 1, less the share of such weights in the grid. Secondary: before retraining, "
        "and after 200 steps",
        test=spirals.near_ends,
    ),
    _claim(
        key="S16",
        place="Sections 1 and 2",
        statement="merging several sources beats one",
        reported="stated as what is new; the nearest source alone is no baseline of the paper",
        method=f"{_SETTING}. Test loss of the nearest source alone after retraining, less that of "
        "SAIL's start; both cost the same",
        test=spirals.together,
    ),
    _claim(
        key="S18",
        place="Theorems 2 and 3",
        statement="nearer data give nearer parameters, a lower loss at the start, and a lower one "
        "after training",
        reported="what the theorems need; no measurement",
        method="Spearman's correlation, in each seed, over two sources of three readings: MMD² to "
        "the target, squared distance to its optimum, loss before and after retraining",
        test=spirals.chained,
    ),
)
