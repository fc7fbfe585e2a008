"""What merging refuses, and in whose name."""

import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from mergelib.io import load_state_dict, save_state_dict
from mergelib.merging import merge
from mergelib.registry import get_method
from mergelib.streaming import merge_files
from tests.library.merging.cases import DTYPES, NAMES, State, make_family
from tests.library.streaming.cases import assert_same


def test_unknown_methods() -> None:
    with pytest.raises(ValueError, match=r"^unknown method 'tias'; did you mean 'ties'\?$"):
        merge("tias", [{}])
    with pytest.raises(ValueError, match=r"unknown method 'xyz'; known: average, .*cart"):
        merge("xyz", [{}])


def test_what_is_meant_is_said() -> None:
    """Names of other programs, arguments in another order, and the dictionary of a training."""
    model = {"w": torch.ones(2)}
    with pytest.raises(TypeError, match=r"'weight'; it has: .*; did you mean 'weights'\?$"):
        merge("average", [model], weight=[1.0])
    with pytest.raises(TypeError, match=r"'base'; it has: .*; the base is pretrained=$"):
        merge("ties", [model], base=model)
    with pytest.raises(TypeError, match="the method is a list, expected its name before the"):
        merge([model], "average")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"\['model'\] is a dict, .*: pass that alone if it holds"):
        merge("average", [{"model": model, "epoch": 3}])  # type: ignore[dict-item]


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
    ("average", {"weights": [1.0, math.nan]}, r"^weights\[1\] is nan, expected a finite number$"),
    ("task_arithmetic", {"scale": math.nan}, "scale is nan, expected a finite number"),
    ("task_arithmetic", {"scale": "0.3"}, "scale is '0.3', expected a finite number"),
    ("task_arithmetic", {"scale": None}, "scale is None, expected a finite number"),
    (
        "tsv",
        {"scale": [1, 1]},
        r"^scale is \[1, 1\], expected a finite number, the same for",
    ),
    ("tsv", {"scale": torch.ones(2)}, r"^scale is float32\[2\], expected a finite"),
    ("task_arithmetic", {"scale": torch.ones(2, 2)}, r"^scale\[0\] is float32\[2\], expected"),
    ("slerp", {"t": True}, "^t is True, expected a finite number$"),
    ("slerp", {"t": 1j}, "^t is 1j, expected a finite number$"),
    ("dare", {"scale": "0.3"}, r"'0.3', expected a finite number \(or one per expert\) or None$"),
    ("dare", {"seed": 1.5}, "^seed is 1.5, expected an integer$"),
    ("dare", {"combine": None}, "^combine is None, expected 'task_arithmetic' or 'ties'$"),
    ("consensus", {"min_tasks": "two"}, "^min_tasks is 'two', expected an integer$"),
    ("cart", {"exact": "no"}, "^exact is 'no', expected True or False$"),
    ("cart", {"rounding": 1}, "^rounding is 1, expected 'ceil' or 'floor'$"),
    (
        "average",
        {"weights": "1,1"},
        r"'1,1', expected a finite number \(or one per expert\) or None$",
    ),
    ("fednova", {"steps": 3}, r"^steps is 3, expected a list \(each a positive number\) or None$"),
    ("fednova", {"steps": [1, 0]}, r"^steps is \[1, 0\], expected a list \(each a positive number"),
    ("fednova", {"steps": [1, math.inf]}, r"^steps is \[1, inf\], expected a list"),
    ("dare", {"weights": [1, 2]}, r"^weights is \[1, 2\], which only 'ties' has: set scale per"),
    ("dare", {"combine": "ties", "scale": [1, 2]}, r"^scale is \[1, 2\], expected one number with"),
    ("average", {"weights": [1, -1], "normalise": True}, r"\[1, -1\], whose sum 0 cannot be"),
    ("wsm", {"decay": "exp"}, "decay is 'exp', expected 'linear' or 'cosine' or '1-sqrt'"),
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
        merge(name, experts[0], pretrained=pretrained)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="pretrained is a int, expected a state dict"):
        merge(name, experts, pretrained=3)  # type: ignore[arg-type]


def cut(state: State) -> State:
    return {key: value for key, value in state.items() if key != "bias"}


HINT = "; where only heads differ, leave them out with exclude="
MISFITS: list[tuple[Callable[[State], State], str]] = [
    (cut, "cars lacks key 'bias' compared with {}" + HINT + "['bias']"),
    (
        lambda s: {**s, "more": torch.ones(1)},
        "cars has the extra key 'more' compared with {}" + HINT + "['more']",
    ),
    (
        lambda s: {**s, "bias": torch.ones(8)},
        "cars['bias'] has shape (8,), expected (9,) as in {}" + HINT + "['bias']",
    ),
    (
        lambda s: {**s, "bias": s["bias"].int()},
        "cars['bias'] has dtype torch.int32, expected torch.float32 as in {}",
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


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("key", ["layer.weight", "bias", "scalar"])
@pytest.mark.parametrize("name", NAMES)
def test_not_finite_is_refused(name: str, key: str, value: float) -> None:
    """In an expert and in the pretrained model, whether the method uses it or not."""
    kind = "NaN" if math.isnan(value) else "Inf"
    for where in ("pretrained", "birds", "cars"):
        pretrained, (birds, cars) = make_family()
        states = {"pretrained": pretrained, "birds": birds, "cars": cars}
        states[where][key].view(-1)[-1] = value
        tensor = pretrained[key]
        row = f", in row {len(tensor) - 1}" if tensor.dim() > 1 else ""
        message = f"{where}['{key}'] holds {kind} in 1 of {tensor.numel()} entries{row}"
        with pytest.raises(ValueError, match=f"^{re.escape(message)}: pass an intact checkpoint"):
            merge(name, {"birds": birds, "cars": cars}, pretrained=pretrained)


@pytest.mark.parametrize("everywhere", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_not_finite_entries_are_the_bases(name: str, everywhere: bool, tmp_path: Path) -> None:
    """The row of a padding token is NaN in one expert, or in all models, and one entry is Inf."""
    family = make_family()
    base, birds, cars = ({k: v.contiguous() for k, v in m.items()} for m in (family[0], *family[1]))
    clean = {"birds": {**birds}, "cars": {**cars}}
    for key, place in (("layer.weight", 5), ("bias", 0)):
        hole = torch.zeros_like(base[key], dtype=torch.bool)
        hole[place] = True
        clean["cars"][key] = torch.where(hole, base[key], cars[key])
        cars[key][place] = math.nan if key == "layer.weight" else -math.inf
    experts, finite = {"birds": birds, "cars": cars}, base
    if everywhere:
        finite = {**base, "layer.weight": base["layer.weight"].clone()}
        for state in (finite, *clean.values()):
            state["layer.weight"] = state["layer.weight"].index_fill(0, torch.tensor(5), 0)
        for state in (base, birds):
            state["layer.weight"][5] = math.nan
    with pytest.raises(ValueError, match=r"\['layer.weight'\] holds NaN .* in row 5: pass"):
        merge(name, experts, pretrained=base)
    merged = merge(name, experts, pretrained=base, nan="base")
    expected = merge(name, clean, pretrained=finite)
    if everywhere:
        expected["layer.weight"][5] = math.nan
    assert_same(merged, expected)
    save_state_dict(base, tmp_path / "base.safetensors")
    for expert, state in experts.items():
        save_state_dict(state, tmp_path / f"{expert}.safetensors")
    files = {expert: tmp_path / f"{expert}.safetensors" for expert in experts}
    options: dict[str, Any] = {"pretrained": tmp_path / "base.safetensors", "nan": "base"}
    assert_same(load_state_dict(merge_files(name, files, tmp_path / "o", **options)), merged)


def test_not_finite_needs_a_base_to_take_entries_from() -> None:
    _, experts = make_family()
    with pytest.raises(
        ValueError, match=r"^nan='base' takes tensors of the pretrained model: pass"
    ):
        merge("average", experts, nan="base")
    with pytest.raises(ValueError, match=r"^nan is 'skip', expected one of 'error', 'base'$"):
        merge("average", experts, nan="skip")  # type: ignore[arg-type]


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
    message = (
        f"'odd' has dtype {dtype}, expected float16, bfloat16, float32 or float64: dequantise or "
        "cast the models first"
    )
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        merge(name, [state, state], pretrained=state)
