"""What chapter 50 reads out of the study ``encoder``: a pretrained BERT, grown."""

import pandas as pd

from mergebook.lab.results import load_table

RESULT = "sentences8-encoder"


def measured() -> pd.DataFrame:
    """A row per seed and ``way``, with the columns of both tables of the study."""
    keys = ["seed", "way"]
    means = load_table(RESULT, "tasks").groupby(keys)[["accuracy", "agreement"]].mean()
    return load_table(RESULT, "encoders").merge(means.reset_index(), on=keys)


def refused() -> list[str]:
    """The ways that `grow` refuses, in the study's order."""
    return list(dict.fromkeys(load_table(RESULT, "refused")["way"]))
