# %% tags=["remove-cell"]
# Where mergelib is missing, as on Colab, install it: published copies name its address here.
import importlib.util
import subprocess
import sys

SOURCE = ""
if importlib.util.find_spec("mergelib") is None:
    if not SOURCE:
        raise ModuleNotFoundError("install mergelib first: see 'How to run' in the book")
    subprocess.check_call([sys.executable, "-m", "pip", "install", "-q", SOURCE])


# %% [markdown]
# # Merging with data: the experiments
#
# **In one sentence:** Frank-Wolfe ignores experts that nobody asked for, which hurt every other method, and is the best of
# all on texts; on pictures, where merging lives on extrapolation, a walk inside the hull ends near the average, and
# it pays to start it from CART.
#
# [](20-adapting-with-data) explained the procedures one by one, and [](21-frank-wolfe) the walk inside the
# hull. This chapter puts them on one axis, with the same few examples, on real pictures and over
# several seeds: what each of them buys and what it costs. Then it repeats the experiments of FW-Merging
# {cite}`chen2025fwmerging`: hard against soft, the number of calibration samples (the supplement's
# Figure 1), and pools that irrelevant or relevant experts join (its appendix C.4).
#
# **After this chapter you can**
#
# * choose among procedures by what they need, take, and give;
# * say which combination of variant and oracle to use, and where to start it;
# * tell when a hundred examples are better spent on merging than on training;
# * predict what an irrelevant expert does to each way of merging.
#
# **Before you start:** [](20-adapting-with-data) and [](21-frank-wolfe). **Time:** 20 minutes to read, half
# a minute to run; most numbers are read from `results/`, which `mergelib study` wrote
# ([](../book/how-to-run)).

# %% tags=["parameters"]
SUITE = "glyphs8"
PROFILE = "default"
SEED = 0
DEVICE = "cpu"

# %% [markdown]
# ## One walk, from the call to the coefficients
#
# Before the numbers, the thing itself. Four of the suite's tasks are targets, with fifty labelled
# training pictures each; all eight experts are in the pool, so half of them are irrelevant. The hard
# variant picks one expert's tensor for each layer and goes part of the way.

# %%
import matplotlib.pyplot as plt
import pandas as pd

import mergelib as ml
from mergelib.plots import heat_map, label, use_style
from mergelib.records.results import load_table
from mergelib.records.statistics import interval, over_seeds, paired
from mergelib.testbed.models import scale_pixels

use_style()
zoo = ml.load_zoo(ml.load_suite(SUITE, seed=SEED, profile=PROFILE), device=DEVICE)
targets = list(zoo.experts)[:4]
splits = {name: zoo.suite.tasks[name].train for name in targets}
data = {name: (split.inputs[:50], split.labels[:50]) for name, split in splits.items()}

# %% tags=["nbval-check-output"]
print("targets:", ", ".join(targets), "out of a pool of", len(zoo.experts))

# %%
options = {"model": zoo.model, "heads": zoo.heads, "data": data, "transform": scale_pixels}
options |= {"pretrained": zoo.pretrained, "variant": "hard", "steps": 6}
walk = ml.adapt("frank_wolfe", zoo.experts, granularity="layer", **options)
walk.history.round(4)

# %% [markdown]
# The loss falls at every step, and the gap, which bounds what is left to gain where the loss is convex,
# falls with it. The coefficients are the proof that the merged model lies in the hull: no entry is
# negative, every column sums to one. They also say who was used. Averaged over the tensors of each block:

# %% tags=["hide-input"] mystnb={"figure": {"caption": "What the merged model is made of: mean coefficient of every expert and of the starting point in each part of the network. The first four experts belong to the target tasks.", "name": "fig-fw-coefficients"}, "image": {"alt": "A table of colours with a row for each expert and one for the start, a column for each part of the network. The target experts carry most of the weight, spread unevenly over the parts; but experts of other tasks have a share in many parts, too, and the start has almost none."}}
part = [
    ".".join(key.split(".")[:2]) if "blocks" in key else key.split(".")[0]
    for key in walk.coefficients
]
shares = walk.coefficients.T.groupby(part, sort=False).mean().T
fig, ax = plt.subplots(figsize=(7.6, 4.4))
heat_map(shares, ax, low=0, high=float(shares.max(axis=None)), digits=2, bar="mean coefficient")
ax.tick_params(axis="x", rotation=40)
plt.show()

# %%
assert (walk.coefficients >= 0).all(axis=None)
assert abs(walk.coefficients.sum() - 1).max() < 1e-9
whole = ml.adapt("frank_wolfe", zoo.experts, granularity="task", **options)
strangers = [name for name in zoo.experts if name not in targets]
for unit, each in (("layer", walk), ("task", whole)):
    shares = each.coefficients.mean(axis=1)
    loss = each.history["loss"].iloc[-1]
    print(f"by {unit}: strangers' share {shares[strangers].sum():.2f}, loss {loss:.3f}")

# %% [markdown]
# By layer the oracle takes tensors wherever they fit, and some that fit are strangers': experts of tasks that nobody
# asked for. By whole models it takes the targets' experts, or very nearly, and ends at a higher loss, since it has fewer
# numbers to choose.
#
# ## All procedures at equal data
#
# Eight real tasks (`vision8`), a hundred training pictures of each, with labels or without, as each
# procedure needs. The data-free rules stand beside them, with scales chosen on validation
# data, and so does *individual*, the experts on their own tasks. Frank-Wolfe takes six
# steps; AdaMerging, Concrete and multi-task training take 200 steps of 16 pictures of every task. Surgery
# has modules of its own for each task, so it competes in another class: it needs the task at
# inference, as the heads do, and the experts as teachers.

# %%
table = load_table("vision8-procedures")
means = over_seeds(table, "method").sort_values("mean")

# %% tags=["hide-input"]
UNLABELLED = {"fisher", "regmean", "adamerging", "concrete", "surgery", "surgery+cart"}
DATAFREE = {"pretrained", "average", "task_arithmetic", "cart"}
GROUPS = {
    "no data": "#8c8c8c",
    "unlabelled": "#0072b2",
    "labelled": "#d55e00",
    "experts": "#000000",
}


def group(method):
    """What data a method sees."""
    if method == "individual":
        return "experts"
    return "no data" if method in DATAFREE else "unlabelled" if method in UNLABELLED else "labelled"


def short(method):
    """A name for a figure's row."""
    name = "Surgery + CART" if method == "surgery+cart" else label(method)
    for plain, written in (("frank wolfe", "FW"), ("cart", "CART"), ("adamerging", "AdaMerging")):
        name = name.replace(plain, written)
    return name


# %% tags=["hide-input"] mystnb={"figure": {"caption": "Mean test accuracy on eight vision tasks of every procedure at a hundred training pictures a task, with 95 % intervals over the seeds; colours tell what data it sees.", "name": "fig-data-ladder"}, "image": {"alt": "A row for each method with a dot and an interval. From the bottom: the pretrained model, then Concrete, the greedy soup and the average close together, walks inside the hull and Fisher a point above, multi-task training, task arithmetic, AdaMerging, the walks from it and RegMean another two to four points higher; a gap of five points; CART and the two walks from CART; a gap; Surgery on the average and, far higher, on CART; another gap, and the individual experts."}}
fig, ax = plt.subplots(figsize=(7.6, 8.2))
for row, (method, each) in enumerate(means.iterrows()):
    shade = GROUPS[group(method)]
    ax.errorbar(
        100 * each["mean"],
        row,
        xerr=100 * each["half_width"],
        fmt="o",
        ms=8,
        color=shade,
        capsize=4,
    )
    ax.text(
        100 * (each["mean"] + each["half_width"]) + 0.7,
        row,
        f"{100 * each['mean']:.1f}",
        va="center",
        fontsize=10,
    )
ax.set(yticks=range(len(means)), yticklabels=[short(each) for each in means.index])
ax.set(xlabel="mean test accuracy, %", xlim=(None, 100 * means["mean"].max() + 6))
for kind, shade in GROUPS.items():
    ax.plot([], [], "o", ms=8, color=shade, label=kind)
ax.legend(loc="lower right")
plt.show()

# %% [markdown]
# Three groups stand apart. At the top, by far, is Surgery, which may change what comes after the backbone, task
# by task. Next come CART and the two walks that start from it. All others lie between the
# average and a few points above it, walks within the hull at the lower end of them. Task arithmetic has one
# number to choose, and with it beats all mixtures that see a hundred labels, because that number lets
# it leave the hull. Concrete falls below the task arithmetic it starts from: its entropy falls as its accuracy does, as
# [](20-adapting-with-data) saw on glyphs. Paired over the seeds, the steps that matter:

# %%
pairs = {
    f"{short(better)} over {short(worse)}": (better, worse)
    for better, worse in (
        ("fisher", "average"),
        ("regmean", "average"),
        ("adamerging", "task_arithmetic"),
        ("frank_wolfe soft, by layer", "average"),
        ("cart", "frank_wolfe soft, by layer"),
        ("frank_wolfe hard, by layer, from adamerging", "adamerging"),
        ("frank_wolfe soft, by layer, from adamerging", "adamerging"),
        ("frank_wolfe soft, by layer, from cart", "cart"),
        ("surgery+cart", "cart"),
    )
}
(100 * paired(table, pairs)).set_axis(["points", "±"], axis=1).round(1)

# %% [markdown]
# Is Concrete's fall due to its short run? As published it takes 2,000 steps at a tenth of that rate, on unlabelled
# *test* pictures. So it does here, beside the task arithmetic, at scale 0.3, that it masks: the change in accuracy, and in the mean
# entropy of its predictions from the first 200 steps to the last.

# %%
history = load_table("vision8-concrete", "history")
history["method"] = history["step"].map(lambda step: "first" if step < 200 else "last")
history = history[(history["step"] < 200) | (history["step"] >= 1800)]
masked = {"accuracy, points": ("concrete", "task_arithmetic")}
changes = [
    100 * paired(load_table("vision8-concrete"), masked),
    paired(history, {"entropy, nats": ("last", "first")}, "entropy"),
]
pd.concat(changes).set_axis(["change", "±"], axis=1).round(2)

# %% [markdown]
# It is not: predictions become surer by a quarter, and fewer of them are right. A mask with a number for each weight is too free for an
# objective without labels, where the model that it starts from is wrong this often.
#
# What it costs, on the same axis. The seconds are those of one thread of a shared processor, so
# only their ratios mean something elsewhere. Walks from AdaMerging are left out: they cost what AdaMerging does, and a little more.

# %% tags=["hide-input"] mystnb={"figure": {"caption": "Accuracy against the seconds a procedure took (logarithmic), means over the seeds.", "name": "fig-data-cost"}, "image": {"alt": "A scatter plot with a logarithmic axis of seconds. RegMean, at the left, is as high as AdaMerging at the far right. The walks inside the hull form a low row from ten to a hundred seconds. The walks from CART lie above the dashed line of CART at moderate cost, and the two points of Surgery lie highest while among the fastest."}}
cost = load_table("vision8-procedures", "cost").groupby("method")["seconds"].mean()
fig, ax = plt.subplots(figsize=(7.6, 5.2))
BELOW = {
    "greedy_soup",
    "multitask",
    "frank_wolfe hard, by task",
    "frank_wolfe soft, by task",
}
for method, taken in cost.items():
    if method.endswith("from adamerging"):
        continue
    value = 100 * means.loc[method, "mean"]
    right = method != "adamerging"
    shift = (6 if right else -8, -12 if method in BELOW else 4)
    ax.plot(taken, value, "o", ms=9, color=GROUPS[group(method)])
    text = {"textcoords": "offset points", "fontsize": 9, "ha": "left" if right else "right"}
    ax.annotate(short(method), (taken, value), xytext=shift, **text)
for method in ("average", "cart"):
    ax.axhline(100 * means.loc[method, "mean"], color="#8c8c8c", lw=1.2, ls="--")
    ax.text(cost.min(), 100 * means.loc[method, "mean"] + 0.2, label(method), fontsize=10)
ax.set(xscale="log", xlabel="seconds", ylabel="mean test accuracy, %", xlim=(None, cost.max() * 6))
plt.show()

# %% [markdown]
# RegMean gives as much as procedures that take twenty times as long. Among Frank-Wolfe's kinds the
# hard ones are the cheap ones, and the walks from CART stop early, when no expert promises anything more. Everything
# to the right of RegMean that is not Surgery or a walk from CART is dominated: less accuracy for more time.
#
# ## Hard or soft, by task or by layer
#
# The paper pairs the hard variant with a layer-wise oracle and the soft one with a task-wise one. The four
# combinations from the pretrained model, six steps each:

# %%
kinds = [
    f"frank_wolfe {variant}, by {unit}"
    for variant in ("hard", "soft")
    for unit in ("task", "layer")
]
steps = load_table("vision8-procedures", "history")
last = steps.sort_values("step").groupby(["method", "seed"]).last()
pd.DataFrame(
    {
        "accuracy, %": (100 * means.loc[kinds, "mean"]).round(1),
        "±": (100 * means.loc[kinds, "half_width"]).round(1),
        "loss before the last step": last["loss"].groupby("method").mean()[kinds].round(3),
        "seconds": cost[kinds].round(0),
    }
)

# %% tags=["hide-input"] mystnb={"figure": {"caption": "The calibration loss and the gap over the steps of the four combinations, from the pretrained model; means over the seeds. Gaps by layer are of the product of the tensors' hulls, a larger set.", "name": "fig-fw-kinds"}, "image": {"alt": "Two panels. Left: four falling curves of the calibration loss; the soft ones drop to their end in one or two steps, the hard ones step by step, and by layer ends below by task. Right: the gaps fall towards zero, the soft ones at once."}}
fig, axes = plt.subplots(1, 2, figsize=(8.6, 4.0))
STYLE = {"hard": "--", "soft": "-", "task": "#0072b2", "layer": "#d55e00"}
for kind in kinds:
    variant, unit = kind.removeprefix("frank_wolfe ").split(", by ")
    mine = steps[steps["method"] == kind]
    for ax, column in zip(axes, ("loss", "gap"), strict=True):
        walks = mine.pivot(index="step", columns="seed", values=column)
        curve = walks.ffill().mean(axis=1)  # a walk that stopped stays where it is
        ax.plot(
            curve.index,
            curve,
            ls=STYLE[variant],
            color=STYLE[unit],
            label=f"{variant}, {unit}",
        )
axes[0].set(xlabel="step", ylabel="calibration loss, nats")
axes[1].set(xlabel="step", ylabel="Frank-Wolfe gap", ylim=(0, None))
axes[1].legend()
plt.show()

# %% [markdown]
# Soft reaches in one or two steps what hard needs six for, and by layer the loss goes lower, since the product of the
# tensors' hulls is the larger set. So far it is as the theory says. On the test split little of it is left: by layer is about
# a point ahead of by task, for hard **and** for soft, and soft ahead of hard by less than that, or not at all. The paper's pairing, hard with layers and
# soft with whole models, is thus confirmed in its first half only; the ledger's F1 and F8 have the intervals.
#
# ## Inside the hull, and out of it
#
# Every number of the four stays under CART's. That is the hull, and not the walk: task
# arithmetic, TIES and CART add differences up, and so leave the hull, which ends where the
# coefficients of a mean do ([](21-frank-wolfe), *What the hull leaves out*). Two ways lead out of it: coefficients of any sign, as
# in the authors' code, and a start that is outside already.

# %%
hull = load_table("vision8-procedures", "hull").groupby("method")
outside = ["frank_wolfe soft, by task", "frank_wolfe soft, by task, unconstrained"]
outside += [
    f"frank_wolfe {variant}, by layer, from {start}"
    for start in ("adamerging", "cart")
    for variant in ("hard", "soft")
]
pd.DataFrame(
    {
        "accuracy, %": (100 * means.loc[outside, "mean"]).round(1),
        "±": (100 * means.loc[outside, "half_width"]).round(1),
        "smallest coefficient": hull["smallest"].min()[outside].round(3),
        "largest error of the iterate": hull["error"].max()[outside].map("{:.0e}".format),
    }
)

# %% [markdown]
# Without the constraint the coefficients go far below zero: the walk *subtracts* experts, and the loss falls well below
# that of any mixture, for three points of accuracy more. A start at AdaMerging, the paper's for its hard variant, ends
# where AdaMerging is, and a point higher for the soft walk; a start at CART gives more still. Neither is a risk: kept in
# the mixture, the start can only be improved upon, as far as the calibration loss tells. So a figure for Frank-Wolfe merging
# says little without the set that it walked in. The released code leaves $\lambda$ free, and starts from AdaMerging or the
# pretrained model: the paper's numbers can come from affine combinations, which Proposition 1 does not cover. The largest
# error column is the proof of feasibility of the others: the coefficients give the iterate back to float precision.
#
# ## How many samples?
#
# The supplement's Figure 1 sets accuracy against the number of calibration samples, beside traditional
# multi-task training. Ours, at 5, 20 and 100 labelled pictures a task; the hard variant starts from
# CART. Lines without points need no such pictures: CART, and multi-task training on all 4,000 a task, which takes
# 1,250 steps, as many examples as the experts saw together.

# %% tags=["hide-input"] mystnb={"figure": {"caption": "Accuracy against the number of labelled training pictures a task, eight vision tasks, with 95 % intervals over five seeds.", "name": "fig-fw-samples"}, "image": {"alt": "Accuracy against 5, 20 and 100 pictures on a logarithmic axis. The walk from CART is the highest of the curves, below the dashed line of CART at five pictures and level with it from twenty on. RegMean and the soft walk are lower and nearly level. Multi-task training starts far below all of them, below the pretrained model, and rises steeply, past the soft walk at a hundred; its line for all data lies far above everything else."}}
samples = over_seeds(load_table("vision8-calibration"), ["method", "examples"]) * 100
SHADES = {"frank_wolfe soft": "#0072b2", "frank_wolfe hard, from cart": "#d55e00"}
SHADES |= {"regmean": "#009e73", "multitask": "#000000"}
LEVELS = {"cart": "CART", "multitask": "multi-task, all data", "pretrained": "pretrained"}
fig, ax = plt.subplots(figsize=(7.2, 4.6))
for method, shade in SHADES.items():
    curve = samples.loc[method].drop(0, errors="ignore")
    bars = {"fmt": "o-", "color": shade, "capsize": 4, "label": short(method)}
    ax.errorbar(curve.index, curve["mean"], curve["half_width"], **bars)
for method, text in LEVELS.items():
    height = samples.loc[(method, 0), "mean"]
    ax.axhline(height, color="#8c8c8c", lw=1.2, ls="--")
    ax.text(5, height + 0.5, text, fontsize=10)
ax.set(xscale="log", xlabel="labelled pictures a task", ylabel="mean test accuracy, %")
ax.set_xticks([5, 20, 100], labels=["5", "20", "100"])
ax.minorticks_off()
ax.legend()
plt.show()

# %% [markdown]
# With five pictures a task, training destroys what the pretrained model knew, while every merge keeps what the experts
# learned from thousands. At a hundred, training has overtaken the walk inside the hull, and it needs some more to reach
# CART. With all data it is where the experts are, with a single set of weights: **eight tasks fit into this network**, and what
# merging loses is lost by merging, not by capacity. The paper's claim that Frank-Wolfe with few samples beats multi-task
# training with more therefore depends on how many more: on the same few pictures the walk from CART is ahead at every
# size, against the whole training split it is not near. Frank-Wolfe has few numbers to choose, so more pictures help it
# little; but with five a task it can fit these five, and end below the CART that it started from.
#
# ## Experts that nobody asked for
#
# Appendix C.4 of the paper adds up to sixteen irrelevant experts to a pool of four. Our targets are the
# counterparts of its own, scenes, cars, traffic signs and textures of `vision20`; and, as a second
# opinion, the first four tasks of `glyphs20`, whose pictures are rendered, so anyone can repeat it. Rules get their scale,
# density or rank from validation data of the targets, for every pool anew; AdaMerging and Frank-Wolfe see
# a hundred unlabelled test pictures of each target, as in the paper, and a second Frank-Wolfe sees a hundred labelled training pictures.


# %% tags=["hide-input"]
LINES = {
    "frank_wolfe, labels": ("FW, labels", "#d55e00", "o-"),
    "frank_wolfe": ("FW, entropy", "#d55e00", "o--"),
    "adamerging": ("AdaMerging", "#009e73", "s-"),
    "cart": ("CART", "#a06a00", "^-"),
    "ties": ("TIES", "#e69f00", "v-"),
    "task_arithmetic": ("task arithmetic", "#0072b2", "D-"),
    "average": ("average", "#56b4e9", "x-"),
}


SUITES = {"vision20": "photographs and scans", "glyphs20": "rendered signs"}


def pools(study):
    """Accuracy in per cent: rows of suite, method and pool size, a column a seed."""
    parts = {suite: load_table(f"{suite}-{study}") for suite in SUITES}
    table = pd.concat(parts, names=["suite"]).reset_index("suite")
    means = 100 * table.groupby(["suite", "method", "count", "seed"])["accuracy"].mean()
    return means.unstack("seed")


# %% tags=["hide-input"]
def pool_table(study):
    """The smallest and the largest pool, and the paired change between them."""
    wide = pools(study)
    few, many = (wide.groupby(["suite", "method"]).nth(place) for place in (0, -1))
    few, many = few.droplevel("count"), many.droplevel("count")
    change = (many - few).apply(lambda row: interval(row.dropna().tolist()), axis=1)
    table = pd.DataFrame({"smallest pool": few.mean(axis=1), "largest pool": many.mean(axis=1)})
    table["change"], table["±"] = zip(*change, strict=True)
    table = table.rename(index={method: text for method, (text, _, _) in LINES.items()})
    return table.unstack("suite").swaplevel(axis=1)[list(SUITES)].round(1)


# %% tags=["hide-input"] mystnb={"figure": {"caption": "Irrelevant experts join a pool of four: change in the mean test accuracy on the four target tasks, with 95 % intervals of the paired change over five seeds. Above, photographs and scans; below, rendered signs", "name": "fig-fw-irrelevant"}, "image": {"alt": "Two panels of seven lines of change against zero to sixteen irrelevant experts. In both, average, task arithmetic, TIES, CART and AdaMerging fall by four to twelve points as strangers join, most of it at many. Frank-Wolfe with labels is level at zero without any spread; Frank-Wolfe by entropy is nearly level on photographs, and falls by two points on the signs, with wide intervals."}}
def pool_figure(study, xlabel):
    """Paired change of accuracy against the smallest pool, a line a method, a panel a suite."""
    _, axes = plt.subplots(2, 1, figsize=(7.4, 8.8))
    for ax, (suite, kind) in zip(axes, SUITES.items(), strict=True):
        wide = pools(study).loc[suite]
        for place, method in enumerate(each for each in LINES if each in wide.index):
            text, shade, style = LINES[method]
            change = wide.loc[method].transform(lambda column: column - column.iloc[0])
            ends = [interval(row.dropna().tolist()) for _, row in change.iterrows()]
            x = [spot + 0.06 * (place - 3) for spot in range(len(ends))]
            bars = {"fmt": style, "color": shade, "capsize": 3, "label": text}
            ax.errorbar(x, [mean for mean, _ in ends], [half for _, half in ends], **bars)
        ax.set(title=f"{suite}: {kind}", ylabel="change in accuracy, points")
        ax.set_xticks(range(len(ends)), labels=change.index)
    axes[-1].set(xlabel=xlabel)
    axes[0].legend(ncols=2, fontsize=10)
    plt.show()


pool_figure("irrelevant", "irrelevant experts in the pool")

# %%
pool_table("irrelevant")

# %% [markdown]
# All that average or add up every expert of the pool lose: four to seven points with sixteen strangers on photographs, six
# to twelve on rendered signs. Choosing scales anew on validation data does not save them. Frank-Wolfe with labels loses
# nothing, and this is a merit: strangers' inner products are never among the best, so the oracle does not pick them, and the walk is the same
# to the last digit. On the signs it begins three points below TIES and CART, which may extrapolate, and ends seven points above TIES and
# nearly three above CART. A pool of twenty, most of them useless, is where a merge should look at data.
#
# By entropy, as in the paper's scaling experiments, little changes either, but look what it is that stays. Below are the accuracies by task and
# seed of that walk on the pool of four, less the pretrained model's:

# %%
gained = {}
for suite in SUITES:
    before = load_table(f"{suite}-baselines").query("method == 'pretrained'")
    after = load_table(f"{suite}-irrelevant").query("method == 'frank_wolfe' and count == 0")
    values = [each.set_index(["seed", "task"])["accuracy"] for each in (after, before)]
    gained[suite] = (100 * (values[0] - values[1]).dropna()).unstack(0).round(1)
pd.concat(gained)

# %% [markdown]
# On photographs the walk hardly leaves the pretrained model in three seeds of five: no expert's direction makes its predictions more
# certain, and that is that. In the others it runs almost all the way to the one expert that is most
# certain of everything, the traffic signs', and no other task gains much. On the rendered signs, where the pretrained model is a better
# guide, the walk gains on most tasks, and then strangers can tempt it: in two seeds it loses three and six points to
# sixteen of them. A walk that sees no labels cannot tell certainty from knowledge. AdaMerging has the same objective and starts where
# all experts are mixed already, the strangers with them, and on the signs it loses more by them than any rule.
#
# ## Experts that somebody asked for
#
# The other experiment of C.4 judges all twenty tasks, and lets their experts join one after the other, in an
# order that each seed draws. Here a pool of two leaves eighteen tasks without an expert.

# %% tags=["hide-input"] mystnb={"figure": {"caption": "Relevant experts join a pool of two: change in the mean test accuracy on all twenty tasks, with 95 % intervals of the paired change over five seeds. Above, photographs and scans; below, rendered signs.", "name": "fig-fw-relevant"}, "image": {"alt": "Two panels of six lines of change against the number of experts, from two to twenty. In both CART rises the most, to more than seven points; task arithmetic, TIES and the average rise by two to five points, Frank-Wolfe by entropy by one or two. AdaMerging rises with them on photographs, and on the signs falls back after ten experts."}}
pool_figure("relevant", "experts in the pool")

# %%
pool_table("relevant")

# %% [markdown]
# Relevant experts help CART by far the most, on photographs and on signs. The other rules gain two to four points. Frank-Wolfe
# by entropy gains a point or two, with an interval that touches zero on photographs, and ends a point below the
# plain average on both. AdaMerging needs the entropy of all twenty tasks to agree; on the signs it is best at ten
# experts, and with twenty no better than with two. A pool of two is already worth something: networks that were fine-tuned on
# any two sets are better than the pretrained one on the others, too, as our starting point is a weak one. On CLIP's towers,
# whose zero-shot features are strong, this may look different.
#
# ## Texts
#
# The paper's second benchmark is language. Ours are the four texts of `text4`, in four kinds of writing, and
# small character models ([](11-cart-experiments)); twenty windows of each are the calibration data, judged by bits a
# character, less is better. Procedures that work by entropy stay out: a text has an entropy of its own, and a
# model that is sure of every next character is wrong.

# %%
import math

texts = load_table("text4-language")
texts["bits"] = texts["loss"] / math.log(2)
bits = over_seeds(texts, "method", "bits").sort_values("mean")
bits.index = [short(method) for method in bits.index]
bits.round(2)

# %%
free = load_table("text4-baselines").query("method not in ['individual', 'pretrained']")
free = (free.groupby("method")["loss"].mean() / math.log(2)).sort_values()
print(f"the best of all data-free methods, {label(free.index[0])}: {free.iloc[0]:.2f} bits")

# %% [markdown]
# Here the picture turns. A walk by layer, inside the hull, needs about a quarter of a bit less than the best
# data-free merge, and starting it at CART adds next to nothing. The texts are in four kinds of writing: the experts have little in common
# to add up, so a scale beyond the average buys little, and it matters which expert a layer is taken from. That is
# what a mixture by layer can say and a scale cannot. Multi-task training on the same twenty windows is far behind
# all merges. So the claim that the paper makes for its language benchmark is found again on ours.
#
# ## Memory
#
# Gradients meet experts one tensor at a time, and the mixture of the soft variant holds its few vertices and
# no more, so experts may be files. The peak of a walk, above what the process held before, with experts of 34 MB on a
# quadratic objective (no activations), each in a process of its own:

# %%
peaks = load_table("frank_wolfe-memory", "peaks")
peaks["MB"] = peaks["peak_bytes"] / 1e6
peaks.pivot_table(index="variant", columns="experts", values="MB", aggfunc=["median", "max"]).round(
    0
)

# %% [markdown]
# Twenty files take what four take; the spread is the allocator's.
#
# ## What the paper says and what we measured
#
# The rows F1 to F8 of the [](90-claims-ledger) are computed from these results. In short: feasibility, the falling gap, constant memory, indifference to irrelevant experts and the lead on texts
# are found again. Soft beats hard by less than a point, where it does, and layers suit both. By entropy alone the walk
# is unreliable.
#
# ## When to use it, and when not
#
# Use Frank-Wolfe with labels where the pool is large and you do not know which experts matter: it selects, proves what
# it selected by its coefficients, and streams from files. Start it from the best data-free merge you have. Do
# not use it as a replacement for a scale: inside the hull it cannot extrapolate, and on a pool of relevant experts CART,
# which sees no data at all, is far ahead. If the task is known at inference, Surgery is the better
# use of a hundred unlabelled pictures.
#
# ## Exercises
#
# ```{exercise} Read a proof (easy)
# :label: ex-fwx-proof
# Compute the merged weights of one tensor from the coefficients alone, and compare them with the
# state that `adapt` returned.
# ```

# %% [markdown]
# ````{solution-start} ex-fwx-proof
# :class: dropdown
# ````
# The last row belongs to the starting point, here the pretrained model.

# %%
import torch

key = walk.coefficients.columns[-1]
vertices = [*(expert[key] for expert in zoo.experts.values()), zoo.pretrained[key]]
rebuilt = sum(c * v for c, v in zip(walk.coefficients[key], vertices, strict=True))
torch.testing.assert_close(rebuilt.float(), walk.state[key], rtol=1e-4, atol=1e-6)

# %% [markdown]
# ````{solution-end}
# ````
#
# ```{exercise} A pool without the right expert (medium)
# :label: ex-fwx-missing
# Walk by whole models, and take the expert that got the largest share out of the pool. What happens to its share, and to the loss?
# ```

# %% [markdown]
# ````{solution-start} ex-fwx-missing
# :class: dropdown
# ````
# Others take over what it had. The minimum over a smaller hull cannot be lower; a walk of six steps, which has not reached
# it, ends higher, too, if the expert was needed.

# %%
needed = whole.coefficients.mean(axis=1)[targets].idxmax()
rest = {name: expert for name, expert in zoo.experts.items() if name != needed}
without = ml.adapt("frank_wolfe", rest, granularity="task", **options)
final = [each.history["loss"].iloc[-1] for each in (whole, without)]
print(f"loss before the last step: {final[0]:.3f} with {needed}, {final[1]:.3f} without")

# %% [markdown]
# ````{solution-end}
# ````
#
# ```{exercise} A ball instead of a hull (hard)
# :label: ex-fwx-ball
# CART leaves the hull, and the walk from CART stays near it. Which set, on which a linear function is just as easy to minimise, would
# hold both the experts and CART's point? Give its linear minimisation oracle.
# ```

# %% [markdown]
# ````{solution-start} ex-fwx-ball
# :class: dropdown
# ````
# For instance a hull with CART's point as a further vertex: the oracle compares one inner product more. Or
# the hull of $\theta_0 + \lambda\,\tau_t$ with $\lambda > 1$, whose vertices lie beyond the experts; the scale is then chosen on validation data, as for
# task arithmetic. With `adapt` both are a matter of the experts that are passed:

# %%
stretched = {
    name: {
        k: zoo.pretrained[k] + 2 * (v - zoo.pretrained[k]) if v.is_floating_point() else v
        for k, v in expert.items()
    }
    for name, expert in zoo.experts.items()
}
further = ml.adapt("frank_wolfe", stretched, granularity="task", **options)
print(f"loss before the last step: {further.history['loss'].iloc[-1]:.3f}, before: {final[0]:.3f}")

# %% [markdown]
# ````{solution-end}
# ````
#
# ## Summary
#
# * Irrelevant experts hurt every rule that uses all of the pool, and do not touch Frank-Wolfe with labels.
# * On pictures, CART without data beats every walk inside the hull, and a walk *from* CART adds to it; on texts a
#   walk by layer beats every data-free merge.
# * Soft takes fewer steps than hard and ends less than a point above it; by layer is better for both.
# * On the same few examples merging beats training; on thousands training beats merging by far.
# * With entropy in place of labels the walk stays where it is, or runs to one confident expert.
#
# **Next:** the [](90-claims-ledger). All sources are in the [](../book/bibliography).
