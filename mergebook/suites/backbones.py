"""Backbones: models with their pretrained weights, shipped, cached or pretrained now."""

import json
from dataclasses import asdict, replace
from importlib import resources
from pathlib import Path

import torch
from safetensors.torch import load as load_safetensors
from safetensors.torch import save as save_safetensors
from torch import Tensor, nn

from mergebook.suites.caching import VERSION, cached
from mergebook.suites.families import family_with
from mergebook.suites.provenance import provenance
from mergebook.suites.registry import Pretraining
from mergelib.hashing import fingerprint, plain
from mergelib.io import cache_folder


def build_model(name: str) -> nn.Module:
    """A freshly initialised model by name, one of a family's `models`."""
    return family_with(name).models[name]()


def load_backbone(model: str, device: torch.device | str = "cpu") -> nn.Module:
    """A model with its pretrained weights: packaged, shipped, or pretrained shortly and cached."""
    backbone, packages = build_model(model), family_with(model).packages
    weights = packages[model].weights() if model in packages else shipped_backbone(model)
    backbone.load_state_dict(_pretrained(model, device) if weights is None else weights)
    return backbone.to(device).eval()


def shipped_backbone(name: str) -> dict[str, Tensor] | None:
    """The shipped weights of a model in float32, or ``None`` when none are shipped for it."""
    file = resources.files("mergebook.suites") / "assets" / f"{name}.safetensors"
    if not file.is_file():
        return None
    return {key: value.float() for key, value in load_safetensors(file.read_bytes()).items()}


def write_backbone(
    path: Path, name: str, *, epochs: int | None, seed: int = 0, device: torch.device | str = "cpu"
) -> None:
    """Pretrain a model, write it in float16, and beside it recipe, hashes and log as ``.json``."""
    pretraining = _pretraining(name)
    sets, recipe = pretraining.sets(), pretraining.recipe
    recipe = replace(recipe, epochs=epochs or recipe.epochs)
    torch.manual_seed(seed)
    model = build_model(name).to(device)
    log = pretraining.train(model, sets, recipe, seed=seed)
    weights = {key: value.half().cpu() for key, value in model.state_dict().items()}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(save_safetensors(weights, {"model": name}))
    made = {"sources": {part.name: part.sha256 for part in sets}, "recipe": asdict(recipe)}
    record = provenance(model=name, **made, seed=seed, device=device)
    path.with_suffix(".json").write_text(json.dumps({**record, "log": log}, indent=1) + "\n")


def _pretrained(name: str, device: torch.device | str) -> dict[str, Tensor]:
    """θ_0 of a model that no weights ship for, from a short pretraining, cached."""
    pretraining = _pretraining(name)
    sets, recipe = pretraining.short_sets(), pretraining.short_recipe
    data = "+".join(part.sha256 for part in sets)
    origin = {"version": VERSION, "model": name, "recipe": plain(recipe), "data": data}

    def train() -> dict[str, Tensor]:
        torch.manual_seed(0)
        fresh = build_model(name).to(device)
        pretraining.train(fresh, sets, recipe)
        return {key: value.detach().clone() for key, value in fresh.state_dict().items()}

    file = cache_folder() / "zoo" / f"{name}-backbone-{fingerprint(origin)}.safetensors"
    return cached(file, train, origin)


def _pretraining(model: str) -> Pretraining:
    family = family_with(model)
    if family.pretraining is None:
        raise ValueError(f"family {family.name!r} of model {model!r} does not say how to pretrain")
    return family.pretraining
