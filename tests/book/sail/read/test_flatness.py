"""Flat curves over γ, on tables made by hand."""

from collections.abc import Sequence

import numpy as np
import pandas as pd
import pytest

from mergebook.sail.read import flat

GAMMAS = (0.0, 0.5, 1.0)


def table(losses: Sequence[Sequence[float]], cell: str = "a") -> pd.DataFrame:
    """A row per γ of each seed's losses."""
    return pd.DataFrame(
        {"cell": cell, "seed": seed, "gamma": gamma, "judge": loss}
        for seed, row in enumerate(losses)
        for gamma, loss in zip(GAMMAS, row, strict=True)
    )


def test_a_range_is_read_where_the_other_seeds_have_theirs() -> None:
    """Each seed is lowest where the others are highest: −2 in all three."""
    assert flat(table([[0, 1, 2], [1, 2, 0], [2, 0, 1]]), ["cell"]).tolist() == [True]


def test_what_seeds_agree_on_is_not_flat_whatever_their_level() -> None:
    agreed = table([[0, 1, 2], [10, 11, 12.2], [20, 21, 22.1]])
    assert flat(agreed, ["cell"]).tolist() == [False]
    both = pd.concat([agreed, table([[0, 1, 2], [1, 2, 0], [2, 0, 1]], "b")])
    assert flat(both, ["cell"]).to_dict() == {"a": False, "b": True}
    renamed = agreed.rename(columns={"judge": "loss_50"})
    assert flat(renamed, ["cell"], "loss_50").tolist() == [False]


@pytest.mark.parametrize("slope", [0.0, 1.0])
def test_noise_is_flat_in_nineteen_cases_of_twenty_and_a_slope_in_none(slope: float) -> None:
    generator = np.random.default_rng(0)
    trend = slope * np.arange(3)
    parts = [table(generator.normal(trend, 0.1, size=(5, 3)).tolist(), str(i)) for i in range(200)]
    share = float(flat(pd.concat(parts), ["cell"]).mean())
    assert share > 0.93 if slope == 0 else share == 0
