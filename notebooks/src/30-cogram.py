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
# # CoGraM: the method
#
# **In one sentence:** CoGraM tries A's and B's version of each layer, and if need be of each neuron and each
# weight, inside a merged network, mixes the two by the losses found, and at the finer levels takes back
# what does not help.
#
# CoGraM {cite}`lenz2025cogram` is a procedure for labelled data without gradients. In the chapters so far, experts
# had been fine-tuned from one pretrained model for different tasks. Here two networks A and B have learned the
# *same* twenty classes, each from data of its own, and nobody promises that they started from the same weights.
# The paper's motive is federated learning: hospitals that may not share their patients' data. The method, however,
# judges on "the combined training dataset" of A and B, with labels, so somebody must hold both parties' data, or
# at least a few labelled prototypes of each.
#
# **After this chapter you can**
#
# * carry out CoGraM's decisions by hand, and read its log;
# * say what its rollback guarantees, and what the mixing factor can do at a given steepness;
# * explain why a pass over layers of independently trained networks ends at one of them;
# * choose prototypes, and tell where the paper's lose the sign of every feature.
#
# **Before you start:** [](02-averaging-and-task-vectors), and Fisher merging from
# [](20-adapting-with-data). **Time:** 30 minutes to read, about a minute to run.

# %% tags=["parameters", "remove-cell"]
SUITE = "digits2"
PROFILE = "default"
SEED = 0
DEVICE = "cpu"

# %% [markdown]
# ## A part is judged in its place
#
# Call the two networks A and B, and let M be a network of the same shape that someone has already merged
# from them, by Fisher merging or as a plain average. How good is one layer of A compared with
# the same layer of B? By itself a layer has no quality: what it gives is read by the layers after it. So
# CoGraM asks in context. It puts A's layer into M, everything else left as it is, and takes the loss of M on some
# labelled examples; then it does the same with B's layer:
#
# $$
# L_n = \frac1C \sum_{c=1}^{C} -\ln p(y_c \mid \tilde x_c; M_n),
# \qquad \Delta L = L_A - L_B ,
# $$ (eq-cogram-loss)
#
# where $M_n$ is M with this part from network $n$, A or B.
# These are Eqs. 2 and 3 of the paper: a mean cross-entropy over examples or prototypes $\tilde x_c$, and a
# difference that is negative where A's part does better. (For a regression the paper puts the mean squared error
# in its place; here that is `loss="mse"`.) The difference becomes a **mixing
# factor** through the sigmoid $\sigma$, and the part of M is replaced by a mixture (Eqs. 4 to 6):
#
# $$
# \alpha = \sigma(-\lambda\, \Delta L) = \frac{1}{1 + e^{\lambda \Delta L}}, \qquad
# W = \alpha\, W_A + (1 - \alpha)\, W_B .
# $$ (eq-cogram-alpha)
#
# The **steepness** $\lambda$ (5.5 in the paper's figures; not the $\lambda$ of task arithmetic) says how firmly the
# better one is preferred. M's own part is *not* in the mixture: M is the context, A and B are the material.

# %% tags=["remove-cell"]
import matplotlib.pyplot as plt
import numpy as np
import torch
from scipy.special import expit, logit

from mergebook import load_suite, plots
from mergebook.cogram.pairs import draw_pairs
from mergebook.lab.statistics import interval
from mergebook.plots import BLUE, GREEN, GREY, PURPLE, VERMILION

torch.set_num_threads(1)  # networks this small lose more to threads than they gain
plots.use_style()

# %% tags=["remove-cell"]
BOXES = [  # x, y, width, height, colour, text
    (0.1, 6.7, 3.1, 1.1, BLUE, "M with A's part"),
    (0.1, 5.0, 3.1, 1.1, GREEN, "M with B's part"),
    (4.4, 5.85, 1.9, 1.1, GREY, "ΔL = $L_A - L_B$"),
    (8.2, 5.7, 1.7, 1.4, VERMILION, "next finer\nlevel"),
    (3.9, 3.3, 3.2, 1.4, PURPLE, "mix: α A + (1 − α) B\nα = σ(−λ ΔL)"),
    (4.2, 1.35, 2.6, 1.1, GREY, "did M's loss fall?"),
    (0.1, 1.35, 2.6, 1.1, GREEN, "accept"),
    (7.9, 1.35, 2.0, 1.1, VERMILION, "roll back"),
]
LABELS = [  # x, y, text
    (3.8, 7.4, "loss $L_A$"),
    (3.8, 5.05, "loss $L_B$"),
    (7.25, 6.55, "outside of\nτ min … τ max"),
    (6.75, 5.1, "within, or no finer level"),
    (6.15, 2.75, "put into M"),
    (3.45, 2.05, "yes, or\nit is a layer"),
    (7.35, 2.05, "no"),
    (5, 0.3, "then the next part; after the first layer, M is the next pass's M"),
]
COLUMNS = [  # x, title, and how many parts down and across
    (0.3, "layers, last one first", 1, 4),
    (3.9, "neurons of a layer", 4, 1),
    (7.5, "its weights", 4, 5),
]
# %% tags=["remove-cell"]
ARROWS = [  # from x, y to x, y
    (3.25, 7.25, 4.35, 6.4),
    (3.25, 5.55, 4.35, 6.4),
    (6.35, 6.4, 8.15, 6.4),
    (5.5, 5.8, 5.5, 4.75),
    (5.5, 3.25, 5.5, 2.5),
    (4.15, 1.9, 2.75, 1.9),
    (6.85, 1.9, 7.85, 1.9),
]


def box(ax, x, y, wide, high, shade, text):
    """A rounded box with a text in it."""
    round_box = plt.matplotlib.patches.FancyBboxPatch(
        (x, y), wide, high, "round,pad=0,rounding_size=0.08", ec=shade, fc=(shade, 0.12), lw=1.2
    )
    ax.add_patch(round_box)
    ax.text(x + wide / 2, y + high / 2, text, ha="center", va="center")


def arrow(ax, x, y, to_x, to_y):
    """An arrow from one point to another."""
    style = {"arrowstyle": "-|>", "lw": 1.4, "color": plots.DARK}
    ax.annotate("", xy=(to_x, to_y), xytext=(x, y), arrowprops=style)


# %% tags=["remove-input"] mystnb={"figure": {"caption": "CoGraM drawn. Above: a layer is left to its neurons, and a neuron to its weights, where the loss difference is outside the level's thresholds (after the paper's Figure 1). Below: one decision (after its Figure 2, with the rollback added).", "name": "fig-cogram-algorithm"}, "image": {"alt": "Above, four layers of which the last is refined into four neurons, and the first neuron into five weights. Below, a flow chart: M with A's part and M with B's part give two losses and their difference. Outside the thresholds it leads to the next finer level, otherwise to a mixture of A and B. If M's loss fell, or the part is a layer, the mixture is accepted, otherwise rolled back."}}
figure, (top, bottom) = plt.subplots(2, 1, figsize=(7.2, 7.6), height_ratios=[1, 1.75])
top.set(ylim=(0, 4.1), title="From coarse to fine")
bottom.set(ylim=(0, 8.4), title="One decision, at any level")
for x, name, down, across in COLUMNS:
    high, wide = 2.6 / down, 2.2 / across
    for row, column in np.ndindex(down, across):
        shade = VERMILION if (row, column) == (0, across - 1) else BLUE
        place = x + column * wide, 3.3 - (row + 1) * high
        box(top, *place, 0.86 * wide, high - 0.14, shade, "")
    top.text(x + 1.05, 3.5, name, ha="center", fontsize=11)
for x in (2.55, 6.15):
    arrow(top, x, 2.0, x + 1.25, 2.0)
    top.text(x + 0.62, 2.15, "refine", ha="center", fontsize=11)
rule = "refine where |ΔL| < τ min (uncertain) or |ΔL| > τ max (too coarse)"
top.text(5, 0.1, rule, ha="center")
for each in BOXES:
    box(bottom, *each)
for each in ARROWS:
    arrow(bottom, *each)
for x, y, text in LABELS:
    bottom.text(x, y, text, ha="center", va="bottom", fontsize=10)
plt.setp((top, bottom), xlim=(0, 10))
for ax in (top, bottom):
    ax.axis("off")
plt.show()

# %% [markdown]
# Each level has two **thresholds**, in nats. Where $|\Delta L| < \tau_{\min}$ the decision is called uncertain, where
# $|\Delta L| > \tau_{\max}$ too coarse, and in both cases the part is left to the next finer level. In between, ends
# included, it is mixed at once. A **neuron** is an output unit with its incoming weights and its bias.
# The figure draws it, and here it is as pseudo-code:
#
# ```{prf:algorithm} CoGraM
# :label: alg-cogram
# **Inputs** networks A and B, a start M, labelled examples or prototypes, steepness $\lambda$, levels, thresholds.
# **Output** the merged network M.
#
# For each pass, and in it for each layer from the last to the first: **decide**(layer).
#
# **decide**(part):
# 1. $L_A, L_B \leftarrow$ loss of M with A's, with B's version of the part; $\Delta L \leftarrow L_A - L_B$.
# 2. If a finer level is left, and $|\Delta L| < \tau_{\min}$ or $|\Delta L| > \tau_{\max}$:
#    **decide**(piece) for each neuron of the layer, or each weight of the neuron; done.
# 3. $L_{\mathrm{pre}} \leftarrow$ loss of M. In M, replace the part by $\alpha W_A + (1 - \alpha) W_B$ with
#    $\alpha = \sigma(-\lambda \Delta L)$. $L_{\mathrm{post}} \leftarrow$ loss of M.
# 4. If the part is a neuron or a weight and $L_{\mathrm{post}} \ge L_{\mathrm{pre}}$: **roll back** the replacement.
# ```
#
# Step 4 is the paper's Eq. 7. A second pass starts from the M that the first one left (Eq. 8).

# %% [markdown]
# ## By hand, on eight weights
#
# Two inputs, two hidden neurons with ReLU, two classes, no biases. Example 1 is $(1, 0)$, example 2 is $(0, 1)$,
# and each is to be recognised as its own class:
#
# $$
# \begin{aligned}
# A&: & W_1 &= \begin{pmatrix} 2 & 0 \\ 1 & 1 \end{pmatrix}, & W_2 &= \begin{pmatrix} 2 & 0 \\ 0 & 2 \end{pmatrix}, \\
# B&: & W_1 &= \begin{pmatrix} 1 & 1 \\ 0 & 2 \end{pmatrix}, & W_2 &= \begin{pmatrix} 1 & 0 \\ 0 & 1 \end{pmatrix}, \\
# M&: & W_1 &= \begin{pmatrix} 1.5 & 0.5 \\ 0.5 & 1.5 \end{pmatrix}, & W_2 &= \begin{pmatrix} 1.5 & 0 \\ 0 & 1.5 \end{pmatrix}.
# \end{aligned}
# $$
#
# A's first neuron is the cleaner one, as it answers to example 1 only; of B, it is the second. M is the average.
# Both examples always have the same **margin** $m$, the right logit minus the
# wrong one, so that the loss is $\ln(1 + e^{-m})$. In M the hidden neurons answer to example 1 with
# 1.5 and 0.5, so $m = 1.5\,(1.5 - 0.5) = 1.5$, and the loss is $\ln(1 + e^{-1.5}) = 0.201$.
#
# **The last layer.** With A's in place, $m = 2\,(1.5 - 0.5) = 2$; with B's, $m = 1$. The losses are 0.127
# and 0.313, so $\Delta L = -0.186$ and $\alpha = \sigma(5.5 \cdot 0.186) = 0.736$. The layer becomes
# $0.736 \cdot 2 + 0.264 \cdot 1 = 1.736$ times the identity.
#
# **The first layer.** A's gives hidden answers 2 and 1 to example 1, and 0 and 1 to example 2: the
# differences are 1 and 1. B's gives 1 and 0, then 1 and 2: again 1 and 1. So $\Delta L = 0$. Each has one good
# neuron, and as layers they are equally good. With any $\tau_{\min} > 0$ the decision is uncertain and goes to
# the neurons.
#
# **Neuron 1.** A's gives 2 and 0, and M's neuron 2 gives 0.5 and 1.5. Differences: 1.5 and 1.5, hence
# $m = 1.736 \cdot 1.5 = 2.604$. B's gives 1 and 1, so $m = 1.736 \cdot 0.5 = 0.868$. That is clear:
# $\Delta L = -0.279$, $\alpha = 0.823$, and the loss falls with the mixture, so it is kept.
#
# **Neuron 2** is judged with the new neuron 1 in place, and goes to B with $1 - \alpha = 0.722$.
#
# So the finer level finds *which* half of the layer to take from whom. Now the same
# by machine; `data` and `heads` are mappings by task, here with a single one.

# %%
import math

import torch
from torch import nn

import mergelib as ml

toy = nn.Sequential(nn.Linear(2, 2, bias=False), nn.ReLU(), nn.Linear(2, 2, bias=False))
toy_pair = {
    "A": {"0.weight": torch.tensor([[2.0, 0], [1, 1]]), "2.weight": 2 * torch.eye(2)},
    "B": {"0.weight": torch.tensor([[1.0, 1], [0, 2]]), "2.weight": torch.eye(2)},
}
result = ml.adapt(
    "cogram",
    toy_pair,
    model=toy,
    heads={"toy": nn.Identity()},
    data={"toy": (torch.eye(2), torch.arange(2))},
    start=ml.merge("average", toy_pair),
    levels=("layer", "neuron"),
    thresholds={"layer": (0.05, math.inf)},
    iterations=2,
)
result.history[["layer", "level", "loss A", "loss B", "alpha A", "after"]].round(3)

# %% [markdown]
# One row per decision: that table is the **log**. Layer 2 is the last, 0 the first, and neurons count from 0. The first four
# rows are the ones that we computed, as this check confirms:

# %% tags=["hide-input", "nbval-check-output"]
losses = [[math.log1p(math.exp(-m)) for m in pair] for pair in ((2, 1), (1, 1), (1.5, 0.5))]
first = 1 / (1 + math.exp(5.5 * (losses[0][0] - losses[0][1])))
scale = 1 + first  # of the last layer, after its merge
by_hand = [math.log1p(math.exp(-scale * m)) for m in (1.5, 0.5)]
alpha = 1 / (1 + math.exp(5.5 * (by_hand[0] - by_hand[1])))
log = result.history
assert abs(log["alpha A"][0] - first) < 1e-12
assert abs(log["alpha A"][2] - alpha) < 1e-12
print([f"{value:.3f}" for value in (first, *by_hand, alpha)])
print("cases:", list(log["case"][:4]))

# %% tags=["hide-input"] mystnb={"figure": {"caption": "The toy's loss over two passes, one point per decision. Filled: accepted; hollow: what the loss would have become, rolled back.", "name": "fig-cogram-toy"}, "image": {"alt": "A falling staircase in the first pass, from 0.20 to 0.07 in three accepted steps, with the first layer left to its neurons. In the second pass the last layer's merge raises the loss a little, the first neuron's mixture would raise it further and is rolled back, and the second neuron's lowers it by very little."}}
fig, ax = plt.subplots()
stays = np.where(log["accepted"], log["after"], log["before"])
ax.step(range(len(log) + 1), [log["before"][0], *stays], where="post", color=BLUE, lw=1.5)
for row, (after, accepted) in enumerate(zip(log["after"], log["accepted"]), 1):
    edge, face = (BLUE, BLUE) if accepted else (VERMILION, "white")
    ax.plot(row, after, "o", ms=9, mec=edge, mfc=face)
for row in log.index[log["case"] == "uncertain"]:
    text = "left to its\nneurons"
    ax.text(row + 1, stays[row] - 0.012, text, ha="center", va="top", fontsize=10)
ax.axvline(len(log) / 2 + 0.5, color=GREY, ls=":", lw=1.5)
ax.text(len(log) / 2 + 0.4, 0.95 * log["before"][0], "pass 1", ha="right")
ax.text(len(log) / 2 + 0.6, 0.95 * log["before"][0], "pass 2")
where = {"2": "last layer", "0": "first layer"}
names = [
    where[layer] if level == "layer" else f"neuron {unit + 1}"
    for layer, level, unit in zip(log["layer"], log["level"], log["unit"])
]
ax.set(ylabel="loss of M, nats", ylim=(0, None))
ax.set_xticks(range(len(log) + 1), ["start", *names], rotation=40, ha="right")
plt.show()

# %% [markdown]
# In the second pass all differences are smaller, and by
# {eq}`eq-cogram-alpha` all mixing factors come back towards $\frac12$. At the last layer, where the method has no
# rollback, the loss *rises*. **Iterating is not descending**: Eq. 4
# lets go as soon as the differences shrink, and it is the rollback that holds on to what was gained.
#
# ## What α can do
#
# ```{prf:proposition} The mixing factor
# :label: prop-cogram-alpha
# 1. $\alpha$ does not change if the same number is added to both losses. It knows differences only, and
#    in nats: halving both losses has the effect of halving $\lambda$.
# 2. $\alpha = e^{-\lambda L_A} / (e^{-\lambda L_A} + e^{-\lambda L_B})$, the softmax of $-\lambda L_n$.
# 3. $\alpha$ is within $\delta$ of 0 or 1 just where $\lambda\,|\Delta L| \ge \ln\frac{1-\delta}{\delta}$: at
#    $\lambda = 5.5$ and $\delta = 0.1$, from a difference of 0.4 nats on.
# ```
#
# ```{prf:proof}
# Divide numerator and denominator in 2 by $e^{-\lambda L_A}$ to get {eq}`eq-cogram-alpha`. A constant in both losses
# cancels in $\Delta L$. Solve $\sigma(\lambda |\Delta L|) \ge 1 - \delta$ for 3.
# ```
#
# The paper claims to be able to merge "two or more" networks and gives the formula for two. Our reading is the softmax over
# three or more losses (`mixing_weights`); merging in pairs would depend on their order ({ref}`ex-cogram-three`).
#
# ## Where the paper leaves a choice
#
# * **What a refined part is before its neurons are judged.** By Cases 1 and 2 a layer that is refined is *not* merged.
#   Yet a neuron is to be rolled back "to the parameters from the prior layer-level fusion", which for such a layer
#   never took place. We leave the part as it is in M, and roll back to that; the other reading is
#   measured {ref}`below <cogram-readings>`.
# * **What the last level does.** Where no finer level is left (weights always; layers, if only layers are allowed, as
#   in all of the paper's experiments) everything is merged, however small or large the difference. So with layers
#   alone the thresholds play no role.
# * **Whether later decisions see earlier ones.** Decisions shall rest on "the current state of network M",
#   which is sequential; yet every structure is "assessed independently" and changes are consolidated
#   in the end, which is simultaneous. `order=` offers both, sequential by default. Simultaneous changes are checked
#   once more together, since what helps alone need not help together; if that fails, the better half is tried, and so on.
# * **Layers have no rollback**, says the paper, and so it is by default. `rollback=("layer", "neuron", "weight")` gives
#   them one.
# * **Which thresholds, sizes and rates** the paper used we cannot know: they are promised "at the end of the
#   Results section", and are not there.
#
# ## Two networks for twenty classes
#
# The data follow the paper's description: twenty classes with random centres in 32 dimensions,
# subclusters, normal samples bent by sine and tangent, noise, and more of it in the test data. In the *heterogeneous*
# case A and B share the centres of the classes and nothing else. Each trains a network of 32, 64 and 20 units on a
# thousand examples; these sizes are ours. Both may begin with the same random weights (`shared`) or with their own.
# M begins as their Fisher merge. `make_pair` does all of this.

# %%
import pandas as pd

from mergebook.cogram.pairs import make_pair

pair = make_pair(SEED, "synthetic", "heterogeneous", shared=True)
everything = {"all": pair.together}  # the training data of both
scores = {"A": pair.a, "B": pair.b, "Fisher": pair.fisher}
scores = {name: 100 * pair.accuracy(state) for name, state in scores.items()}
pd.Series(scores, name="test accuracy, %").round(1)

# %% [markdown]
# Half of the test examples come from A's distribution and half from B's. A pass over layers alone, the paper's setting, judged on all training data of both:

# %%
by_layer = pair.cogram(pair.fisher, everything).history
by_layer[["layer", "loss a", "loss b", "alpha a"]].round(3)

# %% [markdown]
# Two layers, two decisions: all that the paper's experiments let CoGraM choose. Now let every neuron decide, last layer first.

# %%
in_turn = pair.cogram(pair.fisher, everything, levels=("neuron",), order="sequential")
steps = in_turn.history
steps.groupby("layer", sort=False)["accepted"].agg(neurons="size", accepted="sum")

# %% tags=["hide-input"] mystnb={"figure": {"caption": "Decisions about neurons on a real pair (one seed): the loss difference between A's and B's neuron in its place, with the mixing factor on the right axis. Blue: the mixture was kept; orange: rolled back.", "name": "fig-cogram-neurons"}, "image": {"alt": "Bars for 20 output neurons and 64 hidden ones, mostly shorter than one hundredth of a nat, so that the mixing factor stays within a few hundredths of one half. Mixtures of the output neurons are nearly all rolled back; of the hidden neurons most are kept."}}
layers = [*steps.groupby("layer", sort=False)]
widths = [len(part) + 10 for _, part in layers]
fig, axes = plt.subplots(1, len(layers), figsize=(8, 3.8), width_ratios=widths, sharey=True)
for ax, (name, part) in zip(axes, layers):
    shades = np.where(part["accepted"], BLUE, VERMILION)
    ax.bar(part["unit"], part["loss a"] - part["loss b"], color=shades, width=0.8)
    ax.axhline(0, color="black", lw=0.8)
    ax.set(xlabel="neuron", title=f"layer {name}")
axes[0].set_ylabel("ΔL, nats (negative: A better)")
back = (lambda gap: expit(-5.5 * gap), lambda share: logit(np.clip(share, 1e-9, 1 - 1e-9)) / -5.5)
axes[-1].secondary_yaxis("right", functions=back).set_ylabel("α, share of A")
handles = [plt.Rectangle((0, 0), 1, 1, color=shade) for shade in (BLUE, VERMILION)]
axes[-1].legend(handles, ["kept", "rolled back"], loc="lower right", ncols=2)
plt.show()

# %% [markdown]
# A single neuron moves the loss by a few thousandths of a nat, and {prf:ref}`prop-cogram-alpha` then gives an
# $\alpha$ of almost exactly one half: whichever neuron is better, the proposal is the average of both, and the only
# real decision is whether to take it.
#
# (cogram-orders)=
# Does it matter that the decisions are made one after the other? Once more, all neurons of a layer judged
# against the same M:

# %%
from mergelib.evaluation.tasks import Split

at_once = pair.cogram(pair.fisher, everything, levels=("neuron",))
both = steps.merge(at_once.history, on=["layer", "unit"], suffixes=(" in turn", " at once"))
differ = (both["accepted in turn"] != both["accepted at once"]).sum()
ends = [pair.loss(run.state, Split(*pair.together)) for run in (in_turn, at_once)]
print(f"{differ} of {len(both)} differ; loss in turn {ends[0]:.4f}, at once {ends[1]:.4f}")

# %% [markdown]
# Some decisions differ.
#
# All levels in one figure: the curve is {eq}`eq-cogram-alpha`, and below it stand the
# differences that occurred. To be quick, single weights are judged on three k-means prototypes per class, which a later
# section explains. The last row is from a pair that did *not* start from the same weights.

# %%
few = pair.prototypes("kmeans")  # three per class
by_weight = pair.cogram(pair.fisher, few, levels=("weight",), order="sequential")
far = make_pair(SEED, "synthetic", "heterogeneous", shared=False)
seen = {
    "weights": by_weight.history,
    "neurons": steps,
    "layers, same start": by_layer,
    "layers, own starts": far.cogram(far.fisher, {"all": far.together}).history,
}
medians = {name: part["spread"].median() for name, part in seen.items()}
pd.Series(medians, name="median |ΔL|").map("{:.5f}".format)

# %% tags=["hide-input"] mystnb={"figure": {"caption": "The mixing factor as a function of the loss difference at λ = 5.5, and the differences that occur at each level (one seed).", "name": "fig-cogram-alpha"}, "image": {"alt": "A falling S-curve that runs from one at minus one nat through one half at zero to zero at plus one nat. The marks of weights and neurons all sit at zero, where the curve is at one half. Layers of networks with the same start lie within a tenth of a nat of it. Layers of networks with starts of their own lie on its flat end."}}
fig, ax = plt.subplots(figsize=(7.2, 4.6))
grid, end = np.linspace(-1.6, 1.6, 401), 1.6
ax.plot(grid, expit(-5.5 * grid), color=PURPLE)
for row, ((name, part), shade) in enumerate(zip(seen.items(), (BLUE, VERMILION, GREEN, PURPLE))):
    gaps, height = (part["loss a"] - part["loss b"]).clip(-end, end), -0.13 - 0.13 * row
    ax.plot(gaps, np.full(len(gaps), height), "|", ms=11, mew=1.6, color=shade)
    ax.text(1.68, height, name, va="center", fontsize=10)
ax.axhline(0, color=GREY, lw=0.8)
ax.set(xlabel="ΔL, nats (beyond the ends: drawn at the ends)", ylabel="α, share of A")
ax.set(xlim=(-1.65, 1.65), ylim=(-0.62, 1.05), yticks=[0, 0.25, 0.5, 0.75, 1])
plt.show()

# %% [markdown]
# One steepness for all levels means three regimes. Weights and neurons are averaged. Layers of related networks are
# averaged with a slight lean. Layers of unrelated networks are chosen outright. That a
# larger advantage leads to a stronger weighting, as the paper says, is true in order and nearly empty in size. Who wants
# neurons to *choose* needs a steepness of the order of one over their differences, some hundreds ({ref}`ex-cogram-steep`).
#
# ## What rollback guarantees
#
# ```{prf:proposition} The loss never rises at the finer levels
# :label: prop-cogram-monotone
# At the levels of neurons and weights, in either order, the loss of M on the evaluation data never rises. With
# the layer level left out, or given a rollback, it never rises over a whole run, over any number of
# iterations; and if $A = B = M$, nothing changes.
# ```
#
# ```{prf:proof}
# By Eq. 7 a change stays only if the loss after it is below the loss before. In sequence the loss before is that of
# the last change kept. Simultaneous changes are kept together only if the loss with all of them is below. If
# $A = B = M$ then every mixture equals what is in place, and the loss does not fall.
# ```
#
# It is a guarantee about the data that were judged on, and nothing else.
#
# (cogram-readings)=
# The table also shows what the other reading of the rollback does: "fused first" merges all layers by their $\alpha$, and
# only then lets the neurons decide.

# %%
fine = {"levels": ("neuron",), "order": "sequential"}
fused = pair.cogram(pair.fisher, few).state
runs = {
    "Fisher": pair.fisher,
    "layers": fused,
    "neurons, from M as it was": pair.cogram(pair.fisher, few, **fine).state,
    "neurons, layers fused first": pair.cogram(fused, few, **fine).state,
    "weights": by_weight.state,
}
judged_on = {"prototypes": Split(*few["all"]), "validation data": pair.data.validation}
losses = {
    f"loss on {name}": {run: pair.loss(state, data) for run, state in runs.items()}
    for name, data in judged_on.items()
}
table = pd.DataFrame(losses)
table.round(3)

# %% tags=["remove-cell"]
falls = in_turn.history, by_weight.history
assert all(((part["after"] < part["before"]) | ~part["accepted"]).all() for part in falls)
assert table.loc["weights"].iloc[0] < table.loc["Fisher"].iloc[0]

# %% [markdown]
# On this seed, deciding weight by weight takes the loss on the prototypes down to a fraction of what it was, and the loss on
# validation data by a few per cent. The layers do the reverse: with no rollback to stop it, their merge *raises* the loss
# on the prototypes and lowers that on validation data most. The two readings of the rollback end in different networks.
#
# The paper found finer levels worse, and suspects that parameters fused one by one lose their relation to the others. An
# alternative is that sixty examples are too few to judge thousands of changes. [](31-cogram-experiments) has thirty seeds.
#
# ## How it is fast
#
# A pass at weight level asks for the loss of M three times per weight: with A's, with B's, with the mixture. Two facts
# save most of the work.
#
# ```{prf:proposition} Mixtures come free
# :label: prop-cogram-linear
# Let a linear or convolutional unit have incoming weights and bias $w$, and give $u(w)$ on the examples. Then
# $u(\alpha w_A + (1 - \alpha) w_B) = \alpha\, u(w_A) + (1 - \alpha)\, u(w_B)$. And if only weight $j$ changes, by
# $\delta$, then $u$ changes by $\delta\, x_j$, where $x_j$ is the input that this weight meets.
# ```
#
# ```{prf:proof}
# $u(w) = \langle w, (x, 1) \rangle$ is linear in $w$.
# ```
#
# So what comes before the layer is computed once and kept, candidates for its units are sums of vectors
# that are already there, and only what follows has to run, on a batch of candidates at a time. All losses are computed in
# double precision, as decisions hang on differences in the sixth digit.
#
# ## A layer pass walks to one parent
#
# Back to layers, and to where A and B come from. If both started from the same weights and were not trained for too long,
# hidden neuron 17 tends to do a similar job in both. If not, the hidden neurons stand in an order of their own in each, and a
# layer of B makes no sense to the layer of A that reads it.
#
# ```{prf:proposition} The last word on the first layer
# :label: prop-cogram-collapse
# Let all layers of M but the first hold A's values. Then candidate A for the first layer is network A itself, so
# $L_A$ is A's own loss, and $L_B$ is the loss of A's upper layers reading B's first layer.
# ```
#
# ```{prf:proof}
# By the definition of the candidates.
# ```
#
# That says what is compared, not how it comes out. If A's upper layers cannot read B's first layer, $L_B - L_A$ is several
# nats, $\alpha$ is 1 to many digits, and a pass that leaned to A at first ends at A. The merge was then decided by the
# first decision, made while the rest of M was still a blend that fits nobody. Whether that happens is to be
# measured: six pairs of each of the four kinds, one pass over layers.

# %% tags=["hide-input"]
SEEDS = range(6 * SEED, 6 * SEED + (3 if PROFILE == "smoke" else 6))
rows = []
for seed in SEEDS:
    for case, drawn in draw_pairs(seed, "synthetic"):
        states = {"a": drawn.a, "b": drawn.b, "fisher": drawn.fisher}
        for kind in ("everything", "arithmetic", "geometric"):
            samples = {"all": drawn.together} if kind == "everything" else drawn.prototypes(kind)
            done = drawn.cogram(drawn.fisher, samples)
            by_name = done.history.set_index("layer")
            row = {**case, "seed": seed, "judged on": kind}
            row |= {"last": by_name["alpha a"]["2"], "first": by_name["alpha a"]["0"]}
            row["lean"] = by_name["loss a"]["2"] - by_name["loss b"]["2"]
            row["rises"] = int((by_name["after"] > by_name["before"]).sum())
            after = {**states, "cogram": done.state}
            rows.append(row | {name: 100 * drawn.accuracy(s) for name, s in after.items()})
passes = pd.DataFrame(rows)
whole = passes[passes["judged on"] == "everything"]

# %% tags=["hide-input"] mystnb={"figure": {"caption": "The mixing factors of both layers in one pass over layers, judged on the training data of both; one point per pair of networks.", "name": "fig-cogram-collapse"}, "image": {"alt": "Left, pairs with a common start: all points in the middle of the square, near one half for both layers. Right, pairs with their own starts: points sit on the upper edge where the last layer leans to A and on the lower edge where it leans to B, so that the first layer is taken wholly from the same network."}}
fig, axes = plt.subplots(1, 2, figsize=(8, 4.2), sharey=True)
for ax, start in zip(axes, ("common", "own")):
    for data, marker, shade in (("homogeneous", "o", BLUE), ("heterogeneous", "D", VERMILION)):
        points = whole[(whole["start"] == start) & (whole["data"] == data)]
        style = {"marker": marker, "s": 60, "color": shade, "alpha": 0.75, "clip_on": False}
        ax.scatter(points["last"], points["first"], label=data, **style)
    ax.axhline(0.5, color=GREY, lw=0.8)
    ax.axvline(0.5, color=GREY, lw=0.8)
    ax.set(xlim=(0, 1), ylim=(0, 1), title=f"{start} start")
    ax.set_xlabel("α of the last layer (judged first)")
axes[0].set_ylabel("α of the first layer")
axes[0].legend(loc="upper left", fontsize=10)
plt.show()

# %% tags=["hide-input"]
lean = (whole["last"] > 0.5) == (whole["first"] > 0.5)
walked = lean & ((whole["first"] - 0.5).abs() > 0.4)
cases = whole.assign(walked=walked, parents=(whole["a"] + whole["b"]) / 2)
cases = cases.groupby(whole["start"] + " start, " + whole["data"])
cases[["walked"]].sum().join(cases[["parents", "fisher", "cogram"]].mean().round(1))

# %% [markdown]
# *Walked* counts the pairs, of six, in which both layers lean to the same parent and the first is more than nine tenths of it;
# *parents* is the mean accuracy of A and B. With the same start no layer is taken outright. With own starts, Fisher merging loses a lot, and
# the passes walk to a parent: what CoGraM "gains" over Fisher is the way back to a single sub-network. The paper does not
# say whether its networks shared a start.
#
# (cogram-no-rollback)=
# A layer has no rollback, so a merge may raise the loss. How often did it, in these passes?

# %% tags=["hide-input"]
by_kind = passes.groupby(["start", "judged on"])["rises"]
pd.DataFrame({"decisions": 2 * by_kind.size(), "loss rose": by_kind.sum()})

# %% [markdown]
# So "changes are only accepted if they demonstrably reduce the loss" does not describe the
# layer level, the only one that the paper's figures use.
#
# ## Prototypes
#
# Taking losses on all training data is slow for large networks. The paper takes one **prototype** of each class
# instead. With $S_c$ the examples of class $c$, Eq. 1 is the geometric mean of magnitudes, feature by feature,
#
# $$ \tilde x_c = \Bigl( \prod_{x \in S_c} (|x| + \varepsilon) \Bigr)^{1/|S_c|} , $$ (eq-cogram-prototype)
#
# where $\varepsilon > 0$ keeps the product from being zero. The paper's reason is robustness
# {cite}`vogel2022geometric`. Its outlook names several means a class, found by k-means
# {cite}`macqueen1967some,lloyd1982least`, and **medoids** {cite}`kaufman1990finding`, examples with the least sum of
# distances to the others of their class. `prototypes(kind=...)` has them all.
#
# ```{prf:proposition} What Eq. 1 cannot see
# :label: prop-cogram-sign
# 1. Flip the sign of any feature of any example: no prototype changes. So two classes that are each other's mirror
#    image have the same prototype.
# 2. Means, medoids and k-means centres follow a change of units: of $a x + b$ with $a > 0$ they are $a \tilde x + b$.
#    The geometric mean does not, unless $b = 0$.
# ```
#
# ```{prf:proof}
# Only $|x|$ enters Eq. 1. For the second: a mean is linear, and distances scale by $a$, so that the same example is the
# medoid and the same groups are optimal for k-means. For the geometric mean, take $x \in \{-1, 1\}$: it is 1, up to
# $\varepsilon$, whatever the mixture, while that of $(x + 1)/2 \in \{0, 1\}$ goes to 0 with $\varepsilon$
# as soon as one example is 0.
# ```
#
# Networks often get pixels in $[-1, 1]$, with black at $-1$ and white
# at 1. Both ends have magnitude 1. Here are handwritten digits on that scale and on $[0, 1]$.

# %% tags=["hide-input"]
from mergebook.suites.models import scale_pixels
from mergelib.cogram import prototypes

suite = load_suite(SUITE, seed=SEED, profile=PROFILE)
task = next(iter(suite.tasks.values()))
scales = {"[-1, 1]": scale_pixels(task.train.inputs), "[0, 1]": task.train.inputs.float() / 255}
kinds = {
    "mean": {"kind": "arithmetic"},
    "geometric": {"kind": "geometric"},
    "medoid": {"kind": "medoid"},
    "k-means, 3 per class": {"kind": "kmeans", "per_class": 3},
}
sides = {}
for title, pixels in scales.items():
    rows = {
        name: prototypes(pixels, task.train.labels, seed=SEED, **options)[0]
        for name, options in kinds.items()
    }
    rows["k-means, 3 per class"] = rows["k-means, 3 per class"][::3]
    sides[f"pixels in {title}"] = (-1 if title == "[-1, 1]" else 0, rows)

# %% tags=["hide-input"] mystnb={"figure": {"caption": "Prototypes of five classes of pictures, from pixels in [-1, 1] (left) and in [0, 1] (right); black is the lower end, white the upper. Only the geometric mean depends on the scale.", "name": "fig-cogram-gallery"}, "image": {"alt": "Class means, medoids and k-means centres are readable digits and the same on both sides. The geometric mean on the scale from minus one to one is a pale outline on white, with ink and paper of the same brightness; from zero to one it is a thin digit on black."}}
fig, axes = plt.subplots(1, 2, figsize=(8.4, 3.9))
for ax, (title, (low, rows)) in zip(axes, sides.items()):
    plots.gallery(ax, {name: images[:5] for name, images in rows.items()}, low=low)
    ax.set_title(title, fontweight="normal")
axes[1].set_yticks([])
plt.show()

# %% [markdown]
# On the left, the geometric mean has turned ink and paper into the same white. On the right it keeps what *all* examples
# have in common, as the paper intends. So whether Eq. 1 makes sense for pictures is decided by
# their scale: keep that in mind for the digits of the next chapter, whose pixels are in $[-1, 1]$.
#
# (cogram-sign)=
# ## How much of a class is in its prototype
#
# The synthetic features lie around zero, where the loss of the sign weighs most. (Hidden features after a ReLU do not: they
# are never negative. There Eq. 1 loses no sign, but it meets many zeros, about which more below.) Three measurements: how
# many test examples are nearest to a prototype of their own class
# (*nearest*); how many prototypes the sub-network A assigns to their class (*A is right*); and A's loss on them, to be
# compared with $\ln 20 = 3.0$ for blind guessing.

# %% tags=["hide-input"]
rows = []
for seed in SEEDS:
    alike = make_pair(seed, "synthetic", "homogeneous", shared=True)
    for name, options in kinds.items():
        points = Split(*prototypes(*alike.together, seed=seed, **options))
        nearest = torch.cdist(alike.data.test.inputs, points.inputs).argmin(1)
        right = points.labels[nearest] == alike.data.test.labels
        row = {"prototypes": name, "nearest, %": 100 * right.float().mean().item()}
        row["A is right, %"] = 100 * alike.accuracy(alike.a, points)
        rows.append({**row, "loss of A": alike.loss(alike.a, points)})
told = pd.DataFrame(rows)
means = told.groupby("prototypes", sort=False).agg(["mean", "sem"])
means = told.groupby("prototypes", sort=False).agg(interval)
means.map(lambda pair: f"{pair[0]:.1f} ± {pair[1]:.1f}")

# %% tags=["remove-cell"]
centre = told.groupby("prototypes").mean()
assert centre.loc["geometric", "nearest, %"] < 20 < centre.loc["mean", "nearest, %"]
assert centre.loc["geometric", "loss of A"] > math.log(20)

# %% [markdown]
# (Means over the seeds with 95 % intervals.) The geometric prototypes tell next to nothing about these classes: blind guessing
# is 5 %. On them a well-trained network does *worse* than guessing, since it is confident and wrong.
#
# What matters in the end is the decision. Does the prototype prefer the same parent as the whole training
# data, at the first decision of the pass, where both judge the same M?

# %% tags=["hide-input"]
keys = ["start", "data", "seed"]
first = np.sign(passes.pivot(index=keys, columns="judged on", values="lean"))
agree = {
    kind: (first[kind] == first["everything"]).groupby("start").mean()
    for kind in ("arithmetic", "geometric")
}
shares = 100 * pd.DataFrame(agree).add_suffix(", same choice, %")
accuracies = passes.groupby(["start", "judged on"])["cogram"].mean().unstack()
shares.join(accuracies.add_suffix(", accuracy, %")).round(0).T

# %% [markdown]
# With own starts, class means choose the parent that the whole training set would have chosen, with a hundredth of
# the examples, and the accuracy is nearly the same. With the same start they often do not, and it does no harm: on means
# both candidates are almost perfect, and $\alpha \approx \frac12$ in any case. Geometric prototypes agree no more often than
# a coin, and with own starts the network that comes out is far behind.
#
# **On features around zero, do not use Eq. 1**; take means, or a few k-means centres per class. Where features are positive
# by nature (counts, intensities, concentrations) the objection falls away: the next chapter makes the same features
# positive, or shifts them away from zero, and Eq. 1 then serves about as well as means do ({ref}`map <fig-cogram-map>`).
#
# (cogram-robust)=
# There the geometric mean is robust on one side only. Fifty positive values, one of them replaced by a hundred times its size or
# by zero; what does the prototype become, relative to before?

# %% tags=["nbval-check-output"]
from mergelib.cogram import prototypes

values = torch.ones(50, 1)
for text, outlier in (("100 times as large", 100.0), ("zero", 0.0)):
    spoiled = torch.cat([values[:-1], torch.full((1, 1), outlier)])
    new = {
        kind: prototypes(spoiled, torch.zeros(50, dtype=torch.int64), kind=kind)[0].item()
        for kind in ("arithmetic", "geometric")
    }
    print(f"one value {text}: mean {new['arithmetic']:.2f}, geometric {new['geometric']:.2f}")

# %% [markdown]
# Against one huge value it is far more robust than the mean, against one zero far less: the zero counts with
# $\varepsilon^{1/50}$, and so the result depends on an $\varepsilon$ that the paper does not give.
#
# ## Kickoff and fine-tuning
#
# CoGraM moves weights by comparing losses. If the merged network is to be trained further, the paper
# precedes the fine-tuning by a **gradient kickoff**: fewer than ten epochs at two to three times the rate, by
# Adam {cite}`kingma2015adam` or by SGD with momentum (typically 0.9), gradients clipped if need be. Then the rate goes
# down. In the package that is two calls:

# %%
from mergelib.cogram import fine_tune, kickoff

merged = far.cogram(far.fisher, far.prototypes("arithmetic")).state
common = {"model": far.model, "data": {"all": far.together}, "heads": {"all": nn.Identity()}}
options = {"optimiser": "sgd", "momentum": 0.9, "clip": 1.0, "learning_rate": 0.02, "seed": SEED}
kicked = kickoff(merged, epochs=8, factor=2.5, **options, **common)
tuned = fine_tune(kicked.state, epochs=20, **options, **common)
stages = {"CoGraM": merged, "after the kickoff": kicked.state, "after fine-tuning": tuned.state}
accuracies = {name: 100 * far.accuracy(state) for name, state in stages.items()}
pd.Series(accuracies, name="test accuracy, %").round(1)

# %% [markdown]
# Two thousand labelled examples and gradients do more on this seed than the choice between layers did. Whether the merge
# or the kickoff has any part in it takes controls and seeds, which the next chapter has.
#
# ## On your own checkpoints
#
# Call `ml.adapt("cogram", ...)` as in the toy above, with a few hundred labelled examples. The recipe:
#
# 1. Look at the merge to start from. If it is much worse than the parents, they may not be aligned, and
#    CoGraM over layers will probably walk to a parent: try aligning them first {cite}`ainsworth2023git`.
# 2. Run with `levels=("layer",)` on real examples, and read the log: the $\alpha$, and whether the loss rose.
#    `rollback=("layer", "neuron", "weight")` forbids that.
# 3. Only then go finer, with a validation set beside the examples that decide, and a steepness that fits the
#    differences in the log.
#
# Layers such as BatchNorm, embeddings and tied weights have no neurons in this sense and are merged as wholes.
#
# ## When to use it, and when not
#
# **Use it** for networks of one architecture and one task, with labelled data of both parties in one place and without a
# wish to train: its log shows which layers of which parent matter. **Do not use it** where gradients are affordable, with
# prototypes that the network cannot recognise, or to merge independently trained networks that should *both* survive.
#
# The paper's claims are measured in [](31-cogram-experiments) and judged in the
# [](90-claims-ledger); where its text contradicts itself or leaves out what one needs, the [](../book/errata) say so.
#
# ## Exercises
#
# ```{exercise} The permuted twin (easy)
# :label: ex-cogram-twin
# Let $W_1 = W_2 = 2 I$ in A, and let B be A with its two hidden neurons exchanged, so that both compute the same function.
# M is the average. What does a pass over layers do, and why? What if M's last layer is moved a little towards A's?
# ```

# %% [markdown]
# ````{solution-start} ex-cogram-twin
# :class: dropdown
# ````
# In the average both hidden neurons do the same, all margins are zero, and the loss is $\ln 2$ with either candidate:
# $\Delta L = 0$, $\alpha = \frac12$, for ever. The smallest lean breaks the tie, and then the first layer follows it.

# %%
twin = {"A": {"0.weight": 2 * torch.eye(2), "2.weight": 2 * torch.eye(2)}}
twin["B"] = {"0.weight": 2 * torch.eye(2).flip(0), "2.weight": 2 * torch.eye(2).flip(1)}
middle = ml.merge("average", twin)
leaning = {**middle, "0.weight": ml.lerp(middle, twin["A"], 0.1)["0.weight"]}
corners = {
    "model": toy,
    "heads": {"toy": nn.Identity()},
    "data": {"toy": (torch.eye(2), torch.arange(2))},
}
for begin in (middle, leaning):
    passed = ml.adapt("cogram", twin, start=begin, iterations=2, **corners)
    print(passed.history["alpha A"].round(3).tolist())

# %% [markdown]
# ````{solution-end}
# ````
#
# ```{exercise} Three networks (medium)
# :label: ex-cogram-three
# Show that merging three networks "in pairs", first A with B and then the result with C, depends on the order, while the
# softmax does not. Take losses 0.1, 0.2 and 0.3, steepness 5.5, and suppose that a mixture's loss is the mean of its parts' by
# their weights.
# ```

# %% [markdown]
# ````{solution-start} ex-cogram-three
# :class: dropdown
# ````
# In pairs the last one to come competes alone against a mixture, and gets too much.

# %%
from mergelib.cogram.decisions import mixing_weights

three = torch.tensor([0.1, 0.2, 0.3], dtype=torch.float64)
print("softmax:", [round(value, 3) for value in mixing_weights(three, 5.5).tolist()])
for order in ([0, 1, 2], [2, 1, 0]):
    mixed = torch.eye(3, dtype=torch.float64)[order[0]]
    for newcomer in order[1:]:
        rivals = torch.stack([mixed @ three, three[newcomer]])
        share = mixing_weights(rivals, 5.5)[0]
        mixed = share * mixed + (1 - share) * torch.eye(3, dtype=torch.float64)[newcomer]
    print("".join("ABC"[i] for i in order), [round(value, 3) for value in mixed.tolist()])

# %% [markdown]
# ````{solution-end}
# ````
#
# ```{exercise} Neurons that choose (hard)
# :label: ex-cogram-steep
# At steepness 5.5, neurons are averaged, not chosen. Raise the steepness to some hundreds at the neuron level, on the pair
# with the same start. Does the loss on the batch fall further? Does accuracy on validation data follow?
# ```

# %% [markdown]
# ````{solution-start} ex-cogram-steep
# :class: dropdown
# ````
# The training data of both decide, not a few prototypes.

# %%
answers = {}
for steepness in (0.0, 5.5, 50.0, 500.0, 5000.0):
    options = {"levels": ("neuron",), "order": "sequential", "steepness": steepness}
    state = pair.cogram(pair.fisher, everything, **options).state
    answers[f"λ = {steepness:g}"] = {
        "loss": pair.loss(state, Split(*pair.together)),
        "validation loss": pair.loss(state, pair.data.validation),
        "validation, %": 100 * pair.accuracy(state, pair.data.validation),
    }
pd.DataFrame(answers).T.round(3)

# %% [markdown]
# Up to some hundreds the loss on the data that decide falls further. The differences are small, and whether validation
# data follow, one seed cannot say.
# ````{solution-end}
# ````
#
# ## Summary
#
# * CoGraM judges each part in its place: M with A's version against M with B's, on labelled data, without gradients.
# * The mixing factor is a softmax of losses in nats. At one steepness for all levels, weights and neurons are
#   averaged, and layers of unrelated networks are chosen outright.
# * Rollback guarantees that the loss on the evaluation data never rises at the finer levels. Layers have none.
# * Networks that started apart are not merged by a pass over layers: the first decision settles
#   which parent it walks towards.
# * The geometric mean of magnitudes forgets signs. On features around zero class means or k-means centres are recognised,
#   and it is not; on positive features the objection falls away.
