"""Hyperparameters per expert, pattern of keys and layer."""

import json
import math
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import mergelib as ml
from mergelib import cli
from mergelib.settings import depths, normalised
from tests.commands import Run, runner, succeed

State = dict[str, Tensor]
LAYERS = [f"model.layers.{i}.{part}.weight" for i in range(4) for part in ("self_attn", "mlp")]
KEYS = ["model.embed_tokens.weight", *LAYERS, "model.norm.weight"]


def family(count: int = 2) -> tuple[State, list[State]]:
    generator = torch.Generator().manual_seed(0)
    base, *experts = (
        {key: torch.randn(4, 4, generator=generator) for key in KEYS} for _ in range(count + 1)
    )
    return base, experts


def merged(method: str, **options: Any) -> State:
    base, experts = family()
    return ml.merge(method, experts, pretrained=base, **options)


def same(a: State, b: State) -> bool:
    return all(torch.equal(a[key], tensor) for key, tensor in b.items())


VALUES: list[tuple[str, dict[str, Any]]] = [  # the first option is the one to spell
    ("average", {"weights": 0.7}),
    ("average", {"weights": 0.7, "normalise": True}),
    ("task_arithmetic", {"scale": 0.3}),
    ("task_arithmetic", {"scale": 0.3, "normalise": True}),
    ("low_rank_task_arithmetic", {"scale": 0.7, "rank_ratio": 0.5}),
    ("low_rank_task_arithmetic", {"rank_ratio": 0.3}),
    ("breadcrumbs", {"density": 0.4}),
    ("breadcrumbs", {"gamma": 0.2}),
    ("breadcrumbs", {"scale": 0.7}),
    ("consensus", {"mask_scale": 0.7}),
    ("dare", {"drop_rate": 0.4}),
    ("dare", {"scale": 0.7}),
    ("dare", {"weights": 0.7, "combine": "ties"}),
    ("della", {"drop_rate": 0.4}),
    ("della", {"epsilon": 0.4}),
    ("della", {"weights": 0.7}),
    ("ties", {"density": 0.4}),
    ("ties", {"density": 0.4, "trim": "tensor"}),
    ("ties", {"weights": 0.7}),
    ("ties", {"weights": 0.7, "reduce": "sum"}),
]
SHARED: list[tuple[str, dict[str, Any]]] = [  # one value for all experts
    ("cart", {"scale": 1.7}),
    ("cart", {"rank_ratio": 0.3}),
    ("tsv", {"scale": 0.7}),
    ("iso_c", {"scale": 0.7}),
    ("slerp", {"t": 0.3}),
    ("fednova", {"scale": 0.7}),
    ("consensus", {"scale": 0.7}),
    ("ties", {"scale": 0.7}),
    ("ties", {"reduce": "sum"}),
]


@pytest.mark.parametrize(("method", "options"), VALUES + SHARED)
def test_a_constant_is_the_number_to_the_bit(method: str, options: dict[str, Any]) -> None:
    (name, x), *others = options.items()
    forms: list[Any] = [{"*": x}, {"*mlp*": x, "*": {"model.n*": x, "*": x}}]
    if not isinstance(x, str):
        forms += [{"over_layers": [x, x, x], "*": x}]
    if (method, options) in VALUES:
        forms += [[x, x], torch.tensor([x, x], dtype=torch.float64), {"*": [x, x]}, [{"*": x}, x]]
    for form in forms:
        assert same(merged(method, **dict(others), **{name: form}), merged(method, **options))


@pytest.mark.parametrize(("method", "options"), VALUES + SHARED)
def test_every_key_is_merged_with_its_own_value(method: str, options: dict[str, Any]) -> None:
    (name, x), *others = options.items()
    y = {"sum": "mean"}.get(x) or x / 2
    rest = dict(others)
    if method == "ties" and name == "density":
        rest["trim"] = "tensor"
    mixed = merged(method, **rest, **{name: {"*mlp*": x, "*": y}})
    first, second = (merged(method, **rest, **{name: value}) for value in (x, y))
    for key in KEYS:
        assert torch.equal(mixed[key], (first if "mlp" in key else second)[key])


@pytest.mark.parametrize(
    ("method", "options"),
    [("average", {"weights": [0, 1]}), ("task_arithmetic", {"scale": [0, 1.0]})],
)
@pytest.mark.parametrize("form", ["list", "patterns", "layers"])
def test_one_expert_alone_comes_back_bit_for_bit(
    method: str, options: dict[str, Any], form: str
) -> None:
    ((name, (no, yes)),) = options.items()
    forms = {
        "list": [no, yes],
        "patterns": {"*mlp*": [no, yes], "*": [no, yes]},
        "layers": [no, {"over_layers": [yes, yes], "*": yes}],
    }
    assert same(merged(method, **{name: forms[form]}), family()[1][1])


def test_statistics_follow_the_expert_that_counts() -> None:
    states = [{**nn.BatchNorm1d(2).state_dict(), "w": torch.full((2,), i + 1.0)} for i in range(2)]
    states[1]["running_mean"] = torch.tensor([3.0, 5.0])
    for options in ({"scale": [0, 1]}, {"scale": {"*": [0, 1.0]}}):
        merged = ml.merge("task_arithmetic", states, pretrained=states[0], **options)
        assert same(merged, {k: v for k, v in states[1].items() if v.is_floating_point()})
    negative = ml.merge("task_arithmetic", states, pretrained=states[0], scale=[-1, -1])
    assert negative["running_mean"].tolist() == [1.5, 2.5], "none counts: the plain mean"


def test_layers_by_hand() -> None:
    """Four layers and three values: 1, then 5 · ⅔ of the way down to 2, and up to 8."""
    base, one = ({key: torch.full((1,), x) for key in KEYS} for x in (0.0, 1.0))
    scale = {"*norm*": -1, "over_layers": [1, 2.5, 8], "*": 7}
    result = ml.merge("task_arithmetic", [one], pretrained=base, scale=scale)
    by_layer = [1, 2, 13 / 3, 8]  # at 0, 2/3, 4/3 and 2 on the line through 1, 2.5 and 8
    expected = [7, *(x for x in by_layer for _ in range(2)), -1]
    actual = torch.cat([result[key] for key in KEYS])
    torch.testing.assert_close(actual, torch.tensor(expected, dtype=torch.float32))


@pytest.mark.parametrize("method", ["task_arithmetic", "ties", "cart", "tsv", "iso_c", "wudi"])
def test_a_scale_over_layers_is_lines(method: str) -> None:
    """λ = α + β (l − 1) / (L − 1) times the update of the merge (Wang et al., 2025).

    CART's update starts at the average.
    """
    base, (alpha, beta) = family()[0], (0.2, 0.9)
    start, once = merged("average") if method == "cart" else base, merged(method, scale=1)
    scaled = merged(method, scale={"over_layers": [alpha, alpha + beta], "*": 1})
    for key in KEYS:
        layer = int(key.split(".")[2]) if key in LAYERS else None
        factor = 1 if layer is None else alpha + beta * layer / 3
        torch.testing.assert_close(scaled[key], start[key] + factor * (once[key] - start[key]))


def test_depths_of_keys() -> None:
    expected = {
        "h.0.w": 0.0,
        "h.2.mlp.experts.7.w": 1.0,
        "h.1.w": 0.5,
        "vision.layers.3.w": 1.0,
        "vision.layers.1.w": 1 / 3,
        "0.weight": 0.0,
        "4": 1.0,
        "single.0.w": 1.0,
    }
    assert depths([*expected, "fc1.weight", "layer1.weight", "x.2b.w"]) == expected


def test_weights_of_an_elected_mean_by_hand() -> None:
    """Weighted: 2, −3 · ½, 4: the sum 4.5 is positive, the mean (2 + 4) / (1 + 2) of these."""
    base = {"w": torch.zeros(2)}
    experts = [{"w": torch.tensor([x, y])} for x, y in ((2.0, 0.0), (-3.0, 1.0), (2.0, 0.0))]
    options: dict[str, Any] = {"density": 1.0, "weights": [1, 0.5, 2]}
    mean = ml.merge("ties", experts, pretrained=base, **options)
    assert mean["w"].tolist() == [2, 1], "zeros do not count"
    total = ml.merge("ties", experts, pretrained=base, reduce="sum", **options)
    assert total["w"].tolist() == [6, 0.5]
    turned = ml.merge("ties", experts[:1], pretrained=base, density=1.0, weights=[-3])
    assert turned["w"].tolist() == [-2, 0], "a negative weight turns its task vector"


def test_ties_of_each_tensor_in_mergekits_way() -> None:
    """Its merge of a tensor, step by step; 16 entries, so that the numbers kept are whole."""
    base, experts = family()
    density: list[Any] = [0.25, {"over_layers": [0.5, 0.5, 1], "*": 0.75}]
    weights: list[Any] = [{"*mlp*": {"over_layers": [0.5, 2]}, "*": 1.5}, 0.5]
    result = ml.merge(
        "ties", experts, pretrained=base, density=density, weights=weights, trim="tensor"
    )
    for key, origin in base.items():
        depth = int(key.split(".")[2]) / 3 if "layers" in key else None
        kept = [4, 12 if depth is None else 16 * max(0.5, depth)]  # 8, 8, 10.67 and 16
        factor = torch.tensor([0.5 + 1.5 * (depth or 0) if "mlp" in key else 1.5, 0.5])
        deltas = torch.stack([expert[key] - origin for expert in experts]).view(2, -1)
        for delta, count in zip(deltas, kept, strict=True):
            delta[delta.abs().argsort(descending=True)[math.ceil(count) :]] = 0
        deltas *= factor[:, None]
        sign = torch.where(deltas.sum(0) >= 0, 1.0, -1.0)
        agree = deltas.sign() == sign
        divisor = (agree * factor[:, None]).sum(0)
        mean = (deltas * agree).sum(0) / torch.where(divisor == 0, 1.0, divisor)
        torch.testing.assert_close(result[key], origin + mean.view(4, 4))


def test_density_per_expert_trims_the_whole_model_of_each() -> None:
    base, experts = family()
    for t, density in enumerate([0.25, 0.5]):
        alone = ml.merge("ties", [experts[t]], pretrained=base, density=density)
        weights = [float(t == 0), float(t == 1)]
        both = ml.merge("ties", experts, pretrained=base, density=[0.25, 0.5], weights=weights)
        assert same(both, alone)


def test_part_of_the_model_may_be_trimmed_as_a_whole() -> None:
    mixed = merged("ties", trim={"*mlp*": "tensor", "*": "model"}, density={"*mlp*": 0.5, "*": 0.2})
    base, experts = family()
    alone = merged("ties", trim="tensor", density=0.5)
    whole = ml.merge("ties", experts, pretrained=base, density=0.2, exclude="*mlp*")
    for key in KEYS:
        assert torch.equal(mixed[key], (alone if "mlp" in key else whole)[key])


def test_normalised() -> None:
    assert normalised("weights", [1, 3]) == [0.25, 0.75]
    base, experts = family()
    expected = ml.merge("average", experts, weights=[0.25, 0.75])
    assert same(ml.merge("average", experts, weights=[2, 6], normalise=True), expected)
    mean = ml.merge("task_arithmetic", experts, pretrained=base, scale=[2, 6], normalise=True)
    for key in KEYS:
        torch.testing.assert_close(mean[key], expected[key])


REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("task_arithmetic", {"scale": [1.0]}, "scale has 1 entries, expected 2, one per expert"),
    ("ties", {"weights": {"*": [1, 2, 3]}}, "weights['*'] has 3 entries, expected 2, one per exp"),
    ("task_arithmetic", {"scale": {}}, "scale is {}, expected a finite number"),
    ("task_arithmetic", {"scale": {"*": math.nan}}, "scale['*'] is nan, expected a finite number"),
    ("ties", {"density": {"*": [0.3, 20]}}, "density['*'][1] is 20, expected above 0 and at most"),
    ("ties", {"scale": {"*": [1, 1]}}, "scale['*'] is [1, 1], expected a finite number, the same"),
    ("ties", {"trim": {"*": "layer"}}, "trim['*'] is 'layer', expected 'model' or 'tensor'"),
    (
        "average",
        {"weights": [{"*lmp*": 1, "*": 0}, 1]},
        "weights[0]['*lmp*'] matches none of the merged keys; the nearest is ",
    ),
    (
        "task_arithmetic",
        {"scale": {"*": 1, "*mlp*": 2}},
        "scale['*mlp*'] is never used, because earlier patterns match all of its keys: put it bef",
    ),
    (
        "task_arithmetic",
        {"scale": {"*mlp*": 1}},
        "no pattern of scale matches 'model.embed_tokens.weight': add '*' with the value of the",
    ),
    (
        "task_arithmetic",
        {"scale": {"over_layers": [1, 2]}},
        "no pattern of scale matches 'model.embed_tokens.weight', whose name has no layer number: ",
    ),
    (
        "task_arithmetic",
        {"scale": {"over_layers": 1, "*": 1}},
        "scale['over_layers'] is 1, expected a list of two numbers or more, from the first layer ",
    ),
    (
        "task_arithmetic",
        {"scale": {"over_layers": [1, math.inf], "*": 1}},
        "scale['over_layers'][1] is inf, expected a finite number",
    ),
    (
        "task_arithmetic",
        {"scale": {"over_layers": [[1, 2], [3, 4]], "*": 1}},
        "scale['over_layers'][0] is [1, 2], expected a finite number",
    ),
    (
        "dare",
        {"drop_rate": {"over_layers": [0.5, 1], "*": 0}},
        "drop_rate['over_layers'][1] is 1, expected at least 0 and below 1",
    ),
    (
        "ties",
        {"density": {"*mlp*": 0.3, "*": [0.5, 0.2]}},
        "density is [0.5, 0.2] for 'model.embed_tokens.weight' and 0.3 for 'model.layers.0.mlp.wei"
        "ght', but the whole model is trimmed to one density: set trim to 'tensor'",
    ),
]


@pytest.mark.parametrize(("method", "options", "message"), REFUSED)
def test_what_is_refused(method: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
        merged(method, **options)


def test_layers_of_a_model_without_any() -> None:
    state = {"fc1.weight": torch.ones(2), "fc2.weight": torch.ones(2)}
    scale = {"over_layers": [1, 2], "*": 1}
    with pytest.raises(ValueError, match=r"^scale\['over_layers'\] matches none of the merged k"):
        ml.merge("task_arithmetic", [state], pretrained=state, scale=scale)


def test_excluded_keys_need_no_value_and_count_as_layers() -> None:
    base, experts = family()
    options: dict[str, Any] = {"exclude": ["*embed*", "*norm*", "*.3.*"]}
    result = ml.merge(
        "task_arithmetic", experts, pretrained=base, scale={"over_layers": [0, 3]}, **options
    )
    expected = ml.merge("task_arithmetic", experts, pretrained=base, scale=2.0, **options)
    assert torch.equal(result["model.layers.2.mlp.weight"], expected["model.layers.2.mlp.weight"])


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    return runner(cli.main, "mergelib", monkeypatch, capsys)


@pytest.mark.parametrize(
    ("method", "options"),
    [
        ("ties", {"density": [0.3, {"*mlp*": 0.2, "*": 0.9}], "trim": "tensor"}),
        ("ties", {"density": [0.3, 0.7], "weights": [1, 2]}),
        ("task_arithmetic", {"scale": {"over_layers": [0.2, 0.8], "*": [0.5, 0.1]}}),
        ("average", {"weights": [3, {"*mlp*": {"over_layers": [1, 2]}, "*": 0}]}),
    ],
)
def test_memory_files_and_command_line_agree(
    method: str, options: dict[str, Any], run: Run, tmp_path: Path
) -> None:
    base, experts = family()
    files = {name: tmp_path / f"{name}.safetensors" for name in ("base", "a", "b", "out", "again")}
    for file, state in zip(files.values(), (base, *experts), strict=False):
        ml.save_state_dict(state, file)
    inputs = [files["a"], files["b"]]
    ml.merge_files(method, inputs, files["out"], pretrained=files["base"], **options)
    expected = ml.merge(method, experts, pretrained=base, **options)
    assert same(ml.load_state_dict(files["out"]), expected)
    header = json.loads(ml.Checkpoint(files["out"]).metadata["mergelib.hyperparameters"])
    texts = [f"{k}={v if isinstance(v, str) else json.dumps(v)}" for k, v in header.items()]
    flags = [part for text in texts for part in ("--set", text)]
    succeed(run, "merge", method, *inputs, "-p", files["base"], "-o", files["again"], *flags)
    assert same(ml.load_state_dict(files["again"]), expected), "the header's text, run again"


def test_files_are_refused_before_they_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base, (one, two) = family()
    files = [tmp_path / f"{i}.safetensors" for i in range(3)]
    for file, state in zip(files, (base, one, two), strict=True):
        ml.save_state_dict(state, file)
    monkeypatch.setattr("mergelib.streaming.hashing", lambda _: pytest.fail("hashed"))
    with pytest.raises(ValueError, match="matches none of the merged keys"):
        ml.merge_files(
            "average", files[1:], tmp_path / "out.safetensors", weights={"*lmp*": 1, "*": 0.5}
        )
