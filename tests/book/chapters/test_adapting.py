"""What chapter 20 measures: against definitions, and cases with a known answer."""

import pytest
import torch
from torch import nn

from mergebook.chapters import adapting
from mergebook.lab.comparison import examples_of
from mergebook.suites.zoo import Zoo
from mergelib.evaluation.loops import evaluate


def test_judge_agrees_with_evaluation(tiny_zoo: Zoo) -> None:
    scores = adapting.judge(tiny_zoo, tiny_zoo.pretrained)
    table = evaluate(
        tiny_zoo.model, tiny_zoo.pretrained, tiny_zoo.heads, tiny_zoo.suite, autocast=True
    )
    assert scores["accuracy"].tolist() == pytest.approx(table["accuracy"].tolist())
    assert (scores["entropy"] > 0).all()


def test_judge_takes_heads_that_replace_the_zoos(tiny_zoo: Zoo) -> None:
    name = next(iter(tiny_zoo.heads))
    flat = nn.Linear(16, 5)
    nn.init.zeros_(flat.weight)
    nn.init.zeros_(flat.bias)
    scores = adapting.judge(tiny_zoo, tiny_zoo.pretrained, {name: flat}, [name])
    assert scores["entropy"].tolist() == pytest.approx([torch.tensor(5.0).log().item()])


def test_trials_note_what_was_given(tiny_zoo: Zoo) -> None:
    trials = adapting.Trials(tiny_zoo)
    state = trials.merge("tuned", "task_arithmetic", labels=7, scale=0.5)
    trials.adapt("mended", "surgery", examples_of(tiny_zoo, 20), start=state, steps=5)
    table = trials.table()
    assert table["labels"].to_dict() == {"tuned": 7, "mended": 0}
    assert table["sees"].to_dict() == {"tuned": "nothing", "mended": "pictures"}
    expected = adapting.judge(tiny_zoo, state)["accuracy"].mean()
    assert table.loc["tuned", "accuracy"] == pytest.approx(expected)


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        ("stem.0.weight", "stem"),
        ("blocks.2.attn.qkv.weight", "block 2 attention"),
        ("blocks.0.fc1.weight", "block 0 MLP"),
    ],
)
def test_places(key: str, expected: str) -> None:
    assert adapting.place(key) == expected
