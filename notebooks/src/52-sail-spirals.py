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
# # SAIL on two spirals
#
# **In one sentence:** on the paper's spirals SAIL's start is slower than a random one unless each source has seen the
# whole target, and there the nearest source alone ends no worse.
#
# [](50-growing) and [](51-proximal-parameters) took SAIL {cite}`anonymous2025structured` apart. Here the whole method runs: average, then
# train on the target. Appendix K has the smallest experiment, two spirals and a perceptron, where all weights can be tried.
#
# **After this chapter you can**
#
# * say what a source must have seen for its weights to be a start;
# * read a sweep over weights, and tell a spike at one half from a valley;
# * compare starts by their steps to a loss, with all costs counted;
# * name the baseline that a merge of sources has to beat.
#
# **Before you start:** [](51-proximal-parameters). **Time:** 7 minutes to read, a quarter of a minute to run; what repeats over
# more seeds is read from `results/`.

# %% tags=["parameters", "remove-cell"]
SUITE = "spirals"
PROFILE = "default"
SEED = 0
DEVICE = "cpu"

# %% [markdown]
# ## Two spirals, three readings
#
# The target $D^*$ are two spirals, a class each. Two sources are trained on $D_1$ and $D_2$, 40 % of the points each; the start is
#
# $$
# \theta^P = \gamma\, \theta_1 + (1 - \gamma)\, \theta_2 ,
# $$ (eq-spirals-start)
#
# and training goes on with Adam at 0.005 for 300 epochs, on a perceptron of 50 hidden units. That much is in the paper.
# Sources, scratch and all starts train at this rate; none is tuned for any of them.
# It gives no number of points, turns or noise; we take 500 points to train on, 250 to follow the loss by, 250 to judge by, 1.5
# turns, and a noise of 0.1 at a radius of 3, so that training from scratch gets 95 % right. And it has two descriptions
# of $D_1$, "exclusively from the first spiral" and "the first 40 % of the training data". So there are three readings:

# %% tags=["hide-input"] mystnb={"figure": {"caption": "What the sources see: one class each, as the paper says; the inner and the outer two fifths of both spirals; or random two fifths. Circles and triangles are the classes, grey points are in neither part.", "name": "fig-spirals-points"}, "image": {"alt": "Three pictures of two spirals. Left: one spiral blue, the other orange. Middle: the centre blue, the outer arms orange. Right: blue and orange mixed along both spirals."}}
import matplotlib.pyplot as plt

from mergebook import plots
from mergebook.sail.two_spirals import readings, spirals

plots.use_style()
data = spirals(SEED)
points, labels = data.train.inputs, data.train.labels
fig, axes = plt.subplots(1, 3, figsize=(9.2, 3.2))
for ax, (title, rows) in zip(axes, readings(data, SEED).items()):
    for kind, mark in enumerate("o^"):
        ax.plot(*points[labels == kind].T, mark, color=plots.LIGHT, ms=3, zorder=0)
        for own, name, shade in zip(rows, ("D₁", "D₂"), (plots.BLUE, plots.VERMILION)):
            ax.plot(*points[own[labels[own] == kind]].T, mark, color=shade, ms=3)
            ax.plot([], [], "o", color=shade, label=name)
    ax.set(aspect="equal", title=title)
    ax.axis("off")
plots.legend_outside(fig, ncols=2)
plt.show()

# %% [markdown]
# ## Sources of one class
#
# (spirals-constant)=
# Whoever sees a single class learns to answer with it. As written, both sources are constant predictors. Their averages, and
# training on $D^*$ from there, means over five seeds:

# %%
import numpy as np
import pandas as pd

from mergebook.sail.read import spirals as analysis
from mergebook.sail.read.reached import speed_ups

small = PROFILE == "smoke"
seeds, budget = range(SEED, SEED + (2 if small else 5)), 30 if small else 300
runs = [
    analysis.curves(seed, "one class", "shared", gammas=(0.0, 0.5, 1.0), epochs=budget)[0]
    for seed in seeds
]
table = pd.concat(runs)
table["start"] = table["gamma"].map(lambda gamma: f"γ = {gamma}" if gamma >= 0 else "scratch")
ends = table[table["step"].isin([0, budget])]
columns = ["accuracy", "gradient", "loss"]
print(ends.pivot_table(index="start", columns="step", values=columns).round(2).to_string())

# %% tags=["remove-cell"]
from mergebook.sail.measure.spirals import EPOCHS, RATE

assert (EPOCHS, RATE) == (300, 0.005)
means = ends.pivot_table(index="start", columns="step", values=columns)
assert (means["accuracy"][0][["γ = 0.0", "γ = 1.0"]].round(2) == 0.5).all()
if not small:
    assert (means["loss"][0][["γ = 0.0", "γ = 1.0"]] > 3).all()
    assert (
        means["loss"][budget][["γ = 0.0", "γ = 1.0"]].min() > 2 * means["loss"][budget]["scratch"]
    )
    assert (means["gradient"][0][["γ = 0.0", "γ = 1.0"]] > means["gradient"][0]["scratch"]).all()

# %% [markdown]
# The sources are right on half of the points, by one constant answer given with much confidence. That is worse than a random start, and
# 300 epochs do not make up for it. Halfway between two opposite constants they cancel, and the start is about as good
# as a random one. So Proposition 1, that a start from *any* pretrained models has a lower loss after training, is false
# as stated; and Fig. 8, where all weights are ahead of the random start, cannot come from this description.
#
# ## All weights
#
# (spirals-sweep)=
# The paper's figures colour the curves by $\gamma$. Here are ours for the reading as written, and for sources of random points,
# which is the kindest one, each with initial weights of its own.

# %% tags=["hide-input"] mystnb={"figure": {"caption": "Retraining from all weights, one seed: validation loss, accuracy, and the norm of the loss's gradient against epochs, coloured by the weight γ; black is scratch. Above: one class each, shared start; below: random points, own starts.", "name": "fig-spirals-sweep"}, "image": {"alt": "Above, the loss of weight one half keeps to the black curve; all others begin and end above it, their accuracy ends below, and their gradients are larger for 50 epochs. Below, losses of weights from 0 to 1 lie under the black curve, the lowest those of the two sources; far outside they begin above it. Accuracy is always above scratch's, but for single epochs at the two outermost weights. Gradients are always smaller than scratch's for the first source alone, and always larger far outside."}}
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize

shown = (0.0, 0.5, 1.0) if small else tuple(-1 + 0.25 * i for i in range(13))
cases = {"one class": "shared", "random": "own"}
swept = {
    reading: analysis.curves(SEED, reading, start, gammas=shown, epochs=budget)
    for reading, start in cases.items()
}
shades = ScalarMappable(Normalize(min(shown), max(shown)), "viridis")
looks = {gamma: (None, shades.to_rgba(gamma), "-") for gamma in shown}
fig, axes = plt.subplots(2, 3, figsize=(9.4, 6.0))
for row, (reading, (run, _)) in zip(axes, swept.items()):
    scratch = run[run["gamma"].isna()]
    for ax, column in zip(row, ("loss", "accuracy", "gradient")):
        plots.series(ax, run, x="step", y=column, by="gamma", looks=looks, lw=1.1)
        ax.plot(scratch["step"], scratch[column], color=plots.BLACK, lw=2.6)
        ax.set(title=f"{reading}: {column}" if column == "loss" else column, xlabel="epoch")
        ax.set_yscale("linear" if column == "accuracy" else "log")
    fig.colorbar(shades, ax=row[2], label="γ")
plt.show()

# %% [markdown]
# The paper's sketch (its Fig. 1), from these two runs: the loss on a straight line from a random start to $\theta^P$ at
# $\gamma = \frac12$, and on to where training takes it, $\theta^*$.

# %% tags=["hide-input"] mystnb={"figure": {"caption": "Validation loss on the straight lines from random weights to the even average θᴾ, and on to where it ends, θ*, one seed.", "name": "fig-spirals-way"}, "image": {"alt": "One class: the loss hardly falls from random weights to the average, from 0.77 to 0.69, and then to 0.13. Random points: it rises a little, falls to 0.48 at the average, and on to 0.10."}}
fig, axes = plt.subplots(1, 2, figsize=(7.2, 3.0))
for ax, (reading, (_, way)) in zip(axes, swept.items()):
    ax.plot(way["place"], way["loss"], color=plots.BLUE)
    stops = way[way["place"].isin([0, 1, 2])]
    ax.plot(stops["place"], stops["loss"], "o", color=plots.BLACK, ms=7)
    ax.set_xticks([0, 1, 2], ["random", "θᴾ", "θ*"])
    ax.set(title=reading, ylim=(0, None))
axes[0].set_ylabel("loss, nats")
plt.show()

# %% tags=["remove-cell"]
wide = {
    (reading, column): run.fillna({"gamma": 9}).pivot(index="step", columns="gamma", values=column)
    for reading, (run, _) in swept.items()
    for column in ("loss", "accuracy", "gradient")
}
less = {key: part.sub(part[9.0], axis=0).drop(columns=9.0) for key, part in wide.items()}
if not small and SEED == 0:
    most = {column: less["one class", column].drop(columns=0.5) for column in columns}
    assert (most["loss"].loc[[0, budget]] > 0).all(axis=None)
    assert (most["accuracy"].loc[budget] < -0.05).all()
    assert (most["gradient"].loc[:50] > 0).all(axis=None)
    assert (wide["one class", "loss"][0.5] / wide["one class", "loss"][9.0]).between(0.8, 1.1).all()
    assert (less["random", "loss"].loc[:, 0:1] < 0).all(axis=None)
    assert {*wide["random", "loss"].T.nsmallest(2, budget).index} == {0.0, 1.0}
    far = [-1.0, -0.75, 1.75, 2.0]
    assert (less["random", "loss"].loc[0, far] > 0).all()
    assert (less["random", "accuracy"].drop(columns=[-1, 2]) > 0).all(axis=None)
    assert (less["random", "accuracy"][[-1, 2]] <= 0).sum().between(1, 6).all()
    assert (less["random", "gradient"][far] > 0).all(axis=None)
    assert (less["random", "gradient"][1.0] < 0).all()

# %% tags=["remove-cell"]
for reading, stops in {"one class": (0.77, 0.69, 0.13), "random": (0.77, 0.48, 0.10)}.items():
    way = swept[reading][1].set_index("place")["loss"]
    if not small and SEED == 0:
        assert np.allclose(way[[0.0, 1.0, 2.0]], stops, atol=0.01)
        assert (way.loc[:1].max() > way[0.0] + 0.02) == (reading == "random")

# %% [markdown]
# ## A spike or a valley at one half
#
# For text the paper reports a spike at $\gamma = 0.5$, and that the best weights are near 0 and 1 (section 4.4). Its grid of 30 values from
# −1 to 2 does not have 0, 0.5 or 1; ours of 31 does.

# %% tags=["remove-input"] mystnb={"figure": {"caption": "Validation loss against the weight of the first source, before retraining (above) and after 50 epochs (below). Means and 95 % intervals over seeds.", "name": "fig-spirals-valley"}, "image": {"alt": "One class: a narrow valley at one half, for both kinds of start. Inner and outer: lowest between 0 and one half, rising steeply towards the outer source. Random: lowest at 0 and 1; own starts have a high hump between them, a shared start a low one."}}
from mergebook.sail.measure.spirals import READINGS

looks = {"shared": ("shared start", plots.BLUE, "o-"), "own": ("own starts", plots.VERMILION, "s-")}
style = {"x": "gamma", "by": "start", "looks": looks, "band": True, "ms": 3, "lw": 1.4}
sweep = analysis.sweep()
fig, axes = plt.subplots(2, 3, figsize=(9.4, 5.6), sharex=True)
for row, column in zip(axes, ("loss_0", "loss_50")):
    for ax, reading in zip(row, READINGS):
        plots.series(ax, sweep[sweep["reading"] == reading], y=column, **style)
        ax.set(title=reading if column == "loss_0" else "", yscale="log")
for ax in axes[1]:
    ax.set_xlabel("weight γ")
for row, title in zip(axes, ("loss before", "after 50 epochs")):
    row[0].set_ylabel(title)
axes[0, 0].legend(fontsize=9)
plt.show()

# %% [markdown]
# (spirals-spike)=
# The loss at one half, less the mean of both ends, by epochs of retraining; over seeds:

# %% tags=["remove-input"]
from mergebook.lab.statistics import over_seeds

walls = analysis.barriers().pivot(
    index=["seed", "reading", "start", "steps"], columns="place", values="loss"
)
walls["barrier"] = walls["middle"] - walls["ends"]
height = over_seeds(walls.reset_index(), ["reading", "start", "steps"], "barrier")
print(height["mean"].unstack("steps").round(2).to_string())

# %% tags=["remove-cell"]
low, high = (height["mean"] + sign * height["half_width"] for sign in (-1, 1))
assert (high.loc["one class"] < 0.01).all()
assert (low.loc["random", "own"] > 0).all()
assert (
    height.loc["random"].loc["shared", "mean"] < height.loc["random"].loc["own", "mean"] / 3
).all()
assert (
    height.loc["random"].loc["re-basin", "mean"] < height.loc["random"].loc["own", "mean"] / 4
).all()
best = analysis.best_weights(sweep)
share = best.groupby("reading")["near"].mean()
assert share["random"] > 0.8
assert share["one class"] < 0.05

# %% [markdown]
# **The spike belongs to sources that can do the task and do not share a start.** Between two such networks the loss
# rises, and 200 epochs do not level it. With a shared start, or with hidden units matched by Git Re-Basin ([](44-remedies)), little of it is left. Where sources
# cannot do the task, one half is a valley: constants cancel.
#
# ## Faster than what?
#
# A start is judged by its epochs to a loss that was fixed beforehand: what scratch has after three tenths of its training, on
# other seeds. Epochs are read off the smoothed curve, on straight lines between readings. The logarithm $\log_2$ of scratch's cost over one's own is 1 for twice as fast. **Account A** counts retraining
# alone, as the paper does; **account B** adds what SAIL computes to find its weights, here MMD between inputs; **account C** adds the
# training of sources. SAIL's start has the weights of Theorem 3. Beside it stand the plain mean and the baseline that the paper leaves
# out: the source whose data are nearest to the target's, alone.

# %% tags=["remove-input"] mystnb={"figure": {"caption": "How much faster than scratch, log₂, account A. Right of zero is faster. Means and 95 % intervals over seeds; who never reaches the loss counts as if at the end of training, so that left of zero the truth may be farther left, and who is there by the first reading as if at that reading, so that right of zero it may be farther right.", "name": "fig-spirals-speed"}, "image": {"alt": "Two panels. In both, all methods are left of zero for sources of one class, and of inner and outer points. For random points all are right of zero; with own starts the nearest source alone is ahead of the averages, with a shared start the plain mean is."}}
compared = analysis.compared()
looks = {
    "theorem": ("Theorem 3", plots.BLUE, "o"),
    "uniform": ("uniform", plots.ORANGE, "s"),
    "nearest source": ("nearest source alone", plots.BLACK, "D"),
}
speeds = {method: speed_ups(compared, "easy", "A", method) for method in looks}
speeds = pd.concat(speeds, names=["method"]).reset_index("method")
fig, axes = plt.subplots(1, 2, figsize=(9.2, 3.4), sharey=True, sharex=True)
for ax, (start, words) in zip(axes, {"shared": "shared start", "own": "own starts"}.items()):
    own = speeds[speeds["start"] == start]
    plots.intervals(ax, own, value="speed", at="reading", by="method", looks=looks, capsize=0)
    ax.axvline(0, color=plots.BLACK, lw=1)
    ax.set(title=words, xlabel="log₂ speed-up")
plots.legend_outside(fig)
plt.show()

# %% tags=["remove-input"]
for account in ("A", "B", "C"):
    rows = speed_ups(compared, "easy", account, "theorem")
    gains = over_seeds(rows, ["reading", "start"], "speed")
    gains["reached"] = rows.groupby(["reading", "start"])["reached"].mean()
    print(f"account {account}", gains.round(2).to_string(), sep="\n", end="\n\n")

# %% tags=["remove-cell"]
for goal in ("easy", "hard"):
    rows = speed_ups(compared, goal, "B", "theorem")
    speed = over_seeds(rows, ["reading", "start"], "speed")
    assert (speed.loc[["one class", "inner, outer"], "mean"] < 0).all()
    assert (speed.loc["random", "mean"] > 0).all()
alone = over_seeds(
    speed_ups(compared, "easy", "B", "nearest source"), ["reading", "start"], "speed"
)
easy = over_seeds(speed_ups(compared, "easy", "B", "theorem"), ["reading", "start"], "speed")
assert alone.loc[("random", "own"), "mean"] > easy.loc[("random", "own"), "mean"]
assert (alone.loc[["one class", "inner, outer"], "mean"] < 0).all()

# %% [markdown]
# **SAIL is faster than scratch where sources are trained on the target itself**, on 40 % of its very points, and slower where
# each has seen another part of it. But in the first case there is little to merge for. With own starts the nearest
# source alone is faster by far. With a shared start all are at the goal by the first reading, after five epochs, in at least 29 seeds of 30, so that their factors are lower bounds and
# no order follows. What differs by account B is what the choice of weights or source has cost: about five epochs, of which the plain mean has none.
#
# **With sources paid for (account C), SAIL is slower than scratch in all six cells.** The nearest source alone is slower, too, to this goal, and faster only to a harder one (what scratch has after six tenths of its training), for
# random points.
#
# ## Where they end
#
# The test loss after all 300 epochs:

# %% tags=["remove-input"]
final = over_seeds(compared, ["reading", "start", "method"], "loss")["mean"]
print(final.unstack("method").round(2).to_string())

# %% tags=["remove-cell"]
final = final.unstack("method")
assert (final.loc["random", "nearest source"] < final.loc["random", "theorem"]).all()
others = final.loc[["one class", "inner, outer"]]
assert (others["theorem"] < others["nearest source"]).all()
assert (others["scratch"] < others["theorem"]).all()
plain = over_seeds(speed_ups(compared, "easy", "B", "uniform"), ["reading", "start"], "speed")
assert plain.loc[("random", "shared"), "mean"] > alone.loc[("random", "shared"), "mean"]

# %% tags=["remove-cell"]
from itertools import combinations

from mergebook.lab.statistics import paired

begun = compared[(compared["reading"] == "random") & (compared["start"] == "shared")]
first = begun.groupby("method")["easy"]
there = first.apply(lambda steps: int((steps <= 5).sum()))
assert there[[*analysis.MERGED]].min() >= 29
assert first.size().eq(30).all()
assert first.mean()[[*analysis.MERGED]].max() <= 5
told = {
    (method, goal, account): over_seeds(
        speed_ups(compared, goal, account, method), ["reading", "start"], "speed"
    )
    for method in analysis.MERGED
    for goal in ("easy", "hard")
    for account in ("A", "B", "C")
}
alike = pd.concat(
    speed_ups(compared, "easy", "A", method).assign(method=method) for method in analysis.MERGED
)
alike = alike[(alike["reading"] == "random") & (alike["start"] == "shared")]
gaps = paired(alike, {str(two): two for two in combinations(analysis.MERGED, 2)}, "speed")
assert (gaps["mean"].abs() < gaps["half_width"]).all()

# %% tags=["remove-cell"]
chosen = [told[name, "easy", "B"]["mean"]["random", "shared"] for name in analysis.MERGED]
assert chosen[1] - max(chosen[0], chosen[2]) > 0.7
assert analysis.COSTS["uniform"].added == 0
for method in ("theorem", "nearest source"):
    assert 4 < analysis.COSTS[method].added / analysis.COSTS[method].step < 5

# %% tags=["remove-cell"]
for goal in ("easy", "hard"):
    paid = told["theorem", goal, "C"]
    assert len(paid) == 6
    assert (paid["mean"] + paid["half_width"] < 0).all()
    assert (told["uniform", goal, "C"].eval("mean + half_width") < 0).all()
    alone = told["nearest source", goal, "C"]
    assert ((alone.eval("mean - half_width")["random"] > 0) == (goal == "hard")).all()
    assert goal == "hard" or (alone.eval("mean + half_width")["random"] < 0).all()
    assert (alone.eval("mean + half_width")[["one class", "inner, outer"]] < 0).all()

# %% [markdown]
# For random points the nearest source alone is not behind. In the other two readings the average ends below it, and both end
# behind scratch.
#
# ## What the theory asks for
#
# (spirals-nearer)=
# Theorem 1 says that sources are nearer to an optimum $\theta^*$ than random weights are. The mean over sources of $\lVert \theta_i - \theta^* \rVert$, with $\theta^*$ trained from the
# sources' start where they share it and else from a fresh one, beside the distance of random weights as PyTorch draws them:

# %% tags=["remove-input"]
logs = analysis.nearness()
lengths = logs.assign(distance=np.exp(logs["log"] / 2))
print(lengths.pivot_table(index="reading", columns=["start", "point"], values="distance").round(1))

# %% [markdown]
# Sources with a shared start are nearer, sources with their own are farther away than weights that have learned nothing. And the chain
# from data to parameters to loss (Theorems 2 and 3), as rank correlations over the six sources of a seed:

# %% tags=["remove-input"]
links = analysis.chain()
for start in (*analysis.STARTS, "re-basin"):
    for pair in zip(analysis.LINKS, analysis.LINKS[1:]):
        found = analysis.rank_correlations(links, start, pair)
        print(f"{start:8} {' → '.join(pair):24} {found.mean():+.2f}")

# %% tags=["remove-cell"]
apart = lengths.pivot_table(index="reading", columns=["start", "point"], values="distance")
assert (apart["shared"]["source"] < apart["shared"]["random"]).all()
assert (apart["own"]["source"] > apart["own"]["random"]).all()
for start, sign in (("shared", 1), ("own", -1)):
    for pair in (("data", "parameters"), ("parameters", "before")):
        assert sign * analysis.rank_correlations(links, start, pair).mean() > 0
    assert analysis.rank_correlations(links, start, ("before", "after")).mean() > 0
ordered, shared = (
    analysis.rank_correlations(links, start, ("data", "parameters")).mean()
    for start in ("re-basin", "shared")
)
assert ordered > shared
assert analysis.rank_correlations(links, "re-basin", ("parameters", "before")).mean() > 0.5

# %% [markdown]
# With a shared start all links hold. With own starts the distance of parameters ranks sources the wrong way round, which is much a matter of
# the order of hidden units: once the second source and $\theta^*$ are reordered to match the first (`re-basin`), which changes no output, both links turn round.
#
# ## Smaller gradients
#
# (spirals-gradient)=
# Fig. 9 has smaller gradients early. The mean log ratio of gradient norms to scratch's over the first tenth of epochs:

# %% tags=["remove-input"]
calm = compared.pivot(index=["seed", "reading", "start"], columns="method", values="gradient")
calm["ratio"] = calm["theorem"] - calm["scratch"]
print(over_seeds(calm.reset_index(), ["reading", "start"], "ratio").round(2).to_string())

# %% tags=["remove-cell"]
ratio = over_seeds(calm.reset_index(), ["reading", "start"], "ratio")["mean"]
assert (ratio["inner, outer"] > 0.5).all()
assert ratio[("random", "shared")] < ratio[("random", "own")]
larger = over_seeds(calm.reset_index(), ["reading", "start"], "ratio")
assert len(larger) == 6
assert (larger["mean"] - larger["half_width"] > 0).all()
calm["ratio"] = calm["nearest source"] - calm["scratch"]
single = over_seeds(calm.reset_index(), ["reading", "start"], "ratio")
assert (single.eval("mean + half_width")["random"] < 0).all()
assert (single.eval("mean - half_width")[["one class", "inner, outer"]] > 0).all()

# %% [markdown]
# No smaller gradients, then: SAIL's are larger in all six cells, even where the start has learned the task already. For random
# points the nearest source alone has smaller ones.
#
# ## When to use it, and when not
#
# **Continue from one source** that has seen the target's inputs *and* its classes: the nearest, alone.
#
# **Do not average** networks of different starts without matching them.
#
# **Do not use** a source that answers the target's question with fewer classes: train from scratch.
#
# All this is of one perceptron on points in a plane; [](53-sail-vision) has residual networks on pictures. The [ledger](90-claims-ledger) has
# each claim with its intervals.
#
# ## Exercises
#
# ```{exercise} Two constants (easy)
# :label: ex-spirals-constants
# Two sources have the logits $(s, 0)$ and $(0, s)$ everywhere. What is the loss of each on balanced classes, and of the average of
# their *outputs*? For which $s$ is a source's loss 4.5?
# ```

# %% [markdown]
# ````{solution-start} ex-spirals-constants
# :class: dropdown
# ````
# Right on one half and wrong on the other, $\frac12 \ln(1 + e^{-s}) + \frac12 \ln(1 + e^{s})$, about $s/2$ for large $s$. The average
# has equal logits: $\ln 2$.

# %% tags=["nbval-check-output"]
import math

for s in (0, 2, 9):
    loss = (math.log1p(math.exp(-s)) + math.log1p(math.exp(s))) / 2
    print(f"s = {s}: {loss:.2f}, average {math.log(2):.2f}")

# %% [markdown]
# ````{solution-end}
# ````
#
# ```{exercise} A grid (medium)
# :label: ex-spirals-grid
# Which of 0, ½ and 1 are among 30 equally spaced values from −1 to 2, and which among 31?
# ```

# %% [markdown]
# ````{solution-start} ex-spirals-grid
# :class: dropdown
# ````
# A step is $3/29$, of which neither 1, 1½ nor 2 is a multiple; or $3/30$, of which all are.

# %% tags=["nbval-check-output"]
for count in (30, 31):
    grid = np.linspace(-1, 2, count)
    print(count, [value for value in (0, 0.5, 1) if abs(grid - value).min() < 1e-9])

# %% [markdown]
# ````{solution-end}
# ````
#
# ```{exercise} What does a source cost? (hard)
# :label: ex-spirals-costs
# In account C the training of sources counts. How many epochs on $D^*$ do two sources of 300 epochs on 40 % of the points cost? Can SAIL
# be faster than 300 epochs from scratch?
# ```

# %% [markdown]
# ````{solution-start} ex-spirals-costs
# :class: dropdown
# ````
# $2 \cdot 300 \cdot 0.4 = 240$. So it would have to arrive within 60 epochs, distances of data not counted.

# %% tags=["nbval-check-output"]
costs = analysis.COSTS["theorem"]
print(f"sources: {costs.sources / costs.step:.0f} epochs, weights: {costs.added / costs.step:.1f}")

# %% [markdown]
# ````{solution-end}
# ````
#
# ## Summary
#
# * As the paper describes it, each source is a constant predictor, and its start loses against scratch at every weight but one half, where it is
#   no better.
# * One half is a spike only between sources that can do the task and have starts of their own.
# * SAIL is faster than scratch where a source has seen the target and costs nothing; there the nearest source alone ends no
#   worse, and is much faster if starts are not shared. With sources paid for, SAIL is slower everywhere.
# * Sources with their own starts are farther from an optimum than random weights are.
#
# ## References
#
# All sources are in the [](../book/bibliography).
