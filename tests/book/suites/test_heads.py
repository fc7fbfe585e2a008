"""Few-shot heads by hand, from features in order."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mergebook.suites.heads import features, few_shot_head
from mergebook.suites.models import scale_pixels
from mergelib.evaluation.tasks import Split


class Corner(nn.Module):
    """Features are a picture's first two bytes, scaled."""

    def __init__(self) -> None:
        super().__init__()
        self.unused = nn.Parameter(torch.zeros(1))

    def forward(self, images: Tensor) -> Tensor:
        return images[:, 0, 0, :2]


def corners(pairs: list[tuple[int, int]], labels: list[int]) -> Split:
    images = torch.zeros(len(pairs), 3, 32, 32, dtype=torch.uint8)
    images[:, 0, 0, :2] = torch.tensor(pairs, dtype=torch.uint8)
    return Split(images, torch.tensor(labels))


def unit(x: float, y: float) -> Tensor:
    return torch.tensor([x, y]) / math.hypot(x, y)


def test_features_come_in_order() -> None:
    split = corners([(0, 255), (255, 255), (51, 102)], [0, 0, 0])
    expected = torch.tensor([[-1.0, 1], [1, 1], [-0.6, -0.2]])
    torch.testing.assert_close(features(Corner(), split.inputs, scale_pixels), expected)


def test_few_shot_head_by_hand() -> None:
    """Class 0 points to the mean of three directions, whatever their lengths."""
    pairs = [(255, 255), (255, 127), (102, 153), (0, 255)]
    split = corners(pairs, [0, 1, 0, 0])
    head = few_shot_head(Corner(), split, 2, transform=scale_pixels, shots=5, scale=7.0, seed=0)
    x = scale_pixels(torch.tensor(pairs, dtype=torch.uint8)[..., None])[..., 0]
    mean = F.normalize(x[[0, 2, 3]], dim=1).mean(0)
    torch.testing.assert_close(head.weight[0], mean / mean.norm())
    torch.testing.assert_close(head.weight[1], unit(1, -1 / 255))
    assert head.scale == 7
    torch.testing.assert_close(head(3 * head.weight[:1])[0, 0], torch.tensor(7.0))


def test_few_shot_head_picks_shots_of_each_class_by_seed() -> None:
    angles = torch.linspace(0, math.pi / 2, 20)
    pairs = [
        (round(127.5 + 127 * a.cos().item()), round(127.5 + 127 * a.sin().item())) for a in angles
    ]
    split = corners(pairs, [0] * 20)
    directions = F.normalize(features(Corner(), split.inputs, scale_pixels), dim=1)

    def picked(seed: int) -> int:
        head = few_shot_head(
            Corner(), split, 1, transform=scale_pixels, shots=1, scale=1, seed=seed
        )
        weight = head.weight[0]
        gaps = (directions - weight).norm(dim=1)
        assert gaps.min() < 1e-6, "one shot is one example"
        return int(gaps.argmin())

    assert picked(1) == picked(1)
    assert len({picked(seed) for seed in range(10)}) > 3


def test_few_shot_head_needs_examples() -> None:
    with pytest.raises(ValueError, match="class 1 has no example to build its head from"):
        few_shot_head(
            Corner(),
            corners([(0, 0)], [0]),
            2,
            transform=scale_pixels,
            shots=1,
            scale=1,
            seed=0,
        )
