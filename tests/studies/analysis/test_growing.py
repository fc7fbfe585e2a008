"""Chapter 50: schemes that keep the function keep every loss, and copies stay copies."""

import pytest
import torch

from mergelib.studies.analysis.sail import growing
from mergelib.testbed.tasks import Split, Task


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
    assert exact["change"].max() < 1e-4
    assert exact["loss"].to_numpy() == pytest.approx(case.loss(case.source), abs=1e-4)
    assert exact["kept"].to_numpy() == pytest.approx(1, abs=1e-2)
    assert ("deeper", "identity") in table.index or family == "MLP"
    assert (table["change"].drop(exact.index) > 1e-6).all()


def test_traps_cost_what_is_said(cases: dict[str, growing.Case]) -> None:
    changes = growing.traps(cases["GPT"])
    assert changes.iloc[0] < 1e-4
    assert changes["norm before the tied table as any other"] == pytest.approx(1, abs=1e-4)
    assert (changes.iloc[1:] > 1e-3).all()


def test_copies_stay_copies_until_noise_parts_them(cases: dict[str, growing.Case]) -> None:
    rounds = growing.parting(cases["GPT"], steps=4, every=2).set_index(["start", "step"])
    assert rounds["apart"]["copies"].tolist() == [0, 0, 0]
    assert rounds["rank"]["copies", 4] == rounds["rank"]["copies", 0] <= 32
    assert rounds["apart"]["copies with noise", 0] == 0
    assert rounds["apart"]["copies with noise", 4] > 0
    assert rounds["rank"]["mean padding", 4] > 32
    assert rounds.xs(0, level="step")["loss"].to_numpy() == pytest.approx(
        cases["GPT"].loss(cases["GPT"].source), abs=1e-4
    )


def test_texts_follow_the_chain() -> None:
    inputs, labels = growing.markov_texts(50, seed=3)
    assert torch.equal(inputs[:, 1:], labels[:, :-1])
    same = growing.markov_texts(50, seed=3)[0]
    assert torch.equal(inputs, same)
    assert not torch.equal(inputs, growing.markov_texts(50, seed=3, text_seed=1)[0])
