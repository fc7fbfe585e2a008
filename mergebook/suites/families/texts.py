"""The suite ``text4``: four texts whose characters are to be predicted, judged by loss."""

from pathlib import Path

from mergebook.suites.data import texts
from mergebook.suites.heads import own_outputs
from mergebook.suites.models import TEXT_MODELS, to_tokens
from mergebook.suites.pretraining import PRETRAINING_TEXT, pretrain_text
from mergebook.suites.registry import Family, LoadedTask, Pretraining, Sizes, register
from mergebook.suites.training import Recipe
from mergebook.suites.types import LabelledSet
from mergelib.evaluation.tasks import LOSS, Split, Task
from mergelib.hashing import stable_seed

_ALL = 10**9  # windows: more than any text has


def load_task(name: str, sizes: Sizes, seed: int, data: str | Path | None, /) -> LoadedTask:
    """One text, see `mergebook.suites.data.texts`; sizes are windows, at most what it has."""
    text, source = texts.load_text(name, data)
    counts = [_ALL if size is None else size for size in sizes]
    drawn = texts.split_windows(text, counts, stable_seed("split", name, seed))
    train, validation, test = (Split(*part) for part in drawn)
    classes = tuple(texts.CHARACTERS)
    task = Task(name, classes, train, validation, test, transform=to_tokens, metric=LOSS)
    return task, {f"text/{name}": source}


def pretraining_texts() -> list[LabelledSet]:
    """What the language model is pretrained on: a part of WikiText-2 that is no task."""
    task, sources = load_task(texts.PRETRAINING, (_ALL, 0, 250), 0, None)
    (source,) = sources.values()
    return [LabelledSet(task.name, task.class_names, task.train, task.test, source)]


TEXTS = register(
    Family(
        "texts",
        {"text4": texts.TASKS},
        load_task,
        {"smoke": (240, 48, 120), "default": (2000, 100, 250), "full": (8000, 200, 500)},
        model="gpt",
        models=TEXT_MODELS,
        # A language has more to learn than a head's classes.
        recipe=Recipe(learning_rate=1e-3, epochs=6, batch_size=32),
        heads=own_outputs,
        pretraining=Pretraining(
            pretrain_text, pretraining_texts, PRETRAINING_TEXT, pretraining_texts, PRETRAINING_TEXT
        ),
    )
)
