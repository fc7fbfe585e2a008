"""Networks: shapes, attention against PyTorch's own, the cosine head."""

from collections.abc import Callable
from typing import cast

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call

import mergelib as ml
from mergebook.suites.backbones import build_model
from mergebook.suites.models import (
    GPT,
    PICTURE_MODELS,
    TEXT_MODELS,
    Attention,
    Block,
    Head,
    Linearised,
    VisionTransformer,
    scale_pixels,
    to_tokens,
)
from mergelib.inspection.kinds import Matrices, layer_kinds
from mergelib.statedict import is_matrix


def test_transforms() -> None:
    images = torch.tensor([0, 51, 255], dtype=torch.uint8)
    assert scale_pixels(images).tolist() == pytest.approx([-1, -0.6, 1])
    assert images.tolist() == [0, 51, 255], "inputs stay"
    assert to_tokens(images).dtype == torch.int64
    assert to_tokens(images).tolist() == [0, 51, 255]
    with pytest.raises(TypeError, match=r"pictures are torch\.float32, expected torch\.uint8"):
        scale_pixels(images.float())


@pytest.mark.parametrize(
    ("name", "width"),
    [
        ("vit", 160),
        ("vit_small", 96),
        ("resnet18", 512),
        ("resnet18_strided", 512),
        ("resnet18_narrow", 64),
        ("mlp", 128),
    ],
)
def test_pictures_to_features(name: str, width: int) -> None:
    torch.manual_seed(0)
    model = build_model(name).eval()
    pictures = torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        both, second = model(pictures), model(pictures[1:])
    assert both.shape == (2, width) == (2, cast("int", model.width))
    torch.testing.assert_close(both[1:], second, rtol=1e-3, atol=1e-4)
    assert not torch.allclose(both[0], both[1])
    assert all(p.requires_grad for p in model.parameters())


def test_language_model_sees_no_later_character() -> None:
    torch.manual_seed(0)
    model = build_model("gpt").eval()
    text = torch.randint(128, (2, 20))
    changed = text.clone()
    changed[:, 12] = (changed[:, 12] + 1) % 128
    with torch.no_grad():
        before, after = model(to_tokens(text.to(torch.uint8))), model(changed)
    assert before.shape == (2, 20, 128)
    torch.testing.assert_close(before[:, :12], after[:, :12])
    assert ((before - after).abs().amax(2)[:, 12:] > 0).all()


def test_untrained_language_model_knows_nothing() -> None:
    torch.manual_seed(0)
    text, other = torch.randint(128, (2, 4, 50))
    loss = nn.functional.cross_entropy(build_model("gpt")(text).flatten(0, 1), other.flatten())
    assert loss.item() == pytest.approx(torch.tensor(128.0).log().item(), abs=0.1)


def test_all_models_are_tested() -> None:
    residual = {"resnet18", "resnet18_strided", "resnet18_narrow"}
    assert set(PICTURE_MODELS) == {"vit", "vit_small", "mlp"} | residual
    assert set(TEXT_MODELS) == {"gpt"}
    with pytest.raises(ValueError, match="unknown model 'vgg'; known: vit, vit_small, resnet18"):
        build_model("vgg")


def test_attention_is_pytorchs() -> None:
    torch.manual_seed(0)
    ours = Attention(12, heads=3)
    theirs = nn.MultiheadAttention(12, 3, batch_first=True)
    theirs.load_state_dict(
        {
            "in_proj_weight": ours.qkv.weight,
            "in_proj_bias": ours.qkv.bias,
            "out_proj.weight": ours.proj.weight,
            "out_proj.bias": ours.proj.bias,
        }
    )
    x = torch.randn(2, 7, 12)
    torch.testing.assert_close(ours(x), theirs(x, x, x, need_weights=False)[0])
    later = torch.ones(7, 7).triu(1).bool()
    ours.causal = True
    expected = theirs(x, x, x, need_weights=False, attn_mask=later)[0]
    torch.testing.assert_close(ours(x), expected)


def test_a_block_adds_to_what_it_is_given() -> None:
    torch.manual_seed(0)
    block, x = Block(12, heads=3, mlp_ratio=2), torch.randn(2, 7, 12)
    mixed = x + block.attn(block.norm1(x))
    expected = mixed + block.fc2(nn.functional.gelu(block.fc1(block.norm2(mixed))))
    torch.testing.assert_close(block(x), expected)


def test_transformers_start_with_zero_biases_and_repeat_with_a_seed() -> None:
    first: list[VisionTransformer] = []
    second: list[VisionTransformer] = []
    for models in (first, second):
        torch.manual_seed(3)
        models.append(VisionTransformer(width=16, depth=2, heads=2))
    state, again = first[0].state_dict(), second[0].state_dict()
    assert all(torch.equal(state[key], again[key]) for key in state)
    biases = [value for key, value in state.items() if key.endswith("bias")]
    assert len(biases) == 3 + 2 * (1 + 1 + 1 + 1 + 1 + 1) + 1
    assert not any(bias.any() for bias in biases)


def test_what_low_rank_methods_see_of_the_transformer() -> None:
    model = VisionTransformer(width=16, depth=1, heads=2)
    matrices = {key for key, value in model.state_dict().items() if is_matrix(key, value)}
    expected = {f"blocks.0.{name}.weight" for name in ("attn.qkv", "attn.proj", "fc1", "fc2")}
    assert matrices == expected
    state = GPT(width=16, depth=1, heads=2).state_dict()
    assert {key for key, value in state.items() if is_matrix(key, value)} == expected


def test_head_is_a_scaled_cosine() -> None:
    head = Head(torch.tensor([[3.0, 4.0], [0.0, -2.0]]), scale=10)
    features = torch.tensor([[1.0, 0.0], [0.0, 5.0]])
    torch.testing.assert_close(head(features), torch.tensor([[6.0, 0.0], [8.0, -10.0]]))
    torch.testing.assert_close(head(7 * features), head(features))
    assert not head.weight.requires_grad
    assert list(head.state_dict()) == ["weight"]


@pytest.fixture
def pair() -> tuple[nn.Module, Linearised]:
    torch.manual_seed(0)
    net = VisionTransformer(width=24, depth=2, heads=3).eval()
    return net, Linearised(net)


def moved(network: Linearised, by: float, seed: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {
        key: value + by * torch.randn(value.shape, generator=generator)
        for key, value in network.state_dict().items()
    }


def test_expansion_is_the_network_at_its_start_and_its_tangent(
    pair: tuple[nn.Module, Linearised],
) -> None:
    net, expansion = pair
    net, expansion = net.double(), expansion.double()
    x = torch.randn(2, 3, 32, 32, dtype=torch.double)
    torch.testing.assert_close(expansion(x), net(x))
    assert list(expansion.state_dict()) == [f"net.{key}" for key in net.state_dict()]
    errors = []
    for by in (1e-3, 1e-4):
        there = {key: value.double() for key, value in moved(expansion, by, 1).items()}
        bare = {key.removeprefix("net."): value for key, value in there.items()}
        exact = functional_call(net, bare, (x,))
        errors.append(float((functional_call(expansion, there, (x,)) - exact).detach().norm()))
    assert errors[1] == pytest.approx(errors[0] / 100, rel=0.1)  # of second order


def test_expansion_of_an_average_is_the_average(pair: tuple[nn.Module, Linearised]) -> None:
    _, expansion = pair
    x = torch.randn(2, 3, 32, 32)
    ends = [moved(expansion, 0.05, seed) for seed in (1, 2)]
    outs = [functional_call(expansion, end, (x,)) for end in ends]
    middle = functional_call(expansion, ml.merge("average", ends), (x,))
    torch.testing.assert_close(middle, (outs[0] + outs[1]) / 2, atol=1e-4, rtol=1e-4)


def test_expansion_is_trained_at_its_weights_and_keeps_its_start(
    pair: tuple[nn.Module, Linearised],
) -> None:
    """The features are linear in the weights, so the gradient does not depend on them."""
    _, expansion = pair
    x = torch.randn(2, 3, 32, 32)
    gradients = []
    for by in (0.0, 0.05):
        expansion.load_state_dict(moved(expansion, by, 3))
        expansion.zero_grad()
        expansion(x).sum().backward()
        gradients.append([p.grad.clone() for p in expansion.parameters() if p.grad is not None])
    torch.testing.assert_close(*gradients, atol=1e-4, rtol=1e-3)
    assert any(float(gradient.norm()) > 0 for gradient in gradients[0])


def test_loss_of_an_expansion_is_convex_under_a_linear_head_but_not_under_a_cosine(
    pair: tuple[nn.Module, Linearised],
) -> None:
    """Cross-entropy at the middle of long chords in the weights. Our heads are cosines."""
    _, expansion = pair
    expansion = expansion.double()
    generator = torch.Generator().manual_seed(0)
    x, labels = torch.randn(8, 3, 32, 32, generator=generator).double(), torch.arange(8) % 4
    weight = torch.randn(4, 24, generator=generator).double()
    heads: dict[str, Callable[[Tensor], Tensor]] = {
        "linear": lambda features: features @ weight.T,
        "cosine": Head(weight),
    }
    room: dict[str, list[float]] = {name: [] for name in heads}  # between chord and loss
    for seed in range(12):
        ends = [moved(expansion, 0.3, 2 * seed + end) for end in (0, 1)]
        middle = {key: (value + ends[1][key]) / 2 for key, value in ends[0].items()}
        features = [functional_call(expansion, state, (x,)).detach() for state in (*ends, middle)]
        for name, head in heads.items():
            losses = [float(nn.functional.cross_entropy(head(out), labels)) for out in features]
            room[name].append((losses[0] + losses[1]) / 2 - losses[2])
    assert min(room["linear"]) > 0
    assert min(room["cosine"]) < -0.1 < 0.1 < max(room["cosine"])


@pytest.mark.parametrize("model", ["vit", "gpt", "resnet18"])
def test_matrices_are_as_their_names_say(model: str) -> None:
    """So results that were measured by names stay what they are."""
    network = build_model(model)
    state = network.state_dict()
    decide = Matrices(is_matrix, state, layer_kinds(network))
    for key, tensor in state.items():
        assert decide(key, tensor) == is_matrix(key, tensor), key
