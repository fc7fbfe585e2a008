"""What SAIL's claims compare, for `mutate_ledger`: see `contrasts`."""

from functools import partial

import pandas as pd
from contrasts import Contrast

from mergelib.studies.analysis.sail.spirals import LINKS, is_near
from mergelib.studies.papers.sail.spirals import GAMMAS, READINGS

_ARMS = partial(Contrast, "compared", ("method",), blocks=("seed", "reading", "start"))
_SHARES = partial(
    Contrast,
    "kept",
    ("width", "mode"),
    outcome=("kept",),
    step=100.0,
    part="starts",
    blocks=("seed", "family", "grown", "depth"),
)
_NEAR = [near for near in GAMMAS if is_near(pd.Series([near])).all()]
_FAR = [gamma for gamma in GAMMAS if gamma not in _NEAR]
_CELLS = [f"{reading} {source}" for reading in READINGS for source in (1, 2)]

CONTRASTS: dict[str, tuple[Contrast, ...]] = {
    "S1": (_ARMS([("theorem",), ("scratch",)], ("easy", "hard"), 1000.0),),
    "S3": (
        Contrast(
            "barriers",
            ("start", "place"),
            [("own", "ends"), ("own", "middle")],
            ("loss",),
            10.0,
            blocks=("seed", "reading", "steps"),
        ),
    ),
    "S7": (
        _SHARES(
            [("svd_random", "grown"), ("svd", "alone"), ("svd", "grown")],
            levels=[0, 1, 1],
            against=[1, -1, -1],
        ),
        _SHARES([("", "alone")], levels=[1], against=[-1]),
    ),
    "S9": (
        Contrast(
            "risk",
            ("form",),
            [("repaired",), ("printed",)],
            ("tells",),
            2.0,
            part="bounds",
            blocks=("seed", "examples"),
        ),
    ),
    "S10": (_ARMS([("scratch",), ("theorem",)]),),
    "S12": (_ARMS([("theorem",), ("scratch",)], ("gradient", "gradient_easy"), 10.0),),
    "S14": (
        Contrast(
            "nearness",
            ("point",),
            [("source",), ("random",)],
            ("log",),
            10.0,
            blocks=("seed", "reading", "start", "source"),
        ),
    ),
    "S15": (
        Contrast(
            "sweep",
            ("gamma",),
            [(gamma,) for gamma in (*_NEAR, *_FAR)],
            ("loss_50",),
            100.0,
            levels=[*(0 for _ in _NEAR), *(1 for _ in _FAR)],
            against=[*(1 for _ in _NEAR), *(0 for _ in _FAR)],
            blocks=("seed", "reading", "start"),
        ),
    ),
    "S16": (_ARMS([("theorem",), ("nearest source",)], ("loss",), 10.0),),
    "S18": (  # exchanged, the inner two links run backwards and the outer two do not
        Contrast(
            "chain",
            ("link", "cell"),
            [
                *((link, cell) for link in LINKS[:3] for cell in _CELLS),
                *((LINKS[3], cell) for cell in _CELLS[::-1]),
            ],
            ("value",),
            1000.0,
            levels=[*3 * [0, 1, 2, 3, 4, 5], 5, 4, 3, 2, 1, 0],
            against=[0, 1, 2, 3, 4, 5, 5, 4, 3, 2, 1, 0, *2 * [0, 1, 2, 3, 4, 5]],
            blocks=("seed", "start"),
        ),
    ),
    "S20": (
        Contrast(
            "clusters",
            ("split", "features"),
            [("random", "histogram without mean"), ("thirds", "histogram without mean")],
            ("auc",),
            10.0,
            part="separation",
            blocks=("seed", "pair"),
        ),
    ),
}
