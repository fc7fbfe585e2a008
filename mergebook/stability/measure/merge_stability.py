"""Stability, gradients and generalisation error of one merge, to check the bound of chapter 40.

The bound is E_G ≤ L/2 · S + √(S·V), in place of Lemma 1 of Li et al. (2026). All of its terms are
measured on the same merge: S by training its experts again with one example replaced, V and L at
the merge, and E_G on examples that come from the same draw as the training examples.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Generator

from mergebook.lab.comparison import problem_of
from mergebook.lab.results import Rows, Tables
from mergebook.lab.runner import beginning_of, study
from mergebook.stability.measure.retraining import drawn, retrained, rows_of, trained_weights
from mergebook.stability.theory import estimators
from mergebook.stability.theory.task_loss import task_losses
from mergebook.suites.types import Zoo
from mergelib.hashing import stable_seed
from mergelib.statedict import StateDict, unflatten

STEPS = (8, 32, 128, 512)


@study(load=beginning_of)
def merge_stability(
    zoo: Zoo,
    *,
    tasks: int = 4,  # the first ones of the suite
    pairs: int = 12,  # of trainings that differ in one example, for each task
    steps: Sequence[int] = STEPS,  # ascending
    rate: float = 0.02,
    batch: int = 8,
    examples: int = 128,  # the first rows of each training split
    fresh: int = 1000,  # further rows that judge the model, at most; none is trained on
    singles: int = 8,  # training examples of each task whose curvature is taken at each model
    products: int = 10,  # with the Hessian of each of them
) -> Tables:
    """The average of experts, and all that the bound of its generalisation error is made of.

    Experts are trained by plain SGD at a constant rate, on batches that are drawn again at every
    step, as in the study `retraining`.

    Returns:
        ``experts``: rows of ``task``, ``steps``, ``stability`` s_t and its ``half_width`` over
        pairs. ``merged``: rows of ``steps`` (0: the pretrained model), ``loss`` f on the training
        examples, ``fresh_loss`` F, ``test_loss`` on the test split, ``second_moment`` V,
        ``squared`` ‖∇f‖², ``smoothness`` L, the largest of the single examples, and
        ``stability`` S = Σ s_t / T³. Losses are means over tasks, in nats.
    """
    rows: Rows = []
    weights, moved = [], []
    split = {name: rows_of(zoo, name) for name in [*zoo.suite.tasks][:tasks]}
    for name, everything in split.items():
        if len(everything) <= examples + pairs:
            raise ValueError(
                f"task {name!r} has {len(everything)} training examples; {examples} to train on, "
                f"{pairs} replacements and at least one fresh example need more"
            )
        generator = Generator().manual_seed(stable_seed("merge stability", name, zoo.suite.seed))
        batches = [*drawn(examples, batch, generator, steps=max(steps))]
        own, other = everything[:examples], everything[examples : examples + pairs]
        train = partial(trained_weights, zoo, name, batches, steps, rate)
        base, found = retrained(train, own, other, batches, steps, generator)
        weights.append(base)
        moved.append(found)
        rows += [
            {"task": name, "steps": count, "stability": one.value, "half_width": one.half_width}
            for count, one in zip(steps, found, strict=True)
        ]
    first, last = examples + pairs, examples + pairs + fresh
    parts = {
        "loss": {name: own[:examples] for name, own in split.items()},
        "fresh_loss": {name: own[first:last] for name, own in split.items()},
        "test_loss": {name: rows_of(zoo, name, "test") for name in split},
    }
    problem = problem_of(zoo, examples)
    problems = {name: replace(problem, data=data) for name, data in parts.items()}
    generator = Generator().manual_seed(stable_seed("merge stability", zoo.suite.seed))
    options: dict[str, Any] = {"steps": products, "generator": generator}

    def judged(state: StateDict) -> dict[str, float]:
        losses = {name: [*task_losses(each, state).values()] for name, each in problems.items()}
        row = {
            name: sum(float(one.values().mean()) for one in own) / len(own)
            for name, own in losses.items()
        }
        train = losses["loss"]
        lengths = [torch.cat([g.square().sum(1) for g in one.example_gradients()]) for one in train]
        curvatures = [estimators.example_smoothness(one[:singles], **options) for one in train]
        return row | {
            "second_moment": float(torch.stack([part.mean() for part in lengths]).mean()),
            "squared": float(torch.stack([one.gradient() for one in train]).mean(0).square().sum()),
            "smoothness": float(torch.cat(curvatures).max()),
        }

    merged: Rows = [{"steps": 0, "stability": 0.0} | judged(zoo.pretrained)]
    for i, count in enumerate(steps):
        mean = torch.stack([base[i] for base in weights]).mean(0)
        state = {**zoo.pretrained, **unflatten(mean, dict(zoo.model.named_parameters()))}
        stability = sum(found[i].value for found in moved) / len(split) ** 3
        merged.append({"steps": count, "stability": stability} | judged(state))
    return {"experts": rows, "merged": merged}
