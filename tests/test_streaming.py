"""Streamed merging: the same bits as in memory, little memory, outputs that are whole or absent."""

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from torch import Tensor

import mergelib as ml
from mergelib.io import Checkpoint, load_state_dict, save_state_dict
from mergelib.merging import CHUNK, merge
from mergelib.registry import get_method, method_names
from mergelib.streaming import merge_files

State = dict[str, Tensor]


def raw(tensor: Tensor) -> bytes:
    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def assert_same(found: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> None:
    """Equal keys, kinds and bits."""
    assert set(found) == set(expected)
    for key, tensor in expected.items():
        assert (found[key].dtype, found[key].shape) == (tensor.dtype, tensor.shape), key
        assert raw(found[key]) == raw(tensor), key


def make_states(dtype: torch.dtype = torch.float32) -> list[State]:
    """A pretrained model and two experts, with a buffer, a scalar and odd sizes."""
    generator = torch.Generator().manual_seed(0)

    def draw(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator)

    base = {
        "embed.weight": draw(11, 6),
        "layer.weight": draw(24, 17),
        "long": draw(CHUNK + 3),
        "scalar": draw(),
        "empty": draw(0, 3),
    }
    states = [base, *({k: v + 0.1 * draw(*v.shape) for k, v in base.items()} for _ in range(2))]
    return [
        {k: v.to(dtype) for k, v in state.items()} | {"steps": torch.tensor([7 + i])}
        for i, state in enumerate(states)
    ]


@pytest.fixture
def states() -> list[State]:
    return make_states()


@pytest.fixture
def files(tmp_path: Path, states: list[State]) -> list[Path]:
    return save_all(tmp_path, states)


def save_all(folder: Path, states: list[State]) -> list[Path]:
    paths = [folder / f"{name}.safetensors" for name in ("base", "a", "b")]
    for state, path in zip(states, paths, strict=True):
        save_state_dict(state, path, {"made": "by hand"})
    return paths


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", method_names())
def test_streamed_equals_in_memory(tmp_path: Path, name: str, dtype: torch.dtype) -> None:
    base, *experts = make_states(dtype)
    paths = save_all(tmp_path, [base, *experts])
    expected = merge(name, experts, pretrained=base)
    file = merge_files(name, paths[0], paths[1:], tmp_path / "out.safetensors")
    assert_same(load_file(file), expected)
    if not get_method(name).needs_pretrained:
        file = merge_files(name, None, paths[1:], tmp_path / "alone.safetensors")
        assert_same(load_file(file), merge(name, experts))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("name", method_names())
def test_streamed_equals_in_memory_on_gpu(
    tmp_path: Path, states: list[State], files: list[Path], name: str
) -> None:
    expected = merge(name, states[1:], pretrained=states[0], device="cuda")
    file = merge_files(name, files[0], files[1:], tmp_path / "out.safetensors", device="cuda")
    assert_same(load_file(file), expected)


def test_hyperparameters_and_matrices_reach_the_rule(
    tmp_path: Path, states: list[State], files: list[Path]
) -> None:
    options: dict[str, Any] = {"rank_ratio": 0.3, "is_matrix": lambda key, _: key == "embed.weight"}
    expected = merge("cart", states[1:], pretrained=states[0], **options)
    merge_files("cart", files[0], files[1:], tmp_path / "out.safetensors", **options)
    assert_same(load_file(tmp_path / "out.safetensors"), expected)
    assert raw(expected["embed.weight"]) != raw(merge("average", states[1:])["embed.weight"])


def test_pickles_mix_with_safetensors_and_stay_tied(tmp_path: Path) -> None:
    table, other = torch.randn(5, 4), torch.randn(5, 4)
    base = {"table": table, "head": table}
    torch.save({"state_dict": base}, tmp_path / "base.pt")
    save_state_dict({"table": other, "head": other}, tmp_path / "expert.safetensors")
    for name in ("dare", "average"):  # dare draws by key, so a tie that is lost would show
        merged = merge(name, [{"table": other, "head": other}], pretrained=base)
        assert merged["head"] is merged["table"]
        output = tmp_path / f"{name}.safetensors"
        merge_files(name, tmp_path / "base.pt", [tmp_path / "expert.safetensors"], output)
        assert_same(load_file(output), merged)


def test_metadata_tells_what_was_merged(tmp_path: Path, files: list[Path]) -> None:
    experts = {"left": files[1], "right": files[2]}
    output = merge_files(
        "average",
        files[0],
        experts,
        tmp_path / "out.safetensors",
        weights=torch.tensor([0.25, 0.75]),
    )
    with safe_open(output, "pt") as file:
        metadata = file.metadata()
    digests = {
        name: hashlib.sha256(path.read_bytes()).hexdigest()
        for name, path in [("pretrained", files[0]), *experts.items()]
    }
    assert json.loads(metadata.pop("mergelib.inputs")) == digests
    assert json.loads(metadata.pop("mergelib.hyperparameters")) == {"weights": [0.25, 0.75]}
    assert metadata == {
        "format": "pt",
        "made": "by hand",
        "mergelib.method": "average",
        "mergelib.version": ml.__version__,
    }
    merge_files("task_arithmetic", output, [files[1]], tmp_path / "again.safetensors")
    with safe_open(tmp_path / "again.safetensors", "pt") as file:
        assert file.metadata()["mergelib.method"] == "task_arithmetic"
        assert json.loads(file.metadata()["mergelib.hyperparameters"]) == {"scale": 0.3}


# Folders


def make_model_folder(folder: Path, states: list[State], files: list[Path]) -> Path:
    """The pretrained model as a sharded folder, as `merge_files` itself writes it."""
    merge_files("average", None, [files[0]], folder, max_shard_size=3000)
    assert_same(load_state_dict(folder), states[0])
    (folder / "config.json").write_text('{"model_type": "tiny"}')
    (folder / "tokenizer.model").write_text("tokens")
    (folder / "training_args.bin").write_text("a pickle")
    (folder / ".cache").write_text("hidden")
    return folder


def test_sharded_in_sharded_out(tmp_path: Path, states: list[State], files: list[Path]) -> None:
    base = make_model_folder(tmp_path / "base", states, files)
    shards = sorted(base.glob("*.safetensors"))
    assert len(shards) > 2
    output = merge_files("ties", base, files[1:], tmp_path / "out")
    expected = merge("ties", states[1:], pretrained=states[0])
    assert_same(load_state_dict(output), expected)
    index = json.loads((output / "model.safetensors.index.json").read_text())
    assert index["metadata"]["total_size"] == sum(len(raw(tensor)) for tensor in expected.values())
    assert index["weight_map"] == {
        key: path.name for path in shards for key in load_file(output / path.name)
    }
    assert (output / "config.json").read_text() == '{"model_type": "tiny"}'
    kept = {path.name for path in shards} | {"model.safetensors.index.json", "config.json"}
    assert set(os.listdir(output)) == kept | {"tokenizer.model"}
    listing = "".join(f"{hashlib.sha256(p.read_bytes()).hexdigest()}  {p.name}\n" for p in shards)
    recorded = json.loads(Checkpoint(output).metadata["mergelib.inputs"])
    assert recorded["pretrained"] == hashlib.sha256(listing.encode()).hexdigest()

    single = merge_files("ties", base, files[1:], tmp_path / "single.safetensors")
    assert_same(load_file(single), expected)
    whole = merge_files("ties", base, files[1:], tmp_path / "whole", max_shard_size="1GB")
    assert_same(load_file(whole / "model.safetensors"), expected)
    assert not (whole / "model.safetensors.index.json").exists()


@pytest.mark.parametrize("size", [1, 500, "2KB", "0.26 MiB"])
def test_shards_are_as_large_as_allowed(
    tmp_path: Path, states: list[State], files: list[Path], size: int | str
) -> None:
    limit = {"2KB": 2000, "0.26 MiB": 0.26 * 2**20}.get(str(size), size)
    output = merge_files("average", None, files[:1], tmp_path / "out", max_shard_size=size)
    assert_same(load_state_dict(output), states[0])
    shards = [load_file(path) for path in sorted(output.glob("*.safetensors"))]
    sizes = [[len(raw(tensor)) for tensor in shard.values()] for shard in shards]
    assert all(sum(shard) <= limit or len(shard) == 1 for shard in sizes)
    assert len(shards) == {1: 6, 500: 4, "2KB": 3, "0.26 MiB": 1}[size]


def test_folder_is_overwritten_only_if_a_merge_wrote_it(
    tmp_path: Path, states: list[State], files: list[Path]
) -> None:
    output = tmp_path / "out"
    output.mkdir()  # an empty folder is in nobody's way
    merge_files("average", None, files[:1], output)
    with pytest.raises(ValueError, match="exists; pass overwrite=True"):
        merge_files("average", None, files[1:], output)
    merge_files("average", None, files[1:2], output, overwrite=True)
    assert_same(load_state_dict(output), states[1])
    save_state_dict(states[0], output / "model.safetensors")
    with pytest.raises(ValueError, match="a folder that no merge wrote"):
        merge_files("average", None, files[1:], output, overwrite=True)
    assert_same(load_state_dict(output), states[0])


# Refusals


def break_state(state: State, how: str) -> State:
    """One expert made unfit; how is what `test_unfit_inputs` calls it."""
    changed = dict(state)
    if how == "missing":
        del changed["layer.weight"]
    elif how == "extra":
        changed["new"] = torch.ones(2)
    elif how == "shape":
        changed["long"] = changed["long"][1:]
    elif how == "dtype":
        changed["long"] = changed["long"].double()
    elif how == "nan":
        changed["long"] = changed["long"].clone()
        changed["long"][-1] = torch.nan
    return changed


@pytest.mark.parametrize("how", ["missing", "extra", "shape", "dtype", "nan"])
@pytest.mark.parametrize("name", ["average", "ties"])
def test_unfit_inputs_are_refused_as_in_memory(
    tmp_path: Path, states: list[State], files: list[Path], how: str, name: str
) -> None:
    broken = break_state(states[2], how)
    save_state_dict(broken, files[2])
    with pytest.raises(ValueError, match="expert 1") as in_memory:
        merge(name, [states[1], broken], pretrained=states[0])
    with pytest.raises(ValueError, match="expert 1") as streamed:
        merge_files(name, files[0], files[1:], tmp_path / "out.safetensors")
    assert str(streamed.value) == str(in_memory.value)
    assert sorted(os.listdir(tmp_path)) == ["a.safetensors", "b.safetensors", "base.safetensors"]


def test_misfits_are_found_in_headers(
    tmp_path: Path, states: list[State], files: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    save_state_dict(break_state(states[2], "shape"), files[2])
    monkeypatch.setattr("mergelib.streaming.merge_tensors", pytest.fail)
    monkeypatch.setattr("mergelib.streaming._sha256", pytest.fail)
    with pytest.raises(ValueError, match="has shape"):
        merge_files("average", files[0], files[1:], tmp_path / "out.safetensors")


def test_bad_calls_are_refused(tmp_path: Path, files: list[Path]) -> None:
    out, first = tmp_path / "out.safetensors", files[1]
    (tmp_path / "folder.safetensors").mkdir()
    (tmp_path / "file").touch()
    (tmp_path / "x" / "y").mkdir(parents=True)
    cases: list[tuple[type[Exception], str, list[Any], dict[str, Any]]] = [
        (ValueError, "unknown method 'averag'", ["averag", None, [first], out], {}),
        (TypeError, "no hyperparameter 'scale'", ["average", None, [first], out], {"scale": 1}),
        (ValueError, "needs the pretrained", ["ties", None, [first], out], {}),
        (ValueError, "density is 2", ["ties", files[0], [first], out], {"density": 2}),
        (ValueError, "nothing to merge", ["average", None, [], out], {}),
        (TypeError, "is the single path", ["average", None, str(first), out], {}),
        (FileNotFoundError, "no such.*none", ["average", None, [tmp_path / "none"], out], {}),
        (ValueError, r"or holds expert 0", ["average", None, [first], first], {"overwrite": True}),
        (
            ValueError,
            r"or holds expert 0",
            ["average", None, [first], tmp_path],
            {"overwrite": True},
        ),
        (ValueError, "safetensors only", ["average", None, [first], tmp_path / "out.pt"], {}),
        (ValueError, "needs a folder", ["average", None, [first], out], {"max_shard_size": 9}),
        (
            ValueError,
            "like '5GB'",
            ["average", None, [first], tmp_path / "o"],
            {"max_shard_size": "5X"},
        ),
        (
            ValueError,
            "is a folder",
            ["average", None, [first], tmp_path / "folder.safetensors"],
            {},
        ),
        (
            ValueError,
            "is a file",
            ["average", None, [first], tmp_path / "file"],
            {"overwrite": True},
        ),
        (ValueError, "overwrite=True", ["average", None, [first], files[0]], {}),
        (ValueError, "is named 'pret", ["average", files[0], {"pretrained": first}, out], {}),
        (
            ValueError,
            "no merge wrote",
            ["average", None, [first], tmp_path / "x"],
            {"overwrite": True},
        ),
    ]
    before = sorted(os.listdir(tmp_path))
    for error, message, arguments, options in cases:
        with pytest.raises(error, match=message):
            merge_files(*arguments, **options)
    assert sorted(os.listdir(tmp_path)) == before


def test_input_is_not_overwritten_through_a_link(tmp_path: Path, files: list[Path]) -> None:
    link = tmp_path / "link.safetensors"
    link.symlink_to(files[1])
    with pytest.raises(ValueError, match="is or holds"):
        merge_files("average", None, [link], files[1], overwrite=True)


# Killed runs and memory, in processes of their own

KILLED = """
import os, shutil, signal, sys, time, torch
from pathlib import Path
from mergelib.io import load_state_dict
from mergelib.registry import rule
from mergelib.streaming import merge_files

@rule(paper="none")
def slow(experts):
    time.sleep(0.002)
    return experts[0] + 1

folder, output, size = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]) or None
source = folder / "in.safetensors"
torch.set_num_threads(1)

def merge():
    merge_files("slow", None, [source], output, max_shard_size=size, overwrite=True)

def check():
    for key, tensor in load_state_dict(source).items():
        assert torch.equal(merged[key], tensor + 1), key
    assert len(merged) == 20

start = time.perf_counter()
merge()
duration = time.perf_counter() - start
absent = leftovers = 0
for run in range(200):
    if run >= 25 and absent > 3 and leftovers > 3:
        break
    child = os.fork()
    if child == 0:
        merge()
        os._exit(0)
    # from nothing to more than a run takes; longer ones later, for a machine that is busy by now
    time.sleep(duration * (run % 25) / 20 * 2 ** (run // 25))
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    leftovers += any(folder.glob(".*.partial"))
    assert len(list(folder.glob(".*.partial"))) <= 1  # each run cleans up after the one before
    if not output.exists():
        absent += 1
        continue
    merged = load_state_dict(output)
    check()
    if run % 3:
        shutil.rmtree(output) if output.is_dir() else output.unlink()
assert absent > 3 and leftovers > 3, (absent, leftovers)  # else nothing was put to the test
merge()
merged = load_state_dict(output)
check()
assert sorted(os.listdir(folder)) == sorted(["in.safetensors", output.name])
"""


@pytest.mark.parametrize("size", [0, 2000])
def test_killed_run_leaves_all_or_nothing(tmp_path: Path, size: int) -> None:
    """Runs killed at 25 moments or more, to a file and to a sharded folder."""
    state = {f"w{i}": torch.full((100,), float(i)) for i in range(20)}
    save_state_dict(state, tmp_path / "in.safetensors")
    output = tmp_path / ("out" if size else "out.safetensors")
    run_script(KILLED, tmp_path, output, size)


MEMORY = """
import json, sys, torch
from pathlib import Path
import mergelib

folder, names = Path(sys.argv[1]), sys.argv[2:]
torch.set_num_threads(1)

def peak():
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))

found = {}
for name in names:
    # The small one loads whatever loads on first use; pages of libraries that the system takes
    # away and brings back come on top of some runs, so the least of several counts.
    for size in ("small", "large", "large"):
        files = sorted((folder / size).glob("*.safetensors"))[: 3 if name == "slerp" else None]
        Path("/proc/self/clear_refs").write_text("5")
        before = peak()
        mergelib.merge_files(name, files[0], files[1:], folder / "out.safetensors", overwrite=True)
        if size == "large":
            found[name] = min(peak() - before, found.get(name, sys.maxsize))
print(json.dumps(found))
"""


@pytest.mark.skipif(not os.access("/proc/self/clear_refs", os.W_OK), reason="needs Linux")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_memory_is_bounded_by_the_largest_tensor(tmp_path: Path, dtype: torch.dtype) -> None:
    """Of a language model's shapes: at most (experts + 3) copies of the largest."""
    experts, entries = 4, 8192 * 512
    shapes = {"embed.weight": (8192, 512)} | {f"w{i}": (2048, 512) for i in range(2)}
    for size, shrink in (("small", 64), ("large", 1)):
        for i in range(experts + 1):
            state = {k: torch.randn(a // shrink, b // shrink) for k, (a, b) in shapes.items()}
            state = {k: v.to(dtype) for k, v in state.items()}
            save_state_dict(state, tmp_path / size / f"{i}.safetensors")
    found = json.loads(run_script(MEMORY, tmp_path, *method_names()))
    limit = entries * (experts * dtype.itemsize + 3 * 4)
    assert max(found.values()) < limit, {k: v / entries for k, v in found.items()}
    assert min(found.values()) > entries * dtype.itemsize, found  # so something was measured


def run_script(script: str, *arguments: object) -> str:
    command = [sys.executable, "-c", script, *map(str, arguments)]
    environment = os.environ | {
        "OMP_NUM_THREADS": "1",
        "MALLOC_MMAP_THRESHOLD_": "65536",  # so that freed memory goes back at once
        "PYTHONPATH": str(Path(ml.__file__).parents[1]),
    }
    ran = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=120)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout
