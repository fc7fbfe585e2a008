"""A pretrained model and two experts, in memory and in files."""

from pathlib import Path

import pytest

from tests.library.streaming.cases import State, make_states, save_all


@pytest.fixture
def states() -> list[State]:
    return make_states()


@pytest.fixture
def files(tmp_path: Path, states: list[State]) -> list[Path]:
    return save_all(tmp_path, states)
