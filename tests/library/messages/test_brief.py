"""Records in one line: names and sizes, and no tensor."""

import dataclasses
import importlib
import pkgutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import mergelib as ml
from mergelib.evaluation.tasks import Split, Suite, Task
from mergelib.messages.brief import Brief, brief

STATE = {"w": torch.zeros(200, 300), "b": torch.zeros(300)}


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (torch.zeros(2, 3), "float32[2, 3]"),
        (STATE, "<2 tensors, 241 kB>"),
        ({}, "{}"),
        ({"scale": 0.3}, "{'scale': 0.3}"),
        ({"a": STATE, "b": STATE, "c": STATE, "d": STATE}, "<4: a, b, c, …>"),
        ({"a": STATE}, "<1: a>"),
        (nn.Linear(2, 2), "Linear(…)"),
        (list(range(100)), "list of 100"),
        ("x" * 100, "'" + "x" * 58 + "…"),
        (ml.merge, "merge"),
        (None, "None"),
        (ml.methods(), f"table of {len(ml.methods())} × 5"),
    ],
)
def test_values_by_hand(value: Any, text: str) -> None:
    assert brief(value) == text


def test_a_record() -> None:
    @dataclass(frozen=True, repr=False)
    class Record(Brief):
        name: str
        state: dict[str, torch.Tensor]

    assert repr(Record("x", STATE)) == "Record(name='x', state=<2 tensors, 241 kB>)"


def test_no_tensor_is_read_for_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ml.save_state_dict(STATE, tmp_path / "a.safetensors")
    checkpoint = ml.Checkpoint(tmp_path / "a.safetensors")
    monkeypatch.setattr(ml.Checkpoint, "__getitem__", None)
    assert brief(checkpoint) == "<2 tensors, 241 kB>"


def check_short(*records: object) -> None:
    for record in records:
        text = repr(record)
        assert len(text) < 900, text
        assert "\n" not in text
        assert "tensor(" not in text
        assert type(record).__name__ in text


def test_public_records_are_short() -> None:
    part = Split(torch.zeros(9, 3, 32, 32), torch.zeros(9, dtype=torch.int64))
    task = Task("a", ("x", "y"), part, part, part)
    experts = [{"fc.weight": torch.randn(40, 40)} for _ in range(2)]
    check_short(
        ml.compress("cart_indexing", experts),
        ml.adapt("uniform_soup", experts, pretrained=experts[0]),
        Suite("s", 0, {"a": task, "b": task}, {"a": "0" * 64}),
        task,
        part,
    )


def test_every_record_that_holds_tensors_is_brief() -> None:
    """Whoever adds one to the package is reminded here."""
    long = []
    for info in pkgutil.walk_packages(ml.__path__, "mergelib."):
        if info.name.endswith("__main__"):
            continue
        for item in vars(importlib.import_module(info.name)).values():
            if not (isinstance(item, type) and dataclasses.is_dataclass(item)):
                continue
            own = item.__module__.startswith("mergelib.") and not item.__name__.startswith("_")
            types = [str(field.type) for field in dataclasses.fields(item)]
            words = ("Tensor", "DataFrame", "Split")
            holds = any(word in t for word in words for t in types if "Callable" not in t)
            if own and holds and not issubclass(item, Brief | nn.Module):
                long.append(f"{item.__module__}.{item.__name__}")
    assert sorted(set(long)) == []
