"""A small network with two experts, two tasks and their data, for tests of procedures."""

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import mergelib as ml

TASKS = ("a", "b")
METHODS: dict[str, dict[str, Any]] = {  # every procedure, with few steps
    "uniform_soup": {},
    "adamerging": {"steps": 3},
    "adarank": {"steps": 3},
    "concrete": {"steps": 3},
    "esm": {},
    "fisher": {},
    "frank_wolfe": {"steps": 2},
    "greedy_soup": {},
    "multitask": {"steps": 2},
    "surgery": {"steps": 2},
    "symerge": {"steps": 2},
    "cogram": {},
    "regmean": {},
    "regmean_plusplus": {},
}


class Scalar(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.ones(1))

    def forward(self, x: Tensor) -> Tensor:
        return self.w * x


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 8)
        self.norm = nn.BatchNorm1d(8)  # brings buffers, and a counter
        self.second = nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.second(torch.tanh(self.norm(self.first(x))))
        return output


class Case:
    """Attributes may be replaced; `adapt` takes them as they are then."""

    def __init__(self, names: Sequence[str] = TASKS) -> None:
        torch.manual_seed(0)
        self.model = Model()
        self.pretrained = {k: v.clone() for k, v in self.model.state_dict().items()}
        self.experts: Any = {
            name: {
                k: v + 0.5 * torch.rand(v.shape) if v.is_floating_point() else v + 1
                for k, v in self.pretrained.items()
            }
            for name in names
        }
        self.heads: Any = {task: nn.Linear(5, 3 + i) for i, task in enumerate(TASKS)}
        self.data: Any = {task: (torch.randn(20, 6), torch.randint(3, (20,))) for task in TASKS}

    def adapt(self, method: str, **options: Any) -> Any:
        given = {
            name: options.pop(name, getattr(self, name))
            for name in ("experts", "pretrained", "model", "heads", "data")
        }
        return ml.adapt(method, given.pop("experts"), **given, **options)


@pytest.fixture
def case() -> Case:
    return Case()
