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
from mergebook.lab.statistics import both_intervals, interval, over_seeds, paired, plus_minus

plots.use_style()
NETWORKS = {
    "imagenet8-fresh_heads": "EfficientNet-Lite0,\n8 image tasks",
    "vision8-fresh_heads": "small ViT,\n8 image tasks",
    "vision8-fresh_heads-vit_small": "smaller ViT,\n8 image tasks",
    "glyphs8-fresh_heads": "ViT on glyphs,\n8 scripts",
    "sentences8-fresh_heads": "MiniLM,\n8 sentence tasks",
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
BEYOND = {"beyond": ("cart", "no merge")}
leads, beyond = {}, {}
for place, kind in enumerate(("frozen", "fitted")):
    rows = pd.concat([both_intervals(heads[name][place], PAIR) for name in NETWORKS])
    leads[kind] = rows.set_axis(NETWORKS.values())
    rows = []
    for pair in heads.values():
        no_merge = pair[1].query("method == 'pretrained'").assign(method="no merge")
        cart = pair[place].query("method == 'cart'")
        rows.append(both_intervals(pd.concat([no_merge, cart]), BEYOND))
    beyond[kind] = pd.concat(rows).set_axis(NETWORKS.values())

# %% tags=["remove-cell"]
entries = pd.DataFrame(leaderboard.entries())
rules = entries[(entries["data"] == leaderboard.NOTHING) & ~entries["task_known"]]
SUITES = ("sentences8", "imagenet8", "imagenet14", "imagenet20", "vision8", "vision14", "vision20")
kept = {}
for suite in (*SUITES, "glyphs8", "glyphs14", "glyphs20"):
    own = rules[rules["suite"] == suite].set_index("method")["normalised"]
    merges = own.drop("pretrained")
    kept[suite] = {"pretrained": own["pretrained"], "best": merges.max(), "rule": merges.idxmax()}
kept = pd.DataFrame(kept).T
kept["closed"] = 100 * (kept["best"] - kept["pretrained"]) / (100 - kept["pretrained"])
TASKS = kept.index.str.extract(r"(\d+)$")[0].astype(int).to_numpy()
closed = kept["closed"].astype(float)

# %% tags=["remove-cell"]
CELL = ["picks", "data", "granularity", "constraint"]
FREE = "labels|tensor|free"
PARTS = {
    "oracle − random picks": (f"oracle|{FREE}", f"random|{FREE}"),
    "oracle − all experts": (f"oracle|{FREE}", f"all|{FREE}"),
    "free λ − λ in the simplex": (f"oracle|{FREE}", "oracle|labels|tensor|simplex"),
    "λ per tensor − λ per model": (f"oracle|{FREE}", "oracle|labels|model|free"),
}


REFERENCE = "vision8-contribution-vit_small"
FW = {"smaller ViT": REFERENCE, "EfficientNet": "imagenet8-contribution"}
FW |= {"MiniLM": "sentences8-contribution"}
cells, fw, fw_heads = {}, {}, {}
for network, name in FW.items():
    table = load_table(name)
    table = table.assign(accuracy=100 * table["accuracy"], method=table[CELL].agg("|".join, axis=1))
    fitted = load_table(name, "heads").query("head == 'validation'").assign(method="heads")
    fitted["accuracy"] *= 100
    cells[network], fw[network] = table, paired(table, PARTS)
    pair = {"": (f"all|{FREE}", "heads")}
    fw_heads[network] = paired(pd.concat([table, fitted]), pair).iloc[0]

# %% tags=["remove-cell"]
CURVES = {
    "individual": ("experts", plots.BLACK, "s-"),
    "cart": ("CART", plots.VERMILION, "o-"),
    "task_arithmetic": ("task arithmetic", plots.BLUE, "^-"),
    "pretrained": ("pretrained", plots.GREY, "--"),
}


def lead_by_steps(rows):
    """Return CART's lead over task arithmetic for each number of steps."""
    return pd.DataFrame({n: paired(part, PAIR).iloc[0] for n, part in rows.groupby("steps")}).T


KINDS = ("frozen", "fitted")
NAMES = ("vision8-training_length-vit_small", "vision8-training_length-few")
lengths, few_passes, on_minilm = map(judged, (*NAMES, "sentences8-training_length"))
by_steps = {n: over_seeds(lengths[0].query("method == @n"), "steps") for n in CURVES}
lead_after = {kind: lead_by_steps(rows) for kind, rows in zip(KINDS, lengths)}
minilm_after = {kind: lead_by_steps(rows) for kind, rows in zip(KINDS, on_minilm)}

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

# %% tags=["remove-input"] mystnb={"figure": {"caption": "CART's lead with frozen heads, which come from the pretrained model, and with heads fitted to the labels that tuning spends anyway. Left, over task arithmetic under the same heads. Right, over the pretrained model with fitted heads and no merge at all. Points of mean test accuracy over eight tasks; thick lines are 95 % intervals across seeds, thin ones across seeds and tasks.", "name": "fig-taught-heads"}, "image": {"alt": "Two panels with five networks each. Left, CART minus task arithmetic: on EfficientNet 14 points with frozen heads and 9 with fitted ones, on three small ViTs 5 to 7 and at most 1, on MiniLM 3 and 2. Right, CART minus no merge with fitted heads: on EfficientNet 9 points with frozen heads and 18 with fitted ones, on the ViTs for images 6 to 10 points behind and 4 ahead, on the ViT for glyphs 1 and 9 ahead, on MiniLM 14 and 8 ahead."}}
figure, axes = plt.subplots(1, 2, figsize=(6.9, 3.9), sharey=True)
shades = {"frozen heads": plots.VERMILION, "fitted heads": plots.BLUE}
for ax, sets in zip(axes, (leads, beyond)):
    plots.forest({f"{kind} heads": rows for kind, rows in sets.items()}, ax, shades)
    ax.axvline(0, color=plots.BLACK, lw=1)
axes[0].set(xlabel="over task arithmetic, points")
axes[1].set(xlabel="over no merge, points")
axes[1].legend(loc=(0.53, 0.5), fontsize=10, handlelength=1, frameon=True)
title = "Fitted heads take most of CART's lead on small ViTs"
figure.suptitle(title, fontsize=13, weight="bold", x=0.01, ha="left")
plt.show()


# %% tags=["remove-input"]
def text(row):
    """Format a mean with its interval across seeds."""
    return plus_minus(row["mean"], row["half_width"], 1).replace("-", "−")


display(
    Markdown(f"""
* **CART's lead over task arithmetic shrinks on all image networks if heads are fitted again**, from {text(leads["frozen"].iloc[0])}
  to {text(leads["fitted"].iloc[0])} points on EfficientNet and from {text(leads["frozen"].iloc[1])} to {text(leads["fitted"].iloc[1])} on the small ViT. On MiniLM it is
  {text(leads["frozen"].iloc[4])} and {text(leads["fitted"].iloc[4])}.
* **Merging still helps.** CART with fitted heads is {beyond["fitted"]["mean"].min():.0f} to {beyond["fitted"]["mean"].max():.0f} points ahead of fitted heads without a merge on all five
  networks. CART with frozen heads is {-beyond["frozen"]["mean"].iloc[1]:.0f} and {-beyond["frozen"]["mean"].iloc[2]:.0f} points behind them on the two ViTs for images.
* **With 100 labels, Frank-Wolfe's choice of experts gains nothing** over using all experts: {text(fw["smaller ViT"].iloc[1])} points on the
  smaller ViT, {text(fw["EfficientNet"].iloc[1])} on EfficientNet and {text(fw["MiniLM"].iloc[1])} on MiniLM.
""")
)

# %% tags=["remove-cell"]
from myst_nb import glue

for kind in ("frozen", "fitted"):
    glue(f"real_{kind}", float(leads[kind]["mean"].iloc[0]), display=False)

# %% [markdown]
# **Use it when** you read or write a paper on model merging, or decide whether to merge at all.
# **You need first:** [](02-averaging-and-task-vectors) and [](04-low-rank-merging).
#
# The five papers: [CART](10-cart) subtracts the experts' mean and keeps the largest singular directions of what is left. [Frank-Wolfe](21-frank-wolfe) merging runs that
# optimiser over mixtures of experts. [CoGraM](30-cogram) merges two networks layer by layer and takes back steps that raise the loss. The [stability framework](40-stability) bounds a merge's
# error before training. [SAIL](50-growing) merges small networks into the initial weights of a larger one.
#
# *Frozen heads* classify by class means of the pretrained features, from three labelled examples per class, and on MiniLM by the classes' names; experts are trained under them. *Fitted heads*
# are a ridge regression on the features of a merged or pretrained model, with the validation labels that also choose a merge's settings.
#
# ## How much of the gap merging closes
#
# The next figure compares the pretrained model with the best rule that needs weights only, on ten suites. Accuracies are in per cent of the experts'
# ([leaderboard](80-leaderboard)).

# %% tags=["remove-input"] mystnb={"figure": {"caption": "How much of the way from the pretrained model to the experts the best data-free rule goes. Mean test accuracy in per cent of the experts', by suite; the number at the right is the share of the gap that merging closes.", "name": "fig-taught-gap"}, "image": {"alt": "Ten horizontal bars from the pretrained model to the best rule. MiniLM on eight sentence tasks goes from 72 to 96 % of the experts. Suites of eight image tasks go from about 50 to 75-80 %, suites of twenty tasks from about 55 to 65-73 %."}}
figure, ax = plt.subplots(figsize=(6.9, 3.9))
for place, row in enumerate(kept.itertuples()):
    ax.plot([row.pretrained, row.best], [place, place], color=plots.SILVER, lw=5)
    ax.plot(row.pretrained, place, "s", color=plots.BLACK)
    ax.plot(row.best, place, "o", color=plots.VERMILION, ms=8)
    ax.text(102, place, f"{row.closed:.0f} %", va="center")
ax.axvline(100, color=plots.GREEN, lw=2)
plots.name_axis(ax, [leaderboard.SUITES[name][1] for name in kept.index])
ax.set(xlabel="test accuracy, % of the experts'", xlim=(45, 110))
ax.text(46, -0.75, "■ pretrained", fontsize=11)
ax.text(74, -0.75, "● best rule", color=plots.VERMILION, fontsize=11)
ax.set_ylim(len(kept) - 0.5, -1.2)
ax.set_title("Merging closes less of the gap the more tasks it merges")
plt.show()

# %% tags=["remove-input"]
eight, twenty = closed[TASKS == 8], closed[TASKS == 20]
display(
    Markdown(f"""
The best rule closes {eight.min():.0f} to {eight.max():.0f} % of the gap with eight tasks, and {twenty.min():.0f} to
{twenty.max():.0f} % with twenty. The {closed.max():.0f} % are MiniLM's, which starts
at {kept.loc["sentences8", "pretrained"]:.0f} % of the experts' accuracy.
""")
)

# %% [markdown]
# All these models share their start. Networks with separate starts need matched neurons first. CoGraM does not match them, and ends at one of the two parents, not always the
# better one ([](31-cogram-experiments)).
#
# ## Longer training
#
# Here experts of the smaller ViT are trained with Adam at a constant rate, and their weights are taken after 25 to 1,600 steps of 32
# examples. Every merge chooses its settings again at each length.

# %% tags=["remove-input"] mystnb={"figure": {"caption": "Left, test accuracy under frozen heads, by the number of steps that each expert was trained. Right, CART's lead over task arithmetic under both kinds of heads. Smaller ViT on `vision8`, means and 95 % intervals over three seeds.", "name": "fig-taught-length"}, "image": {"alt": "Two panels by steps per expert, from 25 to 1,600. Left, experts rise from 56 to 78 %. CART rises from 48 to 52 % after 400 steps and falls to 50 % after 1,600, task arithmetic rises from 45 to 49 % and falls to 47 %; the pretrained model is flat at 43 %. Right, CART leads task arithmetic by about 3 points under frozen heads at every length, and by about half a point under fitted heads."}}
figure, axes = plt.subplots(1, 2, figsize=(6.9, 3.3))
for name, look in CURVES.items():
    plots.curve(axes[0], by_steps[name], look)
for kind, shade in zip(lead_after, shades.values()):
    plots.curve(axes[1], lead_after[kind], (f"{kind} heads", shade, "o-"))
axes[1].axhline(0, color=plots.BLACK, lw=1)
for ax, label in zip(axes, ("test accuracy, %", "CART's lead, points")):
    ax.set(xscale="log", xlabel="steps per expert", ylabel=label)
    ax.set_xticks(lead_after["frozen"].index, [f"{n:,}" for n in lead_after["frozen"].index])
    ax.minorticks_off()
axes[0].legend(fontsize=11, loc="center right", labelspacing=0.3)
axes[1].legend(fontsize=11)
axes[1].set_ylim(-2, 8)
title = "Past 400 steps, only the experts improve"
figure.suptitle(title, fontsize=13, weight="bold", x=0.01, ha="left")
plt.show()


# %% tags=["remove-input"]
def changed(table, first, last):
    """Return how test accuracy under frozen heads changes between two numbers of steps."""
    table = table.assign(method=table["method"] + table["steps"].astype(str))
    pairs = {name: (f"{name}{last}", f"{name}{first}") for name in ("individual", "cart")}
    return paired(table, pairs)


changes, few = (changed(pair[0], 400, 1600) for pair in (lengths, few_passes))
longer = changed(on_minilm[0], 100, 400)
early, late = (text(lead_after["frozen"].loc[count]) for count in (25, 1600))
display(
    Markdown(f"""
From 400 to 1,600 steps the experts change by {text(changes.loc["individual"])} points and CART by {text(changes.loc["cart"])}.
The lead of CART over task arithmetic hardly depends on the length: it is {early} points after 25 steps and {late} after
1,600 under frozen heads, and at most {lead_after["fitted"]["mean"].max():.1f} under fitted ones.

With a sixteenth of the training examples, 1,600 steps are more than 200 passes over them. From 400 to 1,600 steps the experts then change by
{text(few.loc["individual"])} points and CART by {text(few.loc["cart"])}, no detectable change.

MiniLM's experts were trained on the four tasks with the shortest sentences. CART's lead is {text(minilm_after["frozen"].loc[25])} points after 25 steps and
{text(minilm_after["frozen"].loc[400])} after 400 under frozen heads, and {text(minilm_after["fitted"].loc[25])} and {text(minilm_after["fitted"].loc[400])} under fitted heads. The intervals of both changes contain zero. The experts'
accuracy changes by {text(longer.loc["individual"])} points from 100 to 400 steps, so we see no sign that MiniLM's experts on the other pages, which have 125 steps, were stopped too early.
""")
)

# %% [markdown]
# ## Five uses of the same labels
#
# Labels can choose a merge's settings, fit heads, learn coefficients or train one model on all tasks.
# The figure gives each of them the same labels, on the smaller ViT; frozen heads have their three per class besides.

# %% tags=["remove-input"] mystnb={"figure": {"caption": "Test accuracy by the number of labelled examples per task, for five uses of the labels. Smaller ViT on `vision8`, means and 95 % intervals over three seeds; 4,000 stands for all training examples, of which at most 500 choose CART's settings. Coefficients and the one model are trained for 200 steps.", "name": "fig-taught-labels"}, "image": {"alt": "Five curves over 5, 20, 100, 500 and 4,000 labels per task. CART with frozen heads is flat at 51 to 53 %. CART with fitted heads rises from 12 to 70 % and no merge with fitted heads from 11 to 67 %; they cross the flat line near 100 labels and between 100 and 500. Learned coefficients rise from 45 to 56 %, one model trained on all tasks from 35 to 58 %."}}
figure, ax = plt.subplots(figsize=(6.9, 3.9))
for look, rows in lines.items():
    plots.curve(ax, rows, look)
ax.set(xscale="log", xlabel="labelled examples per task", ylabel="test accuracy, %")
ax.set_xticks(rows.index, [f"{count:,}" for count in rows.index])
ax.minorticks_off()
ax.legend(fontsize=11)
ax.set_title("With 500 labels per task, fit new heads")
plt.show()


# %% tags=["remove-cell"]
def gain(budget, first, second):
    """Return the difference of two uses of the same labels, as text."""
    rows = []
    for method, head, by in (first, second):
        part = budgets[(budgets["method"] == method) & (budgets["head"] == head)]
        rows.append(part[(part["by"] == by) & (part["budget"] == budget)])
    both = [rows[0].assign(method="first"), rows[1].assign(method="second")]
    return text(paired(pd.concat(both), {"": ("first", "second")}).iloc[0])


NO_MERGE, CART, CART_FITTED = list(CHOICES)[:3]
trained = load_table("vision8-calibration").query("method == 'multitask' and examples == 0")
every = (
    load_table("vision8-fresh_heads").query("head == 'all'").groupby("method")["accuracy"].mean()
)

# %% tags=["remove-input"]
display(
    Markdown(f"""
* **Keep the frozen heads if there are 5 or 20 labels per task.** With 20 labels, CART with frozen heads is {gain(20, CART, NO_MERGE)} points ahead of no merge with fitted heads.
* **Fit heads if there are 500.** With 100 labels, fitted heads change the accuracy of CART by {gain(100, CART_FITTED, CART)} points,
  with 500 by {gain(500, CART_FITTED, CART)}.
* **Merging and fitting add up.** With 500 labels and fitted heads, CART is {gain(500, CART_FITTED, NO_MERGE)} points ahead of no merge.
* **Train longer than 200 steps if you have thousands of labels.** On the small ViT, 1,250 steps with all labels and
  frozen heads reach {100 * trained["accuracy"].mean():.0f} %, CART with fitted heads {100 * every["cart"]:.0f} %, and no merge with fitted heads {100 * every["pretrained"]:.0f} %.
""")
)

# %% [markdown]
# ## Why frozen heads favour low-rank rules
#
# A linear layer in closed form shows one reason. Each expert changes one direction of its own.
#
# ```{prf:proposition} Truncation restores the size of an update
# :label: prop-taught-size
# Let $W_t = W_0 + \sigma u_t v_t^\top$ for $t = 1, \dots, T$ with $T > 2$, orthonormal $u_t$ and orthonormal $v_t$. Then each of these rules gives
# $W_0 + a\,\sigma \sum_s u_s v_s^\top$: the average with $a = 1/T$, task arithmetic with $a = \lambda$, and CART at rank 1 with
# $a = 1/T + \lambda(1 - 1/T)$. CART at full rank has $a = 1/T$.
#
# On inputs $x$ of task $t$, that is, $v_s^\top x = 0$ for $s \neq t$, the logits under the expert's head $H_t$ differ from the expert's by
# $(a - 1)\,\sigma H_t u_t v_t^\top x$. If $u_t$ is not in the range of $W_0$, there is for each $a > 0$ another head with exactly the expert's logits.
# ```
#
# ```{prf:proof}
# The first two coefficients follow from the definitions. The centred task vector is $\sigma(1 - 1/T)\,u_t v_t^\top - (\sigma/T) \sum_{s \neq t} u_s v_s^\top$. This sum
# is its singular value decomposition, and for $T > 2$ the first singular value is the largest. Rank 1 keeps $\sigma(1 - 1/T)\,u_t v_t^\top$, and the sum over $t$ is
# added to the average. At full rank, centred task vectors sum to zero. On inputs of task $t$ the merged layer gives
# $W_0 x + a\,\sigma u_t v_t^\top x$, which proves the difference. Let $P$ be the projection onto $u_t$ along a complement that contains the range of
# $W_0$. Then $H_t(I + (1/a - 1)P)$ is the other head.
# ```
#
# So at its default scale $\lambda = 1$ CART restores each update at full size, where averaging leaves $1/T$ of it. A frozen head needs that size;
# a fitted head does not notice it. Task arithmetic would restore it at $\lambda = 1$, too. Where the experts' directions overlap, that scale also adds up what they share, and the best
# scale is nearer to $2/T$ ([](02-averaging-and-task-vectors)). The rules of the library at their defaults, for four experts in sixteen dimensions:

# %%
import torch

import mergelib as ml

generator = torch.Generator().manual_seed(SEED)
noise = [torch.randn(16, 16, generator=generator) for _ in range(3)]
u, v = (torch.linalg.qr(matrix).Q for matrix in noise[:2])
base = {"weight": u[:, 4:] @ noise[2][4:]}
experts = {str(t): {"weight": base["weight"] + 3 * u[:, [t]] @ v[:, [t]].T} for t in range(4)}
inputs = torch.randn(200, 16, generator=generator)
inputs -= inputs @ v[:, 1:4] @ v[:, 1:4].T  # of the first task
expert = inputs @ experts["0"]["weight"].T
rows = {}
for method in ("average", "task_arithmetic", "cart", "tsv"):
    settings = {"rank_ratio": 1 / 16} if method == "cart" else {}
    weight = ml.merge(method, experts, pretrained=base, **settings)["weight"]
    merged = inputs @ weight.T
    refitted = merged @ torch.linalg.lstsq(merged, expert, driver="gelsd").solution
    size = u[:, 0] @ (weight - base["weight"]) @ v[:, 0] / 3
    errors = [((made - expert).norm() / expert.norm()).item() for made in (merged, refitted)]
    rows[method] = [size.item(), *errors]
names = ["size of the update", "error, frozen head", "error, fitted head"]
table = pd.DataFrame.from_dict(rows, orient="index", columns=names).round(2).abs()
table

# %% [markdown]
# Real layers differ from this model: experts' directions overlap, and features of the pretrained model need not
# be able to carry a task. On EfficientNet they are not, and there CART keeps more than half of its lead under fitted heads: its features are better. On MiniLM
# the frozen heads are embedded class names, and two of its tasks have 77 and 150 classes: there, heads fitted to 100 labels are worse than the frozen ones.
#
# ## The parts of Frank-Wolfe merging
#
# In each of three rounds, the authors' released code does two things. An *oracle* picks one expert for each target task by a cosine with the gradient, and Adam learns a
# coefficient for each tensor of each pick. The figure varies these parts one by one in a single round, with eight experts, four target tasks and 100 labels for each.

# %% tags=["remove-input"] mystnb={"figure": {"caption": "Points of mean test accuracy, on four target tasks, that each part of released Frank-Wolfe merging adds to coefficients that 100 labels per task fit. Eight experts; five seeds on the ViT, three on the others; 95 % intervals across seeds.", "name": "fig-taught-fw"}, "image": {"alt": "Four differences with intervals across seeds, for the smaller ViT, EfficientNet and MiniLM. The oracle less all experts is 0 on the ViT, within a point, minus 2 on EfficientNet with an interval of 7 points to both sides, and just below 0 on MiniLM. Less random picks it is 6 to 7 points, with wide intervals that contain zero on the last two. Free coefficients are 4 to 7 points above the simplex. Coefficients per tensor are 3 and 4 points above those per model, and equal to them on MiniLM."}}
figure, ax = plt.subplots(figsize=(6.9, 3.2))
for place, ((network, rows), marker) in enumerate(zip(fw.items(), "os^")):
    heights = [row + 0.25 * (place - 1) for row in range(len(rows))]
    colour = (plots.BLUE, plots.VERMILION, plots.GREEN)[place]
    spread = {"xerr": rows["half_width"], "capsize": 3, "label": network, "color": colour}
    ax.errorbar(rows["mean"], heights, fmt=marker, **spread)
ax.axvline(0, color=plots.BLACK, lw=1)
ax.legend(loc="lower right", fontsize=10)
plots.name_axis(ax, PARTS)
ax.set(xlabel="points")
title = "At 100 labels, the oracle gains nothing over all experts"
figure.suptitle(title, fontsize=13, weight="bold", x=0.01, ha="left")
plt.show()

# %% tags=["remove-input"]
targets = load_table(REFERENCE, "picked").query("round == 0")["target"].mean()
ENTROPY, EVERY = "entropy|tensor|free", "all labels|tensor|free"
pairs = {"entropy": (f"oracle|{ENTROPY}", f"all|{ENTROPY}")}
pairs["released"] = (f"released|{EVERY}", f"all|{EVERY}")
further = paired(cells["smaller ViT"], pairs)
small, efficient, minilm = fw.values()
SIMPLEX, GRAIN = [*PARTS][2:]
by_seed = cells["EfficientNet"].groupby(["method", "seed"])["accuracy"].mean()
less = by_seed[f"own|{FREE}"] - by_seed[f"oracle|{FREE}"]
agreed, lost = int((less == 0).sum()), less.max()
display(
    Markdown(f"""
On the smaller ViT, the oracle picks the four target tasks' own experts in {100 * targets:.0f} % of the cases. On EfficientNet it does in two of three seeds; in the third it takes
another expert and loses {lost:.0f} points to their own, so neither difference of the oracle is decided there. On MiniLM it picks them in all three seeds. Free coefficients are {text(small.loc[SIMPLEX])} points above coefficients that are positive and add up to at most one (the
simplex), {text(efficient.loc[SIMPLEX])} on EfficientNet and {text(minilm.loc[SIMPLEX])} on MiniLM. One per tensor is {text(small.loc[GRAIN])} points above one per model, {text(efficient.loc[GRAIN])} on EfficientNet,
and {text(minilm.loc[GRAIN])} on MiniLM.

The released algorithm, with all labels and three times as many steps, is {text(further.loc["released"])} points above one round with all experts (smaller ViT). If the coefficients
minimise the entropy of unlabelled inputs, the oracle's picks are {text(further.loc["entropy"])} points above all experts.

Coefficients of all experts are {text(fw_heads["smaller ViT"])} points more accurate than the pretrained model with heads fitted to the same 100 labels on the smaller ViT,
{text(fw_heads["EfficientNet"])} on EfficientNet and {text(fw_heads["MiniLM"])} on MiniLM.
""")
)

# %% [markdown]
# ## Resources that comparisons leave out
#
# Each paper compares methods that do not have the same resources. The table gives one such resource per paper, and what it is worth here.

# %% tags=["remove-cell"]
from mergebook.sail.read import factorial
from mergebook.stability.read import guides

names = ("curvature", "gradients", "points", "adam")
record = {name: load_table("vision8-stability-vit_small", name) for name in names}
sweep = [load_table("vision8-scaling-vit_small", name) for name in ("merged", "experts")]
settings = guides.settings(*sweep, record)
again = guides.validated(settings, load_table("vision8-scaling-validated", "merged"))
bound = interval(guides.regrets(settings)["theorem_3"].tolist())
unit = interval(guides.regrets(guides.settings(*sweep, record, 1.0))["theorem_3"].tolist())
search = interval(guides.regrets(again)["validated"].tolist())
effects = factorial.effects().query("factor == 'merging' and effect == 'shared'")
two = {
    name: interval(effects[effects["modality"] == name].groupby("seed")["loss"].mean().tolist())
    for name in ("GPT", "ResNet")
}
digits = load_table("digits-fusion").query("data == 'homogeneous' and start == 'own'")
digits["accuracy"] *= 100
usual = digits.query("levels == 'layer' and prototypes == 'geometric' and iterations == 1")
digits = pd.concat([digits[digits["method"] == "better"], usual])
parent = paired(digits, {"": ("cogram", "better")}).iloc[0]


# %% tags=["remove-input"]
oracle = fw["smaller ViT"].loc["oracle − all experts"]
lead, fitted_lead = (leads[kind].iloc[1] for kind in ("frozen", "fitted"))
display(
    Markdown(f"""
| paper | resource that the comparison leaves out | its worth |
|---|---|---|
| CART | heads made from the pretrained model, and labels for settings | small-ViT lead over task arithmetic {text(lead)} points, with fitted heads {text(fitted_lead)} |
| Frank-Wolfe | free coefficients, learned from labels | the oracle adds {text(oracle)} points to them (smaller ViT) |
| CoGraM | 2,000 labelled examples, which can also choose the better parent | one pass with Eq. 1 minus that parent, digits: {text(parent)} points |
| stability | validation labels, of which the bound needs none | points lost to the best setting: by the bound with a measured smoothness $L$ {plus_minus(*bound, 1)}, with $L = 1$, which no theory gives, {plus_minus(*unit, 1)}, by a search on 200 labels per task {plus_minus(*search, 1)} |
| SAIL | a second source, and its cost | loss from two merged source networks less that from one (positive: worse): GPT {plus_minus(*two["GPT"], 3)} nats, ResNet {plus_minus(*two["ResNet"], 3)} |
""")
)

# %% [markdown]
# ## In practice
#
# 1. **Start from one pretrained model.** Otherwise, match neurons first, and compare with the better parent.
# 2. **Report the pretrained model with fitted heads.** It is the baseline that costs no more labels than tuning.
# 3. **Choose scale and rank together**, on 20 or more labelled examples per task ([](24-choosing-checking-reporting)).
# 4. **Train if you have the labels for it.** One model trained on all tasks is the baseline for methods that use many labels.
# 5. **Compare at equal cost**: count labels, the experts that are tried, and the training of sources.
#
# ## Check against known values

# %% tags=["hide-input", "nbval-check-output"]
print("sizes:", table["size of the update"].tolist())
print("a fitted head does not notice the size:", table["error, fitted head"].max() < 1e-3)

# %% tags=["remove-cell"]
assert table["size of the update"].tolist() == [0.25, 0.3, 1.0, 1.0]
assert (leads["frozen"]["mean"] > leads["fitted"]["mean"]).all()
ratio = leads["fitted"]["mean"] / leads["frozen"]["mean"]
assert 0.5 < ratio.iloc[0] < 0.7
assert (ratio.iloc[1:4] < 0.25).all()
assert beyond["frozen"]["mean"].round().tolist() == [9, -6, -10, 1, 14]
assert beyond["fitted"]["mean"].round().tolist() == [18, 4, 4, 9, 8]
language = [frame.query("method == 'cart'")["accuracy"].mean() for frame in heads[[*NETWORKS][-1]]]
assert language[0] > language[1] + 3
assert abs(small["mean"].iloc[1]) < 0.5
others = small.drop("oracle − all experts")
assert (others["mean"] > others["half_width"]).all()
assert (efficient["mean"].abs() < efficient["half_width"]).tolist() == [True, True, False, False]
assert (agreed, round(lost)) == (2, 5)
assert [text(row) for _, row in minilm.iterrows()][1:] == ["−0.4 ± 0.1", "6.9 ± 3.9", "0.1 ± 0.8"]
own = cells["MiniLM"].groupby(["method", "seed"])["accuracy"].mean()
assert own[f"own|{FREE}"].equals(own[f"oracle|{FREE}"])

# %% tags=["remove-cell"]
for suite in ("imagenet", "vision", "glyphs"):
    assert closed[[f"{suite}{count}" for count in (8, 14, 20)]].is_monotonic_decreasing
gained = by_steps["individual"]["mean"].diff().dropna()
assert (gained > 0).all()
assert changes["mean"].round().tolist() == [2, -2]
assert (few["mean"].abs() < few["half_width"]).all()
assert (longer["mean"].abs() < longer["half_width"]).all()
for rows in on_minilm:  # whether the lead changes from 25 to 400 steps
    wide = rows.groupby(["seed", "steps", "method"])["accuracy"].mean().unstack()
    lead = (wide["cart"] - wide["task_arithmetic"]).unstack()
    mean, half = interval((lead[400] - lead[25]).tolist())
    assert abs(mean) < half
assert lead_after["frozen"]["mean"].between(2.5, 3.6).all()
assert lead_after["fitted"]["mean"].between(0.3, 0.7).all()
ends = {look[0]: rows["mean"].iloc[[0, -1]].tolist() for look, rows in lines.items()}
told = ([11, 67], [52, 53], [12, 70], [45, 56], [35, 58])
assert all(abs(np.subtract(ends[look[0]], values)).max() < 1 for look, values in zip(lines, told))
