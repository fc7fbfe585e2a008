"""Parts of models, through every door: modules, paths, files, and patterns of keys."""

import json
import math
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from mergelib.io import Checkpoint, Model, load_state_dict, save_state_dict
from mergelib.merging import merge
from mergelib.procedures import adapt
from mergelib.registry import get_method, method_names
from mergelib.streaming import merge_files
from tests.library.streaming.cases import assert_same

State = dict[str, Tensor]


def classifier(classes: int, seed: int) -> State:
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator)

    return {
        "bert.a.weight": draw(6, 5),
        "bert.a.bias": draw(6),
        "head.weight": draw(classes, 6),
        "head.bias": draw(classes),
        "steps": torch.tensor(seed),
    }


BASE, TWO, THREE = classifier(2, 0), classifier(2, 1), classifier(3, 2)
BODY = ["bert.a.weight", "bert.a.bias"]


def body(state: State) -> State:
    return {key: state[key] for key in BODY}


@pytest.fixture
def files(tmp_path: Path) -> dict[str, Path]:
    paths = {name: tmp_path / f"{name}.safetensors" for name in ("base", "two", "three")}
    for path, state in zip(paths.values(), (BASE, TWO, THREE), strict=True):
        save_state_dict(state, path)
    return paths


OPTIONS: list[tuple[dict[str, Any], set[str]]] = [
    ({"include": "bert.*"}, set(BASE)),
    ({"exclude": ["head.*", "steps"]}, set(BASE)),
    ({"missing": "base"}, set(BASE)),
    ({"missing": "skip"}, {*BODY, "steps"}),
    ({"include": ["*.a.*", "head.weight"], "missing": "skip"}, {*BODY, "head.bias", "steps"}),
]


@pytest.mark.parametrize(("options", "keys"), OPTIONS)
@pytest.mark.parametrize("name", method_names())
def test_parts_are_merged_as_if_they_were_the_models(
    tmp_path: Path, files: dict[str, Path], name: str, options: dict[str, Any], keys: set[str]
) -> None:
    """So TIES' threshold does not see the rest; which is the pretrained model's, bit for bit."""
    merged = merge(name, [TWO, THREE], pretrained=BASE, **options)
    alone = merge(name, [body(TWO), body(THREE)], pretrained=body(BASE))
    assert set(merged) == keys
    assert_same(body(merged), alone)
    rest = {key for key in keys if key not in BODY}
    assert_same({key: merged[key] for key in rest}, {key: BASE[key] for key in rest})
    assert all(merged[key].data_ptr() != BASE[key].data_ptr() for key in rest)
    experts, out = [files["two"], files["three"]], tmp_path / "out.safetensors"
    merge_files(name, experts, out, pretrained=files["base"], **options)
    assert_same(load_file(out), merged)


def test_without_a_pretrained_model_the_rest_is_the_first_experts(
    tmp_path: Path, files: dict[str, Path]
) -> None:
    for name in (name for name in method_names() if not get_method(name).needs_pretrained):
        merged = merge(name, [TWO, THREE], include="bert.*")
        assert_same({**TWO, **body(merged)}, merged)
        experts, out = [files["two"], files["three"]], tmp_path / f"{name}.safetensors"
        assert_same(load_file(merge_files(name, experts, out, include="bert.*")), merged)


def test_what_is_not_merged_is_not_checked() -> None:
    """A mask that holds -inf, in a buffer."""
    masked = {**TWO, "mask": torch.tensor([0.0, -torch.inf])}
    with pytest.raises(ValueError, match=r"expert 0\['mask'\] holds Inf"):
        merge("average", [masked, masked])
    merged = merge("average", [masked, masked], exclude="mask")
    assert merged["mask"].tolist() == [0.0, -torch.inf]


def test_tied_names_stay_tied_where_an_expert_has_only_one_of_them(tmp_path: Path) -> None:
    table = torch.randn(5, 3)
    base: State = {"wte": table, "norm": torch.ones(3), "lm_head": table}
    expert: State = {"wte": table + 1, "norm": torch.zeros(3)}
    with pytest.raises(ValueError, match="expert 0 lacks key 'lm_head'"):
        merge("average", [expert], pretrained=base)
    merged = merge("average", [expert], pretrained=base, missing="base")
    assert merged["lm_head"] is merged["wte"]
    assert torch.equal(merged["wte"], table + 1)
    copied = merge("average", [expert], pretrained=base, include="norm")
    assert copied["lm_head"] is copied["wte"]
    assert torch.equal(copied["wte"], table)
    torch.save(base, tmp_path / "base.pt")
    save_state_dict(expert, tmp_path / "expert.safetensors")
    out = merge_files(
        "average",
        [tmp_path / "expert.safetensors"],
        tmp_path / "out.safetensors",
        pretrained=tmp_path / "base.pt",
        missing="base",
    )
    assert_same(load_file(out), merged)


def test_shards_of_what_is_skipped_are_left_out(tmp_path: Path, files: dict[str, Path]) -> None:
    base = merge_files("average", [files["base"]], tmp_path / "base", max_shard_size=40)
    assert len(list(base.glob("*.safetensors"))) > 3
    experts = [files["two"], files["three"]]
    out = merge_files("ties", experts, tmp_path / "out", pretrained=base, missing="skip")
    assert_same(load_state_dict(out), merge("ties", [TWO, THREE], pretrained=BASE, missing="skip"))
    index = json.loads((out / "model.safetensors.index.json").read_text())
    assert set(index["weight_map"]) == {*BODY, "steps"}
    assert {path.name for path in out.glob("*.safetensors")} == set(index["weight_map"].values())


def test_files_tell_which_parts_were_merged(tmp_path: Path, files: dict[str, Path]) -> None:
    experts, out = [files["two"], files["three"]], tmp_path / "out.safetensors"
    merge_files("average", experts, out, include="bert.*")
    parts = json.loads(Checkpoint(out).metadata["mergelib.parts"])
    others = {"exclude": None, "missing": "error", "rename": None, "nan": "error"}
    assert parts == {"include": "bert.*", **others}
    merge_files("average", experts[:1], out, overwrite=True)
    assert "mergelib.parts" not in Checkpoint(out).metadata


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"include": "bort.*"}, "include pattern 'bort.*' matches no key"),
    ({"exclude": ["head.*", "bert.*", "steps"]}, "nothing to merge"),
    ({"missing": "ignore"}, "missing is 'ignore', expected one of 'error', 'base',"),
    ({}, "has shape"),
]


@pytest.mark.parametrize(("options", "message"), REFUSED)
def test_refusals_are_the_same_in_memory_and_in_files(
    tmp_path: Path, files: dict[str, Path], options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=re.escape(message)) as in_memory:
        merge("ties", {"two": TWO, "three": THREE}, pretrained=BASE, **options)
    experts = {name: files[name] for name in ("two", "three")}
    out = tmp_path / "out.safetensors"
    with pytest.raises(ValueError, match=re.escape(message)) as in_files:
        merge_files("ties", experts, out, pretrained=files["base"], **options)
    assert str(in_files.value) == str(in_memory.value)
    assert not out.exists()


# Models as modules and paths ---------------------------------------------------------------------


def test_modules_and_paths_are_models_too(tmp_path: Path) -> None:
    torch.manual_seed(0)
    modules = [nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3)) for _ in range(3)]
    base, one, two = (module.state_dict() for module in modules)
    before = {key: value.clone() for key, value in one.items()}
    expected = merge("ties", [one, two], pretrained=base)
    assert_same(merge("ties", modules[1:], pretrained=modules[0]), expected)
    assert_same(modules[1].state_dict(), before)
    save_state_dict(base, tmp_path / "base.safetensors")
    torch.save(two, tmp_path / "two.pt")
    experts: dict[str, Model] = {"one": modules[1], "two": str(tmp_path / "two.pt")}
    assert_same(merge("ties", experts, pretrained=tmp_path / "base.safetensors"), expected)
    opened = Checkpoint(tmp_path / "base.safetensors")
    assert_same(merge("ties", experts, pretrained=opened), expected)


def test_equal_tensors_of_an_open_checkpoint_are_not_taken_for_tied(tmp_path: Path) -> None:
    """They are mapped anew at every access, maybe to one address."""
    state = {f"w{i}": torch.full((4096,), float(i)) for i in range(20)}
    save_state_dict(state, tmp_path / "a.safetensors")
    opened = Checkpoint(tmp_path / "a.safetensors")
    assert_same(merge("average", [opened], pretrained=opened), state)


def test_what_is_no_model(tmp_path: Path) -> None:
    module = nn.Sequential(nn.Linear(2, 2))
    for single, kind in ((module, "Sequential"), ("a.pt", "str"), (Path("a.pt"), "PosixPath")):
        with pytest.raises(TypeError, match=f"experts is a single {kind}, expected a list"):
            merge("average", single)  # type: ignore[arg-type]
    with pytest.raises(FileNotFoundError, match="no such file or folder"):
        merge("average", [tmp_path / "none.pt"])
    with pytest.raises(TypeError, match="'expert 1' is a int, expected a state dict"):
        merge("average", [module, 3])  # type: ignore[list-item]


@pytest.mark.parametrize("name", method_names())
def test_heads_are_averaged_over_the_experts_that_have_them(tmp_path: Path, name: str) -> None:
    """The pretrained model has none, or another; the second expert lacks it."""
    with_head, without = classifier(3, 4), body(TWO) | {"own": torch.tensor([1.0, 2.0])}
    pairs = [[THREE, without], [without, with_head]]
    if "slerp" not in name:
        pairs.append([THREE, without, with_head])
    for base in (body(BASE), BASE):
        for experts in pairs:
            merged = merge(name, experts, pretrained=base, missing="experts")
            assert [*merged][: len(base)] == [*base]
            assert {*merged} == {*THREE, "own"}
            assert_same(body(merged), merge(name, [*map(body, experts)], pretrained=body(BASE)))
            heads = [expert for expert in experts if "head.bias" in expert]
            for key in ("head.weight", "head.bias"):
                mean = torch.stack([head[key] for head in heads]).mean(0)
                torch.testing.assert_close(merged[key], mean)
            assert torch.equal(merged["own"], without["own"])
            assert torch.equal(merged["steps"], heads[0]["steps"]), "a counter: the first one's"
            states = {"base": base, **{str(i): state for i, state in enumerate(experts)}}
            for file, state in states.items():
                save_state_dict(state, tmp_path / f"{file}.safetensors")
            first, *others = (tmp_path / f"{file}.safetensors" for file in states)
            out, options = tmp_path / "out.safetensors", {"missing": "experts", "overwrite": True}
            merge_files(name, others, out, pretrained=first, **options)  # type: ignore[arg-type]
            assert_same(load_file(out), merged)


def test_heads_of_experts_without_a_pretrained_model() -> None:
    one, other = THREE, classifier(3, 3)
    merged = merge("average", [body(TWO), one, other], missing="experts")
    torch.testing.assert_close(merged["head.bias"], (one["head.bias"] + other["head.bias"]) / 2)


def test_heads_that_cannot_be_averaged() -> None:
    message = r"has shape \(3, 6\), expected \(2, 6\) as in expert 0, so missing='experts' cannot"
    with pytest.raises(ValueError, match=rf"^expert 1\['head.weight'\] {message} average"):
        merge("average", [TWO, THREE], pretrained=body(BASE), missing="experts")
    spoilt = {**THREE, "head.bias": torch.tensor([1.0, math.nan, 0.0])}
    with pytest.raises(ValueError, match=r"^expert 1\['head.bias'\] holds NaN in 1 of 3 entries: "):
        merge("average", [body(TWO), spoilt], missing="experts")
    table = torch.ones(2, 3)
    tied: State = {"table": table, "w": torch.ones(1), "lm_head": table}
    longer = {"table": torch.ones(4, 3), "w": torch.ones(1)}
    with pytest.raises(ValueError, match=r"^'table' is a name of a tied tensor, which not all m"):
        merge("average", [longer], pretrained=tied, missing="experts")


def test_procedures_get_their_heads_by_name() -> None:
    with pytest.raises(ValueError, match=r"^missing='experts' is for merges of weights alone"):
        adapt("uniform_soup", [TWO, THREE], missing="experts")


def test_heads_go_into_the_last_shard(tmp_path: Path, files: dict[str, Path]) -> None:
    save_state_dict(body(BASE), files["base"])
    base = merge_files("average", [files["base"]], tmp_path / "base", max_shard_size=40)
    experts: list[Path] = [files["three"]]
    out = merge_files("ties", experts, tmp_path / "out", pretrained=base, missing="experts")
    assert_same(
        load_state_dict(out), merge("ties", [THREE], pretrained=body(BASE), missing="experts")
    )
    assert len(list(out.glob("*.safetensors"))) == len(list(base.glob("*.safetensors"))) > 1


@pytest.mark.parametrize("shared", [0, 1, 2, 3])
def test_models_of_different_architectures_are_called_so(shared: int) -> None:
    base = {f"layer{i}.weight": torch.ones(2, 2) for i in range(5)}
    other = {f"layer{i}.weight": torch.ones(2, 2) for i in range(shared)}
    other |= {f"block.{i}.out": torch.ones(2, 2) for i in range(4)}
    said = f"; only {shared} of 5 keys are in both, so these are models of different architectures"
    said = said if shared < 3 else "; where only heads differ, leave them out with exclude="
    with pytest.raises(ValueError, match=re.escape(said)):
        merge("average", [base, other])
