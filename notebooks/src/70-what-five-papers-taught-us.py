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
# # What five papers taught us

# %% tags=["parameters", "remove-cell"]
SUITE = "glyphs8"
PROFILE = "default"
SEED = 0
DEVICE = "cpu"

# %% tags=["remove-cell"]
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from IPython.display import Markdown, display

from mergebook import plots
from mergebook.chapters import leaderboard
from mergebook.lab.results import load_table
from mergebook.lab.statistics import both_intervals, interval, over_seeds

plots.use_style()
NETWORKS = {
    "imagenet8-fresh_heads": "EfficientNet-Lite0,\n8 image tasks",
    "vision8-fresh_heads": "small ViT,\n8 image tasks",
    "vision8-fresh_heads-vit_small": "smaller ViT,\n8 image tasks",
    "glyphs8-fresh_heads": "small ViT,\n8 scripts",
}


# %% tags=["remove-cell"]
def judged(name):
    """Return test accuracy, in %, under frozen heads and under heads fitted to validation labels."""
    table = load_table(name)
    table["accuracy"] *= 100
    frozen = table[(table["head"] == "frozen") & (table["by"] != "fresh")]
    return frozen, table[(table["head"] == "validation") & (table["by"] != "frozen")]


heads = {name: judged(name) for name in NETWORKS}
PAIR = {"lead": ("cart", "task_arithmetic")}
leads = {
    kind: pd.concat([both_intervals(heads[name][place], PAIR) for name in NETWORKS])
    for place, kind in enumerate(("frozen", "fitted"))
}
crossing = {}
for name, (frozen, fitted) in heads.items():
    no_merge = fitted.query("method == 'pretrained'").assign(method="no merge")
    both = pd.concat([no_merge, frozen.query("method == 'cart'")])
    crossing[name] = both_intervals(both, {"": ("no merge", "cart")}).iloc[0]
crossing = pd.DataFrame(crossing).T

# %% tags=["remove-input"] mystnb={"figure": {"caption": "CART's lead over task arithmetic with the heads that papers use, made from the pretrained model and frozen, and with heads fitted to the labels that tuning spends anyway. Points of mean test accuracy over eight tasks; thick lines are 95 % intervals across seeds, thin ones across seeds and tasks.", "name": "fig-taught-heads"}, "image": {"alt": "ALT"}}
figure, ax = plt.subplots(figsize=(6.9, 3.6))
for shift, (kind, shade) in zip((-0.14, 0.14), {"frozen": plots.VERMILION, "fitted": plots.BLUE}.items()):
    for place, row in enumerate(leads[kind].itertuples()):
        ax.plot((row.low, row.high), [place + shift] * 2, color=shade, lw=1.2)
        ends = (row.mean - row.half_width, row.mean + row.half_width)
        ax.plot(ends, [place + shift] * 2, color=shade, lw=3.5)
        ax.plot(row.mean, place + shift, "o", color=shade, mec="white", ms=8)
    ax.plot([], [], "o", color=shade, label=f"{kind} heads")
plots.name_axis(ax, NETWORKS.values())
ax.axvline(0, color=plots.BLACK, lw=1)
ax.set(xlabel="CART minus task arithmetic, points")
ax.legend(loc="lower right")
ax.set_title("Most of CART's lead is agreement with frozen heads")
plt.show()

# %% tags=["remove-cell"]
entries = pd.DataFrame(leaderboard.entries())
rules = entries[(entries["data"] == leaderboard.NOTHING) & ~entries["task_known"]]
SUITES = ("sentences8", "imagenet8", "imagenet14", "imagenet20", "vision8", "vision14", "vision20")
kept = {}
for suite in (*SUITES, "glyphs8", "glyphs14", "glyphs20"):
    own = rules[rules["suite"] == suite].set_index("method")["normalised"]
    merges = own.drop(["pretrained", "individual"])
    kept[suite] = {"pretrained": own["pretrained"], "best": merges.max(), "rule": merges.idxmax()}
kept = pd.DataFrame(kept).T
kept["closed"] = 100 * (kept["best"] - kept["pretrained"]) / (100 - kept["pretrained"])
TASKS = kept.index.str.extract(r"(\d+)$")[0].astype(int).to_numpy()
closed = kept["closed"].astype(float)

# %% tags=["remove-cell"]
REFERENCE = "vision8-contribution-vit_small"
cells = load_table(REFERENCE)
cells["accuracy"] *= 100
keys = ["picks", "data", "granularity", "constraint"]
cells["method"] = cells[keys].agg("|".join, axis=1)
FREE = "labels|tensor|free"
PARTS = {
    "oracle's picks − random picks": (f"oracle|{FREE}", f"random|{FREE}"),
    "oracle's picks − all experts": (f"oracle|{FREE}", f"all|{FREE}"),
    "free λ − λ in the simplex": (f"oracle|{FREE}", "oracle|labels|tensor|simplex"),
    "λ per tensor − λ per model": (f"oracle|{FREE}", "oracle|labels|model|free"),
    "released, 3 rounds − all experts, 1 round": (
        "released|all labels|tensor|free",
        "all|all labels|tensor|free",
    ),
}
fw = both_intervals(cells, PARTS)
fitted = load_table(REFERENCE, "heads").query("head == 'validation'")
fw_heads = interval((100 * fitted.groupby("seed")["accuracy"].mean()).tolist())

# %% tags=["remove-cell"]
budgets = load_table("vision8-label_budget-vit_small")
budgets["accuracy"] *= 100
budgets["budget"] = budgets["budget"].replace(0, 4000)
CHOICES = {
    ("pretrained", "validation", ""): ("no merge, fitted heads", plots.BLACK, "s-"),
    ("cart", "frozen", "frozen"): ("CART, tuned, frozen heads", plots.VERMILION, "o--"),
    ("cart", "validation", "fresh"): ("CART, tuned, fitted heads", plots.VERMILION, "o-"),
    ("adamerging", "frozen", ""): ("CART, coefficients learned", plots.PINK, "^--"),
    ("multitask", "frozen", ""): ("one model trained on all tasks", plots.GREEN, "D--"),
}
lines = {}
for (method, head, by), look in CHOICES.items():
    chosen = budgets[(budgets["method"] == method) & (budgets["head"] == head)]
    lines[look] = over_seeds(chosen[chosen["by"] == by], "budget")

# %% tags=["remove-cell"]
trained = load_table("vision8-training_length-vit_small")
trained["accuracy"] *= 100
gains = {}
for kind, head, by in (("frozen", "frozen", "frozen"), ("fitted", "validation", "fresh")):
    part = trained[(trained["head"] == head) & (trained["by"] == by)]
    for steps, rows in part.groupby("steps"):
        gains[kind, steps] = both_intervals(rows, PAIR).iloc[0]
gains = pd.DataFrame(gains).T
