"""EfficientNet-Lite0 with ImageNet weights: the same as timm's, merged with its statistics."""

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

import mergelib as ml
from mergebook import load_zoo
from mergebook.cart.measure.experiments import batch_norm
from mergebook.suites.backbones import load_backbone
from mergebook.suites.families import family_of
from mergebook.suites.families.imagenet import (
    PACKAGE,
    DepthwiseConv2d,
    EfficientNetLite0,
    enlarged,
    is_dense_kernel,
    pretrain_lite,
)
from mergebook.suites.families.pictures import PREPARED
from mergebook.suites.training import Recipe, fine_tune
from mergebook.suites.types import (
    LabelledSet,
    Zoo,
)
from mergelib.evaluation.tasks import (
    Split,
    Suite,
    Task,
)


@pytest.fixture(scope="module")
def backbone() -> nn.Module:
    return load_backbone("efficientnet_lite0")


@pytest.fixture
def pictures() -> Tensor:
    return torch.randint(256, (4, 3, 32, 32), dtype=torch.uint8)


def test_weights_are_in_timms_order() -> None:
    timm = pytest.importorskip("timm", reason="has the architecture")
    file = PACKAGE.path()
    stored = torch.load(file, map_location="cpu", weights_only=True)
    theirs = timm.create_model("tf_efficientnet_lite0").state_dict()
    assert [tensor.shape for tensor in stored.values()] == [t.shape for t in theirs.values()]
    kinds = [name.rpartition(".")[2] for name in stored]
    assert kinds == [name.rpartition(".")[2] for name in theirs]
    assert PACKAGE.origin()[file.name].startswith("sha256:")


@torch.no_grad()
def test_features_are_those_of_timm(backbone: nn.Module, pictures: Tensor) -> None:
    timm = pytest.importorskip("timm", reason="has the architecture")
    theirs = timm.create_model("tf_efficientnet_lite0", num_classes=0).eval()
    bare = {key.removeprefix("net."): value for key, value in backbone.state_dict().items()}
    theirs.load_state_dict(bare)
    x = enlarged(pictures)
    assert x.shape == (4, 3, 64, 64)
    assert x.abs().max() <= 1
    torch.testing.assert_close(backbone(x), theirs(x), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("size", [3, 5])
def test_depthwise_convolutions_have_pytorchs_gradients(size: int) -> None:
    theirs = nn.Conv2d(6, 6, size, padding=size // 2, groups=6, bias=False).double()
    ours = DepthwiseConv2d(6, 6, size, padding=size // 2, groups=6, bias=False).double()
    ours.load_state_dict(theirs.state_dict())
    gradients = []
    x = torch.randn(2, 6, 5, 7, dtype=torch.double)
    for layer in (theirs, ours):
        inputs = x.clone().requires_grad_()
        (layer(inputs) ** 3).sum().backward()
        gradients.append((inputs.grad, layer.weight.grad))
    torch.testing.assert_close(gradients[0], gradients[1])

    def loss(weight: Tensor, one: Tensor) -> Tensor:
        out: Tensor = functional_call(ours, {"weight": weight}, (one[None],))
        return (out**3).sum()

    each = vmap(grad(loss), (None, 0))(ours.weight.detach(), x)
    torch.testing.assert_close(each.sum(0), ours.weight.grad)


@pytest.mark.parametrize("frozen", [True, False])
def test_statistics_are_frozen_or_follow_the_batches(frozen: bool, pictures: Tensor) -> None:
    model = EfficientNetLite0()
    model.frozen = frozen
    before = {key: value.clone() for key, value in model.state_dict().items()}
    after = fine_tune(
        model,
        nn.Linear(1280, 2),
        Split(pictures, torch.tensor([0, 1, 0, 1])),
        Recipe(epochs=1, batch_size=4),
        transform=enlarged,
    )
    same = {key for key in before if torch.equal(before[key], after[key])}
    statistics = {key for key in before if key.endswith(("running_mean", "running_var"))}
    assert (statistics <= same) is frozen
    assert "net.bn1.weight" not in same


def test_statistics_follow_the_batches_while_it_is_pretrained(pictures: Tensor) -> None:
    model = EfficientNetLite0()
    before = {key: value.clone() for key, value in model.state_dict().items()}
    split = Split(pictures, torch.tensor([0, 1, 0, 1]))
    sets = [LabelledSet("set", ("a", "b"), split, split, "")]
    log = pretrain_lite(model, sets, Recipe(epochs=1, batch_size=2))
    assert [record["epoch"] for record in log] == [1]
    assert model.frozen, "as it was"
    after = model.state_dict()
    assert not torch.equal(after["net.bn1.running_mean"], before["net.bn1.running_mean"])


def test_depthwise_filters_are_no_matrices(backbone: nn.Module) -> None:
    state = backbone.state_dict()
    matrices = {key for key, tensor in state.items() if is_dense_kernel(key, tensor)}
    assert "net.conv_stem.weight" in matrices
    assert "net.conv_head.weight" in matrices
    assert "net.blocks.0.0.conv_dw.weight" not in matrices
    share = sum(state[key].numel() for key in matrices) / sum(t.numel() for t in state.values())
    assert share > 0.9


@pytest.fixture
def zoo(pictures: Tensor) -> Zoo:
    split = Split(pictures, torch.tensor([0, 1, 0, 1]))
    other = Split(255 - pictures, split.labels)
    tasks = {
        "x": Task("x", ("a", "b"), split, split, split, enlarged),
        "y": Task("y", ("a", "b"), other, split, split, enlarged),
    }
    return load_zoo(Suite("imagenet8", 0, tasks, {}), recipe=Recipe(epochs=1, shots=1))


def test_zoo_averages_what_is_no_matrix(zoo: Zoo) -> None:
    assert zoo.is_matrix is is_dense_kernel
    key = "net.blocks.0.0.conv_dw.weight"
    cart = ml.merge(
        "cart", zoo.experts, pretrained=zoo.pretrained, is_matrix=zoo.is_matrix, scale=2.0
    )
    mean = (zoo.experts["x"][key] + zoo.experts["y"][key]) / 2
    torch.testing.assert_close(cart[key], mean)
    assert not torch.allclose(cart["net.conv_head.weight"], zoo.pretrained["net.conv_head.weight"])


def test_suites_hold_the_pictures_of_vision() -> None:
    suites = family_of("imagenet14").suites
    assert suites["imagenet14"] == PREPARED[:14]


def test_study_of_batch_norm(zoo: Zoo) -> None:
    rows = batch_norm(zoo, methods=["average"], examples=4)["test"]
    loss = {(row["method"], row["statistics"], row["task"]): row["loss"] for row in rows}
    assert loss.keys() >= {("average", name, "x") for name in ("merged", "measured")}
    assert loss["average", "merged", "x"] != loss["average", "measured", "x"]
    assert ("individual", "merged", "y") in loss
