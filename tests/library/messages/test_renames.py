"""Keys that differ by a prefix or by old names: the renaming that a message proposes works."""

import ast
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import mergelib as ml
from mergelib import cli
from mergelib.messages.renames import explain_names
from tests.commands import fail, runner, succeed

KEYS = [f"encoder.layer.{i}.{n}.{p}" for i in range(3) for n in "qv" for p in ("weight", "bias")]
KEYS += ["embed.LayerNorm.weight", "embed.LayerNorm.bias"]
OLD = {"*.gamma": "*.weight", "*.beta": "*.bias"}
NORM = "parametrizations.weight.original"
State = dict[str, Tensor]


def old_norms(keys: list[str]) -> list[str]:
    return [re.sub("Norm.bias", "Norm.beta", re.sub("Norm.weight", "Norm.gamma", k)) for k in keys]


def state(keys: list[str], seed: int = 0) -> State:
    generator = torch.Generator().manual_seed(seed)
    shapes = {key: (2,) if "Norm" in key else (2, 2) for key in keys}
    return {key: torch.randn(shape, generator=generator) for key, shape in shapes.items()}


CASES: dict[str, tuple[list[str], str, dict[str, str]]] = {
    "module.": ([f"module.{k}" for k in KEYS], "all 14", {"module.*": "*"}),
    "compiled": ([f"_orig_mod.{k}" for k in KEYS], "all 14", {"_orig_mod.*": "*"}),
    "both": ([f"module._orig_mod.{k}" for k in KEYS], "all 14", {"module._orig_mod.*": "*"}),
    "without": ([k.removeprefix("encoder.") for k in KEYS], "all 14", {"*": "encoder.*"}),
    "a head beside": (
        [*(f"bert.{k}" for k in KEYS), "classifier.weight"],
        "14 of its 15",
        {"bert.*": "*"},
    ),
    "old names": (old_norms(KEYS), "all 14", OLD),
    "a part inside": (
        [k.replace("encoder.layer", "model.language_model.layer") for k in KEYS],
        "all 14",
        {"model.language_model.*": "encoder.*"},
    ),
    "two parts": (
        [f"visual.{k}" if "embed" in k else f"model.{k}" for k in KEYS],
        "all 14",
        {"model.*": "*", "visual.*": "*"},
    ),
    "old, and a prefix": ([f"bert.{k}" for k in old_norms(KEYS)], "all 14", {"bert.*": "*", **OLD}),
}


def test_the_hint_comes_first_where_another_expert_does_not_fit() -> None:
    """A head without a counterpart, and another expert whose names have a prefix."""
    base, headed = state(KEYS), {**state(KEYS, 1), "head.weight": torch.ones(2, 2)}
    prefixed = {f"module.{key}": value for key, value in state(KEYS, 2).items()}
    match = r"^expert 0 has the extra key 'head.weight' .*; all 14 keys of expert 1 match those of"
    with pytest.raises(ValueError, match=match):
        ml.merge("average", [headed, prefixed], pretrained=base)


@pytest.mark.parametrize("case", CASES)
def test_the_proposed_renaming_works(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In memory, in files and on the command line, with the reference's names and equal bits."""
    keys, share, rename = CASES[case]
    expert, other, base = state(keys, 1), state(KEYS, 2), state(KEYS)
    message = re.escape(f"; {share} keys of expert 0 match those of pretrained with rename=")
    with pytest.raises(ValueError, match=message) as caught:
        ml.merge("average", [expert], pretrained=base)
    assert ast.literal_eval(str(caught.value).partition("rename=")[2]) == rename
    options: dict[str, Any] = {"rename": rename, "exclude": "classifier.*"}
    if case != "a head beside":
        del options["exclude"]
    known = dict(zip(KEYS, expert.values(), strict=False))
    expected = ml.merge("task_arithmetic", [known, other], pretrained=base, scale=0.3)
    merged = ml.merge("task_arithmetic", [expert, other], pretrained=base, scale=0.3, **options)
    assert [*merged] == KEYS
    first, one, two = (model[KEYS[0]] for model in (base, known, other))
    torch.testing.assert_close(merged[KEYS[0]], first + 0.3 * (one + two - 2 * first))
    files = {name: tmp_path / f"{name}.safetensors" for name in ("a", "b", "base", "out")}
    ml.save_state_dict(expert, files["a"])
    ml.save_state_dict(other, files["b"])
    ml.save_state_dict(base, files["base"])
    run = runner(cli.main, "mergelib", monkeypatch, capsys)
    command = [*("merge", "task_arithmetic"), files["a"], files["b"], "-p", files["base"]]
    command += ["--set", "scale=0.3", "-o", files["out"]]
    command += ["--exclude", "classifier.*"] if "exclude" in options else []
    said = fail(run, *command)
    words = shlex.split(said[said.index("--rename") :])
    succeed(run, *command, *words)
    for result in (merged, ml.load_state_dict(files["out"])):
        assert all(torch.equal(result[key], expected[key]) for key in KEYS)
    assert '"rename": {' in ml.Checkpoint(files["out"]).metadata["mergelib.parts"]
    report = ml.inspect([files["a"], files["b"]], pretrained=files["base"], **options)
    assert not report.refusals
    assert " ".join(map(shlex.quote, words)) in report.command


@pytest.mark.parametrize("case", sorted({*CASES} - {"a head beside"}))
def test_compressed_experts_are_renamed_too(case: str) -> None:
    """To the names of the base, or without it of the first expert, as the message proposes."""
    keys, share, rename = CASES[case]
    expert, other, base = state(keys, 1), state(KEYS, 2), state(KEYS)
    known = dict(zip(KEYS, expert.values(), strict=True))
    cases: list[tuple[str, dict[str, Any]]] = [("emr", {"pretrained": base}), ("cart_indexing", {})]
    for method, given in cases:
        what = "pretrained" if given else "expert 0"
        message = f"{share} keys of expert 1 match those of {what} with {rename=}"
        with pytest.raises(ValueError, match=re.escape(message)):
            ml.compress(method, [other, expert], **given)
        parts = ml.compress(method, [other, expert], rename=rename, **given)
        expected = ml.compress(method, [other, known], **given)
        restored = parts.expert("expert 1")
        assert restored.keys() == base.keys()
        assert all(torch.equal(restored[k], t) for k, t in expected.expert("expert 1").items())


def test_gpt2_without_its_prefix() -> None:
    """As its first files were saved; with other options, too, which would merge nearly nothing."""
    keys = ["wte.weight", "wpe.weight", *(f"h.{i}.attn.c_attn.weight" for i in range(4))]
    text = explain_names("a", keys, "b", [f"transformer.{k}" for k in keys] + ["lm_head.weight"])
    assert text == "; all 6 keys of a match those of b with rename={'*': 'transformer.*'}"
    base = {**state([f"transformer.{k}" for k in keys]), "steps": torch.tensor(3)}
    experts = [{**state(keys, 1), "steps": torch.tensor(3)}]
    said = re.escape("all 7 keys of expert 0 match those of pretrained with rename={'*'")
    with pytest.raises(ValueError, match=f"has the extra key .*{said}"):
        ml.merge("average", experts, pretrained=base, missing="base")
    for missing in ("skip", "experts"):
        with pytest.warns(UserWarning, match=f"only 1 of 13 keys are in all models; {said}"):
            ml.merge("average", experts, pretrained=base, missing=missing)
    with pytest.raises(ValueError, match=r"nothing to merge.*all 6 keys of expert 0 match"):
        ml.merge("average", [state(keys)], pretrained=base, missing="skip", exclude="steps")


def test_weight_normalisation_of_both_versions() -> None:
    """The older function's names against those of parametrisations, and the other way round."""
    old, new = torch.nn.Linear(3, 4), torch.nn.Linear(3, 4)
    with pytest.warns(FutureWarning, match="weight_norm"):
        torch.nn.utils.weight_norm(old)
    torch.nn.utils.parametrizations.weight_norm(new)
    renamings = [{"*.weight_g": f"*.{NORM}0", "*.weight_v": f"*.{NORM}1"}]
    renamings += [{new: old for old, new in renamings[0].items()}]
    models = [{f"fc.{k}": v for k, v in m.state_dict().items()} for m in (old, new)]
    for one, other, rename in ((0, 1, renamings[0]), (1, 0, renamings[1])):
        with pytest.raises(ValueError, match=re.escape(f"with rename={rename}")):
            ml.merge("average", [models[one]], pretrained=models[other])
        merged = ml.merge("average", [models[one]], pretrained=models[other], rename=rename)
        assert merged.keys() == models[other].keys()
        values = zip(merged.values(), sorted(models[one].items()), strict=True)
        assert all(torch.equal(value, own) for value, (_, own) in values)


@pytest.mark.parametrize("case", ["bare", "several stars"])
def test_patterns_without_or_with_several_stars(case: str) -> None:
    """Stars keep their order; a backslash and a digit mean themselves."""
    keys = {"bare": ["a\\1.w"], "several stars": ["x.0.attn.q.w", "x.1.attn.k.w"]}[case]
    rename = {"bare": {"a\\1.w": "b\\2.w"}, "several stars": {"x.*.attn.*": "h.*.1.*"}}[case]
    base = state({"bare": ["b\\2.w"], "several stars": ["h.0.1.q.w", "h.1.1.k.w"]}[case])
    merged = ml.merge("average", [state(keys, 1)], pretrained=base, rename=rename)
    assert [*merged] == [*base]
    for value, expected in zip(merged.values(), state(keys, 1).values(), strict=True):
        assert torch.equal(value, expected)


NO_KEY = "matches no key of an expert that pretrained lacks"


@pytest.mark.parametrize(
    ("rename", "error", "message"),
    [
        ({"modul.*": "*"}, ValueError, f"'modul.*' {NO_KEY}; the nearest is 'module.a'"),
        ({"module.*": "*", "b": "c"}, ValueError, f"'b' {NO_KEY}"),
        ({"module.*": "*", "x.*": "*"}, ValueError, "gives 'module.a' and 'x.a' of expert 1 one"),
        ({"module.*": ""}, TypeError, "of patterns with equally many stars, such as {'module.*'"),
        ({"module.*": "a"}, TypeError, "of patterns with equally many stars"),
        ("module.*", TypeError, "rename is 'module.*', expected a mapping"),
        ({"*": 1}, TypeError, "expected a mapping"),
    ],
)
def test_renamings_that_are_refused(
    rename: Any, error: type[Exception], message: str, tmp_path: Path
) -> None:
    base = state(["a", "b"])
    experts = [state(["module.a", "b"], 1), state(["module.a", "b", "x.a"], 2)]
    calls: list[Any] = [ml.merge, ml.inspect, ml.merge_files, ml.compress]
    for call in calls:
        arguments: Any = [] if call is ml.inspect else ["average"]
        arguments = ["emr"] if call is ml.compress else arguments
        paths: Any = [tmp_path / f"{i}.safetensors" for i in range(4)]
        for model, path in zip([*experts, base], paths, strict=False):
            ml.save_state_dict(model, path)
        into = [paths[3]] if call is ml.merge_files else []
        options: dict[str, Any] = {"pretrained": paths[2], "rename": rename}
        with pytest.raises(error, match=re.escape(message)):
            call(*arguments, paths[:2], *into, **options)
        assert not paths[3].exists()


def test_tied_names_of_a_file_are_renamed_together(tmp_path: Path) -> None:
    table = torch.randn(5, 4)
    tied = {"embed.weight": table, "lm_head.weight": table, "norm": torch.ones(4)}
    ml.save_state_dict(tied, tmp_path / "base.safetensors")
    torch.save({f"module.{key}": value for key, value in tied.items()}, tmp_path / "a.pt")
    options: dict[str, Any] = {"rename": {"module.*": "*"}}
    for _ in range(2):
        merged = ml.merge(
            "average", [tmp_path / "a.pt"], pretrained=tmp_path / "base.safetensors", **options
        )
        assert merged["embed.weight"] is merged["lm_head.weight"]
        out = tmp_path / "out.safetensors"
        ml.merge_files(
            "average",
            [tmp_path / "a.pt"],
            out,
            pretrained=tmp_path / "base.safetensors",
            overwrite=True,
            **options,
        )
        assert ml.Checkpoint(out).tied == {"lm_head.weight": "embed.weight"}
        assert torch.equal(ml.load_state_dict(out)["lm_head.weight"], table)
        options["missing"] = "base"


@pytest.mark.parametrize(
    "keys",
    [
        KEYS[:-1],
        [*KEYS, "head.weight"],
        ["a.weight", "b.weight"],
        [k.replace("weight", "kernel") for k in KEYS],
    ],
)
def test_other_differences_are_not_explained_by_names(keys: list[str]) -> None:
    assert explain_names("a", keys, "b", KEYS) == ""


@pytest.mark.parametrize("head", ["score.weight", "score.dense.weight", "head.module.score.weight"])
def test_a_head_is_not_renamed_to_another(head: str) -> None:
    """Though the last parts of the keys agree."""
    body = [f"bert.{i}.{key}" for i in range(2) for key in KEYS]
    other = head.replace("score", "lm_head")
    assert explain_names("a", [*body, head], "b", [*body, other]) == ""
    wrapped = [f"module.{key}" for key in (*body, head)]
    text = explain_names("a", wrapped, "b", [*body, other])
    assert text.endswith("28 of its 29 keys of a match those of b with rename={'module.*': '*'}")


def test_procedures_rename_as_well() -> None:
    base, expert = torch.nn.Linear(3, 2), torch.nn.Linear(3, 2)
    wrapped = torch.nn.DataParallel(expert)
    data = {"expert 0": torch.randn(8, 3, generator=torch.Generator().manual_seed(0))}
    options: dict[str, Any] = {"pretrained": base, "data": data, "steps": 2}
    expected = ml.adapt("adamerging", [expert], **options)
    with pytest.raises(ValueError, match=re.escape("with rename={'module.*': '*'}")):
        ml.adapt("adamerging", [wrapped], **options)
    adapted = ml.adapt("adamerging", [wrapped], rename={"module.*": "*"}, **options)
    assert all(torch.equal(adapted.state[key], expected.state[key]) for key in expected.state)
