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
from mergebook.lab.statistics import both_intervals, over_seeds, paired, plus_minus, written

plots.use_style()
NETWORKS = {"imagenet8-since": "EfficientNet-Lite0", "vision8-since-vit_small": "smaller ViT"}
PAIRS = {"TSV": ("wudi", "tsv"), "CART": ("wudi", "cart")}
stored = {name: load_table(name) for name in NETWORKS}
for table in stored.values():
    table["accuracy"] *= 100
leads = {
    f"over {other}": pd.concat(
        [both_intervals(table, {NETWORKS[name]: pair}) for name, table in stored.items()]
    )
    for other, pair in PAIRS.items()
}

# %% tags=["remove-cell"]
STUDY = "vision8-descent-vit_small"
RATES = (1e-5, 1e-4, 1e-3)
COUNTS = (0, 30, 300, 3000)


def named(table):
    """Give each solver and its setting a name of its own."""
    parts = [table["value"].map(" {:g}".format), table["steps"].map(" {}".format)]
    return table.assign(method=table["method"] + parts[0] + parts[1])


solved = named(load_table(STUDY))
solved["accuracy"] *= 100
path = named(load_table(STUDY, "path"))
gap, length = (over_seeds(path, "method", value) for value in ("gap", "length"))
plain, tuned = (solved[solved["chosen"] == chosen] for chosen in (False, True))
accuracy, accuracy_tuned = (over_seeds(table, "method") for table in (plain, tuned))
SUM, PUBLISHED, CLOSED = "adam 0 0", "adam 1e-05 300", "closed 0 0"

# %% tags=["remove-input"] mystnb={"figure": {"caption": "CAPTION", "name": "fig-since-wudi"}, "image": {"alt": "ALTALT ALTALT ALTALT ALTALT ALTALT ALTALT ALTALT"}}
figure, axes = plt.subplots(1, 2, figsize=(6.9, 3.3), width_ratios=(3, 4))
shades = {"over TSV": plots.GREEN, "over CART": plots.VERMILION}
plots.forest(leads, axes[0], shades)
axes[0].axvline(0, color=plots.BLACK, lw=1)
axes[0].set(xlabel="WUDI's lead, points")
axes[0].legend(fontsize=11)
for rate, shade in zip(RATES, (plots.SKY, plots.BLUE, plots.NAVY)):
    names = [SUM, *(f"adam {rate:g} {count}" for count in COUNTS[1:])]
    rows = accuracy.loc[names].set_axis(range(len(COUNTS)))
    plots.curve(axes[1], rows, (f"rate {rate:g}", shade, "o-"))
exact = accuracy.loc[[CLOSED]].set_axis([len(COUNTS)])
plots.curve(axes[1], exact, ("closed form", plots.PURPLE, "D"))
words = [f"{count:,}" for count in COUNTS]
axes[1].set_xticks(range(len(COUNTS) + 1), [*words, "∞"])
axes[1].set(xlabel="steps of Adam", ylabel="test accuracy, %")
axes[1].legend(fontsize=11)
figure.suptitle("TITLE", fontsize=13, weight="bold", x=0.01, ha="left")
plt.show()


# %% tags=["remove-input"]
def text(row, digits=1):
    """Format a mean with its interval across seeds."""
    return plus_minus(row["mean"], row["half_width"], digits).replace("-", "−")


over = leads["over TSV"]
stops = paired(plain, {"": (PUBLISHED, CLOSED)}).iloc[0]
stops_tuned = paired(tuned, {"": (PUBLISHED, CLOSED)}).iloc[0]
display(
    Markdown(f"""
* **WUDI, a rule of 2025, is RegMean without data, and has a closed form.** The paper approaches it with 300 steps of Adam.
* **The closed form BULLET** It is {text(over.iloc[0])} points from TSV on EfficientNet and {text(over.iloc[1])} on the smaller ViT (95 % intervals across three seeds).
* **The published 300 steps leave {100 * gap["mean"][PUBLISHED]:.0f} % of the loss** on the smaller ViT.
""")
)

# %% [markdown]
# **Use it when** you have neither data nor labels: the default scale of 1 needs no choice. **Do not use it** when TSV or CART
# can be tuned.
# **You need first:** [](04-low-rank-merging) and [](20-adapting-with-data). **Time:** five minutes.
#
# ## Regression without data
#
# RegMean {cite}`jin2023dataless` fits each linear layer to the experts' outputs, and needs the Gram matrices of the layer's inputs. Fine-tuning adds
# multiples of these inputs to the rows of the weights. WUDI {cite}`cheng2025whoever` therefore uses the rows of the task matrices $\tau_t = \theta_t - \theta_0$
# as inputs, and minimises $\sum_t \lVert (\Delta - \tau_t)\,\tau_t^\top \rVert^2 / \lVert \tau_t \rVert^2$. This is quadratic in $\Delta$, and
# its gradient $2\,(\Delta \sum_t C_t - \sum_t \tau_t C_t)$ vanishes at
#
# $$
# \Delta = \Bigl(\sum_t \tau_t C_t\Bigr) \Bigl(\sum_t C_t\Bigr)^{+}, \qquad
# C_t = \frac{\tau_t^\top \tau_t}{\lVert \tau_t \rVert^2} .
# $$
#
# The pseudo-inverse matters for directions $v$ that no task changes, $\tau_t v = 0$. Every $\Delta v$ has the same loss there, and the solution of least norm has
# $\Delta v = 0$. Gradient descent from $\sum_t \tau_t$ ends at the same matrix, because its start and all its steps vanish on $v$.
#
# ## Two tasks by hand
#
# Let $\tau_1 = \mathrm{diag}(1, 1)$ and $\tau_2 = \mathrm{diag}(3, 0)$, so that $C_1 = \mathrm{diag}(\tfrac12, \tfrac12)$ and
# $C_2 = \mathrm{diag}(1, 0)$. The first input is shared, and gets the weighted mean
# $(\tfrac12 \cdot 1 + 1 \cdot 3) / \tfrac32 = \tfrac73$. The second belongs to one task, and keeps its full size of 1.
#
# The second pair disagrees: its first rows are $(1, 0)$ and $(-1, 0.1)$. A row $(x, y)$ without any loss has $x = 1$ and
# $-x + 0.1\,y = 1.01$, so $y = 20.1$. Neither task asked for such a change.

# %% tags=["nbval-check-output"]
import torch

import mergelib as ml

base = {"w": torch.zeros(2, 2)}
for first, second in (
    ([[1.0, 0.0], [0.0, 1.0]], [[3.0, 0.0], [0.0, 0.0]]),
    ([[1.0, 0.0], [0.0, 0.0]], [[-1.0, 0.1], [0.0, 0.0]]),
):
    experts = [{"w": torch.tensor(task)} for task in (first, second)]
    merged = ml.merge("wudi", experts, pretrained=base)["w"]
    print([[round(x, 2) for x in row] for row in merged.tolist()])

# %% [markdown]
# ## Where 300 steps stop
#
# Gradient descent fits directions with large eigenvalues of $\sum_t C_t$ first, so stopping early is a filter. Wei et al.
# {cite}`wei2026closed` report that the exact solution is worse than hundreds of steps, because directions with small eigenvalues amplify noise, as in the
# second pair. We start Adam at the sum on the smaller ViT:

# %% tags=["remove-input"]
ROWS = {SUM: "sum of the task vectors", PUBLISHED: "300 steps, rate 1e-5 (published)"}
ROWS |= {
    f"adam {rate:g} 300": f"300 steps, rate {rate:.0e}".replace("-0", "-") for rate in RATES[1:]
}
ROWS |= {CLOSED: "closed form", "closed 0.1 0": "closed form, ridge 0.1"}
columns = {"accuracy at scale 1, %": accuracy, "at the chosen scale, %": accuracy_tuned}
shown = written({name: rows.loc[list(ROWS)] for name, rows in columns.items()})
shown.insert(0, "loss left, %", [f"{100 * value:.1f}" for value in gap["mean"][list(ROWS)]])
shown.insert(1, "length", [f"{value:.2f}" for value in length["mean"][list(ROWS)]])
shown.index = pd.Index(ROWS.values())
display(shown)

# %% tags=["remove-input"]
FURTHER = {"early": ("adam 0.0001 300", CLOSED), "ridge": ("closed 0.1 0", CLOSED)}
further = paired(plain, FURTHER)
display(
    Markdown(f"""
*Loss left* is the loss above its minimum, and *length* the norm of the merged matrices, both relative to the sum. Adam moves a weight by about its rate in each step,
so 300 steps at 1e-5 move it by 0.003 at most: the rate has to fit the task vectors. With scales chosen on validation data, the published setting is
{text(stops_tuned)} points from the closed form. Without that choice, 300 steps at 1e-4 are {text(further.loc["early"])} points from it, and a ridge of 0.1 is {text(further.loc["ridge"])}.
""")
)

# %% [markdown]
# ## Which rule merges better?
#
# All settings are chosen on validation examples, on the same experts.

# %% tags=["remove-input"]
METHODS = ("pretrained", "wudi", "tsv", "cart", "individual")
results = {
    NETWORKS[name]: over_seeds(table, "method").loc[list(METHODS)] for name, table in stored.items()
}
compared = written(results).rename(index=plots.label)
display(compared.rename_axis(index="test accuracy, %"))

# %% [markdown]
# ACE {cite}`xu2026ace` estimates the Gram matrices from task vectors as well, and regularises them. We did not measure it.
#
# ## Check against known values

# %% tags=["hide-input", "nbval-check-output"]
exact = torch.tensor([[1.0, 20.1], [0.0, 0.0]])
print("the second pair as by hand:", torch.allclose(merged, exact, atol=1e-3))
print("steps leave loss:", bool((gap["mean"].drop(CLOSED) > 0).all()))

# %% [markdown]
# ## Summary
#
# WUDI is RegMean with task vectors as data, and needs no iterations. SUMMARY
