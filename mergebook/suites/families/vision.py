"""The suites ``vision8/14/20``: real pictures at 32 x 32 from prepared files."""

from pathlib import Path

from mergebook.suites.data.prepared import load_arrays
from mergebook.suites.families import pictures
from mergebook.suites.registry import Family, LoadedTask, Sizes, register

TASKS = (
    *("mnist", "fashion_mnist", "kmnist", "svhn_grey", "gtsrb", "eurosat", "cifar10", "resisc12"),
    *("cifar100", "fer2013", "emnist_letters", "dtd10", "flowers5", "pneumoniamnist"),
    *("caltech101", "pacs", "scenes15", "cars_body", "notmnist", "usps"),
)


def load_task(name: str, sizes: Sizes, seed: int, data: str | Path | None, /) -> LoadedTask:
    """One prepared set, see `mergebook.suites.data.prepared`; sizes are at most what it has."""
    arrays = load_arrays(name, data)
    return pictures.stored_task(name, arrays, sizes, seed), {name: arrays.sha256}


VISION = register(
    Family(
        "vision",
        {f"vision{count}": TASKS[:count] for count in (8, 14, 20)},
        load_task,
        {"smoke": pictures.SMOKE, "default": (4000, 500, 1000), "full": (10000, 1000, 2000)},
        **pictures.MODELS,
    )
)
