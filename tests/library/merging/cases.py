"""Models to merge, with all that a state dict may hold."""

import torch
from torch import Tensor

from mergelib import registry

State = dict[str, Tensor]
NAMES = registry.method_names()
DTYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64]


def make_family(dtype: torch.dtype = torch.float32, experts: int = 2) -> tuple[State, list[State]]:
    """A pretrained state dict and experts near it, with all that a state dict may hold."""
    generator = torch.Generator().manual_seed(0)

    def draw(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator)

    base = {
        "pos_embed": draw(5, 4),
        "layer.weight": draw(12, 9),
        "conv.weight": draw(3, 2, 3, 3),
        "turned": draw(4, 6).T,
        "bias": draw(9),
        "scalar": draw(),
        "empty": draw(0, 3),
    }

    def near(tensor: Tensor) -> Tensor:
        return (tensor + 0.1 * torch.randn(tensor.shape, generator=generator)).to(dtype)

    family = [{k: near(v) for k, v in base.items()} for _ in range(experts + 1)]
    pretrained, *tuned = [
        {**state, "turned": state["turned"].T.contiguous().T, "steps": torch.tensor(i)}
        for i, state in enumerate(family)
    ]
    return pretrained, tuned
