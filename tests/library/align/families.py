"""A small model of every family that has a structure, with nothing left at zero or one."""

import copy
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from mergebook.suites import models
from mergelib.statedict import StateDict, lerp
from mergelib.structure import Structure

Build = Callable[[], nn.Module]


def chain() -> nn.Module:
    """Convolutions plain, depthwise and transposed, and a linear layer behind the flattening."""
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, stride=2),
        nn.BatchNorm2d(8),
        nn.PReLU(8),
        nn.Conv2d(8, 8, 3, groups=8),
        nn.GroupNorm(1, 8),
        nn.ConvTranspose2d(8, 12, 3),
        nn.InstanceNorm2d(12, affine=True),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        nn.BatchNorm1d(48),
        nn.Linear(48, 20),
        nn.RMSNorm(20),
        nn.GELU(),
        nn.Linear(20, 5),
    )


def torchvision_vit(layers: int = 2, classes: int = 5) -> nn.Module:
    package = pytest.importorskip("torchvision.models")
    model: nn.Module = package.VisionTransformer(32, 8, layers, 4, 32, 64, num_classes=classes)
    return model


def torchvision_resnet() -> nn.Module:
    package = pytest.importorskip("torchvision.models.resnet")
    sizes: dict[str, int] = {"num_classes": 5, "width_per_group": 16}
    model: nn.Module = package.ResNet(package.Bottleneck, [1, 1, 1, 1], **sizes)
    return model


def timm_resnet(block: str, **options: Any) -> nn.Module:
    """A member of timm's family, with narrow stages."""
    package = pytest.importorskip("timm.models.resnet")
    sizes: dict[str, Any] = {"channels": (16, 24, 32, 40), "num_classes": 5, "stem_width": 8}
    model: nn.Module = package.ResNet(getattr(package, block), [2, 1, 1, 1], **sizes, **options)
    return model


def timm_vit(**options: Any) -> nn.Module:
    package = pytest.importorskip("timm.models.vision_transformer")
    sizes: dict[str, int] = {"img_size": 32, "patch_size": 8, "embed_dim": 32, "num_heads": 4}
    model: nn.Module = package.VisionTransformer(depth=2, num_classes=5, **sizes, **options)
    return model


def resnet18() -> nn.Module:
    pytest.importorskip("torchvision")
    return models.ResNet18()


def bert(head: str) -> nn.Module:
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(
        vocab_size=50,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=48,
        max_position_embeddings=16,
    )
    config.num_labels = 3
    model: nn.Module = getattr(transformers, head)(config)
    return model


def gpt2(head: str) -> nn.Module:
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(
        vocab_size=50, n_positions=16, n_embd=32, n_layer=2, n_head=4, pad_token_id=0
    )
    config.num_labels = 3
    model: nn.Module = getattr(transformers, head)(config)
    return model


FAMILIES: dict[str, Build] = {
    "chain": chain,
    "mlp": lambda: models.MLP(24, 3),
    "mlp with head": lambda: nn.Sequential(models.MLP(24, 2), nn.Linear(24, 5)),
    "vit": lambda: models.VisionTransformer(32, 2, 4),
    "vit with head": lambda: nn.Sequential(
        models.VisionTransformer(32, 2, 4), models.Head(torch.randn(5, 32))
    ),
    "gpt": lambda: models.GPT(32, 2, 4, vocabulary=50, context=16),
    "resnet18": resnet18,
    "torchvision resnet": torchvision_resnet,
    "torchvision vit": torchvision_vit,
    "timm resnet": lambda: timm_resnet("BasicBlock"),
    "timm resnet d": lambda: timm_resnet("Bottleneck", stem_type="deep", avg_down=True),
    "timm vit": lambda: timm_vit(),
    "timm vit with all parts": lambda: timm_vit(
        reg_tokens=3, init_values=0.1, no_embed_class=True, global_pool="avg", pre_norm=True
    ),
    "bert": lambda: bert("BertModel"),
    "bert classifier": lambda: bert("BertForSequenceClassification"),
    "bert tagger": lambda: bert("BertForTokenClassification"),
    "bert masked": lambda: bert("BertForMaskedLM"),
    "gpt2": lambda: gpt2("GPT2LMHeadModel"),
    "gpt2 classifier": lambda: gpt2("GPT2ForSequenceClassification"),
}


def build(family: str, seed: int = 0) -> nn.Module:
    """The model in evaluation mode; norms, biases and running statistics are drawn too."""
    torch.manual_seed(seed)
    model = FAMILIES[family]().eval()
    with torch.no_grad():
        for tensor in [*model.parameters(), *model.buffers()]:
            if tensor.is_floating_point():
                tensor.add_(0.1 * torch.rand_like(tensor))
    return model


def weights(model: nn.Module) -> dict[str, Tensor]:
    """A copy of the state dict in which ties are kept."""
    return copy.deepcopy(dict(model.state_dict()))


def outputs(model: nn.Module, state: dict[str, Tensor], family: str) -> Tensor:
    """All that a model returns for fixed inputs, as one vector, with these weights."""
    generator = torch.Generator().manual_seed(0)
    own = weights(model)
    model.load_state_dict(state)
    with torch.no_grad():
        if family.startswith(("bert", "gpt")):
            result: Any = model(torch.randint(1, 50, (2, 12), generator=generator))
        else:
            dtype = next(model.parameters()).dtype
            result = model(torch.randn(2, 3, 32, 32, generator=generator, dtype=dtype))
    model.load_state_dict(own)
    if isinstance(result, Tensor):
        return result.flatten()
    return torch.cat([value.flatten() for value in result.values() if isinstance(value, Tensor)])


def inverted(structure: Structure, permutations: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Permutations that undo these on any state dict."""
    inverse = {name: permutation.argsort(-1) for name, permutation in permutations.items()}
    for name in permutations:
        heads = structure.group(name).within
        if heads in inverse:  # the row of an old head lies where that head went
            inverse[name] = inverse[name][inverse[heads]]
    return inverse


def barrier(loss: Callable[[StateDict], float], a: StateDict, b: StateDict) -> float:
    """How far the loss rises above the chord between two networks, at eleven points."""
    weights = torch.linspace(0, 1, 11).tolist()
    losses = [float(loss(lerp(a, b, weight))) for weight in weights]
    chord = [losses[0] + (losses[-1] - losses[0]) * weight for weight in weights]
    return float(max(value - line for value, line in zip(losses, chord, strict=True)))
