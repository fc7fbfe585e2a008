"""Permuting any permutable group of any family leaves the function as it is."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from mergelib.align import permute, random_permutations
from mergelib.statedict import tied_keys
from mergelib.structure import structure_of
from tests.library.align.families import FAMILIES, build, inverted, outputs, weights


@pytest.mark.parametrize("family", FAMILIES)
def test_function_is_kept_by_every_group_alone_and_by_all(family: str) -> None:
    model = build(family).double()
    structure, state = structure_of(model), weights(model)
    drawn = random_permutations(structure, seed=3)
    expected = outputs(model, state, family)
    names = list(drawn) if family != "resnet18" else list(drawn)[::4]
    for chosen in [*([name] for name in names), list(drawn)]:
        permuted = permute(state, structure, {name: drawn[name] for name in chosen})
        moves = any((drawn[name].diff() < 0).any() for name in chosen)
        assert any(not torch.equal(permuted[key], state[key]) for key in state) == moves, chosen
        torch.testing.assert_close(
            outputs(model, permuted, family), expected, rtol=1e-9, atol=1e-9, msg=str(chosen)
        )


@pytest.mark.parametrize("family", ["mlp", "vit", "gpt", "bert"])
def test_what_is_not_permutable_changes_the_function(family: str) -> None:
    model = build(family)
    structure, state = structure_of(model), weights(model)
    shown = [g.name for g in structure.groups.values() if not g.permutable and g.kind != "fixed"]
    name = {"gpt": "token_embed.weight[0]"}.get(family, shown[0] if shown else "")
    wild = type(structure)(
        {
            key: type(group)(group.name, group.kind, group.size, True, group.within)
            for key, group in structure.groups.items()
        },
        structure.axes,
    )
    order = torch.arange(wild.groups[name].size).roll(1)
    changed = outputs(model, permute(state, wild, {name: order}), family)
    assert (changed - outputs(model, state, family)).abs().max() > 1e-3
    with pytest.raises(ValueError, match="may not be permuted"):
        permute(state, structure, {name: order})


@settings(max_examples=20)
@given(seed=st.integers(0, 10**6), family=st.sampled_from(["vit", "chain", "gpt2", "bert"]))
def test_inverse_undoes(seed: int, family: str) -> None:
    model = build(family)
    structure, state = structure_of(model), weights(model)
    drawn = random_permutations(structure, seed=seed)
    back = permute(permute(state, structure, drawn), structure, inverted(structure, drawn))
    assert all(torch.equal(back[key], state[key]) for key in state)


def test_heads_move_as_blocks_and_each_orders_its_own_dimensions() -> None:
    model = nn.MultiheadAttention(4, 2, bias=False)
    structure = structure_of(model)
    state = weights(model)
    drawn = {
        "heads": torch.tensor([1, 0]),
        "keys": torch.tensor([[1, 0], [0, 1]]),  # the head that comes first now is turned round
        "values": torch.tensor([[0, 1], [1, 0]]),
    }
    permuted = permute(state, structure, drawn)
    rows = [3, 2, 0, 1, *(7, 6, 4, 5), *(10, 11, 9, 8)]
    assert torch.equal(permuted["in_proj_weight"], state["in_proj_weight"][rows])
    columns = [2, 3, 1, 0]
    assert torch.equal(permuted["out_proj.weight"], state["out_proj.weight"][:, columns])


def test_statistics_integers_dtypes_ties_and_inputs() -> None:
    model = build("chain").half()
    structure, state = structure_of(model), weights(model)
    before = {key: tensor.clone() for key, tensor in state.items()}
    order = torch.arange(8).roll(1)
    permuted = permute(state, structure, {"0": order})
    assert torch.equal(permuted["1.running_var"], state["1.running_var"][order])
    assert permuted["1.num_batches_tracked"].dtype == torch.long
    assert {key: t.dtype for key, t in permuted.items()} == {k: t.dtype for k, t in state.items()}
    for tensor in permuted.values():
        tensor.zero_()  # nothing of the result is memory of the input
    assert all(torch.equal(state[key], before[key]) for key in state)

    tied = build("gpt2")
    state = weights(tied)
    structure = structure_of(tied)
    permuted = permute(state, structure, random_permutations(structure))
    assert tied_keys(permuted) == tied_keys(state) != {}


def test_wrong_permutations_are_named() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    structure, state = structure_of(model), weights(model)
    for permutation, message in [
        ({"x": torch.arange(4)}, "no group 'x'"),
        ({"2": torch.arange(2)}, "'2' may not be permuted because it is visible"),
        ({"0.weight[1]": torch.arange(3)}, "may not be permuted because it is fixed"),
        ({"0": torch.arange(3)}, r"'0' is torch.int64 of shape \(3,\), expected .* \(4,\)"),
        ({"0": torch.arange(4.0)}, "is torch.float32"),
        ({"0": torch.tensor([0, 0, 1, 2])}, "'0' is not a permutation of 4"),
    ]:
        with pytest.raises(ValueError, match=message):
            permute(state, structure, permutation)
    with pytest.raises(ValueError, match=r"state\['0.bias'\] has shape \(5,\)"):
        permute({**state, "0.bias": torch.zeros(5)}, structure, {})
