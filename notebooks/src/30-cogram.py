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

# %% tags=["parameters", "remove-cell"]
SUITE = "digits2"
PROFILE = "default"
SEED = 0
DEVICE = "cpu"

# %% tags=["remove-cell"]
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import torch
from IPython.display import Markdown, display
from scipy.special import expit

from mergebook import load_suite, plots
from mergebook.cogram.pairs import make_pair
from mergebook.lab.results import load_table
from mergebook.plots import BLUE, GREEN, GREY, PURPLE, VERMILION
from mergebook.suites.models import scale_pixels
from mergelib.cogram import prototypes

torch.set_num_threads(1)  # threads slow down networks this small
plots.use_style()
EXACT = (PROFILE, SEED) == ("default", 0)  # the text's live numbers are of these

# %% tags=["remove-cell"]
stored = {"synthetic data": "synthetic-fusion", "digits": "digits-fusion"}
places = {}
for name, file in stored.items():
    rows = load_table(file).query("levels == 'layer' and prototypes == 'arithmetic'")
    rows = rows[(rows["method"] == "cogram") & (rows["data"] != "unequal")]
    places[name] = rows.set_index(["iterations", "start", "data", "seed"])["toward_a"].sort_index()
at_parent = {
    name: (each.loc[3, "own"] - 0.5).abs().gt(0.45).agg(["sum", "size"])
    for name, each in places.items()
}
middle = places["synthetic data"].loc[3, "common"]
decided = load_table("synthetic_positive-fusion", "decisions")
decided = decided.query("levels == 'layer' and iterations == 1")
rises = decided.assign(rose=decided["after"] > decided["before"])
rises = rises.groupby(["prototypes", "start"])["rose"].agg(["sum", "size"])

# %% tags=["remove-cell"]
pairs = {
    start: make_pair(SEED, "synthetic", "heterogeneous", shared=start == "common")
    for start in ("common", "own")
}
runs = {start: each.cogram(each.fisher, {"all": each.together}) for start, each in pairs.items()}
related = pairs["common"]
judges = {"neuron": {"all": related.together}, "weight": related.prototypes("kmeans")}
turns = {
    level: related.cogram(related.fisher, data, levels=(level,), order="sequential")
    for level, data in judges.items()
}
seen = {
    "weights": turns["weight"].history,
    "neurons": turns["neuron"].history,
    "layers, common": runs["common"].history,
    "layers, separate": runs["own"].history,
}
medians = {name: each["spread"].median() for name, each in seen.items()}

# %% tags=["remove-cell"]
foreign = {}
for start, each in pairs.items():
    keys = [key.rpartition(".")[0] for key in each.a if key.endswith("weight")]
    training = type(each.data.test)(*each.together)
    for layer in keys:
        other = {k: (each.b if k.rpartition(".")[0] == layer else each.a)[k] for k in each.a}
        foreign[start, layer] = each.loss(other, training) - each.loss(each.a, training)

# %% tags=["remove-input"] mystnb={"figure": {"caption": "CoGraM over layers ends at one of two separately initialised networks. Projection of the merged network onto the line from B to A, one mark for each of 30 seeds per row. Both networks' data come from one distribution (homogeneous) or each from its own (heterogeneous). Class means, λ = 5.5.", "name": "fig-cogram-collapse"}, "image": {"alt": "Two panels, synthetic data and digits, with four rows of marks on the line from B to A. In the two rows of separate initialisations, marks of one pass crowd at both ends with some between, and marks of three passes stand only at the ends. In the rows of a common initialisation the synthetic marks stand at one half, and on digits they spread widely around it."}}
fig, axes = plt.subplots(1, 2, figsize=(6.9, 3.2), sharey=True)
passes = {1: ("one pass", -0.2, BLUE, "white"), 3: ("three passes", 0.2, VERMILION, VERMILION)}
starts = {"own": "separate", "common": "common"}
cases = [(start, data) for start in starts for data in ("homogeneous", "heterogeneous")]
for ax, (name, place) in zip(axes, places.items(), strict=True):
    for count, (words, shift, edge, face) in passes.items():
        for row, case in enumerate(cases):
            values = place.loc[(count, *case)]
            height = row + shift + np.linspace(-0.12, 0.12, len(values))
            style = {"ms": 4.5, "mec": edge, "mfc": face, "alpha": 0.8, "clip_on": False}
            ax.plot(values, height, "o", **style, label=words)
    ax.axvline(0.5, color=GREY, lw=1)
    ax.set_title(name, fontsize=12, weight="normal")
    ax.set_xticks([0, 0.5, 1], ["B", "½", "A"])
plots.name_axis(axes[0], [f"{starts[start]},\n{data}" for start, data in cases])
plots.legend_outside(fig, ncols=2)
title = "Separately initialised: CoGraM ends at one of the two parents"
fig.suptitle(title, fontsize=13, weight="bold", x=0.01, ha="left")
plt.show()

# %% tags=["remove-input"]
ends = [f"{sums['sum']} of {sums['size']}" for sums in at_parent.values()]
display(
    Markdown(f"""
* **CoGraM compares two networks part by part, without gradients.** It puts A's and B's version of a layer, neuron or
  weight into a merged network M, and mixes both by their losses on labelled data.
* **Separately initialised networks are not merged by layers.** After three passes {ends[0]} synthetic pairs and {ends[1]}
  of digits lie at one of the two networks, within 5 % of the distance from B to A. With a common initialisation synthetic pairs stay at
  {middle.min():.2f} to {middle.max():.2f} of it, and pairs on digits spread out.
* **One steepness does not fit all levels.** A neuron's two versions differ by {medians["neurons"]:.3f} nats (median of one pair),
  so neurons are averaged whichever is better.
""")
)

# %% [markdown]
# **Use it when** you have two networks of one architecture for one task, labelled data of both in one place, and no way to
# train. **Do not use it** to combine separately initialised networks, or on prototypes that the networks misclassify.
#
# **You need first:** [](02-averaging-and-task-vectors), and Fisher merging from [](20-adapting-with-data). **Time:** 15
# minutes with the exercises, half a minute to run.
#
# ## Each part is judged in its place
#
# CoGraM {cite}`lenz2025cogram` gets two networks A and B that have learned the *same* classes, each from its own data, and a
# network M of the same shape that was merged from them, for example by Fisher merging. The motive is federated learning.
# The method, however, needs labelled examples of both parties, or at least labelled prototypes, in one place.
#
# A layer has no quality of its own, because the layers after it read its output. CoGraM therefore puts A's layer into M,
# leaves everything else as it is, and computes the loss, and then does the same with B's layer (the paper's Eqs. 2 and 3):
#
# $$
# L_n = \frac1C \sum_{c=1}^{C} -\ln p(y_c \mid \tilde x_c; M_n),
# \qquad \Delta L = L_A - L_B ,
# $$ (eq-cogram-loss)
#
# where $M_n$ is M with this part from network $n$ and $\tilde x_c$ is an example or a prototype. For regression the mean
# squared error takes its place (`loss="mse"`). The sigmoid $\sigma$ turns the difference into a **mixing factor**, and the
# mixture replaces M's part (Eqs. 4 to 6):
#
# $$
# \alpha = \sigma(-\lambda\, \Delta L) = \frac{1}{1 + e^{\lambda \Delta L}}, \qquad
# W = \alpha\, W_A + (1 - \alpha)\, W_B .
# $$ (eq-cogram-alpha)
#
# The **steepness** $\lambda$ is 5.5 in the paper. M's own part is *not* in the mixture, so M is only the context.

# %% tags=["remove-cell"]
BOXES = [  # x, y, width, height, colour, text
    (0.0, 6.7, 3.2, 1.1, BLUE, "M with A's part"),
    (0.0, 5.0, 3.2, 1.1, GREEN, "M with B's part"),
    (4.2, 5.85, 2.1, 1.1, GREY, "ΔL = $L_A - L_B$"),
    (8.2, 5.7, 1.8, 1.4, VERMILION, "next finer\nlevel"),
    (3.5, 3.3, 3.8, 1.4, PURPLE, "mix: α A + (1 − α) B\nα = σ(−λ ΔL)"),
    (3.9, 1.35, 3.0, 1.1, GREY, "did M's loss fall?"),
    (0.0, 1.35, 2.2, 1.1, GREEN, "accept"),
    (8.0, 1.35, 2.0, 1.1, VERMILION, "roll back"),
]
LABELS = [  # x, y, text
    (3.7, 7.3, "$L_A$"),
    (3.7, 5.0, "$L_B$"),
    (7.25, 6.6, "outside\nτ min … τ max"),
    (7.15, 4.95, "within, or no finer level"),
    (6.2, 2.72, "put into M"),
    (3.05, 2.05, "yes, or\nit is a layer"),
    (7.45, 2.05, "no"),
    (5, 0.3, "then the next part, and after the first layer the next pass"),
]
COLUMNS = [  # x, title, and how many parts down and across
    (0.3, "layers, last one first", 1, 4),
    (3.9, "neurons of a layer", 4, 1),
    (7.5, "weights of a neuron", 4, 5),
]

# %% tags=["remove-cell"]
ARROWS = [  # from x, y to x, y
    (3.25, 7.25, 4.15, 6.4),
    (3.25, 5.55, 4.15, 6.4),
    (6.35, 6.4, 8.15, 6.4),
    (5.4, 5.8, 5.4, 4.75),
    (5.4, 3.25, 5.4, 2.5),
    (3.85, 1.9, 2.25, 1.9),
    (6.95, 1.9, 7.95, 1.9),
]


def box(ax, x, y, wide, high, shade, text):
    """Draw a rounded box with a text in it."""
    round_box = plt.matplotlib.patches.FancyBboxPatch(
        (x, y), wide, high, "round,pad=0,rounding_size=0.08", ec=shade, fc=(shade, 0.12), lw=1.2
    )
    ax.add_patch(round_box)
    ax.text(x + wide / 2, y + high / 2, text, ha="center", va="center")


def arrow(ax, x, y, to_x, to_y):
    """Draw an arrow from one point to another."""
    style = {"arrowstyle": "-|>", "lw": 1.4, "color": plots.DARK}
    ax.annotate("", xy=(to_x, to_y), xytext=(x, y), arrowprops=style)


# %% tags=["remove-input"] mystnb={"figure": {"caption": "CoGraM refines a decision where the loss difference is outside the thresholds of its level. Above, the levels, after the paper's Figure 1. Below, one decision, after its Figure 2, with the rollback added.", "name": "fig-cogram-algorithm"}, "image": {"alt": "Above, four layers of which the last is refined into four neurons, and the first neuron into five weights. Below, a flow chart: M with A's part and M with B's part give two losses and their difference. Outside the thresholds it leads to the next finer level, otherwise to a mixture of A and B. If M's loss fell, or the part is a layer, the mixture is accepted, otherwise rolled back."}}
figure, (top, bottom) = plt.subplots(2, 1, figsize=(6.9, 7.2), height_ratios=[1, 1.75])
top.set(ylim=(0, 4.1), title="From coarse to fine")
bottom.set(ylim=(0, 8.4), title="One decision, at any level")
for x, name, down, across in COLUMNS:
    high, wide = 2.6 / down, 2.2 / across
    for row, column in np.ndindex(down, across):
        shade = VERMILION if (row, column) == (0, across - 1) else BLUE
        place = x + column * wide, 3.3 - (row + 1) * high
        box(top, *place, 0.86 * wide, high - 0.14, shade, "")
    top.text(x + 1.05, 3.5, name, ha="center")
for x in (2.55, 6.15):
    arrow(top, x, 2.0, x + 1.25, 2.0)
    top.text(x + 0.62, 2.15, "refine", ha="center")
rule = "refine where |ΔL| < τ min (uncertain) or |ΔL| > τ max (too coarse)"
top.text(5, 0.1, rule, ha="center")
for each in BOXES:
    box(bottom, *each)
for each in ARROWS:
    arrow(bottom, *each)
for x, y, text in LABELS:
    bottom.text(x, y, text, ha="center", va="bottom", fontsize=11)
plt.setp((top, bottom), xlim=(0, 10))
for ax in (top, bottom):
    ax.axis("off")
plt.show()

# %% [markdown]
# ```{prf:algorithm} CoGraM
# :label: alg-cogram
# **Inputs** networks A and B, initial M, labelled examples or prototypes, steepness $\lambda$, levels, thresholds.
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
# A neuron is an output unit with its incoming weights and its bias. Step 4 is Eq. 7. A second pass starts from the M of the
# first (Eq. 8). The paper's experiments use layers only, so they have neither thresholds nor rollback.
#
# ## A worked example with two neurons
#
# Two networks have two inputs, two hidden ReLU neurons, two classes and no biases. Example 1 is $(1, 0)$, example 2 is
# $(0, 1)$, and each is its own class:
#
# $$
# \begin{aligned}
# A&: & W_1 &= \begin{pmatrix} 2 & 0 \\ 1 & 1 \end{pmatrix}, & W_2 &= \begin{pmatrix} 2 & 0 \\ 0 & 2 \end{pmatrix}, \\
# B&: & W_1 &= \begin{pmatrix} 1 & 1 \\ 0 & 2 \end{pmatrix}, & W_2 &= \begin{pmatrix} 1 & 0 \\ 0 & 1 \end{pmatrix}, \\
# M&: & W_1 &= \begin{pmatrix} 1.5 & 0.5 \\ 0.5 & 1.5 \end{pmatrix}, & W_2 &= \begin{pmatrix} 1.5 & 0 \\ 0 & 1.5 \end{pmatrix}.
# \end{aligned}
# $$
#
# A's neuron 1 responds to example 1 only, and B's neuron 2 to example 2 only. M is the average. Both examples
# have the same **margin** $m$, the correct logit minus the other, so the loss is $\ln(1 + e^{-m})$. At the start
# $m = 1.5\,(1.5 - 0.5) = 1.5$ and the loss is 0.201.
#
# | decision | $m$ with A's part | $m$ with B's part | $\Delta L$ | $\alpha$ | result |
# |---|---:|---:|---:|---:|---|
# | last layer | $2 \cdot 1 = 2$ | $1 \cdot 1 = 1$ | −0.186 | 0.736 | $1.736\, I$ |
# | first layer | $1.736 \cdot 1$ | $1.736 \cdot 1$ | 0 | – | uncertain |
# | neuron 1 | $1.736 \cdot 1.5 = 2.604$ | $1.736 \cdot 0.5 = 0.868$ | −0.279 | 0.823 | (1.823, 0.177) |
# | neuron 2 | $1.736 \cdot 0.823 = 1.428$ | $1.736 \cdot 1.823 = 3.164$ | 0.174 | 0.278 | (0.278, 1.722) |
#
# The two first layers are equally good as wholes ($|\Delta L| < \tau_{\min} = 0.05$), so each neuron is decided alone, and taken mainly from the better
# network. The library takes the same steps:

# %%
import math

import torch
from torch import nn

import mergelib as ml

toy = nn.Sequential(nn.Linear(2, 2, bias=False), nn.ReLU(), nn.Linear(2, 2, bias=False))
A = {"0.weight": torch.tensor([[2.0, 0], [1, 1]])}
B = {"0.weight": torch.tensor([[1.0, 1], [0, 2]])}
A["2.weight"], B["2.weight"] = 2 * torch.eye(2), torch.eye(2)
result = ml.adapt(
    "cogram",
    {"A": A, "B": B},
    model=toy,
    heads={"toy": nn.Identity()},
    data={"toy": (torch.eye(2), torch.arange(2))},
    start=ml.merge("average", {"A": A, "B": B}),
    levels=("layer", "neuron"),
    thresholds={"layer": (0.05, math.inf)},
    iterations=2,
)

# %% tags=["remove-input"]
log = result.history
where = {"2": "last layer", "0": "first layer"}
names = [
    where[layer] if level == "layer" else f"neuron {int(unit) + 1}"
    for layer, level, unit in zip(log["layer"], log["level"], log["unit"], strict=True)
]
shown = log[["loss A", "loss B", "alpha A", "after"]].round(3).assign(kept=log["accepted"])
shown = shown.astype(object).where(shown.notna(), "–")
words = ["loss with A's part", "loss with B's part", "α", "loss after", "kept"]
shown.set_axis(words, axis=1).set_axis(names).head(4)

# %% tags=["remove-input"] mystnb={"figure": {"caption": "The second pass loses a part of what the first gained at the last layer, which has no rollback. The toy's loss, one point per decision. Filled, accepted; hollow, the loss that would have followed, rolled back.", "name": "fig-cogram-toy"}, "image": {"alt": "A falling staircase in the first pass, from 0.20 to 0.07 in three accepted steps, with the first layer left to its neurons. In the second pass the last layer's merge raises the loss a little, the first neuron's mixture would raise it further and is rolled back, and the second neuron's lowers it by very little."}}
fig, ax = plt.subplots(figsize=(6.6, 3.4))
stays = np.where(log["accepted"], log["after"], log["before"])
ax.step(range(len(log) + 1), [log["before"][0], *stays], where="post", color=BLUE, lw=1.5)
for row, (after, accepted) in enumerate(zip(log["after"], log["accepted"], strict=True), 1):
    edge, face = (BLUE, BLUE) if accepted else (VERMILION, "white")
    ax.plot(row, after, "o", ms=8, mec=edge, mfc=face)
for row in log.index[log["case"] == "uncertain"]:
    text = "left to its\nneurons"
    ax.text(row + 1, stays[row] - 0.012, text, ha="center", va="top", fontsize=11)
ax.axvline(len(log) / 2 + 0.5, color=GREY, ls=":", lw=1.5)
for side, words in (("right", "pass 1 "), ("left", " pass 2")):
    ax.text(len(log) / 2 + 0.5, 0.95 * log["before"][0], words, ha=side)
ax.set(ylabel="loss of M, nats", ylim=(0, None), title="The second pass raises the loss")
ax.set_xticks(range(len(log) + 1), ["start", *names], rotation=40, ha="right")
plt.show()

# %% [markdown]
# The differences are smaller in the second pass, so all mixing factors move back towards $\frac12$. At the last layer, the mixture is then worse than M's
# own layer, and the loss rises. Rollback prevents this at neuron 1.
#
# ## A pass over layers walks to one parent
#
# Hidden neuron 17 of A and of B tend to do similar jobs if both networks were trained from the same initial weights. With
# separate initialisations each network has its own order of neurons, and A's upper layers cannot read B's first layer.
#
# ```{prf:proposition} A parent is almost a fixed point
# :label: prop-cogram-collapse
# Let all layers of M but one hold A's values. Then candidate A for this layer is network A itself, and the
# decision sets the layer to $W_A + (1 - \alpha)(W_B - W_A)$ with
#
# $$ 1 - \alpha < e^{-\lambda\, d}, \qquad d = L_B - L_A , $$ (eq-cogram-parent)
#
# where $d$ is what it costs A to have this one layer replaced by B's.
# ```
#
# ```{prf:proof}
# The first part is the definition of the candidates. By {eq}`eq-cogram-alpha`,
# $1 - \alpha = 1 / (1 + e^{\lambda d}) < e^{-\lambda d}$.
# ```

# %% tags=["remove-input"]
titles = {"common": "common initialisation", "own": "separate initialisations"}
rows = {titles[start]: [foreign[start, "2"], foreign[start, "0"]] for start in pairs}
rows = pd.DataFrame(rows, index=["last layer from B", "first layer from B"]).T.round(2)
rows.rename_axis("increase of A's loss, nats (one pair)")

# %% tags=["remove-input"]
cost = min(foreign["own", layer] for layer in ("0", "2"))
display(
    Markdown(f"""
With separate initialisations *d* is at least {cost:.2f} nats for this pair, so from A a decision moves a layer by less than a
billionth of the way to B. The same holds for B. Once M is near one of both, every later decision keeps it there, and repeated passes end at one.
With a common initialisation *d* is negative for this pair: one layer of B even lowers A's loss on the data of both, and A is not a
fixed point.
""")
)

# %% [markdown]
# ## The mixing factor averages neurons and selects layers
#
# ```{prf:proposition} The mixing factor
# :label: prop-cogram-alpha
# 1. $\alpha$ depends only on the difference of the losses, in nats. Halving both losses has the effect of halving $\lambda$.
# 2. $\alpha = e^{-\lambda L_A} / (e^{-\lambda L_A} + e^{-\lambda L_B})$, the softmax of $-\lambda L_n$.
# 3. $\alpha$ is within $\delta$ of 0 or 1 exactly when $\lambda\,|\Delta L| \ge \ln\frac{1-\delta}{\delta}$. At
#    $\lambda = 5.5$ and $\delta = 0.1$ this needs 0.4 nats.
# ```
#
# The figure compares this curve with the differences that occur on a pair of synthetic networks
# ([proof](32-cogram-proofs)).

# %% tags=["remove-input"] mystnb={"figure": {"caption": "At λ = 5.5 weights and neurons are averaged, and layers of separately initialised networks are selected. The curve is the mixing factor as a function of the loss difference. Below it, the differences that occur at each level (one seed, heterogeneous synthetic data).", "name": "fig-cogram-alpha"}, "image": {"alt": "A falling S-curve that runs from one at minus one nat through one half at zero to zero at plus one nat. The marks of weights and neurons all sit at zero, where the curve is at one half. Layers of networks with a common initialisation lie within a tenth of a nat of it. Layers of separately initialised networks lie on its flat end."}}
fig, ax = plt.subplots(figsize=(6.9, 3.9))
grid, end = np.linspace(-1.6, 1.6, 401), 1.6
ax.plot(grid, expit(-5.5 * grid), color=PURPLE)
looks = zip(seen.items(), (BLUE, VERMILION, GREEN, PURPLE), strict=True)
for row, ((name, part), shade) in enumerate(looks):
    gaps, height = (part["loss a"] - part["loss b"]).clip(-end, end), -0.16 - 0.16 * row
    ax.plot(gaps, np.full(len(gaps), height), "|", ms=11, mew=1.6, color=shade)
    ax.text(1.68, height, name, va="center", fontsize=11)
ax.axhline(0, color=GREY, lw=0.8)
ax.set(xlabel="ΔL, nats (larger values drawn at the ends)", ylabel="α, weight of A")
ax.set(xlim=(-1.65, 1.65), ylim=(-0.75, 1.05), yticks=[0, 0.25, 0.5, 0.75, 1])
ax.set_title("At λ = 5.5 neurons are averaged and separate layers selected")
plt.show()

# %% tags=["remove-input"]
display(
    Markdown(f"""
The median difference is {medians["weights"]:.5f} nats for weights, {medians["neurons"]:.4f} for neurons, and
{medians["layers, common"]:.2f} and {medians["layers, separate"]:.1f} for layers with a common and with
separate initialisations. So at the finer levels the proposal is always the average of both, and the only real decision is
whether to accept it. A steepness for neurons must be of the order of one over their differences, some hundreds (see the
exercises).
""")
)

# %% [markdown]
# (cogram-no-rollback)=
# ## Rollback protects the finer levels only
#
# ```{prf:proposition} The loss does not rise at the finer levels
# :label: prop-cogram-monotone
# At the levels of neurons and weights, in either order, the loss of M on the evaluation data never rises. Without
# the layer level, or with a rollback at layers, it never rises over any number of passes.
# ```

# %% tags=["remove-input"]
display(
    Markdown(f"""
It holds only on the data that decide. Layers, the only level of the paper's figures, have no rollback.
With class means of positive features as data, the loss rose in {rises.loc[("arithmetic", "own"), "sum"]} of
{rises.loc[("arithmetic", "own"), "size"]} decisions on layers with separate initialisations and in
{rises.loc[("arithmetic", "common"), "sum"]} of {rises.loc[("arithmetic", "common"), "size"]} with a common one (one pass,
60 pairs each).
""")
)

# %% [markdown]
# ## Prototypes and the position of zero
#
# The paper replaces the data by one **prototype** per class. Its Eq. 1 is the geometric mean of magnitudes over the
# examples $S_c$ of a class,
#
# $$ \tilde x_c = \Bigl( \prod_{x \in S_c} (|x| + \varepsilon) \Bigr)^{1/|S_c|} , $$ (eq-cogram-prototype)
#
# with a small $\varepsilon > 0$. The paper's reason is robustness {cite}`vogel2022geometric`. Its outlook names k-means centres
# {cite}`macqueen1967some,lloyd1982least` and medoids {cite}`kaufman1990finding`, and `prototypes(kind=...)` offers all of them.
#
# ```{prf:proposition} The geometric mean ignores signs
# :label: prop-cogram-sign
# 1. Flipping the sign of any feature of any example changes no prototype. Two classes that are mirror
#    images of each other have the same prototype.
# 2. Means, medoids and k-means centres of $a x + b$ with $a > 0$ are $a \tilde x + b$.
#    For the geometric mean this fails unless $b = 0$.
# ```
#
# Pixels in $[-1, 1]$ are a case in point, because black and white both have magnitude 1:

# %% tags=["remove-cell"]
suite = load_suite(SUITE, seed=SEED, profile=PROFILE)
training = next(iter(suite.tasks.values())).train
scales = {-1: scale_pixels(training.inputs), 0: training.inputs.float() / 255}
kinds = {"class mean": "arithmetic", "geometric mean": "geometric", "medoid": "medoid"}
sides = {
    low: {
        name: prototypes(pixels, training.labels, kind=kind, seed=SEED)[0][:5]
        for name, kind in kinds.items()
    }
    for low, pixels in scales.items()
}

# %% tags=["remove-input"] mystnb={"figure": {"caption": "Only the geometric mean depends on the position of zero. Prototypes of five classes of images, from pixels in [−1, 1] (left) and in [0, 1] (right).", "name": "fig-cogram-gallery"}, "image": {"alt": "Class means and medoids are readable digits and the same on both sides. The geometric mean on the scale from minus one to one is a pale outline on white, with ink and paper of the same brightness. From zero to one it is a thin digit on black."}}
fig, axes = plt.subplots(1, 2, figsize=(6.9, 2.6))
for ax, (low, rows) in zip(axes, sides.items(), strict=True):
    frame = ((0, 0), (0, 0), (0, 3), (0, 3))
    framed = [np.pad(np.asarray(each), frame, constant_values=1) for each in rows.values()]
    whole = np.concatenate([np.concatenate(list(each), 2) for each in framed], 1)
    ax.imshow(((whole.transpose(1, 2, 0) - low) / (1 - low)).clip(0, 1), cmap="gray")
    ax.set_yticks([16 + 35 * k for k in range(len(rows))], [*rows])
    ax.set_xticks([])
    ax.tick_params(length=0)
    ax.grid(visible=False)
    ax.spines[:].set_visible(False)
    ax.set_title(f"pixels in [{low}, 1]", fontsize=12, weight="normal")
axes[1].set_yticks([])
fig.suptitle("On [−1, 1] the geometric mean loses the digits", fontsize=13, weight="bold")
plt.show()

# %% [markdown]
# ```{admonition} Takeaway: use class means
# :class: tip
# On features around zero the geometric mean destroys the prototypes, and on positive features it is as good as class means
# ({ref}`experiments <cogram-positive>`). Class means or a few k-means centres per class work on both.
# ```
#
# ## Choices that the paper leaves open
#
# | open in the paper | here |
# |---|---|
# | state of a refined layer before its neurons are judged | as in M; the [other reading](#cogram-readings) ends in another network |
# | whether later decisions see earlier ones | `order="sequential"` (default) or `"simultaneous"` with a second check; [some decisions differ](#cogram-orders) |
# | the last level's thresholds | none, everything there is mixed |
# | more than two networks | softmax of $-\lambda L_n$; merging in pairs depends on the order |
# | **gradient kickoff** before fine-tuning | `mergelib.cogram.kickoff` and `fine_tune`: 8 epochs at 2.5 times the rate, then 20 |
#
# ## On your own checkpoints
#
# Call `ml.adapt("cogram", ...)` as above, with a few hundred labelled examples.
#
# 1. Compare the initial M with both parents. If it is much worse, the networks are not aligned. Align them first
#    {cite}`ainsworth2023git`.
# 2. Run `levels=("layer",)` with `rollback=("layer", "neuron", "weight")`, and read the mixing factors in the history: near 0 or 1, layers are selected, not mixed.
# 3. Go finer only with a validation set, and with a steepness that fits the differences in the history.
# 4. Compare with the better parent and with the plain average, on validation data.
#
# BatchNorm layers, embeddings and tied weights have no neurons in this sense and are merged as wholes.
#
# ## Check against known values

# %% tags=["hide-input", "nbval-check-output"]
import math

losses = [[math.log1p(math.exp(-m)) for m in pair] for pair in ((2, 1), (1.736 * 1.5, 1.736 * 0.5))]
by_hand = [1 / (1 + math.exp(5.5 * (a - b))) for a, b in losses]
log = result.history
print("by hand:", [f"{value:.3f}" for value in by_hand])
print("library:", [f"{log['alpha A'][row]:.3f}" for row in (0, 2)])
print("cases:", ", ".join(log["case"][:4]))

# %% tags=["remove-cell"]
assert abs(log["alpha A"][0] - by_hand[0]) < 1e-12
assert np.allclose(log["alpha A"][[2, 3]], [0.823, 0.278], atol=5e-4)
gaps = (log["loss A"] - log["loss B"])[:4]
assert np.allclose(gaps, [-0.186, 0, -0.279, 0.174], atol=5e-4)
assert log["after"][4] > log["before"][4], "the loss rises at the last layer of pass 2"
assert abs(log["before"][0] - 0.201) < 5e-4
assert all(sums["sum"] == sums["size"] == 60 for sums in at_parent.values())
for part in turns.values():
    kept = part.history[part.history["accepted"]]
    assert (kept["after"] < kept["before"]).all()
if EXACT:
    assert medians["neurons"] < 0.01
    assert np.exp(-5.5 * cost) < 1e-9
    assert max(foreign["common", layer] for layer in ("0", "2")) < 0

# %% [markdown]
# ## Exercises
#
# ```{exercise} Permuted neurons (easy)
# :label: ex-cogram-twin
# Let $W_1 = W_2 = 2 I$ in A, and let B be A with its two hidden neurons exchanged, so that both compute the same function.
# M is the average. What does a pass over layers do, and why? What if M's first layer is moved a little towards A's?
# ```

# %% [markdown]
# ````{solution-start} ex-cogram-twin
# :class: dropdown
# ````
# Both hidden neurons of the average do the same, all margins are zero, and the loss is $\ln 2$ with either candidate:
# $\Delta L = 0$ and $\alpha = \frac12$ in every pass. A small lean of the first
# layer breaks the tie. The last layer leans to A, and the first layer follows.

# %%
eye, flip = 2 * torch.eye(2), 2 * torch.eye(2).flip(0)
twin = {
    "A": {"0.weight": eye, "2.weight": eye},
    "B": {"0.weight": flip, "2.weight": flip},
}
average = ml.merge("average", twin)
leaning = ml.lerp(average, twin["A"], 0.1)
leaning["2.weight"] = average["2.weight"]
for initial in (average, leaning):
    passed = ml.adapt(
        "cogram",
        twin,
        start=initial,
        iterations=2,
        model=toy,
        heads={"toy": nn.Identity()},
        data={"toy": (torch.eye(2), torch.arange(2))},
    )
    print(passed.history["alpha A"].round(3).tolist())

# %% [markdown]
# ````{solution-end}
# ````
#
# ```{exercise} Neurons that choose (hard)
# :label: ex-cogram-steep
# At steepness 5.5, neurons are averaged, not chosen. Raise the steepness to some hundreds at the neuron level, on the pair
# with a common initialisation. Does the loss on the deciding data fall further? Does accuracy on validation data follow?
# ```

# %% [markdown]
# ````{solution-start} ex-cogram-steep
# :class: dropdown
# ````
# The training data of both networks decide, not a few prototypes.

# %%
from mergebook.cogram.pairs import make_pair
from mergelib.evaluation.tasks import Split

pair = make_pair(SEED, "synthetic", "heterogeneous", shared=True)
training = {"all": pair.together}
rows = {}
for steepness in (0.0, 5.5, 50.0, 500.0, 5000.0):
    options = {"levels": ("neuron",), "order": "sequential"}
    options["steepness"] = steepness
    state = pair.cogram(pair.fisher, training, **options).state
    validation = pair.accuracy(state, pair.data.validation)
    rows[f"λ = {steepness:g}"] = {
        "training loss, nats": pair.loss(state, Split(*pair.together)),
        "validation accuracy, %": 100 * validation,
    }
pd.DataFrame(rows).T.round(3)

# %% [markdown]
# The loss on the deciding data falls further up to some hundreds. The differences are small, and one seed
# cannot show whether validation data follow.
# ````{solution-end}
# ````
#
# ## Summary
#
# * CoGraM judges each part in its place, and mixes two versions by a softmax of their losses.
# * Neurons and weights are averaged, with a rollback. Layers have none, and layers of separately initialised networks are
#   selected, so that a pass walks to one parent.
# * The geometric mean ignores signs. Use class means.
