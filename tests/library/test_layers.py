"""LARV's scales: by hand, by Gram matrices, what changes them, and what they are passed to."""

import json
import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import mergelib as ml

State = dict[str, Tensor]


def models(*shape: int, layers: int = 3) -> tuple[State, State]:
    """A base and an expert: matrices and biases in numbered layers, and a head."""
    generator = torch.Generator().manual_seed(0)
    shapes = {f"blocks.{i}.{name}.weight": shape for i in range(layers) for name in ("up", "gate")}
    shapes |= {f"blocks.{i}.up.bias": shape[:1] for i in range(layers)} | {"head.weight": shape}
    base, change = (
        {k: torch.randn(s, generator=generator) for k, s in shapes.items()} for _ in "ab"
    )
    return base, {key: base[key] + 0.1 * change[key] for key in base}


def test_two_layers_by_hand() -> None:
    """Effective ranks 2 / 1 and 2 / 2; conflicts 0 and √2, so z is −1 and 1; depths ½ and 1."""
    base = {"layers.0.w": torch.eye(2), "layers.1.w": torch.eye(2)}
    changes = [[[1.0, 0.0], [0.0, 0.0]], [[0.0, 1.0], [-1.0, 0.0]]]
    expert = {key: base[key] + torch.tensor(each) for key, each in zip(base, changes, strict=True)}
    scores = 2 * math.sqrt(0.5) / (1 + math.log1p(math.exp(-1))), 1 / (1 + math.log1p(math.e))
    first, second = (1 + math.tanh(3 * (score - 1)) / 2 for score in scores)
    scales = ml.larv_scales(expert, base)
    assert scales == pytest.approx({"layers.0.*": first, "layers.1.*": second})
    scales = ml.larv_scales(expert, base, eta=0.0, rho=0.0, gamma=0.5)
    first, second = (1 + math.tanh((1 / (1 + x) - 1) / 2) / 2 for x in (0.313262, 1.313262))
    assert [*scales.values()] == pytest.approx([first, second])


def by_other_means(expert: State, base: State, key: str) -> tuple[float, float]:
    """Return e, and c by Gram matrices: ‖ABᵀ − BAᵀ‖² = 2 tr(AᵀA BᵀB) − 2 tr((AᵀB)²)."""
    a, b = base[key].double(), (expert[key].double() - base[key].double())
    ranks = []
    for each in (a, b):
        energy = torch.linalg.svdvals(each).square()
        energy = energy / energy.sum()
        ranks.append(torch.exp(-(energy * energy.log()).sum()))
    c = 0.0
    for x, y in ((a, b), (a.T, b.T)):
        cross = x.T @ y
        square = 2 * ((x.T @ x) * (y.T @ y)).sum() - 2 * (cross * cross.T).sum()
        c += float(square.sqrt() / (2 * a.norm() * b.norm()))
    return float(ranks[0] / ranks[1]), c


@pytest.mark.parametrize("shape", [(8, 8), (5, 12), (12, 5)])
def test_agrees_with_an_independent_computation(shape: tuple[int, int]) -> None:
    base, expert = models(*shape)
    means = []
    for i in range(3):
        parts = [
            by_other_means(expert, base, f"blocks.{i}.{name}.weight") for name in ("up", "gate")
        ]
        means.append([sum(column) / 2 for column in zip(*parts, strict=True)])
    conflicts = [c for _, c in means]
    centre = sum(conflicts) / 3
    spread = math.sqrt(sum((c - centre) ** 2 for c in conflicts) / 3)
    for i, (e, c) in enumerate(means):
        score = e * math.sqrt((i + 1) / 3) / (1 + math.log1p(math.exp((c - centre) / spread)))
        expected = 1 + math.tanh(3 * (score - 1)) / 2
        assert ml.larv_scales(expert, base)[f"blocks.{i}.*"] == pytest.approx(expected, abs=1e-5)


def test_does_not_depend_on_dtype_length_of_the_task_vector_or_other_keys() -> None:
    base, expert = models(6, 9)
    scales = ml.larv_scales(expert, base)
    wide, wide_base = ({key: each.double() for key, each in m.items()} for m in (expert, base))
    before = ml.flatten(wide)
    assert ml.larv_scales(wide, wide_base) == pytest.approx(scales, abs=1e-4)
    assert torch.equal(ml.flatten(wide), before)
    longer = ml.add(base, ml.subtract(expert, base), alpha=3.0)
    assert ml.larv_scales(longer, base) == pytest.approx(scales, abs=1e-4)
    longer["head.weight"] = base["head.weight"]
    longer["blocks.1.up.bias"] = base["blocks.1.up.bias"]
    assert ml.larv_scales(longer, base) == pytest.approx(scales, abs=1e-4)


def test_layers_without_a_changed_matrix_keep_scale_one() -> None:
    base, expert = models(6, 6)
    for name in ("up", "gate"):
        expert[f"blocks.0.{name}.weight"] = base[f"blocks.0.{name}.weight"].clone()
        base[f"blocks.1.{name}.weight"] = torch.zeros(6, 6)
    assert [*ml.larv_scales(expert, base)] == ["blocks.2.*", "*"]
    one, other = models(4, 4, layers=1)
    assert [*ml.larv_scales(other, one)] == ["blocks.0.*", "*"]  # the head
    del one["head.weight"], other["head.weight"]
    assert [*ml.larv_scales(other, one)] == ["blocks.0.*"]


def test_keys_that_end_in_the_number_of_a_layer() -> None:
    base = {f"w.{i}": torch.eye(3) for i in range(11)}
    expert = {key: each + torch.ones(3, 3) for key, each in base.items()}
    scales = ml.larv_scales(expert, base)
    assert [*scales] == [*base]
    merged = ml.merge("task_arithmetic", [expert], pretrained=base, scale=scales)
    assert merged["w.10"][0, 1] == pytest.approx(scales["w.10"])


def test_kernels_count_on_request() -> None:
    net, tuned = (
        nn.Sequential(*(nn.Conv2d(*each, 3, bias=False) for each in ((3, 4), (4, 5)))) for _ in "ab"
    )
    with pytest.raises(ValueError, match="no matrix of a numbered layer"):
        ml.larv_scales(tuned, net)
    scales = ml.larv_scales(tuned, net, is_matrix=ml.is_kernel)
    folded = [{k: p.flatten(1) for k, p in m.state_dict().items()} for m in (tuned, net)]
    assert scales == pytest.approx(ml.larv_scales(folded[0], folded[1]))


def test_is_a_scale_of_every_way_to_merge(tmp_path: Path) -> None:
    """As text, in files, per expert, and on an expert before any other rule."""
    base, first = models(6, 9)
    second = ml.add(base, ml.subtract(models(9, 6)[0] | first, base), alpha=-1.0)
    files = {name: tmp_path / f"{name}.safetensors" for name in ("base", "first", "second")}
    for name, state in (("base", base), ("first", first), ("second", second)):
        ml.save_state_dict(state, files[name])
    experts = [files["first"], files["second"]]
    scales = [ml.larv_scales(file, files["base"]) for file in experts]
    assert scales == [ml.larv_scales(state, base) for state in (first, second)]
    options = {"scale": json.loads(json.dumps(scales))}
    ml.merge_files(
        "task_arithmetic",
        experts,
        pretrained=files["base"],
        output=tmp_path / "m.safetensors",
        **options,
    )
    merged = ml.load_state_dict(tmp_path / "m.safetensors")
    for key in base:
        own = [each.get(".".join(key.split(".")[:2]) + ".*", 1.0) for each in scales]
        sum_ = own[0] * (first[key] - base[key]) + own[1] * (second[key] - base[key])
        torch.testing.assert_close(merged[key], base[key] + sum_)


def not_finite(base: State, expert: State) -> None:
    expert["blocks.1.up.weight"][0, 0] = math.nan


def another_shape(base: State, expert: State) -> None:
    expert["blocks.1.up.weight"] = torch.zeros(2, 2)


def unchanged(base: State, expert: State) -> None:
    expert.update(base)


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (not_finite, r"expert\['blocks.1.up.weight'\]"),
        (another_shape, r"expert\['blocks.1.up.weight'\] has shape"),
        (unchanged, "differs from pretrained: pass a fine-tuned model"),
    ],
)
def test_refuses(spoil: Callable[[State, State], None], words: str) -> None:
    base, expert = models(4, 4)
    spoil(base, expert)
    with pytest.raises(ValueError, match=words):
        ml.larv_scales(expert, base)
