"""Descriptions of the ResNets and vision transformers of torchvision and timm."""

from typing import Any

from mergelib.structure.trace import Features, Scope, describes

RESNET = "torchvision.models.resnet"
TRANSFORMER = "torchvision.models.vision_transformer"
TIMM, LAYERS = "timm.models", "timm.layers"


@describes(f"{RESNET}.BasicBlock", f"{RESNET}.Bottleneck")
@describes(f"{TIMM}.resnet.BasicBlock", f"{TIMM}.resnet.Bottleneck")
def _block(block: Any, scope: Scope, x: Features | None) -> Features | None:
    third = ("conv3", "bn3") if hasattr(block, "conv3") else ()
    y = scope.chain(x, "conv1", "bn1", "conv2", "bn2", *third)
    return scope.add(x if block.downsample is None else scope("downsample", x), y)


@describes(f"{RESNET}.ResNet", f"{TIMM}.resnet.ResNet")
def _resnet(net: Any, scope: Scope, x: Features | None) -> Features | None:
    """The streams of the four stages are separate groups; the last one is returned."""
    stages = ("layer1", "layer2", "layer3", "layer4")
    x = scope.chain(x, "conv1", "bn1", "maxpool", *stages)
    if hasattr(net, "avgpool"):  # timm's pooling leaves one place, and may repeat features
        x = scope.flatten(scope("avgpool", x))
    return scope.chain(x, "fc")


@describes(f"{TRANSFORMER}.EncoderBlock")
def _encoder_block(block: Any, scope: Scope, x: Features | None) -> Features | None:
    x = scope.add(x, scope.chain(x, "ln_1", "self_attention"))
    return scope.add(x, scope.chain(x, "ln_2", "mlp"))


@describes(f"{TRANSFORMER}.Encoder")
def _encoder(encoder: Any, scope: Scope, x: Features | None) -> Features | None:
    scope.declare("pos_embedding", ("index", None), ("index", None), ("write", x))
    return scope.chain(x, "layers", "ln")


@describes(f"{TRANSFORMER}.VisionTransformer")
def _vision_transformer(net: Any, scope: Scope, x: Features | None) -> Features | None:
    x = scope("conv_proj", x)
    scope.declare("class_token", ("index", None), ("index", None), ("write", x))
    return scope.chain(x, "encoder", "heads")


@describes(f"{TIMM}.vision_transformer.Block")
def _timm_block(block: Any, scope: Scope, x: Features | None) -> Features | None:
    x = scope.add(x, scope.chain(x, "norm1", "attn", "ls1"))
    return scope.add(x, scope.chain(x, "norm2", "mlp", "ls2"))


@describes(f"{LAYERS}.attention.Attention", f"{TIMM}.vision_transformer.Attention")
def _timm_attention(attention: Any, scope: Scope, x: Features | None) -> Features | None:
    query, key, value = scope.attention(attention.num_heads, attention.head_dim)
    scope("qkv", x, out=query + key + value)
    scope("q_norm", query)  # which every head would share, so that sizes do not fit
    return scope.chain(value, "norm", "proj")


@describes(f"{LAYERS}.layer_scale.LayerScale", f"{TIMM}.vision_transformer.LayerScale")
def _layer_scale(layer: Any, scope: Scope, x: Features | None) -> Features | None:
    scope.declare("gamma", ("scale", x))
    return x


@describes(f"{LAYERS}.mlp.Mlp")
def _mlp(mlp: Any, scope: Scope, x: Features | None) -> Features | None:
    return scope.chain(x, "fc1", "norm", "fc2")


@describes(f"{LAYERS}.patch_embed.PatchEmbed")
def _patch_embed(layer: Any, scope: Scope, x: Features | None) -> Features | None:
    return scope.chain(x, "proj", "norm")


@describes(f"{TIMM}.vision_transformer.VisionTransformer")
def _timm_transformer(net: Any, scope: Scope, x: Features | None) -> Features | None:
    x = scope("patch_embed", x)
    for token in ("cls_token", "reg_token", "pos_embed"):
        scope.declare(token, ("index", None), ("index", None), ("write", x))
    return scope.chain(x, "norm_pre", "blocks", "norm", "fc_norm", "head")
