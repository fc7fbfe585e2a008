"""What SAIL's claims compare, for `mutate_ledger`: see `contrasts`."""

from dataclasses import dataclass
from functools import partial

import numpy as np
import pandas as pd
from contrasts import Contrast

from mergebook.sail.claims.arms import BYOL, LABELS, TABLE
from mergebook.sail.measure.arms import KINDS
from mergebook.sail.measure.spirals import GAMMAS, READINGS
from mergebook.sail.read.spirals import LINKS, is_near


@dataclass(frozen=True)
class Aligned(Contrast):
    """Weights by distances set near 0, where the losses are lowest, or near 1."""

    def shifted(self, table: pd.DataFrame, sign: int) -> pd.DataFrame:
        return table.assign(gamma=float(sign < 0) + 0.01 * (np.arange(len(table)) % 7))

    def exchanged(self, table: pd.DataFrame, _: np.random.Generator) -> pd.DataFrame:
        return table  # the losses are exchanged


@dataclass(frozen=True)
class Kept(Contrast):
    """Shifts that differ a little by seed, as some maps keep exactly everything in each."""

    def shifted(self, table: pd.DataFrame, sign: int) -> pd.DataFrame:
        moved = super().shifted(table, sign)["kept"] - table["kept"]
        return table.assign(kept=table["kept"] + moved * (1 + 0.01 * table["seed"]))


@dataclass(frozen=True)
class Chained(Contrast):
    """Every link set to a multiple of the data's distances, or of alternating signs."""

    def shifted(self, table: pd.DataFrame, sign: int) -> pd.DataFrame:
        keys = ["seed", "start", "cell"]
        data = table[table["link"] == LINKS[0]].drop_duplicates(keys).set_index(keys)["value"]
        own = data.loc[list(table[keys].itertuples(index=False, name=None))].to_numpy()
        places = table["link"].map({link: place for place, link in enumerate(LINKS)})
        spread = float(data.groupby(["start", "cell"]).std().median())
        noise = np.random.default_rng(0).normal(0, 0.1 * spread, len(own))
        return table.assign(value=own * np.array([1.0, sign, 1.0, sign])[places] + noise)

    def exchanged(self, table: pd.DataFrame, _: np.random.Generator) -> pd.DataFrame:
        every_other = table["link"].isin(LINKS[1::2])
        return table.assign(value=table["value"].where(~every_other, -table["value"]))


_ARMS = partial(Contrast, "compared", ("method",), blocks=("seed", "reading", "start"))
_BLOCKS = ("seed", "modality", "target", "start", "size")
_STARTS = partial(Contrast, "starts", ("arm",), blocks=_BLOCKS)
_FINISHED = partial(Contrast, "finished", ("arm",), blocks=_BLOCKS)
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
    Kept,
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
_OTHERS = [gamma for gamma in GAMMAS if gamma != 0.0]
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
        Aligned("distances", ("features",), [("histogram",)], ("gamma",)),
        Contrast(
            "swept",
            ("gamma",),
            [(gamma,) for gamma in (0.0, *_OTHERS)],
            ("choose", "judge"),
            100.0,
            levels=[0, *(1 for _ in _OTHERS)],
            blocks=("seed", "tokens", "start", "step"),
        ),
    ),
    "S3": (
        *(
            Contrast(
                name,
                ("gamma",),
                [(0.0,), (0.5,)],
                ("judge",),
                10.0,
                blocks=("seed", "start", *cells, "step"),
            )
            for name, cells in (("swept", ("tokens",)), ("overlapping", ("alpha", "beta")))
        ),
    ),
    "S6": (_FINISHED([("SAIL",), *((name,) for name in TABLE)], ("loss",), 10.0),),
    "S7": (
        _SHARES(
            [
                *(("mean", "grown"), ("svd", "alone"), ("svd_random", "grown")),
                *(("interpolate", "grown"), ("svd", "grown")),
            ],
            levels=[-1, 1, 1, 1, 1],
            against=[1, -1, -1, -1, -1],
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
            ("bound",),
            10.0,
            against=[0, -1],
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
    "S5": (_DIRECTED("interiors", ("place",), [("interior",), ("end",)], ("loss",), 10.0),),
    "S21": (
        _DIRECTED("crossed", ("method",), [("theorem",), ("scratch",)], ("easy", "hard"), 1000.0),
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
    "S15": tuple(
        Contrast(
            name,
            ("gamma",),
            [(gamma,) for gamma in (*_NEAR, *_FAR)],
            ("choose", "judge"),
            100.0,
            levels=[*(0 for _ in _NEAR), *(1 for _ in _FAR)],
            against=[*(1 for _ in _NEAR), *(0 for _ in _FAR)],
            blocks=("seed", *cells, "start", "step"),
        )
        for name, cells in (("swept", ("tokens",)), ("overlapping", ("alpha", "beta")))
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
    "S18": (
        Chained(
            "chain",
            ("link", "cell"),
            [(link, cell) for link in LINKS for cell in _CELLS],
            ("value",),
            blocks=("seed", "start"),
        ),
    ),
    "S20": (
        Contrast(
            "clusters",
            ("split", "features"),
            [("random", "histogram"), ("thirds", "histogram")],
            ("auc",),
            10.0,
            part="separation",
            blocks=("seed", "pair"),
        ),
        Contrast(
            "silhouettes",
            ("split",),
            [("random",), ("thirds",)],
            ("silhouette",),
            10.0,
            part="silhouettes",
            blocks=("seed", "space"),
        ),
    ),
}
