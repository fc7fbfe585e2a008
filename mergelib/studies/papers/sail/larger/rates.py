"""Rates and goals of `arms`, found by `tuning` on seeds that no study uses."""

from typing import NamedTuple


class Rates(NamedTuple):
    """Of Adam, and of random weights.

    Attributes:
        training: rate of retraining.
        maps: rate of maps, where they are learned.
        embeddings: what a GPT's random embeddings are multiplied by, where an arm has scales.
        matrices: likewise, all its other matrices.
    """

    training: float
    maps: float = 0.0
    embeddings: float = 1.0
    matrices: float = 1.0


# Nats, by modality, size and target; easy and hard ones of GPTs from 1,000 steps of scratch, and
# of the main cell by BYOL from 1,600.
GOALS = {
    ("GPT", "twice", ""): {"easy": 2.459, "hard": 2.325, "late": 2.209},
    ("GPT", "half wider", ""): {"easy": 2.486, "hard": 2.366, "late": 2.213},
    ("ResNet", "deeper", "mnist"): {"easy": 0.156, "hard": 0.144},
    ("ResNet", "deeper", "fashion_mnist"): {"easy": 0.54, "hard": 0.503},
    ("ResNet", "deeper", "kmnist"): {"easy": 0.619, "hard": 0.415},
    ("ResNet", "deeper", "svhn_grey"): {"easy": 1.301, "hard": 0.782},
    ("ResNet", "deeper", "gtsrb"): {"easy": 2.018, "hard": 1.217},
    ("ResNet", "deeper", "eurosat"): {"easy": 1.218, "hard": 0.929},
    ("ResNet", "deeper", "cifar10"): {"easy": 1.72, "hard": 1.636},
    ("ResNet", "deeper", "resisc12"): {"easy": 1.427, "hard": 1.317},
    ("ResNet, halves", "deeper", "cifar10"): {"easy": 1.736, "hard": 1.635},
    ("ResNet, halves", "half wider", "cifar10"): {"easy": 1.681, "hard": 1.616},
    ("ResNet, halves", "deepest", "cifar10"): {"easy": 1.827, "hard": 1.762},
    ("ResNet, halves", "deeper", "cifar100"): {"easy": 4.246, "hard": 4.063},
    ("ResNet, halves", "half wider", "cifar100"): {"easy": 4.158, "hard": 3.979},
    ("ResNet, halves", "deepest", "cifar100"): {"easy": 4.356, "hard": 4.238},
    ("ResNet, halves", "deeper", "tiny_imagenet20"): {"easy": 2.39, "hard": 2.309},
    ("ResNet, halves", "half wider", "tiny_imagenet20"): {"easy": 2.364, "hard": 2.237},
    ("ResNet, halves", "deepest", "tiny_imagenet20"): {"easy": 2.526, "hard": 2.467},
    ("ResNet, halves, probed", "deeper", "cifar10"): {"easy": 1.662, "hard": 1.598},
    ("ResNet, halves, probed", "half wider", "cifar10"): {"easy": 1.654, "hard": 1.613},
    ("ResNet, halves, probed", "deepest", "cifar10"): {"easy": 1.769, "hard": 1.705},
    ("ResNet, halves, probed", "half wider", "cifar100"): {"easy": 4.182, "hard": 4.05},
    ("ResNet, halves, probed", "half wider", "tiny_imagenet20"): {"easy": 2.3, "hard": 2.279},
    ("ResNet, halves, BYOL", "deeper", "cifar10"): {"easy": 1.972, "hard": 1.954},
    ("ResNet, halves, BYOL", "half wider", "cifar10"): {"easy": 1.888, "hard": 1.834},
    ("ResNet, halves, BYOL", "deepest", "cifar10"): {"easy": 2.074, "hard": 2.073},
    ("ResNet, halves, BYOL", "half wider", "cifar100"): {"easy": 4.407, "hard": 4.38},
    ("ResNet, halves, BYOL", "half wider", "tiny_imagenet20"): {"easy": 2.659, "hard": 2.659},
}
_GPT = {
    **dict.fromkeys(("scratch", "scratch, published"), Rates(1e-3)),
    **dict.fromkeys(("nearest source", "Net2Net", "greedy soup"), Rates(1e-3)),
    **dict.fromkeys(("farther source", "bert2BERT", "SAIL"), Rates(1e-3)),  # first not tuned
    **dict.fromkeys(("own size", "stack", "uniform", "SAIL, distilled"), Rates(3e-3)),
    **dict.fromkeys(("LiGO", "SAIL, learned"), Rates(1e-3, 1e-3)),  # maps at 3e-4 are worse
    "LiGO, published": Rates(1e-3, 1e-2),
}
_OWN_GPT = {"SAIL": Rates(3e-3), "SAIL, matched": Rates(1e-3), "SAIL, distilled": Rates(3e-3)}
# Of ResNets with two kinds of sources scratch, the nearest source and SAIL were tuned on CIFAR-10,
# where they lay close to one another at full length; all others train as scratch does. At "deeper",
# 1e-2 makes scratch worse, and the nearest source on one of two sets. Of halves every arm was tuned
# at "half wider"; scratch, the nearest source, SAIL and "uniform" at the other sizes. "wider" is of
# the full profile and not tuned.
_RESNET = {"half wider": 1e-3, "deeper": 3e-3, "deepest": 3e-3, "wider": 3e-3}  # by size
_PICTURED = (
    *("scratch", "scratch, published", "nearest source", "farther source", "own size", "Net2Net"),
    *("uniform", "SAIL", "SAIL, matched"),
)
_LEARNED = {"LiGO": Rates(3e-3, 1e-3), "SAIL, learned": Rates(1e-3, 1e-3)}  # tuned on halves alone
_FASTER = dict.fromkeys(("nearest source", "SAIL"), Rates(3e-3))
_UNLIKE = {  # by modality and size: arms that want another rate than scratch
    ("ResNet, BYOL", "deeper"): {"SAIL": Rates(1e-3)},
    **{(f"ResNet, halves{way}", "half wider"): _FASTER for way in (", probed", ", BYOL")},
    ("ResNet, halves", "half wider"): {
        **_FASTER,
        **dict.fromkeys(("own size", "Net2Net", "SAIL, matched"), Rates(3e-3)),
    },
}
_OWN_UNLIKE = {("ResNet, halves", "half wider"): {"uniform": Rates(3e-3)}}  # likewise, own starts


def usual_rates(modality: str, start: str, size: str, arm: str) -> Rates:
    """Of an arm; of the full profile those of the other, which are not tuned for it.

    Raises:
        ValueError: where none are known.
    """
    usual = modality.removesuffix(", full")
    rates: dict[str, Rates] = {}
    if usual == "GPT":
        rates = {**_GPT, **(_OWN_GPT if start == "own" else {})}
    elif usual.startswith("ResNet"):
        cell = usual, size
        rates = dict.fromkeys(_PICTURED, Rates(_RESNET[size])) | _LEARNED | _UNLIKE.get(cell, {})
        rates |= _OWN_UNLIKE.get(cell, {}) if start == "own" else {}
    if arm not in rates:
        raise ValueError(f"no rates of {arm!r} are known for {modality}: pass them as rates")
    return rates[arm]


def usual_goals(modality: str, size: str, target: str = "") -> dict[str, float]:
    """Losses that arms are to reach, in nats, by their names.

    Raises:
        ValueError: where none are known, as of the full profile.
    """
    goals = GOALS.get((modality, size, target))
    if goals is None:
        cell = ", ".join(filter(None, (modality, size, target)))
        raise ValueError(f"no goals are known for {cell}: find them with tuning.tuned_goals")
    return goals
