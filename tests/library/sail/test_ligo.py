"""LiGO as published begins as it says, keeps its identity blocks, and has the right gradients."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from mergelib.sail.growth.learning import Descent, LearnedGrowth, learn_growth
from mergelib.sail.growth.ligo import NOISE, Block, PublishedLiGO
from tests.library.sail.families import gpt, mlp, resnet
from tests.library.sail.test_learning import examples, risk

STREAM = Block(("token_embed",))


def learn_ligo(source: nn.Module, target: nn.Module, data: Any, **rest: Any) -> LearnedGrowth:
    return learn_growth([source], target, data, maps="ligo", **rest)


def begun(source: nn.Module, target: nn.Module) -> PublishedLiGO:
    return PublishedLiGO(source, target, torch.Generator().manual_seed(0))


def depths(maps: PublishedLiGO) -> dict[str, Tensor]:
    return {key: row.detach() for key, row in zip(maps._mixed, maps.depths, strict=True)}


def blocks(maps: PublishedLiGO) -> dict[Block, Tensor]:
    """B of every block that grows."""
    return {block: rows.detach() for block, rows in zip(maps._rows, maps.maps, strict=True)}


def whole(rows: Tensor) -> Tensor:
    """[I; B]."""
    return torch.cat([torch.eye(rows.shape[1]).to(rows), rows])


def test_the_start_is_a_noisy_stack_with_uniform_rows() -> None:
    source, target = gpt(48, 2), gpt(72, 3, 6)
    maps, own = begun(source, target), source.state_dict()
    state, rows, layers = maps(), blocks(maps), depths(maps)
    assert all(((part >= 0) & (part <= 1)).all() for part in rows.values())
    assert all(
        torch.allclose(part.sum(1), torch.ones(len(part)).double()) for part in rows.values()
    )
    assert len(layers) == 36, "twelve entries of three blocks"
    for key, row in layers.items():
        assert row.argmax() == int(key.split(".")[1]) % 2
        assert float(row.sum()) == pytest.approx(1)
        assert 0 < row.min() / row.max() < NOISE
    assert len({float(row.max()) for row in layers.values()}) == 36, "weights and biases apart"
    stream, hidden = whole(rows[STREAM]), whole(rows[Block(("blocks.1.fc1",))])
    for name, write, read in (("fc1", hidden, stream), ("fc2", stream, hidden)):
        kinds = [f"blocks.{block}.{name}.weight" for block in range(2)]
        middle = sum(share * own[key] for share, key in zip(layers[kinds[1]], kinds, strict=True))
        assert torch.allclose(state[kinds[1]], write @ middle @ read.T)
    assert torch.allclose(state["norm.weight"], stream @ own["norm.weight"])
    assert torch.allclose(state["token_embed.weight"], own["token_embed.weight"] @ stream.T)
    learned = learn_ligo(source, target, examples(source), steps=0)
    assert all(torch.equal(value, state[key]) for key, value in learned.state.items())
    assert len(learned.history) == 0


def test_queries_keys_and_values_have_a_map_each() -> None:
    source, target = gpt(48, 2), gpt(72, 3, 6)
    maps = begun(source, target)
    rows, state = blocks(maps), maps()
    assert len(rows) == 1 + 3 * 4, "the stream, and four of each block"
    assert blocks(maps)[STREAM].shape == (24, 48)
    heads, writer = "blocks.0.attn.heads", "blocks.0.attn.qkv"
    compared = (heads, "blocks.0.attn.keys")
    parts = [rows[Block(compared, (writer, place))] for place in range(2)]
    parts.append(rows[Block((heads, "blocks.0.attn.values"))])
    biases = [source.state_dict()[f"blocks.{block}.attn.qkv.bias"] for block in range(2)]
    middle = sum(d * b for d, b in zip(depths(maps)[f"{writer}.bias"], biases, strict=True))
    expected = torch.block_diag(*map(whole, parts)) @ middle
    assert torch.allclose(state[f"{writer}.bias"], expected)
    assert not torch.equal(parts[0], parts[1])
    assert torch.equal(maps.plan().widening.axis("blocks.0.attn.proj.weight", 1), whole(parts[2]))


def test_old_dimensions_of_larger_heads_stay_in_their_heads() -> None:
    maps = begun(gpt(48, 2, 4), gpt(96, 2, 4))
    matrix = maps.plan().widening.axis("blocks.0.attn.proj.weight", 1)
    old = (torch.arange(96) % 24 < 12).nonzero().flatten()
    assert torch.equal(matrix[old], torch.eye(48).double())


def test_only_new_rows_and_depth_are_learned() -> None:
    source, target = gpt(48, 2), gpt(72, 3, 6)
    before = {key: value.clone() for key, value in source.state_dict().items()}
    fresh = {key: value.clone() for key, value in target.state_dict().items()}
    data = examples(source)
    maps = begun(source, target)
    first = {block: rows.detach().clone() for block, rows in blocks(maps).items()}
    descent = Descent(target, data, 10, 8, 1e-2, nn.functional.cross_entropy, 0)
    losses = descent.learn([maps], [1.0])
    assert losses[-1] < losses[0]
    assert all(not torch.equal(first[block], blocks(maps)[block]) for block in first)
    state, layers = maps(), depths(maps)
    assert state["token_embed.weight"].shape == (50, 72)
    assert torch.equal(state["token_embed.weight"][:, :48], before["token_embed.weight"])
    for place in range(3):
        key = f"blocks.{place}.fc1.weight"
        parts = [before[f"blocks.{block}.fc1.weight"] for block in range(2)]
        middle = sum(share * part for share, part in zip(layers[key], parts, strict=True))
        assert torch.allclose(state[key][:192, :48], middle, rtol=0, atol=1e-14)
        assert torch.equal(maps.plan().widening.axis(key, 0)[:192], torch.eye(192).double())
    assert any(abs(float(row.sum()) - 1) > 1e-4 for row in layers.values()), "no softmax"
    assert all(torch.equal(before[k], v) for k, v in source.state_dict().items())
    assert all(torch.equal(fresh[k], v) for k, v in target.state_dict().items())
    learned = learn_ligo(source, target, data, steps=10, batch_size=8, learning_rate=1e-2)
    assert learned.history["joint"].tolist() == losses
    numbers = sum(parameter.numel() for parameter in maps.parameters())
    assert numbers == 24 * 48 * 10 + 3 * 96 * 192 + 36 * 2
    assert float(risk(target, learned.state, data)) < losses[0]


@pytest.mark.parametrize(
    ("source", "target"),
    [(mlp(6), mlp(8)), (gpt(8, 2, 2), gpt(12, 3, 3)), (gpt(8, 2, 2), gpt(12, 2, 2))],
)
def test_gradients_of_new_rows_and_depths(source: nn.Module, target: nn.Module) -> None:
    maps, data = begun(source, target), examples(source, 2)
    risk(target, maps(), data).backward()
    generator = torch.Generator().manual_seed(0)
    for parameter in maps.parameters():
        assert parameter.grad is not None
        way = torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype)
        values = []
        for step in (1e-6, -2e-6):
            parameter.data.add_(way, alpha=step)
            values.append(risk(target, maps(), data).item())
        parameter.data.add_(way, alpha=1e-6)
        numeric = (values[0] - values[1]) / 2e-6
        assert float((parameter.grad * way).sum()) == pytest.approx(numeric, rel=1e-4, abs=1e-7)


def test_misfits_are_named() -> None:
    source, data = gpt(), examples(gpt())
    wide = gpt(72, 2, 6)

    def refused(words: str, small: nn.Module, large: nn.Module, what: Any, **rest: Any) -> None:
        with pytest.raises(ValueError, match=words):
            learn_ligo(small, large, what, **rest)

    refused("running_mean' is a statistic of a batch norm", resnet(), resnet(6), examples(resnet()))
    refused("no wider layer and no longer list", source, gpt(), data)
    refused("needs labels", source, wide, data[0])
    refused("learning_rate is 0", source, wide, data, learning_rate=0.0)
    refused("steps is -1", source, wide, data, steps=-1)
    refused("fewer than the source's 48", source, gpt(24), data)
