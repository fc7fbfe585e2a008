"""BYOL's loss, target and training by hand, and the probes that judge what it learns."""

import copy
import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from sklearn.linear_model import LogisticRegression
from torch import Tensor, nn

from mergebook.sail.costs import count_flops, perceptron_flops
from mergebook.sail.networks.byol import BYOL, linear_probe, train_byol, two_views
from mergebook.suites.heads import features
from mergebook.suites.loading import load_suite
from mergebook.suites.models import ResNet, scale_pixels
from mergelib.activations import recalibrate_batchnorm
from mergelib.evaluation.tasks import Split
from mergelib.training import seeded, shuffled


def make_body() -> nn.Module:
    with seeded(0):
        return ResNet(width=4, blocks=(1, 1))


def pictures(count: int) -> Tensor:
    return torch.rand(count, 3, 32, 32, generator=torch.Generator().manual_seed(1)) * 2 - 1


def learn(body: nn.Module, inputs: Tensor, **options: Any) -> dict[int, dict[str, Tensor]]:
    usual = {"steps": 2, "batch_size": 8, "learning_rate": 1e-2, "kept_at": [2], "seed": 0}
    return train_byol(body, inputs, **{**usual, **options})


def test_the_loss_by_hand() -> None:
    """The online network swaps two numbers, and the target passes its view on as it is."""
    network = BYOL(nn.Identity(), 2)
    swap = nn.Linear(2, 2, bias=False)
    swap.weight = nn.Parameter(torch.tensor([[0.0, 1.0], [1.0, 0.0]]))
    network.online = nn.Sequential(swap)
    network.predictor = nn.Sequential()
    network.target = nn.Sequential()
    first = torch.tensor([[3.0, 0.0], [1.0, 1.0]])
    second = torch.tensor([[0.0, 5.0], [3.0, 4.0]])
    # Swapped (0, 3), (1, 1) against (0, 5), (3, 4): cosines 1 and 7/(√2·5). The other way round
    # (5, 0), (4, 3) against (3, 0), (1, 1): the same two.
    one_way = ((2 - 2 * 1) + (2 - 2 * 7 / (5 * math.sqrt(2)))) / 2
    assert network.loss(first, second).item() == pytest.approx(2 * one_way, abs=1e-6)
    # Against the opposite views every cosine changes its sign, and 2 − 2 cos becomes 4 less it.
    assert network.loss(first, -second).item() == pytest.approx(8 - 2 * one_way)


def test_the_loss_is_symmetric_and_asks_the_target_of_the_other_view() -> None:
    network = BYOL(nn.Flatten(), 3).train()
    first, second = torch.randn(2, 6, 3, generator=torch.Generator().manual_seed(0))
    assert network.loss(first, second).item() == pytest.approx(network.loss(second, first).item())
    with torch.no_grad():
        one, two = (network.predictor(network.online(view)) for view in (first, second))
        targets = [network.target(view) for view in (second, first)]
    by_hand = sum(
        (F.normalize(p, dim=1) - F.normalize(t, dim=1)).square().sum(1).mean()
        for p, t in zip((one, two), targets, strict=True)
    )
    assert network.loss(first, second).item() == pytest.approx(float(by_hand), rel=1e-5)


def test_the_target_has_no_gradient_and_follows_exactly() -> None:
    network = BYOL(make_body(), 8, momentum=0.75).train()
    network.loss(*two_views(pictures(4), torch.Generator().manual_seed(0))).backward()
    assert all(p.grad is None and not p.requires_grad for p in network.target.parameters())
    moving = [*network.online.parameters(), *network.predictor.parameters()]
    assert all(p.grad is not None for p in moving)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in network.online.parameters():  # quarters, so that nothing is rounded
            drawn = torch.randint(-8, 8, parameter.shape, generator=generator)
            parameter.copy_(drawn / 4)
        for parameter in network.target.parameters():
            drawn = torch.randint(-8, 8, parameter.shape, generator=generator)
            parameter.copy_(drawn / 4)
    old, online = (copy.deepcopy(part.state_dict()) for part in (network.target, network.online))
    network.update(0.0)
    names = [name for name, _ in network.target.named_parameters()]
    now = network.target.state_dict()
    assert all(torch.equal(now[name], 0.75 * old[name] + 0.25 * online[name]) for name in names)
    assert all(torch.equal(network.online.state_dict()[name], online[name]) for name in names)
    buffers = set(now) - set(names)
    assert buffers
    assert all(torch.equal(now[name], old[name]) for name in buffers), "they are its own"
    before = {name: now[name].clone() for name in names}
    network.update(1.0)
    assert all(torch.equal(now[name], before[name]) for name in names), "it stands still at τ = 1"


def test_the_momentum_goes_from_its_base_to_one_along_a_cosine() -> None:
    network = BYOL(nn.Identity(), 2)
    for share, momentum in ((0.0, 0.996), (0.5, 0.998), (1 / 3, 0.997), (1.0, 1.0)):
        for fast in network.online.parameters():
            nn.init.zeros_(fast)
        for slow in network.target.parameters():
            nn.init.ones_(slow)
        network.update(share)
        for slow in network.target.parameters():
            assert torch.allclose(slow, torch.tensor(momentum)), "cos 60° is ½"


def test_two_views_differ_and_repeat() -> None:
    images = pictures(5)
    first, second = two_views(images, torch.Generator().manual_seed(0))
    again = two_views(images, torch.Generator().manual_seed(0))
    assert torch.equal(first, again[0])
    assert torch.equal(second, again[1])
    assert (first - second).abs().flatten(1).mean(1).min() > 0.05


def test_training_repeats_and_leaves_the_body_alone() -> None:
    body, inputs = make_body(), pictures(20)
    before = copy.deepcopy(body.state_dict())
    states = []
    for seed, noise in ((0, 1), (0, 2), (1, 1)):
        torch.manual_seed(noise)  # what the caller drew before has no say
        states.append(learn(body, inputs, seed=seed, steps=4, kept_at=[1, 4]))
    once, again, other = states
    assert set(once) == {1, 4}
    assert all(torch.equal(once[step][key], again[step][key]) for step in once for key in before)
    assert not torch.equal(once[4]["stem.0.weight"], other[4]["stem.0.weight"])
    assert not torch.equal(once[4]["stem.0.weight"], once[1]["stem.0.weight"])
    assert all(torch.equal(value, before[key]) for key, value in body.state_dict().items())
    assert set(once[4]) == set(before)
    assert all(value.isfinite().all() for value in once[4].values()), "statistics and all"
    assert once[4]["stem.1.num_batches_tracked"] == 8, "two views a step"
    assert not any(value.requires_grad for value in once[4].values())


def test_training_is_the_papers_loop() -> None:
    """Algorithm 1: views, a step of Adam, and the target follows by the share k/K."""
    inputs = pictures(20)
    with seeded(0):
        network = BYOL(make_body(), 8, momentum=0.5).train()
    generator = torch.Generator().manual_seed(0)
    optimiser = torch.optim.Adam(network.parameters(), lr=1e-2, fused=True)
    for step, rows in enumerate(shuffled(20, 8, generator, steps=4)):
        optimiser.zero_grad()
        network.loss(*two_views(inputs[rows], generator)).backward()
        optimiser.step()
        network.update(step / 4)
    options = {"steps": 4, "kept_at": [4]}
    trained, still = (learn(make_body(), inputs, momentum=m, **options)[4] for m in (0.5, 1.0))
    for key, value in network.online[0].state_dict().items():
        assert torch.equal(trained[key], value), key
    assert not torch.allclose(trained["stem.0.weight"], still["stem.0.weight"], atol=1e-4)


def test_flops_of_a_step() -> None:
    """Online, a chain of layers trained on both views; of the target, the forward pass."""
    n, width, hidden, size = 4, 5, 128, 32
    body = nn.Sequential(nn.Flatten(), nn.Linear(3072, width))
    network = BYOL(body, width).train()
    generator = torch.Generator().manual_seed(0)

    def step() -> None:
        network.loss(*two_views(pictures(n), generator)).backward()

    online = perceptron_flops([3072, width, hidden, size, hidden, size], 2 * n)
    target = 2 * 2 * n * (3072 * width + width * hidden + hidden * size)
    assert count_flops(step) == online + target


def digits_of(part: str) -> Split:
    low, high = (getattr(task, part) for task in load_suite("digits2").tasks.values())
    labels = torch.cat([low.labels, high.labels + 5])
    return Split(scale_pixels(torch.cat([low.inputs, high.inputs])), labels)


def test_a_body_that_learned_is_probed_better() -> None:
    """Better, too, than at its start with batch norm's statistics measured on the pictures.

    Those alone change what is read from a random network, by as much as a short training may.
    """
    train, test = digits_of("train"), digits_of("test")
    with seeded(1):
        body = ResNet(width=4, blocks=(1, 1, 1))
    options = {"steps": 40, "batch_size": 48, "momentum": 0.9, "seed": 1}
    learned = learn(body, train.inputs, kept_at=[40], **options)[40]
    measured = recalibrate_batchnorm(body, body.state_dict(), train.inputs.split(100))
    scores = []
    for state in (body.state_dict(), measured, learned):
        network = copy.deepcopy(body)
        network.load_state_dict(state)
        parts = (Split(features(network, p.inputs, nn.Identity()), p.labels) for p in (train, test))
        scores += linear_probe(*parts)
    start, control, (loss, accuracy) = scores
    assert loss < 0.95 * min(start[0], control[0])
    assert accuracy > max(start[1], control[1])


def drawn_features(count: int, seed: int) -> Split:
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(3, (count,), generator=generator)
    noise = torch.randn(count, 4, generator=generator)
    return Split((noise + F.one_hot(labels, 4)) * torch.tensor([1.0, 5.0, 0.2, 1.0]) + 3, labels)


def test_the_probe_by_hand() -> None:
    """Standardised by the training rows, and a log-softmax of what scikit-learn fits to that."""
    train, test = drawn_features(60, 0), drawn_features(30, 1)
    mean, scale = train.inputs.double().mean(0), train.inputs.double().std(0, correction=0)
    x, y = ((part.inputs.double() - mean) / scale for part in (train, test))
    fitted = LogisticRegression(C=0.1, max_iter=1000).fit(x.numpy(), train.labels.numpy())
    logits = y @ torch.from_numpy(fitted.coef_).T + torch.from_numpy(fitted.intercept_)
    chosen = logits.log_softmax(1)[torch.arange(30), test.labels]
    ((loss, accuracy),) = linear_probe(train, test)
    assert loss == pytest.approx(-chosen.mean().item(), rel=1e-6)
    assert accuracy == (logits.argmax(1) == test.labels).double().mean().item()
    assert loss < math.log(3), "better than guessing"


def test_the_probe_of_labels_with_gaps() -> None:
    train, test = drawn_features(60, 0), drawn_features(30, 1)
    gaps = torch.tensor([2, 5, 40])
    renamed = (Split(part.inputs, gaps[part.labels]) for part in (train, test))
    assert linear_probe(*renamed) == linear_probe(train, test)


def test_strange_probes_are_refused() -> None:
    train = drawn_features(10, 0)
    with pytest.raises(ValueError, match="class 7 of the test rows is not among the training"):
        linear_probe(train, Split(train.inputs[:1], torch.tensor([7])))
