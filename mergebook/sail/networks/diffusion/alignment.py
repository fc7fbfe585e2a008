"""What pulls the tokens of a SiT towards a pretrained network's: REPA, and SAIL's appendix J."""

import torch.nn.functional as F
from torch import Tensor, nn

from mergebook.sail.networks.diffusion.networks import CHANNELS


class Projector(nn.Sequential):
    """From tokens ``(B, 16, width)`` to as many representations ``(B, 16, size)``, as in REPA."""

    def __init__(self, width: int, size: int) -> None:
        super().__init__(
            nn.Linear(width, 2 * width),
            nn.SiLU(),
            nn.Linear(2 * width, 2 * width),
            nn.SiLU(),
            nn.Linear(2 * width, size),
        )


class LatentToRepresentation(nn.Module):
    """f_P of appendix J: latents ``(B, 4, 8, 8)`` to a representation of each patch of 2x2."""

    def __init__(self, size: int, hidden: int = 32) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(CHANNELS, hidden, 3, padding=1),
            nn.GELU(),
            nn.Conv2d(hidden, 2 * hidden, 2, stride=2),
            nn.GELU(),
            nn.Conv2d(2 * hidden, size, 3, padding=1),
        )

    def forward(self, latents: Tensor) -> Tensor:
        tokens: Tensor = self.layers(latents).flatten(2).transpose(1, 2)
        return tokens


def repa_loss(projected: Tensor, wanted: Tensor) -> Tensor:
    """Mean of −cos over tokens, in -1..1 (REPA, Yu et al., 2024)."""
    return -F.cosine_similarity(projected, wanted, dim=-1).mean()


def align_loss(projected: Tensor, wanted: Tensor) -> Tensor:
    """Mean over tokens of ‖f_P(z) − f_A(h)‖² (SAIL, Eq. 16), over the size of a representation."""
    return F.mse_loss(projected, wanted.detach())
