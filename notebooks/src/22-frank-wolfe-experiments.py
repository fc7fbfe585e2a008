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
# **In one sentence:** ONESENTENCE
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
from mergelib.provenance import load_result
from mergelib.testbed.models import normalise
from mergelib.testbed.statistics import interval

use_style()
zoo = ml.load_zoo(ml.load_suite(SUITE, seed=SEED, profile=PROFILE), device=DEVICE)
targets = list(zoo.experts)[:4]
splits = {name: zoo.suite.tasks[name].train for name in targets}
data = {name: (split.inputs[:50], split.labels[:50]) for name, split in splits.items()}

# %%
walk = ml.adapt(
    "frank_wolfe",
    zoo.experts,
    pretrained=zoo.pretrained,
    model=zoo.model,
    heads=zoo.heads,
    data=data,
    variant="hard",
    granularity="layer",
    steps=6,
    transform=normalise,
)
walk.history.round(4)

# %% [markdown]
# The loss falls at every step, and the gap, which bounds what is left to gain where the loss is convex,
# falls with it. The coefficients are the proof that the merged model lies in the hull: no entry is
# negative, every column sums to one. They also say who was used. Averaged over the tensors of each block:

# %% tags=["hide-input"] mystnb={"figure": {"caption": "What the merged model is made of: mean coefficient of every expert and of the starting point in each part of the network. The first four experts belong to the target tasks.", "name": "fig-fw-coefficients"}, "image": {"alt": "A table of colours with a row for each expert and one for the start, a column for each part of the network. The four target experts carry nearly all of the weight in every part; the four irrelevant ones have little or none."}}
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
relevant = walk.coefficients.loc[targets].mean(axis=1).sum()
others = walk.coefficients.drop([*targets, "start"]).mean(axis=1).sum()
assert (walk.coefficients >= 0).all(axis=None)
assert abs(walk.coefficients.sum() - 1).max() < 1e-9
print(f"target experts {relevant:.2f}, irrelevant ones {others:.2f}")

# %% [markdown]
# ## All procedures at equal data
#
# Eight real tasks (`vision8`), a hundred training pictures of each, with labels or without, as each
# procedure needs. The data-free rules stand beside them, with scales chosen on validation
# data, and so does *individual*, the experts on their own tasks. Frank-Wolfe takes six
# steps; AdaMerging, Concrete and multi-task training take 200 steps of 16 pictures of every task. Surgery
# has modules of its own for each task, so it competes in another class: it needs the task at
# inference, as the heads do, and the experts as teachers.


# %%
def result(name, part="test"):
    """A table of a result."""
    return pd.DataFrame(load_result(name)[part])


def over_seeds(table, by, value="accuracy"):
    """Mean over tasks and seeds, with the half width of its 95 % interval."""
    per_seed = table.groupby([*by, "seed"], sort=False)[value].mean()
    rows = per_seed.groupby(by, sort=False).agg(lambda each: list(each))
    return pd.DataFrame(
        [interval(each) for each in rows], index=rows.index, columns=["mean", "half"]
    )


table = result("vision8-procedures")
means = over_seeds(table, ["method"]).sort_values("mean")
seeds = table["seed"].nunique()

# %% tags=["hide-input"] mystnb={"figure": {"caption": "Mean test accuracy on eight vision tasks of every procedure at a hundred training pictures a task, with 95 % intervals over the seeds; colours tell what data it sees.", "name": "fig-data-ladder"}, "image": {"alt": "ALT1"}}
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
    return label(method).replace("frank wolfe", "FW").replace("cart", "CART")


fig, ax = plt.subplots(figsize=(7.6, 8.2))
for row, (method, each) in enumerate(means.iterrows()):
    shade = GROUPS[group(method)]
    ax.errorbar(
        100 * each["mean"], row, xerr=100 * each["half"], fmt="o", ms=8, color=shade, capsize=4
    )
    ax.text(
        100 * (each["mean"] + each["half"]) + 0.7,
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
# PROSE1

# %%
accuracy = table.groupby(["method", "seed"])["accuracy"].mean()
gaps = {
    f"{short(better)} over {short(worse)}": interval(
        (100 * (accuracy[better] - accuracy[worse])).tolist()
    )
    for better, worse in (
        ("fisher", "average"),
        ("regmean", "average"),
        ("adamerging", "task_arithmetic"),
        ("frank_wolfe soft, by layer", "average"),
        ("cart", "frank_wolfe soft, by layer"),
        ("frank_wolfe soft, by layer, from cart", "cart"),
        ("surgery+cart", "cart"),
    )
}
pd.DataFrame.from_dict(gaps, orient="index", columns=["points", "±"]).round(1)

# %% [markdown]
# What it costs, on the same axis. The seconds are those of one thread of a shared processor, so
# only their ratios mean something elsewhere.

# %% tags=["hide-input"] mystnb={"figure": {"caption": "Accuracy against the seconds a procedure took (logarithmic), means over the seeds.", "name": "fig-data-cost"}, "image": {"alt": "ALT2"}}
cost = result("vision8-procedures", "cost").groupby("method")["seconds"].mean()
fig, ax = plt.subplots(figsize=(7.6, 5.2))
for method, taken in cost.items():
    value = 100 * means.loc[method, "mean"]
    ax.plot(taken, value, "o", ms=9, color=GROUPS[group(method)])
    ax.annotate(
        short(method), (taken, value), xytext=(6, 4), textcoords="offset points", fontsize=9
    )
for method in ("average", "cart"):
    ax.axhline(100 * means.loc[method, "mean"], color="#8c8c8c", lw=1.2, ls="--")
    ax.text(cost.min(), 100 * means.loc[method, "mean"] + 0.2, label(method), fontsize=10)
ax.set(xscale="log", xlabel="seconds", ylabel="mean test accuracy, %", xlim=(None, cost.max() * 6))
plt.show()

# %% [markdown]
# PROSE2
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
steps = result("vision8-procedures", "history")
last = steps.sort_values("step").groupby(["method", "seed"]).last()
pd.DataFrame(
    {
        "accuracy, %": (100 * means.loc[kinds, "mean"]).round(1),
        "±": (100 * means.loc[kinds, "half"]).round(1),
        "loss before the last step": last["loss"].groupby("method").mean()[kinds].round(3),
        "seconds": cost[kinds].round(0),
    }
)

# %% tags=["hide-input"] mystnb={"figure": {"caption": "The calibration loss and the gap over the steps of the four combinations, from the pretrained model; means over the seeds. Gaps by layer are of the product of the tensors' hulls, a larger set.", "name": "fig-fw-kinds"}, "image": {"alt": "ALT3"}}
fig, axes = plt.subplots(1, 2, figsize=(8.6, 4.0))
STYLE = {"hard": "--", "soft": "-", "task": "#0072b2", "layer": "#d55e00"}
for kind in kinds:
    variant, unit = kind.removeprefix("frank_wolfe ").split(", by ")
    curve = steps[steps["method"] == kind].groupby("step")[["loss", "gap"]].mean()
    for ax, column in zip(axes, ("loss", "gap"), strict=True):
        ax.plot(
            curve.index,
            curve[column],
            ls=STYLE[variant],
            color=STYLE[unit],
            label=f"{variant}, {unit}",
        )
axes[0].set(xlabel="step", ylabel="calibration loss, nats")
axes[1].set(xlabel="step", ylabel="Frank-Wolfe gap", ylim=(0, None))
axes[1].legend()
plt.show()

# %% [markdown]
# PROSE3
#
# ## Inside the hull, and out of it
#
# Every number of the four stays under CART's. That is the hull, and not the walk: task
# arithmetic, TIES and CART add differences up, and so leave the hull, which ends where the
# coefficients of a mean do ([](21-frank-wolfe), *What the hull leaves out*). Two ways lead out of it: coefficients of any sign, as
# in the authors' code, and a start that is outside already.

# %%
hull = result("vision8-procedures", "hull").groupby("method")
outside = ["frank_wolfe soft, by task", "frank_wolfe soft, by task, unconstrained"]
outside += [f"frank_wolfe {variant}, by layer, from cart" for variant in ("hard", "soft")]
pd.DataFrame(
    {
        "accuracy, %": (100 * means.loc[outside, "mean"]).round(1),
        "±": (100 * means.loc[outside, "half"]).round(1),
        "smallest coefficient": hull["smallest"].min()[outside].round(3),
        "largest error of the iterate": hull["error"].max()[outside].map("{:.0e}".format),
    }
)

# %% [markdown]
# PROSE4
#
# ## How many samples?
#
# The supplement's Figure 1 sets accuracy against the number of calibration samples, beside traditional
# multi-task training. Ours, at 5, 20 and 100 labelled pictures a task; the hard variant starts from
# CART. Lines without points need no such pictures: CART, and multi-task training on all 4,000 a task, which takes
# 1,250 steps, as many examples as the experts saw together.

# %% tags=["hide-input"] mystnb={"figure": {"caption": "Accuracy against the number of labelled training pictures a task, eight vision tasks, with 95 % intervals over three seeds.", "name": "fig-fw-samples"}, "image": {"alt": "ALT5"}}
samples = over_seeds(result("vision8-calibration"), ["method", "examples"]) * 100
SHADES = {"frank_wolfe soft": "#0072b2", "frank_wolfe hard, from cart": "#d55e00"}
SHADES |= {"regmean": "#009e73", "multitask": "#000000"}
fig, ax = plt.subplots(figsize=(7.2, 4.6))
for method, shade in SHADES.items():
    curve = samples.loc[method].drop(0, errors="ignore")
    ax.errorbar(
        curve.index,
        curve["mean"],
        curve["half"],
        fmt="o-",
        color=shade,
        capsize=4,
        label=short(method),
    )
for method, text in (
    ("cart", "CART"),
    ("multitask", "multi-task, all data"),
    ("pretrained", "pretrained"),
):
    height = samples.loc[(method, 0), "mean"]
    ax.axhline(height, color="#8c8c8c", lw=1.2, ls="--")
    ax.text(5, height + 0.5, text, fontsize=10)
ax.set(xscale="log", xlabel="labelled pictures a task", ylabel="mean test accuracy, %")
ax.set_xticks([5, 20, 100], labels=["5", "20", "100"])
ax.legend()
plt.show()

# %% [markdown]
# PROSE5
#
# ## Experts that nobody asked for
#
# Appendix C.4 of the paper adds up to sixteen irrelevant experts to a pool of four. Our targets are the
# counterparts of its own: scenes, cars, traffic signs and textures of `vision20`. Rules get their scale,
# density or rank from validation data of the targets, for every pool anew; AdaMerging and Frank-Wolfe see
# a hundred unlabelled test pictures of each target, as in the paper, and a second Frank-Wolfe sees a hundred labelled training pictures.

# %% tags=["hide-input"] mystnb={"figure": {"caption": "Mean test accuracy on four target tasks against the number of irrelevant experts in the pool, with 95 % intervals over the seeds.", "name": "fig-fw-irrelevant"}, "image": {"alt": "ALT6"}}
LINES = {
    "frank_wolfe, labels": ("FW, labels", "#d55e00", "o-"),
    "frank_wolfe": ("FW, entropy", "#d55e00", "o--"),
    "adamerging": ("AdaMerging", "#009e73", "s-"),
    "cart": ("CART", "#a06a00", "^-"),
    "ties": ("TIES", "#e69f00", "v-"),
    "task_arithmetic": ("task arithmetic", "#0072b2", "D-"),
    "average": ("average", "#56b4e9", "x-"),
}


def pool_figure(name, xlabel):
    """Accuracy against what the pool holds, a line a method."""
    curves = 100 * over_seeds(result(name), ["method", "count"])
    _, ax = plt.subplots(figsize=(7.4, 4.8))
    for method in [each for each in LINES if each in curves.index.get_level_values(0)]:
        text, shade, style = LINES[method]
        curve = curves.loc[method]
        ax.errorbar(
            curve.index, curve["mean"], curve["half"], fmt=style, color=shade, capsize=3, label=text
        )
    ax.set(xlabel=xlabel, ylabel="mean test accuracy, %", xticks=list(curve.index))
    ax.legend(ncols=2, fontsize=10)
    plt.show()


pool_figure("vision20-irrelevant", "irrelevant experts in the pool")

# %%
crowd = result("vision20-irrelevant").groupby(["method", "count", "seed"])["accuracy"].mean()
lost = 100 * (crowd.xs(0, level="count") - crowd.xs(16, level="count"))
rows = {LINES[method][0]: interval(lost[method].tolist()) for method in LINES}
pd.DataFrame.from_dict(rows, orient="index", columns=["points lost to 16 experts", "±"]).round(1)

# %% [markdown]
# PROSE6
#
# ## Experts that somebody asked for
#
# The other experiment of C.4 judges all twenty tasks, and lets their experts join one after the other, in an
# order that each seed draws. Here a pool of two leaves eighteen tasks without an expert.

# %% tags=["hide-input"] mystnb={"figure": {"caption": "Mean test accuracy on all twenty tasks against the number of experts in the pool, with 95 % intervals over the seeds.", "name": "fig-fw-relevant"}, "image": {"alt": "ALT7"}}
pool_figure("vision20-relevant", "experts in the pool")

# %% [markdown]
# PROSE7
#
# ## Memory
#
# Gradients meet experts one tensor at a time, and the mixture of the soft variant holds its few vertices and
# no more, so experts may be files. The peak of a walk, above what the process held before, with experts of 34 MB on a
# quadratic objective (no activations), each in a process of its own:

# %%
peaks = result("frank_wolfe-memory", "peaks")
peaks["MB"] = peaks["peak_bytes"] / 1e6
peaks.pivot_table(index="variant", columns="experts", values="MB", aggfunc=["median", "max"]).round(
    0
)

# %% [markdown]
# Twenty files take what four take; the spread is the allocator's.
#
# ## What the paper says and what we measured
#
# The rows F1 to F8 of the [](90-claims-ledger) are computed from these results. PROSE8
#
# ## When to use it, and when not
#
# PROSE9
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
# Take a target's expert out of the pool. What happens to the weight that it had, and to the loss?
# ```

# %% [markdown]
# ````{solution-start} ex-fwx-missing
# :class: dropdown
# ````
# Others take over, the starting point among them, and the loss ends higher: a larger hull can only lower the minimum.

# %%
rest = {name: expert for name, expert in zoo.experts.items() if name != targets[0]}
options = {"model": zoo.model, "heads": zoo.heads, "data": data, "transform": normalise}
options |= {"variant": "hard", "granularity": "layer", "steps": 6}
without = ml.adapt("frank_wolfe", rest, pretrained=zoo.pretrained, **options)
final = [each.history["loss"].iloc[-1] for each in (walk, without)]
print(f"loss before the last step: {final[0]:.3f} with the expert, {final[1]:.3f} without")

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
further = ml.adapt("frank_wolfe", stretched, pretrained=zoo.pretrained, **options)
print(f"loss before the last step: {further.history['loss'].iloc[-1]:.3f}, before: {final[0]:.3f}")

# %% [markdown]
# ````{solution-end}
# ````
#
# ## Summary
#
# PROSE10
#
# **Next:** the [](90-claims-ledger). All sources are in the [](../book/bibliography).
