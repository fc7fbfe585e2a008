"""How faults are made: processes killed at a chosen step, small models, tries short and long."""

import json
import os
import random
import signal
import threading
import traceback
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn
from tqdm import tqdm

import mergelib as ml
from mergelib.io import Checkpoint, staging

State = dict[str, Tensor]
SCALE = float(os.environ.get("MERGELIB_FAULTS", "1"))  # of the long suites
# What puts, names, flushes and removes; a run is killed before and after each. The first two, and
# an exchange of folders, are where something can be lost.
STEPS = ("replace", "rename", "fsync", "chmod", "mkdir", "unlink", "rmdir")


def tries(short: int, long: int) -> pytest.MarkDecorator:
    """A test's ``tries``: few in every run, many with ``make faults``."""
    many = pytest.param(max(1, round(long * SCALE)), marks=pytest.mark.faults)
    return pytest.mark.parametrize("tries", [short, many], ids=["short", "long"])


def make_state(value: float) -> State:
    """Four tensors of one value."""
    return {f"w{i}": torch.full((5 + i, 3), float(value)) for i in range(4)}


def value_of(path: Path) -> float | None:
    """The one value of a whole model, adapter or compressed file, or None where there is nothing.

    A merged folder has the same value in its configuration, and a recipe's in that, too.

    Raises:
        AssertionError: for an output that is not whole.
    """
    if not path.exists():
        return None
    if (path / "adapter_config.json").exists():
        models = [product(path)]
    elif path.is_file() and "mergelib.compressed" in Checkpoint(path).metadata:
        restored = ml.load_compressed(path)
        models = [restored.expert(task) for task in restored.tasks]
    else:
        models = [Checkpoint(path).load()]
    for model in models:
        assert {key.removesuffix(".weight") for key in model} == {f"w{i}" for i in range(4)}
    values = {float(value) for model in models for t in model.values() for value in t.flatten()}
    if (path / "config.json").exists():
        values.add(json.loads((path / "config.json").read_text())["value"])
        card = (path / "README.md").read_text()
        assert "\n## Inputs\n" in card
        if "1" in json.loads(Checkpoint(path).metadata["mergelib.files"]).values():
            assert 'name: "mean"' in card, "the card has all steps of a recipe"
            values.add(float((path / "recipe.yml").read_text().split()[-1]))
    assert len(values) == 1, values
    return values.pop()


def product(folder: Path) -> State:
    """The updates of an adapter of rank 1, s B A."""
    config = json.loads((folder / "adapter_config.json").read_text())
    stored = Checkpoint(folder / "adapter_model.safetensors").load()
    modules = [key.removesuffix(".lora_A.weight") for key in stored if ".lora_A." in key]
    scale = config["lora_alpha"] / config["r"]
    pairs = {m: (stored[f"{m}.lora_B.weight"], stored[f"{m}.lora_A.weight"]) for m in modules}
    return {m.removeprefix("base_model.model."): scale * b @ a for m, (b, a) in pairs.items()}


# Doors: inputs of one value, and a run ----------------------------------------------------------

# Two factors of each value, whose products with those of another value are no value.
FACTORS = {1: (4.0, 0.25), 2: (16.0, 0.125), 3: (3.0, 1.0), 4: (32.0, 0.125)}
E2M1 = {1: (0x11, 128), 2: (0x66, 126), 3: (0x33, 128), 4: (0x11, 130)}  # 0.5, 4 and 1.5


def make_folder(folder: Path, state: State, value: int) -> None:
    ml.save_state_dict(state, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps({"value": value}))


def make_models(folder: Path, value: int) -> None:
    for name, times in (("base", -10), ("a", 1), ("b", 1), ("twelve", 12)):
        make_folder(folder / name, make_state(times * value), value)
    steps = ["name: mean", "merge_method: linear", "models:"]
    steps += [f"  - {{model: {name}, parameters: {{weight: 0.5}}}}" for name in "ab"]
    steps += ["---", "merge_method: linear", "models:"]
    steps += [f"  - {{model: {name}, parameters: {{weight: 0.5}}}}" for name in ("mean", "b")]
    (folder / "recipe.yml").write_text("\n".join([*steps, f"# {value}"]))


def make_adapters(folder: Path, value: int) -> None:
    """Of a base of ten times the value."""
    base = {f"{key}.weight": tensor for key, tensor in make_state(10 * value).items()}
    make_folder(folder / "base", base, value)
    for name, times in (("a", -9), ("b", -9), ("c", 1)):
        factor, alpha = FACTORS[value]
        state = {}
        for key, tensor in make_state(0).items():
            place = f"base_model.model.{key}"
            state[f"{place}.lora_A.weight"] = torch.ones(1, 3)
            state[f"{place}.lora_B.weight"] = torch.full((len(tensor), 1), times * factor)
        ml.save_state_dict(state, folder / name / "adapter_model.safetensors")
        config = {"peft_type": "LORA", "r": 1, "lora_alpha": alpha}
        (folder / name / "adapter_config.json").write_text(json.dumps(config))


def make_fp8(folder: Path, value: int) -> None:
    factor, scale = FACTORS[value]
    codes = {
        k: torch.full_like(t, factor).to(torch.float8_e4m3fn) for k, t in make_state(0).items()
    }
    scales = {f"{key}_scale_inv": torch.full((1, 1), scale) for key in codes}
    for name in "ab":
        make_folder(folder / name, codes | scales, value)


def make_mxfp4(folder: Path, value: int) -> None:
    byte, power = E2M1[value]
    codes = {f"w{i}_blocks": torch.full((1, 5 + i, 1, 16), byte).byte() for i in range(4)}
    scales = {f"w{i}_scales": torch.full((1, 5 + i, 1), power).byte() for i in range(4)}
    for name in "ab":
        make_folder(folder / name, codes | scales, value)


def merge_two(folder: Path, output: Path, names: Sequence[str] = "ab", **options: Any) -> None:
    models = [f"{folder}/{name}".replace("+", f"+{folder}/") for name in names]
    ml.merge_files("average", models, output, overwrite=True, **options)


def compress(folder: Path, output: Path) -> None:
    experts = {name: folder / name for name in "ab"}
    ml.compress("emr", experts, pretrained=folder / "base").save(output)


def search(folder: Path, output: Path) -> None:
    """The highest score is at the end of the grid, (-10 + 12) / 2."""

    def score(state: State) -> float:
        return float(state["w0"][0, 0])

    grid, models = {"scale": [0.25, 0.5]}, [folder / "twelve"]
    base = folder / "base"
    found = ml.search("task_arithmetic", models, pretrained=base, grid=grid, score=score)
    assert found.score == score(found.state)
    ml.save_state_dict(found.state, output)


class Products(nn.Module):
    """A model with the tensors of `make_state`, which takes inputs of width 3."""

    def __init__(self) -> None:
        super().__init__()
        for key, tensor in make_state(0).items():
            self.register_parameter(key, nn.Parameter(tensor))

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([x @ weight.T for weight in self.parameters()], dim=1)


def adapt(folder: Path, output: Path) -> None:
    """A step that goes nowhere from (11 + 11) / 2 - 10 times the value."""
    experts, data = {name: folder / name for name in "ab"}, {"a": torch.ones(2, 3)}
    given: Any = {"pretrained": folder / "base", "model": Products(), "data": data}
    made = ml.adapt("adamerging", experts, init=0.5, steps=1, learning_rate=0.0, **given)
    ml.save_state_dict(made.state, output)


class Door(NamedTuple):
    """A way to an output: what writes inputs of a value, a run, and whether it writes a folder."""

    make: Callable[[Path, int], None]
    run: Callable[[Path, Path], object]
    folder: bool = True


DOORS = {
    "merge": Door(make_models, partial(merge_two, max_shard_size=90)),
    "merge of adapters and bases": Door(
        make_adapters, partial(merge_two, names=("base+a", "base+b"))
    ),
    "merge of FP8": Door(make_fp8, partial(merge_two, dequantise=True)),
    "merge of MXFP4": Door(make_mxfp4, partial(merge_two, dequantise=True)),
    "merge_adapters": Door(
        make_adapters, lambda i, o: ml.merge_adapters("average", [i / "c"] * 2, o, overwrite=True)
    ),
    "run_recipe": Door(
        make_models, lambda i, o: ml.run_recipe(i / "recipe.yml", o, overwrite=True)
    ),
    "merge to a file": Door(make_models, merge_two, folder=False),
    "run_recipe to a file": Door(
        make_models, lambda i, o: ml.run_recipe(i / "recipe.yml", o, overwrite=True), folder=False
    ),
    "compress": Door(make_models, compress, folder=False),
    "search": Door(make_models, search, folder=False),
    "adapt": Door(make_models, adapt, folder=False),
}


def hidden(folder: Path) -> list[str]:
    """What killed runs left in a folder."""
    return sorted(name for name in os.listdir(folder) if name.startswith("."))


def in_child(work: Callable[[], object]) -> int:
    """Start a process that does some work and leaves: 0 if all went well."""
    if not hasattr(os, "fork"):
        pytest.skip("needs POSIX")
    child = os.fork()
    if child:
        return child
    status = 1
    try:
        tqdm.set_lock(threading.RLock())  # a thread of the parent may have held its own
        work()
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(status)


def ended(child: int) -> int:
    """How a child ended: its exit status, or a signal's number below zero."""
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def kill_at(step: int, work: Callable[[], object], steps: Sequence[str] = STEPS) -> bool:
    """Do some work in a process that is killed at one of its steps; False if it has fewer."""

    def doomed() -> None:
        left = iter(range(step, -1, -1))

        def die() -> None:
            if next(left) == 0:
                os.kill(os.getpid(), signal.SIGKILL)

        def mortal(function: Callable[..., Any]) -> Callable[..., Any]:
            def called(*arguments: Any, **options: Any) -> Any:
                die()
                result = function(*arguments, **options)
                die()
                return result

            return called

        for name in steps:
            setattr(os, name, mortal(getattr(os, name)))
        staging._exchange = mortal(staging._exchange)
        work()

    status = ended(in_child(doomed))
    assert status in (0, -signal.SIGKILL), status
    return status != 0


def mutate(content: bytes, draw: random.Random, limit: int | None = None) -> bytes:
    """Bytes with a few changed, removed, doubled or put in, below ``limit``; or cut short."""
    changed = bytearray(content)
    limit = min(limit or len(content), len(content))
    for _ in range(draw.randint(1, 4)):
        at, how = draw.randrange(max(1, min(limit, len(changed)))), draw.randrange(8)
        if how < 4:
            changed[at : at + 1] = bytes([draw.randrange(256)])
        elif how == 4:
            changed[at : at + 1] = bytes([changed[at] ^ 1 << draw.randrange(8)]) if changed else b""
        elif how == 5:
            del changed[at : at + draw.randint(1, 8)]
        elif how == 6:
            changed[at:at] = changed[at : at + draw.randint(1, 8)]
        else:
            del changed[draw.randrange(len(changed) + 1) :]
    return bytes(changed)
