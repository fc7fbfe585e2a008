"""Random tasks for the tests of the stability framework."""

import torch
from torch import Tensor

from mergebook.stability.theory.quadratics import Quadratics


def many(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def random_quadratics(seed: int, tasks: int = 3, size: int = 2) -> Quadratics:
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    roots, spreads, scale = draw(tasks, size, size), draw(tasks, size, size), draw(1).exp()
    return Quadratics(roots @ roots.mT, draw(tasks, size), scale * spreads @ spreads.mT, draw(size))
