"""The diffusion transformer grows as the networks of the library's tests do."""

from typing import Any

import pytest

from mergebook.sail.networks.diffusion import SiT
from tests.library.sail.test_growing import (
    check_advice,
    check_next_layer,
    check_reading_undoes_writing,
)


@pytest.mark.parametrize("width", ["replicate", "svd", "interpolate"])
def test_reading_undoes_writing_on_every_axis(width: Any) -> None:
    check_reading_undoes_writing(SiT(32, 2, 2), SiT(64, 2, 4), width)


def test_the_next_layer() -> None:
    check_next_layer(SiT(32, 2, 2), SiT(64, 2, 4))


def test_advice_on_width_is_good() -> None:
    check_advice(SiT(48, 1, 4, classes=3), SiT(72, 1, 6, classes=3), possible=False)
