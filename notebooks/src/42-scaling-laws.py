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
# # Scaling laws measured
#
# **In one sentence:** DRAFT on a small transformer the merge still improves after most steps, generalisation error does grow
# with the steps as the paper says but by less than optimisation gains, and where a large rate ruins merges it is the
# training loss that explodes.
#
# From its bound the stability framework {cite}`li2026unified` reads five laws: how the error of a merge depends on
# the steps $K$, the learning rate $\eta$, the batch $b$, the amount of data, and the number of tasks. [](40-stability)
# showed that the bound does not hold, and that laws of this kind need no generalisation error. What do networks do?
# This chapter changes one parameter at a time and measures merges on test examples *and on the examples that the
# experts were trained on*. The paper reports test losses only, and these cannot tell the two errors apart.
#
# **After this chapter you can**
#
# * measure a merge's optimisation and generalisation error apart, and say which one a change comes from;
# * get every number of steps from one training, and say why a schedule forbids that;
# * tell the effect of a batch from that of the pictures seen, and that of a rate from that of $\eta K$;
# * choose the unit of an error bar, and say what the paper's covers.
#
# **Before you start:** [](40-stability), [](03-interference). **Time:** 25 minutes to read, about a minute to run; the
# tables are read from `results/` ({ref}`below <scaling-repeat>`).

# %% tags=["parameters"]
SUITE = "glyphs8"
PROFILE = "default"
SEED = 0
DEVICE = "cpu"

# %% [markdown]
# ## One training, every number of steps
#
# Fine-tuning usually warms a rate up and lowers it to zero. A checkpoint inside such a schedule is no shorter
# training: its rate has not come down (exercise {ref}`ex-scaling-schedule`). At a *constant* rate the model after $K$
# steps is what a training of $K$ steps gives, to the last bit. So one training serves every $K$, and every
# group of tasks and every method besides. `scaling` does that for one setting: it trains an expert for each
# task, keeps checkpoints, merges them, and judges everything on test examples and on training examples.
#
# Here it runs live, for four scripts, a small vision transformer and Adam at three rates. Experts of all rates see
# the same batches.

# %%
import mergelib as ml
from mergelib.studies.papers.stability.scaling import scaling
from mergelib.testbed.zoo import load_beginning

scripts = ["greek", "arrows", "braille", "hebrew"]
suite = ml.load_suite(SUITE, seed=SEED, profile=PROFILE, tasks=scripts)
zoo = load_beginning(suite, model="vit_small", device=DEVICE)
short = {"batch_size": 16, "groups": 1, "size": 4, "rivals": (), "pictures": 120, "seen": 80}
counts = (2, 4, 8) if PROFILE == "smoke" else (5, 10, 20, 40, 80)
rates = (4e-4, 1.6e-3, 6.4e-3)
live = {rate: scaling(zoo, learning_rate=rate, steps=counts, **short) for rate in rates}

# %% [markdown]
# The **generalisation error** $E_G$ of the average is its test loss minus its training loss. Its **optimisation
# error** $E_O$ is its training loss, less a floor that is the same in all panels and that nobody knows. The
# grey curve is how well the experts do by themselves.

# %% tags=["hide-input"] mystnb={"figure": {"caption": "Average of four experts on rendered scripts against the steps that each has taken, at three learning rates, one seed: test loss in nats, and its two parts. Dotted: the test loss of the experts themselves.", "name": "fig-scaling-live"}, "image": {"alt": "Three panels. At the two smaller rates test and training loss of the average fall together with the steps, slower than the experts' test loss, and their difference stays small and flat. At the largest rate test and training loss lie on each other, at twice the level where the others begin, and the difference is about zero."}}
import matplotlib.pyplot as plt
import pandas as pd

from mergelib.plots import use_style
from mergelib.studies.analysis.stability import scaling as sweep
from mergelib.studies.figures import scaling as figures

use_style()
fig, axes = plt.subplots(1, 3, figsize=(7.2, 4.2), sharey=True)
figures.live_parts(live, axes)
axes[0].set(ylabel="nats")
handles, names = axes[0].get_legend_handles_labels()
fig.legend(handles, names, loc="outside lower center", ncols=2, fontsize=10)
plt.show()

# %% [markdown]
# At the two smaller rates everything falls together: every doubling of the steps improves the experts and, more slowly,
# their average, on training examples as on test ones. At the largest rate the average is worse than the pretrained
# model at every $K$. It is just as bad **on the examples that its experts were trained on**, so nothing of this is
# over-fitting; the experts themselves are thrown far off and only begin to recover.

# %% tags=["remove-cell"]
ends = {rate: sweep.apart(pd.DataFrame(found["merged"])) for rate, found in live.items()}
ends = {
    rate: table[table["steps"] == counts[-1]].mean(numeric_only=True)
    for rate, table in ends.items()
}
base = pd.DataFrame(live[rates[0]]["experts"]).query("steps == 0").mean(numeric_only=True)
assert ends[rates[-1]]["train_loss"] > base["train_loss"] + 0.5
assert abs(ends[rates[-1]]["generalisation"]) < 0.4
if PROFILE != "smoke":
    assert all(
        ends[rate][part] < base[part] for rate in rates[:2] for part in ("loss", "train_loss")
    )

# %% [markdown]
# ## What was measured
#
# The rest comes from a sweep over eight tasks of photographs and scans, `vision8`, with the same small transformer.
# **Usual** are Adam without decay at $\eta = 4 \cdot 10^{-4}$, batches of 32 and all training examples. One
# parameter is changed at a time: four rates, three batches, three shares of the data, up to 800 steps. Eight groups of
# five tasks are drawn for each seed, the same ones in all settings, and averaged; two of them are merged by task
# arithmetic, TIES and DARE as well.
#
# The paper fine-tunes for up to 4,000 steps, merges fifteen random groups of the *same* experts, and draws the standard
# error over these groups. Two such groups share experts, and no new group tells what another training would have
# given. In this chapter the unit is the seed: other examples, heads, orders and groups. Intervals are Student's, 95 %.

# %% tags=["nbval-check-output"]
from mergelib.records.results import load_table

RESULT = "vision8-scaling-vit_small"
merged, experts = (sweep.apart(load_table(RESULT, part)) for part in ("merged", "experts"))
settings = merged[list(sweep.SETTING)].drop_duplicates()
print(len(settings), "settings,", merged["seed"].nunique(), "seeds, steps:", end=" ")
print(*sorted(merged["steps"].unique()))

# %% tags=["hide-input"] mystnb={"figure": {"caption": "Accuracy of the average at the usual setting against the steps of its experts, with the paper's kind of error bar, for one seed, and with ours.", "name": "fig-scaling-bars"}, "image": {"alt": "DRAFT-ALT"}}
average = merged[merged["method"] == "average"]
usual = sweep.at(average, steps=None)
fig, ax = plt.subplots()
figures.both_bars(usual, ax)
ax.set(xlabel="steps K of every expert", ylabel="test accuracy, %")
ax.legend(loc="lower right")
plt.show()

# %% [markdown]
# The two bars answer different questions. Over groups, with the experts held fixed, one learns how much it matters
# *which* tasks are merged. Over seeds, one learns whether another training would tell the same.
#
# ## Does generalisation explode?
#
# The paper's Figure 1 shows merges that get worse with $K$, and concludes that optimisation cannot be the reason, so
# it must be generalisation. In its words, the stability part grows with $K$ while the optimisation error falls. This is
# a claim about two curves that can be measured. The same for the learning rate, of which it says that a large one
# causes "catastrophic generalization failure regardless of optimization convergence".

# %% tags=["hide-input"] mystnb={"figure": {"caption": "Loss of the average and its two parts, as differences from the pretrained model on the same examples, against the steps at the usual rate (left) and against the rate after 100 steps (right); means and intervals over seeds.", "name": "fig-scaling-parts"}, "image": {"alt": "DRAFT-ALT"}}
gains = sweep.gained(average, experts)
fig, axes = plt.subplots(1, 2, figsize=(7.2, 4.2), sharey=True)
figures.loss_parts(sweep.at(gains, steps=None), "steps", axes[0])
by_rate = sweep.at(gains, learning_rate=None, steps=100)
figures.loss_parts(by_rate, "learning_rate", axes[1], unit=1e-4)
axes[0].set(xlabel="steps K", ylabel="nats above the pretrained model")
axes[1].set(xlabel="learning rate, 10⁻⁴")
handles, names = axes[0].get_legend_handles_labels()
fig.legend(handles, names, loc="outside lower center", ncols=3, fontsize=10)
plt.show()

# %% [markdown]
# The differences, from the value of $K$ or $\eta$ that is best on the other seeds to the largest one. A row *holds*
# where its interval, corrected for the number of rows, lies above zero, and *fails* where it lies below; the
# [](90-claims-ledger) says how.

# %%
from mergelib import ledger
from mergelib.ledger import drawing
from mergelib.ledger.stability import scaling as claims

verdicts, checks = ledger.judge(claims.CLAIMS)
print(drawing.lines(checks, "T9"))

# %% [markdown]
# DRAFT (pilot, one seed, K from 25 to 400: E_G +0.07 nats, training loss −0.16; rate from 4e-4 to 3.2e-3 at K = 100: training
# loss +0.25, E_G +0.04). With the steps, the two parts move as the paper says: the training loss falls and the
# difference grows. But the fall is larger, so there is no decline to explain. With the rate it is the other way round: what
# rises is the training loss. **Where merges collapse, they are bad on the examples that their experts were trained on.**
#
# ## Steps and learning rate
#
# (scaling-steps)=
# The law of $K$: merges improve up to a point, then decline. The law of $\eta$: small rates are a prerequisite, large
# ones cost quadratically. [](40-stability) suggests another reading: what counts is how far the experts have gone,
# $\eta K$.

# %% tags=["hide-input"] mystnb={"figure": {"caption": "Test loss of the average less that of the pretrained model, for four learning rates, against the steps (left) and against rate times steps (right).", "name": "fig-scaling-rates"}, "image": {"alt": "DRAFT-ALT"}}
fig, axes = plt.subplots(1, 2, figsize=(7.2, 4.2), sharey=True)
figures.rate_curves(sweep.at(gains, learning_rate=None, steps=None), "loss", axes)
axes[0].set(ylabel="test loss above the pretrained, nats")
handles, names = axes[0].get_legend_handles_labels()
fig.legend(handles, names, loc="outside lower center", ncols=4, fontsize=10)
plt.show()

# %%
print(drawing.lines(checks, "T1"))
print(drawing.lines(checks, "T3"))
print("controls:")
print(drawing.lines(checks, "T3", "control"))

# %% [markdown]
# DRAFT (pilot: no decline up to K = 400; at K = 100 the largest rate is below the pretrained model in accuracy, not in loss;
# iso-ηK: 1.6e-3 at K = 25 is 6 points below 4e-4 at K = 100.) Adam's first steps have the same length whatever the
# gradient is, so at a large rate they throw an expert off before its gradients agree; ηK is no sufficient coordinate for it.
#
# Single experts tell a different story. They are what the paper's Figure 4 and Table II show beside the merges.

# %% tags=["hide-input"] mystnb={"figure": {"caption": "Test accuracy above that of the pretrained model, against steps at the usual setting: the experts alone, each on its own task, and merges of five by four methods.", "name": "fig-scaling-experts"}, "image": {"alt": "DRAFT-ALT"}}
alone = sweep.at(experts, steps=None).query("steps > 0").assign(method="individual")
fig, ax = plt.subplots()
both = sweep.gained(pd.concat([alone, sweep.at(merged, steps=None)]), experts)
shown = both[~both["method"].str.endswith("_printed")]
figures.method_curves(shown, "steps", "accuracy", ax)
ax.set(xlabel="steps K of every expert", ylabel="points above the pretrained model")
ax.legend(fontsize=10)
plt.show()

# %%
print(drawing.lines(checks, "T18"))
print(drawing.lines(checks, "T17"))

# %% [markdown]
# DRAFT (depends on T1: without a decline there is nothing for stopping to save.)
#
# ## Batches and data
#
# (scaling-batches)=
# Larger batches average the noise of gradients, and in the paper's bound they make training *less* stable where tasks
# differ. At small rates the first is said to win. But at equal $K$, a larger batch also means more pictures. The
# control compares equal numbers of pictures.

# %%
print(drawing.lines(checks, "T2"))
print("controls:")
print(drawing.lines(checks, "T2", "control"))

# %% [markdown]
# DRAFT-T2
#
# More data are called a "free lunch": $n$ stands under the stability term and nowhere else. With a quarter and a half
# of the training rows, at equal $K$:

# %%
print(drawing.lines(checks, "T4"))
print("controls:")
print(drawing.lines(checks, "T4", "control"))

# %% [markdown]
# DRAFT-T4
#
# ## The printed law beside the measurement
#
# (scaling-laws)=
# Stability is what the bound lets generalisation depend on. The next table has, for four changes, the factor by which
# an expert's stability $s$ grows according to Lemma 3 and to the repaired {prf:ref}`thm-stability-local`, both with
# $\sigma = \zeta$; and what $E_G$ and the training loss of the average do, in nats. By
# {prf:ref}`thm-stability-generalisation`, $E_G$ follows the root of $s$ where $s$ is small.

# %%
beside = sweep.beside_theory(average)
beside.style.format(precision=2).set_uuid("scaling")

# %% [markdown]
# DRAFT-LAWS
#
# (scaling-product)=
# One thing can be read off the law alone. The paper calls the batch's part of the stability term negligible, as
# $\eta^2$ is small, and the part of $K$ dominant, at the same $\eta$. Both stand in one product, though. Where
# heterogeneity outweighs noise, its batches and its steps do the same to it:

# %% tags=["nbval-check-output"]
plain = {"steps": 1000, "batch_size": 64}
for change in ({"batch_size": 256}, {"steps": 4000}):
    factor, _ = sweep.stability_factors(plain, {**plain, **change}, noise=0.01)
    print(*(f"{name} 4 times as large:" for name in change), f"stability term × {factor:.1f}")

# %% [markdown]
# ## The number of tasks
#
# With more tasks, each has a smaller say. The mean over all tasks of a merge also changes because the tasks do, so we
# follow two tasks and add others to their merge.

# %% tags=["hide-input"] mystnb={"figure": {"caption": "Test accuracy of two tasks in nested merges of two to eight experts, usual setting after 400 steps, by four methods.", "name": "fig-scaling-tasks"}, "image": {"alt": "DRAFT-ALT"}}
nested = load_table(RESULT, "counts")
shown = nested[~nested["method"].str.endswith("_printed")]
first = shown.query("count == 2")[["seed", "task"]].drop_duplicates()
fig, ax = plt.subplots()
figures.method_curves(shown.merge(first), "count", "accuracy", ax)
ax.set(xlabel="experts merged", ylabel="test accuracy of the first two tasks, %")
ax.legend(fontsize=10)
plt.show()

# %%
print(drawing.lines(checks, "T5"))
print(drawing.lines(checks, "T13"))

# %% [markdown]
# DRAFT-T5-T13
#
# TIES and DARE are said to lower the heterogeneity of experts, and with it the excess risk, in the form that Corollary
# 1 prints, $\sum_t \lambda \mathcal M(\tau_t)$ with $\lambda = \frac1T$. And all methods are said to follow the same trends.
# We count how often a method changes in the same direction as the average, from each value of a parameter to
# the next.

# %%
print(drawing.lines(checks, "T12"))
print(drawing.lines(checks, "T12", "secondary"))
print(drawing.lines(checks, "T11"))

# %% [markdown]
# DRAFT-T11-T12
#
# ## When to use it, and when not
#
# **Evaluate a merge on training examples, too.** It costs nothing, and tells whether more data could help at all.
#
# **Prefer a rate at which single experts train smoothly.** DRAFT
#
# **Do not read a law off a bound** whose parts were not measured apart, and do not take an error bar over groups of the same
# experts for one over trainings.
#
# What is not covered: networks with BatchNorm, where averaged statistics add a failure of their own; CLIP's towers;
# thousands of steps; and experts that differ in their settings.
#
# (scaling-repeat)=
# The tables come from one command, which resumes when it is killed. `--at` adds a setting to the sweep; `book/how-to-run`
# says where the pictures come from.
#
# ```bash
# mergelib study scaling --suite vision8 --model vit_small --seeds 3 --set groups=8 --set size=5 \
#   --set pictures=150 --set seen=100 --at "steps=25,50,100,200,400,800 counts=2,4,6,8" \
#   --at learning_rate=1e-4 --at learning_rate=1.6e-3 --at batch_size=8 -o scaling.json
# ```
#
# ## Exercises
#
# ```{exercise} The experts' own generalisation (easy)
# :label: ex-scaling-experts
# Split the loss of the *experts* as we split that of the average. How much of the change from 25 to 800 steps is
# generalisation, and what happens to the experts' test loss?
# ```

# %% [markdown]
# ````{solution-start} ex-scaling-experts
# :class: dropdown
# ````
# DRAFT-EX1

# %%
parts = ["loss", "train_loss", "generalisation"]
own = sweep.at(experts, steps=None).query("steps in (25, 800)")
own.groupby("steps")[parts].mean().round(2)

# %% [markdown]
# ````{solution-end}
# ````
#
# ```{exercise} Checkpoints inside a schedule (medium)
# :label: ex-scaling-schedule
# The house's fine-tuning warms the rate up over a tenth of the steps and lowers it to zero along a cosine. Of 400
# steps, how large is the sum of all rates up to step 200, and how large is it for a training of 200 steps? Which
# constant rate would give the latter?
# ```

# %% [markdown]
# ````{solution-start} ex-scaling-schedule
# :class: dropdown
# ````
# The sum of rates is the $\eta K$ of this chapter. Half way, a long training has come further than a short one that
# ends there, and its last rate is still high.

# %% tags=["nbval-check-output"]
import torch

from mergelib.training import warmup_cosine

rates = {}
for steps in (400, 200):
    optimiser = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    schedule = warmup_cosine(optimiser, steps, warmup=0.1)
    rates[steps] = []
    for _ in range(steps):
        rates[steps] += schedule.get_last_lr()
        optimiser.step()
        schedule.step()
half, whole = rates[400][:200], rates[200]
print(f"half of 400 steps: {sum(half):.0f}, all of 200: {sum(whole):.0f} times the peak")
print(f"last rates: {half[-1]:.2f} and {whole[-1]:.2f}; constant: {sum(whole) / 200:.2f}")

# %% [markdown]
# ````{solution-end}
# ````
#
# ```{exercise} How far, or how long? (hard)
# :label: ex-scaling-distance
# The sweep knows how far each average is from the pretrained model. Over all its settings, does the test loss of the
# average rise and fall with this distance, or with $\eta K$? Compare rank correlations, seed by seed. Why may neither
# be used to *choose* a setting?
# ```

# %% [markdown]
# ````{solution-start} ex-scaling-distance
# :class: dropdown
# ````
# DRAFT-EX3. Both are known only for settings that were trained: they rank what exists.

# %%
points = average.groupby(["seed", *sweep.SETTING, "steps"])[["loss", "distance"]].mean()
points = points.reset_index().assign(progress=lambda t: t["learning_rate"] * t["steps"])
for name in ("distance", "progress"):
    found = points.groupby("seed")[[name, "loss"]].corr("spearman")[name].unstack()["loss"]
    print(name, *(f"{value:+.2f}" for value in found))

# %% [markdown]
# ````{solution-end}
# ````
#
# ## Summary
#
# DRAFT-SUMMARY
#
# **Next:** the [](90-claims-ledger), where the papers' claims meet measurements.
#
# ## References
#
# All sources are in the [](../book/bibliography).
