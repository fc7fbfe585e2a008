"""Suites by name: tasks to merge on, from whichever family has them.

``digits2`` is scikit-learn's handwritten digits cut in two; ``glyphs8/14/20`` are rendered from
fonts; ``vision8/14/20`` are real images from prepared files, ``imagenet8/14/20`` the same for a
network pretrained on ImageNet. ``text4`` is four texts, ``sentences8`` sentences to classify.
``clip8/14/20`` are the papers' own tasks at 224 pixels.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

from mergebook.suites.families import Family, family_of
from mergebook.suites.registry import Sizes
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
        name: see `mergebook.suites.loading`, or one of a family that you have registered.
        seed: decides with a task's name what is drawn.
        profile: ``"smoke"`` (seconds), ``"default"`` (two cores) or ``"full"`` (a GPU).
        tasks: names of the tasks to load; all by default.
        train_size: examples to train on, at most, in place of the profile's.
        validation_size: examples to choose on; at most a fifth of the training part, may be 0.
        test_size: examples to test on.
        data: the folder of prepared files, or of data sets of the hub.
        **options: of the suite's family, e.g. ``side`` of CLIP's.
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


def _sizes(family: Family, profile: str, *asked: int | None) -> Sizes:
    """The sizes that were asked for, in place of the profile's."""
    if profile not in family.sizes:
        raise ValueError(f"unknown profile {profile!r}; known: {', '.join(family.sizes)}")
    for part, size, least in zip(("train", "validation", "test"), asked, (1, 0, 1), strict=True):
        if size is not None and size < least:
            raise ValueError(f"{part}_size must be at least {least}, got {size}")
    usual = family.sizes[profile]
    return cast(Sizes, tuple(usual[i] if size is None else size for i, size in enumerate(asked)))
