"""The GPT that chapters grow, and the texts it reads."""

import pytest
import torch

import mergelib as ml
from mergebook.sail.read import growing


@pytest.mark.parametrize(("wide", "deep"), [(True, False), (False, True), (True, True)])
def test_the_source_has_learned_and_growing_keeps_it(wide: bool, deep: bool) -> None:
    case = growing.language_case(steps=20)
    large = case.build(wide, deep)
    assert case.change(large) > 0.1
    large.load_state_dict(ml.grow(case.source, large))
    assert case.change(large) < 1e-5
    losses = [
        float(
            torch.nn.functional.cross_entropy(
                case.logits(net).flatten(0, 1), case.test[1].flatten()
            )
        )
        for net in (case.source, growing.gpt(32, 2, 4))
    ]
    assert losses[0] < losses[1] - 0.1


def test_texts_follow_the_chain() -> None:
    inputs, labels = growing.markov_texts(50, seed=3)
    assert torch.equal(inputs[:, 1:], labels[:, :-1])
    same = growing.markov_texts(50, seed=3)[0]
    assert torch.equal(inputs, same)
    assert not torch.equal(inputs, growing.markov_texts(50, seed=3, text_seed=1)[0])
