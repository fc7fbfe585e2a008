"""The testbed's networks: images to features, under frozen heads, or texts to predictions."""

import copy
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, jvp
from torch.nn.attention import SDPBackend, sdpa_kernel

from mergelib.structure import Features, Scope, describes
from mergelib.training import seeded


def scale_pixels(pictures: Tensor) -> Tensor:
    """Images as the models want them: from uint8 of any shape to float32 in -1..1."""
    if pictures.dtype != torch.uint8:
        raise TypeError(f"pictures are {pictures.dtype}, expected torch.uint8 (0..255)")
    return pictures.float().div(127.5).sub_(1.0)


def to_tokens(codes: Tensor) -> Tensor:
    """Characters as the language models want them: from uint8 ``(B, N)`` to int64."""
    return codes.long()


class Attention(nn.Module):
    """Multi-head self-attention of ``(B, N, width)``; if ``causal``, no token sees a later one."""

    def __init__(self, width: int, heads: int, *, causal: bool = False) -> None:
        super().__init__()
        self.heads, self.causal = heads, causal
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        b, n, width = x.shape
        q, k, v = self.qkv(x).view(b, n, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        out: Tensor = self.proj(mixed.transpose(1, 2).reshape(b, n, width))
        return out


class Block(nn.Module):
    """A pre-norm transformer block."""

    def __init__(self, width: int, heads: int, mlp_ratio: int, *, causal: bool = False) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.attn = Attention(width, heads, causal=causal)
        self.norm2 = nn.LayerNorm(width)
        self.fc1 = nn.Linear(width, mlp_ratio * width)
        self.fc2 = nn.Linear(mlp_ratio * width, width)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.norm1(x))
        out: Tensor = x + self.fc2(F.gelu(self.fc1(self.norm2(x))))
        return out


class VisionTransformer(nn.Module):
    """A small ViT: images ``(B, 3, 32, 32)`` in -1..1 to the mean of 16 tokens ``(B, width)``."""

    def __init__(
        self, width: int = 160, depth: int = 4, heads: int = 5, mlp_ratio: int = 4
    ) -> None:
        super().__init__()
        self.width = width
        self.stem = nn.Sequential(
            nn.Conv2d(3, width // 4, 3, stride=2, padding=1),
            nn.GELU(),
            nn.Conv2d(width // 4, width // 2, 3, stride=2, padding=1),
            nn.GELU(),
            nn.Conv2d(width // 2, width, 3, stride=2, padding=1),
        )
        self.pos_embed = nn.Parameter(0.02 * torch.randn(16, width))
        self.blocks = nn.ModuleList([Block(width, heads, mlp_ratio) for _ in range(depth)])
        self.norm = nn.LayerNorm(width)
        _initialise(self)

    def forward(self, images: Tensor) -> Tensor:
        return self.tokens(images).mean(1)

    def tokens(self, images: Tensor) -> Tensor:
        """The normalised tokens ``(B, 16, width)``, row by row of the 4x4 patches."""
        x = self.stem(images).flatten(2).transpose(1, 2) + self.pos_embed
        for block in self.blocks:
            x = block(x)
        tokens: Tensor = self.norm(x)
        return tokens


class GPT(nn.Module):
    """A causal transformer: characters ``(B, N)`` to logits of the next by its token table."""

    def __init__(
        self,
        width: int = 96,
        depth: int = 4,
        heads: int = 4,
        mlp_ratio: int = 4,
        vocabulary: int = 128,
        context: int = 128,
    ) -> None:
        super().__init__()
        self.width = width
        self.token_embed = nn.Embedding(vocabulary, width)
        self.pos_embed = nn.Parameter(0.02 * torch.randn(context, width))
        self.blocks = nn.ModuleList(
            [Block(width, heads, mlp_ratio, causal=True) for _ in range(depth)]
        )
        self.norm = nn.LayerNorm(width)
        _initialise(self)

    def forward(self, characters: Tensor) -> Tensor:
        x = self.token_embed(characters) + self.pos_embed[: characters.shape[1]]
        for block in self.blocks:
            x = block(x)
        return F.linear(self.norm(x), self.token_embed.weight)


def _initialise(model: nn.Module) -> None:
    for module in model.modules():
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.init.trunc_normal_(module.weight, std=0.02)
        elif isinstance(module, nn.Conv2d):  # PyTorch's own start shrinks the signal too much
            nn.init.kaiming_normal_(module.weight, nonlinearity="relu")
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            nn.init.zeros_(parameter)


class MLP(nn.Module):
    """A multilayer perceptron on the flattened image; features are the last hidden layer."""

    def __init__(self, width: int = 128, depth: int = 2) -> None:
        super().__init__()
        self.width = width
        sizes = [3 * 32 * 32] + [width] * depth
        self.layers = nn.ModuleList([nn.Linear(a, b) for a, b in pairwise(sizes)])

    def forward(self, images: Tensor) -> Tensor:
        x = images.flatten(1)
        for layer in self.layers:
            x = F.gelu(layer(x))
        return x


class ResNet18(nn.Module):
    """torchvision's ResNet-18 with a 3x3 stem of some stride and no first pooling; 512 features."""

    def __init__(self, stride: int = 1) -> None:
        super().__init__()
        from torchvision.models import resnet18

        self.width = 512
        self.net = resnet18(weights=None)
        self.net.conv1 = nn.Conv2d(3, 64, 3, stride=stride, padding=1, bias=False)
        self.net.maxpool = nn.Identity()
        self.net.fc = nn.Identity()

    def forward(self, images: Tensor) -> Tensor:
        features: Tensor = self.net(images)
        return features


class ResNet(nn.Module):
    """torchvision's basic blocks: ``(B, 3, H, W)`` to ``(B, width · 2^(stages − 1))``."""

    def __init__(self, width: int = 16, blocks: Sequence[int] = (2, 2, 2, 2)) -> None:
        super().__init__()
        from torchvision.models.resnet import BasicBlock

        self.stem = nn.Sequential(
            nn.Conv2d(3, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU()
        )
        self.stages = nn.Sequential()
        self.width = width
        for stage, count in enumerate(blocks):
            channels, layers = width * 2**stage, []
            for block in range(count):
                step = 2 if stage and not block else 1
                down = None
                if self.width != channels:
                    point = nn.Conv2d(self.width, channels, 1, stride=step, bias=False)
                    down = nn.Sequential(point, nn.BatchNorm2d(channels))
                layers.append(BasicBlock(self.width, channels, step, down))
                self.width = channels
            self.stages.append(nn.Sequential(*layers))

    def forward(self, images: Tensor) -> Tensor:
        features: Tensor = self.stages(self.stem(images)).mean((2, 3))
        return features


def started_anew(model: nn.Module, seed: int) -> nn.Module:
    """A copy of a network with new initial weights, drawn as PyTorch draws them for each layer."""
    network = copy.deepcopy(model)
    with seeded(seed):
        for module in network.modules():
            if isinstance(module, nn.Linear | nn.Conv2d | nn.LayerNorm):
                module.reset_parameters()
    return network


class Linearised(nn.Module):
    """A network's first-order expansion in its weights: f(x; θ_0) + ∂f/∂θ (x; θ_0) · (θ − θ_0).

    Merges mix such experts' features (Ortiz-Jimenez et al., 2023). Its state dict is θ, in ``net``.
    """

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = copy.deepcopy(net)
        self._start = {name: value.detach().clone() for name, value in net.named_parameters()}

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "Linearised":
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        self._start = {name: fn(value) for name, value in self._start.items()}
        return self

    def forward(self, x: Tensor) -> Tensor:
        now = dict(self.net.named_parameters())
        moved = {name: now[name] - start for name, start in self._start.items()}
        with sdpa_kernel(SDPBackend.MATH):  # the other kernels have no forward derivative
            network = partial(functional_call, self.net, args=(x,))
            features, change = jvp(network, (self._start,), (moved,))[:2]
        out: Tensor = features + change
        return out


PICTURE_MODELS: dict[str, Callable[[], nn.Module]] = {
    "vit": VisionTransformer,
    "vit_small": lambda: VisionTransformer(width=96, depth=3, heads=3),
    "resnet18": ResNet18,
    "resnet18_strided": lambda: ResNet18(stride=2),
    "resnet18_narrow": lambda: ResNet(width=8),
    "mlp": MLP,
}
TEXT_MODELS: dict[str, Callable[[], nn.Module]] = {"gpt": GPT}


class Head(nn.Module):
    """A frozen cosine classifier, ``scale · cos(feature, class weight)``; ``(classes, width)``."""

    def __init__(self, weight: Tensor, scale: float = 20.0) -> None:
        super().__init__()
        self.scale = scale
        self.weight = nn.Parameter(F.normalize(weight, dim=1), requires_grad=False)

    def forward(self, features: Tensor) -> Tensor:
        return self.scale * F.normalize(features, dim=1) @ self.weight.T


# Which axes of their parameters belong together, for `mergelib.structure`.


@describes(Attention)
def _attention(attention: Attention, scope: Scope, x: Features | None) -> Features | None:
    size = attention.proj.in_features // attention.heads
    query, key, value = scope.attention(attention.heads, size)
    scope("qkv", x, out=query + key + value)
    return scope.chain(value, "proj")


@describes(Block)
def _block(block: Block, scope: Scope, x: Features | None) -> Features | None:
    x = scope.add(x, scope.chain(x, "norm1", "attn"))
    return scope.add(x, scope.chain(x, "norm2", "fc1", "fc2"))


@describes(VisionTransformer)
def _vision(net: VisionTransformer, scope: Scope, x: Features | None) -> Features | None:
    x = scope("stem", x)
    scope.declare("pos_embed", ("index", None), ("write", x))
    return scope.chain(x, "blocks", "norm")


@describes(GPT)
def _gpt(net: GPT, scope: Scope, x: Features | None) -> Features:
    x = scope("token_embed", None)
    scope.declare("pos_embed", ("index", None), ("write", x))
    x = scope.chain(x, "blocks", "norm")
    logits = scope.units(net.token_embed.num_embeddings)
    scope.declare("token_embed.weight", ("write", logits), ("read", x))  # tied
    return logits


def _chain(*parts: str) -> Callable[[nn.Module, Scope, Features | None], Features | None]:
    return lambda net, scope, x: scope.chain(x, *parts)


describes(MLP)(_chain("layers"))
describes(ResNet18)(_chain("net"))
describes(ResNet)(_chain("stem", "stages"))


@describes(Head)
def _head(head: Head, scope: Scope, x: Features | None) -> Features:
    logits = scope.units(len(head.weight))
    scope.declare("weight", ("write", logits), ("read", x))
    return logits
