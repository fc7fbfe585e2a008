"""Descriptions of torchvision's ResNets and vision transformers."""

from typing import Any

from mergelib.structure.trace import Features, Scope, describes

RESNET = "torchvision.models.resnet"
TRANSFORMER = "torchvision.models.vision_transformer"


@describes(f"{RESNET}.BasicBlock", f"{RESNET}.Bottleneck")
def _block(block: Any, scope: Scope, x: Features | None) -> Features | None:
    third = ("conv3", "bn3") if hasattr(block, "conv3") else ()
    y = scope.chain(x, "conv1", "bn1", "conv2", "bn2", *third)
    return scope.add(x if block.downsample is None else scope("downsample", x), y)


@describes(f"{RESNET}.ResNet")
def _resnet(net: Any, scope: Scope, x: Features | None) -> Features | None:
    """The streams of the four stages are separate groups; the last one is returned."""
    stages = ("layer1", "layer2", "layer3", "layer4")
    x = scope.chain(x, "conv1", "bn1", "maxpool", *stages, "avgpool")
    return scope.chain(scope.flatten(x), "fc")


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
