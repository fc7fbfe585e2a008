"""All studies by name. Importing this module registers them, a module for each paper."""

import importlib
import pkgutil
from typing import Any

from mergebook import PAPERS
from mergebook.lab.runner import REGISTERED, Loaded, Run, Study


def _import_all() -> None:
    """Import each paper's measurements, which register their studies."""
    for paper in PAPERS:
        room = importlib.import_module(f"mergebook.{paper}.measure")
        for module in pkgutil.iter_modules(getattr(room, "__path__", ())):
            importlib.import_module(f"{room.__name__}.{module.name}")


_import_all()


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
