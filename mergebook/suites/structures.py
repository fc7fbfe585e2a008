"""Which axes of the testbed's models belong together, for `mergelib.structure`."""

from collections.abc import Callable

from torch import nn

from mergebook.suites import models
from mergelib.structure import Features, Scope, describes


@describes(models.Attention)
def _attention(attention: models.Attention, scope: Scope, x: Features | None) -> Features | None:
    size = attention.proj.in_features // attention.heads
    query, key, value = scope.attention(attention.heads, size)
    scope("qkv", x, out=query + key + value)
    return scope.chain(value, "proj")


@describes(models.Block)
def _block(block: models.Block, scope: Scope, x: Features | None) -> Features | None:
    x = scope.add(x, scope.chain(x, "norm1", "attn"))
    return scope.add(x, scope.chain(x, "norm2", "fc1", "fc2"))


@describes(models.VisionTransformer)
def _vision(net: models.VisionTransformer, scope: Scope, x: Features | None) -> Features | None:
    x = scope("stem", x)
    scope.declare("pos_embed", ("index", None), ("write", x))
    return scope.chain(x, "blocks", "norm")


@describes(models.GPT)
def _gpt(net: models.GPT, scope: Scope, x: Features | None) -> Features:
    x = scope("token_embed", None)
    scope.declare("pos_embed", ("index", None), ("write", x))
    x = scope.chain(x, "blocks", "norm")
    logits = scope.units(net.token_embed.num_embeddings)
    scope.declare("token_embed.weight", ("write", logits), ("read", x))  # tied
    return logits


def _chain(*parts: str) -> Callable[[nn.Module, Scope, Features | None], Features | None]:
    return lambda net, scope, x: scope.chain(x, *parts)


describes(models.MLP)(_chain("layers"))
describes(models.ResNet18)(_chain("net"))
describes(models.ResNet)(_chain("stem", "stages"))


@describes(models.BasicBlock)
def _basic_block(block: models.BasicBlock, scope: Scope, x: Features | None) -> Features | None:
    y = scope.chain(x, "conv1", "bn1", "conv2", "bn2")
    return scope.add(x if block.downsample is None else scope("downsample", x), y)


@describes(models.Head)
def _head(head: models.Head, scope: Scope, x: Features | None) -> Features:
    logits = scope.units(len(head.weight))
    scope.declare("weight", ("write", logits), ("read", x))
    return logits


@describes("mergebook.suites.families.sentences.SentenceEncoder")
def _sentence_encoder(net: nn.Module, scope: Scope, x: Features | None) -> Features | None:
    stream: Features | None = scope("bert", x)[0]
    return stream
