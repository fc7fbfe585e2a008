# %% tags=["remove-cell"]
# Where the book's packages are missing, as on Colab, install them: published copies name their
# address here. An unrelated package on the index is named mergelib, too, and has to go first.
import importlib.util
import subprocess
import sys

SOURCE = ""
if importlib.util.find_spec("mergebook") is None:
    other = importlib.util.find_spec("mergelib") is not None
    if not SOURCE:
        what = "uninstall the other package named mergelib, then install" if other else "install"
        raise ModuleNotFoundError(f"{what} mergelib-book: see 'How to run' in the book")
    if other:
        print("Another package named mergelib is installed. The book's mergelib takes its place.")
        subprocess.check_call([sys.executable, "-m", "pip", "uninstall", "-qy", "mergelib"])
    subprocess.check_call([sys.executable, "-m", "pip", "install", "-q", SOURCE])

# %% [markdown]
# # What has happened since CART

# %% tags=["parameters", "remove-cell"]
SUITE = "glyphs8"
PROFILE = "default"
SEED = 0
DEVICE = "cpu"

# %% tags=["remove-cell"]
import matplotlib.pyplot as plt
import pandas as pd
from IPython.display import Markdown, display

from mergebook import plots
from mergebook.lab.results import load_table
from mergebook.lab.statistics import both_intervals, over_seeds, paired, plus_minus

plots.use_style()
NETWORKS = {
    "imagenet8-since": "EfficientNet-Lite0",
    "vision8-since-vit_small": "smaller ViT",
}
PAIRS = {"TSV": ("wudi", "tsv"), "CART": ("wudi", "cart")}
tables = {name: load_table(name) for name in NETWORKS}
for table in tables.values():
    table["accuracy"] *= 100
both = {name: both_intervals(table, PAIRS) for name, table in tables.items()}
leads = {
    f"over {other}": pd.DataFrame([rows.loc[other] for rows in both.values()])
    .set_axis(NETWORKS.values())
    for other in PAIRS
}

# %% tags=["remove-cell"]
STUDY = "vision8-descent-vit_small"
steps = load_table(STUDY)
steps["accuracy"] *= 100
steps["method"] += steps["value"].map(" {:g}".format) + steps["steps"].map(" {}".format)
path = load_table(STUDY, "path")
path["method"] += path["value"].map(" {:g}".format) + path["steps"].map(" {}".format)
gaps = path.groupby("method")["gap"].mean()
lengths = path.groupby("method")["length"].mean()
PUBLISHED, CLOSED, SUM = "adam 1e-05 300", "closed 0 0", "adam 0 0"
chosen, at_one = (steps[steps["chosen"] == own] for own in (True, False))
means = {own: over_seeds(table, "method") for own, table in (("chosen", chosen), ("one", at_one))}
RATES = {"1e-05": plots.SKY, "0.0001": plots.BLUE, "0.001": plots.NAVY}
COUNTS = (0, 30, 300, 3000)

