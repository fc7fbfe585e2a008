"""What the ledger and chapter 56 read out of the study ``diffusion``."""

import numpy as np
import pandas as pd

from mergebook.lab.results import load_table
from mergebook.sail.measure.diffusion import REPA

FILE = "vision8-diffusion-vit_small"


def judged(name: str = FILE) -> pd.DataFrame:
    """Table ``quality`` of a result of the study, with ``log``, the logarithm of ``frechet``."""
    table = load_table(name, "quality")
    unit = table[table["arm"] == REPA].assign(account="cost")
    other = table.loc[table["account"] == "A", "arm"].unique()
    alike = table[(table["account"] == "steps") & ~table["arm"].isin(other)].assign(account="A")
    table = pd.concat([table, unit, alike], ignore_index=True)
    return table.assign(log=np.log(table["frechet"]))


def floor() -> pd.DataFrame:
    """Table ``floor`` by ``kind`` of images, without the rows that runs of single arms repeat."""
    table = load_table(FILE, "floor").drop_duplicates().rename(columns={"pictures": "kind"})
    return table.assign(log=np.log(table["frechet"]))
