"""Models in files, and what counts as the same."""

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from mergelib.io import save_state_dict
from mergelib.merging.applying import CHUNK

State = dict[str, Tensor]


def raw(tensor: Tensor) -> bytes:
    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def assert_same(actual: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> None:
    """Equal keys, kinds and bits."""
    assert set(actual) == set(expected)
    for key, tensor in expected.items():
        assert (actual[key].dtype, actual[key].shape) == (tensor.dtype, tensor.shape), key
        assert raw(actual[key]) == raw(tensor), key


def make_states(dtype: torch.dtype = torch.float32) -> list[State]:
    """A pretrained model and two experts, with a buffer, a scalar and odd sizes."""
    generator = torch.Generator().manual_seed(0)

    def draw(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator)

    base = {
        "embed.weight": draw(11, 6),
        "layer.weight": draw(24, 17),
        "long": draw(CHUNK + 3),
        "scalar": draw(),
        "empty": draw(0, 3),
    }
    states = [base, *({k: v + 0.1 * draw(*v.shape) for k, v in base.items()} for _ in range(2))]
    return [
        {k: v.to(dtype) for k, v in state.items()} | {"steps": torch.tensor([7 + i])}
        for i, state in enumerate(states)
    ]


def save_all(folder: Path, states: list[State]) -> list[Path]:
    paths = [folder / f"{name}.safetensors" for name in ("base", "a", "b")]
    for state, path in zip(states, paths, strict=True):
        save_state_dict(state, path, {"made": "by hand"})
    return paths
