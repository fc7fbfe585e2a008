"""Chapter 50: schemes that keep the function keep every loss, and copies stay copies."""

import pytest
import torch

from mergebook.sail.read import growing
from mergelib.evaluation.tasks import Split, Task


@pytest.fixture(scope="module")
def cases() -> dict[str, growing.Case]:
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(64) % 3
    pictures = torch.randn(64, 3, 32, 32, generator=generator) + labels[:, None, None, None]
    split = Split(pictures, labels)
    task = Task("shades", ("dark", "grey", "bright"), split, split, split)
    return growing.cases(task, steps=3)


@pytest.mark.parametrize("family", ["MLP", "ResNet", "GPT"])
def test_what_is_kept(cases: dict[str, growing.Case], family: str) -> None:
    case = cases[family]
    table = growing.growths(case).set_index(["grown", "scheme"])
    exact = table[table.index.get_level_values("scheme").isin(["replicate", "mean", "identity"])]
    assert exact["change"].max() < 1e-5
    assert exact["loss"].to_numpy() == pytest.approx(case.loss(case.source), abs=1e-4)
    assert exact["kept"].to_numpy() == pytest.approx(1, abs=1e-2)
    assert ("deeper", "identity") in table.index or family == "MLP"
    assert (table["change"].drop(exact.index) > 1e-6).all()


def test_copies_stay_copies_until_noise_parts_them() -> None:
    table = growing.parting([0], trained=12, steps=4, every=2)
    rounds = table.set_index(["start", "step"])
    assert [*rounds.index.unique("start")] == list(growing.PARTED)
    assert rounds["apart"]["copies"].tolist() == [0, 0, 0]
    assert rounds["rank"]["copies", 4] == rounds["rank"]["copies", 0] <= 32
    assert rounds["apart"]["copies with noise", 0] == 0
    assert rounds["apart"]["copies with noise", 4] > 0
    assert rounds["rank"]["mean padding", 4] > 32
    opening = rounds.xs(0, level="step")
    exact = opening.drop("zero padding")
    assert exact["gain"].to_numpy() == pytest.approx(0, abs=1e-4)
    assert exact["change"].max() < 1e-5 < 1e-3 < opening["change"]["zero padding"]


def test_zero_padding_pads_with_zeros(cases: dict[str, growing.Case]) -> None:
    """Old entries of the stream stay and new ones are zero, up to where a norm is passed."""
    case = cases["GPT"]
    wide = case.build(True, False)
    wide.load_state_dict(growing.zero_padded(case.source, wide))
    for key in ("token_embed.weight", "pos_embed"):
        value, old = wide.get_parameter(key), case.source.get_parameter(key)
        assert torch.equal(value, torch.cat([old, torch.zeros_like(old)], 1))
    for key in ("blocks.0.fc2.weight", "blocks.1.attn.proj.weight"):
        assert wide.get_parameter(key)[32:].abs().max() == 0
    assert wide.get_parameter("blocks.0.fc1.weight")[:128, 32:].std() > 0, "readers are random"
    gains = wide.get_parameter("blocks.0.norm1.weight")
    assert torch.equal(gains[:32], case.source.get_parameter("blocks.0.norm1.weight"))
    assert gains[32:].tolist() == [1.0] * 32
    assert growing.stream_rank(wide, case.test[0])[1] <= 32


def test_texts_follow_the_chain() -> None:
    inputs, labels = growing.markov_texts(50, seed=3)
    assert torch.equal(inputs[:, 1:], labels[:, :-1])
    same = growing.markov_texts(50, seed=3)[0]
    assert torch.equal(inputs, same)
    assert not torch.equal(inputs, growing.markov_texts(50, seed=3, text_seed=1)[0])
