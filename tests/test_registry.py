"""The driver: what it keeps, what it refuses, and in whose name."""

import math
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

import mergelib as ml
from mergelib import merging, registry
from mergelib.merging import merge
from mergelib.registry import get_method, rule
from mergelib.statedict import is_kernel

State = dict[str, Tensor]
NAMES = registry.method_names()
DTYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64]


def make_family(dtype: torch.dtype = torch.float32, experts: int = 2) -> tuple[State, list[State]]:
    """A pretrained state dict and experts near it, with all that a state dict may hold."""
    generator = torch.Generator().manual_seed(0)

    def draw(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator)

    base = {
        "pos_embed": draw(5, 4),
        "layer.weight": draw(12, 9),
        "conv.weight": draw(3, 2, 3, 3),
        "turned": draw(4, 6).T,
        "bias": draw(9),
        "scalar": draw(),
        "empty": draw(0, 3),
    }

    def near(tensor: Tensor) -> Tensor:
        return (tensor + 0.1 * torch.randn(tensor.shape, generator=generator)).to(dtype)

    family = [{k: near(v) for k, v in base.items()} for _ in range(experts + 1)]
    pretrained, *tuned = [
        {**state, "turned": state["turned"].T.contiguous().T, "steps": torch.tensor(i)}
        for i, state in enumerate(family)
    ]
    return pretrained, tuned


@pytest.fixture
def spare_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rules that a test registers are gone after it."""
    monkeypatch.setattr(registry, "_METHODS", dict(registry._METHODS))


# What is kept ------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", NAMES)
def test_keys_shapes_dtypes_and_counters_are_kept(name: str, dtype: torch.dtype) -> None:
    pretrained, experts = make_family(dtype)
    merged = merge(name, experts, pretrained=pretrained)
    assert list(merged) == list(pretrained)
    for key, tensor in merged.items():
        assert (tensor.shape, tensor.dtype) == (pretrained[key].shape, pretrained[key].dtype), key
        assert tensor.numel() == 0 or tensor.data_ptr() != pretrained[key].data_ptr(), key
    assert merged["steps"] == 0
    assert not torch.equal(merged["layer.weight"], pretrained["layer.weight"])


@pytest.mark.parametrize("name", [n for n in NAMES if not get_method(n).needs_pretrained])
def test_counters_come_from_the_first_expert_without_a_pretrained_model(name: str) -> None:
    assert merge(name, make_family()[1])["steps"] == 1


@pytest.mark.parametrize("parameters", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("name", NAMES)
def test_inputs_stay_as_they_are(name: str, dtype: torch.dtype, parameters: bool) -> None:
    states = [make_family(dtype)[0], *make_family(dtype)[1]]
    if parameters:
        states = [
            {k: nn.Parameter(v) if v.is_floating_point() else v for k, v in state.items()}
            for state in states
        ]
    before = [{k: v.detach().clone() for k, v in state.items()} for state in states]
    merged = merge(name, states[1:], pretrained=states[0])
    for state, kept in zip(states, before, strict=True):
        for key in kept:
            assert torch.equal(state[key], kept[key]), key
    assert not any(tensor.requires_grad for tensor in merged.values())


def test_experts_as_list_mapping_and_models_state_dicts() -> None:
    torch.manual_seed(0)
    models = [nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3)) for _ in range(3)]
    base, a, b = (model.state_dict() for model in models)
    listed = merge("task_arithmetic", [a, b], pretrained=base)
    mapped = merge("task_arithmetic", {"cars": a, "birds": b}, pretrained=base)
    assert all(torch.equal(listed[key], mapped[key]) for key in base)
    models[0].load_state_dict(listed)
    assert listed["1.num_batches_tracked"] == 0


@pytest.mark.parametrize("name", NAMES)
def test_tied_tensors_stay_tied(name: str) -> None:
    pretrained, experts = make_family()
    tied = [{**state, "head.weight": state["layer.weight"]} for state in (pretrained, *experts)]
    merged = merge(name, tied[1:], pretrained=tied[0])
    assert merged["head.weight"].data_ptr() == merged["layer.weight"].data_ptr()
    alone = merge(name, experts, pretrained=pretrained)
    assert torch.equal(merged["head.weight"], alone["layer.weight"])
    loose = [{**state, "head.weight": state["layer.weight"].clone()} for state in tied]
    merged = merge(name, loose[1:], pretrained=loose[0])
    assert merged["head.weight"].data_ptr() != merged["layer.weight"].data_ptr()


def test_views_of_one_memory_are_not_tied() -> None:
    whole = torch.arange(12.0)
    state = {"all": whole, "half": whole[:6], "other": whole[6:], "table": whole.view(3, 4)}
    merged = merge("average", [state])
    assert all(torch.equal(merged[key], state[key]) for key in state)


@pytest.mark.parametrize("name", NAMES)
def test_memory_layout_does_not_matter(name: str) -> None:
    pretrained, experts = make_family()
    merged = merge(name, experts, pretrained=pretrained)
    plain = [{k: v.contiguous() for k, v in s.items()} for s in (pretrained, *experts)]
    expected = merge(name, plain[1:], pretrained=plain[0])
    assert not pretrained["turned"].is_contiguous()
    for key in merged:
        torch.testing.assert_close(merged[key], expected[key], rtol=0, atol=1e-6)


@pytest.mark.parametrize("name", NAMES)
def test_one_tensor_does_not_depend_on_the_others(name: str) -> None:
    """But for TIES' threshold over the whole model."""
    options = {"trim": "tensor"} if name == "ties" else {}
    pretrained, experts = make_family()
    whole = merge(name, experts, pretrained=pretrained, **options)
    for key in ("layer.weight", "bias"):
        alone = merge(
            name, [{key: e[key]} for e in experts], pretrained={key: pretrained[key]}, **options
        )
        assert torch.equal(whole[key], alone[key])


@pytest.mark.parametrize("name", NAMES)
def test_device(name: str) -> None:
    pretrained, experts = make_family()
    merged = merge(name, experts, pretrained=pretrained, device="cpu")
    expected = merge(name, experts, pretrained=pretrained)
    assert all(torch.equal(merged[key], expected[key]) for key in expected)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", NAMES)
def test_cuda_agrees_with_the_cpu(name: str, dtype: torch.dtype) -> None:
    pretrained, experts = make_family(dtype)
    expected = merge(name, experts, pretrained=pretrained)
    there = merge(name, experts, pretrained=pretrained, device="cuda")
    moved = [{k: v.cuda() for k, v in s.items()} for s in (pretrained, *experts)]
    resident = merge(name, moved[1:], pretrained=moved[0])
    for key, tensor in expected.items():
        assert there[key].device.type == "cpu"
        assert resident[key].device.type == "cuda"
        torch.testing.assert_close(there[key], tensor)
        torch.testing.assert_close(resident[key].cpu(), tensor)


# How rules are called ----------------------------------------------------------------------------


@pytest.mark.usefixtures("spare_registry")
def test_elementwise_rules_see_flat_chunks_in_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(merging, "CHUNK", 10)
    seen = []

    @rule(paper="none", elementwise=True)
    def second(experts: Sequence[Tensor], pretrained: Tensor) -> Tensor:
        seen.append((len(experts), pretrained.shape, {t.dtype for t in [*experts, pretrained]}))
        return experts[1] + 0 * pretrained

    pretrained, experts = make_family(torch.bfloat16)
    merged = merge("second", experts, pretrained=pretrained)
    assert all(torch.equal(merged[k], v) for k, v in experts[1].items() if k != "steps")
    assert {n for n, _, _ in seen} == {2}
    assert [shape[0] for _, shape, _ in seen[:2]] == [10, 10], "pos_embed has 20 entries"
    assert [shape[0] for _, shape, _ in seen[2:13]] == [10] * 10 + [8], "layer.weight has 108"
    assert {dtype for _, _, dtypes in seen for dtype in dtypes} == {torch.float32}


@pytest.mark.usefixtures("spare_registry")
def test_other_rules_see_whole_tensors_and_double_stays_double() -> None:
    seen = []

    @rule(paper="none")
    def first(experts: Sequence[Tensor]) -> Tensor:
        seen.append((experts[0].shape, experts[0].dtype))
        return experts[0].clone()

    pretrained, experts = make_family(torch.float64)
    merge("first", experts, pretrained=pretrained)
    assert seen == [(v.shape, torch.float64) for v in pretrained.values() if v.is_floating_point()]


@given(chunk=st.integers(1, 200), name=st.sampled_from(["average", "task_arithmetic", "ties"]))
def test_chunks_do_not_show(chunk: int, name: str) -> None:
    pretrained, experts = make_family()
    expected = merge(name, experts, pretrained=pretrained)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(merging, "CHUNK", chunk)
        patch.setattr(merging, "LONG", chunk)
        merged = merge(name, experts, pretrained=pretrained)
    assert all(torch.equal(merged[key], expected[key]) for key in expected)


def test_is_matrix_can_be_told() -> None:
    """What is none gets the average, or task arithmetic."""
    pretrained, experts = make_family(experts=3)
    average = merge("average", experts)
    merged = merge("cart", experts, rank_ratio=0.3)
    differing = {k for k in average if not torch.equal(merged[k], average[k])}
    assert differing == {"layer.weight", "turned"}
    merged = merge("cart", experts, rank_ratio=0.3, is_matrix=lambda key, tensor: "pos" in key)
    assert {k for k in average if not torch.equal(merged[k], average[k])} == {"pos_embed"}
    merged = merge(
        "low_rank_task_arithmetic", experts, pretrained=pretrained, is_matrix=lambda *_: False
    )
    expected = merge("task_arithmetic", experts, pretrained=pretrained)
    assert all(torch.equal(merged[key], expected[key]) for key in expected)


@pytest.mark.parametrize("name", ["cart", "low_rank_task_arithmetic", "tsv", "iso_c", "iso_cts"])
def test_convolutions_fold_a_filter_a_row(name: str) -> None:
    torch.manual_seed(0)
    origin, *experts = (
        {"conv.weight": torch.randn(8, 3, 2, 2), "bn.bias": torch.randn(4)} for _ in range(4)
    )

    def run(fold: bool, **options: Any) -> State:
        states = [
            {
                key: value.flatten(1) if fold and value.dim() > 2 else value
                for key, value in s.items()
            }
            for s in (origin, *experts)
        ]
        base = states[0] if get_method(name).needs_pretrained else None
        return merge(name, states[1:], pretrained=base, **options)

    told, expected = run(False, is_matrix=is_kernel), run(True)
    assert told["conv.weight"].shape == (8, 3, 2, 2)
    assert torch.equal(told["conv.weight"].flatten(1), expected["conv.weight"])
    assert torch.equal(told["bn.bias"], expected["bn.bias"])
    assert not torch.equal(run(False)["conv.weight"], told["conv.weight"])


@pytest.mark.parametrize("name", ["task_arithmetic", "ties", "cart", "average"])
def test_running_statistics_are_averaged(name: str) -> None:
    """Else a scaled task vector takes a variance below zero."""
    pretrained = {"bn.running_var": torch.ones(3), "bn.weight": torch.ones(3)}
    experts = [{key: value * each for key, value in pretrained.items()} for each in (0.1, 0.3)]
    options = {} if name == "average" else {"scale": 3.0}
    base = pretrained if get_method(name).needs_pretrained else None
    merged = merge(name, experts, pretrained=base, **options)
    torch.testing.assert_close(merged["bn.running_var"], torch.full((3,), 0.2))
    if name == "task_arithmetic":
        assert (merged["bn.weight"] < 0).all()


def test_running_statistics_do_not_count_where_the_whole_model_is_trimmed() -> None:
    pretrained = {"w": torch.zeros(4), "bn.running_mean": torch.zeros(4)}
    expert = {"w": torch.tensor([1.0, 2, 3, 4]), "bn.running_mean": torch.full((4,), 99.0)}
    merged = merge("ties", [expert], pretrained=pretrained, density=0.5)
    assert merged["w"].tolist() == [0, 0, 3, 4]


def test_draws_differ_between_tensors_and_repeat_with_a_seed() -> None:
    pretrained = {"a": torch.zeros(400), "b": torch.zeros(400)}
    expert = {"a": torch.ones(400), "b": torch.ones(400)}

    def dare(seed: int) -> State:
        return merge("dare", [expert], pretrained=pretrained, drop_rate=0.5, seed=seed)

    once, again, other = dare(1), dare(1), dare(2)
    assert torch.equal(once["a"], again["a"])
    assert 0.35 < (once["a"] == other["a"]).float().mean() < 0.65, "independent fair draws"
    assert 0.35 < (once["a"] == once["b"]).float().mean() < 0.65


# What is refused ---------------------------------------------------------------------------------


def test_unknown_methods() -> None:
    with pytest.raises(ValueError, match=r"^unknown method 'tias'; did you mean 'ties'\?$"):
        merge("tias", [{}])
    with pytest.raises(ValueError, match=r"unknown method 'xyz'; known: average, .*cart"):
        merge("xyz", [{}])


@pytest.mark.parametrize("name", NAMES)
def test_unknown_hyperparameters(name: str) -> None:
    pretrained, experts = make_family()
    own = ", ".join(get_method(name).hyperparameters) or "none"
    message = f"{name} has no hyperparameter 'temperature'; it has: {own}"
    with pytest.raises(TypeError, match=f"^{re.escape(message)}$"):
        merge(name, experts, pretrained=pretrained, temperature=1)
    with pytest.raises(TypeError, match="no hyperparameter 'thresholds'"):
        merge(name, experts, pretrained=pretrained, thresholds=[1, 1])


BAD_HYPERPARAMETERS = [
    ("average", {"weights": [1.0]}, "weights has 1 entries, expected 2"),
    ("average", {"weights": [1.0, math.nan]}, r"weights is \[1.0, nan\], expected finite"),
    ("task_arithmetic", {"scale": math.nan}, "scale is nan, expected a finite number"),
    ("task_arithmetic", {"scale": "0.3"}, "scale is '0.3', expected a finite number"),
    ("task_arithmetic", {"scale": None}, "scale is None, expected a finite number"),
    ("ties", {"density": 0}, "density is 0, expected above 0 and at most 1"),
    ("ties", {"density": 1.01}, "density is 1.01, expected above 0 and at most 1"),
    ("ties", {"density": 0, "trim": "tensor"}, "density is 0, expected above 0"),
    ("ties", {"trim": "layer"}, "trim is 'layer', expected 'model' or 'tensor'"),
    ("ties", {"reduce": "median"}, "reduce is 'median', expected 'mean' or 'sum'"),
    ("dare", {"drop_rate": 1}, "drop_rate is 1, expected at least 0 and below 1"),
    ("dare", {"drop_rate": -0.1}, "drop_rate is -0.1, expected at least 0 and below 1"),
    ("dare", {"combine": "cart"}, "combine is 'cart', expected 'task_arithmetic' or 'ties'"),
    ("cart", {"rank_ratio": 1.5}, "rank_ratio is 1.5, expected 0..1"),
    ("cart", {"rank_ratio": -0.1}, "rank_ratio is -0.1, expected 0..1"),
    ("cart", {"rounding": "round"}, "rounding is 'round', expected 'ceil' or 'floor'"),
    ("low_rank_task_arithmetic", {"rank_ratio": 2}, "rank_ratio is 2, expected 0..1"),
]


@pytest.mark.parametrize(("name", "options", "message"), BAD_HYPERPARAMETERS)
def test_hyperparameters_out_of_range(name: str, options: dict[str, Any], message: str) -> None:
    pretrained, experts = make_family()
    with pytest.raises(ValueError, match=message):
        merge(name, experts, pretrained=pretrained, **options)


@pytest.mark.parametrize("name", [n for n in NAMES if get_method(n).needs_pretrained])
def test_missing_pretrained(name: str) -> None:
    with pytest.raises(ValueError, match=f"^{name} needs the pretrained model: pass pretrained=$"):
        merge(name, make_family()[1])


@pytest.mark.parametrize("count", [1, 3])
def test_slerp_takes_two(count: int) -> None:
    with pytest.raises(ValueError, match=f"slerp merges exactly 2 experts, got {count}"):
        merge("slerp", make_family(experts=count)[1])


@pytest.mark.parametrize("name", NAMES)
def test_experts_that_are_none(name: str) -> None:
    pretrained, experts = make_family()
    with pytest.raises(ValueError, match="nothing to merge: experts is empty"):
        merge(name, [], pretrained=pretrained)
    with pytest.raises(TypeError, match="single state dict"):
        merge(name, experts[0], pretrained=pretrained)
    with pytest.raises(TypeError, match="pretrained is a Linear, expected a state dict"):
        merge(name, experts, pretrained=nn.Linear(2, 2))  # type: ignore[arg-type]


def cut(state: State) -> State:
    return {key: value for key, value in state.items() if key != "bias"}


MISFITS: list[tuple[Callable[[State], State], str]] = [
    (cut, "cars lacks key 'bias' compared with {}"),
    (lambda s: {**s, "more": torch.ones(1)}, "cars has the extra key 'more' compared with {}"),
    (lambda s: {**s, "bias": torch.ones(8)}, "cars['bias'] has shape (8,), expected (9,) as in {}"),
    (
        lambda s: {**s, "bias": s["bias"].half()},
        "cars['bias'] has dtype torch.float16, expected torch.float32 as in {}",
    ),
    (
        lambda s: {**s, "steps": torch.tensor(1.0)},
        "cars['steps'] has dtype torch.float32, expected torch.int64 as in {}",
    ),
]


@pytest.mark.parametrize(("spoil", "message"), MISFITS)
@pytest.mark.parametrize("name", NAMES)
def test_misfits_are_named(name: str, spoil: Callable[[State], State], message: str) -> None:
    pretrained, (birds, cars) = make_family()
    experts = {"birds": birds, "cars": spoil(cars)}
    with pytest.raises(ValueError, match=f"^{re.escape(message.format('pretrained'))}$"):
        merge(name, experts, pretrained=pretrained)
    if not get_method(name).needs_pretrained:
        with pytest.raises(ValueError, match=f"^{re.escape(message.format('birds'))}$"):
            merge(name, experts)


@pytest.mark.parametrize("culprit", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("key", ["layer.weight", "bias", "scalar"])
@pytest.mark.parametrize("name", NAMES)
def test_not_finite_is_refused(name: str, key: str, culprit: float) -> None:
    """In an expert and in the pretrained model, whether the method uses it or not."""
    kind = "NaN" if math.isnan(culprit) else "Inf"
    for where in ("pretrained", "birds", "cars"):
        pretrained, (birds, cars) = make_family()
        states = {"pretrained": pretrained, "birds": birds, "cars": cars}
        states[where][key].view(-1)[-1] = culprit
        numel = pretrained[key].numel()
        message = f"{where}['{key}'] holds {kind} in 1 of {numel} entries"
        with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
            merge(name, {"birds": birds, "cars": cars}, pretrained=pretrained)


def test_not_finite_is_refused_where_it_would_not_show() -> None:
    """With weight 0, where TIES trims, where DARE drops, and beyond a low rank."""
    pretrained, (birds, cars) = make_family(torch.float16)
    cars["bias"][3] = math.nan
    experts = {"birds": birds, "cars": cars}
    message = re.escape("cars['bias'] holds NaN in 1 of 9 entries")
    with pytest.raises(ValueError, match=message):
        merge("average", experts, weights=[1, 0])
    for name, options in (
        ("task_arithmetic", {"scale": 0}),
        ("ties", {"density": 0.01, "scale": 0}),
        ("ties", {"density": 0.01, "trim": "tensor"}),
        ("dare", {"drop_rate": 0.999}),
        ("cart", {"rank_ratio": 0}),
        ("low_rank_task_arithmetic", {"rank_ratio": 0, "scale": 0}),
        ("slerp", {"t": 0}),
    ):
        with pytest.raises(ValueError, match=message):
            merge(name, experts, pretrained=pretrained, **options)


@pytest.mark.parametrize("dtype", DTYPES)
def test_overflow_of_finite_inputs(dtype: torch.dtype) -> None:
    """Also where only the cast back to the inputs' dtype overflows."""
    huge = {"w": torch.full((5,), 0.9 * torch.finfo(dtype).max, dtype=dtype)}
    with pytest.raises(ValueError, match="merging 'w' overflowed: its inputs are finite"):
        merge("average", [huge, huge], weights=[1, 1])
    merged = merge("average", [huge, huge])
    torch.testing.assert_close(merged["w"], huge["w"])


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2, torch.complex64])
@pytest.mark.parametrize("name", NAMES)
def test_dtypes_without_arithmetic_are_refused(name: str, dtype: torch.dtype) -> None:
    state = {"ok": torch.ones(2), "odd": torch.ones(2, 2).to(dtype)}
    message = f"'odd' has dtype {dtype}, expected one of float16, bfloat16, float32, float64"
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        merge(name, [state, state], pretrained=state)


# The table ---------------------------------------------------------------------------------------


def test_methods_lists_names_defaults_and_papers() -> None:
    table = ml.methods().query("family == 'rule'")
    assert list(table.index) == NAMES
    assert set(NAMES) >= {"average", "task_arithmetic", "ties", "dare", "slerp", "cart"}
    assert table.loc["task_arithmetic", "hyperparameters"] == "scale=0.3"
    ties = table.loc["ties", "hyperparameters"]
    assert ties == "density=0.2, scale=1.0, reduce='mean', trim='model'"
    assert table.loc["ties", "needs"] == "experts, pretrained"
    assert table.loc["cart", "needs"] == "experts"
    assert (table["paper"].str.fullmatch(r"[a-z]+\d{4}[a-z]+")).all()
    assert (table["what it does"].str.len() > 20).all()


@pytest.mark.parametrize("name", NAMES)
def test_a_registered_method_is_still_a_plain_function(name: str) -> None:
    function = getattr(ml.rules, name)
    assert get_method(name).function is function
    tensors = [torch.randn(6, 4) for _ in range(3)]
    arguments: Iterator[Any] = iter((tensors[1:], tensors[0]))
    result = (
        function(*arguments) if get_method(name).needs_pretrained else function(next(arguments))
    )
    assert result.shape == (6, 4)
