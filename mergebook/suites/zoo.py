"""The zoo: a backbone, one fine-tuned expert for each task, and the frozen heads."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from filelock import Timeout
from joblib import Parallel, delayed
from torch import Tensor, nn

from mergebook.suites.backbones import load_backbone
from mergebook.suites.caching import VERSION, cached
from mergebook.suites.families import Family, family_of
from mergebook.suites.models import scale_pixels, to_tokens
from mergebook.suites.training import Recipe, fine_tune
from mergebook.suites.types import Zoo
from mergelib.evaluation.tasks import Suite, Task, cross_entropy
from mergelib.hashing import digest, fingerprint, plain
from mergelib.io import cache_folder
from mergelib.progress import progress

__all__ = ["Zoo", "load_beginning", "load_zoo", "make_heads"]


def load_zoo(
    suite: Suite,
    *,
    model: str | None = None,
    recipe: Recipe | None = None,
    seed: int | None = None,
    device: torch.device | str = "cpu",
) -> Zoo:
    """The experts of a suite, from the cache or fine-tuned now (with a progress bar).

    ``model`` is "vit" for images and "gpt" for texts by default (their weights ship with the
    package), or another of its family's `models`, which is first pretrained; for public experts the
    backbone's name on the hub, or a folder. ``seed``, by default the suite's, draws the heads'
    examples and the order of training. What does not fit the suite is a ValueError.
    """
    family = family_of(suite.name)
    model = family.model if model is None else model
    if family.load_zoo is not None:
        if recipe is not None:
            raise ValueError(f"{suite.name} has public experts, it takes no recipe")
        return family.load_zoo(suite, model=model, device=device)
    seed = suite.seed if seed is None else seed
    return _trained_zoo(suite, model, recipe or _recipe(family), seed, device)


def load_beginning(
    suite: Suite,
    *,
    model: str | None = None,
    recipe: Recipe | None = None,
    device: torch.device | str = "cpu",
) -> Zoo:
    """Backbone and heads of a suite, and no experts; arguments as for `load_zoo`."""
    family = family_of(suite.name)
    recipe = recipe or _recipe(family)
    return _beginning(suite, model or family.model, recipe, suite.seed, device)[0]


def make_heads(
    backbone: nn.Module, suite: Suite, recipe: Recipe | None = None, seed: int | None = None
) -> dict[str, nn.Module]:
    """The frozen head of every task by the suite's family; ValueError if experts have them."""
    family = family_of(suite.name)
    seed = suite.seed if seed is None else seed
    return family.heads(backbone, suite, recipe or _recipe(family), seed)


def _recipe(family: Family) -> Recipe:
    if family.recipe is None:
        raise ValueError(
            f"experts and heads of {', '.join(family.suites)} are public: load_zoo gives them"
        )
    return family.recipe


def _beginning(
    suite: Suite, model: str, recipe: Recipe, seed: int, device: torch.device | str
) -> tuple[Zoo, dict[str, Any]]:
    """The zoo without experts, and all that makes one but the data, for their keys."""
    family = family_of(suite.name)
    if model not in family.models:
        known = ", ".join(family.models)
        raise ValueError(f"unknown model {model!r} for {suite.name}; known: {known}")
    backbone = load_backbone(model, device)
    pretrained = {key: value.clone() for key, value in backbone.state_dict().items()}
    origin = {"version": VERSION, "model": model, "recipe": plain(recipe), "seed": seed}
    origin["backbone"] = digest(tensor for _, tensor in sorted(pretrained.items()))
    heads = make_heads(backbone, suite, recipe, seed)
    revisions = family.packages[model].origin() if model in family.packages else {}
    made = fingerprint({**origin, "sources": suite.sources})
    zoo = Zoo(suite, backbone, pretrained, {}, heads, {}, made, revisions, family.is_matrix)
    return zoo, origin


def _trained_zoo(
    suite: Suite, model: str, recipe: Recipe, seed: int, device: torch.device | str
) -> Zoo:
    zoo, origin = _beginning(suite, model, recipe, seed, device)
    prompts = family_of(suite.name).prompts
    keys = {name: _key(origin, task, prompts(task)) for name, task in suite.tasks.items()}
    folder = cache_folder() / "zoo"
    files = {name: folder / f"{name}-{key}.safetensors" for name, key in keys.items()}
    missing = [name for name in suite.tasks if not files[name].exists()]
    steps = {name: recipe.steps(len(suite.tasks[name].train)) for name in missing}

    def training(name: str, **options: Any) -> Callable[[], dict[str, Tensor]]:
        task = suite.tasks[name]
        tune = partial(fine_tune, zoo.model, zoo.heads[name], task.train, recipe, seed=seed)
        return partial(tune, transform=task.transform, loss=task.loss, **options)

    with progress(total=sum(steps.values()), desc="fine-tuning", leave=False) as bar:
        # As many processes as this one may have threads; on a GPU one expert after the other.
        jobs = min(torch.get_num_threads(), len(missing))
        if jobs > 1 and torch.device(device).type == "cpu":
            pool = Parallel(n_jobs=jobs, return_as="generator")
            made = pool(
                delayed(_expert)(files[name], training(name), origin, wait=False)
                for name in missing
            )
            for name, _ in zip(missing, made, strict=True):
                bar.update(steps[name])
        found: dict[str, dict[str, Tensor]] = {}
        for wait in (False, True):  # what another process is making comes last
            for name in [name for name in suite.tasks if name not in found]:
                train = training(name, on_step=lambda *_: bar.update())
                if state := _expert(files[name], train, origin, wait):
                    found[name] = {key: value.to(device) for key, value in state.items()}
    experts = {name: found[name] for name in suite.tasks}
    together = fingerprint("".join(keys.values()))
    return replace(zoo, experts=experts, files=files, fingerprint=together)


def _expert(
    file: Path, train: Callable[[], dict[str, Tensor]], origin: Mapping[str, Any], wait: bool
) -> dict[str, Tensor] | None:
    """An expert, from the cache or fine-tuned on one thread: how many threads shows in its bits.

    None while another process makes it, unless one is to ``wait``.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return cached(file, train, origin, wait=wait)
    except Timeout:
        return None
    finally:
        torch.set_num_threads(threads)


def _key(origin: Mapping[str, Any], task: Task, prompts: Sequence[str]) -> str:
    inputs = {
        **origin,
        "classes": len(task.class_names),
        "data": digest([task.train.inputs, task.train.labels]),
    }
    # The keys of the first experts did not name these three.
    if task.loss is not cross_entropy:
        inputs["loss"] = _name(task.loss)
    if task.transform not in (scale_pixels, to_tokens):
        inputs["transform"] = _name(task.transform)
    if prompts:
        inputs["prompts"] = list(prompts)
    return fingerprint(inputs)


def _name(function: Any) -> str:
    """A function's module and name, by which what it made is cached."""
    name = getattr(function, "__qualname__", "<lambda>")
    if "<lambda>" in name:
        raise ValueError(f"{function!r} has no name to cache experts by: define it with def")
    return f"{function.__module__}.{name}"
