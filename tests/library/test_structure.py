"""Every axis of every parameter has its groups, and the sizes agree, for each family."""

import itertools
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import mergelib as ml
from mergebook.suites import models
from mergelib.statedict import is_kernel
from mergelib.structure import Features, Scope, Structure, describes, structure_of
from mergelib.structure import trace as tracing
from tests.library.align.families import (
    FAMILIES,
    build,
    resnet18,
    timm_resnet,
    timm_vit,
    weights,
)


def kinds(structure: Structure) -> dict[str, str]:
    return {name: group.kind for name, group in structure.groups.items()}


@pytest.mark.parametrize("family", FAMILIES)
def test_every_axis_is_made_of_groups_whose_sizes_agree(family: str) -> None:
    model = build(family)
    structure = structure_of(model)
    floating = {k: v for k, v in model.state_dict().items() if v.is_floating_point()}
    assert structure.axes.keys() == floating.keys()
    for key, tensor in floating.items():
        for axis, size in zip(structure.axes[key], tensor.shape, strict=True):
            parts = [
                math.prod(structure.groups[n].size for n in factors) for factors in axis.layout
            ]
            assert sum(parts) == size
    structure.check(model.state_dict(), "model")
    for group in structure.groups.values():
        assert structure.members(group.name)  # no group without a place
        assert not (group.permutable and group.kind == "fixed")
    assert len(structure.groups) == len({*structure.groups})


@pytest.mark.parametrize("family", FAMILIES)
def test_meta_device_gives_the_same_structure(family: str) -> None:
    with torch.device("meta"):
        empty = FAMILIES[family]()
    assert structure_of(empty) == structure_of(build(family))


def test_vit_by_hand() -> None:
    structure = structure_of(models.VisionTransformer(32, 1, 4))
    own = {name: kind for name, kind in kinds(structure).items() if kind != "fixed"}
    assert own == {
        "stem.0": "units",
        "stem.2": "units",
        "stem.4": "stream",
        "blocks.0.attn.heads": "heads",
        "blocks.0.attn.keys": "head",
        "blocks.0.attn.values": "head",
        "blocks.0.fc1": "units",
    }
    block = "blocks.0.attn"
    rows = structure.axes[f"{block}.qkv.weight"][0]
    keys, values = (f"{block}.heads", f"{block}.keys"), (f"{block}.heads", f"{block}.values")
    assert rows.layout == (keys, keys, values)
    assert structure.axes[f"{block}.proj.weight"][1].layout == (values,)
    assert structure.groups[f"{block}.keys"].within == f"{block}.heads"
    assert structure.groups[f"{block}.keys"].size == 8
    stream = {(member.key, member.axis) for member in structure.members("stem.4")}
    assert stream == {
        *(("stem.4.weight", 0), ("stem.4.bias", 0), ("pos_embed", 1)),
        *(("blocks.0.norm1.weight", 0), ("blocks.0.norm1.bias", 0)),
        *(("blocks.0.attn.qkv.weight", 1), ("blocks.0.attn.proj.weight", 0)),
        *(("blocks.0.attn.proj.bias", 0), ("blocks.0.norm2.weight", 0)),
        *(("blocks.0.norm2.bias", 0), ("blocks.0.fc1.weight", 1), ("blocks.0.fc2.weight", 0)),
        *(("blocks.0.fc2.bias", 0), ("norm.weight", 0), ("norm.bias", 0)),
    }


def test_output_is_not_permutable_until_a_head_reads_it() -> None:
    bare = structure_of(models.VisionTransformer(32, 1, 4))
    headed = structure_of(nn.Sequential(models.VisionTransformer(32, 1, 4), nn.Linear(32, 5)))
    assert not bare.group("stem.4").permutable
    assert headed.group("0.stem.4").permutable
    assert not headed.group("1").permutable  # classes


def test_resnet_has_one_stream_a_stage() -> None:
    structure = structure_of(resnet18())
    streams = {name: g.size for name, g in structure.groups.items() if g.kind == "stream"}
    assert list(streams.values()) == [64, 128, 256, 512]
    first = structure.members("net.conv1")
    assert ("net.layer2.0.downsample.0.weight", 1) in {(m.key, m.axis) for m in first}
    assert ("net.bn1.running_var", 0, "scale") in {(m.key, m.axis, m.role) for m in first}


def test_timms_networks_are_read_like_torchvisions() -> None:
    """The same groups for equal networks; names of keys that differ are those of timm's modules."""
    timm, package = pytest.importorskip("timm"), pytest.importorskip("torchvision.models")
    with torch.device("meta"):
        ours, theirs = timm.create_model("resnet50"), package.resnet50()
        assert structure_of(ours) == structure_of(theirs)
        ours, theirs = timm.create_model("vit_base_patch16_224"), package.vit_b_16()
    kinds_and_sizes = (
        sorted((group.kind, group.size, group.permutable) for group in s.groups.values())
        for s in (structure_of(ours), structure_of(theirs))
    )
    mine, other = kinds_and_sizes
    assert [g for g in mine if g[0] != "fixed"] == [g for g in other if g[0] != "fixed"]


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: timm_resnet("Bottleneck", cardinality=2), "grouped convolutions"),
        (lambda: timm_resnet("BasicBlock", block_args={"attn_layer": "se"}), "se.fc1.weight' is"),
        (lambda: timm_resnet("BasicBlock", global_pool="catavgmax"), "fc.weight.* has 40 features"),
        (lambda: timm_vit(qk_norm=True), "q_norm.weight.* has size 8, but its input has 32"),
        (lambda: timm_vit(class_token=False, global_pool="map"), "'attn_pool.latent' is not decl"),
    ],
)
def test_other_members_of_timms_families_are_refused(
    build: Callable[[], nn.Module], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        structure_of(build())


def test_flattened_pictures_are_read_by_channels_and_places() -> None:
    structure = structure_of(build("chain"))
    layout = structure.axes["10.weight"][1].layout
    assert [structure.groups[name].size for name in layout[0]] == [12, 4]
    assert layout[0][0] == "5"


def test_tied_table_is_one_group_on_both_sides() -> None:
    ours = structure_of(models.GPT(32, 1, 4))
    assert [axis.role for axis in ours.axes["token_embed.weight"]] == ["both", "both"]
    theirs = structure_of(build("gpt2"))
    assert theirs.axes["lm_head.weight"] == theirs.axes["transformer.wte.weight"]
    vocabulary = theirs.axes["lm_head.weight"][0].layout[0][0]
    assert theirs.group(vocabulary).kind == "fixed"
    assert theirs.groups["transformer.wte"].permutable


def test_matrices() -> None:
    for family in ("resnet18", "vit", "mlp", "bert classifier"):
        model = build(family)
        structure = structure_of(model)
        for key, tensor in model.state_dict().items():
            assert structure.is_matrix(key, tensor) == is_kernel(key, tensor), key
    gpt2, structure = build("gpt2").state_dict(), structure_of(build("gpt2"))
    assert not structure.is_matrix("lm_head.weight", gpt2["lm_head.weight"])  # the token table
    key = "transformer.h.0.attn.c_attn.weight"
    assert torch.equal(structure.matrix(key, gpt2[key]), gpt2[key].T)
    chain, structure = build("chain").state_dict(), structure_of(build("chain"))
    up = chain["5.weight"]  # (inputs, outputs, 3, 3)
    assert torch.equal(structure.matrix("5.weight", up), up.transpose(0, 1).flatten(1))
    with pytest.raises(ValueError, match=r"'3\.weight' is not a matrix"):
        structure.matrix("3.weight", chain["3.weight"])  # depthwise
    with pytest.raises(ValueError, match="no key 'x'"):
        structure.is_matrix("x", up)


def test_structure_tells_merge_what_is_a_matrix() -> None:
    base, expert = weights(build("chain")), weights(build("chain", seed=1))
    structure = structure_of(build("chain"))
    options: dict[str, Any] = {"pretrained": base, "rank_ratio": 0.2}
    folded = ml.merge("cart", [expert], is_matrix=structure.is_matrix, **options)
    plain = ml.merge("cart", [expert], **options)
    changed = {key for key in base if not torch.equal(folded[key], plain[key])}
    assert changed == set() or changed <= {"0.weight", "5.weight"}
    experts = [expert, weights(build("chain", seed=2))]
    folded = ml.merge("cart", experts, is_matrix=structure.is_matrix, **options)
    plain = ml.merge("cart", experts, **options)
    assert {k for k in base if not torch.equal(folded[k], plain[k])} == {"0.weight", "5.weight"}


class Residual(nn.Module):
    def __init__(self, width: int = 6) -> None:
        super().__init__()
        self.fc = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = x + self.fc(x).relu()
        return output


def test_unknown_module_is_named_until_it_is_described(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracing, "_DESCRIPTIONS", dict(tracing._DESCRIPTIONS))
    model = nn.Sequential(nn.Linear(3, 6), Residual(), nn.Linear(6, 2))
    with pytest.raises(ValueError, match=r"module '1' is a .*Residual.* no description"):
        structure_of(model)

    @describes(Residual)
    def _residual(module: Residual, scope: Scope, x: Features | None) -> Features | None:
        return scope.add(x, scope("fc", x))

    structure = structure_of(model)
    assert kinds(structure)["0"] == "stream"
    assert {(m.key, m.axis) for m in structure.members("0")} == {
        *(("0.weight", 0), ("0.bias", 0), ("1.fc.weight", 0)),
        *(("1.fc.weight", 1), ("1.fc.bias", 0), ("2.weight", 1)),
    }


class Doubled(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([super().forward(x)] * 2, -1)


class Extra(nn.Linear):
    def __init__(self) -> None:
        super().__init__(3, 4)
        self.gate = nn.Parameter(torch.zeros(4))


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (nn.Sequential(Doubled(3, 4)), "'0' is a .*Doubled"),  # another forward than its parent's
        (nn.Sequential(Extra()), "'0.gate' is not declared"),
        (
            nn.Sequential(nn.Linear(3, 4), nn.Linear(5, 2)),
            r"1.weight\[1\] has size 5, but its input has 4",
        ),
        (nn.Sequential(nn.Conv2d(4, 4, 3, groups=2)), "grouped convolutions"),
        (nn.LayerNorm((3, 4)), "'weight' has 2 axes, but 1 are declared"),
    ],
)
def test_what_cannot_be_described_is_refused(model: nn.Module, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        structure_of(model)


def test_features_that_keep_their_order() -> None:
    grouped = structure_of(
        nn.Sequential(nn.Conv2d(3, 4, 3), nn.GroupNorm(2, 4), nn.Conv2d(4, 2, 1))
    )
    assert not grouped.group("0").permutable
    shared = nn.Linear(4, 4)  # one layer twice: what it reads is what it writes
    twice = structure_of(nn.Sequential(nn.Linear(3, 4), shared, shared, nn.Linear(4, 2)))
    assert twice.permutable() == ("0",)


@pytest.mark.parametrize("family", ["mlp", "gpt2"])
def test_wrong_state_dicts_are_named(family: str) -> None:
    model = build(family)
    structure, state = structure_of(model), weights(model)
    key = list(state)[2]
    with pytest.raises(ValueError, match=f"mine lacks key '{key}'"):
        structure.check({k: v for k, v in state.items() if k != key}, "mine")
    with pytest.raises(ValueError, match="mine has the extra key 'x'"):
        structure.check({**state, "x": torch.zeros(1)}, "mine")
    with pytest.raises(ValueError, match=rf"mine\['{key}'\] has shape \(1,\), expected \("):
        structure.check({**state, key: torch.zeros(1)}, "mine")
    with pytest.raises(ValueError, match="no group 'x'"):
        structure.members("x")


def test_sizes_of_families_are_free() -> None:
    for width, depth, heads in itertools.product((24, 48), (1, 3), (2, 6)):
        model = models.GPT(width, depth, heads)
        structure_of(model).check(model.state_dict(), "gpt")
