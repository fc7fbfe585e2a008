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
from mergebook.cart import read as cart
from mergebook.cart.paper import EXPERTS, LADDER, TABLE
from mergebook.lab.results import load_table
from mergebook.lab.statistics import both_intervals, over_seeds, paired, plus_minus
from mergebook.plots import colour, label

plots.use_style()
OTHERS = ("average", "task_arithmetic", "ties", "consensus", "tsv", "iso_c")
ENTRYWISE = OTHERS[:4]
METHODS = ("pretrained", *ENTRYWISE, "cart", "tsv", "iso_c")
PRETRAINED = {name: suite for name, suite in cart.SUITES.items() if suite != "vision8"}
# What needs no labels, and whether more or less of it is good.
SIGNS = {"agreement": 1, "error": -1, "interference": -1, "signal": 1, "entropy": -1}
SIGNS["distance"] = -1


# %% tags=["remove-cell"]
def points(rows, digits=1):
    """Format rows of `both_intervals` as 'mean (low to high)', across seeds and tasks."""
    texts = [f"{mean:.{digits}f} ({a:.{digits}f} to {b:.{digits}f})" for mean, a, b in rows]
    return [text.replace("-", "−") for text in texts]


def lead(suite):
    """Return CART's lead over the other rules, in points, with both intervals."""
    pairs = {label(other): ("cart", other) for other in METHODS if other != "cart"}
    return 100 * both_intervals(cart.baselines(suite), pairs)


def normalised(suite):
    """Return normalised accuracy in per cent with intervals across seeds, one row per method."""
    table = cart.baselines(suite).query("method in @METHODS")
    return 100 * over_seeds(table, "method", "normalised").loc[[*METHODS]]


def bits_per_weight(suite):
    """Return the storage of one more task, by name as in `cart.compressed`."""
    storage = cart.compressed(suite, "storage").query("seed == 0").set_index("method")
    return storage["bits_per_task"] / storage["parameters"]


# %% tags=["remove-cell"]
leads = {name: lead(suite) for name, suite in cart.SUITES.items()}
fresh = load_table("vision8-fresh_heads")
fresh["accuracy"] *= 100
judged = {
    "frozen": fresh[(fresh["head"] == "frozen") & (fresh["by"] != "fresh")],
    "fitted": fresh[(fresh["head"] == "validation") & (fresh["by"] != "frozen")],
}
pairs = {label(other): ("cart", other) for other in (*OTHERS, "iso_cts")}
by_head = {kind: both_intervals(table, pairs) for kind, table in judged.items()}
frozen, fitted = (by_head[kind].loc["task arithmetic"] for kind in ("frozen", "fitted"))

# %% tags=["remove-cell"]
files = [f"vision{count}-baselines{net}" for count in (8, 14, 20) for net in ("", "-vit_small")]
chosen = pd.concat([load_table(file, "chosen")["settings"] for file in files])
picked = chosen.map(lambda settings: settings["cart"]["rank_ratio"]).value_counts()
at_scale_one = cart.plane("sentences8")[1.0].idxmax()

# %% tags=["remove-input"] mystnb={"figure": {"caption": "CART is ahead of the rules that treat entries one by one, and TSV and Iso-C are about as good as CART. CART's test accuracy minus that of another rule, eight tasks, under frozen heads. Thick lines are 95 % intervals across seeds (five for our ViT, three for the others), thin lines across seeds and tasks.", "name": "fig-cart-leads"}, "image": {"alt": "Six rows with three markers each. CART minus the average is 9 to 16 points. CART minus task arithmetic, TIES and Consensus is 10 to 14 points on EfficientNet-Lite0, about 5 on our ViT and about 3 on MiniLM, where the thin interval over TIES reaches below zero. CART minus TSV is −1.8 points on our ViT with an interval below zero. The other differences from TSV and Iso-C have intervals that contain zero."}}
fig, ax = plt.subplots(figsize=(6.7, 3.9))
drawn = {name: rows.loc[[label(other) for other in OTHERS]] for name, rows in leads.items()}
plots.forest(drawn, ax, list(map(colour, OTHERS)))
ax.axvline(0, color=plots.BLACK, lw=1)
ax.set_xlabel("CART minus the other rule, points")
ax.legend(loc="lower right", fontsize=11)
ax.set_title("CART beats entry-wise rules, but not TSV and Iso-C", pad=18)
plt.show()

# %% tags=["remove-input"]
images = [leads[name].loc[list(map(label, ENTRYWISE))] for name in list(cart.SUITES)[:2]]
ties = points(leads["MiniLM"].loc[["TIES"], ["mean", "low", "high"]].to_numpy())[0]
both = points([row[["mean", "low", "high"]] for row in (frozen, fitted)])
where = "does not differ detectably" if fitted["low"] < 0 < fitted["high"] else "still differs"
display(
    Markdown(f"""
* **CART is ahead of entry-wise rules under frozen heads.** Its lead over task arithmetic, TIES and Consensus is at
  least {min(rows["mean"].min() for rows in images):.1f} points on both image networks. On sentences its lead over TIES is
  {ties} points, which is not a detectable difference across tasks.
* **On our ViT most of the lead is agreement with frozen heads.** CART leads task arithmetic by {both[0]} points. With
  heads fitted to the validation labels that tuning spends anyway, it {where}: {both[1]} points.
* **The best rank is not 8 % in general.** Validation with a free scale chooses 8 % in {picked[0.08]} of {picked.sum()} runs on our
  two ViTs. At a scale of 1, MiniLM is best at {100 * at_scale_one:.0f} %.
""")
)

# %% [markdown]
# **Use it when** you want to know what CART gains on your kind of model. **You need first:** [](10-cart).
# **Time:** 20 minutes with the exercises, one minute to run. Most numbers are read from `results/`
# ([](../book/how-results-are-made)).
#
# ## How CART was measured
#
# The paper {cite}`choi2025revisiting` merges CLIP and RoBERTa models. This chapter has three smaller networks with eight
# tasks each: our own vision transformer on small images (five seeds), EfficientNet-Lite0, pretrained on ImageNet, on the
# same images (three), and the sentence encoder MiniLM on sentences (three).
#
# Hyperparameters are chosen on labelled validation examples. The classification heads are **frozen**, as in the paper,
# unless stated otherwise. Intervals are 95 %, across seeds (for these tasks) or across seeds and tasks (for tasks like
# these). A difference is called detectable if the second interval excludes zero ([](24-choosing-checking-reporting)).
#
# ## Table 1: methods compared
#
# The table shows merged accuracy as a percentage of the experts' accuracy, ± across seeds. The CLIP column is the
# paper's Table 1, with other tasks.

# %% tags=["remove-input"]
clip = dict(zip(LADDER, 100 * np.array(TABLE["vision8"]) / EXPERTS, strict=True))
shown = {"CLIP ViT-B/32 (paper)": pd.Series({m: f"{value:.1f}" for m, value in clip.items()})}
for name, suite in cart.SUITES.items():
    rows = normalised(suite)
    shown[name] = pd.Series([plus_minus(*row, 1) for row in rows.to_numpy()], index=rows.index)
shown = pd.DataFrame(shown).loc[list(METHODS)].fillna("–")
shown.rename(index=label).rename_axis(None)

# %% [markdown]
# The order of the groups is the same as in the paper. The three low-rank rules are ahead of the entry-wise rules on each network.
# TSV {cite}`gargiulo2025task` and Iso-C {cite}`marczak2025task` are newer than the paper's comparison. TSV is 1.8 points ahead of
# CART on our ViT, and the other differences among the low-rank rules are not detectable (first figure).
#
# MiniLM is the counterpart of the paper's Table 2, eight GLUE tasks with RoBERTa. CART's lead there is 3.2 points over TIES and
# 3.0 over task arithmetic, and most of it comes from two sets with 77 and 150 classes.
#
# ## Fitted heads remove most of the lead
#
# A merged model can fail because its features are worse, or because the features no longer match a head that was made
# from the pretrained model. The next figure separates the two on our ViT. **Fitted heads** are linear classifiers, fitted to the
# 500 validation labels per task that also choose the hyperparameters ({ref}`how this is measured <choosing-heads>`). The
# study tunes each rule again, so its leads under frozen heads differ slightly from those above.

# %% tags=["remove-input"] mystnb={"figure": {"caption": "CART's lead over every other rule shrinks when the heads are fitted to the merged features. Points of mean test accuracy on `vision8`, five seeds; hyperparameters are chosen under the heads that judge. Thick lines are 95 % intervals across seeds, thin lines across seeds and tasks.", "name": "fig-cart-heads"}, "image": {"alt": "Seven rows with two markers. Under frozen heads CART leads the average by 9 points and task arithmetic, TIES and Consensus by about 5. Under fitted heads it leads the average by 3 points and the other three by 1, with thin intervals that contain zero. Against TSV, Iso-C and Iso-CTS it is up to 2 points behind in both cases."}}
fig, ax = plt.subplots(figsize=(6.6, 3.6))
drawn = {f"{kind} heads": rows for kind, rows in by_head.items()}
shades = {"frozen heads": plots.VERMILION, "fitted heads": plots.BLUE}
plots.forest(drawn, ax, shades)
ax.axvline(0, color=plots.BLACK, lw=1)
ax.set_xlabel("CART minus the other rule, points")
ax.legend(loc="lower right")
ax.set_title("Fitted heads remove most of CART's lead", pad=18)
plt.show()

# %% tags=["remove-input"]
means = {kind: table.groupby("method")["accuracy"].mean() for kind, table in judged.items()}
no_merge = means["fitted"]["pretrained"] - means["frozen"]["cart"]
features = both_intervals(judged["fitted"], {"": ("cart", "pretrained")})[["mean", "low", "high"]]
display(
    Markdown(f"""
The lead over task arithmetic falls from {frozen["mean"]:.1f} to {fitted["mean"]:.1f} points, a loss of
{100 * (1 - fitted["mean"] / frozen["mean"]):.0f} %. The pretrained model without any merge, under fitted heads, is
{no_merge:.1f} points more accurate than CART under frozen heads. Merging still improves the features: under fitted heads CART
is {points(features.to_numpy())[0]} points better than no merge.
""")
)

# %% [markdown]
# CART's gain in this setting is therefore mostly that its features agree better with heads made from the pretrained
# model. [](70-what-five-papers-taught-us) repeats the measurement on three more networks. On EfficientNet more
# than half of the lead remains under fitted heads.
#
# ```{admonition} Takeaway
# :class: tip
# If you have labels to tune CART, fit the heads to them too. On this network the choice among merging rules then matters much less.
# ```
#
# ## Network size does not predict merging
#
# The paper's ViT-L/14 keeps more of its experts than ViT-B/32, and the paper concludes that merging works better with larger
# backbones. The table shows means on eight tasks. The rows marked "32 px" have the same images at 32 pixels, after pretraining on
# ImageNet or, for half of our usual epochs, on our small images.

# %% tags=["remove-input"]
FILES = {
    "vision8-baselines-vit_small": ("smaller ViT", 0.4),
    "vision8-baselines": ("our ViT", 1.4),
    "lite8-baselines": ("Lite0, 32 px, ImageNet", 3.4),
    "lite8-baselines-lite0_small": ("Lite0, 32 px, our images", 3.4),
    "imagenet8-baselines": ("EfficientNet-Lite0", 3.4),
    "sentences8-baselines": ("MiniLM", 22.6),
}
sizes = {}
for file, (name, parameters) in FILES.items():
    table = load_table(file)
    own = 100 * table.query("method == 'individual'")["accuracy"].mean()
    kept = 100 * over_seeds(table, "method", "normalised")["mean"]
    sizes[name] = {"parameters, millions": parameters, "experts, accuracy %": own}
    for method in ("pretrained", "average", "task_arithmetic", "cart"):
        sizes[name][f"{label(method)}, % of experts"] = kept[method]
sizes = pd.DataFrame(sizes).T.round(1)
sizes

# %% tags=["remove-cell"]
geometry = {}
for name, suite in cart.SUITES.items():
    lengths, cosines = (load_table(f"{suite}-geometry", part) for part in ("tasks", "pairs"))
    spectra = load_table(f"{suite}-geometry", "spectra").query("centred and rank_ratio == 0.08")
    parts = (100 * lengths["length"], cosines["cosine"], 100 * spectra["kept"])
    geometry[name] = [float(part.mean()) for part in parts]
geometry = pd.DataFrame(geometry, index=["length", "cosine", "kept"]).T
statistics = load_table("imagenet8-batch_norm").query("method == 'cart'")
statistics = statistics.assign(method=statistics["statistics"])
remeasured = both_intervals(statistics, {"": ("measured", "merged")}).iloc[0]

# %% tags=["remove-input"]
display(
    Markdown(f"""
The number of parameters does not order the networks. The geometry of the task vectors does not either: their mean cosine is
{geometry["cosine"].min():.2f} to {geometry["cosine"].max():.2f} on all three main networks, and 8 % of the rank holds
{geometry["kept"].min():.0f} to {geometry["kept"].max():.0f} % of their squared length. MiniLM has less far to go. Without fine-tuning
it already reaches {sizes.loc["MiniLM", "pretrained, % of experts"]:.0f} % of its experts' accuracy, where the other two reach
about half. EfficientNet pretrained on our images gains nothing from any merge. Measuring BatchNorm's statistics again on inputs of all tasks makes CART on EfficientNet {-100 * remeasured["mean"]:.0f} points worse.
""")
)

# %% [markdown]
# ## Figure 7: more tasks

# %% tags=["remove-input"] mystnb={"figure": {"caption": "CART keeps its lead over entry-wise rules as tasks are added, and on EfficientNet it also leaves TSV and Iso-C behind. Merged accuracy in per cent of the experts' with 8, 14 and 20 tasks; 95 % intervals across seeds (five for our ViT, three for EfficientNet).", "name": "fig-cart-more"}, "image": {"alt": "Two panels. On our ViT CART, TSV and Iso-C fall together from 76 to 72 percent, and entry-wise rules from 68 to 66. On EfficientNet the entry-wise rules stay below 64, CART falls slowly from 75 to 72 percent, and TSV and Iso-C fall faster, to 67. The pretrained model rises in both."}}
fig, axes = plt.subplots(1, 2, figsize=(6.9, 4.0), sharey=True)
for ax, (name, family) in zip(axes, (("our ViT", "vision"), ("EfficientNet-Lite0", "imagenet"))):
    parts = {count: normalised(f"{family}{count}") for count in (8, 14, 20)}
    kept = pd.concat(parts).swaplevel()
    for k, (method, look) in enumerate(plots.method_looks(METHODS).items()):
        rows = kept.loc[method]
        plots.curve(ax, rows.set_axis(rows.index + 0.1 * (k - 3.5)), look, ms=6)
    ax.set(title=name, xlabel="merged tasks", xticks=list(parts))
axes[0].set_ylabel("% of the experts")
plots.legend_outside(fig, ncols=4, fontsize=11)
fig.suptitle(
    "CART keeps its lead over entry-wise rules", fontsize=12, fontweight="bold", x=0.01, ha="left"
)
plt.show()

# %% [markdown]
# CART's lead in points on EfficientNet, with intervals across seeds and tasks, is

# %% tags=["remove-input"]
by_count = {f"{count} tasks": lead(f"imagenet{count}") for count in (8, 14, 20)}
texts = {name: points(rows[["mean", "low", "high"]].to_numpy()) for name, rows in by_count.items()}
pd.DataFrame(texts, index=[f"CART − {name}" for name in by_count["8 tasks"].index])

# %% [markdown]
# The paper's Figure 7 merges random subsets of 20 tasks, with the grids of its appendix D. Ours has five subsets per
# seed, fewer than the paper's Equation 10 asks for.

# %% tags=["remove-input"] mystnb={"figure": {"caption": "CART leads from four tasks on, and at scale 1 then loses as much as the average. Accuracy in per cent of the experts' over random subsets of 20 image tasks with our ViT, five seeds, with standard errors. The dotted line is the pretrained model.", "name": "fig-cart-counts"}, "image": {"alt": "All curves fall towards the dotted line of the pretrained model from 2 to 20 tasks. Both curves of CART are above the others from four tasks on. The one with its scale searched is highest, and meets the one at scale 1 at 20 tasks. Task arithmetic, whose scale is capped, is far below the average at two tasks."}}
counts = load_table("vision20-task_counts")
kinds = {"cart": ("-", "CART, scale 1"), "cart, scale searched": ("--", "CART, scale searched")}
fig, ax = plt.subplots(figsize=(6.6, 3.6))
for method, part in counts.groupby("method", sort=False):
    line, text = kinds.get(method, ("-", label(method)))
    shade = colour("cart") if method in kinds else colour(method)
    mean, error = 100 * part.groupby("count")["normalised"].agg(["mean", "sem"]).to_numpy().T
    style = {"color": shade, "ls": line, "marker": "o", "capsize": 3}
    ax.errorbar(counts["count"].unique(), mean, error, label=text, **style)
bounds = load_table("vision20-task_counts", "bounds")
floor = 100 * (bounds["pretrained"] / bounds["individual"]).mean()
ax.axhline(floor, color=plots.GREY, lw=1.5, ls=":")
ax.set(xlabel="merged tasks", ylabel="% of the experts", xticks=counts["count"].unique())
ax.legend(fontsize=11)
ax.set_title("CART leads from four tasks on")
plt.show()

# %% [markdown]
# CART of two tasks is the average ({prf:ref}`prop-cart-ends`). Task arithmetic is below the average there, because the
# paper's grid ends at a scale of 0.3 and the average of two needs 1/2.
#
# (cart-rank-scale)=
# ## Figures 1, 6 and 10: the best rank
#
# The paper finds the best rank near 8 %, at a scale of 1. {numref}`fig-cart-bells` confirms this for our ViT at a scale of
# 1, and shows a larger best rank for larger scales. {numref}`fig-low-rank-plane` shows the same ridge on the other two
# networks. The table has the best point of those planes, with all tasks and with half of them, drawn again for each seed:

# %% tags=["remove-input"]
rows = {}
for name, suite in PRETRAINED.items():
    for count, part in ((4, "-4"), (8, "")):
        wide = cart.plane(suite, part)
        scale, rank = wide.unstack().idxmax()
        rows[f"{name}, {count} tasks"] = {
            "best rank": f"{rank:.0%}",
            "best scale": f"{scale:g}",
            "accuracy, %": f"{wide.to_numpy().max():.1f}",
            "best rank at scale 1": f"{wide[1.0].idxmax():.0%}",
            "accuracy there, %": f"{wide[1.0].max():.1f}",
        }
pd.DataFrame.from_dict(rows, orient="index")

# %% tags=["remove-input"]
display(
    Markdown(f"""
MiniLM is best at 1 to 2 % of the rank at a scale of 1. If validation chooses both settings on our two ViTs, it
chooses 8 % in {picked[0.08]} of {picked.sum()} runs, 16 % in {picked[0.16]} and 32 % in {picked[0.32]}.
""")
)

# %% [markdown]
# ## Figures 2, 3 and 8: row-space interference
#
# The paper explains the gain by lower row-space interference $I(k)$ of centred vectors, and the best rank by a
# reconstruction error $R(k)$ that falls before $I(k)$ rises. [](12-cart-proofs) shows both as curves.

# %% tags=["remove-cell"]
lower, early = {}, {}
for name, suite in cart.SUITES.items():
    excess = cart.centred_excess("interference_all", suite)
    lower[name] = 100 * (excess[[0.01, 0.08, 1.0]] < 0).mean()
    table = load_table(f"{suite}-interference", "curves").query("centred and rank_ratio > 0")
    means = table.groupby("rank_ratio")[["interference_all", "reconstruction"]].mean()
    reached = means.loc[0.08, "interference_all"] / means.loc[1.0, "interference_all"]
    early[name] = [100 * (1 - means.loc[0.08, "reconstruction"]), 100 * reached]
lower, early = pd.DataFrame(lower), pd.DataFrame(early, index=["removed", "reached"])

# %% tags=["remove-input"]
display(
    Markdown(f"""
Centring lowers $I$ in {lower.loc[0.01].min():.0f} to {lower.loc[0.01].max():.0f} % of the layers at 1 % of the rank, in
{lower.loc[0.08].min():.0f} to {lower.loc[0.08].max():.0f} % at 8 % and in at most {lower.loc[1.0].max():.0f} % at full rank, under the
norm that favours the claim. At 8 % of the rank, {early.loc["removed"].min():.0f} to {early.loc["removed"].max():.0f} % of $R$ is gone, as
the paper says, but $I$ has already reached {early.loc["reached"].min():.0f} to {early.loc["reached"].max():.0f} % of its final value.
""")
)

# %% [markdown]
# ## Rank and scale without labels
#
# Which quantity finds good settings without labels? Let $z$, $z_e$ and $z_0$ be unit features of the merged model, the
# task's expert and the pretrained model. Merging moves the features partly along the expert's direction:
#
# $$
# \begin{aligned}
# z - z_0 &= s\,(z_e - z_0) + r, \qquad r \perp z_e - z_0, \\
# \frac{\|z - z_e\|^2}{\|z_e - z_0\|^2} &= (1 - s)^2 + \frac{\|r\|^2}{\|z_e - z_0\|^2} .
# \end{aligned}
# $$ (eq-cart-told)
#
# The candidates are the **signal** $s$, the **interference** $\|r\| / \|z_e - z_0\|$, the **error** on the left-hand side, the fraction of
# predictions on which merged model and expert **agree**, the **entropy** of the predictions, and the **distance** from the average in
# weight space.


# %% tags=["remove-cell"]
from mergebook.lab.statistics import crossed


def ordered(suite):
    """Return Spearman's correlation with accuracy, of the task and of its deviation from the mean."""
    rows = {}
    for quantity, sign in SIGNS.items():
        found = {"task": [], "deviation": []}
        for _, part in cart.points(suite).groupby("seed"):
            pair = [
                part.pivot(index=["rank_ratio", "scale"], columns="task", values=column)
                for column in ("accuracy", quantity)
            ]
            for kind, shared in (("task", 0.0), ("deviation", 1.0)):
                centred = (wide.sub(shared * wide.mean(axis=1), axis=0) for wide in pair)
                x, y = (wide.round(9).rank().sub(wide.round(9).rank().mean()) for wide in centred)
                lengths = ((x**2).sum() * (y**2).sum()) ** 0.5
                found[kind].append((sign * (x * y).sum() / lengths).fillna(0).tolist())
        for kind, values in found.items():
            ends = crossed(np.array(values)).interval()
            rows[quantity, kind] = [np.mean(values), *ends]
    return pd.DataFrame(rows, index=["mean", "low", "high"]).T


# %% tags=["remove-input"] mystnb={"figure": {"caption": "Agreement with the expert has the highest mean correlation. Spearman's correlation with test accuracy over the plane of rank and scale, with signs such that 1 is perfect. Filled markers: per task; open markers: deviations from the mean over tasks. 95 % intervals across seeds and tasks.", "name": "fig-cart-told"}, "image": {"alt": "Two panels with six rows. In both, agreement with the expert has the highest correlation, and keeps more than half of it for deviations from the mean. Error and entropy order both planes less well. On EfficientNet the deviations of entropy have a correlation of zero. Interference orders only EfficientNet's plane, signal neither. Distance is zero for deviations by construction."}}
fig, axes = plt.subplots(1, 2, figsize=(6.9, 3.4), sharey=True, sharex=True)
for ax, (name, suite) in zip(axes, PRETRAINED.items()):
    table = ordered(suite)
    for kind, shift, face in (("task", -0.16, plots.RUST), ("deviation", 0.16, "white")):
        rows = table.xs(kind, level=1)
        y = np.arange(len(rows)) + shift
        ax.hlines(y, rows["low"], rows["high"], color=plots.RUST, lw=1.5)
        ax.plot(rows["mean"], y, "o", color=plots.RUST, mfc=face)
    ax.axvline(0, color=plots.GREY, lw=1)
    ax.set(title=name, xlabel="rank correlation", xlim=(-1, 1))
    plots.name_axis(ax, rows.index)
fig.suptitle(
    "Agreement with the expert orders settings best",
    fontsize=12,
    fontweight="bold",
    x=0.01,
    ha="left",
)
plt.show()


# %% tags=["remove-cell"]
def picking_cost(suite):
    """Return points lost by picking rank and scale by `SIGNS`, with intervals across seeds."""
    table = cart.points(suite).groupby(["seed", "rank_ratio", "scale"])
    rows = []
    for seed, part in table[["accuracy", *SIGNS]].mean().groupby("seed"):
        for quantity, sign in SIGNS.items():
            point = int((sign * part[quantity]).to_numpy().argmax())
            lost = 100 * (part["accuracy"].max() - part["accuracy"].iloc[point])
            rows.append({"seed": seed, "quantity": quantity, "lost": lost})
    return over_seeds(pd.DataFrame(rows), "quantity", "lost")


lost = {name: picking_cost(suite) for name, suite in PRETRAINED.items()}
lost_texts = {
    name: {quantity: plus_minus(*row, 1) for quantity, row in zip(rows.index, rows.to_numpy())}
    for name, rows in lost.items()
}

# %% tags=["remove-input"]
light, mini = lost_texts["EfficientNet-Lite0"], lost_texts["MiniLM"]
display(
    Markdown(f"""
Choosing rank and scale by agreement loses {mini["agreement"]} points on MiniLM against the best point of the plane, and
entropy {mini["entropy"]}. On EfficientNet the two lose {light["agreement"]} and {light["entropy"]} points (± across seeds), which is
not a detectable difference. Agreement is validation with the expert's predictions in place of labels, so it does not explain
why a merge works.
""")
)

# %% [markdown]
# ## Table 1, lower part: adapting the coefficients
#
# AdaMerging {cite}`yang2024adamerging` learns a scale per expert and layer that lowers the entropy of predictions on
# unlabelled test inputs ([](20-adapting-with-data)). The paper reports gains on CART of 1.1 points with 8 tasks and 6.4
# with 20 (ViT-B/32). The table shows the points gained over the merge that AdaMerging starts from, with intervals across seeds and tasks:

# %% tags=["remove-input"]
bases = ("task_arithmetic", "ties", "cart")
pairs = {f"AdaMerging on {label(base)}": (f"adamerging+{base}", base) for base in bases}
gains = {}
for name, suite in cart.SUITES.items():
    part = cart.by_granularity(load_table(f"{suite}-adaptation"))["layer"]
    gains[name] = 100 * both_intervals(part, pairs)
ends = ["mean", "low", "high"]
pd.DataFrame({name: points(rows[ends].to_numpy()) for name, rows in gains.items()}, index=pairs)

# %% tags=["remove-cell"]
slow = cart.by_granularity(load_table("imagenet8-adaptation-500"))["layer"]
slow = 100 * both_intervals(slow, {"": ("adamerging+cart", "cart")}).iloc[0]
learned = load_table("vision8-coefficients")
learned["method"] = learned["method"] + learned["rate"].map(" {:g}".format).where(
    learned["rate"] > 0, ""
)
names = [name for name in learned["method"].unique() if name != "cart"]
learned = 100 * both_intervals(learned, {name: (name, "cart") for name in names})
by_labels = points(learned.loc[["cross_entropy 0.01", "entropy 0.01"], ends].to_numpy())

# %% tags=["remove-input"]
display(
    Markdown(f"""
No gain on CART is detectable. The paper's own 500 smaller steps gain {slow["mean"]:.1f} points on EfficientNet, about as much as
our 50 larger ones. There is something to gain: on our ViT, coefficients learned from training labels are {by_labels[0]} points above CART.
Coefficients learned by entropy at the same rate change accuracy by {by_labels[1]} points.
""")
)

# %% [markdown]
# ## Tables 3 and 4: compression
#
# If the task of each input is known, an expert can be stored in a small form. CART-Indexing stores the average once and, per
# task, the $k$ strongest centred directions of each matrix. Biases, norms and embeddings are stored per task, as in the authors'
# code, or averaged. EMR {cite}`huang2024emr` and TALL masks {cite}`wang2024localizing` store one bit per weight.

# %% tags=["remove-cell"]
MASKS = {"EMR": "s", "TALL + task arithmetic": "^", "TALL + TIES": "v"}
compared = {}
for name, suite in cart.SUITES.items():
    kinds = {kind: (kind, "individual") for kind in bits_per_weight(suite).index}
    compared[name] = 100 * paired(cart.compressed(suite), kinds)

# %% tags=["remove-input"] mystnb={"figure": {"caption": "CART-Indexing at 8 % of the rank is within about two points of the experts on the pretrained networks if each task keeps its own biases, norms and embeddings. At one bit per weight, TALL masks on TIES have a higher mean accuracy. Accuracy minus that of the experts against the storage per additional task; eight tasks, 95 % intervals across seeds. An expert takes 32 bits per weight. Markers of CART-Indexing are 2, 4, 8 and 16 % of the rank.", "name": "fig-cart-storage"}, "image": {"alt": "Three panels; zero is the experts. On our ViT the dashed line rises from 13 points below to 5, and TALL masks at one bit lie above all of it. On EfficientNet both lines rise to about one point below at eight bits; at one bit TALL masks lie four points below, far above the line. On MiniLM all is within three points of the experts, and the solid line lies ten times as far right as the dashed one, at the same height."}}
fig, axes = plt.subplots(2, 2, figsize=(6.9, 5.6), sharey=True)
for ax, (name, suite) in zip(axes.flat, cart.SUITES.items()):
    bits, kept = bits_per_weight(suite), compared[name]
    low_rank = kept[kept.index.str.startswith("CART")]
    for text, rows in low_rank.groupby(lambda kind: kind.rpartition(", ")[0], sort=False):
        style = {"ls": "--" if "averaged" in text else "-", "marker": "o", "capsize": 3}
        values = bits[rows.index], rows["mean"], rows["half_width"]
        ax.errorbar(*values, color=colour("cart"), label=text, **style)
    for kind, mark in MASKS.items():
        ax.errorbar(bits[kind], *kept.loc[kind], fmt=mark, ms=8, label=kind, capsize=3)
    ax.axhline(0, color=plots.BLACK, lw=1.2)
    ax.set(xscale="log", xlabel="bits per weight", title=name, xticks=[0.5, 1, 2, 4, 8, 16])
    ax.xaxis.set_major_formatter("{x:g}")
    ax.minorticks_off()
for ax in axes[:, 0]:
    ax.set_ylabel("points vs. experts")
axes[1, 1].axis("off")
handles = {text: mark for ax in axes.flat for mark, text in zip(*ax.get_legend_handles_labels())}
axes[1, 1].legend(handles.values(), handles, loc="center", fontsize=11)
title = "TALL masks on TIES are ahead of CART-Indexing at one bit"
fig.suptitle(title, fontsize=12, fontweight="bold", x=0.01, ha="left")
plt.show()

# %% tags=["remove-cell"]
indexed = {}
for suite in PRETRAINED.values():
    own = {"": ("CART-Indexing, 8%", "individual")}
    indexed[suite] = 100 * both_intervals(cart.compressed(suite), own).iloc[0]
texts = {suite: points([row[ends]])[0] for suite, row in indexed.items()}
masks = bits_per_weight("vision8")["CART-Indexing, rest averaged, 8%"]

# %% tags=["remove-input"]
display(
    Markdown(f"""
CART-Indexing at 8 % of the rank differs from the experts by {texts["sentences8"]} points on MiniLM, and by {texts["imagenet8"]} on
EfficientNet. Appendix C.2 calls its storage competitive with a binary mask for large matrices. With 32-bit factors of an
$M \\times M$ matrix it is $32 \\cdot 2 \\cdot 0.08 = {32 * 2 * 0.08:.2f}$ masks at every $M$, and {masks:.2f} masks for our ViT, whose
matrices are not square.
""")
)

# %% [markdown]
# ## Figures 5, 11 and 12: the loop in the loss landscape
#
# The path $\theta_{\text{avg}} + \lambda \Delta_k$ with $\Delta_k = \sum_t \text{SVD}_k(\bar\tau_t)$ starts and ends at the
# average ({prf:ref}`prop-cart-ends`). The figure shows it for `glyphs8`, in the plane of the path's two principal components.

# %% tags=["remove-cell"]
import torch

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
loops = {scale: scale * (walk @ plane.axes.T).cpu().numpy() for scale in (1.0, 2.0, 3.0)}
uncentred = [merge_zoo("low_rank_task_arithmetic", zoo, rank_ratio=r) for r in RATIOS[::3]]
straight = np.array([plane.place(merged) for merged in uncentred])

# %% tags=["remove-cell"]
from itertools import product

from mergebook.lab.comparison import cut

few = cut(zoo, 16)
places = np.concatenate([straight, *loops.values()])
edge = 0.2 * np.ptp(places, axis=0)
xs, ys = np.linspace(places.min(0) - edge, places.max(0) + edge, 9).T
grid = ((point, plane.model(*point)) for point in product(xs.tolist(), ys.tolist()))
table = ml.evaluate_many(few.model, grid, few.heads, few.suite, autocast=True)
table[["x", "y"]] = table["candidate"].tolist()
surface = table.groupby(["y", "x"])["loss"].mean().unstack()
ways = torch.stack([ml.flatten(ml.subtract(e, average)) for e in zoo.experts.values()])
planes = {"path": plane, "experts": Plane.principal(average, ways)}
inside = {
    name: float((basis.axes @ walk[EIGHT]).norm() / walk[EIGHT].norm())
    for name, basis in planes.items()
}

# %% tags=["remove-input"] mystnb={"figure": {"caption": "CART's path leaves the average, passes a region of lower loss and returns to the average as the rank grows. Mean test loss of eight glyph tasks in the plane of the path's two principal components (one seed). Red: CART at three scales, with stars at 8 % of the rank. Green: low-rank task arithmetic, from the pretrained model on.", "name": "fig-cart-loop"}, "image": {"alt": "A contour map of the loss with one basin. Three red loops, larger with larger scale, leave the average, pass the basin and return. A short green path leads from the pretrained model to task arithmetic, outside the basin."}}
fig, ax = plt.subplots(figsize=(6.8, 4.6))
levels = np.unique(np.quantile(surface, np.linspace(0, 1, 13)))
filled = {"levels": levels, "cmap": "cividis_r"}  # dark where the loss is high
drawn = ax.contourf(surface.columns, surface.index, surface, **filled)
ax.grid(visible=False)
fig.colorbar(drawn, ax=ax, label="mean test loss, nats", format="%.1f")
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
ax.set_title("The path is a loop through a region of lower loss")
plt.show()

# %% tags=["remove-input"]
display(
    Markdown(f"""
The scale sets the size of the loop. The paper draws the path in the plane of the *experts'* principal components, which holds
{100 * inside["experts"]:.0f} % of the distance from the average to CART at 8 % of the rank. The plane drawn here holds {100 * inside["path"]:.0f} %.
""")
)

# %% [markdown]
# ## What the paper claims and what we found
#
# The [ledger](13-cart-claims) computes these verdicts. The columns count the primary checks that hold, fail or stay open. The
# ledger has all checks with their intervals, and CART on small language models.

# %% tags=["remove-input"]
from mergebook import ledger
from mergebook.cart import claims

verdicts, checks = ledger.judge(claims.CLAIMS)
decisive = (
    checks[checks["role"] == "primary"].groupby(["claim", "outcome"]).size().unstack(fill_value=0)
)
lines = ["| | place | claim | hold | fail | open | verdict |", "|---|---|---|---:|---:|---:|---|"]
for row in verdicts.itertuples():
    counts = " | ".join(str(decisive.loc[row.claim, kind]) for kind in ("holds", "fails", "open"))
    lines.append(f"| {row.claim} | {row.place} | {row.statement} | {counts} | {row.verdict} |")
display(Markdown("\n".join(lines)))

# %% [markdown]
# ## Checks against known values

# %% tags=["hide-input", "nbval-check-output"]
for scale, loop in loops.items():
    closed = np.abs(loop[[0, -1]]).max() < 1e-3 * np.abs(loop).max()
    print(f"the loop at scale {scale:g} starts and ends at the average: {closed}")
print("settings that validation chose:", dict(sorted(picked.items())))

# %% tags=["remove-cell"]
# What the text and the figures' descriptions say, held to a tolerance.
for name in ("our ViT", "EfficientNet-Lite0"):
    assert (leads[name].loc[list(map(label, ENTRYWISE)), "low"] > 0).all()
on_sentences = leads["MiniLM"].loc[list(map(label, ENTRYWISE)), "low"]
assert list(on_sentences[on_sentences < 0].index) == ["TIES"]
assert leads["MiniLM"].loc[["TIES", "task arithmetic"], "mean"].round(1).tolist() == [3.2, 3.0]
six = cart.baselines("sentences8").query("task not in ['banking77', 'clinc150']")
over_six = 100 * both_intervals(six, {"": ("cart", "ties")})["mean"].iloc[0]
assert 0.5 < over_six < 1.5
assert leads["our ViT"].loc["TSV", ["mean", "high"]].round(1).tolist() == [-1.8, -0.6]
rest = [rows.loc["Iso-C"] for rows in leads.values()]
rest += [leads[name].loc["TSV"] for name in PRETRAINED]
assert all(row["low"] < 0 < row["high"] for row in rest)
for count in ("14 tasks", "20 tasks"):
    assert (by_count[count]["low"] > 0).all()
assert frozen["low"] > 0
assert fitted["low"] < 0 < fitted["high"]
assert [round(row["mean"], 1) for row in (frozen, fitted)] == [5.6, 1.1]
assert no_merge > 0

# %% tags=["remove-cell"]
assert by_head["fitted"].loc[["task arithmetic", "TIES", "Consensus"], "mean"].max() < 1.2
assert (by_head["fitted"].loc[["TSV", "Iso-C", "Iso-CTS"], "mean"] < 0).all()
assert all(gains[name].loc["AdaMerging on CART", "low"] < 0 for name in gains)
small = sizes.loc["Lite0, 32 px, our images"]
assert max(small.filter(like="%").iloc[1:]) - small["pretrained, % of experts"] < 2
halves = sizes.loc[["our ViT", "EfficientNet-Lite0"], "pretrained, % of experts"]
assert halves.between(45, 60).all()
assert abs(slow["mean"] - gains["EfficientNet-Lite0"].loc["AdaMerging on CART", "mean"]) < 0.5
assert lost["MiniLM"]["mean"].idxmin() == "agreement"
agree, entropy = (lost["EfficientNet-Lite0"].loc[kind] for kind in ("agreement", "entropy"))
assert abs(agree["mean"] - entropy["mean"]) < 0.2 < min(agree["half_width"], entropy["half_width"])
assert learned.loc["cross_entropy 0.01", "low"] > 0
assert [cart.plane("sentences8", part)[1.0].idxmax() for part in ("", "-4")] == [0.01, 0.02]
assert picked.sum() == 30
for name, suite in cart.SUITES.items():
    bits = bits_per_weight(suite)
    factors = [f"CART-Indexing, rest averaged, {rank}%" for rank in (2, 4, 8, 16)]
    at_one_bit = np.interp(1, bits[factors], compared[name].loc[factors, "mean"])
    assert compared[name].loc["TALL + TIES", "mean"] > at_one_bit + 0.5
paper = TABLE["vision8"]
assert round(100 * paper[-1] / EXPERTS, 1) == 93.6

# %% [markdown]
# ## Exercises
#
# ```{exercise} The size of the loop (easy)
# :label: ex-exp-loop
# Why is the size of CART's loop proportional to the scale?
# ```

# %% [markdown]
# ````{solution-start} ex-exp-loop
# :class: dropdown
# ````
# The path is $\theta_{\text{avg}} + \lambda\, \Delta_k$, and $\Delta_k$ does not depend on $\lambda$.

# %%
merged = ml.merge("cart", zoo.experts, rank_ratio=0.08, scale=2.0)
assert np.allclose(plane.place(merged), loops[2.0][EIGHT], atol=1e-3 * np.abs(loops[2.0]).max())

# %% [markdown]
# ````{solution-end}
# ````
#
# ```{exercise} The rank that costs one mask (hard)
# :label: ex-exp-hybrid
# At which rank ratio do 16-bit factors of a square matrix take as much storage as a binary mask?
# ```

# %% [markdown]
# ````{solution-start} ex-exp-hybrid
# :class: dropdown
# ````
# $16 \cdot 2 M k = M^2$ gives $k/M = 1/32$, about 3 %. Half the bits per number allow twice the rank, if 16 bits lose
# nothing.
#
# ````{solution-end}
# ````
#
# ## Summary
#
# * CART is ahead of entry-wise rules under frozen heads, by an amount that depends on the network. TSV and Iso-C are about
#   as good with eight tasks.
# * Most of the lead on our ViT disappears when heads are fitted to the labels that tuning spends.
# * Choose rank and scale together, on labels or by agreement with the experts. Neither 8 % nor row-space interference
#   predicts the best rank.
