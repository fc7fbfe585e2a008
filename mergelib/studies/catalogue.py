"""All studies by name. Importing this module registers them, a module for each paper."""

from typing import Any

from mergelib.studies.papers import cart, cogram, convolutions, frank_wolfe, geometry, surface
from mergelib.studies.papers.sail import (
    clusters,
    diffusion,
    kept_scratch,
    kernels,
    nearness,
    risk,
    silhouettes,
    spirals,
    text,
)
from mergelib.studies.papers.sail.larger import arms, encoder, factorial, kept, tuning
from mergelib.studies.papers.stability import (
    constants,
    mechanisms,
    merge_stability,
    rebasin,
    remedies,
    repeats,
    retraining,
    scaling,
    uneven,
    variance,
    weighing,
)
from mergelib.studies.runner import REGISTERED, Loaded, Run, Study

PAPERS = (
    *(cart, surface, geometry, convolutions, frank_wolfe, cogram),
    *(constants, retraining, merge_stability, scaling, repeats, variance, remedies),
    *(uneven, mechanisms, rebasin, weighing),
    *(spirals, text, kernels, nearness, diffusion, kept, kept_scratch),
    *(encoder, arms, factorial, tuning, risk, clusters, silhouettes),
)


def get_study(name: str) -> Study:
    """The study of that name.

    Raises:
        ValueError: if there is none; the message names those that there are.
    """
    if name not in REGISTERED:
        raise ValueError(f"unknown study {name!r}; known: {', '.join(sorted(REGISTERED))}")
    return REGISTERED[name]


def loaded_for(name: str, suite: str, seed: int, **settings: Any) -> Loaded:
    """What a study works on, its first arguments.

    Args:
        name: the study's.
        suite: one that it takes.
        seed: of everything drawn.
        settings: of the study, where they differ from the usual ones.

    Raises:
        ValueError: an unknown study, suite, setting or value.
    """
    study = get_study(name)
    return study.load(Run(study, suite, seed, settings=study.complete(settings)))
