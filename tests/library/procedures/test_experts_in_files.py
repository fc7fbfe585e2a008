"""Experts in files are compared by their headers, and read one tensor at a time."""

import weakref
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import mergelib as ml
from mergelib.io import Checkpoint, save_state_dict
from mergelib.io.files import Place
from mergelib.problems.placing import is_lazy, state_to
from mergelib.problems.problem import Problem, checked_states
from mergelib.statedict import tied_keys


def test_checking_holds_one_tensor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    states = [{f"w{i}": torch.randn(4, 3) for i in range(6)} for _ in range(4)]
    for i in range(3):
        save_state_dict(states[i], tmp_path / f"{i}.safetensors")
    experts = {f"{i}": Checkpoint(tmp_path / f"{i}.safetensors") for i in range(3)}
    read, alive, most = Place.read, weakref.WeakSet[Tensor](), []

    def counted(place: Place) -> Tensor:
        alive.add(tensor := read(place))
        most.append(len(alive))
        return tensor

    monkeypatch.setattr(Place, "read", counted)
    for base in (states[3], {}):
        most.clear()
        checked = checked_states(Problem(experts=experts, pretrained=base))
        assert checked.experts == experts
        assert len(most) == 18  # to see that they are finite, each once
        assert max(most) <= 2


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    """A model whose second key has the first one's tensor, as GPT-2's head has its table's."""
    torch.manual_seed(0)
    paths = [tmp_path / f"{i}.safetensors" for i in range(3)]
    for path in paths:
        table = torch.randn(5, 3)
        save_state_dict({"table": table, "body": torch.randn(3, 3), "head": table}, path)
    return paths


def count_reads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    read, reads = Place.read, [0]

    def counted(place: Place) -> Tensor:
        reads[0] += 1
        return read(place)

    monkeypatch.setattr(Place, "read", counted)
    return reads


@pytest.mark.parametrize("device", ["cpu", "cpu:0", torch.device("cpu", 0), "meta"])
def test_a_problem_moves_without_reading_its_experts(
    device: str | torch.device, files: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    base, *experts = (Checkpoint(path) for path in files)
    names = dict(zip("ab", experts, strict=True))
    problem = Problem(names, pretrained=base, start=base, statistics={"a": base})
    assert all(expert.tied == {"head": "table"} for expert in experts)  # which compares values
    reads = count_reads(monkeypatch)
    moved = problem.to(device)
    assert reads[0] <= 5, "a look at one tensor of each"
    for name, expert in moved.experts.items():
        assert list(expert) == ["table", "body", "head"]
        assert tied_keys(expert) == {"head": "table"}
        assert expert["body"].device.type == torch.device(device).type
        if torch.device(device).type == "cpu":
            assert expert is names[name]


def test_the_current_device_is_the_one_that_is_meant() -> None:
    """As "cuda" is cuda:0; here in the words that a CPU has."""
    state = {"w": torch.ones(2)}
    assert state_to(state, "cpu:0") is state
    assert state_to(state, torch.device("cpu")) is state


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_what_lies_on_cuda_stays() -> None:
    state = {"w": torch.ones(2, device="cuda:0")}
    assert state_to(state, "cuda") is state


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.zeros(5, 3))
        self.body = nn.Parameter(torch.zeros(3, 3))
        self.head = self.table

    def forward(self, x: Tensor) -> Tensor:
        return self.table[x] @ self.body @ self.head.T


@pytest.mark.parametrize("missing", [[], ["head"], ["table"]])
def test_models_with_tied_weights_are_read_lazily_too(missing: list[str], tmp_path: Path) -> None:
    """Files often hold a tied tensor under one name."""
    torch.manual_seed(0)
    states = []
    for i in range(3):
        table = torch.randn(5, 3)
        state = {"table": table, "body": torch.randn(3, 3), "head": table}
        states.append({key: value for key, value in state.items() if key not in missing})
        save_state_dict(states[-1], tmp_path / f"{i}.safetensors")
    base, *lazy = (Checkpoint(tmp_path / f"{i}.safetensors") for i in range(3))
    checked = checked_states(Problem(dict(zip("ab", lazy, strict=True)), base, Tied()))
    loaded = checked_states(Problem(dict(zip("ab", states[1:], strict=True)), states[0], Tied()))
    for name, expert in checked.experts.items():
        assert is_lazy(expert)
        assert {*expert} == {"table", "body", "head"}
        assert all(torch.equal(expert[key], loaded.experts[name][key]) for key in expert)
        assert len(tied_keys(expert)) == 1
    data = {name: (torch.arange(5), torch.arange(5)) for name in "ab"}
    results = [
        ml.adapt(
            "frank_wolfe",
            dict(zip("ab", experts, strict=True)),
            pretrained=start,
            model=Tied(),
            data=data,
            steps=2,
            device="cpu",
        )
        for start, experts in ((base, lazy), (states[0], states[1:]))
    ]
    assert all(torch.equal(results[0].state[k], results[1].state[k]) for k in results[1].state)


def test_tied_weights_that_differ_in_a_file(tmp_path: Path) -> None:
    state = {"table": torch.ones(5, 3), "body": torch.ones(3, 3), "head": torch.zeros(5, 3)}
    save_state_dict(state, tmp_path / "a.safetensors")
    lazy = Checkpoint(tmp_path / "a.safetensors")
    with pytest.raises(ValueError, match="the model ties 'head' to 'table', but in a they differ"):
        checked_states(Problem({"a": lazy}, {}, Tied()))


def test_memory_that_is_used_again_ties_nothing(tmp_path: Path) -> None:
    """Of tensors read one after the other, many lie at the same address."""
    save_state_dict({f"w{i}": torch.randn(50, 30) for i in range(20)}, tmp_path / "a.safetensors")
    assert tied_keys(Checkpoint(tmp_path / "a.safetensors")) == {}
