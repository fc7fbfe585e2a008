"""Experts in files are compared by their headers, and read one tensor at a time."""

import weakref
from pathlib import Path

import pytest
import torch
from torch import Tensor

from mergelib.io import Checkpoint, save_state_dict
from mergelib.io.places import Place
from mergelib.merging import tied_keys
from mergelib.problems.problem import Problem, checked_states


def test_checking_holds_one_tensor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    state = {f"w{i}": torch.randn(4, 3) for i in range(6)}
    for i in range(3):
        save_state_dict(state, tmp_path / f"{i}.safetensors")
    experts = {f"{i}": Checkpoint(tmp_path / f"{i}.safetensors") for i in range(3)}
    read, alive, most = Place.read, weakref.WeakSet[Tensor](), []

    def counted(place: Place) -> Tensor:
        alive.add(tensor := read(place))
        most.append(len(alive))
        return tensor

    monkeypatch.setattr(Place, "read", counted)
    for base in (state, {}):
        most.clear()
        checked = checked_states(Problem(experts=experts, pretrained=base))
        assert checked.experts == experts
        assert len(most) == 18  # to see that they are finite, each once
        assert max(most) <= 2


def test_memory_that_is_used_again_ties_nothing(tmp_path: Path) -> None:
    """Of tensors read one after the other, many lie at the same address."""
    save_state_dict({f"w{i}": torch.randn(50, 30) for i in range(20)}, tmp_path / "a.safetensors")
    assert tied_keys(Checkpoint(tmp_path / "a.safetensors")) == {}
