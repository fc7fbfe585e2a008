"""The k-th largest magnitude, against a sort, on friendly and on hostile data."""

import math
from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from torch import Tensor

from mergelib.numerics import selection
from mergelib.numerics.selection import count_to_keep, magnitude_thresholds

Parameter = tuple[list[Tensor], Tensor | None]


def by_sorting(parameters: list[Parameter], density: float) -> list[float]:
    """What `magnitude_thresholds` must return, the slow way."""
    results = []
    for t in range(len(parameters[0][0])):
        differences = [
            experts[t] if pretrained is None else experts[t] - pretrained
            for experts, pretrained in parameters
        ]
        magnitudes = torch.cat([difference.abs().flatten() for difference in differences])
        k = count_to_keep(density, magnitudes.numel())
        results.append(magnitudes.sort(descending=True).values[k - 1].item())
    return results


def one(values: Tensor) -> list[Parameter]:
    return [([values], None)]


@pytest.mark.parametrize(
    ("density", "entries", "expected"),
    [(0.2, 10, 2), (0.2, 11, 3), (0.07, 100, 7), (1.0, 5, 5), (1e-9, 5, 1), (0.1, 30, 3)],
)
def test_kept_rounds_up_but_ignores_floating_point_noise(
    density: float, entries: int, expected: int
) -> None:
    assert count_to_keep(density, entries) == expected


@pytest.mark.parametrize("density", [0.0, -0.1, 1.1, math.nan])
def test_density_out_of_range_is_refused(density: float) -> None:
    with pytest.raises(ValueError, match="density"):
        magnitude_thresholds(lambda: one(torch.ones(3)), density)


def test_nothing_to_select_from_is_refused() -> None:
    with pytest.raises(ValueError, match="no entries"):
        magnitude_thresholds(lambda: one(torch.ones(0)), 0.5)


def test_hand_case() -> None:
    pretrained = torch.tensor([1.0, 1.0, 1.0, 1.0, 1.0])
    expert = torch.tensor([1.5, 0.0, 1.25, -3.0, 1.0])  # magnitudes 0.5, 1, 0.25, 4, 0
    for k, threshold in enumerate([4.0, 1.0, 0.5, 0.25, 0.0], start=1):
        parts = (slice(0, 2), slice(2, 5))
        parameters: list[Parameter] = [([expert[p], -expert[p]], pretrained[p]) for p in parts]
        first, second = magnitude_thresholds(partial(iter, parameters), k / 5)
        assert first == threshold
        assert second == by_sorting(parameters, k / 5)[1]


NORMAL = torch.randn(6000, generator=torch.Generator().manual_seed(0))
HOSTILE = {
    "normal": NORMAL,
    "normal, float64": NORMAL.double() / 3,
    "all zero": torch.zeros(6000),
    "all equal": torch.full((6000,), 0.3),
    "half zero": torch.where(torch.arange(6000) % 2 == 0, NORMAL, 0),
    "rounded": (NORMAL * 4).round(),
    "sorted": NORMAL.sort().values,
    "all scales": torch.exp(40 * NORMAL.clamp(-2, 2)),
    "subnormal": NORMAL * 1e-40,
    "with infinities": torch.where(torch.arange(6000) % 3 == 0, math.inf, NORMAL),
    "narrow bump": torch.where(torch.arange(6000) % 49 == 0, NORMAL, 0.5 + NORMAL * 1e-7),
}


@pytest.mark.parametrize("density", [1e-4, 0.01, 0.2, 0.5, 0.9, 1.0])
@pytest.mark.parametrize("values", HOSTILE.values(), ids=HOSTILE.keys())
def test_agrees_with_sorting(
    values: Tensor, density: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(selection, "CHUNK", 256)
    parameters: list[Parameter] = [([v, v.flip(0)], None) for v in values.split(1700)]
    assert magnitude_thresholds(lambda: parameters, density) == by_sorting(parameters, density)


@given(
    values=hnp.arrays(
        np.float32,
        st.integers(1, 60),
        elements=st.floats(-4, 4, width=32) | st.sampled_from([0.0, 0.5, -0.5]),
    ),
    density=st.floats(0.001, 1),
    cut=st.integers(0, 60),
)
def test_agrees_with_sorting_whatever_the_sizes(
    values: np.ndarray, density: float, cut: int
) -> None:
    tensor = torch.from_numpy(values)
    parameters = [p for part in (tensor[:cut], tensor[cut:]) for p in one(part)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(selection, "CHUNK", 8)
        assert magnitude_thresholds(lambda: parameters, density) == by_sorting(parameters, density)


def test_one_wide_tensor_makes_all_numbers_wide() -> None:
    parts = [*one(NORMAL[:3000]), *one(NORMAL[3000:].double() / 3)]
    assert magnitude_thresholds(lambda: parts, 0.3) == by_sorting(parts, 0.3)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_subtracted_in_float32(dtype: torch.dtype) -> None:
    pretrained, expert = torch.full((3,), 1.0, dtype=dtype), torch.full((3,), 3e-5, dtype=dtype)
    (threshold,) = magnitude_thresholds(lambda: [([expert], pretrained)], 0.2)
    assert threshold == float(pretrained[0].float() - expert[0].float()) != 1.0


def test_trimming_at_the_threshold_keeps_exactly_k() -> None:
    (threshold,) = magnitude_thresholds(lambda: one(NORMAL), 0.2)
    assert int((NORMAL.abs() >= threshold).sum()) == count_to_keep(0.2, len(NORMAL))


def test_nan_does_not_stall_the_search() -> None:
    values = torch.tensor([math.nan, 3.0, math.nan, 1.0])
    assert magnitude_thresholds(lambda: one(values), 0.5) == [1.0]
    assert magnitude_thresholds(lambda: one(values), 1.0) == [0.0]
    assert magnitude_thresholds(lambda: one(values * math.nan), 0.5) == [0.0]


def counting(parameters: list[Parameter], passes: list[int]) -> Callable[[], Iterator[Parameter]]:
    def stream() -> Iterator[Parameter]:
        passes.append(1)
        yield from parameters

    return stream


def test_two_passes_suffice() -> None:
    generator = torch.Generator().manual_seed(1)
    experts = [torch.randn(300, 768, generator=generator) for _ in range(3)]
    passes: list[int] = []
    magnitude_thresholds(counting([(experts, torch.zeros(300, 768))], passes), 0.2)
    assert len(passes) == 2


def test_inputs_stay_unchanged() -> None:
    experts, pretrained = [NORMAL.clone(), -NORMAL], NORMAL.clone() / 2
    magnitude_thresholds(lambda: [(experts, pretrained)], 0.3)
    assert torch.equal(experts[0], NORMAL)
    assert torch.equal(experts[1], -NORMAL)
    assert torch.equal(pretrained, NORMAL / 2)
