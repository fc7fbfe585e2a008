"""Warnings of unrelated models and of convolutions: when they are said, how often, and when not."""

import re
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import mergelib as ml
from mergebook.suites.models import PICTURE_MODELS, TEXT_MODELS
from mergelib.inspection.watch import ENOUGH, Watch

State = dict[str, Tensor]


def fresh(model: str, seed: int) -> State:
    torch.manual_seed(seed)
    network = {**PICTURE_MODELS, **TEXT_MODELS}[model]()
    return {key: value.clone() for key, value in network.state_dict().items()}


def network(seed: int, width: int = 64) -> State:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(width, width), nn.Linear(width, width)).state_dict()


def near(state: State, scale: float, seed: int) -> State:
    generator = torch.Generator().manual_seed(seed)
    return {
        key: value + scale * value.std() * torch.randn(value.shape, generator=generator)
        for key, value in state.items()
    }


def heard(call: Callable[[], Any]) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        call()
    return [str(each.message) for each in caught]


@pytest.mark.parametrize("model", ["vit", "resnet18", "gpt"])
def test_three_unrelated_initialisations_are_warned_of(model: str) -> None:
    if model == "resnet18":
        pytest.importorskip("torchvision")
    states = [fresh(model, seed) for seed in range(3)]
    (text,) = heard(lambda: ml.merge("average", states))
    assert text.startswith("unrelated models: expert 0 and expert 1 have nothing in common")
    (text,) = heard(lambda: ml.merge("task_arithmetic", states[:2], pretrained=states[2]))
    assert text.startswith("unrelated models: expert 0 and pretrained have nothing in common")


def test_a_base_that_is_no_relative_of_the_experts() -> None:
    base = network(0)
    experts = [near(base, 0.2, seed) for seed in (1, 2)]
    (text,) = heard(lambda: ml.merge("ties", experts, pretrained=network(9)))
    assert text.startswith("unrelated models: expert 0 and pretrained have nothing in common")
    assert text.endswith("they were probably fine-tuned from another model than pretrained")
    (text,) = heard(lambda: ml.merge("ties", [experts[0], network(8)], pretrained=network(9)))
    assert text.endswith("neurons are matched first (mergelib.align)")


def test_one_stranger_among_experts() -> None:
    base = network(0)
    experts = {"a": near(base, 0.2, 1), "odd": network(9), "c": near(base, 0.2, 2)}
    (text,) = heard(lambda: ml.merge("task_arithmetic", experts, pretrained=base))
    assert "odd and pretrained" in text
    (text,) = heard(lambda: ml.merge("average", experts))
    assert "a and odd" in text


@pytest.mark.parametrize("scale", [0.0, 0.3, 1.0, 3.0])
def test_experts_that_went_far_are_related_still(scale: float) -> None:
    """Noise of three times the weights leaves a cosine of 0.3 to the base."""
    base = network(0)
    experts = [near(base, scale, seed) for seed in (1, 2)]
    said = heard(lambda: ml.merge("task_arithmetic", experts, pretrained=base))
    assert not [text for text in said if text.startswith("unrelated")]


def test_little_to_judge_by() -> None:
    small = [{"w": torch.randn(5, 5)} for _ in range(3)]
    assert not heard(lambda: ml.merge("average", small))
    vectors = [{"w": torch.randn(100_000)} for _ in range(3)]
    assert not heard(lambda: ml.merge("average", vectors))
    zeros = {key: torch.zeros_like(value) for key, value in network(0).items()}
    assert not heard(lambda: ml.merge("task_arithmetic", [network(1)], pretrained=zeros))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_kinship_by_hand(dtype: torch.dtype) -> None:
    """Cosines 1 and 0, each tensor counted by its entries."""
    ones, signs = torch.ones(40, 40), torch.ones(40, 40)
    signs[:, ::2] = -1
    watch = Watch(["one", "same", "other"], pretrained=False)
    while watch.seen < ENOUGH:
        assert watch.unrelated() is None, "too few to judge by"
        watch.add([part.to(dtype) for part in (100 * ones, ones, signs)].__getitem__)
    found = watch.unrelated()
    assert found is not None
    assert found[:2] == ("one", "other")
    assert abs(found[2]) < 0.01


def test_what_is_said_of_files_and_in_which_line(tmp_path: Path) -> None:
    files = [tmp_path / f"{seed}.safetensors" for seed in range(2)]
    for seed, file in enumerate(files):
        ml.save_state_dict(network(seed), file)
    for output, size in (("out.safetensors", None), ("sharded", 20_000)):
        with pytest.warns(UserWarning, match="unrelated models") as caught:
            ml.merge_files("average", files, tmp_path / output, max_shard_size=size)
        assert [Path(each.filename).name for each in caught] == ["test_warned.py"]


@pytest.mark.parametrize("first", ["head", "table"])
def test_models_whose_last_key_is_an_alias_are_warned_of(first: str, tmp_path: Path) -> None:
    """As GPT-2's and T5's is: what is said at the last key was never said of them."""

    def tied(seed: int) -> State:
        state = {"body": network(seed)["0.weight"], "conv.weight": kernels(seed)["conv.weight"]}
        table = network(seed)["1.weight"]
        return {
            **state,
            **dict.fromkeys(("table", "head") if first == "table" else ("head",), table),
        }

    states = [tied(seed) for seed in range(2)]
    texts = heard(lambda: ml.merge("cart", states))
    assert [text.split(" ")[0] for text in texts] == ["unrelated", "not"]
    for suffix, save in (("safetensors", ml.save_state_dict), ("pt", torch.save)):
        files = [tmp_path / f"{seed}.{suffix}" for seed in range(2)]
        for state, file in zip(states, files, strict=True):
            save(state, file)
        for output, size in ((f"{suffix}.safetensors", None), (suffix, 20_000)):
            said = heard(
                partial(ml.merge_files, "cart", files, tmp_path / output, max_shard_size=size)
            )
            assert said == texts


def test_a_tiny_gpt2_is_warned_of(tmp_path: Path) -> None:
    """Made from a configuration, as Hugging Face saves it: its head is tied, and comes last."""
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(n_embd=32, n_layer=1, n_head=2, vocab_size=50, n_positions=8)
    models = []
    for seed in range(2):
        torch.manual_seed(seed)
        models.append(transformers.GPT2LMHeadModel(config))
        models[-1].save_pretrained(tmp_path / f"{seed}")
    assert list(models[0].state_dict())[-1] == "lm_head.weight"
    folders = [tmp_path / "0", tmp_path / "1"]
    for call in (
        lambda: ml.merge("average", models),
        lambda: ml.merge_files("average", folders, tmp_path / "out"),
    ):
        (text,) = heard(call)
        assert text.startswith("unrelated models: expert 0 and expert 1")


def test_it_is_shown_once() -> None:
    states = [network(seed) for seed in range(2)]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        for _ in range(5):
            ml.merge("average", states)
    assert len(caught) == 1


def kernels(seed: int) -> State:
    torch.manual_seed(seed)
    return {"conv.weight": torch.randn(8, 3, 3, 3), "conv2.weight": torch.randn(4, 8, 3, 3)}


@pytest.mark.parametrize(
    "call",
    [
        lambda s, **o: ml.merge("cart", s, **o),
        lambda s, **o: ml.merge("low_rank_task_arithmetic", s, pretrained=s[0], **o),
        lambda s, **o: ml.compress("cart_indexing", s, rest="average", **o),
    ],
)
def test_convolutions_that_are_left_are_said_once(call: Callable[..., Any]) -> None:
    states = [kernels(seed) for seed in range(2)]
    (said,) = [text for text in heard(lambda: call(states)) if "convolutions" in text]
    left = "works on matrices, and it leaves to (average|task_arithmetic) convolutions "
    assert re.search(left + r"\('conv.weight', 'conv2.weight'\): pass", said)
    assert "is_matrix=mergelib.is_kernel" in said
    told = heard(lambda: call(states, is_matrix=ml.is_kernel))
    assert not [text for text in told if "convolutions" in text]


def test_convolutions_that_are_kept_whole_are_said_once() -> None:
    states = [kernels(seed) for seed in range(2)]
    texts = heard(lambda: ml.compress("cart_indexing", states))
    (said,) = [text for text in texts if "convolutions" in text]
    assert "it keeps whole for every task convolutions ('conv.weight', 'conv2.weight')" in said
    told = heard(lambda: ml.compress("cart_indexing", states, is_matrix=ml.is_kernel))
    assert not [text for text in told if "convolutions" in text]


def test_no_word_of_convolutions_where_there_is_no_choice() -> None:
    states = [kernels(seed) for seed in range(2)]
    assert "convolutions" not in " ".join(heard(lambda: ml.merge("average", states)))
    matrices = [
        {"w": torch.randn(5, 5), "patch_embed.weight": torch.randn(4, 3, 2, 2)} for _ in range(2)
    ]
    assert not heard(lambda: ml.merge("cart", matrices)), "tables are none"
