"""Rows that are drawn keep the classes' shares."""

import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Generator

from mergebook.suites.data.sampling import stratified


@settings(deadline=None, max_examples=60)
@given(
    counts=st.lists(st.integers(1, 30), min_size=1, max_size=6),
    share=st.floats(0, 1),
    seed=st.integers(0, 1000),
)
@example(counts=[1, 1, 1, 8], share=0.375, seed=0)
def test_stratified_keeps_shares(counts: list[int], share: float, seed: int) -> None:
    labels = torch.repeat_interleave(torch.arange(len(counts)), torch.tensor(counts))
    size = round(share * len(labels))
    chosen = stratified(labels, size, Generator().manual_seed(seed))
    assert len(chosen) == len(set(chosen.tolist())) == size
    taken = labels[chosen].bincount(minlength=len(counts)).double()
    own = torch.tensor(counts).double()
    bound = (1 + own / own.mean()) / 2
    assert ((taken - own * size / len(labels)).abs() <= bound + 1e-9).all()


def test_stratified_draws_at_random() -> None:
    labels = torch.zeros(1000, dtype=torch.int64)
    first, second = (stratified(labels, 100, Generator().manual_seed(s)) for s in (0, 1))
    assert len(set(first.tolist()) & set(second.tolist())) < 40
    assert 350 < float(first.double().mean()) < 650
