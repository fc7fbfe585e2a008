"""Recognise adapter files by their structure.

An adapter's update is a product or another nonlinear function of its tensors, so the average of
these tensors is not an adapter of the average. Scales of activations (IA³) and single vectors are
linear and pass.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Set
from math import prod

from torch import Tensor

# LoRA and DoRA as PEFT, diffusers, kohya and torchtune name them; LoHa and LoKr.
_NAMED = re.compile(
    r"(^|[._])(lora_(a|b|embedding_a|embedding_b|magnitude_vector|down|up)|lora\.(down|up)"
    r"|(hada|lokr)_[wt][12]\w*)(\.|$)",
    re.IGNORECASE,
)
_WRAPPED = "base_model."  # before all keys that PEFT saves
_OWN = re.compile(r"\.(weight|bias|default)$")

Model = Mapping[str, Tensor]


def factors_of(model: Model, base: Model, selected: Set[str]) -> list[str]:
    """Return the selected keys of an adapter's tensors; only keys and shapes are read."""
    keys = [key for key in model if key in selected and isinstance(model[key], Tensor)]
    named = [key for key in keys if _NAMED.search(key)]
    below = _below_leaves([key for key in keys if key not in base], model, base)
    if named or below:
        return named or below
    shapes = {key: tuple(model[key].shape) for key in keys}
    if keys and all(key.startswith(_WRAPPED) for key in keys):
        return _wrapped(shapes, narrowed=len(keys) < len(model))
    return _scaled(shapes) or _paired(shapes)


def _below_leaves(keys: list[str], model: Model, base: Model) -> list[str]:
    """Return tensors inside a single layer of ``base``: modules in it, or several matrices."""
    leaves = {key.rpartition(".")[0] for key in base}
    leaves -= {leaf[: dot.start()] for leaf in leaves for dot in re.finditer(r"\.", leaf)}
    by_layer: dict[str, list[str]] = defaultdict(list)
    inner = set()
    for key in keys:
        parts = key.split(".")
        for i in range(1, len(parts)):
            layer, rest = ".".join(parts[:i]), parts[i:]
            if layer in leaves and _is_foreign(rest[0]) and (rest[1:] or model[key].dim() > 1):
                by_layer[layer].append(key)
                inner |= {layer} if rest[1:] else set()
                break
    several = {layer for layer, tensors in by_layer.items() if len(tensors) > 1}
    return [key for layer in by_layer if layer in inner | several for key in by_layer[layer]]


def _is_foreign(name: str) -> bool:
    """Whether no ordinary, pruned, quantised or reparametrised layer has this part."""
    usual = ("weight", "bias", "parametrizations", "in_proj_", "out_proj")
    return not (name.isdigit() or name.startswith(usual))  # a number: of a mixture's expert


def _wrapped(shapes: Mapping[str, tuple[int, ...]], *, narrowed: bool) -> list[str]:
    """Return what PEFT saved, except single vectors and, if ``narrowed``, whole layers."""
    layers: dict[str, list[str]] = defaultdict(list)
    for key in shapes:
        layers[_OWN.sub("", key) if _OWN.search(key) else key.rpartition(".")[0]].append(key)
    names = Counter(layer.rpartition(".")[2] for layer in layers)
    factors = []
    for layer, keys in layers.items():
        plain = all(_OWN.search(key) for key in keys)
        vectors = all(prod(shapes[key]) == max(shapes[key], default=1) for key in keys)
        whole = narrowed and plain and names[layer.rpartition(".")[2]] == 1
        if not (whole or (vectors and (plain or len(keys) == 1))):
            factors += keys
    return factors


def _scaled(shapes: Mapping[str, tuple[int, ...]]) -> list[str]:
    """Return all keys if every layer has a number ``alpha``, as kohya and LyCORIS save."""
    layers = {key.rpartition(".")[0] for key in shapes if key.endswith(".alpha")}
    numbers = all(prod(shapes[f"{layer}.alpha"]) == 1 for layer in layers)
    inside = all(any(key.startswith(f"{layer}.") for layer in layers) for key in shapes)
    others = [key for key in shapes if not key.endswith(".alpha")]
    return others if layers and numbers and inside else []


def _paired(shapes: Mapping[str, tuple[int, ...]]) -> list[str]:
    """Return all matrices if they form pairs of small inner dimension and there is no bias."""
    layers: dict[str, list[str]] = defaultdict(list)
    for key, shape in shapes.items():
        if len(shape) > 1:
            layers[_OWN.sub("", key).rpartition(".")[0]].append(key)
    pairs = [[shapes[key] for key in keys] for keys in layers.values()]
    biases = any(key.endswith("bias") for key in shapes)
    if len(pairs) < 2 or biases or not all(map(_is_pair, pairs)):
        return []
    return [key for keys in layers.values() for key in keys]


def _is_pair(shapes: list[tuple[int, ...]]) -> bool:
    if [len(shape) for shape in shapes] != [2, 2]:
        return False
    (a, b), (c, d) = shapes
    return (a == d and 2 * a <= min(b, c)) or (b == c and 2 * b <= min(a, d))
