"""What the chapter on SAIL in text computes: what thirds of a text are, and the choice of γ."""

from collections.abc import Sequence
from functools import partial
from pydoc_data.topics import topics

import pandas as pd

from mergebook.sail.read import spirals, tables

SWEEPS = {
    "characters": "tinyshakespeare-gamma_sweep",
    "byte pairs": "tinyshakespeare-gamma_sweep-pairs",
    "characters, Wikipedia": "wikitext2_test-gamma_sweep",
    "byte pairs, Wikipedia": "wikitext2_test-gamma_sweep-pairs",
}
TWO = "Shakespeare, Wikipedia"
CLUSTERS = {
    "thirds of Shakespeare": "tinyshakespeare-clusters",
    "thirds of Wikipedia": "wikitext2_test-clusters",
    TWO: "tinyshakespeare-two_texts",
}
nearness = partial(spirals.nearness, "tinyshakespeare-text_nearness")


def help_text() -> str:
    """The language help that comes with Python."""
    return "\n".join(topics[name] for name in sorted(topics))


def swept(part: str = "curves") -> pd.DataFrame:
    """A table of `gamma_sweep`, of characters and byte pairs, told apart by ``tokens``."""
    return tables(SWEEPS, part, "tokens")


distances = partial(swept, "distances")  # MMD² of thirds, and Eq. 11; starts have them in common


def separations() -> pd.DataFrame:
    """AUC and p of thirds of two texts and of both texts, by ``parts`` (of `CLUSTERS`)."""
    return tables(CLUSTERS, "separation", "parts")


def heights(curves: pd.DataFrame, by: Sequence[str] = ("tokens",)) -> pd.DataFrame:
    """ℓ(½) − ½(ℓ(0) + ℓ(1)), the ``height`` of a barrier, by start, step and seed."""
    keys = [*by, "start", "step", "seed"]
    table = curves.pivot(index=keys, columns="gamma", values="judge")
    rows = table[0.5] - (table[0.0] + table[1.0]) / 2
    return rows.rename("height").reset_index()


def last(curves: pd.DataFrame) -> pd.DataFrame:
    """Rows after the last step."""
    rows: pd.DataFrame = curves[curves["step"] == curves["step"].max()]
    return rows


def best(curves: pd.DataFrame, keys: Sequence[str]) -> pd.DataFrame:
    """The row of least loss on the half that chooses, for each value of the keys."""
    places = curves.groupby(list(keys), sort=False)["choose"].idxmin()
    return curves.loc[places].reset_index(drop=True)


def chosen(curves: pd.DataFrame) -> pd.DataFrame:
    """``gamma`` of least final loss on one half, and what it gains (nats) on the other half."""
    keys = ["tokens", "start", "seed"]
    final = last(curves)
    table = best(final, keys).set_index(keys)
    judged = final.pivot(index=keys, columns="gamma", values="judge").loc[table.index]
    gains = {
        name: judged[rival] - table["judge"]
        for name, rival in (("over_nearest", 0.0), ("over_farther", 1.0), ("over_half", 0.5))
    }
    return table[["gamma"]].assign(**gains).reset_index()
