"""Weight matching: known permutations come back, and the barrier between copies disappears."""

import functools
import itertools

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from mergelib.align import git_rebasin, matching, permute, random_permutations
from mergelib.statedict import StateDict, flatten
from mergelib.structure import structure_of
from tests.library.align.families import (
    FAMILIES,
    barrier,
    build,
    inverted,
    torchvision_vit,
    weights,
)

load_digits = pytest.importorskip("sklearn.datasets").load_digits
State = dict[str, Tensor]


def equal(a: StateDict, b: StateDict) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[key], b[key]) for key in a)


def rising(objective: tuple[float, ...]) -> bool:
    return all(later >= earlier for earlier, later in itertools.pairwise(objective))


@pytest.mark.parametrize("family", [name for name in FAMILIES if name != "torchvision resnet"])
def test_a_known_permutation_is_recovered_exactly(family: str) -> None:
    model = build(family, seed=1)
    structure, a = structure_of(model), weights(model)
    drawn = random_permutations(structure, seed=2)
    b = permute(a, structure, drawn)
    result = git_rebasin(a, b, structure)
    assert equal(result.state, a)
    inverse = inverted(structure, drawn)
    assert all(torch.equal(result.permutations[name], inverse[name]) for name in drawn)
    assert result.permutations.keys() == drawn.keys()
    assert rising(result.objective)
    assert result.objective[0] < result.objective[-1] == pytest.approx(1.0)
    assert result.converged


def test_fresh_transformers_need_the_second_start(monkeypatch: pytest.MonkeyPatch) -> None:
    def recovered(seed: int) -> bool:
        torch.manual_seed(seed)
        model = torchvision_vit(layers=3, classes=10)
        structure, a = structure_of(model), weights(model)
        drawn = random_permutations(structure, seed=seed + 5)
        return equal(git_rebasin(a, permute(a, structure, drawn), structure, seed=seed).state, a)

    assert all(recovered(seed) for seed in range(6))
    monkeypatch.setattr(matching._Match, "follow", lambda self: None)
    assert not all(recovered(seed) for seed in range(6))


@pytest.mark.parametrize("family", ["vit", "chain", "bert"])
def test_under_noise_the_permutation_is_still_found(family: str) -> None:
    model = build(family, seed=1)
    structure, a = structure_of(model), weights(model)
    noisy = {
        key: tensor + 0.01 * torch.randn_like(tensor) if tensor.is_floating_point() else tensor
        for key, tensor in a.items()
    }
    drawn = random_permutations(structure, seed=2)
    result = git_rebasin(a, permute(noisy, structure, drawn), structure)
    assert equal(result.state, noisy)


def test_small_case_is_the_best_of_all_permutations() -> None:
    model = nn.Sequential(nn.Linear(2, 4), nn.ReLU(), nn.Linear(4, 2))
    structure = structure_of(model)
    a, b = ({k: torch.randn_like(v) for k, v in weights(model).items()} for _ in range(2))
    result = git_rebasin(a, b, structure)
    distances = [
        (flatten(a) - flatten(permute(b, structure, {"0": torch.tensor(order)}))).norm().item()
        for order in itertools.permutations(range(4))
    ]
    assert (flatten(a) - flatten(result.state)).norm().item() == pytest.approx(min(distances))


def test_heads_are_matched_jointly_with_their_dimensions() -> None:
    model = nn.Sequential(nn.MultiheadAttention(4, 2))
    structure = structure_of(model)
    a, b = ({k: torch.randn_like(v) for k, v in weights(model).items()} for _ in range(2))
    result = git_rebasin(a, b, structure)
    swaps = [torch.tensor(order) for order in itertools.permutations(range(2))]
    pairs = [torch.stack(pair) for pair in itertools.product(swaps, swaps)]
    distances = []
    for tables in itertools.product(swaps, pairs, pairs):
        drawn = dict(zip(structure.permutable(), tables, strict=True))
        distances.append((flatten(a) - flatten(permute(b, structure, drawn))).norm().item())
    assert len(distances) == 2 * 4 * 4
    assert (flatten(a) - flatten(result.state)).norm().item() == pytest.approx(min(distances))


@pytest.mark.parametrize("family", ["vit with head", "gpt2", "chain"])
def test_objective_never_falls_and_two_runs_are_equal(family: str) -> None:
    a, b = weights(build(family, seed=1)), weights(build(family, seed=2))
    model = build(family)
    first, second = (git_rebasin(a, b, model, seed=5) for _ in range(2))
    assert rising(first.objective)
    assert first.objective == second.objective
    assert equal(first.state, second.state)
    assert equal(first.state, permute(b, structure_of(model), first.permutations))
    skipped = ("running_mean", "running_var", "lm_head.weight")  # the last is tied: counted once
    keys = [key for key in structure_of(model).axes if not key.endswith(skipped)]
    x, y, z = (torch.cat([s[k].flatten().double() for k in keys]) for s in (a, first.state, b))
    assert first.objective[-1] == pytest.approx(F.cosine_similarity(x, y, 0).item(), abs=1e-6)
    assert first.objective[-1] > F.cosine_similarity(x, z, 0).item() + 1e-3


def test_equal_networks_are_left_alone() -> None:
    model = nn.Sequential(nn.Linear(3, 6), nn.ReLU(), nn.Linear(6, 2))
    state = weights(model)
    state["0.weight"][:3] = state["0.bias"][:3] = state["2.weight"][:, :3] = 0  # dead, and alike
    result = git_rebasin(state, state, model)
    assert torch.equal(result.permutations["0"], torch.arange(6))
    assert result.objective == pytest.approx((1.0, 1.0))


def test_a_group_on_both_axes_of_a_weight_never_lowers_the_objective() -> None:
    shared = nn.Linear(12, 12)
    model = nn.Sequential(nn.Linear(3, 12), shared, shared, nn.Linear(12, 2))
    for seed in range(10):
        torch.manual_seed(seed)
        a, b = ({k: torch.randn_like(v) for k, v in weights(model).items()} for _ in range(2))
        b["2.weight"], b["2.bias"] = b["1.weight"], b["1.bias"]
        a["2.weight"], a["2.bias"] = a["1.weight"], a["1.bias"]
        assert rising(git_rebasin(a, b, model, seed=seed).objective)


def test_inputs_dtypes_and_ties() -> None:
    model = build("gpt2").bfloat16()
    a, b = weights(model), weights(build("gpt2", seed=3).bfloat16())
    before = weights(model), {key: tensor.clone() for key, tensor in b.items()}
    result = git_rebasin(a, b, model)
    assert equal(a, before[0])
    assert equal(b, before[1])
    assert {tensor.dtype for tensor in result.state.values()} == {torch.bfloat16}
    tied = result.state["lm_head.weight"], result.state["transformer.wte.weight"]
    assert tied[0].data_ptr() == tied[1].data_ptr()


def test_errors_name_the_key() -> None:
    model = build("mlp")
    a = weights(model)
    with pytest.raises(ValueError, match=r"b\['layers.0.bias'\] has shape \(3,\)"):
        git_rebasin(a, {**a, "layers.0.bias": torch.zeros(3)}, model)
    broken = {**a, "layers.1.bias": torch.full((24,), torch.nan)}
    with pytest.raises(ValueError, match=r"a\['layers.1.bias'\] contains NaN or Inf"):
        git_rebasin(broken, a, model)
    with pytest.raises(ValueError, match="iterations is 0"):
        git_rebasin(a, a, model, iterations=0)
    with pytest.raises(ValueError, match=r"b\['layers.1.bias'\] contains NaN"):
        git_rebasin(a, broken, model)


# Digits: 64 pixels, ten classes.


def digits_model() -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10)
    )


@functools.cache
def digits() -> tuple[Tensor, Tensor]:
    data = load_digits()
    return torch.tensor(data.data / 16, dtype=torch.float32), torch.tensor(data.target)


@functools.cache
def trained(seed: int) -> State:
    inputs, labels = digits()
    torch.manual_seed(seed)
    model = digits_model()
    optimizer = torch.optim.Adam(model.parameters(), 3e-3, weight_decay=1e-4)
    for _ in range(30):
        for rows in torch.randperm(len(inputs)).split(128):
            optimizer.zero_grad()
            F.cross_entropy(model(inputs[rows]), labels[rows]).backward()
            optimizer.step()
    return weights(model)


def digits_loss(state: StateDict) -> float:
    inputs, labels = digits()
    with torch.no_grad():
        logits = functional_call(digits_model(), dict(state), (inputs,))
    return F.cross_entropy(logits, labels).item()


def test_barrier_between_a_network_and_its_permuted_copy_is_removed() -> None:
    a = trained(0)
    structure = structure_of(digits_model())
    b = permute(a, structure, random_permutations(structure, seed=1))
    assert digits_loss(a) < 0.05
    assert digits_loss(b) == pytest.approx(digits_loss(a), abs=1e-5)
    assert barrier(digits_loss, a, b) > 0.5
    aligned = git_rebasin(a, b, structure).state
    assert equal(aligned, a)
    assert barrier(digits_loss, a, aligned) < 1e-6


def test_networks_trained_apart_come_nearer() -> None:
    reference = trained(0)
    for other in (trained(1), trained(2)):
        aligned = git_rebasin(reference, other, digits_model()).state
        assert digits_loss(aligned) == pytest.approx(digits_loss(other), abs=1e-5)
        before = barrier(digits_loss, reference, other)
        assert barrier(digits_loss, reference, aligned) < 0.3 * before
