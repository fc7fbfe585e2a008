"""The library's command line: what it merges, and what it refuses."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console
from torch import Tensor

import mergelib as ml
from mergelib import cli
from mergelib.cli import printing
from mergelib.io import load_state_dict, save_state_dict
from mergelib.registry import get_method, method_names
from tests.commands import Run, fail, runner, succeed

State = dict[str, Tensor]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    monkeypatch.setattr(printing, "console", Console(width=160))
    return runner(cli.main, "mergelib", monkeypatch, capsys)


@pytest.fixture
def models(tmp_path: Path) -> tuple[Path, list[Path]]:
    """A pretrained model and three experts in files."""
    torch.manual_seed(0)
    paths = [tmp_path / f"{name}.safetensors" for name in ("base", "a", "b", "c")]
    for path in paths:
        save_state_dict({"fc.weight": torch.randn(8, 6), "fc.bias": torch.randn(8)}, path)
    return paths[0], paths[1:]


def test_methods_lists_all(run: Run) -> None:
    printed = succeed(run, "methods")
    for method in map(get_method, method_names()):
        name = method.name
        assert f"{name}  needs " in printed
        assert method.summary in printed
    assert "density=0.2, weights=None, scale=1.0, reduce='mean', trim='model'" in printed
    assert "svc  needs experts, pretrained" in printed


def test_merge_is_the_librarys(run: Run, models: tuple[Path, list[Path]], tmp_path: Path) -> None:
    base, experts = models
    output = tmp_path / "a long folder name [with brackets]" / ("x" * 60 + ".safetensors")
    command = ["merge", "ties", *experts, "-p", base, "-o", output]
    printed = succeed(run, *command, "--set", "density=0.5", "-s", "reduce=sum")
    assert printed == f"Wrote {output}\n"
    states = [load_state_dict(path) for path in experts]
    options: dict[str, Any] = {"density": 0.5, "reduce": "sum"}
    expected = ml.merge("ties", states, pretrained=load_state_dict(base), **options)
    merged = load_state_dict(output)
    assert all(torch.equal(merged[key], expected[key]) for key in expected)
    assert "exists" in fail(run, *command)
    command[1] = "ties+svc"
    succeed(run, *command, "--set", "density=0.5", "-s", "svc_alpha=0.7", "--overwrite")
    options = {"density": 0.5, "svc_alpha": 0.7}
    calibrated = ml.merge("ties+svc", states, pretrained=load_state_dict(base), **options)
    assert torch.equal(load_state_dict(output)["fc.weight"], calibrated["fc.weight"])
    command[1] = "ties"
    succeed(run, *command, "--overwrite")
    again = load_state_dict(output)
    assert not torch.equal(again["fc.weight"], expected["fc.weight"]), "the defaults this time"


@pytest.mark.parametrize("words", [["--rank-ratio", "0.1"], ["--rank-ratio=0.1"]])
def test_a_setting_in_place_of_an_option_is_told(run: Run, words: list[str]) -> None:
    for command in ("merge", "merge-adapters"):
        told = fail(run, command, "cart", "a", *words)
        assert told.endswith("no such option: --rank-ratio; pass --set rank_ratio=0.1")
    told = fail(run, "merge", "cart+svc", "a", "--svc-alpha", "0.5")
    assert told.endswith("no such option: --svc-alpha; pass --set svc_alpha=0.5")
    unknown = run("merge", "cart", "a", "--overwrites")
    assert unknown.status == 2
    assert "pass --set" not in unknown.err


def test_statistics_that_want_measuring_are_pointed_out(run: Run, tmp_path: Path) -> None:
    """After every merge of a model that has them, and only then."""
    for name, norm in (("batch", torch.nn.BatchNorm1d(3)), ("layer", torch.nn.LayerNorm(3))):
        files = [tmp_path / f"{name}{number}.safetensors" for number in range(3)]
        for number, file in enumerate(files[:2]):
            state = {key: value + number for key, value in norm.state_dict().items()}
            save_state_dict(state, file)
        printed = succeed(run, "merge", "average", *files[:2], "-o", files[2])
        assert ("recalibrate_batchnorm" in printed) is (name == "batch")


def test_parts_of_models(run: Run, models: tuple[Path, list[Path]], tmp_path: Path) -> None:
    base, (a, b, c) = models
    wider = {**load_state_dict(b), "fc.bias": torch.ones(9)}
    save_state_dict(wider, b)
    command = ["merge", "average", a, b, "-p", base, "--overwrite", "-o", tmp_path / "out"]
    for flags, options in (
        (["--missing", "base"], {"missing": "base"}),
        (["--missing", "skip"], {"missing": "skip"}),
        (["--include", "fc.w*", "--include", "*.weight"], {"include": ["fc.w*", "*.weight"]}),
        (["--include", "fc.w*, *.weight"], {"include": ["fc.w*", "*.weight"]}),
        (["--exclude", "*.bias"], {"exclude": "*.bias"}),
    ):
        succeed(run, *command, *flags)
        merged = load_state_dict(tmp_path / "out")
        expected = ml.merge("average", [a, b], pretrained=base, **options)
        assert merged.keys() == expected.keys()
        assert all(torch.equal(merged[key], expected[key]) for key in expected)
    refused = fail(run, *command)
    assert "has shape (9,), expected (8,)" in refused
    assert refused.endswith("where only heads differ, leave them out with --exclude fc.bias")
    assert fail(run, *command, "--include", "x*").startswith("include pattern 'x*' matches no key")
    assert fail(run, *command, "--missing", "no").startswith("missing is 'no', expected one")
    save_state_dict({"fc.weight": load_state_dict(base)["fc.weight"]}, c)
    command = ["merge", "ties", a, "-p", c, "--overwrite", "-o", tmp_path / "out"]
    succeed(run, *command, "--missing", "experts")
    assert torch.equal(load_state_dict(tmp_path / "out")["fc.bias"], load_state_dict(a)["fc.bias"])


@pytest.mark.parametrize(
    ("setting", "meant"),
    [
        ("device=cpu", "--device"),
        ("missing=skip", "--missing"),
        ("experts=a", "the arguments"),
        ("dtype=float16", "--dtype"),
        ("max_shard_size=5GB", "--max-shard-size"),
    ],
)
def test_settings_that_are_options(
    run: Run, models: tuple[Path, list[Path]], tmp_path: Path, setting: str, meant: str
) -> None:
    base, experts = models
    command = ["merge", "ties", *experts, "-p", base, "-o", tmp_path / "out", "-s", setting]
    name = setting.partition("=")[0]
    assert re.search(f"use {meant}.* in place of --set {name}$", fail(run, *command))


def test_dtype_and_size_of_shards(
    run: Run, models: tuple[Path, list[Path]], tmp_path: Path
) -> None:
    base, experts = models
    command = ["merge", "ties", *experts, "-p", base, "-o", tmp_path / "out"]
    succeed(run, *command, "--dtype", "bfloat16", "--max-shard-size", "100B")
    merged = load_state_dict(tmp_path / "out")
    expected = ml.merge("ties", experts, pretrained=base, dtype=torch.bfloat16)
    assert all(torch.equal(merged[key], expected[key]) for key in expected)
    assert {tensor.dtype for tensor in merged.values()} == {torch.bfloat16}
    sizes = [file.stat().st_size for file in (tmp_path / "out").glob("*.safetensors")]
    assert len(sizes) == 2, "96 bytes and 16"
    for size, count in (("112", 1), ("0.1KB", 2), ("5GB", 1), ("1 MiB", 1)):
        succeed(run, *command, "--dtype", "float16", "--max-shard-size", size, "--overwrite")
        assert len([*(tmp_path / "out").glob("*.safetensors")]) == count
    for size in ("5XB", "big", "-1", "0", ""):
        refused = fail(run, *command, "--overwrite", "--max-shard-size", size)
        assert refused == f"max_shard_size is {size!r}, expected bytes or a text like '5GB'"
    assert fail(run, *command, "--overwrite", "--dtype", "fp8") == (
        "dtype is 'fp8', expected 'float32', 'float16' or 'bfloat16'"
    )
    refused = fail(run, *command, "--overwrite", "--dtype", "float16", "-s", "scale=1e5")
    assert refused.endswith("65504: pass --dtype bfloat16 or --dtype float32")


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("linear", "'average'?"),
        ("dare_ties", "'dare' with combine='ties'?"),
        ("dare_linear", "'dare'?"),
        ("della_linear", "'della' with combine='task_arithmetic'?"),
        ("breadcrumbs_ties", "'breadcrumbs' with combine='ties'?"),
        ("multislerp", "'karcher' with steps=0?"),
        ("ramplus_tl", "'ram' with r=0.1?"),
        ("task_vector", "'task_arithmetic'?"),
        ("TSV", "'tsv'?"),
        ("Iso_C", "'iso_c'?"),
        ("DARE_TIES", "'dare' with combine='ties'?"),
    ],
)
def test_methods_by_the_names_of_other_tools(run: Run, name: str, meant: str) -> None:
    assert (
        fail(run, "merge", name, "a", "-o", "b") == f"unknown method {name!r}; did you mean {meant}"
    )


def test_settings_are_json_else_text() -> None:
    texts = ["scale=0.4", "weights=[1, 2]", "exact=true", "reduce=sum", "note=a=b"]
    texts += ["ranks=0.1, 0.2", "names=a,b", "normalise=True", "weights_of=None", "mixed=False,1"]
    settings = {"scale": 0.4, "weights": [1, 2], "exact": True, "reduce": "sum", "note": "a=b"}
    settings |= {"ranks": [0.1, 0.2], "names": ["a", "b"], "normalise": True, "weights_of": None}
    settings |= {"mixed": [False, 1]}
    assert cli.apps.read_settings(texts) == settings
    assert cli.apps.read_settings(None) == {}


@pytest.mark.parametrize("value", ["0,3", "-0,3", "0,25", "0,1"])
def test_a_decimal_comma_is_no_list(value: str) -> None:
    """With two experts, a scale of 0,3 would leave out the first and triple the second."""
    dotted = value.replace(",", ".")
    message = f"scale={value} is a list of two numbers: write scale={dotted}, or scale=[{value}]"
    with pytest.raises(ValueError, match=re.escape(message)):
        cli.apps.read_settings([f"scale={value}"])
    whole = [int(part) for part in value.split(",")]
    assert value[:1] == "-" or cli.apps.read_settings([f"scale=[{value}]"]) == {"scale": whole}


def test_merges_that_are_refused(run: Run, models: tuple[Path, list[Path]], tmp_path: Path) -> None:
    base, (a, b, c) = models
    output = tmp_path / "out.safetensors"

    def refused(*arguments: object) -> str:
        before = sorted(tmp_path.iterdir())
        message = fail(run, "merge", *arguments, "-o", output)
        assert sorted(tmp_path.iterdir()) == before, "nothing is written"
        return message

    assert refused("tias", a, b) == "unknown method 'tias'; did you mean 'ties'?"
    assert refused("ties", a, b) == "ties needs the pretrained model: pass --pretrained"
    assert refused("ties", a, b, "-p", base, "-s", "densty=0.1").startswith(
        "ties has no hyperparameter 'densty'; it has: density, weights"
    )
    assert refused("ties", a, b, "-s", f"base_model={base}").endswith("; the base is --pretrained")
    assert refused("ties", a, b, "-p", base, "-s", "density=2").startswith("density is 2, expected")
    assert refused("ties", a, b, "-p", base, "-s", "scale=big").startswith("scale is 'big', expect")
    assert refused("average", a, b, "-s", "weights=0.2,x").startswith("weights[1] is 'x', expect")
    broken = refused("ties", a, b, "-p", base, "-s", "scale={'*bias': 1, '*': 2}")
    assert broken.startswith("--set scale is not JSON (Expecting property name enclosed in double")
    assert refused("average", a, b, "-s", "weights") == "--set expects name=value, got 'weights'"
    assert refused("average", a, b, "-s", "=1") == "--set expects name=value, got '=1'"
    assert refused("slerp", a, b, c) == "slerp merges exactly 2 experts, got 3"
    missing = tmp_path / "missing.safetensors"
    assert str(missing) in refused("average", a, missing)
    spoilt = load_state_dict(b)
    spoilt["fc.bias"][3] = float("nan")
    save_state_dict(spoilt, b)
    assert refused("average", a, b).startswith("expert 1['fc.bias'] holds NaN in 1 of 8 entries: ")
    assert refused("average", a, b, "--nan", "base").endswith("model: pass --pretrained")
    filled = tmp_path / "filled.safetensors"
    succeed(
        run, "merge", "average", str(a), str(b), "-p", str(base), "--nan", "base", "-o", str(filled)
    )
    expected = (load_state_dict(a)["fc.bias"][3] + load_state_dict(base)["fc.bias"][3]) / 2
    torch.testing.assert_close(load_state_dict(filled)["fc.bias"][3], expected)
    b.write_bytes(b.read_bytes()[:-5])
    assert refused("average", a, b).startswith(f"{b} is truncated")
    output.mkdir()
    (output / "mine").touch()
    assert "is a folder already" in fail(run, "merge", "average", a, "-o", output)


def test_as_a_program(tmp_path: Path) -> None:
    """The module runs, and an error leaves no traceback."""
    ran = subprocess.run(
        [sys.executable, "-m", "mergelib", "merge", "tias", "a", "-o", str(tmp_path / "b")],
        capture_output=True,
        text=True,
        cwd=Path(ml.__file__).parents[1],
        timeout=60,
    )
    assert ran.returncode == 1
    assert ran.stderr == "mergelib: unknown method 'tias'; did you mean 'ties'?\n"
    assert ran.stdout == ""
    assert np.array(list(tmp_path.iterdir())).size == 0


def test_a_folder_that_cannot_be_written(
    run: Run, models: tuple[Path, list[Path]], tmp_path: Path
) -> None:
    blocked = tmp_path / "file"
    blocked.touch()
    message = fail(run, "merge", "average", *models[1], "-o", blocked / "out.safetensors")
    assert "Not a directory" in message
    assert str(blocked) in message


def test_help_teaches(run: Run) -> None:
    for command in ([], ["merge"], ["methods"]):
        assert "Usage" in succeed(run, *command, "--help")
    assert "--set scale=1.2" in succeed(run, "merge", "--help")


def test_adapters_are_merged_into_one(run: Run, tmp_path: Path) -> None:
    """With the error of each module; other refusals are those of the function."""
    folders = [tmp_path / name for name in "ab"]
    for folder in folders:
        factors = {"A": torch.randn(2, 6), "B": torch.randn(8, 2)}
        state = {f"base_model.model.fc.lora_{n}.weight": t for n, t in factors.items()}
        save_state_dict(state, folder / "adapter_model.safetensors")
        (folder / "adapter_config.json").write_text('{"peft_type": "LORA", "lora_alpha": 2}')
    out, new = tmp_path / "out", tmp_path / "new"
    command = ["merge-adapters", "average", *folders, "-o", out, "-s", "weights=1,-1"]
    printed = succeed(run, *command).splitlines()
    assert printed == ["1 of 1 modules are exact (relative error below 1e-05)", f"Wrote {out}"]
    exact = load_state_dict(out / "adapter_model.safetensors")
    assert exact["base_model.model.fc.lora_A.weight"].shape == (4, 6)
    printed = succeed(run, *command, "--rank", 1, "--overwrite").splitlines()
    assert re.fullmatch(r"fc  rank 1  relative error 0\.\d+", printed[0])
    assert printed[1].startswith("0 of 1 modules are exact")
    assert "pass --overwrite to replace it" in fail(run, *command)
    assert "pass --rank to truncate it" in fail(run, "merge-adapters", "ties", *folders, "-o", new)


def test_quantised_weights_are_merged_on_request(run: Run, tmp_path: Path) -> None:
    codes = torch.tensor([[1.0, -2.0], [0.5, 4.0]])
    state = {"w": codes.to(torch.float8_e4m3fn), "w_scale": torch.tensor([[2.0], [3.0]])}
    save_state_dict(state, tmp_path / "a.safetensors")
    command = ["merge", "average", tmp_path / "a.safetensors", "-o", tmp_path / "out"]
    assert "which cannot be merged: pass --dequantise; or leave them out" in fail(run, *command)
    succeed(run, *command, "--dequantise")
    (merged,) = load_state_dict(tmp_path / "out").values()
    assert torch.equal(merged, (codes * state["w_scale"]).bfloat16())


def test_a_card_runs_again(run: Run, models: tuple[Path, list[Path]], tmp_path: Path) -> None:
    pytest.importorskip("yaml")
    base, experts = models
    merging = ["-p", base, "-o", tmp_path / "out", "--set", "scale=0.3", "--fold-convolutions"]
    succeed(run, "merge", "cart", *experts, *merging)
    succeed(run, "run", tmp_path / "out" / "README.md", "-o", tmp_path / "again")
    one, other = (load_state_dict(tmp_path / name) for name in ("out", "again"))
    assert all(torch.equal(one[key], other[key]) for key in one)
