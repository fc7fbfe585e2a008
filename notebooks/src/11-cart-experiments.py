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
# # CART: the experiments
#
# **In one sentence:** with frozen heads CART is clearly above the methods that work entry by entry on two networks for
# pictures, while its lead over TIES on a sentence encoder is not clear over tasks; that encoder keeps nearly all of its
# experts' accuracy, most of which it has without any fine-tuning; newer spectral methods are ahead or behind, by network
# and number of tasks; and neither 8 % of the rank nor row-space interference tells where CART works best.
#
# [](10-cart) explained the method; this chapter repeats the paper's experiments {cite}`choi2025revisiting`.
#
# **After this chapter you can**
#
# * place CART among data-free methods, with intervals;
# * choose its rank and scale, with labels or without;
# * weigh the storage of a compressed expert against its accuracy.
#
# **Before you start:** [](10-cart). **Time:** 12 minutes to read, less than a minute to run; most numbers
# are read from `results/`, which `mergebook measure` wrote ([](../book/how-to-run)).

# %% tags=["parameters", "remove-cell"]
SUITE = "glyphs8"
PROFILE = "default"
SEED = 0
DEVICE = "cpu"

# %% [markdown]
# ## Reading results
#
# Three networks carry this chapter: our own vision transformer on 8, 14 or 20 sets of small pictures, over
# five seeds; EfficientNet-Lite0, pretrained on ImageNet, on the first eight of them, and the sentence encoder
# MiniLM on eight sets of sentences, over three ([](#run-real)).
#
# Seeds redraw splits, heads and the order of training. Differences are paired, with two intervals of 95 %:
# Student's over seeds, which is about these tasks, and one from a model with seeds *and* tasks as random effects, which
# is about tasks like these. A difference is called clear where the second interval excludes zero.
# Settings are chosen on labelled validation examples, so "data-free" is not free of labels.
#
# Every accuracy is measured with the task's own **frozen head**, as in the paper. How much of a lead remains when the
# heads are refitted on the labels that were spent on the settings has not been measured in this book.

# %% tags=["remove-cell"]
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

from mergebook import plots
from mergebook.cart import read as cart
from mergebook.cart.paper import EXPERTS, LADDER, TABLE
from mergebook.lab.results import load_result, load_table
from mergebook.lab.statistics import both_intervals, over_seeds, paired, written, written_both
from mergebook.plots import colour, contours, curve, forest, heat_map, label, rank_axis

plots.use_style()

# %% [markdown]
# ## The table of methods
#
# The paper's Table 1, as shares of what the tasks' own experts reach:

# %% tags=["remove-input"] mystnb={"figure": {"caption": "Merged over individual accuracy with eight tasks, 95 % intervals over seeds. Crosses: CLIP ViT-B/32 in the paper's Table 1, on other tasks.", "name": "fig-cart-ladder"}, "image": {"alt": "Bars for three networks. On each the pretrained model is lowest, then the average; task arithmetic, TIES and Consensus are close together, and CART, TSV and Iso-C stand a step above them. On the two networks for pictures merges end between 55 and 77 percent, well left of the paper's crosses; on MiniLM they end between 82 and 96 percent, and CART's ends at the paper's cross."}}
paper = dict(zip(LADDER, 100 * np.array(TABLE["vision8"]) / EXPERTS))
fig, axes = plt.subplots(1, 3, figsize=(10, 4.2), sharey=True, sharex=True)
for ax, (name, suite) in zip(axes, cart.SUITES.items()):
    shares = cart.normalised(f"{suite}-baselines")
    bars = {"color": list(map(colour, shares.index)), "xerr": shares["half_width"]}
    ax.barh(list(map(label, shares.index)), shares["mean"], capsize=3, **bars)
    rows = [list(shares.index).index(method) for method in paper]
    ax.plot(list(paper.values()), rows, "kx", ms=8, mew=2)
    ax.set(title=name, xlabel="merged / individual, %", xlim=(40, 100))
axes[0].invert_yaxis()
plt.show()

# %% [markdown]
# In the means the order is the paper's on all three: what works entry by entry, then a step up to what works on singular
# directions: CART, and TSV {cite}`gargiulo2025task` and Iso-C {cite}`marczak2025task`, which the paper does
# not have. CART's lead in points of accuracy under frozen heads, with 95 % intervals over seeds and tasks:

# %% tags=["remove-input"]
cart.written_leads(cart.SUITES)

# %% tags=["remove-cell"]
leads = {name: cart.lead(suite) for name, suite in cart.SUITES.items()}
entrywise = [f"CART − {label(m)}" for m in ("average", "task_arithmetic", "ties", "consensus")]
for name in ("our ViT", "EfficientNet-Lite0"):
    assert (leads[name].loc[entrywise, "low"] > 0).all()
on_sentences = leads["MiniLM"].loc[entrywise, "low"]
assert list(on_sentences[on_sentences < 0].index) == ["CART − TIES"]
six = cart.baselines("sentences8").query("task not in ['banking77', 'clinc150']")
over_six = 100 * both_intervals(six, {"TIES": ("cart", "ties")}).loc["TIES"]
assert 0.5 < over_six["mean"] < 1.5
assert over_six["low"] < 0
assert leads["our ViT"].loc["CART − TSV", "high"] < 0
for name in ("EfficientNet-Lite0", "MiniLM"):
    for other in ("TSV", "Iso-C"):
        ends = leads[name].loc[f"CART − {other}"]
        assert ends["low"] < 0 < ends["high"]

# %% [markdown]
# Under frozen heads the lead over the entry-wise methods is clear on both networks for pictures. On MiniLM the lead over
# TIES is not: two sets, with 77 and 150 classes, make most of it, and over the other six it is about a point. Its size differs several-fold between the networks, so for another network these three predict little
# (the [](90-claims-ledger) has a prediction interval). TSV is clearly ahead of CART on our network; elsewhere neither
# TSV nor Iso-C can be told from it.
#
# ## What the network changes
#
# How much is kept differs more between networks than between methods.

# %% tags=["remove-input"] mystnb={"figure": {"caption": "Merged over individual accuracy against the network's parameters, eight tasks, means over seeds: 0.4 and 1.4 million on small pictures, 3.4 million on the same pictures enlarged, 22.6 million on sentences.", "name": "fig-cart-sizes"}, "image": {"alt": "Eight lines over four networks, the lowest that of the pretrained model. They rise from 0.4 to 1.4 million parameters, fall for most methods at 3.4 million, and are far higher at 22.6 million. CART, TSV and Iso-C are above the other four at every size; the spread between methods is smallest at the largest network."}}
fig, ax = plt.subplots(figsize=(7.2, 4.6))
files = {0.4: "vision8-baselines-vit_small", 1.4: "vision8-baselines"}
files |= {3.4: "imagenet8-baselines", 22.6: "sentences8-baselines"}
sizes = pd.DataFrame({size: cart.normalised(file)["mean"] for size, file in files.items()})
for method, shares in sizes.iterrows():
    ax.plot(shares.index, shares, "o-", color=colour(method), label=label(method))
ax.set(xscale="log", xlabel="parameters, millions", ylabel="merged / individual, %")
ax.set_xticks(list(files), [f"{size:g}" for size in files])
ax.legend(ncols=2, fontsize=10)
plt.show()

# %% tags=["remove-input"]
from mergebook.lab.statistics import interval, plus_minus

rows = {}
for name, suite in cart.SUITES.items():
    tasks, pairs, spectra = (
        load_table(f"{suite}-geometry", part) for part in ("tasks", "pairs", "spectra")
    )
    in_few = spectra.query("centred and rank_ratio == 0.08").assign(kept=lambda t: 100 * t["kept"])
    tasks["length"] *= 100
    ranks = load_table("vision8-ranks") if suite == "vision8" else load_table(f"{suite}-surface")
    at_one = ranks.query("method == 'cart' and scale == 1").groupby("rank_ratio")["accuracy"]
    columns = {
        "‖τ‖ / ‖θ₀‖, %": (tasks, "length", 1),
        "cosine of τ": (pairs, "cosine", 3),
        "in 8 % of rank, %": (in_few, "kept", 0),
    }
    rows[name] = {"parameters, 10⁶": f"{tasks['parameters'].iloc[0] / 1e6:.1f}"}
    for text, (table, column, digits) in columns.items():
        ends = interval(table.groupby("seed")[column].mean().tolist())
        rows[name][text] = plus_minus(*ends, digits)
    rows[name]["best rank at λ = 1, %"] = f"{100 * at_one.mean().idxmax():g}"
pd.DataFrame(rows)

# %% [markdown]
# More parameters alone do not help, nor does ImageNet: on the same pictures EfficientNet keeps no more than our
# own network by most methods. Nor is it geometry: on all three task vectors are nearly orthogonal and as much of low rank, and
# EfficientNet's are much shorter than ours. But MiniLM begins closer to its goal: untouched it reaches three quarters of its
# experts, the other two about half.
#
# Is it pretraining or the network? The same EfficientNet on the pictures as they are, of 32 pixels: once from ImageNet's
# weights, and once pretrained as our own network was, on the same sets for half of the epochs.

# %% tags=["remove-input"] mystnb={"figure": {"caption": "Accuracy on the same eight sets of pictures at 32 pixels after two ways of pretraining; 95 % intervals over seeds (three; five for our network).", "name": "fig-cart-pretraining"}, "image": {"alt": "Three sets of points in eight rows. EfficientNet after ImageNet rises from 29 percent untouched to 45 with CART, its experts reach 70. After our pretraining it stays at 30 to 33 whatever the method, and its experts reach 47. Our own network rises from 45 to above 60, its experts reach 80."}}
kinds = ("pretrained", "average", "task_arithmetic", "ties", "iso_c", "tsv", "cart", "individual")
fig, ax = plt.subplots(figsize=(7.6, 4.4))
files = {
    "lite8-baselines": ("Lite0 after ImageNet", plots.BLUE, "o"),
    "lite8-baselines-lite0_small": ("Lite0 after our pretraining", plots.SKY, "s"),
    "vision8-baselines": ("our ViT after our pretraining", plots.SILVER, "^"),
}
for k, (file, look) in enumerate(files.items()):
    reached = 100 * over_seeds(load_table(file), "method").loc[list(kinds)]
    plots.dots(ax, reached, look, kinds, shift=0.2 * (k - 1), ms=7)
plots.name_axis(ax, map(label, kinds))
ax.set_xlabel("mean test accuracy, %")
ax.legend(fontsize=11)
plt.show()

# %% [markdown]
# It is both. Pretrained as ours was, EfficientNet learns little: no merge gets a point above the untouched network, and
# even its experts hardly pass *our* network untouched. With ImageNet's weights the experts are good, and CART closes more than a
# third of the way to them, where the average hardly moves. But our smaller network, made for small pictures, is ahead
# of both. What a merge needs is a start from which the tasks are *near*; a large network is none by itself.
#
# EfficientNet's experts keep ImageNet's statistics of BatchNorm. Measuring these anew after merging, on pictures of all
# tasks, does not repair the merge but spoils it, since no expert was fine-tuned under others. Points gained:

# %% tags=["remove-input"]
table = load_table("imagenet8-batch_norm").query("method != 'individual'")
methods = table["method"].unique()
table["method"] += " " + table["statistics"]
pairs = {label(method): (f"{method} measured", f"{method} merged") for method in methods}
written_both(100 * both_intervals(table, pairs))

# %% [markdown]
# ## More tasks
#
# The paper has 14 and 20 tasks, too.

# %% tags=["remove-input"] mystnb={"figure": {"caption": "Merged over individual accuracy with 8, 14 and 20 tasks; 95 % intervals over five seeds (our network) and three.", "name": "fig-cart-more"}, "image": {"alt": "Two panels. On our network CART, TSV and Iso-C fall together from 76 to 72 percent, and entry-wise methods from 68 to 66. On EfficientNet the entry-wise methods stay below 60, CART falls slowly from 75 to 72 percent, and TSV and Iso-C fall faster, to 67. The pretrained model rises in both."}}
fig, axes = plt.subplots(1, 2, figsize=(9.6, 4.2), sharey=True)
for ax, (name, family) in zip(axes, (("our ViT", "vision"), ("EfficientNet-Lite0", "imagenet"))):
    parts = {count: cart.normalised(f"{family}{count}-baselines") for count in (8, 14, 20)}
    shares = pd.concat(parts).swaplevel()
    for k, (method, look) in enumerate(plots.method_looks(cart.METHODS).items()):
        rows = shares.loc[method]
        curve(ax, rows.set_axis(rows.index + 0.1 * (k - 3.5)), look, ms=6)
    ax.set(title=name, xlabel="merged tasks", xticks=list(parts))
axes[0].set_ylabel("merged / individual, %")
plots.legend_outside(fig, ncols=4)
plt.show()

# %% [markdown]
# CART keeps its lead over the entry-wise methods, six points of share on our network and about fifteen on EfficientNet, where
# it also leaves TSV and Iso-C behind as tasks become more. Its lead there, in points of accuracy:

# %% tags=["remove-input"]
cart.written_leads({f"{count} tasks": f"imagenet{count}" for count in (8, 14, 20)})

# %% tags=["remove-cell"]
for count in (14, 20):
    assert (cart.lead(f"imagenet{count}")["low"] > 0).all()

# %% [markdown]
# For its Figure 7 the paper draws random subsets of 20 tasks; these are five for each of five seeds, with its
# appendix D's grids searched for every subset:

# %% tags=["remove-input"] mystnb={"figure": {"caption": "Normalised accuracy (merged over individual) against the number of merged tasks: means over random subsets and five seeds, with standard errors. Dotted: the pretrained model.", "name": "fig-cart-counts"}, "image": {"alt": "All curves fall towards the dotted line of the pretrained model from 4 to 20 tasks. Both curves of CART are above the others from four tasks on; the one with its scale searched is highest, and meets the one at scale 1 at 20 tasks. Task arithmetic, whose scale is capped, is far below the average at two tasks."}}
counts = load_table("vision20-task_counts")
kinds = {"cart": ("-", "CART, scale 1"), "cart, scale searched": ("--", "CART, scale searched")}
fig, ax = plt.subplots(figsize=(7.2, 4.6))
for method, part in counts.groupby("method", sort=False):
    line, text = kinds.get(method, ("-", label(method)))
    shade = colour("cart") if method in kinds else colour(method)
    mean, error = 100 * part.groupby("count")["normalised"].agg(["mean", "sem"]).to_numpy().T
    style = {"color": shade, "ls": line, "marker": "o", "capsize": 3}
    ax.errorbar(counts["count"].unique(), mean, error, label=text, **style)
bounds = load_table("vision20-task_counts", "bounds")
floor = 100 * (bounds["pretrained"] / bounds["individual"]).mean()
ax.axhline(floor, color=plots.GREY, lw=1.5, ls=":")
ax.set(xlabel="merged tasks", ylabel="normalised accuracy, %", xticks=counts["count"].unique())
ax.legend()
plt.show()

# %% [markdown]
# CART leads from four tasks on, and loses about as much as the average on the way. Of two tasks it *is* the average
# ({prf:ref}`prop-cart-ends`); task arithmetic is below it there because appendix D's grid ends at a scale of 0.3, and the
# average of two is $\lambda = 1/2$.
#
# ## Rank and scale
#
# Figure 1 of the paper is the bell: accuracy against the kept rank $k$, at scale $\lambda = 1$. Ours adds the scale.

# %% tags=["remove-input"] mystnb={"figure": {"caption": "Accuracy against the kept rank on eight vision tasks, five seeds (bands: 95 % intervals). Centred vectors at three scales, uncentred ones at task arithmetic's usual scale.", "name": "fig-cart-bells"}, "image": {"alt": "Three bell-shaped curves of CART start and end at the level of the average. At scale 1 the peak is at 8 percent of the rank, at scale 2 near 12 percent, at scale 3 near 16 percent and highest, where a small rank falls far below the average. The uncentred curve rises and flattens without a peak, below all three peaks."}}
curves = load_table("vision8-ranks")
curves = curves.assign(rank=100 * curves["rank_ratio"], accuracy=100 * curves["accuracy"])
shades = {1.0: plots.SAND, 2.0: plots.TAN, 3.0: plots.RUST}
looks = {("cart", scale): (f"CART, scale {scale:g}", s, "o-") for scale, s in shades.items()}
looks["low_rank_task_arithmetic", 0.3] = ("uncentred, scale 0.3", plots.NAVY, "o-")
fig, ax = plt.subplots(figsize=(7.2, 4.8))
by = {"by": ["method", "scale"], "looks": looks}
plots.series(ax, curves, x="rank", y="accuracy", **by, band=True, ms=4)
ax.axvline(8, color=plots.GREY, ls=":", lw=1.5)
ax.text(8.4, 61.5, "8 %", color=plots.DARK)
rank_axis(ax, scale="symlog", ticks=(0, 1, 2, 4, 8, 16, 32, 100))
ax.set(ylabel="mean test accuracy, %", xlim=(0, 100))
ax.legend()
plt.show()

# %% [markdown]
# At scale 1 the peak lies at 8 %, where the paper puts it. But it *moves* with the scale, and is
# higher each time. On the pretrained networks:

# %% tags=["remove-input"] mystnb={"figure": {"caption": "CART's mean test accuracy over rank and scale with eight tasks, means over three seeds. Frame: the best cell.", "name": "fig-cart-planes"}, "image": {"alt": "Two heat maps of six ranks and six scales. In both a bright ridge runs from small rank and small scale to large rank and large scale, and falls off steeply below it, towards small ranks at large scales. The best cell lies on the ridge, at a larger rank or scale than 8 percent and scale 1."}}
fig, axes = plt.subplots(2, 1, figsize=(7.6, 7.4))
for ax, (name, suite) in zip(axes, cart.PRETRAINED.items()):
    wide = cart.plane(suite).rename(index="{:.0%}".format, columns="{:g}".format)
    top = wide.to_numpy().max()
    heat_map(wide, ax, low=top - 30, high=top, digits=1, bar="accuracy, %")
    row, column = divmod(wide.to_numpy().argmax(), wide.shape[1])
    ax.add_patch(plt.Rectangle((column, row), 1, 1, fill=False, ec=plots.VERMILION, lw=3))
    ax.set(title=name, ylabel="kept rank")
axes[-1].set_xlabel("scale λ")
plt.show()

# %% [markdown]
# Both have a *ridge*: a larger rank wants a larger scale, and along it accuracy changes little. "8 %" belongs to
# $\lambda = 1$, and even there MiniLM is best at a smaller rank. Where the plane is highest with four tasks, drawn
# anew for each seed, and with all eight:

# %% tags=["remove-input"]
rows = {}
for name, suite in cart.PRETRAINED.items():
    for count, part in ((4, "-4"), (8, "")):
        wide = cart.plane(suite, part)
        scale, rank = wide.unstack().idxmax()
        rows[f"{name}, {count} tasks"] = {
            "best rank": f"{rank:.0%}",
            "best scale": f"{scale:g}",
            "accuracy": f"{wide.to_numpy().max():.1f}",
            "best rank at scale 1": f"{wide[1.0].idxmax():.0%}",
            "accuracy there": f"{wide[1.0].max():.1f}",
        }
pd.DataFrame.from_dict(rows, orient="index")

# %% [markdown]
# With half of the tasks the best cell lies at a smaller rank on both networks: rank, scale and number of tasks are
# one choice and not three. On our network, validation hardly ever chooses 8 %:

# %% tags=["remove-input", "nbval-check-output"]
files = [f"vision{count}-baselines{net}" for count in (8, 14, 20) for net in ("", "-vit_small")]
chosen = pd.concat([load_table(file, "chosen")["settings"] for file in files])
counts = chosen.map(lambda settings: settings["cart"]["rank_ratio"]).value_counts().sort_index()
for ratio, count in counts.items():
    print(f"{ratio:.0%} of the rank: {count} of 30 runs")

# %% [markdown]
# ## Interference and reconstruction
#
# The paper explains the bell by row-space interference (its Eq. 5) and reconstruction error (Eq. 7),
#
# $$ I(k) = \sum_{i \ne j} \bigl\| \tilde\Sigma_i V_i^\top V_j \tilde\Sigma_j \bigr\|_F, \qquad
# R(k) = \sum_t \bigl\| \bar\tau_t - \text{SVD}_k(\bar\tau_t) \bigr\|_F^2, $$ (eq-exp-interference)
#
# where $\tilde\Sigma_t$ holds the $k$ largest singular values over an $\ell_2$ norm, of the kept values or of all:
# the paper does not say. Its Figure 3 has $I$ *rising* with $k$, its Figures 2 and 8 have it lower for centred
# vectors everywhere.

# %% tags=["remove-input"] mystnb={"figure": {"caption": "Left: row-space interference of centred vectors on our network, with the reconstruction error. Middle and right: by how much it is higher than that of uncentred ones, for both norms; means over layers (bands: where nine of ten layers lie). Eight tasks; five seeds, and three on the real networks.", "name": "fig-cart-interference"}, "image": {"alt": "Left: with the norm over the kept values the interference falls with the rank; with the norm over all values it rises, while the reconstruction error falls. Middle: the lines of all three networks lie above zero everywhere. Right: they begin below zero at one percent of the rank and cross it at two to sixteen percent."}}
spectra = load_table("vision8-interference", "curves").query("centred and rank_ratio > 0")
norms = {"interference": (plots.RUST, "kept"), "interference_all": (plots.TAN, "all")}
error = spectra.groupby("rank_ratio")["reconstruction"].mean()
fig, axes = plt.subplots(1, 3, figsize=(10, 4.2))
for ax, (column, (shade, text)) in zip(axes[1:], norms.items()):
    means = spectra.groupby("rank_ratio")[column].mean()
    axes[0].plot(100 * means.index, means, "o-", ms=4, color=shade, label=f"norm over {text}")
    for (name, suite), tint in zip(cart.SUITES.items(), (plots.SILVER, plots.BLUE, plots.GREEN)):
        excess = cart.centred_excess(column, suite)
        ax.plot(100 * excess.columns, excess.mean(), "o-", ms=4, color=tint, label=name)
        low, high = excess.quantile(0.05), excess.quantile(0.95)
        ax.fill_between(100 * excess.columns, low, high, color=tint, alpha=0.15)
    ax.axhline(0, color=plots.DARK, lw=1)
    ax.set_title(f"norm over {text}")
top = axes[0].get_ylim()[1]
axes[0].plot(100 * error.index, top * error, "k--", label="R(k), rescaled")
axes[0].set(ylim=(0, None), ylabel="row-space interference", title="our ViT")
axes[0].legend(fontsize=10)
axes[1].set_ylabel("centred over uncentred, %")
for ax in axes:
    rank_axis(ax)
fig.legend(*ax.get_legend_handles_labels(), loc="outside lower center", ncols=3)
plt.show()

# %% [markdown]
# Neither norm gives the paper's picture, lower in every layer at every rank, on any of these networks. In how many per
# cent of the layers is the interference of centred vectors lower?

# %% tags=["remove-input"]
norms_of = {"norm over kept": "interference", "norm over all": "interference_all"}
measured = [0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 1.0]
shares = {
    (text, name): 100 * (cart.centred_excess(column, suite)[measured] < 0).mean()
    for text, column in norms_of.items()
    for name, suite in cart.SUITES.items()
}
shares = pd.DataFrame(shares).T.rename_axis(None, axis=1)
shares.rename(columns="{:.0%} of the rank".format).round(0).astype(int)

# %% tags=["remove-cell"]
kept, over_all = (shares.loc[text] for text in norms_of)
assert (kept.loc["our ViT"] == 0).all()
assert kept.loc["EfficientNet-Lite0"].between(9, 25).all()
assert kept.loc["MiniLM"].max() < 9
assert over_all.loc["our ViT", [0.01, 0.04, 0.08]].round().tolist() == [62, 44, 6]
assert over_all.loc["EfficientNet-Lite0", [0.01, 0.04, 0.08]].round().tolist() == [64, 64, 52]
assert over_all.loc["MiniLM", [0.01, 0.02, 0.04, 0.08]].round().tolist() == [83, 58, 17, 8]
assert (over_all[1.0] < 25).all()

# %% [markdown]
# With the norm over the kept values it is lower in none of our network's layers and in few of the others'. With the norm
# over all it is lower in most layers at 1 % of the rank, and in a quarter of them or fewer at full rank; in between the
# networks differ. EfficientNet keeps its majority up to 8 %, MiniLM loses it at 4 %. The paper shows CLIP's ViT-B/32,
# which is not measured here. As printed,
# $(\tilde\Sigma_i \tilde V_i)^\top (\tilde\Sigma_j \tilde V_j)$, Eq. 5 does not see directions at all:

# %% tags=["nbval-check-output"]
import torch

sigma, rows = torch.diag(torch.tensor([0.8, 0.6])), torch.eye(4)
for text, first, second in (("same", rows[:2], rows[:2]), ("orthogonal", rows[:2], rows[2:])):
    literal = torch.linalg.matrix_norm((sigma @ first).T @ (sigma @ second)).item()
    meant = torch.linalg.matrix_norm((sigma @ first) @ (sigma @ second).T).item()
    print(f"{text} directions: as written {literal:.2f}, as meant {meant:.2f}")

# %% [markdown]
# ## What tells accuracy without labels
#
# An explanation should predict *where* on the plane CART works. Take a task's inputs
# without labels, and unit features $z$ of the merged model, $z_e$ of the task's expert, $z_0$ of the pretrained
# model. What merging moved has a part along the expert's way and a rest:
#
# $$ z - z_0 = s\,(z_e - z_0) + r, \qquad r \perp z_e - z_0, \qquad
# \frac{\|z - z_e\|^2}{\|z_e - z_0\|^2} = (1 - s)^2 + \frac{\|r\|^2}{\|z_e - z_0\|^2} : $$ (eq-cart-told)
#
# the **signal** $s$ that is kept, the **interference** $\|r\|/\|z_e - z_0\|$ that is added, and their sum, the
# **error**. Beside them: how often merged model and expert **agree** on the class, the **entropy** of
# predictions, and the **distance** from the average in weight space.


# %% tags=["remove-cell"]
from mergebook.lab.statistics import crossed


def ordered(suite):
    """Spearman's correlation with accuracy, for the task itself and apart from the mean task."""
    rows = {}
    for quantity, sign in cart.SIGNS.items():
        found = {"own": [], "apart": []}
        for _, part in cart.points(suite).groupby("seed"):
            pair = [
                part.pivot(index=["rank_ratio", "scale"], columns="task", values=column)
                for column in ("accuracy", quantity)
            ]
            for kind, shared in (("own", 0.0), ("apart", 1.0)):
                centred = (wide.sub(shared * wide.mean(axis=1), axis=0) for wide in pair)
                x, y = (wide.round(9).rank().sub(wide.round(9).rank().mean()) for wide in centred)
                lengths = ((x**2).sum() * (y**2).sum()) ** 0.5
                found[kind].append((sign * (x * y).sum() / lengths).fillna(0).tolist())
        rows[quantity] = {kind: np.mean(values) for kind, values in found.items()}
        for kind, values in found.items():
            ends = crossed(np.array(values)).interval()
            rows[quantity] |= dict(zip((f"{kind}_low", f"{kind}_high"), ends))
    return pd.DataFrame.from_dict(rows, orient="index")


# %% tags=["remove-input"] mystnb={"figure": {"caption": "Spearman's correlation with test accuracy over CART's plane of rank and scale, per task; signs such that 1 is a perfect guide. Filled: as it is; open: what sets the task apart from the mean over tasks. 95 % intervals over seeds and tasks.", "name": "fig-cart-told"}, "image": {"alt": "Two panels with six rows. In both, agreement with the expert is the best guide, and keeps more than half of its correlation when the mean over tasks is taken off. Error and entropy order both planes, less well; on EfficientNet entropy falls to zero apart from the mean. Interference orders only EfficientNet's plane, signal neither; distance is zero apart from the mean by construction."}}
fig, axes = plt.subplots(1, 2, figsize=(8.4, 3.8), sharey=True, sharex=True)
for ax, (name, suite) in zip(axes, cart.PRETRAINED.items()):
    rows = ordered(suite)
    for kind, shift, face in (("own", -0.15, plots.RUST), ("apart", 0.15, "white")):
        for y, ends in enumerate(rows[[f"{kind}_low", f"{kind}_high"]].to_numpy()):
            ax.plot(ends, (y + shift, y + shift), color=plots.RUST, lw=1.5)
        ax.plot(rows[kind], np.arange(len(rows)) + shift, "o", color=plots.RUST, mfc=face)
    ax.axvline(0, color=plots.GREY, lw=1)
    ax.set(title=name, xlabel="rank correlation", yticks=range(len(rows)), xlim=(-1, 1))
    ax.set_yticklabels(rows.index)
axes[0].invert_yaxis()
plt.show()

# %% [markdown]
# **Agreement with the task's own expert** orders both planes best. It is accuracy with the expert's predictions in place
# of labels, so using it is validation on pseudo-labels: it needs every expert and inputs of every task, and does not
# explain why a merge works. The open dots are the control, deviations from
# the mean over tasks: agreement knows something of the single task, while entropy, which AdaMerging minimises,
# on EfficientNet knows nothing of it. Picking rank and scale by each, in points lost
# against the plane's best point:

# %% tags=["remove-input"]
written({name: cart.picked(suite) for name, suite in cart.PRETRAINED.items()})

# %% tags=["remove-cell"]
lost = {name: cart.picked(suite) for name, suite in cart.PRETRAINED.items()}
assert lost["MiniLM"]["mean"].idxmin() == "agreement"
pair = lost["EfficientNet-Lite0"].loc[["agreement", "entropy"]]
assert pair["mean"].diff().abs().iloc[1] < 0.2 < pair["half_width"].min()

# %% [markdown]
# As a guide agreement loses least on MiniLM. On EfficientNet, over three seeds, it cannot be told from entropy.
#
# ## Adapting the coefficients
#
# AdaMerging {cite}`yang2024adamerging` learns a scale for every expert, or for every expert and layer, by making
# predictions on unlabelled test inputs surer ([](20-adapting-with-data)); Eq. 8 puts it on top of
# CART. It starts at the settings that validation chose.

# %% tags=["remove-input"] mystnb={"figure": {"caption": "Points that AdaMerging gains over the merge that it starts from, eight tasks. Thick: 95 % intervals over seeds; thin: over seeds and tasks. Our network was measured by layer only.", "name": "fig-cart-adapted"}, "image": {"alt": "Three panels of three rows. On our network all gains are about zero. On EfficientNet CART gains two points by layer, with an interval that reaches zero, and task arithmetic and TIES lose two by task. On MiniLM task arithmetic and TIES gain one and a half points by layer, and CART nothing."}}
bases = ("task_arithmetic", "ties", "cart")
pairs = {label(base): (f"adamerging+{base}", base) for base in bases}
fig, axes = plt.subplots(1, 3, figsize=(10, 3.6), sharey=True, sharex=True)
for ax, (name, suite) in zip(axes, cart.SUITES.items()):
    parts = cart.by_granularity(load_table(f"{suite}-adaptation"))
    gains = {f"by {kind}": 100 * both_intervals(part, pairs) for kind, part in parts.items()}
    forest(gains, ax, list(map(colour, bases)))
    ax.axvline(0, color=plots.GREY, lw=1)
    ax.set(title=name, xlabel="points gained")
fig.legend(*ax.get_legend_handles_labels(), loc="outside lower center", ncols=2)
plt.show()

# %% [markdown]
# The paper has gains on CART of one point at 8 tasks and of six at 20 (**the paper's figures**). On MiniLM AdaMerging by
# layer lifts TIES and task arithmetic by about one and a half points over these tasks, which is not clear over tasks, and
# leaves CART where it is. On EfficientNet CART rises by two points in the mean, with intervals that reach zero, and one
# coefficient for each whole expert lowers the other bases by two, likewise unclear. The paper's own 500 small steps give
# no more there than our 50 larger ones, points gained on CART by layer:

# %% tags=["remove-input"]
rows = {}
for file in ("imagenet8-adaptation", "imagenet8-adaptation-500"):
    used = load_result(file)["provenance"]["settings"]
    name = f"{used['steps']} steps of {used['learning_rate']:g}"
    by_layer = cart.by_granularity(load_table(file))["layer"]
    rows[name] = 100 * both_intervals(by_layer, {"": ("adamerging+cart", "cart")})
written_both(pd.concat(rows).droplevel(1))

# %% [markdown]
# On our network nothing moves; yet there is something to gain. The same coefficients
# on CART, learned there by entropy and from training labels, points above CART:

# %% tags=["remove-input"]
table = load_table("vision8-coefficients")
rate = table["rate"].map(", rate {:g}".format).where(table["rate"] > 0, "")
table["method"] = table["method"].str.replace("_", "-") + rate
names = [name for name in table["method"].unique() if name != "cart"]
written_both(100 * both_intervals(table, {name: (name, "cart") for name in names}))

# %% [markdown]
# Labels find better coefficients at both rates, clearly so at the larger one; entropy at that rate makes predictions
# surer and, over these seeds, worse. Confidence is not accuracy.
#
# ## Compression
#
# Where the task is known at inference, an expert can be kept in a small form. CART-Indexing keeps
# $\theta_{\text{avg}}$ once and, for each task, the $k$ strongest centred directions of every matrix; of what is no
# matrix each task keeps its own, as in the authors' code, or all share the average. EMR {cite}`huang2024emr` and TALL masks
# {cite}`wang2024localizing` keep one bit per weight. As in Table 3:

# %% tags=["remove-input"] mystnb={"figure": {"caption": "Accuracy of compressed experts, less that of the experts themselves, against the storage that one more task takes; eight tasks, 95 % intervals over seeds. An expert takes 32 bits per weight. Our network was measured with the rest averaged only.", "name": "fig-cart-storage"}, "image": {"alt": "Three panels; zero is the experts. On our network the dashed line rises from 13 points below to five, and TALL masks at one bit lie above all of it. On EfficientNet both lines rise alike to about one point below at eight bits; at one bit TALL masks lie four points below, far above the line. On MiniLM all is within three points of the experts, and the solid line lies ten times as far right as the dashed one, at the same height."}}
fig, axes = plt.subplots(1, 3, figsize=(10, 4.4), sharey=True)
for ax, (name, suite) in zip(axes, cart.SUITES.items()):
    bits = cart.bits_per_weight(suite)
    steps = {kind: (kind, "individual") for kind in bits.index}
    lost = 100 * paired(cart.compressed(suite), steps)
    low_rank = lost[lost.index.str.startswith("CART")]
    for text, rows in low_rank.groupby(lambda kind: kind.rpartition(", ")[0], sort=False):
        style = {"ls": "--" if "averaged" in text else "-", "marker": "o", "capsize": 4}
        values = bits[rows.index], rows["mean"], rows["half_width"]
        ax.errorbar(*values, color=colour("cart"), label=text, **style)
    for kind, mark in (("EMR", "s"), ("TALL + task arithmetic", "^"), ("TALL + TIES", "v")):
        ax.errorbar(bits[kind], *lost.loc[kind], fmt=mark, ms=9, label=kind, capsize=4)
    ax.axhline(0, color="black", lw=1.5)
    ax.set(xscale="log", xlabel="bits per weight", title=name, xticks=[0.5, 1, 2, 4, 8, 16])
    ax.xaxis.set_major_formatter("{x:g}")
    ax.minorticks_off()
axes[0].set_ylabel("points above the experts")
fig.legend(*ax.get_legend_handles_labels(), loc="outside lower center", ncols=3)
plt.show()

# %% [markdown]
# On MiniLM CART-Indexing at 8 % of the rank is about as good as the experts, as in the paper's tables, within a point. On
# EfficientNet it is about two points below, and whether that is more than two points three seeds and eight tasks do not
# decide. The paper's text compares it with EMR and TALL masks rather than with the experts. A task's own rest helps on
# EfficientNet at the same rank, and not
# at the same storage; on MiniLM it is mostly the table of tokens, ten times the storage for next to nothing. TALL
# masks on TIES, at one bit, are above low-rank factors of the same size on all three.
#
# Appendix C.2 calls "k = 0.08", which we read as rank $0.08\,M$, "competitive" with a mask for large $M$. In 32 bits:

# %% tags=["remove-input", "nbval-check-output"]
for M in (160, 1024, 8192):
    factors, mask = 32 * 2 * M * (0.08 * M), M * M
    print(f"M = {M}: factors take {factors / mask:.2f} times the bits of a mask")
bits = cart.bits_per_weight("vision8")["CART-Indexing, rest averaged, 8%"]  # factors alone
print(f"our network, with matrices that are not square: {bits:.2f} times")

# %% [markdown]
# ## The loop in the loss landscape
#
# Figures 5, 11 and 12 of the paper draw the path of the merged model over the loss. Here it is live, on
# `glyphs8`, in the plane of the principal components of the path
# $\Delta_k = \sum_t \text{SVD}_k(\bar\tau_t)$; CART stands at $\theta_{\text{avg}} + \lambda \Delta_k$.

# %%
import mergelib as ml
from mergebook import load_suite, load_zoo
from mergebook.lab.comparison import merge_zoo
from mergebook.lab.plane import Plane

suite = load_suite(SUITE, seed=SEED, profile=PROFILE)
zoo = load_zoo(suite, device=DEVICE)
average = ml.merge("average", zoo.experts)
RATIOS = [0, 0.01, 0.02, 0.04, 0.08, 0.12, 0.16, 0.24, 0.4, 1]
EIGHT = RATIOS.index(0.08)
merges = (merge_zoo("cart", zoo, rank_ratio=ratio) for ratio in RATIOS)
walk = torch.stack([ml.flatten(merged) for merged in merges]) - ml.flatten(average)
plane = Plane.principal(average, walk)
loops = {scale: scale * (walk @ plane.axes.T).numpy() for scale in (1.0, 2.0, 3.0)}
uncentred = [merge_zoo("low_rank_task_arithmetic", zoo, rank_ratio=r) for r in RATIOS[::3]]
straight = np.array([plane.place(merged) for merged in uncentred])

# %% tags=["hide-cell"]
from itertools import product

from mergebook.lab.comparison import cut

few = cut(zoo, 16)
places = np.concatenate([straight, *loops.values()])
edge = 0.2 * np.ptp(places, axis=0)
xs, ys = np.linspace(places.min(0) - edge, places.max(0) + edge, 9).T
grid = ((point, plane.model(*point)) for point in product(xs.tolist(), ys.tolist()))
table = ml.evaluate_many(few.model, grid, few.heads, few.suite, autocast=True)
table[["x", "y"]] = table["candidate"].tolist()
table = table.groupby(["y", "x"])["loss"].mean().unstack()
for loop in loops.values():
    assert np.abs(loop[[0, -1]]).max() < 1e-3 * np.abs(loop).max(), "the ends are the average"

# %% tags=["hide-input"] mystnb={"figure": {"caption": "Mean test loss of eight glyph tasks on the plane of the path's two principal components (one seed). Red: CART's path as the rank grows, at three scales (stars: 8 % of the rank). Green: low-rank task arithmetic, from the pretrained model on.", "name": "fig-cart-loop"}, "image": {"alt": "A contour map of the loss with one basin. Three red loops, larger with larger scale, leave the average, pass the basin and return. A short green path leads from the pretrained model to task arithmetic, outside the basin."}}
fig, ax = plt.subplots(figsize=(7.6, 6))
fig.colorbar(contours(table, ax), ax=ax, label="mean test loss, nats", format="%.1f")
for scale, loop in loops.items():
    ax.plot(*loop.T, color=plots.VERMILION, lw=1.2 + 0.5 * scale, ls="-" if scale == 1 else "--")
    ax.plot(*loop[EIGHT], "*", ms=15, color=plots.VERMILION, mec="white")
    style = {"xytext": (9, 4), "textcoords": "offset points", "color": plots.RUST}
    ax.annotate(f"λ = {scale:g}", loop[EIGHT], **style)
ax.plot(*straight.T, color=plots.GREEN, marker="o", ms=3)
names = {"pretrained": straight[0], "average": (0, 0), "task arithmetic": straight[-1]}
for (text, spot), lift in zip(names.items(), (9, -15, -29)):
    ax.plot(*spot, "ko", ms=7)
    ax.annotate(text, spot, xytext=(9, lift), textcoords="offset points", fontsize=11)
ax.set(xlabel="first principal component", ylabel="second principal component")
plt.show()

# %% [markdown]
# That the path ends where it began is {prf:ref}`prop-cart-ends`, no finding; the scale sets its radius. The paper
# draws it in the plane of the *experts'* principal components. How much of the distance at 8 % of the rank lies in each?

# %% tags=["hide-input"]
ways = torch.stack([ml.flatten(ml.subtract(e, average)) for e in zoo.experts.values()])
theirs = Plane.principal(average, ways)
for name, basis in (("path", plane), ("experts", theirs)):
    share = (basis.axes @ walk[EIGHT]).norm() / walk[EIGHT].norm()
    print(f"plane of the {name}: {share.item():.0%} of the distance")

# %% [markdown]
# In the experts' plane the loop collapses to a spike, and contours there tell the loss *below* the path.
#
# ## What the paper says and what we measured
#
# The [](90-claims-ledger) computes a verdict on each claim from these results, and has CART on a language model, too.
#
# ## When to use it, and when not
#
# Use CART to merge three or more full fine-tunes without training, and search rank and scale together: on both
# real networks 8 to 16 % of the rank at scales from 2 to 4 was near the best. Without labels, but with the experts and
# a few inputs of each task, take the point at which merged model and experts agree most often; that is validation with
# the experts' predictions as labels, and on one of the two networks entropy did as well. Try TSV beside CART, which has
# one knob less. Do not expect either to rescue unlike tasks in a small network.
#
# ## Exercises
#
# ```{exercise} The sum of the loop (easy)
# :label: ex-exp-loop
# Why does the radius of CART's loop grow in exact proportion to the scale?
# ```

# %% [markdown]
# ````{solution-start} ex-exp-loop
# :class: dropdown
# ````
# The path is $\theta_{\text{avg}} + \lambda\, \Delta_k$ with $\Delta_k = \sum_t \text{SVD}_k(\bar\tau_t)$,
# which does not depend on $\lambda$.

# %%
merged = ml.merge("cart", zoo.experts, rank_ratio=0.08, scale=2.0)
assert np.allclose(plane.place(merged), loops[2.0][EIGHT], atol=1e-3 * np.abs(loops[2.0]).max())

# %% [markdown]
# ````{solution-end}
# ````
#
# ```{exercise} A mask of rank (hard)
# :label: ex-exp-hybrid
# At which rank ratio do 16-bit factors of a square matrix take as much storage as a binary mask?
# ```

# %% [markdown]
# ````{solution-start} ex-exp-hybrid
# :class: dropdown
# ````
# $16 \cdot 2 M k = M^2$ gives $k/M = 1/32$, about 3 %: half the bits in each number buys twice the rank,
# if 16 bits lose nothing.
# ````{solution-end}
# ````
#
# ## Summary
#
# * Under frozen heads CART is clearly above the entry-wise methods on both networks for pictures; on MiniLM its lead over
#   TIES is not clear over tasks. Other spectral methods are ahead or behind.
# * How much of the experts a merge keeps depends more on network and tasks than on the method.
# * Rank and scale share a ridge; 8 % belongs to scale 1.
# * Agreement with the experts' own predictions, which is validation on pseudo-labels, orders merges by accuracy;
#   row-space interference does not.
# * CART-Indexing at 8 % is within a point of the experts on MiniLM and about two below on EfficientNet; at equal storage
#   one-bit masks are above it.
# * The path over the rank is a loop, seen in its own plane only.
