"""The zoo of experts: what it gives, what its cache is keyed by, and that nothing breaks it."""

import errno
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from safetensors import safe_open
from torch import Tensor

import mergelib as ml
from mergebook import load_suite
from mergebook.suites import caching
from mergebook.suites import zoo as zoo_module
from mergebook.suites.backbones import load_backbone, shipped_backbone
from mergebook.suites.families import FAMILIES
from mergebook.suites.heads import features
from mergebook.suites.models import Head, scale_pixels
from mergebook.suites.training import Recipe, fine_tune
from mergebook.suites.zoo import load_zoo, make_heads
from mergelib.evaluation.tasks import Split, Suite
from mergelib.io import load_state_dict

RECIPE = Recipe(epochs=1, learning_rate=3e-3)


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Grows by one name a training; fine-tuning itself is the real one."""
    names: list[str] = []
    real = fine_tune

    def watched(*arguments: Any, **options: Any) -> Any:
        names.append("expert")
        return real(*arguments, **options)

    monkeypatch.setattr(zoo_module, "fine_tune", watched)
    return names


def change_pretraining(monkeypatch: pytest.MonkeyPatch, **changes: Any) -> None:
    family = FAMILIES["digits"]
    assert family.pretraining is not None
    pretraining = replace(family.pretraining, **changes)
    monkeypatch.setitem(FAMILIES, "digits", replace(family, pretraining=pretraining))


def test_what_a_zoo_holds(tiny: str, digits: Suite) -> None:
    zoo = load_zoo(digits, model=tiny, recipe=RECIPE)
    assert list(zoo.experts) == list(zoo.heads) == list(zoo.files) == list(digits.tasks)
    assert zoo.suite is digits
    state = zoo.model.state_dict()
    assert all(torch.equal(state[key], zoo.pretrained[key]) for key in state)
    assert not zoo.model.training
    for name, expert in zoo.experts.items():
        assert expert.keys() == zoo.pretrained.keys()
        assert not torch.equal(expert["norm.weight"], zoo.pretrained["norm.weight"])
        stored = load_state_dict(zoo.files[name])
        assert all(torch.equal(stored[key], expert[key]) for key in expert)
        with safe_open(zoo.files[name], framework="pt") as file:
            origin = json.loads(file.metadata()["mergelib.made"])
        assert origin["recipe"]["epochs"] == 1
    merged = ml.merge("task_arithmetic", zoo.experts, pretrained=zoo.pretrained)
    zoo.model.load_state_dict(merged)


def test_experts_beat_the_backbone_on_their_tasks(tiny_zoo: Any) -> None:
    for task in tiny_zoo.suite.tasks:
        part = replace(tiny_zoo.suite, tasks={task: tiny_zoo.suite.tasks[task]})
        base, own = (
            ml.evaluate(tiny_zoo.model, state, tiny_zoo.heads, part)["loss"].item()
            for state in (tiny_zoo.pretrained, tiny_zoo.experts[task])
        )
        assert own < base


def test_a_second_load_reads_the_cache(
    tiny: str, digits: Suite, monkeypatch: pytest.MonkeyPatch
) -> None:
    once = load_zoo(digits, model=tiny, recipe=RECIPE)

    def never(*_: Any, **__: Any) -> Any:
        raise AssertionError("trained again")

    monkeypatch.setattr(zoo_module, "fine_tune", never)
    change_pretraining(monkeypatch, train=never)
    again = load_zoo(digits, model=tiny, recipe=RECIPE)
    assert (again.files, again.fingerprint) == (once.files, once.fingerprint)
    for name, expert in once.experts.items():
        assert all(torch.equal(again.experts[name][key], expert[key]) for key in expert)
        assert torch.equal(*(loaded.heads[name].state_dict()["weight"] for loaded in (again, once)))


@pytest.mark.slow
def test_experts_made_in_parallel_are_those_of_one_thread(
    tiny: str, digits: Suite, own_cache: Path
) -> None:
    """To the bit: every process trains on one thread, however many this one has."""
    threads, zoos = torch.get_num_threads(), []
    try:
        for count in (1, 2):
            torch.set_num_threads(count)
            zoos.append(load_zoo(digits, model=tiny, recipe=RECIPE))
            assert torch.get_num_threads() == count
            for file in zoos[0].files.values():
                file.unlink()
    finally:
        torch.set_num_threads(threads)
    for task, state in zoos[0].experts.items():
        assert all(torch.equal(value, zoos[1].experts[task][key]) for key, value in state.items())


@pytest.mark.parametrize("share", [0.0, 0.5, 0.99])
def test_a_truncated_file_is_made_anew(
    tiny: str, digits: Suite, trained: list[str], share: float
) -> None:
    once = load_zoo(digits, model=tiny, recipe=RECIPE)
    file = once.files["digits_high"]
    content = file.read_bytes()
    file.write_bytes(content[: int(share * len(content))])
    trained.clear()
    again = load_zoo(digits, model=tiny, recipe=RECIPE)
    assert len(trained) == 1
    assert file.read_bytes() == content
    expert = once.experts["digits_high"]
    assert all(torch.equal(again.experts["digits_high"][key], expert[key]) for key in expert)


def test_a_truncated_backbone_is_made_anew(tiny: str, own_cache: Path) -> None:
    before = load_backbone(tiny).state_dict()
    (file,) = (own_cache / "zoo").glob("tiny-backbone-*.safetensors")
    file.write_bytes(file.read_bytes()[:100])
    after = load_backbone(tiny).state_dict()
    assert all(torch.equal(after[key], before[key]) for key in before)


def test_whatever_changes_an_expert_changes_its_file(
    tiny: str, digits: Suite, trained: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    low = digits.tasks["digits_low"]
    part = replace(digits, tasks={"digits_low": low})
    files = [load_zoo(part, model=tiny, recipe=RECIPE).files["digits_low"]]

    def add(suite: Suite = part, recipe: Recipe = RECIPE, **options: Any) -> None:
        files.append(load_zoo(suite, model=tiny, recipe=recipe, **options).files["digits_low"])

    for recipe in (
        replace(RECIPE, learning_rate=1e-3),
        replace(RECIPE, batch_size=100),
        replace(RECIPE, shots=1),
        replace(RECIPE, optimiser="sgd"),
        replace(RECIPE, weight_decay=0.0),
    ):
        add(recipe=recipe)
    add(seed=1)
    images, labels = low.train.inputs.clone(), low.train.labels.clone()
    images[0, 0, 0, 0] += 1
    add(replace(part, tasks={"digits_low": replace(low, train=Split(images, labels))}))
    labels[0] = (labels[0] + 1) % 5
    add(replace(part, tasks={"digits_low": replace(low, train=Split(low.train.inputs, labels))}))
    add(replace(part, tasks={"digits_low": replace(low, loss=smoothed)}))
    add(replace(part, tasks={"digits_low": replace(low, transform=scale_to_unit)}))
    change_pretraining(monkeypatch, short_recipe=Recipe(epochs=1, learning_rate=1e-3))
    add()
    assert len(set(files)) == len(files) == len(trained) == 12
    load_zoo(part, model=tiny, recipe=RECIPE)
    assert len(trained) == 12


def smoothed(outputs: Tensor, labels: Tensor, *, reduction: str = "mean") -> Tensor:
    return F.cross_entropy(outputs, labels, reduction=reduction, label_smoothing=0.1)


def scale_to_unit(pictures: Tensor) -> Tensor:
    return pictures.float() / 255


def test_what_has_no_name_is_no_key(tiny: str, digits: Suite) -> None:
    low = replace(digits.tasks["digits_low"], transform=lambda pictures: pictures / 255)
    with pytest.raises(ValueError, match=r"lambda.* has no name to cache experts by"):
        load_zoo(replace(digits, tasks={"digits_low": low}), model=tiny, recipe=RECIPE)


def test_names_of_files_stay() -> None:
    """What the first experts were called; other names would leave every cache behind."""
    suite = load_suite("digits2", profile="smoke", tasks=["digits_low"])
    zoo = load_zoo(suite, recipe=Recipe(epochs=1))
    assert zoo.files["digits_low"].name == "digits_low-f0136248c9a20135.safetensors"
    assert zoo.fingerprint == "d13af147a32b6d04"


def test_suites_that_share_a_task_share_its_expert(
    tiny: str, digits: Suite, trained: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """And what is only tested on does not matter to it."""
    low = digits.tasks["digits_low"]
    monkeypatch.setitem(FAMILIES["digits"].suites, "digits1", ("digits_low",))
    small = replace(digits, name="digits1", tasks={"digits_low": low})
    large = replace(digits, tasks={**digits.tasks, "digits_low": low})
    one = load_zoo(small, model=tiny, recipe=RECIPE)
    assert len(trained) == 1
    both = load_zoo(large, model=tiny, recipe=RECIPE)
    assert len(trained) == 2
    assert both.files["digits_low"] == one.files["digits_low"]
    assert both.fingerprint != one.fingerprint
    cut = replace(low, test=Split(low.test.inputs[:5], low.test.labels[:5]))
    load_zoo(replace(small, tasks={"digits_low": cut}), model=tiny, recipe=RECIPE)
    assert len(trained) == 2


def test_the_seed_is_the_suites_unless_told(tiny: str, digits: Suite) -> None:
    assert load_zoo(digits, model=tiny, recipe=RECIPE, seed=0).files == (
        load_zoo(digits, model=tiny, recipe=RECIPE).files
    )
    other = replace(digits, seed=4)
    told = load_zoo(digits, model=tiny, recipe=RECIPE, seed=4)
    assert load_zoo(other, model=tiny, recipe=RECIPE).files == told.files
    task = digits.tasks["digits_low"]
    expected = fine_tune(
        told.model, told.heads["digits_low"], task.train, RECIPE, transform=scale_pixels, seed=4
    )
    assert all(torch.equal(told.experts["digits_low"][key], expected[key]) for key in expected)


def test_heads_come_from_pretrained_features(tiny: str, digits: Suite) -> None:
    backbone = load_backbone(tiny)
    recipe = Recipe(shots=1000, head_scale=3.0)
    head = make_heads(backbone, digits, recipe, seed=0)["digits_high"]
    assert isinstance(head, Head)
    task = digits.tasks["digits_high"]
    x = torch.nn.functional.normalize(features(backbone, task.train.inputs, scale_pixels), dim=1)
    for label in range(5):
        mean = x[task.train.labels == label].mean(0)
        torch.testing.assert_close(head.weight[label], mean / mean.norm())
    assert head.scale == 3


def test_unknown_models() -> None:
    with pytest.raises(ValueError, match="unknown model 'vgg'; known: vit"):
        load_backbone("vgg")


def test_what_a_family_of_fine_tuned_experts_does_not_take(tiny: str, digits: Suite) -> None:
    with pytest.raises(ValueError, match="unknown suite 'mine'; known: clip8"):
        load_zoo(replace(digits, name="mine"), model=tiny)


def test_the_shipped_backbone_needs_no_pretraining(monkeypatch: pytest.MonkeyPatch) -> None:
    change_pretraining(monkeypatch, train=None, short_sets=None)
    state = load_backbone("vit").state_dict()
    shipped = shipped_backbone("vit")
    assert shipped is not None
    assert all(torch.equal(state[key], shipped[key]) for key in state)


PROCESSES = """
import json, os, signal, sys, time
from pathlib import Path
from dataclasses import replace
import torch
import torch._dynamo  # which every child would import with its first optimiser
from mergebook.suites import models, zoo
from mergebook.suites.families import FAMILIES
from mergebook.suites.loading import load_suite
from mergebook.suites.types import LabelledSet
from mergebook.suites.training import Recipe

torch.set_num_threads(1)
suite = load_suite("digits2", profile="smoke")
low = suite.tasks["digits_low"]
sets = [LabelledSet("glyphs", low.class_names, low.train, low.test, "0123")]
family = FAMILIES["digits"]
real_tune, real_pretrain = zoo.fine_tune, family.pretraining.train

def note(what):
    with (folder / "log").open("a") as file:
        file.write(what + "\\n")

def lines():
    log = folder / "log"
    return log.read_text().split() if log.exists() else []

def tune(model, head, split, recipe, **options):
    note("tune")
    for _ in range(100):  # until another process is at the other expert
        if folder.name == "killed" or lines().count("tune") == 2:
            break
        time.sleep(0.1)
    time.sleep(0.2)  # long enough for the third process to come by
    result = real_tune(model, head, split, recipe, **options)
    note("tuned")
    return result

def pretrain(*arguments):
    note("pretrain")
    return real_pretrain(*arguments)

zoo.fine_tune = tune
FAMILIES["digits"] = replace(
    family,
    models={"tiny": lambda: models.VisionTransformer(width=16, depth=1, heads=2)},
    pretraining=replace(
        family.pretraining,
        train=pretrain,
        short_sets=lambda: sets,
        short_recipe=Recipe(epochs=1),
    ),
)

def load():
    return zoo.load_zoo(suite, model="tiny", recipe=Recipe(epochs=1))

def child():
    if pid := os.fork():
        return pid
    loaded = load()
    experts = loaded.experts.items()
    digest = {task: float(sum(v.double().sum() for v in state.values())) for task, state in experts}
    (folder / f"{os.getpid()}.json").write_text(json.dumps(digest))
    os._exit(0)

def begin(how):
    global folder
    folder = Path(sys.argv[1], how)
    folder.mkdir()
    os.environ["MERGELIB_CACHE"] = str(folder / "cache")

begin("together")
children = [child() for _ in range(3)]
assert all(os.waitpid(pid, 0)[1] == 0 for pid in children)

begin("killed")
victim = child()
while lines().count("tune") < 2:  # the second expert is under way
    time.sleep(0.01)
os.kill(victim, signal.SIGKILL)
os.waitpid(victim, 0)
note("killed")
load()
"""


@pytest.fixture(scope="module")
def processes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for each way in which processes built a zoo, with its cache and its log."""
    if not hasattr(os, "fork"):
        pytest.skip("needs fork")
    folder = tmp_path_factory.mktemp("processes")
    environment = os.environ | {
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": str(Path(ml.__file__).parents[1]),
    }
    command = [sys.executable, "-c", PROCESSES, str(folder)]
    ran = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=120)
    assert ran.returncode == 0, ran.stderr
    return folder


def test_processes_that_build_at_once_divide_the_work_and_agree(processes: Path) -> None:
    events = (processes / "together" / "log").read_text().split()
    assert events.count("pretrain") == 1
    assert [event for event in events if event != "pretrain"] == ["tune"] * 2 + ["tuned"] * 2
    digests = [json.loads(file.read_text()) for file in (processes / "together").glob("*.json")]
    assert len(digests) == 3
    assert digests[0] == digests[1] == digests[2]


def test_a_killed_build_loses_only_the_expert_it_was_at(processes: Path) -> None:
    events = (processes / "killed" / "log").read_text().split()
    assert events == ["pretrain", "tune", "tuned", "tune", "killed", "tune", "tuned"]
    files = [file.name for file in (processes / "killed" / "cache" / "zoo").iterdir()]
    assert sorted(Path(name).suffix for name in files if not name.endswith(".lock")) == (
        [".safetensors"] * 3
    )


def test_a_cache_that_cannot_be_written_is_named(
    tiny: str, digits: Suite, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("MERGELIB_CACHE", str(tmp_path / "file"))
    with pytest.raises(OSError, match=str(tmp_path / "file")):
        load_zoo(digits, model=tiny, recipe=RECIPE)


Spoil = Callable[[dict[str, Tensor]], dict[str, Tensor]]


def flip(state: dict[str, Tensor]) -> dict[str, Tensor]:
    state["norm.weight"].view(torch.int32)[0] ^= 1
    return state


SPOILT: dict[str, Spoil] = {
    "a flipped bit": flip,
    "NaN": lambda s: {**s, "norm.weight": torch.full_like(s["norm.weight"], torch.nan)},
    "a foreign key": lambda s: {**s, "foreign": torch.ones(1)},
    "a lost key": lambda s: {k: v for k, v in s.items() if k != "norm.weight"},
    "another dtype": lambda s: {k: v.half() for k, v in s.items()},
}


@pytest.mark.parametrize("kind", SPOILT)
def test_whatever_is_not_what_was_written_is_made_anew(
    tiny: str, digits: Suite, trained: list[str], kind: str
) -> None:
    """Also where the file is a good one: its metadata hold a hash of the content."""
    once = load_zoo(digits, model=tiny, recipe=RECIPE)
    file = once.files["digits_high"]
    content = file.read_bytes()
    with safe_open(file, framework="pt") as opened:
        metadata = opened.metadata()
    ml.save_state_dict(SPOILT[kind](load_state_dict(file)), file, metadata=metadata)
    trained.clear()
    with pytest.warns(UserWarning, match=re.escape(f"{file} is damaged")):
        again = load_zoo(digits, model=tiny, recipe=RECIPE)
    assert len(trained) == 1
    assert file.read_bytes() == content
    expert = once.experts["digits_high"]
    assert all(torch.equal(again.experts["digits_high"][key], expert[key]) for key in expert)


def test_another_tasks_expert_and_a_file_without_hash(
    tiny: str, digits: Suite, trained: list[str]
) -> None:
    files = load_zoo(digits, model=tiny, recipe=RECIPE).files
    low, high = files["digits_low"], files["digits_high"]
    content = high.read_bytes()
    high.write_bytes(low.read_bytes())
    with pytest.warns(
        UserWarning, match=re.escape(f"{high} is another file's content, {low.stem}")
    ):
        load_zoo(digits, model=tiny, recipe=RECIPE)
    assert high.read_bytes() == content
    ml.save_state_dict(load_state_dict(high), high)
    with pytest.warns(UserWarning, match=re.escape(f"{high} is damaged")):
        load_zoo(digits, model=tiny, recipe=RECIPE)
    assert high.read_bytes() == content
    assert len(trained) == 4


def test_a_cache_that_cannot_be_written(
    tiny: str, digits: Suite, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is as good as any other while it holds everything."""
    once = load_zoo(digits, model=tiny, recipe=RECIPE)

    def refuse(*_: Any, **__: Any) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    for module, name in ((caching, "FileLock"), (Path, "mkdir"), (caching, "save_state_dict")):
        monkeypatch.setattr(module, name, refuse)
    again = load_zoo(digits, model=tiny, recipe=RECIPE)
    for name, expert in once.experts.items():
        assert all(torch.equal(again.experts[name][key], expert[key]) for key in expert)
    once.files["digits_low"].unlink()
    with pytest.raises(OSError, match="Read-only"):
        load_zoo(digits, model=tiny, recipe=RECIPE)
