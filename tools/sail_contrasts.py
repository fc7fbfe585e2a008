"""What SAIL's claims compare, for `mutate_ledger`: see `contrasts`."""

from dataclasses import dataclass
from functools import partial

import pandas as pd
from contrasts import Contrast

from mergelib.ledger.sail.arms import BYOL, LABELS
from mergelib.studies.analysis.sail.larger.arms import BASELINES
from mergelib.studies.analysis.sail.spirals import LINKS, is_near
from mergelib.studies.papers.sail.larger.factorial import KINDS
from mergelib.studies.papers.sail.spirals import GAMMAS, READINGS
from mergelib.studies.papers.sail.text import SHARES


@dataclass(frozen=True)
class Match(Contrast):
    """The best weights set to the theorem's, or to what these leave of 1."""

    def shifted(self, table: pd.DataFrame, sign: int) -> pd.DataFrame:
        keys = [*self.blocks, "share"]
        own = table[table["kind"] == "theorem"].set_index(keys)["gamma"]
        rows = table[table["kind"] == "best"]
        weights = own.loc[list(rows[keys].itertuples(index=False, name=None))].to_numpy()
        table = table.copy()
        table.loc[rows.index, "gamma"] = weights if sign > 0 else 1 - weights
        return table


_ARMS = partial(Contrast, "compared", ("method",), blocks=("seed", "reading", "start"))
_BLOCKS = ("seed", "modality", "target", "start", "size")
_STARTS = partial(Contrast, "starts", ("arm",), blocks=_BLOCKS)
_LASTING = partial(Contrast, "lasting", ("arm",), blocks=_BLOCKS)
_WITHOUT = partial(Contrast, "unlabelled_lasting", ("arm",), blocks=_BLOCKS)
_PICTURED = partial(Contrast, "pictured", ("arm",), blocks=_BLOCKS)
_HALVED = partial(Contrast, "halved", ("arm",), blocks=_BLOCKS)
_LONGER = partial(Contrast, "longer", ("arm",), blocks=_BLOCKS)
_UNLABELLED = partial(Contrast, "unlabelled", ("arm",), blocks=_BLOCKS)
_BOTH_WAYS = partial(
    Contrast,
    "unlabelled",
    ("arm", "modality"),
    outcome=("loss",),
    step=10.0,
    blocks=("seed", "target", "start", "size"),
)
_FARTHER = (  # from what sources know
    *("cifar10", "svhn_grey", "resisc12", "eurosat"),
    *("gtsrb", "fashion_mnist", "kmnist", "mnist"),
)
_SHARES = partial(
    Contrast,
    "kept",
    ("width", "mode"),
    outcome=("kept",),
    step=100.0,
    part="starts",
    blocks=("seed", "family", "grown", "depth"),
)
_DIRECTED = partial(Contrast, blocks=("seed", "source", "target", "start"))
_NEAR = [near for near in GAMMAS if is_near(pd.Series([near])).all()]
_FAR = [gamma for gamma in GAMMAS if gamma not in _NEAR]
_CELLS = [f"{reading} {source}" for reading in READINGS for source in (1, 2)]

CONTRASTS: dict[str, tuple[Contrast, ...]] = {
    "S1": (
        _ARMS([("theorem",), ("scratch",)], ("easy", "hard"), 1000.0),
        _LASTING([("SAIL",), ("scratch",)], ("easy", "hard"), 10_000.0),
        _PICTURED([("SAIL",), ("scratch",)], ("easy",), 1000.0),
        _HALVED([("SAIL",), ("scratch",)], ("easy",), 1000.0),
        _WITHOUT([("SAIL",), ("scratch",)], ("easy",), 10_000.0),
    ),
    "S2": (
        Match(
            "weights",
            ("kind", "share"),
            [("best", share) for share in SHARES],
            ("gamma",),
            blocks=("parts", "seed", "start"),
        ),
        Contrast(
            "mixed",
            ("method",),
            [("theorem",), ("best",), ("nearest source",), ("uniform",)],
            ("loss",),
            10.0,
            blocks=("parts", "seed", "start", "share"),
        ),
    ),
    "S3": (
        Contrast(
            "barriers",
            ("start", "place"),
            [("own", "ends"), ("own", "middle")],
            ("loss",),
            10.0,
            blocks=("seed", "reading", "steps"),
        ),
        Contrast(
            "swept",
            ("start", "gamma"),
            [("own", 0.0), ("own", 0.5)],
            ("judge",),
            10.0,
            blocks=("seed", "tokens", "step"),
        ),
    ),
    "S6": (_STARTS([("SAIL",), *((name,) for name in BASELINES)], ("loss",), 10.0),),
    "S7": (
        _SHARES(
            [("svd_random", "grown"), ("svd", "alone"), ("svd", "grown")],
            levels=[0, 1, 1],
            against=[1, -1, -1],
        ),
        _SHARES([("", "alone")], levels=[1], against=[-1]),
    ),
    "S8": (
        Contrast(
            "judged",
            ("arm",),
            [("REPA + J",), ("REPA",)],
            ("log",),
            10.0,
            blocks=("seed", "read"),
        ),
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
    "S4": (
        Contrast(
            "asymmetries",
            ("alpha", "beta"),
            [(alpha, beta) for alpha in (2 / 3, 1 / 3, 0.0) for beta in (0.5, 0.0)],
            ("asymmetry",),
            10.0,
            blocks=("seed", "start", "step"),
        ),
    ),
    "S5": (
        _DIRECTED("crossed", ("method",), [("theorem",), ("scratch",)], ("easy", "hard"), 1000.0),
        _DIRECTED("interiors", ("place",), [("interior",), ("end",)], ("loss",), 10.0),
    ),
    "S10": (
        _ARMS([("scratch",), ("theorem",)]),
        _STARTS([("scratch",), ("SAIL",)]),
        _PICTURED([("scratch",), ("SAIL",)]),
        _HALVED([("scratch",), ("SAIL",)]),
        _LONGER([("scratch",), ("SAIL",)]),
        _LASTING([("scratch",), ("SAIL",)]),
        _UNLABELLED([("scratch",), ("SAIL",)]),
        _WITHOUT([("scratch",), ("SAIL",)]),
    ),
    "S11": (_BOTH_WAYS([("SAIL", LABELS), ("SAIL", BYOL)], levels=[-1, 1], against=[1, -1]),),
    "S13": (  # factors, as scratch's own steps to its goals differ by one
        Contrast(
            "pictured",
            ("arm", "modality", "target"),
            [("SAIL", "ResNet", name) for name in _FARTHER],
            ("easy",),
            1000.0,
            levels=[10.0**place for place in range(8)],
            against=[10.0**place for place in reversed(range(8))],
            blocks=("seed", "start", "size"),
        ),
    ),
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
        Contrast(
            "nearness_in_text",
            ("point",),
            [("source",), ("random",)],
            ("log",),
            10.0,
            blocks=("seed", "start", "source"),
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
        Contrast(
            "swept",
            ("gamma",),
            [(gamma,) for gamma in (*_NEAR, *_FAR)],
            ("choose",),
            100.0,
            levels=[*(0 for _ in _NEAR), *(1 for _ in _FAR)],
            against=[*(1 for _ in _NEAR), *(0 for _ in _FAR)],
            blocks=("seed", "tokens", "start", "step"),
        ),
    ),
    "S16": (
        _ARMS([("theorem",), ("nearest source",)], ("loss",), 10.0),
        _STARTS([("SAIL",), ("nearest source",)], ("loss",), 10.0),
        _PICTURED([("SAIL",), ("nearest source",)], ("loss",), 10.0),
        _HALVED([("SAIL",), ("nearest source",)], ("loss",), 10.0),
        _UNLABELLED([("SAIL",), ("nearest source",)], ("loss",), 10.0),
        Contrast(
            "ends",
            ("sources", "start"),
            [*((2, start) for start in KINDS), (1, "shared")],
            ("B",),
            10.0,
            levels=[*(0 for _ in KINDS), 1],
            against=[*(1 for _ in KINDS), 0],
            blocks=("seed", "modality", "maps"),
        ),
    ),
    "S17": (
        _LASTING([("SAIL",), ("scratch",)], ("easy", "hard"), 10_000.0),
        _HALVED([("SAIL",), ("scratch",)], ("easy",), 1000.0),
    ),
    "S19": (_STARTS([("SAIL, distilled",), ("SAIL",)], ("late", "loss"), 1000.0),),
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
