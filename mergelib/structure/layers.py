"""Descriptions of the layers of ``torch.nn``."""

from typing import Any

from torch import nn
from torch.nn.modules import batchnorm, conv, dropout, instancenorm, pooling

from mergelib.structure.trace import Features, Scope, describes


@describes(nn.Linear)
def _linear(
    linear: nn.Linear, scope: Scope, x: Features | None, out: Features | None = None
) -> Features:
    out = out or scope.units(linear.out_features)
    scope.declare("weight", ("write", out), ("read", x))
    scope.declare("bias", ("write", out))
    return out


@describes(nn.Conv1d, nn.Conv2d, nn.Conv3d)
@describes(nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
def _convolution(layer: conv._ConvNd, scope: Scope, x: Features | None) -> Features | None:
    kernel: list[Any] = [("kernel", None)] * len(layer.kernel_size)
    if not layer.transposed and layer.groups == layer.in_channels == layer.out_channels > 1:
        scope.declare("weight", ("scale", x), ("kernel", None), *kernel)  # depthwise
        scope.declare("bias", ("scale", x))
        return x
    if layer.groups > 1:
        raise ValueError(f"grouped convolutions are not supported, as in {layer}")
    out = scope.units(layer.out_channels)
    axes: list[Any] = [("write", out), ("read", x)]
    scope.declare("weight", *(axes[::-1] if layer.transposed else axes), *kernel)
    scope.declare("bias", ("write", out))
    return out


@describes(nn.Embedding)
def _embedding(table: nn.Embedding, scope: Scope, x: Features | None) -> Features:
    out = scope.units(table.embedding_dim)
    scope.declare("weight", ("index", None), ("write", out))
    return out


@describes("timm.layers.norm.LayerNorm")
@describes(batchnorm._BatchNorm, instancenorm._InstanceNorm, nn.LayerNorm, nn.RMSNorm, nn.GroupNorm)
def _norm(norm: Any, scope: Scope, x: Features | None) -> Features | None:
    for name in ("weight", "running_mean", "running_var", "bias"):
        if hasattr(norm, name):
            scope.declare(name, ("shift" if name == "bias" else "scale", x))
    if isinstance(norm, nn.LayerNorm):
        return scope.behind_layer_norm(x)
    groups = norm.num_groups if isinstance(norm, nn.GroupNorm) else 1
    if not isinstance(norm, nn.RMSNorm | nn.GroupNorm) or groups == getattr(
        norm, "num_channels", 0
    ):
        return x
    x = scope.normalise(x)
    return x if x is None or groups == 1 else scope.pin(x)  # neighbours share statistics


@describes(nn.PReLU)
def _prelu(layer: nn.PReLU, scope: Scope, x: Features | None) -> Features | None:
    scope.declare("weight", ("scale", x if layer.num_parameters > 1 else None))
    return x


@describes(nn.MultiheadAttention)
def _attention(layer: nn.MultiheadAttention, scope: Scope, x: Features | None) -> Features:
    """Self-attention with equal widths of queries, keys and values."""
    query, key, value = scope.attention(layer.num_heads, layer.head_dim)
    scope.declare("in_proj_weight", ("write", query + key + value), ("read", x))
    scope.declare("in_proj_bias", ("write", query + key + value))
    out = scope.units(layer.embed_dim)
    scope.declare("out_proj.weight", ("write", out), ("read", value))
    scope.declare("out_proj.bias", ("write", out))
    return out


@describes(nn.Sequential, nn.ModuleList)  # lists whose owner's forward applies them in order
def _chain(chain: nn.Module, scope: Scope, x: Features | None) -> Features | None:
    return scope.chain(x, *chain._modules)  # a layer that is used twice comes twice


@describes(nn.Flatten)
def _flatten(layer: nn.Flatten, scope: Scope, x: Features | None) -> Features | None:
    return scope.flatten(x)


@describes(
    *(nn.Identity, nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.ELU, nn.SELU, nn.CELU, nn.GELU, nn.SiLU),
    *(nn.Mish, nn.Sigmoid, nn.Tanh, nn.Softplus, nn.Softsign, nn.Hardswish, nn.Hardsigmoid),
    *(nn.Hardtanh, nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, dropout.AlphaDropout),
    *(pooling.MaxPool1d, pooling.MaxPool2d, pooling.MaxPool3d, pooling.AvgPool1d),
    *(pooling.AvgPool2d, pooling.AvgPool3d, nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d),
    *(nn.AdaptiveAvgPool3d, nn.AdaptiveMaxPool1d, nn.AdaptiveMaxPool2d, nn.AdaptiveMaxPool3d),
    *(nn.Upsample, nn.ZeroPad2d),
)
def _each_feature_alone(layer: nn.Module, scope: Scope, x: Features | None) -> Features | None:
    return x
