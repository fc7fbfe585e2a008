"""The suites ``glyphs8/14/20``: scripts rendered from fonts, the same on every machine."""

from pathlib import Path

from mergebook.suites.data.glyphs import SCRIPTS, render_task
from mergebook.suites.families import pictures
from mergebook.suites.registry import Family, LoadedTask, Sizes, register
from mergelib.evaluation.tasks import Split
from mergelib.hashing import digest


def load_task(name: str, sizes: Sizes, seed: int, data: str | Path | None, /) -> LoadedTask:
    """One script, with exactly as many pictures as asked for; nothing is read from a folder."""
    train_size, validation_size, test_size = sizes
    if test_size is None:
        raise ValueError(f"task {name!r} is rendered: test_size must be a number")
    class_names, drawn = render_task(name, (train_size, validation_size, test_size), seed)
    source = digest(tensor for split in drawn for tensor in split)
    train, validation, test = (Split(*split) for split in drawn)
    task = pictures.picture_task(name, class_names, train, validation, test)
    return task, {f"glyphs/{name}": source}


GLYPHS = register(
    Family(
        "glyphs",
        {f"glyphs{count}": tuple(SCRIPTS)[:count] for count in (8, 14, 20)},
        load_task,
        {"smoke": pictures.SMOKE, "default": (1500, 300, 600), "full": (4000, 500, 2000)},
        **pictures.MODELS,
    )
)
