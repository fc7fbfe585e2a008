"""Random weights other than a network's usual ones: rivals and controls of SAIL's starts."""

import math

import torch
from torch import nn

from mergebook.sail.measure.rates import Rates
from mergebook.suites.models import GPT
from mergelib.hashing import stable_seed
from mergelib.training import seeded


def drawn_as_published(net: nn.Module, seed: int) -> None:
    """Give a network random weights in place by the rules of its paper, where ours has others."""
    with seeded(stable_seed("drawn", seed)), torch.no_grad():
        for module in net.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
            elif isinstance(module, GPT):
                for name, weight in module.named_parameters():
                    if name.endswith(("attn.proj.weight", "fc2.weight")):
                        weight.div_(math.sqrt(2 * len(module.blocks)))


def scaled(net: nn.Module, rates: Rates) -> None:
    """Multiply a GPT's random weights in place: embeddings and all other matrices."""
    with torch.no_grad():
        for name, weight in net.named_parameters():
            if weight.dim() > 1:
                weight.mul_(rates.embeddings if "embed" in name else rates.matrices)


def drawn_alike(net: nn.Module, seed: int) -> None:
    """Redraw all weights in place from normal laws with each tensor's own mean and deviation."""
    with seeded(stable_seed("drawn alike", seed)), torch.no_grad():
        for weight in net.parameters():
            mean, deviation = weight.mean(), weight.std(correction=0)
            weight.copy_(mean + deviation * torch.randn_like(weight))
