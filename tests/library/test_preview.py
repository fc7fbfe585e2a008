"""A report before a merge says what the merge does: its numbers, errors, warnings and command."""

import json
import shlex
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import mergelib as ml
from mergelib import cli
from mergelib.io.files import Place
from mergelib.preview import numbers
from tests.commands import Run, runner, succeed

State = dict[str, Tensor]
SHAPES = {
    "embed.weight": (12, 16),
    "layers.0.q.weight": (16, 16),
    "layers.0.norm.weight": (16,),
    "layers.1.q.weight": (16, 16),
    "layers.1.q.bias": (16,),
    "head.weight": (3, 16),
}


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    return runner(cli.main, "mergelib", monkeypatch, capsys)


def draw(seed: int) -> State:
    generator = torch.Generator().manual_seed(seed)
    return {key: torch.randn(shape, generator=generator) for key, shape in SHAPES.items()}


BASE = draw(0)


def tuned(seed: int) -> State:
    return ml.add(BASE, draw(seed), alpha=0.1)


def experts() -> dict[str, State]:
    return {name: tuned(seed) for seed, name in enumerate("abc", 1)}


def saved(folder: Path, states: dict[str, State]) -> dict[str, Path]:
    for name, state in states.items():
        ml.save_state_dict(state, folder / name / "model.safetensors")
    return {name: folder / name for name in states}


def test_numbers_are_those_of_task_vectors(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where entries are read in pieces."""
    vectors = [ml.flatten(ml.subtract(state, BASE)).double() for state in experts().values()]
    norms = [float(vector.norm()) for vector in vectors]
    others = [[v for v in vectors if v is not vector] for vector in vectors]
    cosine = [
        sum(float(torch.cosine_similarity(v, o, dim=0)) for o in rest) / 2
        for v, rest in zip(vectors, others, strict=True)
    ]
    signs = [
        sum(float((v.sign() == o.sign()).double().mean()) for o in rest) / 2
        for v, rest in zip(vectors, others, strict=True)
    ]
    length = float(ml.flatten(BASE).double().norm())
    for piece in (2**20, 7):
        monkeypatch.setattr(numbers, "LONG", piece)
        table = ml.inspect(experts(), pretrained=BASE).models
        rows = table.loc[["a", "b", "c"]]
        assert rows["norm"].tolist() == pytest.approx(norms, rel=1e-5)
        assert rows["relative norm"].tolist() == pytest.approx([n / length for n in norms], 1e-5)
        assert rows["cosine"].tolist() == pytest.approx(cosine, abs=1e-6)
        assert rows["sign agreement"].tolist() == pytest.approx(signs, abs=1e-6)
        assert table.loc["pretrained", "norm"] == pytest.approx(length, rel=1e-6)


def test_zeros_have_no_sign_and_layers_are_parts(tmp_path: Path) -> None:
    one, other = ({"w": torch.tensor(v)} for v in ([1.0, -1.0, 0.0, 2.0], [1.0, 1.0, 1.0, 0.0]))
    report = ml.inspect([one, other], pretrained={"w": torch.zeros(4)})
    assert report.models["sign agreement"].tolist()[1:] == [0.5, 0.5]
    layers = ml.inspect(experts(), pretrained=BASE, layers=True).layers
    assert layers is not None
    assert [*layers.index] == ["embed", "layers.0", "layers.1", "head"]
    difference = ml.subtract(tuned(1), BASE)
    first = [value for key, value in difference.items() if key.startswith("layers.0")]
    expected = float(torch.cat([value.flatten() for value in first]).norm())
    assert layers.loc["layers.0", "a"] == pytest.approx(expected, rel=1e-5)
    whole = ml.inspect(experts()).models
    assert whole["norm"].tolist() == pytest.approx(
        [float(ml.flatten(state).norm()) for state in experts().values()], rel=1e-5
    )
    assert whole["sign agreement"].isna().all()


def another_head(state: State) -> State:
    return state | {"head.weight": torch.ones(5, 16)}


def no_head(state: State) -> State:
    return {key: tensor for key, tensor in state.items() if key != "head.weight"}


def extra_head(state: State) -> State:
    return state | {"other.0.weight": torch.ones(2, 16), "other.0.bias": torch.ones(2)}


def nan(state: State) -> State:
    return state | {"layers.0.q.weight": torch.full((16, 16), torch.nan)}


def quantised(state: State) -> State:
    return state | {"layers.0.q.weight": torch.ones(16, 16, dtype=torch.int8)}


def factors(state: State) -> State:
    return state | {"layers.0.q.lora_A.weight": torch.ones(2, 16)}


def eight_bits(state: State) -> State:
    return {key: tensor.to(torch.float8_e4m3fn) for key, tensor in state.items()}


REFUSED: dict[str, tuple[Callable[[State], State], str]] = {
    "another head": (another_head, "head.*"),
    "no head": (no_head, "head.*"),
    "a head more": (extra_head, "other.*"),
    "NaN": (nan, ""),
    "integers": (quantised, ""),
    "factors": (factors, ""),
    "eight bits": (eight_bits, ""),
}


@pytest.mark.parametrize("name", REFUSED)
def test_it_refuses_what_a_merge_refuses(name: str, tmp_path: Path, run: Run) -> None:
    """In the same words; and the suggested command succeeds."""
    spoil, pattern = REFUSED[name]
    models = {"base": BASE, "a": tuned(1), "b": spoil(tuned(2))}
    base, *rest = saved(tmp_path, models).values()
    with pytest.raises(ValueError) as refusal:  # noqa: PT011
        ml.merge_files("average", rest, tmp_path / "out", pretrained=base)
    report = ml.inspect(rest, pretrained=base)
    assert report.refusals[0] == str(refusal.value)
    assert (f"--exclude '{pattern}'" in report.command) is bool(pattern)
    outcome = run("inspect", *rest, "--pretrained", base)
    assert outcome.status == 1
    assert outcome.err == ""
    assert "refused: expert 1" in outcome.out or "dtype" in outcome.out
    if pattern:
        assert f"; {pattern} differ, so the result has those of pretrained" in report.reason
        fates = report.tensors.set_index("fate")["first key"]
        assert fates["refused"].startswith(pattern[:-1])
        command = shlex.split(report.command)[1:-1]
        assert "Wrote" in succeed(run, *command, tmp_path / "merged")
    else:
        assert (report.command, report.reason[:24]) == ("", "a merge would be refused")


def test_not_finite_entries_that_are_the_bases(tmp_path: Path, run: Run) -> None:
    models = {"pretrained": BASE, **experts()}
    models["a"] = nan(models["a"])
    base, *rest = saved(tmp_path, models).values()
    printed = succeed(run, "inspect", *rest, "--pretrained", base, "--nan", "base")
    assert "refused" not in printed
    report = ml.inspect(rest, pretrained=base, nan="base")
    command = shlex.split(report.command)[1:-1]
    assert command[-3:-1] == ["--nan", "base"]
    assert "Wrote" in succeed(run, *command, tmp_path / "merged")
    models.pop("pretrained")
    assert "nan='base'" in ml.inspect(models, pretrained=BASE, nan="base").command


def of_base(_: State) -> State:
    return BASE


def unrelated(_: State) -> State:
    return draw(9)


def same(_: State) -> State:
    return tuned(1)


@pytest.mark.parametrize("spoil", [of_base, unrelated, same])
def test_it_warns_as_a_merge_does(spoil: Callable[[State], State]) -> None:
    models = [tuned(1), spoil(tuned(2))]
    with warnings.catch_warnings(record=True) as expected:
        warnings.simplefilter("always")
        ml.merge("average", models, pretrained=BASE)
    with warnings.catch_warnings(record=True) as others:
        warnings.simplefilter("always")
        report = ml.inspect(models, pretrained=BASE)
    assert [str(each.message) for each in expected] == [*report.warnings] != []
    assert others == []
    assert report.refusals == ()
    assert report.command == ""


def test_configurations_and_vocabularies(tmp_path: Path) -> None:
    """Each file beside the weights that a merge compares."""
    folders = saved(tmp_path, {"base": BASE, **experts()})
    config = {"model_type": "x", "num_attention_heads": 2, "rope_theta": 1.0}
    files: dict[str, dict[str, Any]] = {name: dict(config) for name in folders}
    for spoil, refused in ((("a", "num_attention_heads", 4), 1), (("b", "rope_theta", 2.0), 0)):
        for name, folder in folders.items():
            content = files[name] | ({spoil[1]: spoil[2]} if name == spoil[0] else {})
            (folder / "config.json").write_text(json.dumps(content))
        base, *rest = folders.values()
        report = ml.inspect(rest, pretrained=base)
        assert len(report.refusals) == refused
        assert [*report.refusals, *report.warnings][0].startswith("config.json ")
        assert spoil[1] in [*report.refusals, *report.warnings][0]
    for number, folder in enumerate(folders.values()):
        words = [*"abcdefghijkl"] if number < 3 else [*"badcfehgjilk"]
        (folder / "vocab.txt").write_text("\n".join(words))
    assert "row 0 is the token 'b'" in ml.inspect(rest, pretrained=base).refusals[0]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"exclude": "layers.0.*"},
        {"include": ["layers.*", "head*"]},
        {"missing": "base"},
        {"missing": "skip"},
    ],
)
def test_fates_are_those_of_a_merge(options: dict[str, Any]) -> None:
    statistics = {"bn.running_mean": torch.ones(3), "steps": torch.tensor(3)}
    base, a, b = ({**state, **statistics} for state in (BASE, tuned(1), tuned(2)))
    if "missing" in options:
        b = another_head(b)
    report = ml.inspect({"a": a, "b": b}, pretrained=base, **options)
    merged = ml.merge("task_arithmetic", [a, b], pretrained=base, **options)
    changed = [k for k in merged if not torch.equal(merged[k], base[k])]
    counts = report.tensors.groupby("fate")["tensors"].sum().to_dict()
    assert counts.get("merged", 0) == len(changed)
    assert counts.get("left out", 0) == len(base) - len(merged)
    assert sum(counts.values()) == len(base)
    reasons = set(report.tensors["reason"])
    assert ("not selected" in reasons) is bool({"include", "exclude"} & options.keys())
    assert ("shape [3, 16] in pretrained, a; [5, 16] in b" in reasons) is ("missing" in options)
    assert ("running statistics" in reasons) is ("include" not in options)


def test_bytes_are_those_that_the_command_reads(
    tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The merge's tensors, and once each file for its hash."""
    base, *rest = saved(tmp_path, {"base": BASE, **experts()}).values()
    report = ml.inspect(rest, pretrained=base, exclude="embed*")
    read = []
    original = Place.read

    def counted(self: Place) -> Tensor:
        tensor = original(self)
        read.append(tensor.nbytes)
        return tensor

    monkeypatch.setattr(Place, "read", counted)
    succeed(run, *shlex.split(report.command)[1:-1], tmp_path / "merged")
    files = [folder / "model.safetensors" for folder in (base, *rest)]
    hashed = sum(file.stat().st_size for file in files)
    assert report.bytes_to_read == hashed + sum(read)
    assert report.memory == 4 * (6 * 16 * 16 + 4 * 16**2)


def test_models_in_memory_get_a_call(tmp_path: Path) -> None:
    report = ml.inspect([tuned(1), another_head(tuned(2))], pretrained=BASE)
    assert report.command == "ml.merge('tsv', experts, exclude=['head.*'], pretrained=pretrained)"
    given = {"ml": ml, "experts": [tuned(1), another_head(tuned(2))], "pretrained": BASE}
    assert eval(report.command, given).keys() == BASE.keys()
    report = ml.inspect([tuned(1), tuned(2)])
    assert report.command == "ml.merge('average', experts)"
    flat = [{"w": state["head.weight"].flatten()} for state in (BASE, tuned(1), tuned(2))]
    assert "'task_arithmetic'" in ml.inspect(flat[1:], pretrained=flat[0]).command
    kernels = [{"conv.weight": torch.randn(8, 8, 3, 3)} for _ in range(2)]
    moved = [ml.add(kernels[0], kernels[1], alpha=a) for a in (0.1, -0.2)]
    report = ml.inspect(moved, pretrained=kernels[0])
    assert report.command.endswith("pretrained=pretrained, is_matrix=ml.is_kernel)")


def test_adapters(tmp_path: Path, run: Run) -> None:
    """They are inspected as they are merged, applied to their base."""
    base = saved(tmp_path, {"base": BASE})["base"]
    folders = [tmp_path / name for name in "ab"]
    for seed, folder in enumerate(folders):
        generator = torch.Generator().manual_seed(seed)
        place = "base_model.model.layers.0.q.lora_"
        state = {f"{place}{n}.weight": torch.randn(s, generator=generator)
                 for n, s in (("A", (2, 16)), ("B", (16, 2)))}  # fmt: skip
        ml.save_state_dict(state, folder / "adapter_model.safetensors")
        config = {"peft_type": "LORA", "r": 2, "lora_alpha": 2}
        (folder / "adapter_config.json").write_text(json.dumps(config))
    report = ml.inspect(folders, pretrained=base)
    first = ml.subtract(dict(ml.io.as_state(folders[0], base=BASE)), BASE)
    norm = float(ml.flatten(first).norm())
    assert report.models.loc["expert 0", "norm"] == pytest.approx(norm, rel=1e-5)
    assert report.reason.endswith("mergelib merge-adapters writes an adapter instead of a model")
    succeed(run, *shlex.split(report.command)[1:-1], tmp_path / "merged")


def test_printed_and_as_json(tmp_path: Path, run: Run) -> None:
    base, *rest = saved(tmp_path, {"base": BASE, **experts()}).values()
    printed = succeed(run, "inspect", *rest, "-p", base, "--layers")
    words = ["expert 2", "sign agreement", "layers.1", "reads ", "next: mergelib merge tsv", "head"]
    assert [word for word in words if word not in printed] == []
    content = json.loads(succeed(run, "inspect", *rest, "-p", base, "--json"))
    report = ml.inspect(rest, pretrained=base)
    assert content["command"] == report.command
    assert [row["norm"] for row in content["models"]] == pytest.approx(report.models["norm"])
    assert content["models"][0]["cosine"] is None
    assert [row["fate"] for row in content["tensors"]] == report.tensors["fate"].tolist()
    with pytest.raises(FileNotFoundError):
        ml.inspect([tmp_path / "absent"])


def test_layouts_are_not_left_out() -> None:
    """Weights that models store in two ways are trained ones, so no pattern is suggested."""
    fused = BASE | {"experts.up": torch.ones(2, 16, 16)}
    alone = tuned(1) | {f"experts.{i}.up.weight": torch.ones(16, 16) for i in range(2)}
    report = ml.inspect(
        [tuned(2) | {"experts.up": torch.zeros(2, 16, 16)}, alone], pretrained=fused
    )
    assert "in different layouts" in report.refusals[0]
    assert report.command == ""


def test_files_beside_weights_as_a_merge_of_folders(tmp_path: Path) -> None:
    base, *rest = saved(tmp_path, {"base": BASE, **experts()}).values()
    for folder in rest:
        (folder / "chat_template.jinja").write_text("{{ messages }}")
    with warnings.catch_warnings(record=True) as expected:
        warnings.simplefilter("always")
        ml.merge_files("average", rest, tmp_path / "out", pretrained=base)
    report = ml.inspect(rest, pretrained=base)
    assert [str(each.message) for each in expected] == [*report.warnings]
    assert report.warnings[0].startswith("the experts agree on the chat template")


@pytest.mark.parametrize("head", ["head.weight", "tokenizer='union'.weight", "embed.weight"])
def test_a_vocabulary_is_advised_for_tables_and_not_for_words(head: str) -> None:
    """A refusal that names a key advises nothing by it, whatever the key is called."""
    body = {key: BASE[key] for key in BASE if key.startswith("layers")}
    models = [{**body, head: torch.randn(rows, 16)} for rows in (12, 12, 14)]
    for seed, model in enumerate(models[1:], 1):
        model["layers.0.q.weight"] = tuned(seed)["layers.0.q.weight"]
    report = ml.inspect(models[1:], pretrained=models[0])
    assert "has shape (14, 16), expected (12, 16)" in report.refusals[0]
    assert ("instead of excluding tables" in report.reason) is (head == "embed.weight")


def test_a_prefix_is_the_only_refusal_of_models_that_share_no_key() -> None:
    base = {"a": torch.zeros(2), "b": torch.zeros(3)}
    other = {f"module.{key}": value + 1 for key, value in base.items()}
    report = ml.inspect([base, other], pretrained=base)
    (refusal,) = report.refusals
    assert "rename={'module.*': '*'}" in refusal
    assert not report.command
