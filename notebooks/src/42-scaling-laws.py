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
# # Scaling laws measured
#
# **In one sentence:** within seven passes over the data the generalisation error of a merge rises with the steps and falls
# with the data, as the paper's bound and the corrected one both say, and stays below the training loss; where a large
# learning rate ruins merges, it is their training loss that rises.
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

# %% tags=["parameters", "remove-cell"]
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
# Here it runs live, for four scripts, a small vision transformer and Adam: at two rates, whose experts see the same batches, and
# at the smaller one with batches of half the size.

# %%
from mergebook import load_suite
from mergebook.stability.measure.scaling import scaling
from mergebook.suites.zoo import load_beginning

scripts = ["greek", "arrows", "braille", "hebrew"]
suite = load_suite(SUITE, seed=SEED, profile=PROFILE, tasks=scripts)
zoo = load_beginning(suite, model="vit_small", device=DEVICE)
short = {"batch_size": 16, "groups": 1, "size": 4, "rivals": (), "pictures": 120, "seen": 80}
counts = (2, 4, 8) if PROFILE == "smoke" else (5, 10, 20, 40)
rates = (4e-4, 6.4e-3)
live = {rate: scaling(zoo, learning_rate=rate, steps=counts, **short) for rate in rates}
halves = {**short, "batch_size": 8, "seen": 1, "steps": counts[-2:]}
batches = {8: scaling(zoo, learning_rate=rates[0], **halves), 16: live[rates[0]]}

# %% [markdown]
# The **generalisation error** $E_G$ of the average is its test loss minus its training loss. Its **optimisation
# error** $E_O$ is its training loss, less a floor that is the same in both panels and that nobody knows. The
# grey curve is how well the experts do by themselves.

# %% tags=["hide-input"] mystnb={"figure": {"caption": "Average of four experts on rendered scripts against the steps that each has taken, at two learning rates, one seed: test loss in nats, and its two parts. Dotted: the test loss of the experts themselves.", "name": "fig-scaling-live"}, "image": {"alt": "Two panels. At the smaller rate test and training loss of the average fall together with the steps, slower than the experts' test loss, and their difference stays small and flat. At the larger rate test and training loss lie on each other, at twice the level where the others begin, and the difference is about zero."}}
import matplotlib.pyplot as plt
import pandas as pd

from mergebook import plots
from mergebook.stability.draw import scaling as figures
from mergebook.stability.read import scaling as sweep

plots.use_style()
fig, axes = plt.subplots(1, 2, figsize=(7.2, 4.2), sharey=True)
for ax, (rate, found) in zip(axes, live.items()):
    split = sweep.apart(pd.DataFrame(found["merged"]))
    for value, look in figures.PARTS.items():
        plots.series(ax, split, x="steps", y=value, looks={None: look})
    alone = pd.DataFrame(found["experts"]).query("steps > 0")
    look = {None: ("experts, test loss", plots.GREY, ":")}
    plots.series(ax, alone, x="steps", y="loss", looks=look)
    plots.log_axis(ax, split["steps"])
    ax.set(title=f"η = {rate:g}", xlabel="steps K")
axes[0].set(ylabel="nats")
plots.legend_outside(fig, ncols=2, fontsize=10)
plt.show()

# %% [markdown]
# At the smaller rate everything falls together: every doubling of the steps improves the experts and, more slowly,
# their average, on training examples as on test ones. At the larger one the average is worse than the pretrained
# model at every $K$. It is just as bad **on the examples that its experts were trained on**, so nothing of this is
# over-fitting; the experts themselves are thrown far off and only begin to recover.

# %% tags=["hide-input"]
for size, found in batches.items():
    losses = pd.DataFrame(found["merged"]).groupby("steps")["loss"].mean()
    print(
        f"b = {size:2}, test loss after K =", *(f"{k}: {loss:.2f} " for k, loss in losses.items())
    )

# %% [markdown]
# At equal steps the batches of 16 are ahead. At equal pictures, twice the steps of 8, they are behind: both come back
# [below](#batches-and-data).

# %% tags=["remove-cell"]
few, many = (
    pd.DataFrame(found["merged"]).groupby("steps")["loss"].mean() for found in batches.values()
)
if PROFILE != "smoke":
    assert many[counts[-1]] < few[counts[-1]] < many[counts[-2]]

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
    assert all(ends[rates[0]][part] < base[part] for part in ("loss", "train_loss"))

# %% [markdown]
# ## What was measured
#
# The rest comes from a sweep over eight tasks of photographs and scans, `vision8`, with the same small transformer.
# **Usual** are Adam without decay at $\eta = 4 \cdot 10^{-4}$, batches of 32 and all training examples. One
# parameter is changed at a time: four rates, three batches, three shares of the data, up to 800 steps. Eight groups of
# five tasks are drawn for each seed, the same ones in all settings; two of them are merged by task arithmetic, TIES and
# DARE as well. Scales are fixed: $\frac15$ for the average, $\frac25$ for task arithmetic and DARE.
#
# The paper fine-tunes for up to 4,000 steps, merges fifteen random groups of the *same* experts, and draws the standard
# error over these groups, two of which share 3.2 tasks on average where eight are drawn from twenty. That tells how much it matters
# which tasks are merged, not what another training would have given. Here the unit is the seed: other examples, heads, orders and groups. Intervals are Student's, 95 %.
# All seeds start from the same pretrained network, so that every interval is conditional on it.
#
# How long is this training? Our data sets have about 3,700 training examples, so that 800 steps with batches of 32 are 6.9
# passes over all data, and 400 steps with a quarter of them are 14. The paper's 4,000 steps with batches of 256 are about
# 4 passes over the largest of its data sets and 1,000 over the smallest. Whatever happens after more passes is not seen here.

# %% tags=["remove-input"]
import pandas as pd

from mergebook.lab.results import load_table
from mergebook.stability.read import scaling as sweep

RESULT, RESNET = "vision8-scaling-vit_small", "vision8-scaling-resnet18_narrow"
merged, experts = (sweep.apart(load_table(RESULT, part)) for part in ("merged", "experts"))
average = merged[merged["method"] == "average"]
print(
    f"passes: {sweep.passes(800):.1f}; with a quarter of the data {sweep.passes(400, share=0.25):.1f}"
)
settings = average[[*sweep.SETTING, "steps"]].drop_duplicates()
print(len(settings), "settings, seeds:", *merged["seed"].unique())

# %% tags=["remove-input"] mystnb={"figure": {"caption": "Accuracy of the average against the steps at the usual setting. Grey: each seed, with the paper's error bar, the standard error over its groups of tasks. Black: mean of the seeds, with its 95 % interval.", "name": "fig-scaling-bars"}, "image": {"alt": "Five grey curves rise side by side, from 44 to 48 % at 25 steps to 49 to 53 % at 800, four points apart, with bars of one to two points. The black curve rises between them by five points, in a band of two points on either side."}}
rows = sweep.at(average, steps=None)
bars = {"ms": 3, "lw": 0.8, "capsize": 0}
fig, ax = plt.subplots(figsize=(7.2, 3.8))
plots.curve(ax, sweep.curve(rows, "steps"), ("mean of seeds", plots.BLACK, "-"), band=True)
for i, (_, own) in enumerate(rows.groupby("seed")):
    groups = 100 * own.groupby(["steps", "group"])["accuracy"].mean().unstack()
    papers = pd.DataFrame({"mean": groups.mean(axis=1), "half_width": groups.sem(axis=1)})
    papers = papers.set_axis(papers.index * 1.035 ** (i - 2))
    look = ("_" if i else "over groups, each seed", plots.GREY, "o-")
    plots.curve(ax, papers, look, **bars)
plots.log_axis(ax, rows["steps"])
ax.legend(fontsize=10, loc="lower right")
ax.set(xlabel="steps K", ylabel="accuracy, %")
plt.show()

# %% [markdown]
# Experts are trained one after the other. Several at once, by `vmap` over stacked weights, gain nothing here (`make bench`), but for perceptrons:

# %% tags=["remove-input"]
from mergebook.lab.results import load_result

for row in load_result("stacking-speed")["gradients"]:
    print(f"{row['networks']} × {row['model']}: vmap {row['speedup']:.2f} times as fast as a loop")

# %% tags=["remove-cell"]
faster = {row["model"]: row["speedup"] for row in load_result("stacking-speed")["gradients"]}
assert faster["vit_small"] < 1
assert faster["vit"] < 1 < faster["mlp"]

# %% [markdown]
# ## Which error rises?
#
# The paper's Figure 1 shows merges that get worse with $K$, and concludes that optimisation cannot be the reason, so
# it must be generalisation: with $K$ its stability term grows, while the optimisation error falls. Of a large learning
# rate it says that it causes "catastrophic generalization failure regardless of optimization convergence". These are
# claims about two curves that can be measured.

# %% tags=["remove-input"] mystnb={"figure": {"caption": "Loss of the average and its two parts, as differences from the pretrained model on the same examples, against the steps at the usual rate (left) and against the rate after 100 steps (right); means and intervals over seeds.", "name": "fig-scaling-parts"}, "image": {"alt": "Left: the training loss falls throughout, the difference rises slowly from zero to about 0.1, and the test loss has a shallow minimum at 400 steps. Right: training and test loss lie on each other, are lowest at the two middle rates and jump at the largest, with intervals of a quarter of a nat; the difference does not rise."}}
gains = sweep.gained(average, experts)
swept = {"steps": {"steps": None}, "learning_rate": {"learning_rate": None, "steps": 100}}
fig, axes = plt.subplots(1, 2, figsize=(7.2, 4.2), sharey=True)
for ax, (column, chosen) in zip(axes, swept.items()):
    figures.loss_parts(sweep.at(gains, **chosen), column, ax)
    ax.set(xlabel=figures.AXES[column])
axes[0].set(ylabel="nats above the pretrained model")
plots.legend_outside(fig, fontsize=10)
plt.show()

# %% [markdown]
# How large is $E_O$ itself? A floor of the training loss is zero; another is what one model reaches that is trained on all tasks together, here
# for 800 steps with 16 examples of each:

# %% tags=["remove-input"]
VALIDATED = "vision8-scaling-validated"
joint = load_table(VALIDATED, "joint")
long = sweep.at(average, steps=800)
long = long[long["seed"].isin(joint["seed"])]
for name, rows in {"average, K = 800": long, "trained jointly": joint}.items():
    own = sweep.apart(rows).groupby("seed")[["train_loss", "generalisation"]].mean()
    texts = (f"{part} {sweep.told(own[part], 2)}" for part in own)
    print(f"{name:17}", *texts, f"({len(own)} seeds)")

# %% tags=["remove-cell"]
apart = long.groupby("seed")["train_loss"].mean() - joint.groupby("seed")["train_loss"].mean()
assert 0.8 < apart.mean() < 1
assert 1.5 < long["train_loss"].mean() < 1.7
assert (long.groupby("seed")["generalisation"].mean() < 0.5 * apart).all()

# %% [markdown]
# By either floor most of what the average lacks after seven passes is optimisation error. $E_O$ lies between 0.9 nats, above one model for all tasks, and 1.6, above zero;
# $E_G$ is a quarter of a nat.
#
# [](40-stability) proves that $E_G$ of the pretrained model is zero in expectation, since it has seen none of the examples. Measured,
# it is not: some test sets differ from their training sets (GTSRB's has other tracks of signs), the heads were built from
# three training examples of each class, and a hundred examples are few. So the figures show differences from the
# pretrained model on the same examples, which removes what all settings share:

# %% tags=["remove-input"]
gap = experts[experts["steps"] == 0].groupby(["task", "seed"])["generalisation"].mean()
print(
    f"pretrained model: E_G {sweep.told(gap.groupby('seed').mean().rename('E_G'), 2)} nats,",
    end=" ",
)
print(f"GTSRB alone {gap['gtsrb'].mean():.2f}, all other tasks {gap.drop('gtsrb').mean():.2f}")

# %% tags=["remove-cell"]
assert gap["gtsrb"].mean() > 0.5
assert abs(gap.drop("gtsrb").mean()) < 0.06
without = gains[gains["task"] != "gtsrb"]
late_7 = [
    sweep.at(without, steps=count).groupby("seed")["generalisation"].mean() for count in (400, 800)
]
assert sweep.difference(late_7[1] - late_7[0])[0] > sweep.difference(late_7[1] - late_7[0])[1]
assert 6.5 < sweep.passes(800) < 7

# %% [markdown]
# The differences, from the value of $K$ or $\eta$ that is best on the other seeds to the largest one. A row *holds*
# where its interval, corrected for the number of rows, lies above zero, and *fails* where it lies below; the
# [](90-claims-ledger) says how.

# %% tags=["remove-input"]
from mergebook import ledger
from mergebook.ledger import drawing
from mergebook.stability.claims import CLAIMS

claims = [claim for claim in CLAIMS if claim.page == "notebooks/42-scaling-laws"]
verdicts, checks = ledger.judge(claims)
print(drawing.lines(checks, "T9"))

# %% [markdown]
# By what the test loss changes there, and how much of it is $E_G$ and how much training loss, in nats:

# %% tags=["remove-input"]
parts = ["loss", "generalisation", "train_loss"]


def changed(rows, *ends):
    first, second = (sweep.at(rows, **end).groupby("seed")[parts].mean() for end in ends)
    return second - first


late = changed(gains, {"steps": 400}, {"steps": 800})
two_rates = [{"learning_rate": rate, "steps": 100} for rate in (4e-4, 3.2e-3)]
jump = changed(gains, *two_rates)
for words, change in {"K 400 to 800": late, "η 0.0004 to 0.0032": jump}.items():
    print(f"{words:19}", "  ".join(f"{part} {sweep.told(change[part], 2)}" for part in parts))

# %% tags=["remove-cell"]
by_steps = sweep.at(gains, steps=None).groupby("steps")[parts].mean()
assert by_steps["train_loss"].is_monotonic_decreasing


assert 8 * 8 / 20 == 3.2
assert late["loss"].between(0.01, 0.06).all()
assert (late["generalisation"] > 0.01).all()
assert (late["train_loss"] < 0).all()
assert (jump["train_loss"] > 0.3).all()
assert (jump["generalisation"] < 0.1 * jump["train_loss"]).all()

# %% [markdown]
# With the steps, the parts move as the paper says: after 400 steps the training loss still falls, in all five seeds though by
# little, the generalisation error rises by more, and the test loss turns. That is the paper's explanation, and what turns
# the loss here is $E_G$, not the means of minima of [](40-stability). Within seven passes nothing explodes: the last
# doubling of the steps costs a few hundredths of a nat. Over other tasks like these eight, the first table leaves the
# rise of $E_G$ just open.
#
# With the rate it is the other way round. The training loss jumps, by a third of a nat or more in every seed, and the
# generalisation error does not rise. **Where a large rate ruins merges, they are bad on the examples that their experts were
# trained on.** Over-fitting is not the reason, and more data would be no cure.
#
# Steps cost more where a method goes further from the pretrained model, or where data are few:

# %% tags=["remove-input"]
eight = checks["network"].isin(["ViT", "task arithmetic", "TIES", "DARE"])
print(drawing.lines(checks[eight & (checks["half"] == "K")], "T9", "secondary"))

# %% [markdown]
# Task arithmetic goes twice as far as the average, and what it loses is generalisation, as with a quarter of the data. TIES
# and DARE lose most, and most of it is training loss.
#
# ## Steps and learning rate
#
# (scaling-steps)=
# The law of $K$: merges improve up to a point, then decline. The law of $\eta$: small rates are a prerequisite, large
# ones cost quadratically. [](40-stability) suggests another reading: what counts is how far the experts have gone,
# $\eta K$.

# %% tags=["remove-input"] mystnb={"figure": {"caption": "Test loss of the average less that of the pretrained model, for four learning rates, against the steps (left) and against rate times steps (right).", "name": "fig-scaling-rates"}, "image": {"alt": "Left: the curves of the three smaller rates fall with the steps, and the usual one turns up a little at 800; that of the largest rate begins above zero and falls to just below it. Right: the curves of the two smallest rates lie on each other, the third begins above them and joins them later, the largest stays far above."}}
fig, axes = plt.subplots(1, 2, figsize=(7.2, 4.2), sharey=True)
figures.two_clocks(
    sweep.at(gains, learning_rate=None, steps=None), "learning_rate", axes, ("η", "ηK")
)
handles, names = axes[0].get_legend_handles_labels()
fig.legend(handles, names, loc="outside lower center", ncols=4, fontsize=10)
plt.show()

# %% tags=["remove-input"]
print(drawing.lines(checks, "T1"))
print(drawing.lines(checks, "T3"))
print("controls:")
print(drawing.lines(checks, "T3", "control"))

# %% tags=["remove-cell"]
largest = sweep.at(average, learning_rate=3.2e-3, steps=None).groupby("steps")["loss"].mean()
assert largest.is_monotonic_decreasing

# %% [markdown]
# The average improves, and then declines by so little that five seeds leave it open, and in accuracy not at all. (Whether another
# network turns at another $K$ is open, too: ResNets have not turned by the last one tried.) A large rate
# hurts sharply, as the paper says. But it does not hurt as $\eta^2 K$ does: at the largest rate more steps *repair* the
# merge.
#
# At the two smallest rates only $\eta K$ counts: on the right their curves are one. For large rates it is no sufficient
# coordinate. Adam's first steps have the same length whatever the gradient is, so they throw an expert off before its
# gradients agree. The expert recovers, its merges do not. After 100 steps, in points of accuracy above the pretrained model:

# %% tags=["remove-input"]
alone = experts[experts["steps"] > 0].assign(method="individual")
both = sweep.gained(pd.concat([alone, merged]), experts)
after = {}
for who in ("individual", "average"):
    rows = sweep.at(both[both["method"] == who], learning_rate=None, steps=100)
    after[who] = {
        rate: sweep.told(ends) for rate, ends in sweep.spread(rows, "learning_rate").items()
    }
pd.DataFrame(after).rename_axis("learning rate")

# %% [markdown]
# At the largest rate experts are about as good as at the smallest, and their average is below the model that they began
# from. Single experts tell another story about the other parameters, too; they are what the paper's Figure 4 and Table II
# show beside the merges.

# %% tags=["remove-input"] mystnb={"figure": {"caption": "Test accuracy above that of the pretrained model, against each parameter while the others are usual: the experts alone, each on its own task, and merges of the same two groups of five tasks by four methods. Means and intervals over seeds.", "name": "fig-scaling-experts"}, "image": {"alt": "Four panels. The experts lie far above all merges; they rise with steps, batch and data, from 13 points at 25 steps to 36 at 800, and against the rate they are highest in the middle. The merges lie 3 to 10 points above the pretrained model at all steps, batches and shares. Against the rate all but the average fall below it at the second largest, and all at the largest, the average to −8, the others to between −15 and −19."}}
alike = both[~both["method"].str.endswith("_printed")].query("not group >= 2")
fig, axes = plt.subplots(2, 2, figsize=(7.2, 7.4), sharey=True)
for ax, own in zip(axes.flat, sweep.sweeps(alike)):
    figures.method_curves(sweep.at(alike, **own), sweep.free(own), "accuracy", ax)
    ax.set(xlabel=figures.sweep_name(own))
for ax in axes[:, 0]:
    ax.set_ylabel("points above the pretrained")
plots.legend_outside(fig, fontsize=10)
plt.show()

# %% tags=["remove-input"]
print(drawing.lines(checks, "T18"))
print(drawing.lines(checks, "T17"))

# %% [markdown]
# Whatever makes experts better, steps, larger batches or more data, leaves most of the gain with them: they gain four times as much as their
# average with the steps, and still gain at the end. TIES and DARE decline meanwhile, the average
# does not. So there is little that stopping could save: experts that each stopped at their least validation loss
# merge a trifle better in loss, and rather worse in accuracy.
#
# ## With the scale chosen anew
#
# (scaling-tuned)=
# Scales were fixed so far, as in the paper. Who merges may choose one for each merge. Task arithmetic at the sum of scales, of 0.5 to 4,
# that is best on 200 validation examples per task:

# %% tags=["remove-input"] mystnb={"figure": {"caption": "Test accuracy above that of the pretrained model, of the same two groups of five tasks, by the average, by task arithmetic at the fixed scale, and at one chosen for each merge: against the steps at the usual rate (left), and against the rate after 100 steps (right). Means and intervals over seeds.", "name": "fig-scaling-tuned"}, "image": {"alt": "Left: the three curves rise together from 3 points to 8 or 9. Right: they lie on each other at the two smaller rates; at the largest the fixed scale falls to −16 points, the average to −8 and the chosen scale to −4."}}
tuned, untouched = (sweep.apart(load_table(VALIDATED, part)) for part in ("merged", "experts"))
fixed = merged[(merged["method"] == "task_arithmetic") & merged["seed"].isin(tuned["seed"])]
pairs = pd.concat([tuned[tuned["group"] < 2], fixed])
rescaled = sweep.gained(sweep.at(pairs, learning_rate=None, steps=None), untouched)
fig, axes = plt.subplots(1, 2, figsize=(7.2, 4.4), sharey=True)
for ax, free in zip(axes, ({"steps": None}, {"learning_rate": None, "steps": 100})):
    (column,) = [name for name, value in free.items() if value is None]
    figures.method_curves(sweep.at(rescaled, **free), column, "accuracy", ax)
axes[0].set(ylabel="points", xlabel="steps K")
axes[1].set_xlabel("learning rate η, 10⁻⁴; K = 100")
handles, names = axes[0].get_legend_handles_labels()
fig.legend(handles, names, loc="outside lower center", ncols=3, fontsize=10)
plt.show()

# %% tags=["remove-input"]
far = (
    rescaled.groupby(["seed", *sweep.SETTING, "steps", "method"])["distance"]
    .mean()
    .unstack("method")
)
sums = (far["task_arithmetic_tuned"] / far["average"]).rename("sum").reset_index()
for free in ({"steps": None}, {"learning_rate": None, "steps": 100}):
    (column,) = [name for name, value in free.items() if value is None]
    chosen = sweep.at(sums, **free).groupby(column)["sum"].mean()
    print(f"sum of scales against {column}:", *(f"{at:g}: {s:.1f} " for at, s in chosen.items()))

saved = {}
for rate in (4e-4, 3.2e-3):
    two = sweep.spread(sweep.at(rescaled, learning_rate=rate, steps=100), "method")
    saved[rate] = two["task_arithmetic_tuned"] - two["task_arithmetic"]
    print(f"choosing saves, rate {rate:g}, K = 100: {sweep.told(saved[rate])} points")

# %% tags=["remove-cell"]
ends = {rate: sweep.difference(values) for rate, values in saved.items()}
assert 10.5 < ends[3.2e-3][0] < 11.5
last = sweep.difference(two["task_arithmetic_tuned"])
assert -4.5 < last[0] < -last[1] < 0
assert ends[4e-4][0] < 3
turns = sweep.at(rescaled[rescaled["method"] == "task_arithmetic_tuned"], steps=None)
turns = turns.groupby(["steps", "seed"])["loss"].mean().unstack()
assert (turns.loc[800] > turns.loc[400]).all()
assert chosen.is_monotonic_decreasing

# %% [markdown]
# Where the rate is large the chosen scale is small, and hides most of the harm: by it task arithmetic is eleven points better after 100
# steps at the largest rate, and still four below the pretrained model. Along the steps it changes little, and its loss turns after 400 as before. **A
# comparison of rates with scales chosen anew measures the choice of the scale**; experts are no better for it.
#
# ## Batches and data
#
# (scaling-batches)=
# Larger batches average the noise of gradients, and in the paper's bound they make training *less* stable where tasks
# differ. At small rates the first is said to win, at large ones not. But at equal $K$, a larger batch also means more
# pictures. More data are called a "free lunch": $n$ stands under the stability term and nowhere else. At equal $K$,
# they also mean fewer passes. So every curve is drawn twice.

# %% tags=["remove-input"] mystnb={"figure": {"caption": "Test loss of the average less that of the pretrained model. Top: three batches, against steps and against pictures seen. Bottom: three shares α of the training data, against steps and against K/α, which is proportional to the passes over the data.", "name": "fig-scaling-batches"}, "image": {"alt": "Top left: larger batches are lower at few steps, and the curves approach each other with more. Top right: at equal pictures the curve of batches of 8 is the lowest. Bottom left: the curves of the three shares begin together and part with the steps, fewer data higher. Bottom right: all three have their minimum at the same place, and more data are lower throughout."}}
fig, axes = plt.subplots(2, 2, figsize=(7.2, 7.4), sharey=True)
kinds = (("batch_size", ("b", "pictures bK"), 1), ("share", ("α", "K/α"), -1))
for row, (column, texts, power) in zip(axes, kinds):
    figures.two_clocks(sweep.at(gains, steps=None, **{column: None}), column, row, texts, power)
    row[1].legend(fontsize=10)
plt.show()

# %% tags=["remove-input"]
print(drawing.lines(checks, "T2"))
print("controls:")
print(drawing.lines(checks, "T2", "control"))

# %% [markdown]
# At equal steps larger batches merge better, most clearly after few. The law's condition is reversed: at four times the
# rate, the batch matters *more*, as there is more noise to average. At equal numbers of pictures nothing is left of the
# advantage: small batches, which make more steps of them, are as good in accuracy and better in loss.

# %% tags=["remove-input"]
print(drawing.lines(checks, "T4"))
print("controls:")
print(drawing.lines(checks, "T4", "control"))

# %% tags=["remove-cell"]
for share, turn in ((0.25, 100), (0.5, 200), (1.0, 400)):
    found = sweep.at(gains, share=share, steps=None).groupby("steps")["loss"].mean()
    assert found.idxmin() == turn
assert (checks.loc[checks["claim"] == "T4", "value"] > 0).all()
rising = sweep.at(gains, batch_size=None, steps=None)
rising = rising.groupby(["batch_size", "steps"])["generalisation"].mean()
assert rising[64, 25] < rising[8, 200]
assert rising[64, 50] < rising[8, 400]

# %% [markdown]
# More data are better in every row, at equal steps as at equal passes. In loss, which the bound is about, both steps are clear at equal $K$. The figure shows more. In
# the mean over seeds, **the curves turn after equal numbers of passes, not of steps**: with a quarter of the data at 100 steps, with a
# half at 200, with all at 400.
#
# ## The printed laws beside the measurement
#
# (scaling-laws)=
# Stability is what the bounds let generalisation depend on, but not in the same way. By the paper $E_G$ grows as the
# stability $s$ of Lemma 3. By {prf:ref}`thm-stability-generalisation` it is at most about $\sqrt{S\,V}$, so that it grows as the
# *root* of the stability in {prf:ref}`thm-stability-local`. The figure has $E_G$ of the average above that of the pretrained model, and three curves:
# Lemma 3, with $\sigma$ and $\zeta$ as measured at the pretrained model; $\sqrt s$, with $V$ the same everywhere; and $\sqrt{s f}$, with the measured training
# loss $f$, as $V \le 2 L f$. Each curve has one factor, fitted to all points at the usual rate, so that in the panel of the rate it predicts.

# %% tags=["remove-input"] mystnb={"figure": {"caption": "Lemma 3 and the root of the corrected stability fit the generalisation error against steps and data about equally well; against the batch only Lemma 3 has the right sign, and against the rate both fail. Points: E_G of the average above the pretrained model's, means and intervals over seeds. Each curve has one factor, fitted to all points at the usual rate. Cut off above.", "name": "fig-scaling-laws"}, "image": {"alt": "Against steps and share of the data the points lie near all three curves, which nearly coincide. Against the batch the points and the dashed curve of Lemma 3 rise, and both root curves fall. Against the rate the points stay near zero; the root curves rise to about 0.2 at the largest rate and Lemma 3 leaves the panel."}}
import torch

from mergebook.stability.theory.bounds import Losses

gradients = load_table("vision8-stability-vit_small", "gradients").query("point == 'pretrained'")
squares = gradients[["noise", "heterogeneity"]].mean().to_numpy()  # over seeds and tasks
known = Losses(1.0, *torch.tensor(squares).sqrt()[:, None])
tables = sweep.beside_theory(average, experts, known)
fig, axes = plt.subplots(2, 2, figsize=(7.2, 6.6), sharey=True)
figures.law_points(tables, gains, axes)
plt.show()

# %% [markdown]
# The table has the power of each parameter that $E_G$ follows, fitted to the means, with a 95 % half-width over seeds (jackknife), and the powers of
# the laws on the same points; and how far each law is from the means, as a root mean square in nats.

# %% tags=["remove-input"]
powers, misfit = sweep.exponents(gains, tables), sweep.misfits(tables)
print(powers.round(2).to_string(), end="\n\n")
print(misfit.round(3).to_string())

# %% tags=["remove-cell"]
low, high = (powers["measured"] + s * powers["half_width"] for s in (-1, 1))
for law in ("printed", "root"):
    assert (low < powers[law])["steps"]
    assert (high > powers[law])["steps"]
assert misfit.loc["steps", "root"] < misfit.loc["steps", "printed"]
assert misfit.loc["share", "root"] < misfit.loc["share", "printed"]
assert misfit.loc["batch_size", "printed"] < 0.5 * misfit.loc["batch_size", "root"]
assert (misfit.loc["learning_rate"] > 0.1).all()
assert powers.loc["batch_size", "root"] < 0 < powers.loc["batch_size", "measured"]
assert low["batch_size"] < 0 < high["batch_size"]

# %% [markdown]
# **In steps and data the two laws cannot be told apart.** Lemma 3 has the powers 1 and −1, the root of the corrected stability 0.86 and −0.94,
# and the intervals of the measured powers, 0.8 and −0.8, are much wider than this difference; the root fits the means slightly better. In
# the batch, $E_G$ rises, as Lemma 3 says and the corrected law denies, though the interval over five seeds includes zero. In the rate both fail:
# one says $\eta^2$, the other $\eta$, and $E_G$ shows no trace of either. The mechanism of the data is the one that is claimed. From a quarter
# of them to all, at 400 steps, in nats:

# %% tags=["remove-input"]
kept = {share: sweep.at(gains, share=share, steps=400) for share in (0.25, 1.0)}
for part in ("generalisation", "train_loss"):
    ends = [rows.groupby(["seed", "task"])[part].mean() for rows in kept.values()]
    print(f"{part:15} {sweep.told((ends[1] - ends[0]).rename(part), 2)}")

# %% tags=["remove-cell"]
quarter = kept[0.25][["train_loss", "generalisation"]].mean().round(2)
assert quarter.tolist() == [-0.72, 0.27]
assert tables["learning_rate"]["mean"].abs().max() < 0.03
assert tables["learning_rate"]["printed"].max() > 1
assert 0.15 < tables["learning_rate"]["root"].max() < 0.25
shares = [rows.groupby(["seed", "task"])["generalisation"].mean() for rows in kept.values()]
assert (shares[1] - shares[0]).groupby("seed").mean().max() < -0.15

# %% [markdown]
# ## The number of tasks
#
# With more tasks, each has a smaller say. The mean over all tasks of a merge also changes because the tasks do, so we
# follow two tasks and add others to their merge: on the eight tasks, on twenty sets of pictures (`vision20`), and on twenty
# rendered scripts (`glyphs20`), which need no download.

# %% tags=["remove-input"] mystnb={"figure": {"caption": "Test accuracy of two tasks in nested merges of more and more experts, less that in their average of two; usual setting after 400 steps (scripts: 200). Means and intervals over seeds.", "name": "fig-scaling-tasks"}, "image": {"alt": "Left: all curves fall from two to eight experts, the average by 13 points; TIES begins just above it and ends below it, task arithmetic stays above, DARE begins lower and joins the others. Middle: with twenty sets all end ten to fifteen points below the average of two, TIES lowest, with intervals twice as long. Right: with twenty scripts the average falls by 16 points, most of it up to eight, and TIES by 20."}}
twenty = {"sets": "vision20-scaling-vit_small", "scripts": "glyphs20-scaling-vit_small"}
results = {"eight sets": RESULT, **{f"twenty {name}": file for name, file in twenty.items()}}
nested = {title: load_table(result, "counts") for title, result in results.items()}
adapted = load_table("vision8-scaling-adamerging-counts", "counts")
learned = adapted["method"] == "adamerging"
nested["eight sets"] = pd.concat([nested["eight sets"], adapted[learned]])
fig, axes = plt.subplots(1, 3, figsize=(9.4, 4.0), sharey=True, width_ratios=(3, 4, 4))
for ax, (title, rows) in zip(axes, nested.items()):
    rows = rows[~rows["method"].str.endswith("_printed")]
    least = rows[(rows["method"] == "average") & (rows["count"] == rows["count"].min())]
    shown = rows.merge(least[["seed", "task", "accuracy"]], on=["seed", "task"])
    shown["accuracy"] = shown.pop("accuracy_x") - shown.pop("accuracy_y")
    figures.method_curves(shown, "count", "accuracy", ax)
    ax.set(title=title, xlabel="experts merged")
axes[0].set(ylabel="points above the average of two", ylim=(-32, 10))
handles, names = axes[0].get_legend_handles_labels()
fig.legend(handles, names, loc="outside lower center", ncols=4, fontsize=10)
plt.show()

# %% tags=["remove-cell"]
same = ["seed", "task", "count"]
twin = nested["eight sets"].merge(adapted[~learned], on=[*same, "method"], suffixes=("", "_twin"))
assert len(twin) == (~learned).sum()
# retrained experts differ by rounding, which changes at most two of 200 predictions
assert ((twin["accuracy"] - twin["accuracy_twin"]).abs() < 0.011).all()

# %% tags=["remove-input"]
print(drawing.lines(checks, "T5"))
print("by other methods:")
others = checks["network"].isin(["task arithmetic", "TIES", "DARE", "AdaMerging"])
print(drawing.lines(checks[others], "T5", "secondary"))
print("experts of one task, and of different ones:")
print(drawing.lines(checks, "T5", "control"))

# %% [markdown]
# More tasks hurt, by every method, and not because there are more experts. Perceptrons that were trained on *one* task, on other halves of its
# rows and in other orders, can be averaged by eights at no loss. What costs is that tasks differ.

# %% tags=["remove-input"]
print(drawing.lines(checks, "T13"))

# %% [markdown]
# That sparse methods are needed the more shows in the loss, where the lead of TIES over the average grows with the number of
# tasks, eight or fourteen; in accuracy it does not. With twenty tasks it does not show at all: the lead shrinks in accuracy on both suites.
#
# ## Other tasks
#
# (scaling-suites)=
# Is all this true of these eight tasks alone? All five parameters were changed on fourteen as well (`vision14`, up to 400 steps, groups of
# eight, five seeds), by all rules but AdaMerging. $E_G$ of the average, and the laws again:

# %% tags=["remove-input"] mystnb={"figure": {"caption": "On fourteen tasks the laws fit the data again, the steps less well, and the batch by Lemma 3 alone: generalisation error of the average above the pretrained model's, with the curves of the figure for eight tasks, from the noise that was measured on those. Means and intervals over five seeds.", "name": "fig-scaling-fourteen"}, "image": {"alt": "As with eight tasks: against the share of the data all curves are near the points, and against the steps the points rise less steeply than all curves. Against the batch the points and Lemma 3 rise while the root curves fall. Against the rate the points stay near zero, the root curves rise to about 0.3 and Lemma 3 leaves the panel."}}
fourteen = "vision14-scaling-vit_small"
many, own = (sweep.apart(load_table(fourteen, part)) for part in ("merged", "experts"))
many = many[many["method"] == "average"]
more = sweep.gained(many, own)
more_tables = sweep.beside_theory(many, own, known)
fig, axes = plt.subplots(2, 2, figsize=(7.2, 6.6), sharey=True)
figures.law_points(more_tables, more, axes)
plt.show()

# %% tags=["remove-input"]
more_powers = sweep.exponents(more, more_tables)
print(more_powers.round(2).to_string(), end="\n\n")
print(sweep.misfits(more_tables).round(3).to_string())

# %% tags=["remove-input"]
again = checks[checks["network"] == "fourteen tasks"]
for claim in ("T9", "T3", "T2", "T4"):
    print(drawing.lines(again, claim, "secondary"))

# %% tags=["remove-cell"]
fell = sweep.at(more, steps=None).groupby("steps")[parts].mean()
assert fell["train_loss"].is_monotonic_decreasing
assert fell["generalisation"].is_monotonic_increasing
assert fell["loss"].idxmin() == 200
more_misfit = sweep.misfits(more_tables)
assert (more_misfit["root"] < more_misfit["printed"])[["steps", "share"]].all()
assert more_misfit.loc["batch_size", "printed"] < more_misfit.loc["batch_size", "root"]
off = more_powers["measured"] - more_powers["half_width"]
assert off["batch_size"] > 0
assert off["steps"] < 0
jump = changed(more, *two_rates)
assert 0.3 < jump["train_loss"].mean() < 0.6
assert jump["generalisation"].mean() < 0
assert more["seed"].nunique() == 5
assert (again.loc[again["claim"].isin(["T2", "T3", "T4"]), "value"] > 0).all()
sides = again[again["claim"].isin(["T2", "T3", "T4", "T9"]) & (again["role"] == "secondary")]
held = sides[sides["outcome"] == "holds"]
assert len(held.query("batch == 'large' and metric == 'loss'")) == 1
assert len(held.query("rate == 'best' and metric == 'accuracy'")) == 1
assert (sides["outcome"] != "fails").all()

# %% [markdown]
# On fourteen tasks the root of the stability again fits steps and data slightly better than Lemma 3, and $E_G$ rises with the steps more slowly than either law. In the batch
# **the sign of Lemma 3 is right** here, since the interval of the measured power lies above zero. Both laws fail in the
# rate, as before. The other results point the same way, although only some of these many rows are clear by themselves, for
# example that a large batch helps. With more steps the training loss falls and $E_G$ rises, and the test loss turns after 200
# steps. At the large rate the training loss jumps, and $E_G$ falls.
#
# With twenty tasks the steps were changed, and for scripts the rate. From 25 steps to the most, in nats:

# %% tags=["remove-input"]
for name, result in twenty.items():
    many, own = (sweep.apart(load_table(result, part)) for part in ("merged", "experts"))
    rows = sweep.at(sweep.gained(many[many["method"] == "average"], own), steps=None)
    ends = rows.groupby(["steps", "seed"])[["train_loss", "generalisation"]].mean()
    most = rows["steps"].max()
    change = ends.loc[most] - ends.loc[25]
    words = (f"{part} {sweep.told(change[part], 2)}" for part in change)
    print(f"twenty {name}, {most} steps:", *words)

# %% tags=["remove-cell"]
twice = checks[checks["network"].isin(["twenty tasks", "twenty scripts"])]
lead = again.query("claim == 'T13' and metric == 'loss'")
assert (lead["low"] > 0).all()
wider = twice.query("claim == 'T13' and metric == 'accuracy'")
assert (wider["value"] < 0).all()
drop = twice.query("claim == 'T3' and metric == 'accuracy' and rate == 'pretrained'")
assert 20 < drop["value"].item() < 30
assert (twice.loc[twice["claim"].isin(["T9", "T5"]), "value"] > 0).all()

# %% [markdown]
# With the steps the generalisation error of the average rises and its training loss falls, and at sixteen times
# the usual rate merges of scripts lose 26 points against the pretrained model.
#
# ## Other methods
#
# All methods are said to follow the same trends. We count how often a method's loss changes in the same direction as that of the
# average, from each value of a parameter to the next. Merges of the same experts have much in common whatever the rule, so chance is not a
# standard. The standard is task arithmetic, a linear rule; the rows have the difference from it:

# %% tags=["remove-input"]
print(drawing.lines(checks, "T11"))

# %% [markdown]
# TIES and DARE agree with the average in about nine of ten steps, nearly as often as task arithmetic does. Whether the difference is within ten steps of a hundred
# stays open. In accuracy, and on fourteen tasks:

# %% tags=["remove-input"]
print(drawing.lines(checks, "T11", "secondary"))

# %% [markdown]
# ## Other networks
#
# (scaling-networks)=
# The paper's networks are ResNets with SGD and CLIP's towers with Adam. Two others, then. The first is a ResNet-18 of an
# eighth of the width, pretrained as the transformer was and trained by plain SGD on the same tasks. It has BatchNorm: the
# running statistics of its experts are averaged like weights, or measured anew on training examples, without labels. The second is
# MiniLM, a sentence encoder with 22.6 million parameters from the hub, with Adam and batches of 16 on `sentences8`.

# %% tags=["remove-input"] mystnb={"figure": {"caption": "Test loss of the average less that of the pretrained model, for several learning rates. Top: ResNet-18, with averaged statistics and with statistics measured anew, against the steps; intervals over five seeds. Bottom: MiniLM, one seed, against the steps and against rate times steps.", "name": "fig-scaling-networks"}, "image": {"alt": "Top left: the curves of the two smaller rates stay near zero, that of the largest lies at about 0.2. Top right: all three fall with the steps, those of the two larger rates together, to below −0.1. Bottom left: two curves of MiniLM fall with the steps, the smaller rate above the usual one; that of the largest rate begins lowest and falls least. Bottom right: the two smaller rates lie on one curve, the largest above it."}}
fig, axes = plt.subplots(2, 2, figsize=(7.2, 7.4), sharey="row")
net, alone = (sweep.apart(load_table(RESNET, part)) for part in ("merged", "experts"))
for ax, method in zip(axes[0], ("average", "average_recalibrated")):
    rows = sweep.gained(net[net["method"] == method], alone)
    figures.curves(sweep.at(rows, learning_rate=None, steps=None), "learning_rate", ax, "η")
axes[0, 0].set(title="ResNet-18, averaged", ylabel=figures.GAINED)
axes[0, 1].set(title="ResNet-18, measured anew")
sentences = [sweep.apart(load_table("sentences8-scaling", part)) for part in ("merged", "experts")]
rows = sweep.at(sweep.gained(*sentences), learning_rate=None, batch_size=16, steps=None)
figures.two_clocks(rows, "learning_rate", axes[1], ("η", "ηK"))
axes[1, 0].set(title="MiniLM")
axes[1, 1].set(title="MiniLM")
for ax in axes[:, 0]:
    ax.legend(fontsize=10)
plt.show()

# %% tags=["remove-input"]
narrow = checks["network"].isin(["recalibrated ResNet", "ResNet with averaged statistics"])
print(drawing.lines(checks[narrow], "T3", "secondary"))
alike = net[net["group"].isin(net.loc[net["method"] != "average", "group"])]
for rate in (0.01, 0.05):
    two = sweep.spread(sweep.at(alike, learning_rate=rate, steps=100), "method", "loss")
    saved = two["average_recalibrated"] - two["average"]
    print(f"measuring anew saves, rate {rate:g}, K = 100: {sweep.told(saved, 2)} nats")

# %% tags=["remove-cell"]
apart = sweep.at(sweep.gained(net, alone), learning_rate=None, steps=None)
apart = apart.groupby(["method", "learning_rate", "steps"])["loss"].mean()
stale, fresh = (apart[method] for method in ("average", "average_recalibrated"))
assert stale.drop(0.05).min() > -0.05
assert (stale[0.05] > 0.1).all()
assert (fresh.loc[[0.01, 0.05]].groupby("learning_rate").diff().dropna() < 0).all()
assert abs(fresh[0.05, 200] - fresh[0.01, 200]) < 0.05
few = rows.groupby(["learning_rate", "steps"])[["loss", "train_loss", "generalisation"]].mean()
for rate in (2e-5, 1e-4):
    assert (
        few.loc[rate, ["loss", "train_loss"]].apply(lambda part: part.is_monotonic_decreasing).all()
    )
    assert few.loc[rate, "generalisation"].is_monotonic_increasing
high = few.loc[(5e-4, 64)] - few.loc[(1e-4, 64)]
assert high["train_loss"] > 0.05
assert high["generalisation"] < 0

# %% [markdown]
# With averaged statistics the average of these experts is hardly ever better than the pretrained model, and a large rate makes
# it worse at once, as with the paper's ResNet-18. With statistics measured anew **the same weights** improve with the steps at
# all rates, and the largest rate ends where the usual one does. Compared with each other, seed by seed, measuring anew saves most
# at the largest rate: what it ruins here are the statistics.
#
# (scaling-width)=
# The paper's Figure 1 has several backbones, too. Here are ours, with the errors apart, among them a ResNet-18 of full width
# (11 million parameters; its stem takes every second pixel, and it was pretrained on rendered scripts alone), on five of the tasks:

# %% tags=["remove-input"] mystnb={"figure": {"caption": "Against the steps, as differences from the pretrained model: above, the loss of the average and its two parts; below, accuracy of the experts, each on its own task, and of the average. The transformer with Adam, and two ResNets with SGD and statistics measured anew. Means and intervals over seeds.", "name": "fig-scaling-backbones"}, "image": {"alt": "Above: the transformer's training and test loss fall to −0.6, and their difference rises slowly; on both ResNets the two losses fall together by a tenth of a nat, without a turn, and their difference stays at zero. Below: experts rise throughout on all three networks, by 16 to 36 points; the average gains eight on the transformer, two on the narrow ResNet and nothing on the full one."}}
FULL = "vision8-scaling-resnet18_strided"
wide, single = (sweep.apart(load_table(FULL, part)) for part in ("merged", "experts"))
nets = {"ViT": sweep.at(both[both["method"].isin(["individual", "average"])], steps=None)}
for name, rows, start in (("narrow ResNet", net, alone), ("full ResNet", wide, single)):
    fresh = rows[rows["method"] == "average_recalibrated"].assign(method="average")
    shown = pd.concat([start[start["steps"] > 0].assign(method="individual"), fresh])
    nets[name] = sweep.at(sweep.gained(shown, start), learning_rate=0.01, steps=None)
fig, axes = plt.subplots(2, 3, figsize=(9.2, 7.0), sharey="row")
for (above, below), (name, rows) in zip(axes.T, nets.items()):
    figures.loss_parts(rows[rows["method"] == "average"], "steps", above)
    figures.method_curves(rows, "steps", "accuracy", below)
    above.set(title=name)
    below.set(xlabel="steps K")
axes[0, 0].set_ylabel("nats")
axes[1, 0].set_ylabel("points")
handles, names = axes[0, 0].get_legend_handles_labels()
fig.legend(handles, names, loc="outside upper center", ncols=3, fontsize=10)
handles, names = axes[1, 0].get_legend_handles_labels()
fig.legend(handles, names, loc="outside lower center", ncols=2, fontsize=10)
plt.show()

# %% tags=["remove-cell"]
late = {
    name: rows[rows["method"] == "average"].groupby("steps")[["accuracy", *parts]].mean()
    for name, rows in nets.items()
}
for name in ("narrow ResNet", "full ResNet"):
    assert late[name]["loss"].is_monotonic_decreasing
    assert late[name]["generalisation"].abs().max() < 0.03
    assert -0.16 < late[name]["loss"].iloc[-1] < -0.1
assert wide["seed"].nunique() == 5
assert 0.55 < single.loc[single["steps"] == 200, "accuracy"].mean() < 0.6
for rows in nets.values():
    own = rows[rows["method"] == "individual"].groupby("steps")["accuracy"].mean()
    assert own.is_monotonic_increasing
    assert 0.15 < own.iloc[-1] < 0.37

# %% [markdown]
# Both ResNets do the same: within these steps training and test loss of the average fall together, $E_G$ stays near zero, and no turn is in sight.
# The experts have not converged either: at full width they are right on three in five. The full ResNet for twice as long, on all eight tasks, one seed:

# %% tags=["remove-input"]
longer = [sweep.apart(load_table(f"{FULL}-400", part)) for part in ("merged", "experts")]
longer[0] = longer[0][longer[0]["method"] == "average_recalibrated"]
sweep.gained(*longer).groupby("steps")[["accuracy", *parts]].mean().round(3)

# %% [markdown]
# Its loss has stopped falling at 400 steps, and its accuracy is back at the pretrained model's, while $E_G$ lies at zero or below: what turns here
# is not generalisation.
#
# MiniLM repeats what the transformer showed. With the steps its training loss falls, $E_G$ rises by less, and so the test loss
# falls up to the last step. The two smaller rates share one curve over $\eta K$. At the largest rate the average is worse than
# at the usual one after 64 steps, by its training loss and not by $E_G$.
#
# ## When to use it, and when not
#
# **Evaluate a merge on training examples, too.** It costs nothing, and tells whether more data could help at all.
#
# **Choose a rate by merges, not by experts**, which recover from a rate that ruins their merge. **Count passes over the data, not
# steps.** Up to about seven passes the average loses hundredths of a nat here; TIES and DARE lose more. At 14 passes, with a quarter of the data, $E_G$
# takes back 0.27 of the 0.72 nats by which training loss has fallen. **Compare batches at equal pictures.**
#
# **Do not read a law off a bound** whose parts were not measured apart, and do not take an error bar over groups of the same
# experts for one over trainings.
#
# What is not covered: more than seven passes over all data, where most of the paper's grid lies (at the default setting 4 passes over its largest data set and
# 1,000 over its smallest); CLIP's towers; the number of tasks on ResNets; two experts at weights of one eighth, which would tell a smaller weight from
# more tasks; the whole grid on twenty tasks, or for the full ResNet; another pretrained network; and experts
# that differ in their settings ([](44-remedies)).
#
# (scaling-repeat)=
# The tables come from one command, which resumes when it is killed. Its settings, and the points of the sweep, stand in
# `mergebook/results.toml`; `book/how-to-run` says where the pictures come from.
#
# ```bash
# mergebook measure vision8-scaling-vit_small
# ```
#
# The other tables were measured likewise: with validation and scales chosen anew, with AdaMerging, on the other networks, on
# fourteen tasks and on twenty. Every file in `results/` has its entry there; where some seeds were measured
# later, they were added with `--first`. The scripts need no data:
#
# ```bash
# mergebook measure glyphs20-scaling-vit_small
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
# The training loss falls almost to zero, and about half of that is lost again to generalisation; after 400 steps the
# experts' test loss rises. The $E_G$ of their average grows by a small part of this: merges are more stable than
# experts ({prf:ref}`prop-stability-merge`).

# %%
parts = ["loss", "train_loss", "generalisation"]
own = sweep.at(experts, steps=None).query("steps in (25, 400, 800)")
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
# average rise and fall with this distance, or with $\eta K$? Compare rank correlations, seed by seed. Which of the two
# is known before training?
# ```

# %% [markdown]
# ````{solution-start} ex-scaling-distance
# :class: dropdown
# ````
# Only $\eta K$ is. Loss tends to fall with both, and with $\eta K$ more clearly. Both correlations are weak, as there is
# a valley: far is good, and too far is bad.

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
# * At a constant rate one training gives every number of steps; training examples tell $E_O$ from $E_G$.
# * With the steps $E_G$ rises and $E_O$ falls, as the paper says. Within seven passes over the data (800 steps) the average loses
#   hundredths of a nat and no accuracy; its loss turns after a number of passes, and most of the paper's grid has more of them.
# * In steps and data, Lemma 3 and the root of the corrected stability fit $E_G$ about equally well. In the batch only Lemma 3 has the right sign; in the rate both fail.
# * A large rate ruins merges through the training loss, while their experts recover.
# * Larger batches help at equal steps, more so at a large rate, and not at equal pictures.
# * More data help through $E_G$ alone; more tasks hurt, up to twenty, because tasks differ. TIES and DARE lose most by long training.
# * On a ResNet, what a large rate ruins are the averaged statistics of BatchNorm: measure them anew.
#
# ## References
#
# All sources are in the [](../book/bibliography).
