"""Copies among models, layouts that are mixed, and keys that are skipped: said once, by name."""

import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import mergelib as ml
from mergelib.inspection.watch import Watch
from mergelib.registry import get_method, method_names
from mergelib.statedict import Misfit

State = dict[str, Tensor]


def heard(call: Callable[[], Any]) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        call()
    return [str(each.message) for each in caught]


def family(count: int) -> list[State]:
    """A pretrained model, and experts that share a frozen layer with it."""
    generator = torch.Generator().manual_seed(0)
    frozen, body = (torch.randn(40, 40, generator=generator) for _ in range(2))
    steps = [0.0, *[0.1] * count]
    return [
        {
            "frozen": frozen.clone(),
            "body": body + step * torch.randn(40, 40, generator=generator),
            "bias": step * torch.ones(3),
        }
        for step in steps
    ]


Door = Callable[[dict[str, State], State, Path], Any]


def save(states: dict[str, State], folder: Path) -> dict[str, Path]:
    files = {name: folder / f"{name}.safetensors" for name in states}
    for name, state in states.items():
        ml.save_state_dict(state, files[name])
    return files


def merged_files(experts: dict[str, State], base: State, folder: Path) -> None:
    files = save({"base": base, **experts}, folder)
    ml.merge_files(
        "ties",
        {name: files[name] for name in experts},
        folder / "out.safetensors",
        pretrained=files["base"],
        overwrite=True,
    )


DOORS: dict[str, Door] = {
    "merge": lambda experts, base, _: ml.merge("ties", experts, pretrained=base),
    "merge_files": merged_files,
    "adapt": lambda experts, base, _: ml.adapt("uniform_soup", experts, pretrained=base),
    "adapt files": lambda experts, base, folder: ml.adapt(
        "uniform_soup", save(experts, folder), pretrained=base
    ),
    "emr": lambda experts, base, _: ml.compress("emr", experts, pretrained=base),
    "tall_masks": lambda experts, base, _: ml.compress("tall_masks", experts, pretrained=base),
}


@pytest.mark.parametrize("door", DOORS)
def test_copies_are_named(door: str, tmp_path: Path) -> None:
    base, a, b = family(2)
    half = {key: value.half() for key, value in base.items()}
    cases: dict[str, dict[str, State]] = {
        "": {"a": a, "b": b},
        "b is the pretrained model itself": {"a": a, "b": dict(base)},
        "a and c are one model": {"a": a, "b": b, "c": {k: v.clone() for k, v in a.items()}},
        "a and c are the pretrained model itself": {"a": base, "b": b, "c": base},
    }
    if door not in ("adapt", "adapt files"):
        cases["h is the pretrained model itself"] = {"h": half, "b": b}
    for text, experts in cases.items():
        said = heard(partial(DOORS[door], experts, base, tmp_path))
        assert len(said) == bool(text), said
        assert all(each.startswith(text) for each in said)


def test_one_expert_twice_without_a_pretrained_model() -> None:
    _, a, b = family(2)
    for call in (
        lambda: ml.merge("average", [a, b, a]),
        lambda: ml.merge("cart", [a, b, a]),
        lambda: ml.compress("cart_indexing", [a, b, a]),
    ):
        (text,) = heard(call)
        assert text.startswith("expert 0 and expert 2 are one model, equal in every merged tensor")
        assert "counts 2 times" in text
    assert not heard(lambda: ml.merge("average", [a]))


@pytest.mark.parametrize(("apart", "told"), [(0.0, False), (0.3, False), (3.0, True)])
@pytest.mark.parametrize("count", [2, 4])
def test_a_related_base_that_is_not_theirs(apart: float, told: bool, count: int) -> None:
    """In units of the experts' own distance; cosines are a² / (1 + a²)."""
    base, shared, *own = (
        torch.randn(40, 50, generator=torch.Generator().manual_seed(i)) for i in range(count + 2)
    )
    experts = [{"w": base + 0.01 * (each + apart * shared)} for each in own]
    said = heard(partial(ml.merge, "task_arithmetic", experts, pretrained={"w": base}))
    assert len(said) == told
    assert all("probably fine-tuned from another model than pretrained" in each for each in said)
    assert not heard(partial(ml.merge, "average", experts))


def test_only_what_is_merged_counts() -> None:
    """A head of its own makes no expert of a frozen body."""
    base, a, _ = family(2)
    probe = {**base, "bias": torch.full((3,), 7.0)}
    assert not heard(lambda: ml.merge("ties", {"a": a, "probe": probe}, pretrained=base))
    (text,) = heard(
        lambda: ml.merge("ties", {"a": a, "probe": probe}, pretrained=base, exclude="bias")
    )
    assert text.startswith("probe is the pretrained model itself")


def test_a_difference_outside_the_sample_is_seen() -> None:
    """Of a long tensor some entries are looked at first, and all where these agree."""
    base = {"w": torch.randn(300, 300, generator=torch.Generator().manual_seed(0))}
    for place in (1, 2, 3, 88, 299):
        tuned = {"w": base["w"].clone()}
        tuned["w"][place, place] += 1
        assert not heard(partial(ml.merge, "ties", [tuned], pretrained=base))


def test_different_models_are_told_apart_by_samples() -> None:
    read: list[int] = []
    watch = Watch(["a", "b", "c"], pretrained=False)
    tensors = [torch.full((4,), float(i)) for i in range(3)]

    def whole(number: int) -> Tensor:
        read.append(number)
        return tensors[number]

    watch.add(whole)
    assert (watch.groups, read) == ([], [0, 1, 2])


# Layouts and skipped keys -----------------------------------------------------------------------


def mixture(fused: bool) -> State:
    alone = {f"mlp.experts.{i}.{w}.weight": torch.randn(6, 4) for i in range(3) for w in "ab"}
    whole = {"mlp.experts.gate_up_proj": torch.randn(3, 4, 12)}
    return {"router.weight": torch.randn(3, 4), **(whole if fused else alone)}


@pytest.mark.parametrize("first", [True, False])
def test_layouts_of_a_mixture_are_named(first: bool, tmp_path: Path) -> None:
    base, expert = mixture(first), mixture(not first)
    files = save({"base": base, "a": expert}, tmp_path)
    out = tmp_path / "out.safetensors"
    calls: dict[str, Callable[..., Any]] = {
        "merge": lambda **o: ml.merge("average", {"a": expert}, pretrained=base, **o),
        "adapt": lambda **o: ml.adapt("uniform_soup", {"a": expert}, pretrained=base, **o),
        "merge_files": lambda **o: ml.merge_files(
            "average", {"a": files["a"]}, out, pretrained=files["base"], **o
        ),
        "compress": lambda: ml.compress("emr", {"a": expert}, pretrained=base),
    }
    for name, call in calls.items():
        with pytest.raises(
            Misfit, match="hold the experts of a mixture in different layouts: "
        ) as r:
            call()
        assert "'mlp.experts.0.a.weight'" in str(r.value)
        assert "'mlp.experts.gate_up_proj'" in str(r.value)
        if name != "compress":
            said = heard(partial(call, missing="skip"))
            (text,) = [each for each in said if "different layouts" in each]
            assert "'mlp.experts.0.a.weight'" in text
            assert "'mlp.experts.gate_up_proj'" in text


PER_TENSOR = {name for name in method_names() if get_method(name).prepare is not None}
ONE_BY_ONE = {*method_names()} - PER_TENSOR - {"dare", "della"} | {"ties", "consensus"}


@pytest.mark.parametrize("method", sorted(ONE_BY_ONE))
def test_experts_in_one_tensor_are_merged_as_experts_with_keys(method: str) -> None:
    """By methods that neither draw numbers for a tensor nor look through it first."""

    def fused(state: State) -> State:
        stacked = torch.stack([state[f"mlp.experts.{i}.up.weight"] for i in range(3)])
        return {"router.weight": state["router.weight"], "mlp.experts.up": stacked}

    torch.manual_seed(0)
    base = {f"mlp.experts.{i}.up.weight": torch.randn(6, 4) for i in range(3)}
    base["router.weight"] = torch.randn(3, 4)
    experts = [{k: v + 0.1 * torch.randn_like(v) for k, v in base.items()} for _ in range(2)]
    options: dict[str, Any] = {"steps": [1, 2]} if method == "fednova" else {}
    apart = ml.merge(method, experts, pretrained=base, **options)
    whole = ml.merge(method, [*map(fused, experts)], pretrained=fused(base), **options)
    assert all(torch.equal(whole[key], value) for key, value in fused(apart).items())


def test_skipped_keys_are_counted_and_named(tmp_path: Path) -> None:
    base, a, _ = family(2)
    heads = {f"head.{i}": torch.ones(2 + i) for i in range(7)}
    expert = {**a, "bias": torch.ones(9), **heads}
    files = save({"base": base, "a": expert}, tmp_path)
    calls: list[Callable[[], Any]] = [
        lambda: ml.merge("average", [expert], pretrained=base, missing="skip"),
        lambda: ml.adapt("uniform_soup", [expert], pretrained=base, missing="skip"),
        lambda: ml.merge_files(
            "average", [files["a"]], tmp_path / "o", pretrained=files["base"], missing="skip"
        ),
    ]
    for call in calls:
        (text,) = heard(call)
        assert text.startswith("missing='skip' leaves 8 of 10 keys out of the merged model")
        assert "('bias', 'head.0', 'head.1', 'head.2', 'head.3', …)" in text
    assert not heard(lambda: ml.merge("average", [a], pretrained=base, missing="skip"))


def test_no_message_leads_to_skip() -> None:
    base, a, _ = family(2)
    more = {**a, "head": torch.ones(2)}
    choices: list[Any] = ["error", "base"]
    for missing in choices:
        with pytest.raises(ValueError, match="exclude=") as caught:
            ml.merge("average", [more], pretrained=base, missing=missing)
        assert "skip" not in str(caught.value)


@pytest.mark.parametrize("count", [2, 3, 8])
@pytest.mark.parametrize("place", [0, 1])
def test_a_base_and_an_expert_that_are_swapped(count: int, place: int) -> None:
    base, *experts = family(count)
    named = {f"expert {i}": expert for i, expert in enumerate(experts)}
    assert not heard(lambda: ml.merge("ties", named, pretrained=base))
    swapped = {**named, f"expert {place}": base}
    (text,) = heard(lambda: ml.merge("ties", swapped, pretrained=experts[place]))
    assert text.startswith("the other experts and pretrained appear to be fine-tuned from expert")
    assert f"check that pretrained and expert {place} are not swapped, and" in text


@pytest.mark.parametrize("cosine", [-0.5, 0.0, 0.3, 0.45, 0.7])
@pytest.mark.parametrize("ratio", [0.5, 1.0, 2.0])
def test_experts_of_one_base_are_not_taken_for_swapped(cosine: float, ratio: float) -> None:
    """Task vectors of a known cosine and ratio of lengths, by construction."""
    base, one, other = family(2)
    first, second = (ml.subtract(expert, base)["body"] for expert in (one, other))
    second = second - first * (first * second).sum() / first.square().sum()
    second = second * first.norm() / second.norm()
    mixed = ratio * (cosine * first + (1 - cosine**2) ** 0.5 * second)
    other = {**other, "body": base["body"] + mixed}
    assert not heard(lambda: ml.merge("ties", [one, other], pretrained=base))


def test_the_first_checkpoint_of_a_run_is_no_expert_beside_the_second() -> None:
    base, one, two = family(2)
    later = ml.add(one, ml.subtract(two, base))
    (text,) = heard(lambda: ml.merge("ties", {"sft": one, "dpo": later}, pretrained=base))
    assert text.startswith("the other experts and pretrained appear to be fine-tuned from sft")
    assert text.endswith("leave sft out if it is an earlier checkpoint of another expert")


def test_a_swapped_base_and_an_earlier_checkpoint_have_the_same_geometry() -> None:
    """So one warning names both: the distances of base, expert and other expert are equal."""

    def distances(*models: State) -> Tensor:
        bodies = torch.stack([model["body"].flatten() for model in models])
        return torch.cdist(bodies, bodies)

    base, one, two = family(2)
    chain = distances(base, one, ml.add(one, ml.subtract(two, base)))
    swapped = distances(one, base, two)
    assert torch.allclose(chain, swapped, rtol=0.05)
