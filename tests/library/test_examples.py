"""The examples in docstrings of the main functions run as they are printed."""

import doctest
from pathlib import Path

import pytest
import torch

import mergelib as ml


@pytest.mark.parametrize(
    "function", [ml.merge, ml.merge_files, ml.adapt, ml.load_state_dict, ml.inspect]
)
def test_examples_run(function: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names = {**vars(ml), "torch": torch, "nn": torch.nn}
    tests = doctest.DocTestFinder(recurse=False).find(function, globs=names)
    assert [doctest.DocTestRunner().run(test).failed for test in tests if test.examples] == [0]
