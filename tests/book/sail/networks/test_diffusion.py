"""SiT grows without a change, the flow draws what it should, alignment pulls where it says."""

import math

import pytest
import torch
from torch import Tensor, nn

import mergelib as ml
from mergebook.sail.networks.diffusion import (
    AutoEncoder,
    LatentToRepresentation,
    Projector,
    SiT,
    draw,
    on_the_way,
    repa_loss,
    velocity_loss,
)
from mergelib.structure import structure_of
from mergelib.training import make_optimiser, train


def noise(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def opened(width: int = 32, depth: int = 2, heads: int = 2) -> SiT:
    """A SiT whose gates are not closed, in float64."""
    net = SiT(width, depth, heads)
    with torch.no_grad():
        for number, parameter in enumerate(net.parameters()):
            parameter.add_(0.1 * noise(*parameter.shape, seed=number))
    return net.double()


BATCH = noise(5, 4, 8, 8).double(), torch.linspace(0, 1, 5).double(), torch.arange(6, 11)


def test_a_sit_begins_with_closed_gates_and_without_motion() -> None:
    net = SiT(32, 2, 2).double()
    assert torch.equal(net(*BATCH), torch.zeros(5, 4, 8, 8).double())
    velocities, tokens = net.with_tokens(*BATCH, block=1)
    assert torch.equal(velocities, net(*BATCH))
    assert tokens.shape == (5, 16, 32)
    assert len(net.pos_embed.unique(dim=0)) == 16, "every patch knows its place"


def test_an_opened_sit_sees_patch_time_and_class() -> None:
    net, (x, times, labels) = opened(), BATCH
    seen = net(x, times, labels)
    assert not torch.allclose(seen, net(x, times.flip(0), labels))
    assert not torch.allclose(seen, net(x, times, labels.flip(0)))
    other = x.clone()
    other[:, :, 6:, 2:4] += 1  # the patch in row 3, column 1
    first = [net.with_tokens(rows, times, labels, block=0)[1] for rows in (x, other)]
    assert (first[0] != first[1]).any(-1).any(0).nonzero().flatten().tolist() == [13]
    with pytest.raises(ValueError, match="width is 30, expected a multiple of 4"):
        SiT(30, 1, 2)


def test_patches_come_back_where_they_were() -> None:
    net = SiT(16, 1, 1)
    with torch.no_grad():  # the tokens are the patches, and nothing is done to them
        net.embed.weight.copy_(torch.eye(16))
        net.pos_embed.zero_()
        net.out.weight.copy_(torch.eye(16))
    net.norm = nn.Identity()  # type: ignore[assignment]
    assert torch.allclose(
        net(*(part.float() if part.is_floating_point() else part for part in BATCH)),
        BATCH[0].float(),
    )


@pytest.mark.parametrize(
    ("width", "depth", "heads"), [(64, 2, 2), (64, 2, 4), (96, 2, 3), (64, 5, 4)]
)
def test_a_sit_grows_by_whole_multiples_and_in_depth(width: int, depth: int, heads: int) -> None:
    source, target = opened(), SiT(width, depth, heads).double()
    target.load_state_dict(ml.grow(source, target, noise=0.1))
    assert torch.allclose(target(*BATCH), source(*BATCH), atol=1e-12)
    target(*BATCH).square().mean().backward()
    for number in range(depth):
        gradient = target.get_parameter(f"blocks.{number}.modulation.weight").grad
        assert gradient is not None
        assert bool(gradient.any()), "a new block is closed, and not for ever"


def test_a_sit_does_not_grow_where_its_function_would_be_lost() -> None:
    source = opened()
    with pytest.raises(
        ValueError, match=r"'embed' is multiplied unit by unit .*'modulation.weight'"
    ):
        ml.grow(source, SiT(48, 2, 2).double(), width="mean")
    with pytest.raises(ValueError, match=r"'embed' grows from 32 to 48.* equally many copies"):
        ml.grow(source, SiT(48, 2, 2).double())
    with pytest.raises(ValueError, match="'label"):
        ml.grow(source, SiT(64, 2, 2, classes=11).double())


def test_gates_belong_to_the_stream() -> None:
    structure = structure_of(SiT(32, 2, 2))
    assert [*structure.gates()] == [
        "blocks.0.modulation.weight",
        "blocks.1.modulation.weight",
        "modulation.weight",
    ]
    assert structure.shape("blocks.0.modulation.weight") == (6 * 32, 32)


def test_an_autoencoder_learns_to_give_back() -> None:
    pictures = noise(8, 3, 4, 4, seed=1).repeat_interleave(8, 2).repeat_interleave(8, 3)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        coder = AutoEncoder(8)
    assert coder[0](pictures).shape == (8, 4, 8, 8)
    assert coder(pictures).shape == pictures.shape
    losses = train(
        coder,
        range(60),
        lambda _: (coder(pictures) - pictures).square().mean(),
        make_optimiser(coder, "adam", 1e-2),
    )
    assert losses[-1] < 0.3 * losses[0]


def gaussian(mean: float, spread: float):  # type: ignore[no-untyped-def]
    """The mean velocity where data are N(mean, spread²), in closed form."""

    def velocity(x: Tensor, times: Tensor, labels: Tensor) -> Tensor:
        t = times.view(-1, 1)
        variance = (1 - t) ** 2 * spread**2 + t**2
        slope = (t - (1 - t) * spread**2) / variance
        return -mean + slope * (x - (1 - t) * mean)

    return velocity


def test_exact_velocities_draw_the_data() -> None:
    generator = torch.Generator().manual_seed(0)
    velocity = gaussian(2.0, 0.5)
    drawn = draw(velocity, torch.zeros(4000), (1,), steps=200, generator=generator)
    error = 1 / math.sqrt(4000)
    assert float(drawn.mean()) == pytest.approx(2.0, abs=4 * 0.5 * error)
    assert float(drawn.std()) == pytest.approx(0.5, abs=4 * 0.5 * error)


def test_no_velocities_have_a_lower_loss_than_the_exact_ones() -> None:
    x, e, times = 2 + 0.5 * noise(20_000, 1), noise(20_000, 1, seed=1), torch.rand(20_000)
    moved = on_the_way(x, e, times)
    exact = gaussian(2.0, 0.5)(moved, times, times)
    best = velocity_loss(exact, x, e)
    for other in (exact + 0.1, 0.9 * exact, exact + 0.1 * moved):
        assert velocity_loss(other, x, e) > best
    assert torch.equal(on_the_way(x, e, torch.zeros(20_000)), x)
    assert torch.equal(on_the_way(x, e, torch.ones(20_000)), e)


def test_alignment_is_what_it_says() -> None:
    a, b = noise(3, 16, 5), noise(3, 16, 5, seed=1)
    assert float(repa_loss(a, 2 * a)) == pytest.approx(-1)
    assert float(repa_loss(a, -a)) == pytest.approx(1)
    cosines = [
        x @ y / (x.norm() * y.norm()) for x, y in zip(a.view(-1, 5), b.view(-1, 5), strict=True)
    ]
    assert float(repa_loss(a, b)) == pytest.approx(-float(sum(cosines)) / 48, abs=1e-6)


def test_alignment_collapses_if_its_target_learns_too() -> None:
    """Which is why f_P is frozen; without that a constant is as good as anything."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        represent, project = LatentToRepresentation(6, 8), Projector(12, 6)
    latents, tokens = noise(16, 4, 8, 8), noise(16, 16, 12, seed=1)  # know nothing of each other
    both = nn.ModuleList([represent, project])

    def learned(_: int) -> Tensor:
        gap: Tensor = project(tokens) - represent(latents)
        return gap.square().mean()

    spread = float(represent(latents).detach().std())
    losses = train(both, range(200), learned, make_optimiser(both, "adam", 1e-2))
    assert losses[-1] < 0.05 * losses[0]
    assert float(represent(latents).detach().std()) < 0.5 * spread
