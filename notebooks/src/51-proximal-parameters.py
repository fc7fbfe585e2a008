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
# # Proximal parameters

# %% tags=["parameters", "remove-cell"]
SUITE = "glyphs8"
PROFILE = "default"
SEED = 0
DEVICE = "cpu"

# %% tags=["remove-cell"]
from collections import Counter

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import torch
from IPython.display import Markdown, display

from mergebook import load_suite, load_zoo, plots
from mergebook.lab.comparison import cut
from mergebook.plots import BLACK, BLUE, GREY, ORANGE, VERMILION
from mergebook.sail.read import mixtures
from mergelib.evaluation.loops import evaluate_many
from mergelib.sail.divergences import mmd_table
from mergelib.sail.proximal import interactions, squared_distances
from mergelib.statedict import lerp

plots.use_style()
EXACT = (SUITE, PROFILE, SEED) == ("glyphs8", "default", 0)
SMOKE = PROFILE == "smoke"
FRACTIONS = (0.0, 0.25, 0.5, 0.75, 1.0)

# %% tags=["remove-cell"]
zoo = cut(load_zoo(load_suite(SUITE, seed=SEED, profile=PROFILE), device=DEVICE), 60)
names = list(zoo.experts)
pairs = list(zip(names[::2], names[1::2]))[: 2 if SMOKE else 4]
positions, rows = np.linspace(-0.2, 1.2, 15).round(2), []
for first, second in pairs:
    states = (zoo.experts[second], zoo.experts[first])
    merged = ((position, lerp(*states, position)) for position in positions)
    table = evaluate_many(zoo.model, merged, zoo.heads, zoo.suite, tasks=[first, second])
    curves = table.pivot(index="candidate", columns="task", values="loss")
    ends = curves[[first, second]].loc[[0.0, 1.0]].to_numpy()
    rises = (float(ends[0, 0] - ends[1, 0]), float(ends[1, 1] - ends[0, 1]))
    for fraction in FRACTIONS:
        mixed = fraction * curves[first] + (1 - fraction) * curves[second]
        parts = fraction * rises[0], (1 - fraction) * rises[1]
        curved = parts[0] / sum(parts)
        rows.append((f"{first}, {second}", fraction, mixed.idxmin(), curved))
scripts = pd.DataFrame(rows, columns=["pair", "share", "loss", "curved"])

# %% tags=["remove-cell"]
perceptrons = pd.concat(
    mixtures.perceptron_shares(FRACTIONS, seed, start=start, steps=50 if SMOKE else 300)
    for start in mixtures.STARTS
    for seed in range(SEED, SEED + (2 if SMOKE else 3))
)
true = scripts[scripts["share"].between(0.1, 0.9)]  # both sources are in the target
inner = {name: abs(true["loss"] - true[name]).mean() for name in ("share", "curved")}
inner["half"] = abs(true["loss"] - 0.5).mean()

# %% tags=["remove-input"] mystnb={"figure": {"caption": "The best weight of a source is close to its fraction in the target for fine-tuned experts; with separate initialisation even the distance to the optimum is not least at the fraction. The target mixes the data of two sources, and the first has the fraction on the horizontal axis. Left, the weight with the least loss on the target, before further training, for four pairs of experts of one pretrained vision transformer (grey) and their mean. Right, the weight whose average is nearest to the trained optimum, for perceptrons, three seeds. 95 % intervals.", "name": "fig-proximal-chain"}, "image": {"alt": "Left, four grey lines and their mean rise along the diagonal from about zero to a little above one. Right, perceptrons with the same initialisation are at zero and one at the ends and near one half between. Separately initialised ones stay near one half at all fractions, and after re-basin they come close to zero and one at the ends."}}
fig, axes = plt.subplots(1, 2, figsize=(6.9, 3.4), sharey=True)
for _, rows in scripts.groupby("pair"):
    axes[0].plot(rows["share"], rows["loss"], color=plots.LIGHT, lw=1.3)
looks = {None: ("mean of four pairs", BLUE, "o-")}
plots.series(axes[0], scripts.assign(seed=scripts["pair"]), x="share", y="loss", looks=looks)
looks = {
    "shared": ("same initialisation", BLACK, "s-"),
    "own": ("separate", VERMILION, "^-"),
    "re-basin": ("separate, re-basined", ORANGE, "D-"),
}
columns = {"x": "share", "y": "parameters", "by": "start"}
plots.series(axes[1], perceptrons, **columns, looks=looks, capsize=0)
for ax, title in zip(axes, ("Least loss, fine-tuned experts", "Nearest to θ*, perceptrons")):
    text = "weight = fraction" if ax is axes[0] else None
    ax.plot([0, 1], [0, 1], color=GREY, lw=1.2, ls="--", zorder=0, label=text)
    ax.set_title(title, fontsize=12)
    ax.set(xlabel="fraction ρ of source 1", ylim=(-0.4, 1.9), xticks=FRACTIONS[::2])
    ax.legend(loc="upper left", fontsize=11, handlelength=1.2)
axes[0].set_ylabel("best weight γ₁")
title = "Fine-tuned experts follow the fraction; separate networks do not"
fig.suptitle(title, fontsize=13, weight="bold", x=0.01, ha="left")
plt.show()

# %% tags=["remove-cell"]
three = torch.tensor([[1, 0, 0.3], [1, 0.3, 0], [-1.2, -0.1, 0.2]], dtype=torch.float64)

from mergelib.sail.proximal import proximal_weights

uneven = proximal_weights(*squared_distances(three, torch.zeros(3)))
far = three.norm(dim=1)
assert [round(float(w), 2) for w in uneven.weights] == [0.04, 0.5, 0.46]
assert [round(float(a), 2) for a in far] == [1.04, 1.04, 1.22]
if EXACT:
    assert inner["share"] < inner["half"]
    assert inner["curved"] < inner["share"]
    middle = perceptrons[perceptrons["share"].between(0.1, 0.9)]
    assert middle[["loss", "trained"]].stack().between(0.3, 0.7).all()

# %% tags=["remove-input"]
display(
    Markdown(f"""
* **Theorem 3 is right for Euclidean distances.** Its claim that a nearer source gets a larger weight holds for two sources only:
  three sources at distances 1.04, 1.04 and 1.22 get the weights 0.04, 0.50 and 0.46.
* **With distances between data sets (MMD), the weights are the fractions in which the sources' data must be mixed to resemble the target.** If both sources are in the target, the best
  weight of fine-tuned experts differs from the fraction by {inner["share"]:.2f} on average, and from one half by {inner["half"]:.2f} (four pairs, one seed).
* **The paper's own weight, −0.1244, means that the target lies beyond the nearer source.** Among weights that are not negative, those of
  this source alone are then the best.
""")
)

# %% [markdown]
# SAIL {cite}`anonymous2025structured` starts the training of a new model from a weighted average of old ones, the *proximal
# parameter*
#
# $$
# \theta^P = \sum_i \gamma_i\, \theta_i , \qquad \textstyle\sum_i \gamma_i = 1 .
# $$ (eq-proximal-start)
#
# The sources $\theta_1, \dots, \theta_n$ have one shape here ([](50-growing) brings them to it). The question is the weights.
#
# **Use it when** your sources share a pretrained model and the target's data look like a mixture of theirs. **Don't use it when** the
# sources were initialised separately, or when the target lies beyond its nearest source.
#
# **You need first:** [](02-averaging-and-task-vectors), gradients, Gaussians. **Time:** 10 minutes to read, half a minute to run.
#
# ## Three objectives have one name
#
# Let $\theta^*$ minimise the loss on the target. The paper defines the weights by one objective, and computes them by another:
#
# | our name | the weights minimise | paper |
# |---|---|---|
# | `trained` | the loss after training from $\theta^P$ | Eq. 3, the aim |
# | `affine` | the distance from $\theta^P$ to $\theta^*$, with $\sum \gamma_i = 1$ | Eq. 4, and experiments with $\gamma$ from −1 to 2 |
# | `simplex` | the same, with $\gamma_i \ge 0$ | Eq. 10, Theorem 3 |
#
# The three have different solutions: of two initialisations, the one nearer to $\theta^*$ can have the higher loss, before and after training
# ({ref}`example <proximal-orders>`). The theory is about distance.
#
# ## An example with numbers
#
# Two sources lie at $(0, 0)$ and $(4, 0)$, and the optimum at $(3, 1)$. The squared distances to the optimum are
# $a_1^2 = 9 + 1 = 10$ and $a_2^2 = 1 + 1 = 2$, and between the sources $a_{12}^2 = 16$. The formula below gives
#
# $$
# \gamma_1 = \frac{a_2^2 + a_{12}^2 - a_1^2}{2 a_{12}^2} = \frac{2 + 16 - 10}{32} = \frac14 ,
# $$
#
# so $\theta^P = \frac14 (0, 0) + \frac34 (4, 0) = (3, 0)$, the foot of the optimum on the line through both sources. For the optimum
# $(5, 1)$ it gives $(2 + 16 - 26)/32 = -\frac14$, a point beyond source 2. With $\gamma_i \ge 0$ the best point is source 2
# itself.

# %% tags=["nbval-check-output"]
import torch

from mergelib.sail.proximal import proximal_weights

between = torch.tensor([[0.0, 16.0], [16.0, 0.0]])
inside = proximal_weights(torch.tensor([10.0, 2.0]), between)
beyond = proximal_weights(torch.tensor([26.0, 2.0]), between)
affine = proximal_weights(torch.tensor([26.0, 2.0]), between, "affine")
print([[round(w, 2) for w in r.weights.tolist()] for r in (inside, beyond, affine)])


# %% tags=["remove-cell"]
def draw_levels(offsets, ax):
    """Draw the predicted squared distance for all weights of three sources, and the best ones."""
    squares, distances = squared_distances(offsets, torch.zeros(offsets.shape[1]))
    matrix = interactions(squares, distances)
    corners = np.array([[0.0, 0.0], [1.0, 0.0], [0.5, 0.866]])
    steps = np.linspace(0, 1, 61)
    grid = np.array([(a, b, 1 - a - b) for a in steps for b in steps if a + b <= 1 + 1e-9])
    values = np.einsum("ni,ij,nj->n", grid, matrix.numpy(), grid) / 2
    ax.tricontourf(*(grid @ corners).T, values, levels=14, cmap="Blues")
    best = proximal_weights(squares, distances).weights.numpy()
    ax.plot(*(best @ corners), "o", color=VERMILION, ms=9)
    style = {"textcoords": "offset points", "ha": "center", "fontsize": 11}
    for name, corner, square, weight in zip("123", corners, squares, best):
        below = corner[1] == 0
        text = f"source {name}\ndistance {float(square) ** 0.5:.2f}\nweight {weight:.2f}"
        ax.annotate(text, corner, xytext=(0, -46 if below else 6), **style)
    ax.set(xlim=(-0.35, 1.35), ylim=(-0.42, 1.35), aspect="equal")
    ax.axis("off")


# %% tags=["remove-input"] mystnb={"figure": {"caption": "The best weights belong to the point of the segment or triangle that is nearest to the optimum. Left, the two sources of the example with two optima (stars), the best points (circles) and the weights of source 1; the open circle needs a negative weight. Right, all weights of three sources; the darker, the farther from the optimum. The best weights (red) give source 1 almost nothing, although no source is nearer.", "name": "fig-proximal-geometry"}, "image": {"alt": "Left, a segment from source 1 to source 2. One star above the segment has its foot at three quarters. Another star beyond source 2 has its nearest point at source 2, and an open circle on the extension of the segment. Right, a triangle whose lightest area is on the side between sources 2 and 3, with a red dot there."}}
fig, axes = plt.subplots(1, 2, figsize=(6.9, 3.1), width_ratios=(1.2, 1))
ax = axes[0]
ax.plot([0, 4], [0, 0], color=GREY, lw=2)
ax.plot([4, 5], [0, 0], color=GREY, lw=1.2, ls=":")
for star, feet in {(3, 1): [(3, 0)], (5, 1): [(4, 0), (5, 0)]}.items():
    for foot, face in zip(feet, (BLUE, "white")):
        ax.plot(*zip(star, foot), ":", color=BLACK, lw=1.2)
        ax.plot(*foot, "o", color=BLUE, mfc=face, ms=9, zorder=3)
    ax.plot(*star, "*", color=VERMILION, ms=14)
    ax.text(star[0], star[1] + 0.25, f"{star}", ha="center", fontsize=11)
for x, text in ((2.1, "γ₁ ="), (3, "¼"), (4, "0"), (5, "−¼")):
    ax.text(x, -0.65, text, ha="center", fontsize=12, color=BLUE)
for x, text in ((0, "source 1"), (4, "source 2")):
    ax.plot(x, 0, "s", color=BLACK, ms=5, zorder=4)
    ax.text(x, -1.4, text, ha="center", fontsize=11)
ax.set(xlim=(-0.9, 5.7), ylim=(-1.6, 1.8), aspect="equal")
ax.axis("off")
draw_levels(three, axes[1])
fig.suptitle("A source that adds nothing gets no weight", fontsize=13, weight="bold")
plt.show()

# %% [markdown]
# ## Theorem 3: the closed form
#
# Let $a_i$ be the distance from $\theta_i$ to $\theta^*$, $a_{ij}$ the distance of two sources, and
#
# $$
# H_{ij} = a_i^2 + a_j^2 - a_{ij}^2 .
# $$ (eq-proximal-h)
#
# ```{prf:theorem} Weights from squared distances
# :label: thm-proximal-weights
# If $\sum_i \gamma_i = 1$, then $\lVert \theta^P - \theta^* \rVert^2 = \frac12 \gamma^\top H \gamma$. For points of a
# Euclidean space $H \succeq 0$, and
# 1. every solution of $H\gamma = \lambda e$, $e^\top \gamma = 1$ is a best `affine` weight, and one exists ($e$ is the vector of ones, $\lambda$ a number);
# 2. a best `simplex` weight is such a solution for the sources that it uses;
# 3. for two sources, $\gamma_1 = \dfrac{a_2^2 + a_{12}^2 - a_1^2}{2 a_{12}^2}$, on the simplex clipped to $[0, 1]$.
#
# If $a$ is another metric, $\gamma^\top H \gamma$ is convex on $\sum_i \gamma_i = 1$ for $n \le 3$ but can be negative; for $n \ge 4$ it need not be convex.
# ```
#
# The [proof](#proximal-weights-proof) is in the appendix. Part 3 is the paper's Eq. 11, which its appendix E states with both sources
# exchanged. For more sources the paper has Eq. 12, $\gamma = H^{-1} e / e^\top H^{-1} e$, if $H$ is invertible and all weights are
# positive. The formula and its reading fail in four cases, which [](58-sail-proofs) computes:
#
# | case | Eq. 12 | the minimum |
# |---|---|---|
# | {ref}`three sources <proximal-nearer>`, distances 1.04, 1.04, 1.22 | right, but the nearer source gets less | (0.04, 0.50, 0.46) |
# | {ref}`a source equals the target <proximal-singular>` | undefined, $H$ is singular | (1, 0, 0) |
# | {ref}`four sources in total variation <proximal-square>` | a saddle, (¼, ¼, ¼, ¼) | (½, 0, ½, 0) |
# | {ref}`three sources in total variation <proximal-star>` | a negative squared distance | total variation is not Euclidean |
#
# `proximal_weights` therefore solves the quadratic programme, exactly for up to twelve sources. It expects *squared* distances.
#
# ## Distances of data instead of parameters
#
# $\theta^*$ is unknown before training, so SAIL uses distances between data sets. By the paper's Lemma 2, the distance of parameters is a multiple of the data's
# total variation, for linear discriminant analysis. The lemma is wrong in three places ({ref}`checks <proximal-lda>`). Two samples without
# common points have the total variation 1, so this estimator always gives uniform weights ({ref}`check <proximal-atoms>`).
#
# In its experiment the paper uses the **maximum mean discrepancy** {cite}`gretton2012kernel`,
# $\mathrm{MMD}(D, D') = \lVert m_D - m_{D'} \rVert$, where $m_D$ is the mean of $D$ in the space of a kernel.
#
# ```{prf:proposition} Mixtures and MMD
# :label: prop-proximal-kmm
# 1. With MMD, $H_{ij} = 2 \langle m_{D_i} - m_{D^*}, m_{D_j} - m_{D^*} \rangle \succeq 0$, and the weights are those of the
#    mixture $\sum_i \gamma_i D_i$ nearest to $D^*$.
# 2. If training is affine in the mean embedding, $\theta_i = A\, m_{D_i} + c$, then
#    $\lVert \theta^P - \theta^* \rVert \le \lVert A \rVert \cdot \mathrm{MMD}(\sum_i \gamma_i D_i, D^*)$.
# 3. If $D^* = \rho D_1 + (1 - \rho) D_2$ and the distance is a norm of $D - D'$, as MMD and total variation
#    are, then part 3 of {prf:ref}`thm-proximal-weights` gives $\gamma_1 = \rho$.
# ```
#
# So the weights estimate **in which fractions the sources must be mixed to resemble the target**, as kernel mean matching does
# {cite}`gretton2009covariate`. Part 3 provides targets with a known answer. The call takes features of the data, fixed in advance:

# %% tags=["nbval-check-output"]
from mergelib.sail.proximal import weights_from_samples

generator = torch.Generator().manual_seed(SEED)
source_1 = torch.randn(400, 2, generator=generator) + 2
source_2 = torch.randn(400, 2, generator=generator)
target = torch.cat([source_1[:100], source_2[:300]])
result = weights_from_samples(target, [source_1, source_2])
print([round(w, 1) for w in result.weights.tolist()])

# %% [markdown]
# (proximal-noise)=
# Eq. 11 divides by the distance of the sources. If both have the same distribution, only noise is left to divide by.
# `weights_from_samples` therefore returns uniform weights unless a permutation test finds a difference.

# %% tags=["remove-cell"]
raw = []
for _ in range(5):
    goal, *same = (torch.randn(200, 2, generator=generator) for _ in range(3))
    raw.append(float(weights_from_samples(goal, same, "affine", level=1.0).weights[0]))
    tested = weights_from_samples(goal, same, "affine").weights.tolist()
assert tested == [0.5, 0.5]
# Least squares with other variances of the inputs of both sources: γ of the least mixed loss.
ends = torch.randn(2, 2, generator=torch.Generator().manual_seed(SEED), dtype=torch.float64)
lengths = (ends.diff(dim=0)[0] ** 2).tolist()
steep, flat = 4 * lengths[0] + lengths[1], lengths[0] + 4 * lengths[1]
bent = max(share * steep / (share * steep + (1 - share) * flat) - share for share in FRACTIONS)

# %% tags=["remove-input"]
display(
    Markdown(f"""
Without the test, five draws of two equal sources give first weights from −{-min(raw):.2f} to {max(raw):.2f}.
""")
)

# %% [markdown]
# ## From data to loss
#
# Theorem 3 compares data, but the aim is a low loss.

# %% tags=["remove-cell"]
boxes = (
    "distance of\ndata",
    "distance of\nparameters",
    "loss at\nthe start",
    "loss after\ntraining",
)
links = {
    "training is affine\nin the data": "separate\ninitialisation",
    "minima of\none curvature": "sources useless on\neach other's data",
    "optimum on the line\nof the sources": "steps can\nreorder starts",
}

# %% tags=["remove-input"] mystnb={"figure": {"caption": "The weights are right only if every link of the chain holds. Boxes are the quantities that are compared, arrows the links between them. Below each arrow, a case in which the link holds and one in which we found it broken.", "name": "fig-proximal-links"}, "image": {"alt": "Four boxes in a row, joined by arrows: distance of data, distance of parameters, loss at the start, loss after training. First arrow: holds for training that is affine in the data, broken by separate initialisation. Second arrow: holds for minima of one curvature, broken by sources that are useless on each other's data. Third arrow: holds for an optimum on the line of the sources, broken by steps that reorder starts."}}
fig, ax = plt.subplots(figsize=(6.9, 2.5))
for place, text in enumerate(boxes):
    frame = {"boxstyle": "round,pad=0.4", "facecolor": "white", "edgecolor": BLACK, "lw": 1.5}
    ax.text(2 * place, 1, text, ha="center", va="center", fontsize=11, bbox=frame)
for place, (holds, fails) in enumerate(links.items()):
    x = 2 * place + 1
    arrow = {"arrowstyle": "-|>", "lw": 1.8, "color": BLACK}
    ax.annotate("", (x + 0.35, 1), (x - 0.35, 1), arrowprops=arrow)
    ax.text(x, 0.28, holds, ha="center", va="center", fontsize=11, color=BLUE)
    ax.text(x, -0.42, fails, ha="center", va="center", fontsize=11, color=VERMILION)
for y, text, shade in ((0.28, "holds for", BLUE), (-0.42, "broken by", VERMILION)):
    ax.text(-0.3, y, text, ha="center", va="center", fontsize=11, color=shade, style="italic")
ax.set(xlim=(-0.8, 6.8), ylim=(-0.8, 1.5))
ax.axis("off")
fig.suptitle("Each link from data to loss can break", fontsize=13, weight="bold")
plt.show()

# %% [markdown]
# The loss on a mixture is linear, $J_\rho = \rho J_1 + (1 - \rho) J_2$, so the best $\gamma_1$ on the line through two sources
# can be read off two curves. Close to minima there is a formula:
#
# ```{prf:proposition} Fractions weighted by curvature
# :label: prop-proximal-curvature
# Let $J_1$ and $J_2$ be quadratic with minima $\theta_1$ and $\theta_2$, and $c_i = d^\top H_i d$ their curvatures
# along $d = \theta_1 - \theta_2$. On the line, $J_\rho$ is least at
# $\gamma_1 = \dfrac{\rho\, c_1}{\rho\, c_1 + (1 - \rho)\, c_2}$.
# ```
#
# Distances between data sets do not contain the curvatures, but each follows from two losses:
# $\frac12 c_1 = J_1(\theta_2) - J_1(\theta_1)$.

# %% tags=["remove-cell"]
edges = perceptrons[perceptrons["share"].isin([0.0, 1.0])]
oracle = edges.groupby(["start", "share"])["parameters"].mean()
if EXACT:
    assert oracle["own"].between(0.3, 0.7).all()
    assert oracle["re-basin", 0.0] < 0.25 < 0.85 < oracle["re-basin", 1.0]
    assert bent > 0.1

# %% tags=["remove-input"]
display(
    Markdown(
        f"""
* **Linear least squares** follows the fraction if all sources have inputs with the same second moments. With other inputs the best weight
  exceeds the fraction by up to {bent:.2f}, because training is not affine in the data.
* **Fine-tuned experts** of one vision transformer follow the fraction (first figure). For true mixtures the curvature formula
  reduces the mean error from {inner["share"]:.2f} to {inner["curved"]:.2f}.
* **Perceptrons** do not follow it if their sources have other inputs and opposite labels. The weight of least loss is between 0.3 and 0.7 for every true
  mixture, before and after 20 training steps.
* **Separate initialisation breaks the distance as well.** θ* is initialised separately, too, so the weight nearest to it is
  {oracle["own", 1.0]:.2f} even if the target is exactly the data of source 1. Matching the hidden units of the networks raises it to
  {oracle["re-basin", 1.0]:.2f}, but for true mixtures the best weights stay near one half.
"""
    )
)

# %% [markdown]
# The units are matched by Git Re-Basin {cite}`ainsworth2023git`.
#
# (proximal-thirds)=
# ## The paper's weight is −0.1244
#
# Section 4.4 cuts a corpus into thirds $D_1$, $D_2$, $D^*$ by rising mean token value and reports −0.1244 by MMD. The formula
# beside it has $D_1$ and $D_2$ exchanged, which turns $\gamma_1$ into $1 - \gamma_1$. We cut the text of Python's language help in the same
# way:

# %% tags=["remove-cell"]
from mergebook.sail.read.text import help_text
from mergebook.sail.thirds import cut_blocks

words = help_text().split()
ranks = {word: rank for rank, (word, _) in enumerate(Counter(words).most_common())}
signs = torch.tensor([float(ord(sign)) for sign in help_text() if ord(sign) < 128])
tokens, cuts = {"characters": signs, "words": torch.tensor([float(ranks[w]) for w in words])}, {}
for kind, values in tokens.items():
    blocks = cut_blocks(values, 1024)
    blocks = blocks[blocks.mean(1).argsort()]
    places = torch.bucketize(blocks, values.quantile(torch.linspace(0, 1, 51)[1:-1]))
    shares = torch.stack([torch.bincount(row, minlength=50) / 1024 for row in places])
    features = {"mean value": blocks.mean(1, keepdim=True), "histogram": shares}
    for name, table in {**features, "raw values": blocks}.items():
        first, second, goal, *_ = table.split(len(table) // 3)
        squares = mmd_table([goal, first, second])
        weights = proximal_weights(squares[0, 1:], squares[1:, 1:], "affine").weights
        cuts[kind, name] = float(weights[0])
assert len(cuts) == 6
assert all(-0.5 < weight < 0.1 for weight in cuts.values())

# %% tags=["remove-input"]
table = pd.Series(cuts).to_frame("γ₁ by Eq. 11")
table["γ₁ as stated"] = 1 - table["γ₁ by Eq. 11"]
table = table.map("{:.2f}".format).replace("-", "−", regex=True)
table.rename_axis(["tokens", "features"])

# %% [markdown]
# The target lies beyond $D_2$, so Eq. 11 gives about 0 or less, and the stated formula about 1 or more
# (exercise {ref}`ex-proximal-beyond`). The paper's number fits Eq. 11, whose `simplex` weights are $(0, 1)$: **without negative weights, the
# nearer source alone is best.** Every cut like this gives a negative $\gamma_1$, whose size changes with the features, so the paper's number does not test the formula.
# The nearest source alone is the baseline to beat.
#
# ## What the theory guarantees
#
# The paper proves its guarantees for *linear* models with one optimum. Proofs, corrections and counterexamples are in [](58-sail-proofs).
#
# | paper | claim | found here |
# |---|---|---|
# | Theorem 1 | a source is nearer to $\theta^*$ than random weights, with high probability | true for $d \ge 2$ and independent sources, by another proof ({prf:ref}`thm-proximal-markov`); separately initialised networks are *farther* than PyTorch's initial weights ({ref}`table <proximal-random>`) |
# | Theorem 2 | gradient descent from $\theta^P$ converges linearly, $\frac L2 \lVert \theta^P - \theta^* \rVert^2$ bounds the initial excess | true; only a bound falls with the distance ({ref}`example <proximal-orders>`) |
# | Appendix C | half the excess loss of a random initialisation, hence faster | true for small $\kappa = L/\mu$; it saves a constant number of steps, not a factor ({ref}`check <proximal-steps>`) |
# | Theorem 3 | closed form of the weights | true for Euclidean distances ({prf:ref}`thm-proximal-weights`) |
# | Lemma 2 | distance of parameters is $C$ times total variation | wrong in three places ({ref}`checks <proximal-lda>`) |
# | Theorem 4 | risk on the target is bounded | true as stated, but above the largest possible risk, so it excludes nothing; the corrected bound is useful from a few hundred examples on ({prf:ref}`thm-proximal-risk`) |
#
# ```{admonition} Takeaway: estimate the fractions first
# :class: tip
# Compute the weights by MMD on fixed features. If one of them is close to 1, use this source alone. If you can evaluate each
# source on the data of each, weight the fractions by curvature.
# ```
#
# ## Exercises
#
# ```{exercise} A target beyond its nearest source (easy)
# :label: ex-proximal-beyond
# $D_1$, $D_2$ and $D^*$ have their means at $0 < 1 < 1 + t$ on a line, and the distance is the distance of the means. Compute
# $\gamma_1$ by Eq. 11 and by the exchanged formula. For which $t$ is Eq. 11 equal to the paper's −0.1244?
# ```

# %% [markdown]
# ````{solution-start} ex-proximal-beyond
# :class: dropdown
# ````
# Eq. 11 gives $\gamma_1 = (t^2 + 1 - (1 + t)^2)/2 = -t$, and the exchanged formula $1 + t$. So $t = 0.1244$, and the target lies beyond $D_2$ by an
# eighth of the distance of the sources.

# %% tags=["nbval-check-output"]
to_target = torch.tensor([1.1244**2, 0.1244**2], dtype=torch.float64)
apart = torch.tensor([[0.0, 1.0], [1.0, 0.0]])
print("affine:", round(float(proximal_weights(to_target, apart, "affine").weights[0]), 4))
print("simplex:", round(float(proximal_weights(to_target, apart).weights[0]), 4))

# %% [markdown]
# ````{solution-end}
# ````
#
# ```{exercise} Plain distances (medium)
# :label: ex-proximal-plain
# Someone passes $a_i$ and $a_{ij}$ instead of their squares. Show that a test on mixtures
# $\rho D_1 + (1 - \rho) D_2$ does not reveal the mistake. Find a case that does.
# ```

# %% [markdown]
# ````{solution-start} ex-proximal-plain
# :class: dropdown
# ````
# With $a_1 = 1 - \rho$, $a_2 = \rho$ and $a_{12} = 1$ the wrong formula gives $(\rho + 1 - (1 - \rho))/2 = \rho$ as
# well. A target off the line reveals it, unless it is equally far from both sources. No check of the distances can find the mistake, because roots of
# Euclidean distances are Euclidean distances of another space {cite}`schoenberg1938metric`.

# %% tags=["nbval-check-output"]
points = torch.tensor([[-0.3, 1.0], [0.7, 1.0]])
own, apart = squared_distances(points, torch.zeros(2))
for name, power in (("squares", 1.0), ("plain", 0.5)):
    weights = proximal_weights(own**power, apart**power).weights
    print(f"{name}: {float(weights[0]):.2f}")

# %% [markdown]
# ````{solution-end}
# ````
#
# ```{exercise} Equal curvatures: three objectives agree (hard)
# :label: ex-proximal-keep
# Let $J_1$ and $J_2$ be quadratics with one curvature $H$ and the minima $\theta_1$, $\theta_2$. Show that the best
# $\gamma_1$ for $J_\rho$ is $\rho$ by distance, by loss, and by loss after any number of gradient steps.
# ```

# %% [markdown]
# ````{solution-start} ex-proximal-keep
# :class: dropdown
# ````
# $J_\rho$ is a quadratic of curvature $H$ around $\theta^* = \rho\theta_1 + (1 - \rho)\theta_2$, which lies on the
# line, at $\gamma_1 = \rho$. Distance and loss are least there, and gradient descent stays there. If $\theta^*$ is off the line, each objective
# finds the nearest point in its own norm, $I$, $H$, or $(I - \eta H)^K H (I - \eta H)^K$, and the answers differ.

# %% tags=["nbval-check-output"]
ends = torch.tensor([[1.0, 0.0], [0.0, 5.0]], dtype=torch.float64)
gammas = torch.linspace(0, 1, 1001, dtype=torch.float64)
line = gammas[:, None] * ends[0] + (1 - gammas[:, None]) * ends[1]
shape = torch.tensor([[3.0, 1.0], [1.0, 2.0]], dtype=torch.float64)
optimum = 0.3 * ends[0] + 0.7 * ends[1]
step = torch.eye(2, dtype=torch.float64) - 0.2 * shape
for count in (0, 1, 10):
    off = (line - optimum) @ torch.linalg.matrix_power(step, count)
    best = float(gammas[((off @ shape) * off).sum(1).argmin()])
    print(f"{count} steps: {best:.2f}")

# %% [markdown]
# ````{solution-end}
# ````
#
# ## Summary
#
# * The best weights follow from squared Euclidean distances by a quadratic programme, which has a closed form for two sources.
# * With MMD they are mixing fractions. Fine-tuned experts of one model have their best weights near these fractions; networks from scratch do not.
# * The guarantees hold for linear models. In the paper's own experiment they recommend the nearest source alone.
