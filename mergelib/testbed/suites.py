"""Suites: named families of tasks behind one interface.

``digits2`` is scikit-learn's handwritten digits cut in two; ``glyphs8/14/20`` are rendered from
fonts (identical on every machine, no download); ``vision8/14/20`` are real pictures from prepared
files. Every picture is uint8 (3, 32, 32). ``text4`` is four texts, whose characters are to be
predicted. ``clip8/14/20`` are the papers' own tasks at 224 pixels, see
`mergelib.testbed.families.clip`. The
validation split is drawn from the training part, so that hyperparameters never see the test part.
"""

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Generator, Tensor

from mergelib.data import glyphs, prepared, texts
from mergelib.testbed.tasks import PretrainingSet, Split, Suite, Task

_VISION = (
    *("mnist", "fashion_mnist", "kmnist", "svhn_grey", "gtsrb", "eurosat", "cifar10", "resisc12"),
    *("cifar100", "fer2013", "emnist_letters", "dtd10", "flowers5", "pneumoniamnist"),
    *("caltech101", "pacs", "scenes15", "cars_body", "notmnist", "usps"),
)
_DIGITS = ("digits_low", "digits_high")
# Pictures, or windows of text, in the train, validation and test split, by profile and family.
SIZES: dict[str, dict[str, tuple[int, int, int]]] = {
    "smoke": dict.fromkeys(("glyphs", "vision", "digits", "text"), (240, 48, 120)),
    "default": {
        "glyphs": (1500, 300, 600),
        "vision": (4000, 500, 1000),
        "digits": (900, 150, 300),
        "text": (2000, 100, 250),
    },
    "full": {
        "glyphs": (4000, 500, 2000),
        "vision": (10000, 1000, 2000),
        "digits": (900, 150, 300),
        "text": (8000, 200, 500),
    },
}
SUITES: dict[str, tuple[str, ...]] = {
    "digits2": _DIGITS,
    **{f"glyphs{n}": tuple(glyphs.script_names(n)) for n in (8, 14, 20)},
    **{f"vision{n}": _VISION[:n] for n in (8, 14, 20)},
    "text4": texts.TASKS,
}


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
) -> Suite:
    """Load the tasks of a suite, or those of them named in `tasks`.

    Args:
        name: ``digits2``, ``glyphs8``, ``glyphs14``, ``glyphs20``, ``vision8`` … ``vision20``,
            ``text4``, ``clip8`` … ``clip20``.
        seed: decides with a task's name what is drawn.
        profile: ``"smoke"`` (seconds), ``"default"`` (two cores) or ``"full"`` (a GPU): how many
            pictures or windows of text a task has, see `SIZES`.
        tasks: names of the tasks to load; all by default.
        train_size: pictures or windows to train on, in place of the profile's. Rendered tasks have
            exactly this many; tasks from files at most, and their classes keep their shares.
        validation_size: likewise; at most a fifth of the training part, may be 0.
        test_size: likewise.
        data: the folder of prepared files (see `mergelib.data.prepared`).

    Raises:
        ValueError: an unknown suite, profile or task, a size below 1, or data that cannot be had.
    """
    if name.startswith("clip"):
        from mergelib.testbed.families.clip import load_clip_suite

        return load_clip_suite(
            name,
            seed=seed,
            profile=profile,
            tasks=tasks,
            train_size=train_size,
            validation_size=validation_size,
            test_size=test_size,
            root=data,
        )
    chosen = _choose(name, tasks)
    if profile not in SIZES:
        raise ValueError(f"unknown profile {profile!r}; known: {', '.join(SIZES)}")
    usual = SIZES[profile][name.rstrip("0123456789")]
    given = (train_size, validation_size, test_size)
    train_size, validation_size, test_size = (
        own if size is None else size for size, own in zip(given, usual, strict=True)
    )
    for label, size, least in (
        ("train_size", train_size, 1),
        ("validation_size", validation_size, 0),
        ("test_size", test_size, 1),
    ):
        if size < least:
            raise ValueError(f"{label} must be at least {least}, got {size}")
    sizes = (train_size, validation_size, test_size)
    loaded, sources = {}, {}
    for task_name in chosen:
        if name.startswith("glyphs"):
            task, source, digest = _rendered_task(task_name, sizes, seed)
        elif name.startswith("text"):
            task, source, digest = _text_task(task_name, sizes, seed, data)
        else:
            task, source, digest = _stored_task(task_name, sizes, seed, data)
        loaded[task_name], sources[source] = task, digest
    return Suite(name, seed, loaded, sources)


def usual_model(name: str) -> str:
    """The model whose experts a suite is about, unless another is asked for."""
    usual = {"text": "gpt", "clip": "clip-vit-base-patch32"}
    return usual.get(name.rstrip("0123456789"), "vit")


def pretraining_sets(
    data: str | Path | None = None,
    *,
    seed: int = 0,
    glyphs_per_class: int = 60,
    glyphs_test_per_class: int = 8,
) -> list[PretrainingSet]:
    """The labelled sets a backbone is pretrained on, none of them a task of a suite.

    ``tiny_imagenet32`` and ``omniglot`` if their prepared files are found, and always ``glyphs``,
    rendered from scripts that no suite uses.
    """
    sets = []
    for name, file in (("tiny_imagenet32", "tiny_imagenet32"), ("omniglot", "omniglot_small")):
        if prepared.find_file(file, data) is not None:
            arrays = prepared.load_arrays(file, data)
            train = Split(arrays.train_images, arrays.train_labels)
            test = Split(arrays.test_images, arrays.test_labels)
            sets.append(PretrainingSet(name, arrays.class_names, train, test, arrays.sha256))
    names, splits = glyphs.render_pretraining(glyphs_per_class, glyphs_test_per_class, seed)
    train, test = (Split(*split) for split in splits)
    digest = glyphs.digest([train.inputs, train.labels, test.inputs, test.labels])
    return [*sets, PretrainingSet("glyphs", names, train, test, digest)]


def pretraining_texts(data: str | Path | None = None, *, seed: int = 0) -> list[PretrainingSet]:
    """What the language model is pretrained on: a part of WikiText-2 that is no task.

    Raises:
        ValueError: if it is neither found nor to be had.
    """
    task, _, digest = _text_task(texts.PRETRAINING, (10**9, 0, 250), seed, data)
    return [PretrainingSet(task.name, task.class_names, task.train, task.test, digest)]


def _choose(name: str, tasks: Sequence[str] | None) -> tuple[str, ...]:
    if name not in SUITES:
        known = ", ".join([*SUITES, "clip8", "clip14", "clip20"])
        raise ValueError(f"unknown suite {name!r}; known: {known}")
    if tasks is None:
        return SUITES[name]
    if isinstance(tasks, str) or not tasks:
        raise ValueError(f"tasks must be a non-empty list of task names, got {tasks!r}")
    for task in tasks:
        if task not in SUITES[name]:
            raise ValueError(f"unknown task {task!r} of {name}; known: {', '.join(SUITES[name])}")
    return tuple(dict.fromkeys(tasks))


def _rendered_task(name: str, sizes: Sequence[int], seed: int) -> tuple[Task, str, str]:
    class_names, splits = glyphs.render_task(name, sizes, seed)
    train, validation, test = (Split(*split) for split in splits)
    digest = glyphs.digest([tensor for split in splits for tensor in split])
    return Task(name, class_names, train, validation, test), f"glyphs/{name}", digest


def _text_task(
    name: str, sizes: Sequence[int], seed: int, data: str | Path | None
) -> tuple[Task, str, str]:
    text, digest = texts.load_text(name, data)
    drawn = texts.split_windows(text, sizes, glyphs.stable_seed("split", name, seed))
    train, validation, test = (Split(*part) for part in drawn)
    return Task(name, tuple(texts.CHARACTERS), train, validation, test), f"text/{name}", digest


def _stored_task(
    name: str, sizes: Sequence[int], seed: int, data: str | Path | None
) -> tuple[Task, str, str]:
    arrays = _digits(name) if name in _DIGITS else prepared.load_arrays(name, data)
    generator = Generator().manual_seed(glyphs.stable_seed("split", name, seed))
    train_rows, validation_rows = draw(arrays.train_labels, sizes[:2], generator)
    test_rows = stratified(arrays.test_labels, sizes[2], generator)
    train, validation = (
        Split(arrays.train_images[rows], arrays.train_labels[rows])
        for rows in (train_rows, validation_rows)
    )
    test = Split(arrays.test_images[test_rows], arrays.test_labels[test_rows])
    return Task(name, arrays.class_names, train, validation, test), name, arrays.sha256


def draw(labels: Tensor, sizes: Sequence[int], generator: Generator) -> tuple[Tensor, Tensor]:
    """Disjoint rows of a training part to train on and to validate on, classes in their shares.

    Args:
        labels: int64 (N,) of the whole training part.
        sizes: at most so many rows of each; of the latter at most a fifth of all.
        generator: draws them.
    """
    validation = stratified(labels, min(sizes[1], len(labels) // 5), generator)
    remaining = torch.ones(len(labels), dtype=torch.bool)
    remaining[validation] = False
    rest = remaining.nonzero()[:, 0]
    return rest[stratified(labels[rest], sizes[0], generator)], validation


def stratified(labels: Tensor, size: int, generator: Generator) -> Tensor:
    """At most `size` row numbers, int64, drawn so that classes keep their shares.

    Rows come in random order. Rank each row within its class at random; the share that row stands
    for is (rank + a half) / class size, and the rows with the smallest shares are taken (Webster's
    method). A class of n rows, where the mean is m, is within (1 + n/m)/2 rows of its exact share:
    within one for classes of equal size.
    """
    if size >= len(labels):
        return torch.randperm(len(labels), generator=generator)
    order = torch.randperm(len(labels), generator=generator)
    share = torch.empty(len(labels), dtype=torch.float64)
    for label in labels.unique():
        rows = order[labels[order] == label]
        share[rows] = (torch.arange(len(rows), dtype=torch.float64) + 0.5) / len(rows)
    taken = order[share[order].argsort(stable=True)[:size]]
    return taken[torch.randperm(len(taken), generator=generator)]


def _digits(name: str) -> prepared.Arrays:
    """scikit-learn's 8 x 8 digits 0-4 or 5-9; every fourth picture of them is for testing."""
    from sklearn.datasets import load_digits

    bunch = load_digits()
    first = _DIGITS.index(name) * 5
    images = torch.from_numpy(bunch.images * (255 / 16)).round().to(torch.uint8)
    labels = torch.from_numpy(bunch.target).long()
    mine = (labels >= first) & (labels < first + 5)
    images, labels = images[mine], labels[mine] - first
    pictures = prepared.to_tensor(images[..., None].numpy())
    testing = torch.arange(len(labels)) % 4 == 3
    return prepared.Arrays(
        train_images=pictures[~testing],
        train_labels=labels[~testing],
        test_images=pictures[testing],
        test_labels=labels[testing],
        class_names=tuple(str(digit) for digit in range(first, first + 5)),
        sha256=glyphs.digest([images, labels]),
    )
