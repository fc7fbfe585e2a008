"""Suites by name: tasks to merge on, from whichever family has them.

``digits2`` is scikit-learn's handwritten digits cut in two; ``glyphs8/14/20`` are rendered from
fonts (identical on every machine, no download); ``vision8/14/20`` are real pictures from prepared
files. Every picture is uint8 (3, 32, 32). ``text4`` is four texts, whose characters are to be
predicted. ``imagenet8/14/20`` are the pictures of ``vision`` for a network pretrained on ImageNet,
``sentences8`` is sentences to classify, for a pretrained encoder. ``clip8/14/20`` are the papers'
own tasks at 224 pixels, ``glue8`` eight tasks on sentences. See `mergebook.suites.families`, and
`mergebook.suites.registry` to add another.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mergebook.suites.families import Family, family_of
from mergebook.suites.registry import Sizes
from mergebook.suites.training import Recipe
from mergelib.evaluation.tasks import Suite, Task


def load_suite(
    name: str,
    *,
    seed: int = 0,
    profile: str = "default",
    tasks: Sequence[str] | None = None,
    train_size: int | None = None,
    validation_size: int | None = None,
    test_size: int | None = None,
    data: str | Path | None = None,
    **options: Any,
) -> Suite:
    """Load the tasks of a suite, or those of them named in `tasks`.

    Args:
        name: ``digits2``, ``glyphs8``, ``glyphs14``, ``glyphs20``, ``vision8`` … ``vision20``,
            ``imagenet8`` … ``imagenet20``, ``text4``, ``sentences8``, ``clip8`` … ``clip20``,
            ``glue8``, or one of a family registered by you.
        seed: decides with a task's name what is drawn.
        profile: ``"smoke"`` (seconds), ``"default"`` (two cores) or ``"full"`` (a GPU): how many
            pictures or windows of text a task has, see `Family.sizes`.
        tasks: names of the tasks to load; all by default.
        train_size: examples to train on, in place of the profile's. Rendered tasks have exactly
            this many; others at most, and their classes keep their shares.
        validation_size: likewise; at most a fifth of the training part, may be 0.
        test_size: likewise.
        data: the folder of prepared files (see `mergebook.suites.data.prepared`), or of data sets
            of the hub (see `mergebook.suites.data.hub.load_data`).
        **options: of the suite's family, e.g. ``side`` of CLIP's.

    Raises:
        ValueError: an unknown suite, profile or task, a size below 1, or data that cannot be had.
    """
    family = family_of(name)
    chosen = _choose(name, family, tasks)
    sizes = _sizes(family, profile, train_size, validation_size, test_size)
    loaded: dict[str, Task] = {}
    sources: dict[str, str] = {}
    for task in chosen:
        loaded[task], own_sources = family.load_task(task, sizes, seed, data, **options)
        sources.update(own_sources)
    return Suite(name, seed, loaded, sources)


def usual_model(name: str) -> str:
    """The model whose experts a suite is about, unless another is asked for."""
    return family_of(name).model


def usual_recipe(name: str) -> Recipe | None:
    """How a suite's experts are fine-tuned, unless another recipe is given; None if they are given.

    Raises:
        ValueError: for an unknown suite.
    """
    return family_of(name).recipe


def _choose(name: str, family: Family, tasks: Sequence[str] | None) -> tuple[str, ...]:
    known = tuple(family.suites[name])
    if tasks is None:
        return known
    if isinstance(tasks, str) or not tasks:
        raise ValueError(f"tasks must be a non-empty list of task names, got {tasks!r}")
    for task in tasks:
        if task not in known:
            raise ValueError(f"unknown task {task!r} of {name}; known: {', '.join(known)}")
    return tuple(dict.fromkeys(tasks))


def _sizes(
    family: Family,
    profile: str,
    train_size: int | None,
    validation_size: int | None,
    test_size: int | None,
) -> Sizes:
    """The sizes that were asked for, in place of the profile's."""
    if profile not in family.sizes:
        raise ValueError(f"unknown profile {profile!r}; known: {', '.join(family.sizes)}")
    for label, size, least in (
        ("train_size", train_size, 1),
        ("validation_size", validation_size, 0),
        ("test_size", test_size, 1),
    ):
        if size is not None and size < least:
            raise ValueError(f"{label} must be at least {least}, got {size}")
    usual = family.sizes[profile]
    return (
        usual[0] if train_size is None else train_size,
        usual[1] if validation_size is None else validation_size,
        usual[2] if test_size is None else test_size,
    )
