"""The zoo: a backbone, one fine-tuned expert a task, and the frozen heads.

Every expert is one file in the cache, named by a hash of all that made it: data, backbone,
recipe, seed. So suites that share a task share its expert, two processes that build at once divide
the work, and a killed build loses only the expert it was at.
"""

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock
from torch import Tensor, nn

from mergelib.io import cache_folder, load_state_dict, save_state_dict
from mergelib.progress import progress
from mergelib.testbed.models import build_model
from mergelib.testbed.pretraining import FALLBACK, pretrain, shipped_backbone
from mergelib.testbed.suites import pretraining_sets, usual_model
from mergelib.testbed.tasks import Suite, Task
from mergelib.testbed.training import Recipe, few_shot_head, fine_tune, usual_recipe

VERSION = 1  # of what these files mean; raise it to leave old caches behind


@dataclass(frozen=True)
class Zoo:
    """What there is to merge on a suite.

    Attributes:
        suite: the tasks.
        model: the architecture, carrying the pretrained weights.
        pretrained: state dict of the backbone, θ_0.
        experts: task to fine-tuned state dict, θ_t.
        heads: task to frozen head.
        files: task to the expert's file in the cache, ready for `merge_files`.
        fingerprint: hash of all that made it, hexadecimal.
    """

    suite: Suite
    model: nn.Module
    pretrained: dict[str, Tensor]
    experts: dict[str, dict[str, Tensor]]
    heads: dict[str, nn.Module]
    files: dict[str, Path]
    fingerprint: str


def load_backbone(model: str, device: torch.device | str = "cpu") -> nn.Module:
    """A model with its pretrained weights: shipped ones, else from a short pretraining, cached.

    Raises:
        ValueError: for an unknown model.
    """
    backbone = build_model(model)
    backbone.load_state_dict(_pretrained(model, torch.device(device)))
    return backbone.to(device).eval()


def make_heads(
    backbone: nn.Module, suite: Suite, recipe: Recipe, seed: int
) -> dict[str, nn.Module]:
    """The frozen few-shot head of every task, from pretrained features (see `few_shot_head`).

    A language model predicts by itself: its heads pass on what they get.
    """
    if suite.is_text:
        return {name: nn.Identity() for name in suite.tasks}
    return {
        name: few_shot_head(
            backbone,
            task.train,
            len(task.class_names),
            shots=recipe.shots,
            scale=recipe.head_scale,
            seed=seed,
        )
        for name, task in suite.tasks.items()
    }


def load_zoo(
    suite: Suite,
    *,
    model: str | None = None,
    recipe: Recipe | None = None,
    seed: int | None = None,
    device: torch.device | str = "cpu",
) -> Zoo:
    """The experts of a suite, from the cache or fine-tuned now (with a progress bar).

    Args:
        suite: from `load_suite`.
        model: ``"vit"`` for pictures and ``"gpt"`` for texts are the defaults (their pretrained
            weights ship with the package), or another of `mergelib.testbed.models.MODELS`, which is
            first pretrained on rendered scripts.
        recipe: how to fine-tune; the default suits the suite and its usual model.
        seed: draws the heads' examples and the order of training; by default the suite's.
        device: where to train, and where the zoo's tensors lie.

    Raises:
        ValueError: an unknown model, one for another kind of data, or a recipe out of range.
    """
    model = model or usual_model(suite.name)
    if suite.name.startswith("clip"):  # public experts, nothing to train
        from mergelib.testbed.families.clip import load_clip_zoo

        return load_clip_zoo(suite, model=model, device=device)
    if (model == "gpt") != suite.is_text:
        kind = "texts, expected gpt" if suite.is_text else "pictures, expected a model for these"
        raise ValueError(f"model is {model!r}, but {suite.name} is of {kind}")
    recipe = recipe or usual_recipe(suite.name)
    seed = suite.seed if seed is None else seed
    backbone = load_backbone(model, device)
    pretrained = {key: value.clone() for key, value in backbone.state_dict().items()}
    made = {"version": VERSION, "model": model, "recipe": asdict(recipe), "seed": seed}
    made["backbone"] = _hash([tensor for _, tensor in sorted(pretrained.items())])
    prints = {name: _fingerprint(made, task) for name, task in suite.tasks.items()}
    folder = cache_folder() / "zoo"
    folder.mkdir(parents=True, exist_ok=True)
    files = {name: folder / f"{name}-{prints[name]}.safetensors" for name in suite.tasks}
    heads = make_heads(backbone, suite, recipe, seed)
    steps = {
        name: recipe.steps(len(task.train))
        for name, task in suite.tasks.items()
        if not files[name].exists()
    }
    experts = {}
    with progress(total=sum(steps.values()), desc="fine-tuning", leave=False) as bar:
        for name, task in suite.tasks.items():
            bar.set_postfix_str(name)
            train = partial(
                fine_tune,
                backbone,
                heads[name],
                task.train,
                recipe,
                seed=seed,
                on_step=lambda *_: bar.update(),
            )
            state = _cached(files[name], train, made)
            experts[name] = {key: value.to(device) for key, value in state.items()}
    fingerprint = hashlib.sha256("".join(prints.values()).encode()).hexdigest()[:16]
    return Zoo(suite, backbone, pretrained, experts, heads, files, fingerprint)


def _pretrained(name: str, device: torch.device) -> dict[str, Tensor]:
    """θ_0: the shipped weights, or those of a pretraining on rendered scripts."""
    shipped = shipped_backbone(name)
    if shipped is not None:
        return shipped
    sets = [each for each in pretraining_sets() if each.name == "glyphs"]
    made = {"version": VERSION, "model": name, "recipe": asdict(FALLBACK), "data": sets[0].sha256}

    def train() -> dict[str, Tensor]:
        torch.manual_seed(0)
        fresh = build_model(name).to(device)
        pretrain(fresh, sets, FALLBACK)
        return {key: value.detach().clone() for key, value in fresh.state_dict().items()}

    digest = hashlib.sha256(json.dumps(made, sort_keys=True).encode()).hexdigest()[:16]
    folder = cache_folder() / "zoo"
    folder.mkdir(parents=True, exist_ok=True)
    return _cached(folder / f"{name}-backbone-{digest}.safetensors", train, made)


def _cached(
    file: Path, train: Callable[[], dict[str, Tensor]], made: Mapping[str, Any]
) -> dict[str, Tensor]:
    """The state dict in a file; if it is absent or damaged, trained now and written there."""
    with FileLock(file.with_suffix(".lock")):
        if file.exists():
            try:
                return load_state_dict(file)
            except ValueError:
                file.unlink()
        state = {key: value.cpu() for key, value in train().items()}
        save_state_dict(state, file, metadata={"mergelib.made": json.dumps(made)})
        return state


def _fingerprint(made: Mapping[str, Any], task: Task) -> str:
    """Hash of all that an expert depends on."""
    data = _hash([task.train.inputs, task.train.labels])
    text = json.dumps({**made, "classes": len(task.class_names), "data": data}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _hash(tensors: list[Tensor]) -> str:
    state = hashlib.sha256()
    for tensor in tensors:
        state.update(tensor.cpu().contiguous().numpy().data)
    return state.hexdigest()
