"""Networks to merge by CoGraM, with experts and data, and the comparison with plain loops."""

import copy
from collections.abc import Callable, Mapping
from typing import Any

import pandas as pd
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import mergelib as ml
from tests.library.cogram.reference import LEVELS, Plain

ORDERS = ("sequential", "simultaneous")
ALL_LEVELS = (
    ("layer",),
    ("neuron",),
    ("weight",),
    ("layer", "neuron"),
    ("neuron", "weight"),
    LEVELS,
)
EXACT = ["iteration", "layer", "level", "unit", "weight", "case", "accepted"]
State = dict[str, Tensor]


class Case:
    """A model, experts around a start, and data: everything that `cogram` takes.

    The start is in double precision, so that what comes back has all its digits.
    """

    def __init__(
        self,
        model: nn.Module,
        inputs: Tensor,
        classes: int,
        *,
        experts: int = 2,
        scale: float = 1.5,
        seed: int = 0,
    ) -> None:
        self.generator = torch.Generator().manual_seed(seed)
        self.model = model
        self.start = self.near(model.double().state_dict(), 0.0)
        self.experts = {"abc"[i]: self.near(self.start, scale) for i in range(experts)}
        shape = model(inputs).shape[:-1]
        labels = torch.randint(classes, shape, generator=self.generator)
        self.data: dict[str, tuple[Tensor, Tensor]] = {"t": (inputs, labels)}
        self.heads: dict[str, nn.Module] = {"t": nn.Identity()}

    def near(self, state: Mapping[str, Tensor], scale: float) -> State:
        """A copy with noise, relative to the size of each tensor; variances stay positive."""

        def moved(tensor: Tensor) -> Tensor:
            if not tensor.is_floating_point():
                return tensor.clone()
            noise = torch.randn(tensor.shape, generator=self.generator, dtype=torch.float64)
            size = tensor.square().mean().sqrt().clamp_min(0.2)
            return tensor + (0.3 * scale * size * noise).clamp(-0.5, 0.5)

        return {key: moved(tensor) for key, tensor in state.items()}

    def run(self, **options: Any) -> Any:
        names = ("model", "heads", "data", "start", "experts")
        given = {name: getattr(self, name) for name in names} | options
        return ml.adapt("cogram", given.pop("experts"), **given)

    def plain(
        self, layers: Mapping[str, bool], **options: Any
    ) -> tuple[State, list[dict[str, Any]]]:
        experts = list(self.experts.values())
        return Plain(
            self.model, self.start, experts, self.data, self.heads, layers, **options
        ).run()

    def loss(self, state: Mapping[str, Tensor]) -> float:
        """Cross-entropy by torch, in double precision."""
        model = copy.deepcopy(self.model).double().eval()
        model.load_state_dict(state)
        parts = []
        with torch.no_grad():
            for task, (x, y) in self.data.items():
                made = copy.deepcopy(self.heads[task]).double()(model(_double(x)))
                parts.append(F.cross_entropy(made.flatten(0, -2), y.flatten()).item())
        return sum(parts) / len(parts)


def _double(x: Tensor) -> Tensor:
    return x.double() if x.is_floating_point() else x


def agree(case: Case, layers: Mapping[str, bool], **options: Any) -> pd.DataFrame:
    """Both logs are equal, and both states; the log."""
    state, log = case.plain(layers, **options)
    if "units" in options:
        options["units"] = {name: torch.tensor(rows) for name, rows in options["units"].items()}
    merged = case.run(**options)
    history: pd.DataFrame = merged.history
    expected = pd.DataFrame(log)
    pd.testing.assert_frame_equal(history[EXACT], expected[EXACT], check_dtype=False)
    names = list(case.experts)
    for what, column in (("loss", "losses"), ("alpha", "alphas")):
        expected[[f"{what} {name}" for name in names]] = expected.pop(column).tolist()
    numbers = [
        *("spread", "before", "after"),
        *(f"{what} {name}" for what in ("loss", "alpha") for name in names),
    ]
    pd.testing.assert_frame_equal(history[numbers], expected[numbers], rtol=0, atol=1e-9)
    assert list(merged.state) == list(case.model.state_dict())
    for key, value in state.items():
        torch.testing.assert_close(merged.state[key], value, rtol=0, atol=1e-9)
    return history


def between(case: Case, **options: Any) -> dict[str, tuple[float, float]]:
    """Thresholds between which some layers and some neurons lie, and some do not."""
    spreads = [case.run(levels=(level,), **options).history["spread"] for level in LEVELS[:2]]
    low, high = spreads[1].quantile([0.3, 0.7])
    return {"layer": (0.0, spreads[0].median()), "neuron": (low, high)}


both_orders = pytest.mark.parametrize("order", ORDERS)


def chain(*modules: nn.Module) -> tuple[nn.Sequential, dict[str, bool]]:
    layers = {str(i): True for i, each in enumerate(modules) if isinstance(each, nn.Linear)}
    return nn.Sequential(*modules), layers


def perceptron() -> tuple[nn.Sequential, dict[str, bool]]:
    return chain(nn.Linear(6, 7), nn.ReLU(), nn.Linear(7, 5))


CHAINS: dict[str, Callable[[], tuple[nn.Sequential, dict[str, bool]]]] = {
    "two": perceptron,
    "three": lambda: chain(
        *(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 6), nn.SiLU(), nn.Linear(6, 5))
    ),
    "ending in a function": lambda: chain(
        nn.Linear(6, 5), nn.GELU(), nn.Dropout(0.5), nn.Linear(5, 5), nn.Tanh()
    ),
    "no bias, nothing between": lambda: chain(
        nn.Linear(6, 5, bias=False), nn.Linear(5, 5, bias=False)
    ),
    "in place": lambda: chain(
        nn.Linear(6, 5), nn.ReLU(inplace=True), nn.Linear(5, 5), nn.LeakyReLU(0.2, inplace=True)
    ),
    "norms between": lambda: (
        nn.Sequential(
            nn.BatchNorm1d(6), nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 4), nn.LayerNorm(4),
            nn.Softmax(-1), nn.Linear(4, 5),
        ),
        {"0": False, "1": True, "3": True, "4": False, "6": True},
    ),
}  # fmt: skip


def small(name: str = "two", **options: Any) -> tuple[Case, dict[str, bool]]:
    torch.manual_seed(0)
    model, layers = CHAINS[name]()
    return Case(model, torch.randn(15, 6, dtype=torch.float64), 5, **options), layers


class Shared(nn.Module):
    """A layer that runs twice, a table read by the model itself, two names of one weight."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(0.1 * torch.randn(6))
        self.twice = nn.Linear(6, 6)
        self.once = nn.Linear(6, 6)
        self.attend = nn.MultiheadAttention(6, 2, batch_first=True)
        self.out = nn.Linear(6, 6)
        self.tied = nn.Linear(6, 6, bias=False)
        self.tied.weight = self.out.weight

    def forward(self, x: Tensor) -> Tensor:
        x = self.twice(torch.relu(self.twice(x + self.table)))
        x = x + self.attend(x, x, x, need_weights=False)[0]
        made: Tensor = self.out(torch.relu(self.tied(self.once(x))))
        return made


class BasicBlock(nn.Module):
    """As torchvision's: it adds in place, and its ReLU works in place."""

    def __init__(self, channels: int, made: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, made, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(made)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(made, made, 3, padding=1, bias=False)
        self.downsample = nn.Conv2d(channels, made, 1, stride) if stride > 1 else None

    def forward(self, x: Tensor) -> Tensor:
        kept = x if self.downsample is None else self.downsample(x)
        out = self.conv2(self.relu(self.bn1(self.conv1(x))))
        out += kept
        output: Tensor = self.relu(out)
        return output


class Residual(nn.Module):
    """Its first ReLU changes, in place, what it adds in the end."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Linear(6, 5)
        self.block = nn.Sequential(nn.ReLU(inplace=True), nn.Linear(5, 5))
        self.out = nn.Linear(5, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        made: Tensor = self.out(self.block(x) + x)
        return made


class Positions(nn.Module):
    """Like many a language model's, its position table gives a row a place, not an example."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(9, 6), nn.Embedding(4, 6)
        self.out = nn.Linear(6, 5)

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.out(self.tokens(x) + self.places(torch.arange(x.shape[1])))
        return made


class Encoder(nn.Module):
    """Around PyTorch's encoder layer, which has a shortcut past its modules in evaluation."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(6, 2, 8, batch_first=True)
        self.out = nn.Linear(6, 5)

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.out(self.layer(x))
        return made


def numbers(*shape: int) -> Tensor:
    return torch.randn(shape, dtype=torch.float64)


def tokens() -> Tensor:
    return torch.randint(9, (5, 4))


GENERAL: dict[str, tuple[Callable[[], nn.Module], Callable[[], Tensor], dict[str, bool]]] = {
    "convolutions": (
        lambda: nn.Sequential(
            nn.Conv2d(2, 4, 3, stride=2, padding=1), nn.BatchNorm2d(4), nn.ReLU(),
            nn.Conv2d(4, 4, 2, groups=2, bias=False), nn.Flatten(), nn.Linear(16, 4),
        ),
        lambda: numbers(6, 2, 6, 6),
        {"0": True, "1": False, "3": True, "5": True},
    ),
    "padded, dilated, one-dimensional": (
        lambda: nn.Sequential(
            nn.Conv1d(2, 4, 3, padding=1, padding_mode="circular", groups=2), nn.GELU(),
            nn.Conv1d(4, 3, 2, dilation=2), nn.Flatten(), nn.Linear(12, 4),
        ),
        lambda: numbers(6, 2, 6),
        {"0": True, "2": True, "4": True},
    ),
    "one channel, in place": (
        lambda: nn.Sequential(
            nn.Conv2d(2, 1, 3), nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(4, 4)
        ),
        lambda: numbers(6, 2, 4, 4),
        {"0": True, "3": True},
    ),
    "residual": (
        lambda: nn.Sequential(
            BasicBlock(2, 3, 2), BasicBlock(3, 3, 1), nn.Flatten(), nn.Linear(12, 4)
        ),
        lambda: numbers(6, 2, 4, 4),
        {
            "0.downsample": True, "0.conv1": True, "0.bn1": False, "0.conv2": True,
            "1.conv1": True, "1.bn1": False, "1.conv2": True, "3": True,
        },
    ),
    "residual, in place": (
        Residual,
        lambda: numbers(7, 6),
        {"stem": True, "block.1": True, "out": True},
    ),
    "perceptron of torchvision": (
        lambda: pytest.importorskip("torchvision.ops").MLP(6, [5, 5]),
        lambda: numbers(7, 6),
        {"0": True, "3": True},
    ),
    "sequences": (
        lambda: nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 4)),
        lambda: numbers(6, 5, 3),
        {"0": True, "2": True},
    ),
    "a table of places": (
        Positions,
        tokens,
        {"tokens": False, "places": False, "out": True},
    ),
    "an encoder with a shortcut": (
        Encoder,
        lambda: numbers(5, 4, 6),
        {
            "layer.self_attn": False, "layer.norm1": False, "layer.linear1": True,
            "layer.linear2": True, "layer.norm2": False, "out": True,
            "layer.self_attn.out_proj": False,
        },
    ),
}  # fmt: skip


def general(name: str) -> tuple[Case, dict[str, bool]]:
    torch.manual_seed(0)
    make, inputs, layers = GENERAL[name]
    return Case(make().eval(), inputs(), 4), layers
