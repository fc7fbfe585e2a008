"""Adapters whose modules have other names: renamed, they merge as if they had been trained so."""

import json
import re
import warnings
from pathlib import Path
from typing import Any

import pytest

import mergelib as ml
from mergelib import cli
from tests.commands import runner, succeed
from tests.library.streaming.cases import assert_same
from tests.library.test_adapters import PREFIX, adapter, draw, read

RENAMINGS = {
    "_orig_mod.layers.0.q": {"_orig_mod.*": "*"},
    "model.layers.0.q": {"model.layers.*": "layers.*"},
    "layers.0.attention.q": {"*.attention.*": "*.*"},
    "layers.0.query": {"*.query.*": "*.q.*"},
}
HEAD = "score.weight"


def renamed(source: Path, folder: Path, name: str) -> Path:
    """A copy whose module q has another name, as has the pattern of its scale."""
    folder.mkdir()
    state, config = read(source)
    ml.save_state_dict(
        {key.replace("layers.0.q", name): value for key, value in state.items()},
        folder / "adapter_model.safetensors",
    )
    config["alpha_pattern"] = {name: 3}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    return folder


def trained(folder: Path, seed: int, **config: Any) -> Path:
    made = adapter(folder, {"q": 2}, seed, **config)
    state = {key.replace("model.q", "model.layers.0.q"): t for key, t in read(made)[0].items()}
    state[PREFIX + HEAD] = draw(3, 12, seed=seed)
    ml.save_state_dict(state, made / "adapter_model.safetensors")
    return made


@pytest.mark.parametrize(("method", "base_is_here"), [("average", 0), ("average", 1), ("ties", 1)])
@pytest.mark.parametrize("name", RENAMINGS)
def test_a_renamed_adapter_merges_as_itself(
    name: str, method: str, base_is_here: bool, tmp_path: Path
) -> None:
    one, other = trained(tmp_path / "a", 1), trained(tmp_path / "b", 2, alpha_pattern={"q": 3})
    strange = renamed(other, tmp_path / "c", name)
    base = {"layers.0.q.weight": draw(16, 12), HEAD: draw(3, 12)}
    ml.save_state_dict(base, tmp_path / "base.safetensors")
    options: dict[str, Any] = {"rank": 4}
    options |= {"pretrained": tmp_path / "base.safetensors"} if base_is_here else {}
    expected, out, again = tmp_path / "expected", tmp_path / "out", tmp_path / "again"
    ml.merge_adapters(method, [one, other], expected, **options)
    ml.merge_adapters(method, [one, strange], out, rename=RENAMINGS[name], **options)
    assert read(out)[1] == read(expected)[1]
    pytest.importorskip("yaml")
    ml.run_recipe(out / "README.md", again)
    for folder in (out, again):
        assert_same(read(folder)[0], read(expected)[0])


def test_the_names_of_another_prefix_are_warned_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without the base, they would count as other modules; the proposed option ends that."""
    state = {
        f"{PREFIX}layers.{i}.q.lora_{letter}.weight": draw(*shape, seed=i)
        for i in range(4)
        for letter, shape in (("A", (2, 12)), ("B", (16, 2)))
    }
    one, other = adapter(tmp_path / "a", {}, 1, state), tmp_path / "b"
    plain = renamed(one, other, "layers.0.q")
    ml.save_state_dict(
        {key.replace("layers", "module.layers"): value for key, value in state.items()},
        other / "adapter_model.safetensors",
    )
    hint = "all 4 keys of expert 1 match those of expert 0 with rename={'module.*': '*'}"
    with pytest.warns(UserWarning, match=f"have no tensor in common; {re.escape(hint)}"):
        ml.merge_adapters("average", [one, plain], tmp_path / "wrong")
    assert len(read(tmp_path / "wrong")[0]) == 16
    run = runner(cli.main, "mergelib", monkeypatch, capsys)
    command = ["merge-adapters", "average", one, plain, "-o", tmp_path / "out"]
    printed = succeed(run, *command, "--rename", "module.*=*")
    assert printed.startswith("4 of 4 modules are exact")
    assert read(tmp_path / "out")[0].keys() == state.keys()


def test_adapters_of_different_modules_are_not_warned_of(tmp_path: Path) -> None:
    state = {
        name: {
            f"{PREFIX}layers.{i}.{name}.lora_{letter}.weight": draw(*shape, seed=i)
            for i in range(4)
            for letter, shape in (("A", (2, 12)), ("B", (16, 2)))
        }
        for name in "qv"
    }
    folders = [adapter(tmp_path / name, {}, 1, state[name]) for name in "qv"]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ml.merge_adapters("average", folders, tmp_path / "out")
    refused: dict[type[Exception], Any] = {ValueError: {"module.*": "*"}, TypeError: {"q": 1}}
    for error, rename in refused.items():
        with pytest.raises(error, match="rename"):
            ml.merge_adapters("average", folders, tmp_path / "no", rename=rename)
