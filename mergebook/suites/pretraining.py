"""Pretraining, on sets that are tasks of no suite: the shipped backbones, and others."""

import time
from collections.abc import Sequence
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mergebook.suites.heads import features
from mergebook.suites.models import scale_pixels, to_tokens
from mergebook.suites.training import Recipe, fine_tune
from mergebook.suites.types import LabelledSet
from mergelib.evaluation.tasks import Split, cross_entropy
from mergelib.progress import progress
from mergelib.training import shuffled, train

PHOTOGRAPHS = "tiny_imagenet32"  # the set of them

PRETRAINING = Recipe(learning_rate=1e-3, epochs=20, batch_size=128, weight_decay=0.05, warmup=0.05)

PRETRAINING_TEXT = Recipe(learning_rate=1e-3, epochs=15, batch_size=32, warmup=0.05)

# For a model that no weights are shipped for: a short pretraining on rendered scripts alone.
FALLBACK = Recipe(learning_rate=1e-3, epochs=6, batch_size=128, weight_decay=0.05, warmup=0.05)


def augment(images: Tensor, flips: Tensor, generator: torch.Generator) -> Tensor:
    """Small random affine maps, changes of contrast, brightness and tint; mirrors where `flips`."""
    n, device = len(images), images.device

    def uniform(low: float, high: float) -> Tensor:
        return low + (high - low) * torch.rand(n, generator=generator, device=device)

    mirror = 1.0 - 2.0 * (flips & (uniform(0, 1) < 0.5)).float()
    angle, size = uniform(-0.12, 0.12), uniform(0.85, 1.1)
    rows = [
        torch.stack([mirror * size * angle.cos(), -size * angle.sin(), uniform(-0.15, 0.15)], 1),
        torch.stack([mirror * size * angle.sin(), size * angle.cos(), uniform(-0.15, 0.15)], 1),
    ]
    grid = F.affine_grid(torch.stack(rows, 1), [n, 3, 32, 32], align_corners=False)
    images = F.grid_sample(images, grid, padding_mode="reflection", align_corners=False)
    tint = 0.05 * torch.randn(n, 3, generator=generator, device=device)
    shift = (uniform(-0.2, 0.2)[:, None] + tint)[..., None, None]
    return uniform(0.7, 1.3)[:, None, None, None] * images + shift


def pretrain(
    model: nn.Module, sets: Sequence[LabelledSet], recipe: Recipe = PRETRAINING, *, seed: int = 0
) -> list[dict[str, float]]:
    """Train ``model`` in place on all sets, each under its own head; returns a record per epoch."""
    device = next(model.parameters()).device
    images = torch.cat([part.train.inputs for part in sets]).to(device)
    all_labels = torch.cat([part.train.labels for part in sets]).to(device)
    sizes = torch.tensor([len(part.train) for part in sets])
    members = torch.arange(len(sets)).repeat_interleave(sizes).to(device)
    flips = torch.tensor([part.name == PHOTOGRAPHS for part in sets], device=device)[members]
    torch.manual_seed(seed)
    width = features(model, images[:2], scale_pixels).shape[1]
    heads = nn.ModuleList([nn.Linear(width, len(task.class_names)) for task in sets])
    stack = nn.ModuleList([model, heads.to(device)]).train()
    generator = torch.Generator(device).manual_seed(seed)
    examples = len(all_labels)
    optimiser = recipe.optimiser_of(stack)
    schedule = recipe.schedule_of(optimiser, examples)

    def loss(batch: Tensor) -> Tensor:
        outputs = model(augment(scale_pixels(images[batch]), flips[batch], generator))
        member, labels = members[batch], all_labels[batch]
        smooth = partial(F.cross_entropy, label_smoothing=0.1, reduction="sum")
        parts = ((head, member == i) for i, head in enumerate(heads))
        losses = [smooth(head(outputs[rows]), labels[rows]) for head, rows in parts]
        return torch.stack(losses).sum() / len(batch)

    log: list[dict[str, float]] = []
    steps, batch_size = recipe.steps(examples), recipe.batch_size
    counts = [min(batch_size, examples - first) for first in range(0, examples, batch_size)]
    with progress(total=steps, desc="pretraining") as bar:
        for epoch in range(1, recipe.epochs + 1):
            start = time.perf_counter()
            losses = train(
                stack,
                shuffled(examples, batch_size, generator, steps // recipe.epochs),
                loss,
                optimiser,
                schedule=schedule,
                clip=1.0,
                on_step=lambda *_: bar.update(),
            )
            whole = sum(mean * count for mean, count in zip(losses, counts, strict=True))
            record = {"epoch": epoch, "loss": whole / examples}
            if epoch % 5 == 0 or epoch == recipe.epochs:
                for task, head in zip(sets, heads, strict=True):
                    seen = features(model, task.test.inputs.to(device), scale_pixels)
                    right = head(seen).argmax(1).cpu() == task.test.labels
                    record[f"accuracy/{task.name}"] = float(right.float().mean())
            model.train()
            log.append({**record, "seconds": time.perf_counter() - start})
            bar.set_postfix(loss=f"{record['loss']:.3f}")
    return log


def pretrain_text(
    model: nn.Module,
    sets: Sequence[LabelledSet],
    recipe: Recipe = PRETRAINING_TEXT,
    *,
    seed: int = 0,
) -> list[dict[str, float]]:
    """Train a language model in place on texts; the loss on their test parts, in nats, as a log."""
    inputs, labels = (
        torch.cat([getattr(task.train, part) for task in sets]) for part in ("inputs", "labels")
    )
    union = Split(inputs, labels)
    start = time.perf_counter()
    with progress(total=recipe.steps(len(union)), desc="pretraining") as bar:
        state = fine_tune(
            model,
            nn.Identity(),
            union,
            recipe,
            transform=to_tokens,
            seed=seed,
            on_step=lambda *_: bar.update(),
        )
    model.load_state_dict(state)
    record = {"epoch": recipe.epochs, "seconds": time.perf_counter() - start}
    device = next(model.parameters()).device
    for task in sets:
        logits = features(model, task.test.inputs.to(device), to_tokens)
        record[f"loss/{task.name}"] = cross_entropy(logits.cpu(), task.test.labels).item()
    return [record]
