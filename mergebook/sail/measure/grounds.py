"""The grounds on which SAIL's starts are compared.

Texts are mixtures of two, so that Theorem 3's weight is known; of images one source has learned
photographs and the other scripts, or either half of the classes; the target has its own classes.
The profile ``full`` of texts is for a GPU: the paper's GPT of six blocks and width 384.
"""

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mergebook.lab.runner import Loaded, Run, refuse_zoo_settings
from mergebook.sail.costs import count_flops
from mergebook.sail.measure.text import SECOND, divided, mixed, texts_of
from mergebook.sail.measure.training import States, Texts, load_corpus
from mergebook.sail.measure.transfers import SMALL, TARGET, Schedule, Transfer
from mergebook.sail.networks.byol import BYOL, linear_probe, train_byol
from mergebook.sail.thirds import histograms, permuted
from mergebook.suites.data.texts import TEXTS
from mergebook.suites.families import family_of, pictures
from mergebook.suites.loading import load_suite
from mergebook.suites.models import GPT, ResNet, to_tokens
from mergebook.suites.types import LabelledSet
from mergelib.evaluation.tasks import Split, Task, Transform
from mergelib.hashing import stable_seed
from mergelib.problems import calling
from mergelib.problems.checks import check_choice

SHARE = 0.75  # of a text's target that is of the first source's text
PICTURES: dict[str, Any] = {"train_size": 4000, "validation_size": 500, "test_size": 500}
GPTS = {  # width, blocks and heads
    "default": {SMALL: (32, 2, 4), "half wider": (48, 3, 6), "twice": (64, 4, 8)},
    "full": {SMALL: (192, 3, 6), "half wider": (288, 4, 9), "twice": (384, 6, 12)},
}
RESNETS = {  # width, and blocks of each stage
    SMALL: (8, 1, 1, 1, 1),
    "half wider": (12, 2, 2, 2, 2),
    "deeper": (8, 2, 2, 2, 2),
    "deepest": (8, 3, 4, 6, 3),
}
DESCRIBED = 500  # pictures of each part whose pixels are compared
PROBED = 1000  # of the target's training pictures that a probe is fitted to
MOMENTUM = 0.9  # of BYOL's target network: the paper's 0.996 is for trainings of 10^5 steps
SCHEDULES = {  # sources take about as many FLOPs: a step without labels takes 2.7 times as many
    **dict.fromkeys(("labels", "labels, probed"), Schedule(1000, 3e-3, 64)),
    "byol": Schedule(400, 3e-3, 64),
}
LEARNING = {"labels": "ResNet", "labels, probed": "ResNet, probed", "byol": "ResNet, BYOL"}
PHOTOGRAPHS, HALVES, HELD_OUT = "tiny_imagenet32", "halves", "tiny_imagenet20"
HELD = {"classes": 20, "train": 110, "validation": 25}  # photographs of a class; others for tests


def transfer_of(run: Run) -> Loaded:
    """The transfer of a run and its seed: two texts, or a task of a suite of images."""
    learning, known = run.settings.get("learning", "labels"), run.settings["known"]
    if run.suite in TEXTS:
        check_choice("learning", learning, ["labels"])
        check_choice("known", known, [""])
        text = texts_of(run, [SECOND])
        (source,) = text.arguments
        return Loaded((text_transfer(source),), text.inputs)
    check_choice("learning", learning, [*LEARNING])
    rendered = family_of(run.suite).name == "glyphs"
    check_choice("known", known, [""] if rendered else ["", HALVES])
    refuse_zoo_settings(run, "studies of starts")
    seen = _known(rendered=rendered)[: 1 if known else None]
    sources = {f"pretraining/{each.name}": each.sha256 for each in seen}
    name = run.settings["target"] or next(iter(family_of(run.suite).suites[run.suite]))
    if known:
        seen[0], held_out = _apart(seen[0], run.seed)
    if known and name == HELD_OUT:
        task = held_out
    else:
        suite = load_suite(run.suite, seed=run.seed, tasks=[name], **PICTURES)
        task, sources = suite.tasks[name], {**suite.sources, **sources}
    transfer = picture_transfer(task, seen, run.seed, learning, device=run.device)
    return Loaded((transfer,), {"sources": sources})


@lru_cache(maxsize=1)
def _known(*, rendered: bool) -> list[LabelledSet]:
    """What sources learn: scripts that no suite has, and photographs where these may be missed."""
    if rendered:
        return pictures.rendered_sets()
    found = {each.name: each for each in pictures.pretraining_sets()}
    if PHOTOGRAPHS not in found:
        raise ValueError(f"no file of {PHOTOGRAPHS} in the data folder (MERGELIB_DATA)")
    return [found[PHOTOGRAPHS], found["glyphs"]]


def _apart(seen: LabelledSet, seed: int) -> tuple[LabelledSet, Task]:
    """A set of images without some of its classes, and the task that these make."""
    order = permuted(len(seen.class_names), stable_seed("held out", seed))
    held, kept = order[: HELD["classes"]], order[HELD["classes"] :]
    names = [tuple(seen.class_names[k] for k in classes) for classes in (held, kept)]
    train, test = (_of_classes(split, kept) for split in (seen.train, seen.test))
    rest = replace(seen, class_names=names[1], train=train, test=test)
    pool, tests = (_of_classes(split, held) for split in (seen.train, seen.test))
    parts = [len(held) * HELD["train"], len(held) * HELD["validation"]]
    parts.append(len(pool) + len(tests) - sum(parts))
    splits = map(
        Split,
        torch.cat([pool.inputs, tests.inputs]).split(parts),
        torch.cat([pool.labels, tests.labels]).split(parts),
    )
    return rest, pictures.picture_task(HELD_OUT, names[0], *splits)


def text_transfer(source: Texts) -> Transfer:
    """Sources of two texts, each on every second block; the target is mixed from the others."""
    corpus = load_corpus(source, source_steps=1000)
    plan = corpus.plan
    seen, fresh = divided(corpus, thirds=False)
    target_rows = mixed(fresh, (SHARE, 1 - SHARE), source.seed)
    target = corpus.target(target_rows)

    def network(size: str, part: int) -> nn.Module:
        sizes = {"vocabulary": plan.vocabulary, "context": plan.context}
        return GPT(*GPTS[source.profile][size], **sizes)

    name = "GPT" if source.profile == "default" else f"GPT, {source.profile}"
    builds = {size: partial(network, size) for size in GPTS[source.profile]}
    data = [*map(corpus.windows, seen), target.train], target.choose, target.judge
    blocks = [corpus.blocks[rows].double() for rows in (*seen, target_rows.train)]
    shares = [histograms(table, plan.vocabulary) for table in blocks]
    schedule = Schedule(plan.source_steps, plan.source_rate, plan.batch_size)
    usual: dict[str, Any] = {"answers": True, "copied": ("twice",), "device": source.device}
    return Transfer(name, "", builds, (), *data, shares, schedule, to_tokens, source.seed, **usual)


def picture_transfer(
    task: Task,  # the target
    known: Sequence[LabelledSet],  # what sources see, one set or two
    seed: int,  # of everything drawn
    learning: str = "labels",  # of sources and on the target, one of `LEARNING`
    *,
    device: str = "cpu",  # of networks
) -> Transfer:
    """Sources of a set each, or of half of the classes of one, and a task of other images."""
    parts = [each.train for each in known]
    name = LEARNING[learning]
    if len(known) == 1:
        name = name.replace("ResNet", f"ResNet, {HALVES}", 1)
        halves = permuted(len(known[0].class_names), stable_seed("halves", seed)).chunk(2)
        parts = [_of_classes(parts[0], half) for half in halves]
    parts.append(task.train)
    outputs = [int(split.labels.max()) + 1 for split in parts]

    def network(size: str, part: int) -> nn.Module:
        width, *blocks = RESNETS[size]
        body = ResNet(width, tuple(blocks))
        return nn.Sequential(body, nn.Linear(body.width, outputs[part]))

    builds, head = {size: partial(network, size) for size in RESNETS}, ("1.weight", "1.bias")
    pixels = [_described(split, task.transform, seed) for split in parts]
    data = (parts, task.validation, task.test, pixels)
    usual: dict[str, Any] = {"answers": False, "copied": [*RESNETS][1:], "device": device}
    kind = Transfer if learning == "labels" else Unlabelled if learning == "byol" else Probed
    return kind(
        name, task.name, builds, head, *data, SCHEDULES[learning], task.transform, seed, **usual
    )


@dataclass(frozen=True, repr=False)
class Probed(Transfer):
    """Images on which features are judged, by a classifier fitted to `PROBED` target images."""

    def judged(self, net: nn.Module, state: Mapping[str, Tensor]) -> dict[str, float]:
        state = self.settled(net, state)
        known, *asked = (
            Split(self._features(net, state, split), split.labels)
            for split in (self.parts[TARGET].first(PROBED), self.choose, self.judge)
        )
        (choose, _), (judge, accuracy) = linear_probe(known, *asked)
        return {"choose": choose, "judge": judge, "accuracy": accuracy}

    def _features(self, net: nn.Module, state: Mapping[str, Tensor], split: Split) -> Tensor:
        body = {key.removeprefix("0."): value for key, value in state.items() if key[:2] == "0."}
        return calling.features(
            _body(net), body, split.inputs, batch_size=100, transform=self.transform
        )


@dataclass(frozen=True, repr=False)
class Unlabelled(Probed):
    """The same for networks that learn without labels, by BYOL; heads stay as they are."""

    def trained(self, net: nn.Module, split: Split, steps: Sequence[int], rate: float) -> States:
        options: dict[str, Any] = {"steps": max(steps), "learning_rate": rate, "kept_at": steps}
        options |= {"batch_size": self.schedule.batch_size, "momentum": MOMENTUM}
        options["seed"] = stable_seed("order", self.seed)
        found = train_byol(_body(net), self.transform(split.inputs), **options)
        return {
            step: {**net.state_dict(), **{f"0.{key}": value for key, value in body.items()}}
            for step, body in found.items()
        }

    def step_flops(self, net: nn.Module) -> int:
        views = 2 * [self.transform(self.parts[TARGET].inputs[: self.schedule.batch_size])]
        body = copy.deepcopy(_body(net))
        network = BYOL(body, body.width, momentum=MOMENTUM).train()
        return count_flops(lambda: network.loss(*views).backward())


def _body(net: nn.Module) -> ResNet:
    body: ResNet = net.get_submodule("0")  # type: ignore[assignment]  # as `picture_transfer` builds
    return body


def _of_classes(split: Split, classes: Tensor) -> Split:
    numbers = torch.full((int(split.labels.max()) + 1,), -1)
    numbers[classes] = torch.arange(len(classes))
    labels = numbers[split.labels]
    return Split(split.inputs[labels >= 0], labels[labels >= 0])


def _described(split: Split, transform: Transform, seed: int) -> Tensor:
    """8 x 8 pixels of three colours of `DESCRIBED` of a split's images, drawn."""
    rows = permuted(len(split), stable_seed("described", seed))[:DESCRIBED]
    return F.adaptive_avg_pool2d(transform(split.inputs[rows]), 8).flatten(1).double()
