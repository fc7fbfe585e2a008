"""The dtype that a merge is asked for: rounded once, and refused where values do not fit."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from mergelib.merging import merge

HALF, BRAIN, SINGLE, DOUBLE = torch.float16, torch.bfloat16, torch.float32, torch.float64
BITS = {HALF: (10, -14), BRAIN: (7, -126), SINGLE: (23, -126)}  # of a significand; least exponent


def nearest(values: Tensor, dtype: torch.dtype) -> Tensor:
    """Float64 values, rounded to a dtype's nearest by Python's exact `round`, ties to even."""
    bits, least = BITS[dtype]
    rounded = []
    for x in values.flatten().tolist():
        place = max(math.frexp(x)[1] - 1, least) - bits
        rounded.append(math.ldexp(round(math.ldexp(x, -place)), place))
    return torch.tensor(rounded, dtype=DOUBLE).view(values.shape)


def whole(seed: int, *shape: int, most: int = 2**11) -> Tensor:
    """Whole numbers over 2¹⁰, so that sums of them are exact in float32."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(-most, most, shape, generator=generator).double() / 2**10


@pytest.mark.parametrize("dtype", BITS)
@pytest.mark.parametrize("as_text", [False, True])
def test_a_rounded_base_with_fine_experts(dtype: torch.dtype, as_text: bool) -> None:
    base = {"w": whole(0, 40, 30, most=2**7), "n": torch.tensor([3]), "b": torch.tensor([True])}
    experts = [{**base, "w": base["w"] + whole(i, 40, 30) / 2**8} for i in (1, 2)]
    expected = base["w"] + sum(0.5 * (expert["w"] - base["w"]) for expert in experts)
    merged = merge(
        "task_arithmetic",
        [{**expert, "w": expert["w"].float()} for expert in experts],
        pretrained={**base, "w": base["w"].bfloat16()},
        dtype=str(dtype).removeprefix("torch.") if as_text else dtype,
        scale=0.5,
    )
    assert {key: tensor.dtype for key, tensor in merged.items()} == {
        "w": dtype,
        "n": torch.int64,
        "b": torch.bool,
    }
    assert torch.equal(merged["w"].double(), nearest(expected, dtype))
    assert torch.equal(merged["w"].double(), expected) == (dtype == SINGLE)
    through = expected.bfloat16().to(dtype)
    assert torch.equal(merged["w"], through) == (dtype == BRAIN), "not by way of the base's dtype"


@pytest.mark.parametrize("dtype", BITS)
def test_float64_is_rounded_once(dtype: torch.dtype) -> None:
    """Ties of the dtype, a little above and below; PyTorch's own cast makes ties of the others."""
    bits, least = BITS[dtype]
    ties = 1 + (torch.arange(-64, 64, dtype=DOUBLE) + 0.5) * 2.0**-bits
    near = torch.cat([ties, ties + 2.0**-50, ties - 2.0**-50])
    tiny = whole(3, 50).double() * 2.0 ** (least - 4) / 3
    values = torch.cat([near, -near, tiny, whole(1, 50) / 3, torch.zeros(1, dtype=DOUBLE)])
    for exact in (values, values[:1].squeeze()):
        merged = merge("average", [{"w": exact}], dtype=dtype)["w"]
        assert torch.equal(merged.double(), nearest(exact, dtype))
    assert torch.equal(values.to(dtype).double(), nearest(values, dtype)) == (dtype == SINGLE)


def test_what_is_not_merged_is_rounded_as_well() -> None:
    head, wave = whole(0, 5, 3) / 3, torch.ones(2, dtype=torch.complex64)
    head[0, 0] = -math.inf  # as in masks
    state = {"w": torch.ones(4), "head": head, "wave": wave, "tied": torch.ones(2, 2)}
    state |= {"codes": torch.ones(3).to(torch.float8_e4m3fn), "tied too": state["tied"]}
    merged = merge("average", [state] * 2, include="w", dtype="float16")
    kinds = {key: tensor.dtype for key, tensor in merged.items()}
    assert kinds == {
        **dict.fromkeys(("w", "head", "tied", "tied too"), HALF),
        "wave": torch.complex64,
        "codes": torch.float8_e4m3fn,
    }
    assert merged["head"][0, 0] == -math.inf
    assert torch.equal(merged["head"][1:].double(), nearest(head[1:], HALF))
    assert merged["tied"] is merged["tied too"]
    assert state["head"].dtype == DOUBLE
    both = merge("average", [state] * 2, exclude=["wave", "codes", "head"], dtype="bfloat16")
    assert both["tied"] is both["tied too"]
    assert both["tied"].dtype == BRAIN


@pytest.mark.parametrize("method", ["average", "cart", "ties"])
def test_values_too_large_are_refused(method: str) -> None:
    """In any piece of the tensor, with the largest value of all."""
    weights = torch.ones(2**15, 2)
    weights[3, 0], weights[-1, 1] = 66000, -70000
    base, experts = {"w": torch.zeros_like(weights)}, [{"w": weights}, {"w": weights.clone()}]
    advice = "float16 holds at most 65504: pass dtype='bfloat16' or dtype='float32'"
    options: dict[str, Any] = {"density": 1.0, "scale": 1.0} if method == "ties" else {}
    pretrained = base if method == "ties" else None
    with pytest.raises(ValueError, match=f"'w' overflowed: .* result reaches 70000, and {advice}$"):
        merge(method, experts, pretrained=pretrained, dtype="float16", **options)
    merged = merge(method, experts, pretrained=pretrained, dtype="bfloat16", **options)
    assert merged["w"].isfinite().all()
    states = [{"a": torch.ones(3), **expert} for expert in experts]
    states[0]["w"][0, 0] = math.inf
    with pytest.raises(ValueError, match=f"copying 'w' overflowed: it reaches 70000, and {advice}"):
        merge(method, states, include="a", dtype="float16", pretrained=states[0])


@pytest.mark.parametrize("dtype", ["half", "int8", torch.int32, torch.float64, 16, ""])
def test_other_dtypes_are_refused(dtype: torch.dtype) -> None:
    with pytest.raises(ValueError, match=r"^dtype is '.*', expected 'float32', 'float16' or 'bf"):
        merge("average", [{"w": torch.ones(2)}], dtype=dtype)
