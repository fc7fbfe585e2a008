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
# # Why over-trained experts merge badly

# %% tags=["parameters", "remove-cell"]
SUITE = "glyphs8"
PROFILE = "default"
SEED = 0
DEVICE = "cpu"

# %% tags=["remove-cell"]
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import torch
from IPython.display import Markdown, display
from matplotlib.patches import FancyBboxPatch

from mergebook import plots
from mergebook.lab.results import load_result, load_table
from mergebook.lab.statistics import over_seeds
from mergebook.plots import BLACK, BLUE, BROWN, GREEN, GREY, ORANGE, VERMILION
from mergebook.stability.read import networks
from mergebook.stability.read.quadratics import errors_over_steps, pretrained_error, pulled_tasks
from mergebook.stability.theory import bounds
from mergebook.stability.theory.quadratics import Quadratics

plots.use_style()
EXACT = (SUITE, PROFILE, SEED) == ("glyphs8", "default", 0)  # the text's numbers are of these

# %% tags=["remove-cell"]
double = {"dtype": torch.float64}
CURVES = torch.tensor([[1.0, 0.05], [0.05, 1.0]], **double)  # diagonals of H_1 and H_2
MINIMA = torch.tensor([[0.6, 4.0], [4.0, 0.6]], **double)
nothing = torch.zeros(2, 2, 2, **double)
pair = Quadratics(torch.diag_embed(CURVES), MINIMA, nothing, torch.zeros(2, **double))
RATE = 0.1
counts = np.unique(np.geomspace(1, 2048, 10 if PROFILE == "smoke" else 80).round()).astype(int)
clean = errors_over_steps(pair, counts.tolist(), RATE, batch=1, examples=1)
start = pretrained_error(pair, examples=1)


def expert_after(step):
    """Return both experts after a number of noise-free steps, one row per expert."""
    return MINIMA - (1 - RATE * CURVES) ** step * MINIMA


# %% tags=["remove-cell"]
def draw_plane(ax):
    """Draw both losses, the experts' paths, their averages and the shared minimum."""
    x, y = np.meshgrid(*2 * [np.linspace(-0.7, 5.0, 90)])
    shades = (BLUE, ORANGE)
    for curve, (left, up), shade in zip(CURVES.tolist(), MINIMA.tolist(), shades):
        height = (curve[0] * (x - left) ** 2 + curve[1] * (y - up) ** 2) / 2
        ax.contour(x, y, height, levels=[0.02, 0.1, 0.25], colors=shade, linewidths=0.8, alpha=0.5)
    path = torch.stack([expert_after(step) for step in range(2000)])
    for k, shade in enumerate(shades):
        ax.plot(*path[:, k].T, color=shade, lw=2, marker="o", ms=8, mec="white", markevery=[-1])
    ax.plot(*path.mean(1).T, color=BLACK, lw=2)
    for step in (20, 80, 300):
        ax.plot(*path[step].T, ":", color=GREY, lw=1.4)
        ax.plot(*path[step].mean(0), "o", color=BLACK, ms=5)
    line = {"arrowstyle": "-", "color": VERMILION}
    stars = {"shared\nminimum": (pair.minimum, "*", (2.4, -0.2))}
    stars["mean of\nthe minima"] = MINIMA.mean(0), "X", (2.7, 2.75)
    for text, (point, mark, place) in stars.items():
        ax.plot(*point, mark, color=VERMILION, ms=13, mec="white", zorder=5)
        ax.annotate(text, point, place, color=VERMILION, va="center", arrowprops=line)
    ax.plot(0, 0, "s", color=BLACK, ms=7)
    ax.text(0.15, -0.45, "pretrained", va="center")
    ax.set(aspect="equal", xlim=(-0.5, 5), ylim=(-0.75, 4.8), xticks=[], yticks=[])
    ax.grid(visible=False)


# %% tags=["remove-input"] mystnb={"figure": {"caption": "The average (black) of two experts (coloured) passes the shared minimum on its way to the mean of two distant minima. Left, two noise-free tasks, each sensitive to one weight; dots are after 20, 80 and 300 steps. Right, its training error. Its generalisation error is zero.", "name": "fig-stability-u"}, "image": {"alt": "Left, two experts start at the pretrained model. One bends upwards to a distant minimum, the other to the right. Their average moves along the diagonal, through the shared minimum near the start, and ends far beyond it. Right, on logarithmic axes the training error falls from 0.3 to nearly zero at about fifty steps and then rises to 1.2, far above the dashed line of the pretrained model."}}
fig, (left, right) = plt.subplots(1, 2, figsize=(6.9, 3.4))
draw_plane(left)
left.set_title("Two tasks, two weights", fontsize=12, weight="normal")
right.axhline(start, color=GREY, lw=1.4, ls="--")
right.text(1.1, 1.15 * start, "pretrained", color=GREY)
right.plot(clean["steps"], clean["optimisation"], color=BLACK)
right.set(xscale="log", yscale="log", xlabel="steps of each expert", ylim=(2e-3, 3))
right.set_title("Training error of the average", fontsize=12, weight="normal")
title = "Early steps add up; late experts sit in distant minima"
fig.suptitle(title, fontsize=13, weight="bold", x=0.01, ha="left")
plt.show()


# %% tags=["remove-cell"]
def bounded(file):
    """Return $E_G$ of a merge by steps (nats, intervals across seeds), and bounds of it there."""
    merged = load_table(file, "merged")
    gap = merged["fresh_loss"] - merged["loss"]  # whose expectation is 0 for the pretrained model
    first = merged[merged["steps"] == 0].assign(gap=gap).set_index("seed")["gap"]
    moved, curved = merged["stability"], merged["smoothness"] / 2 * merged["stability"]
    laws = {"root": np.sqrt(moved * merged["second_moment"])}
    laws["bound"] = laws["root"] + curved
    laws["lemma_1"] = np.sqrt(moved * merged["squared"]) + curved  # its least value over γ
    table = merged.assign(error=gap - merged["seed"].map(first), **laws).query("steps > 0")
    found = over_seeds(table, "steps", "error").rename(columns={"mean": "error"})
    return found.join(table.groupby("steps")[[*laws]].mean())


# %% tags=["remove-cell"]
MERGES = {"perceptron": "glyphs8-merge_stability-mlp"}
MERGES["transformer"] = "vision8-merge_stability-vit_small"
real = {name: bounded(file) for name, file in MERGES.items()}
ratios = {name: rows["root"] / rows["error"] for name, rows in real.items()}
least, last = clean.loc[clean["excess"].idxmin()], clean.iloc[-1]

# %% tags=["remove-input"]
display(
    Markdown(f"""
* **Early steps of all experts add up, late ones do not.** In the figure the error of the average falls from
  {start:.2f} to nearly zero at {least["steps"]:.0f} steps and then rises to {last["excess"]:.2f}, although there is no
  noise and nothing to generalise over. On our networks the cause is another one: up to seven passes over the data, the
  training loss still falls, and the generalisation error makes the test loss rise.
* **The proof of the paper's explanation fails.** Li et al. explain over-training by generalisation. Their Lemmas 1
  and 3 are false. Where its conditions are met, their bound on the error, Theorem 3, is at least 32 times the error of
  the *pretrained* model.
* **Three corrected bounds hold.** On networks, with five seeds, the main part of the first is
  {ratios["perceptron"].min():.0f} to {ratios["perceptron"].max():.0f} times the measured generalisation error for
  perceptrons and {ratios["transformer"].min():.0f} to {ratios["transformer"].max():.0f} times for transformers.
""")
)

# %% [markdown]
# **Use it when** a merge is worse than its experts promise, and you want to know whether fewer steps, more data or
# another scale would help. **Do not use it** to choose learning rates, batches or steps, because no bound of this
# part is tight enough for that.
#
# **You need first:** [](02-averaging-and-task-vectors), what a gradient and a covariance are. **Time:** 15 minutes with
# the exercises, half a minute to run.
#
# ## Two errors of a merge
#
# There are $T$ tasks (the paper writes $N$). Task $t$ has $n$ training examples. $f_t(\theta)$ is the mean loss on
# them and $F_t(\theta)$ the expected loss on new ones. The merge should serve all tasks, so the objectives are the means
# $f = \frac1T\sum_t f_t$ and $F = \frac1T\sum_t F_t$. The **excess error** of a model, with $\hat\theta$ the minimiser of
# $f$, is
#
# $$
# F(\theta) - f(\hat\theta) = \underbrace{F(\theta) - f(\theta)}_{E_G} + \underbrace{f(\theta) - f(\hat\theta)}_{E_O} .
# $$ (eq-stability-excess)
#
# The **generalisation error** $E_G$ is the difference between new and training examples. The **optimisation error**
# $E_O$ is what joint training on all tasks could still gain. Both are expectations over the examples and the batches. An evaluation
# on both splits estimates $E_G$, here for the average of eight experts on two of their tasks:

# %%
import mergelib as ml
from mergebook import load_suite, load_zoo

zoo = load_zoo(load_suite(SUITE, seed=SEED, profile=PROFILE), device=DEVICE)
names = list(zoo.experts)[:2]
models = {"pretrained": zoo.pretrained}
models["average"] = ml.merge("average", zoo.experts)
given = zoo.model, models, zoo.heads, zoo.suite
losses = {}
for split in ("train", "test"):
    table = ml.evaluate_many(*given, split=split, tasks=names)
    losses[split] = table.groupby("candidate")["loss"].mean()

# %% tags=["remove-input"]
shown = pd.DataFrame(losses).assign(gap=lambda rows: rows["test"] - rows["train"])
words = {"train": "training loss, nats", "test": "test loss, nats", "gap": "difference, nats"}
shown.rename(columns=words).rename_axis(None).loc[list(models)].round(3)

# %% tags=["remove-input"]
gained = shown.loc["pretrained"] - shown.loc["average"]
display(
    Markdown(f"""
The average lowers the training loss by {gained["train"]:.2f} nats and the test loss by {gained["test"]:.2f}. The pretrained
model was not fine-tuned. Its difference comes from the choice of the splits and from the heads, which are made of a few
training images, so we subtract it. The rest, {-gained["gap"]:.3f} nats, estimates $E_G$ on these two tasks. It is {-100 * gained["gap"] / gained["test"]:.0f} % of what
merging gains on the test set.
""")
)

# %% [markdown]
# ## Early steps add up, late minima do not
#
# The simplest loss with everything known is a quadratic one. An example $z$ of task $t$ has the loss
#
# $$
# \ell(\theta; z) = \tfrac12 (\theta - z)^\top H_t\, (\theta - z) ,
# $$ (eq-stability-loss)
#
# and the examples of a task have the mean $c_t$. The curvature $H_t$ says which directions the task is sensitive to.
# Each expert takes $K$ steps of SGD with the learning rate $\eta$.
#
# ```{prf:proposition} Early and late merges
# :label: prop-stability-early
# Without noise, and with equal steps and weights $\frac1T$, the merge of quadratics is
# 1. $\theta_0 - \eta K\, \nabla f(\theta_0)$ plus terms of order $(\eta K)^2$ for small $\eta K$, which is one step
#    of gradient descent on the shared loss;
# 2. $\frac1T \sum_t c_t$ for $K \to \infty$, if all $H_t$ are positive definite and $\eta$ is below 2 over the largest
#    curvature, while the shared minimum is $\hat\theta = (\sum_t H_t)^{-1} \sum_t H_t c_t$;
# 3. for $H_t = H$ and every $K$, the point that $K$ steps of gradient descent on $f$ reach.
# ```
#
# An early expert moves in proportion to its gradient, far where its loss is steep. A late expert has settled
# every direction at full length, also those that hardly matter to it. The plain mean of minima ignores how
# much each task cares, and the shared minimum does not. So over-training hurts where **curvatures differ**. Without
# noise, no merge is over-trained if all curvatures are equal, however far the minima are from each other.
#
# With noise $E_G$ rises as well, but by far less in this example. Its numbers are exact ({prf:ref}`prop-stability-exact`), for four
# tasks in six dimensions with curvatures from 0.05 to 1 along different axes, and fifty noisy examples each.

# %% tags=["remove-cell"]
tasks = pulled_tasks(seed=SEED)
noisy = errors_over_steps(tasks, counts.tolist(), 0.05, batch=8, examples=50)
level = pretrained_error(tasks, examples=50)
best, end = noisy.loc[noisy["excess"].idxmin()], noisy.iloc[-1]
rise = end - best

# %% tags=["remove-input"]
display(
    Markdown(f"""
The excess error is {level:.2f} at the pretrained model, {best["excess"]:.2f} at the best number of steps and
{end["excess"]:.2f} after {end["steps"]:.0f} steps. Of this rise, {rise["optimisation"]:.2f} is $E_O$ and
{rise["generalisation"]:.3f} is $E_G$. The over-trained merge is bad on the training examples themselves.
""")
)

# %% [markdown]
# Networks are not quadratics. Up to 800 steps, or seven passes over the data, the training loss of the average still falls on our
# networks, and $E_G$ makes the test loss rise, as the paper says. A large learning rate raises the training loss instead
# ([](42-scaling-laws)). A test loss that falls and then rises therefore does not tell which error is the cause.
#
# ## The paper's chain of lemmas
#
# The stability framework {cite}`li2026unified` explains over-training by generalisation. A training that
# depends little on each single example generalises {cite}`hardt2016train`. Let $\theta^{(tj)}$ be the merge
# if the $j$-th example of task $t$ is replaced by a fresh draw and all else stays the same. The **stability** measures how far
# the merge moves, so a small value is good:
#
# $$
# S = \frac1T \sum_t \frac1n \sum_j \mathbb E\, \lVert \theta^{(tj)} - \theta \rVert^2 .
# $$ (eq-stability-S)
#
# Lemma 1 bounds $E_G$ by $S$ and the gradient at the merge. Lemma 3 and Theorem 1 bound $S$ by the number of steps. Theorem 2,
# from federated learning {cite}`wang2020tackling`, bounds the squared gradient at the merge by a number $\varepsilon$, for the
# rate $\eta = \sqrt{T/K}$. A constant $C$ with $f(\theta) - f(\hat\theta) \le C \lVert \nabla f(\theta) \rVert^2$ turns this
# into a bound of $E_O$, and Theorem 3 is the sum.
#
# In the table below, $s_t$ is the expected squared distance that expert $t$ moves when one of its $n$ examples is replaced, $b$
# the batch size, and $w_t$ the expert's weight in the merge. $L$ is the largest curvature of a loss (its smoothness), $\sigma_t$ bounds the gradient noise
# and $\zeta_t$ the distance of $\nabla f_t$ from $\nabla f$. The free $\gamma > 0$ is chosen to make Lemma 1 least.

# %% tags=["remove-cell"]
BOXES = {  # place of the centre, text, verdict
    "Lemma 1": ((1.3, 3.0), "bounds $E_G$\nby stability", "false"),
    "Lemma 3": ((1.3, 1.7), "stability of\none expert", "false"),
    "Theorem 1": ((4.0, 1.7), "stability of\nthe merge", "loose by T²"),
    "Theorem 2": ((1.3, 0.4), "gradient at\nthe merge", "false"),
    "Theorem 3": ((6.7, 1.7), "bounds the\nexcess error", "vacuous"),
    "Five laws": ((9.4, 2.6), "for K, b, η,\nn and T", "unproved"),
    "Corollary 1": ((9.4, 0.8), "masks lower\nthe error", "unproved"),
}
ARROWS = [("Lemma 1", "Theorem 3"), ("Lemma 3", "Theorem 1"), ("Theorem 1", "Theorem 3")]
ARROWS += [("Theorem 2", "Theorem 3"), ("Theorem 3", "Five laws"), ("Theorem 3", "Corollary 1")]
WIDE, HIGH = 2.1, 1.15

# %% tags=["remove-input"] mystnb={"figure": {"caption": "Three of the four statements that Theorem 3 is built on are false, and the fourth loses a factor T². Arrows show what follows from what; the last line of each box is our verdict.", "name": "fig-stability-chain"}, "image": {"alt": "Boxes with arrows. Lemma 1, false, Theorem 1, loose by T squared, and Theorem 2, false at its own learning rate, lead to Theorem 3, which is vacuous. Lemma 3, false, leads to Theorem 1. From Theorem 3 arrows lead to the five laws, which lose their proof, and to Corollary 1, which does not follow."}}
fig, ax = plt.subplots(figsize=(6.9, 3.5))
for first, second in ARROWS:
    (x, y), (across, up) = BOXES[first][0], BOXES[second][0]
    ends = (across - WIDE / 2, up + 0.42 * (y - up)), (x + WIDE / 2, y)
    ax.annotate("", *ends, arrowprops={"arrowstyle": "-|>", "color": GREY, "lw": 1.6})
for name, ((x, y), text, verdict) in BOXES.items():
    shade = BROWN if "loose" in verdict else VERMILION
    corner = (x - WIDE / 2, y - HIGH / 2)
    style = {"boxstyle": "round,pad=0,rounding_size=0.12", "fc": "white", "ec": shade, "lw": 2}
    ax.add_patch(FancyBboxPatch(corner, WIDE, HIGH, **style))
    ax.text(x, y + 0.38, name, ha="center", va="center", fontsize=11.5, weight="bold")
    ax.text(x, y + 0.02, text, ha="center", va="center", fontsize=11, linespacing=0.95)
    ax.text(x, y - 0.39, f"✗ {verdict}", ha="center", va="center", fontsize=11, color=shade)
ax.set(xlim=(0.2, 10.5), ylim=(-0.25, 3.65))
ax.set_title("Every link of the paper's chain is broken or loose")
ax.axis("off")
plt.show()

# %% [markdown]
# | paper | states | problem | counterexample | instead |
# |---|---|---|---|---|
# | Lemma 1 | $E_G \le \frac{1}{2\gamma} \lVert \nabla f \rVert^2 + \frac{L+\gamma}{2} S$ | replaces single gradients by their mean | mean of ten numbers: 0.01 for $E_G = 0.1$ ({ref}`cell <stability-lemma-one>`) | R1 |
# | Lemma 3 | $s_t \le 16 K \eta^2 (\frac{\sigma_t^2}{n} + \frac{3 b \zeta_t^2}{n})$ | drops a mean that is not zero after training | 11 times too small for $n = 2$, $K = 200$ ({ref}`cell <stability-lemma-three>`) | R2 |
# | Theorem 1 | $S \le \sum_t w_t s_t$ | lets all experts move | 64 times too large for $T = 8$ ({ref}`cell <stability-merge>`) | R3 |
# | Theorem 2 | $\lVert \nabla f \rVert^2 \le \varepsilon$ at the merge | the source bounds it at $\theta_0$ | a squared gradient of 36 where it allows 6 ({ref}`cell <stability-theorem-two>`) | {prf:ref}`thm-stability-descent` |
# | Theorem 3 | $\eta = \sqrt{T/K}$ in $\varepsilon$, any $\eta$ in $S$ | conditions allow no such rate | at least 32 times $\theta_0$'s error ({prf:ref}`thm-stability-vacuous`) | {eq}`eq-stability-repaired` |
# | five laws: how the error depends on $K$, $b$, $\eta$, $n$ and $T$ | read off from Theorem 3 | follow from two different rates | the term for $K$ is constant ({ref}`cell <stability-own-rate>`) | [](42-scaling-laws) |
# | Corollary 1 | masks, which set entries of task vectors to zero, lower $\zeta_t$ | $\zeta_t$ belongs to the losses | pruning everything would be best ({ref}`cell <corollary-prune>`) | [](41-corollary-one) |
#
# As an inequality, Lemma 3 has room in practice. It fails beyond about $K = 9n$ steps. A pass has $n/b$ steps, so these are
# $9b$ passes: 576 to 2,304 at the paper's batches of 64 to 256. As a law, it has the wrong sign for $b$ from the first pass on.
# [](45-stability-proofs) walks through each proof and marks the line that fails.
#
# ## Three corrected bounds
#
# ```{prf:theorem} R1: stability bounds generalisation
# :label: thm-stability-generalisation
# Let examples be drawn independently, those of a task from one distribution, and the replacement from the same. Let
# the losses, heads of networks included, and the randomness of training not depend on the examples. Let every example's loss
# be $L$-smooth, and let $V = \frac1T \sum_t \frac1n \sum_j \mathbb E \lVert \nabla \ell(\theta; z_{tj}) \rVert^2$. Then
#
# $$ E_G \le \tfrac L2 S + \sqrt{S\,V} . $$
#
# If losses are not negative, $V \le 2 L\, \mathbb E f(\theta)$.
# ```
#
# With the best $\gamma$, Lemma 1 reads $\frac L2 S + \sqrt S\, \lVert \nabla f \rVert$. R1 has $V$, the mean squared gradient of
# *single* training examples, in place of $\lVert \nabla f \rVert^2$. It does not vanish at a minimum of $f$. Take ten numbers
# of variance 1, the loss $\frac12 (\theta - z)^2$ and their mean as $\theta$. Then $E_G = 0.1$, $S = 0.02$, $V = 0.9$ and
# $\nabla f = 0$. Lemma 1 allows 0.01, and R1 allows 0.144.
#
# ```{prf:theorem} R2: stability of SGD
# :label: thm-stability-local
# Let losses be $L$-smooth and $\lVert \nabla\ell(\theta; z) - \nabla f_t(\theta) \rVert \le \sigma_t$ for every example
# and at every $\theta$, both before and after the replacement. Then, with batches of $b$ of $n \ge 2$ examples, drawn
# without replacement and independently at each of $K$ steps, the squared distance $s_t$ that one expert moves satisfies
#
# $$
# \begin{aligned}
# s_t \le\ & (1 + \eta L)^{2(K-1)}\; 4 \sigma_t^2 \Big( \frac{n}{n-1} \Big)^2 \\
# & \times \eta^2 \Big[ \frac{K (1 - b/n)}{b\, n} + \frac{K^2}{n^2} \Big] .
# \end{aligned}
# $$
#
# For whole shuffled epochs, if $b$ divides $n$, the bracket is $K^2/n^2$. For convex losses and $\eta \le 2/L$ the first
# factor is 1.
# ```
#
# In the first pass $s_t$ grows with $K$ and falls with $b$ and $n$: longer training is less stable. Over many passes the second
# term takes over, because training moves towards the same example again and again. Other tasks play no part. At equal steps a
# larger batch lowers the bound, and it lowers the measured $s_t$ below. The measured $E_G$ of a merge still rises with the batch
# ([](42-scaling-laws)). This does not contradict R1, which is an upper bound and contains $V$, but it is a reason not to choose a
# batch by the bound.
#
# ```{prf:proposition} R3: a merge is more stable than its experts
# :label: prop-stability-merge
# Let the merge be $\sum_t w_t \theta_t$ with weights that are fixed beforehand. Then $S = \frac1T \sum_t w_t^2\, s_t$.
# With equal weights this is $\frac{1}{T^2}$ of the mean of the $s_t$.
# ```
#
# A replaced example belongs to one task, so only one expert moves, and the merge by $w_t$ times as much. Learned
# weights, as in AdaMerging, and rules that are not linear, as TIES, are not covered.
#
# (stability-one-merge)=
# ## The bounds on real networks
#
# Experts of four tasks are trained by plain SGD in batches of 8 on 128 examples each, and averaged. The stability comes from
# trainings with one example replaced; $V$, $\nabla f$ and $L$ (a lower estimate) are measured at the merge, and $E_G$ on further
# examples of the same draw, less that of the pretrained model.

# %% tags=["remove-input"] mystnb={"figure": {"caption": "R1 holds at every point, and its main part √(SV) rises with the generalisation error. Lemma 1, with the best γ and the same constants, lies below the error for perceptrons up to two passes. Averages of four experts on four tasks, five seeds; error bars are 95 % intervals.", "name": "fig-stability-merges"}, "image": {"alt": "Two panels on logarithmic axes against passes over the data. Left, perceptrons: the measured error rises from 0.05 to 0.5 nats, the root of SV from 0.14 to 2.8, R1 from 0.14 to 7. Lemma 1 starts at 0.02, below the error, and crosses it between two and eight passes. Right, transformers: the measured error rises from 0.14 to 0.5, the root from 1 to 5, and R1 and Lemma 1 to about 50."}}
fig, axes = plt.subplots(1, 2, figsize=(6.9, 3.5), sharey=True)
lines = {"bound": ("R1", GREEN, "s-"), "root": ("√(SV)", GREEN, "s:")}
lines["lemma_1"] = ("Lemma 1", VERMILION, "^--")
for ax, (network, rows) in zip(axes, real.items()):
    rows = rows.set_index(rows.index * 8 / 128)
    for column, (text, shade, mark) in lines.items():
        ax.plot(rows.index, rows[column], mark, color=shade, label=text, ms=5, lw=1.6)
    measured = rows.rename(columns={"error": "mean"})
    plots.curve(ax, measured, ("measured $E_G$", BLACK, "o-"))
    plots.log_axis(ax, rows.index)
    ax.set(yscale="log", xlabel="passes over the data")
    ax.set_title(f"four {network}s", fontsize=12, weight="normal")
axes[0].set_ylabel("nats")
fig.suptitle("R1 holds and is loose; Lemma 1 fails early", fontsize=13, weight="bold")
plots.legend_outside(fig, ncols=4, fontsize=11)
plt.show()

# %% tags=["remove-cell"]
mlp, vit = real.values()
for rows in real.values():
    assert (rows["error"] + rows["half_width"] < rows["root"]).all()
    assert rows["error"].is_monotonic_increasing
    assert rows["root"].is_monotonic_increasing
early = mlp.loc[[8, 32]]
assert (early["error"] - early["half_width"] > early["lemma_1"]).all()
assert (early["error"] / early["lemma_1"]).round().tolist() == [3, 2]
assert (vit["lemma_1"] > vit["error"]).all()
factors = pd.concat([rows["bound"] / rows["error"] for rows in real.values()])
assert 90 < factors.max() < 110
assert all(values.min() > 2 and values.max() < 10 for values in ratios.values())
raw = load_table(MERGES["perceptron"], "merged").query("steps == 8").mean()
needed = early["error"][8] - (raw["stability"] * raw["squared"]) ** 0.5
assert 4 < needed / (raw["smoothness"] / 2 * raw["stability"]) < 6

# %% [markdown]
# Lemma 1 allows a third of perceptrons' measured $E_G$ after half a pass, and half after two passes. The largest measured
# curvature would have to be five times larger to save it. The term $\frac L2 S$ makes R1 loose after many steps.
#
# R2 is tested by its exponents. Each network is trained twice, with one example replaced, and one setting varies at a time.

# %% tags=["remove-cell"]
FILES = {"perceptron": "glyphs8-retraining-mlp", "transformer": "vision8-retraining-vit_small"}
moves = {name: networks.moves_with_laws(load_result(file)) for name, file in FILES.items()}
exponents = {}
for name, measured in moves.items():
    fitted = networks.fits(measured).reset_index()
    rows = over_seeds(fitted, "sweep", "stability").rename(columns={"mean": "measured"})
    rows = rows.join(fitted.groupby("sweep")[[*networks.LAWS]].mean())
    exponents[name] = rows.rename_axis(None)

# %% tags=["remove-input"] mystnb={"figure": {"caption": "A larger batch makes an expert more stable on both networks, where Lemma 3 says the opposite. Exponents of the squared distance that an expert moves when one training example is replaced, with 95 % intervals across five seeds, and those of Lemma 3 and of R2 on the same settings.", "name": "fig-stability-measured"}, "image": {"alt": "Two panels with eight rows. For the batch all measured exponents are below zero, as those of R2, and those of Lemma 3 above. For the number of examples they lie between minus 1.3 and minus 1.6, below Lemma 3's minus one. For the steps the perceptron lies between both laws, at 1.2 to 1.5, and the transformer at 0.5 to 0.9, below both. For the learning rate the perceptron has 1.9 and the transformer 1.6, where both laws have 2."}}
fig, axes = plt.subplots(1, 2, figsize=(6.9, 3.9), sharey=True)
marks = {"printed": ("Lemma 3", VERMILION, "^"), "repaired": ("R2", GREEN, "s")}
for ax, (network, rows) in zip(axes, exponents.items()):
    places = range(len(rows))
    for law, (text, shade, mark) in marks.items():
        ax.plot(rows[law], places, mark, color=shade, ms=8, label=text)
    bars = {"fmt": "o", "color": BLACK, "capsize": 3, "label": "measured"}
    ax.errorbar(rows["measured"], places, xerr=rows["half_width"], **bars)
    ax.axvline(0, color=BLACK, lw=1)
    ax.set(xlabel="exponent")
    ax.set_title(network, fontsize=12, weight="normal")
plots.name_axis(axes[0], rows.index)
title = "Larger batches and more data make an expert more stable"
fig.suptitle(title, fontsize=13, weight="bold")
plots.legend_outside(fig, ncols=3, fontsize=11)
plt.show()

# %% tags=["remove-cell"]
one, other = exponents.values()
low, high = one["measured"] - one["half_width"], one["measured"] + one["half_width"]
assert (low[["steps, later passes", "steps, whole epochs"]] > one["printed"].iloc[0]).all()
assert (high[["steps, later passes", "steps, whole epochs"]] < one["repaired"].iloc[1]).all()
top = other["measured"] + other["half_width"]
for ends in (high, top):
    assert (ends[["batch, one pass", "batch, many"]] < 0).all()
    assert (ends[["examples, one pass", "examples, many"]] < -1).all()
assert (one["printed"][["batch, one pass", "batch, many"]] > 0).all()
assert abs(one.loc["rate", "measured"] - 2) < 0.2
assert (top[["steps, first pass", "steps, whole epochs"]] < 1).all()
assert top["rate"] < 2
for rows, limit in zip(moves.values(), (1e-6, 1e-4)):
    assert (rows["chaos"] < limit * rows["stability"]).all()

# %% tags=["remove-cell"]
drawn = moves["perceptron"].query("sampling == 'drawn'")
means = drawn.groupby(["rate", "batch", "examples", "steps"])[["stability", "repaired", "printed"]]
assert (means.mean()["stability"] < means.mean()["repaired"]).all()
assert (means.mean()["stability"] < means.mean()["printed"]).all()
assert 50 < (means.mean()["printed"] / means.mean()["stability"]).median() < 200

# %% [markdown]
# For batch and data R2 has the right direction, and for steps R2 is too steep. Both laws bound the gradient noise by one constant, but it shrinks as
# examples are learned. The [ledger](47-stability-claims) (claim T10) allows a tolerance around
# each exponent. By this test only Lemma 3's law for the batch fails, and the other 13 checks stay open with five seeds. Lemma 3
# lies about a hundred times above the measured stability, and R2 also lies above it.
#
# ## The conditions leave no room for a step
#
# Let $\Delta = f(\theta_0) - f(\hat\theta)$ be the excess error of the pretrained model.
#
# ```{prf:theorem} Theorem 3 is vacuous in its domain
# :label: thm-stability-vacuous
# For equal steps and weights, wherever $\eta L K \le \frac18$, as the proof of Lemma 3 requires, the bound of Theorem 3 is
# at least $32\, \Delta$.
# ```
#
# {eq}`eq-stability-theorem-three` contains $2 C \varepsilon$, and $\varepsilon$ contains $4\Delta/(\eta K)$, which is at least $32 L \Delta$ by the
# condition. Smoothness gives $\lVert \nabla f \rVert^2 \le 2L\, (f - f(\hat\theta))$, so $C$ is at least $1/(2L)$, and the product
# at least $32 \Delta$. So the bound cannot distinguish the merge from a model that was never fine-tuned. The main text of the
# paper omits the condition.
#
# A fourth bound, R4 ({prf:ref}`thm-stability-descent`), bounds how far merging lowers the loss, from gradients at $\theta_0$ alone.
# Its condition, $\eta L K \le 1/(2\sqrt3)$, has the curvature $L$ of the mean loss. The table has curvatures of pretrained
# networks, of single examples and of the mean loss (lower estimates), the steps that both conditions allow at our rates, and Theorem 3 over $\Delta$
# at $\eta L K = \frac18$.

# %% tags=["remove-cell"]
BACKBONES = {  # result of the study `stability`, and the rate that the book trains at
    "ViT, 1.4 M": ("vision8-stability-vit", 4e-4),
    "ViT, 0.4 M": ("vision8-stability-vit_small", 4e-4),
    "the same, scripts": ("glyphs8-stability-vit_small", 4e-4),
    "ResNet, narrow": ("vision8-stability-resnet18_narrow", 0.01),
    "ResNet, full width": ("vision8-stability-resnet18_strided", 0.01),
    "perceptron, scripts": ("glyphs8-stability-mlp", 0.02),
    "MiniLM, sentences": ("sentences8-stability", 1e-4),
}
domain = {}
for name, (file, rate) in BACKBONES.items():
    table = load_table(file, "curvature").query("point == 'pretrained'")
    largest = table.groupby(["of", "seed"])["smoothness"].max().groupby("of").mean()
    row = {"L of the mean": largest["mean"], "of an example": largest["example"], "rate": rate}
    row["steps"] = bounds.PAPERS_DOMAIN / (rate * largest["example"])
    domain[name] = row | {"Theorem 3": np.mean(networks.theorem_3(load_result(file)))}
domain = pd.DataFrame(domain).T

# %% tags=["remove-input"]
steps = {"paper's": domain["steps"]}
steps["R4's"] = bounds.REPAIRED_DOMAIN / (domain["rate"] * domain["L of the mean"])
columns = {
    "L, example": domain["of an example"].map("{:,.0f}".format),
    "L, mean": domain["L of the mean"].map("{:,.0f}".format),
    "steps, paper": steps["paper's"].map("{:.2g}".format),
    "steps, R4": steps["R4's"].map("{:.2g}".format),
    "Theorem 3, ratio": domain["Theorem 3"].map("{:,.0f}".format),
}
renamed = {"the same, scripts": "ViT, 0.4 M, scripts"}
pd.DataFrame(columns).rename(index=renamed).rename_axis(None)

# %% tags=["remove-cell"]
assert (domain["steps"].drop("MiniLM, sentences") < 0.1).all()
assert 1 < domain.loc["MiniLM, sentences", "steps"] < 2
assert (domain["Theorem 3"] >= 32).all()
few = ["ViT, 1.4 M", "ViT, 0.4 M", "the same, scripts", "perceptron, scripts"]
assert steps["R4's"][few].between(1, 6).all()
assert steps["R4's"].filter(like="ResNet").lt(0.1).all()
assert steps["R4's"]["MiniLM, sentences"].round() == 32
if EXACT:
    assert abs(start - 0.3048) < 1e-4
    assert 45 < least["steps"] < 60
    assert least["excess"] < 0.01 < start < 1.2 < last["excess"]
    assert clean["generalisation"].max() == 0
    assert rise["generalisation"] < 0.01 * rise["optimisation"]
    assert best["excess"] < level < end["excess"]

# %% [markdown]
# The paper's condition allows one step of MiniLM and less than a tenth of a step of every other network. R4's condition allows 32
# steps of MiniLM, one to six of the ViTs and the perceptron, and none of the ResNets. Even on
# the four quadratic tasks R1 to R4 together prove a gain of less than 1 % of $\Delta$ ({ref}`figure <fig-stability-bounds>`).
#
# ## In practice
#
# * **Evaluate the merge on training examples, too.** If it is bad there, another scale or other
#   weights may help. If not, more data may. Fewer steps may help in both cases.
# * **Choose steps and learning rate together.** On quadratics the best $\eta K$ is the same for all rates (exercise
#   {ref}`ex-stability-rule`), but equal $\eta K$ is not equally good on networks ([](42-scaling-laws)). The value must come from validation data.
# * **Do not choose settings by a bound.** [](43-choosing-by-the-bound) compares the choices of several bounds.
# * **Expect a smaller $S$ with more tasks**, by R3.
#
# ## Exercises
#
# ```{exercise} Tasks that may train for ever (medium)
# :label: ex-stability-equal
# Give all four tasks the curvature of the first, leave their minima where they are, and remove the noise. Show that the
# error falls at every step, however far the minima are from each other. Which other assumption on minima and
# curvatures makes the late merge harmless?
# ```

# %% [markdown]
# ````{solution-start} ex-stability-equal
# :class: dropdown
# ````
# By part 3 of {prf:ref}`prop-stability-early` the merge *is* gradient descent on $f$. By part 2, the late merge is harmless if
# $\bar c = \hat\theta$ with $\bar c = \frac1T \sum_t c_t$, which means $\sum_t H_t (c_t - \bar c) = 0$. Then the places of the
# minima have nothing to do with the curvatures, on average over the tasks.

# %% tags=["nbval-check-output"]
from mergebook.stability.theory.quadratics import Quadratics

equal = Quadratics(
    hessians=tasks.hessians[:1].expand(4, 6, 6),
    centres=tasks.centres,
    covariances=0 * tasks.covariances,
    start=tasks.start,
)
table = errors_over_steps(equal, [*range(1, 200)], 0.05, batch=1, examples=1)
print("falls at every step:", bool((table["excess"].diff().dropna() < 0).all()))

# %% [markdown]
# ````{solution-end}
# ````
#
# ```{exercise} Where Lemma 3 fails (easy)
# :label: ex-stability-passes
# For small $\eta L K$ and $b \ll n$ the exact stability of a quadratic with curvature 1 is
# $s = 2 \sigma^2 \eta^2 (K/(bn) + K^2/n^2)$, and $\zeta = 0$. Beyond how many steps per example does it exceed Lemma 3? How
# many passes are that for $b = 256$?
# ```

# %% [markdown]
# ````{solution-start} ex-stability-passes
# :class: dropdown
# ````
# $2 (1/b + K/n) > 16$ gives $K/n > 8 - 1/b$. A pass has $n/b$ steps, so 8 steps per example are $8b = 2048$ passes. The
# shrinking of the curved loss moves the limit to about 9:

# %% tags=["nbval-check-output"]
from mergebook.stability.theory.quadratics import errors
from mergebook.stability.theory.steps import Training

one = torch.ones(1, 1, 1, dtype=torch.float64)
mean_of_numbers = Quadratics(one, one[0], one, torch.zeros(1, dtype=torch.float64))
for n, b, k in ((4000, 256, 4000), (400, 64, 3400), (400, 64, 4000)):
    plan = Training.alike(1, k, 1 / (8 * k), batch=b, examples=n)
    known = bounds.Losses(1.0, torch.ones(1), torch.zeros(1))
    law = bounds.printed_local_stability(known, plan)
    ratio = float(errors(mean_of_numbers, plan).local_stability / law)
    print(f"{k / n:4.1f} steps per example: exact / Lemma 3 {ratio:.2f}")

# %% [markdown]
# ````{solution-end}
# ````
#
# ## Summary
#
# * Early steps of all experts add up to one step down the shared loss. Late experts sit in minima whose mean ignores
#   curvature. On quadratics this alone makes the U; on networks, along the steps and within seven passes, $E_G$ does.
# * The paper's Lemmas 1 and 3 and Theorem 2 are false, Theorem 1 is loose by $T^2$, and Theorem 3 says nothing where it applies.
# * R1, R2 and R3 hold. The main part of R1 is two to ten times the measured $E_G$, and all of R1 up to a hundred times.
#
# ````{dropdown} Where each item of the paper is
# | paper | here |
# |---|---|
# | Eq. 1 to 3, Remark 1 | {eq}`eq-stability-excess` |
# | Definitions 1 and 2, Eq. 4 | {eq}`eq-stability-S` |
# | Assumptions 1 to 5, Remarks 2 and 3 | {ref}`stability-everywhere` |
# | Lemma 1, Lemma 2 | {ref}`stability-proof-lemma-one` |
# | Eq. 5, 23 and 24, $\gamma^*$, Theorem 3 | {ref}`stability-theorem-three` |
# | Lemma 3, Eq. 11 and 12 | {ref}`stability-proof-lemma-three` |
# | Theorem 1, Eq. 13 | {ref}`stability-merge` |
# | Eq. 14, vectors $a_i$, Remark 6 | {ref}`stability-vectors` |
# | Theorems 2 and 4, Corollary 2, Eq. 6, 7 and 19 to 22 | {ref}`stability-theorem-two` |
# | Assumption 6, Lemma 4, Eq. 15 to 18 | {ref}`stability-lemma-four` |
# | Corollary 1, Eq. 8 to 10 | [](41-corollary-one) |
# | Remark 4 | [](44-remedies), {ref}`AdaMerging <ex-corollary-weights>`, {ref}`Re-Basin <ex-corollary-rebasin>` |
# | Remark 5, Section V, Appendix A-A1, Figures 1 to 9 | [](42-scaling-laws) |
# | Figure 1, introduction | {ref}`stability-introduction` |
# | Tables I and II, counts of models | {ref}`stability-count`, [ledger](47-stability-claims) |
# | Conclusion, choosing by the bound | [](43-choosing-by-the-bound) |
# ````
#
# The errors of the paper that matter are in the [](../book/errata).
