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
# # Averaging and task vectors
#
# **In one sentence:** models that were fine-tuned from one shared start lie in one valley of the
# loss, so points between them are good models too, and the *differences* from the start can be
# added, scaled and subtracted like arrows.
#
# Everything in this book is built on two observations. The first is that one may **average** the
# weights of fine-tuned models {cite}`wortsman2022model`, which ought to be absurd: a network's
# output is anything but linear in its weights. The second is that the way from the pretrained
# weights to a fine-tuned model behaves like a vector with a meaning, a **task vector**
# {cite}`ilharco2023editing`: add several to gain several skills, subtract one to forget.
#
# **After this chapter you can**
#
# * walk the line between two models, define the barrier on it, and measure it;
# * explain with one experiment why a shared start matters, and with one inequality why averages
#   work in a valley;
# * show that averaging is task arithmetic with the scale $1/T$;
# * choose the scale on validation data, and say why it has to fall as tasks are added;
# * make a model forget a task, and check what it forgot beside it.
#
# **Before you start:** [](01-testbed); derivatives and the chain rule. **Time:** 30 minutes to
# read, about a minute and a half to run once the experts are cached.

# %% tags=["parameters"]
SUITE = "glyphs8"
PROFILE = "default"
SEED = 0
DEVICE = "cpu"

# %% [markdown]
# The experts are those of the testbed: one backbone $\theta_0$, and for each of the $T$ tasks an
# expert $\theta_t$ that was fine-tuned from it under a frozen head. `part` cuts the suite down to
# some of its tasks.

# %%
from dataclasses import replace

import pandas as pd
import torch

import mergelib as ml
from mergelib.plots import use_style

use_style()
suite = ml.load_suite(SUITE, seed=SEED, profile=PROFILE)
zoo = ml.load_zoo(suite, device=DEVICE)
names = list(suite.tasks)


def part(tasks):
    """The suite with these tasks alone."""
    return replace(suite, tasks={name: suite.tasks[name] for name in tasks})


# %% [markdown]
# ## The straight line between two models
#
# Two models of one architecture are two points in the same space of weights, so there is a straight
# line between them,
#
# $$
# \theta(\alpha) = (1-\alpha)\,\theta_A + \alpha\,\theta_B , \qquad 0 \le \alpha \le 1 .
# $$ (eq-line)
#
# Each point of the line is a set of weights, hence a model, and we can judge it. In the middle,
# $\alpha = \frac12$, lies the average of the two. `ml.lerp` is Equation {eq}`eq-line`, and
# `evaluate_many` judges a whole line of candidates.

# %%
import numpy as np

POSITIONS = np.linspace(0, 1, 9)


def along(start, end, tasks, positions=POSITIONS):
    """Accuracy and loss of tasks at positions on the line from `start` (0) to `end` (1)."""
    line = {position: ml.lerp(start, end, position) for position in positions}
    return ml.evaluate_many(zoo.model, line, zoo.heads, part(tasks))


# %% [markdown]
# What would we expect? If the loss $L$ were a bowl, it would lie *below* the straight chord between
# its two end values everywhere. What we fear is a hill in between. Its height above the chord is
# the **barrier** {cite}`frankle2020linear`,
#
# $$
# B(\theta_A, \theta_B) = \max_{0\le\alpha\le1}
#   \Bigl[ L\bigl(\theta(\alpha)\bigr) - (1-\alpha)\,L(\theta_A) - \alpha\,L(\theta_B) \Bigr] .
# $$ (eq-barrier)
#
# The ends themselves contribute a zero, so a barrier is never negative. Two models with a barrier
# of about zero are called **linearly mode connected**.


# %%
def barrier(path):
    """Equation (barrier) for the table of one task along a line, in nats."""
    loss = path.set_index("candidate")["loss"]
    chord = (1 - loss.index) * loss.iloc[0] + loss.index * loss.iloc[-1]
    return float((loss - chord).max())


# %% [markdown]
# ### Same task, same start, another seed
#
# The first pair is as close as two fine-tuned models can be: the expert of the first task, and a
# *rival* that was trained on the same task from the same backbone, under the same head. Only the
# order of the training pictures differs.

# %%
from mergelib.testbed.models import scale_pixels
from mergelib.testbed.training import fine_tune

first, second = names[:2]
again = {"recipe": ml.Recipe(), "transform": scale_pixels, "seed": SEED + 1}
rival = fine_tune(zoo.model, zoo.heads[first], suite.tasks[first].train, **again)
twins = along(zoo.experts[first], rival, [first])

# %% [markdown]
# ### Same task, no common start
#
# For contrast we need models that do *not* share a start. A small multilayer perceptron is quick to
# train from scratch, so we train three of them on one task, with a frozen random head that all
# share: two from **different random initial weights**, and one from the same initial weights as the
# first but in another order of pictures.

# %%
from mergelib.testbed.models import MLP, Head

chess = ml.load_suite("glyphs8", seed=SEED, profile=PROFILE, tasks=["chess"])
pictures = chess.tasks["chess"].train
torch.manual_seed(SEED)
head = Head(torch.randn(len(chess.tasks["chess"].class_names), MLP().width)).to(DEVICE)
scratch = ml.Recipe(learning_rate=1e-3, epochs=20)


def perceptron(start, order):
    """An MLP trained from the random weights of one seed, in the order of another."""
    torch.manual_seed(1000 * SEED + start)
    network = MLP().to(DEVICE)
    return fine_tune(network, head, pictures, scratch, transform=scale_pixels, seed=order)


one, stranger, sibling = perceptron(1, 1), perceptron(2, 2), perceptron(1, 2)

# %% [markdown]
# The two lines start at the same perceptron. One leads to the sibling, the other to the stranger.

# %%
lines = {}
for kind, other in {"same start": sibling, "different starts": stranger}.items():
    line = {position: ml.lerp(one, other, position) for position in POSITIONS}
    lines[kind] = ml.evaluate_many(MLP().to(DEVICE), line, {"chess": head}, chess)

# %% tags=["hide-input"] mystnb={"figure": {"caption": "Test loss (left) and accuracy (right) on the straight line between two models of the same task. Two fine-tunes of one backbone are joined by a flat line, two perceptrons from the same random weights by a low rise; two perceptrons from different random weights are parted by a high barrier.", "name": "fig-line-barrier"}, "image": {"alt": "Two panels over the position on the line. The fine-tunes of one backbone have a flat curve in both. The perceptrons with the same start show a slight rise of the loss and a slight dip of the accuracy. For the perceptrons from different starts the loss doubles in the middle, and the accuracy falls to less than half of that at the ends."}}
import matplotlib.pyplot as plt

from mergelib.plots import COLOURS

figure, panels = plt.subplots(1, 2, figsize=(7.2, 3.8))
shown = {
    "ViT, one backbone": (twins, COLOURS["task_arithmetic"], "o"),
    "MLP, same start": (lines["same start"], COLOURS["average"], "s"),
    "MLP, different starts": (lines["different starts"], COLOURS["cart"], "^"),
}
for name, (path, shade, marker) in shown.items():
    for ax, column, factor in zip(panels, ("loss", "accuracy"), (1, 100), strict=True):
        ax.plot(path["candidate"], factor * path[column], color=shade, marker=marker, label=name)
panels[0].set(xlabel="position α", ylabel="nats a picture", title="Test loss", ylim=(0, None))
panels[1].set(xlabel="position α", ylabel="%", title="Test accuracy", ylim=(0, 100))
figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=3)
plt.show()

# %%
barriers = pd.Series({name: barrier(path) for name, (path, *_) in shown.items()}, name="barrier")
barriers.round(2).to_frame()

# %% [markdown]
# Compare the two pairs of perceptrons: same architecture, same task, same head. What tells them
# apart is **whether the two models began at the same point**. Two networks that grew from different
# random weights may be equally good, but their hidden units have nothing to do with each other, and
# averaging unit 17 of one with unit 17 of the other averages an edge with a blob. (The last
# exercise turns this into an exact statement.) From a shared start the units keep their roles.
#
# A shared *random* start leaves a low rise, a shared *pretrained* start none. That is what
# {cite:t}`frankle2020linear` found: the first stretch of training decides which valley a network
# ends in, and models that have it in common stay connected. So here is the first rule of merging:
# **experts must share their start.** Whoever merges models without one has to align them first
# {cite}`ainsworth2023git`.

# %% [markdown]
# ## Why the middle of a valley is good
#
# The curves suggest a reason: near the experts, the loss looks like a bowl.
#
# ```{prf:proposition} Averaging in a convex region
# :label: prop-jensen
# Let $L$ be convex on a convex set that contains $\theta_1, \dots, \theta_T$. Then the average
# $\theta_{\text{avg}} = \frac1T\sum_t \theta_t$ satisfies
# $L(\theta_{\text{avg}}) \le \frac1T \sum_t L(\theta_t)$. If $L$ is quadratic there with Hessian
# $H$, the gain is known exactly:
#
# $$
# \frac1T \sum_{t=1}^T L(\theta_t) - L(\theta_{\text{avg}})
#   = \frac{1}{2T} \sum_{t=1}^{T}
#     (\theta_t - \theta_{\text{avg}})^\top H\, (\theta_t - \theta_{\text{avg}}) .
# $$
# ```
#
# ```{prf:proof}
# The inequality is Jensen's. For the equality write $\delta_t = \theta_t - \theta_{\text{avg}}$ and
# let $v$ be the gradient at $\theta_{\text{avg}}$. For a quadratic,
# $L(\theta_t) = L(\theta_{\text{avg}}) + v^\top \delta_t + \tfrac12 \delta_t^\top H \delta_t$
# exactly. Averaged over $t$, the middle term vanishes since $\sum_t \delta_t = 0$.
# ```
#
# So in a valley an average is never worse than its parts are on average, and it gains more, the
# more the parts differ in directions that are curved. For two models on a line the same calculation
# says that a quadratic loss lies below its chord by $\tfrac12 \alpha(1-\alpha)\,
# (\theta_A-\theta_B)^\top H\,(\theta_A-\theta_B)$: **one** measurement, in the middle, fixes the
# whole curve,
#
# $$
# L\bigl(\theta(\alpha)\bigr) = (1-\alpha) L(\theta_A) + \alpha L(\theta_B)
#   - 4\,\alpha(1-\alpha)\, g,
# \qquad g = \tfrac12\bigl(L(\theta_A) + L(\theta_B)\bigr) - L\bigl(\theta(\tfrac12)\bigr).
# $$ (eq-parabola)
#
# That can be tested. We predict the other six points of the twins' line from its two ends and
# its middle.

# %%
loss = twins.set_index("candidate")["loss"]
chord = (1 - POSITIONS) * loss.iloc[0] + POSITIONS * loss.iloc[-1]
gain = (loss.iloc[0] + loss.iloc[-1]) / 2 - loss[0.5]
predicted = chord - 4 * POSITIONS * (1 - POSITIONS) * gain
error = np.abs(loss - predicted).max()
print(f"gain in the middle: {gain:.4f} nats, below end losses of about {loss.iloc[0]:.2f}")
print(f"largest error of the prediction: {error / abs(gain):.1%} of the gain")

# %% [markdown]
# The valley between twins is a parabola, almost exactly. It is also very shallow: models that differ
# in the order of their pictures alone have little to gain from each other. In *accuracy* the middle
# need not win at all, as the table of claims below will show.
#
# ## Two tasks: the line between two experts
#
# Averaging two models of the *same* task is the business of model soups. Merging wants more: the
# experts of *different* tasks. Now each point of the line has two losses. We also walk from the
# pretrained model to an expert and beyond it, to $\alpha = 1.5$, and watch a second task on the way.

# %%
between = along(zoo.experts[first], zoo.experts[second], [first, second])
outward = along(
    zoo.pretrained, zoo.experts[first], [first, second], positions=np.linspace(0, 1.5, 7)
)

# %% tags=["hide-input"] mystnb={"figure": {"caption": "Test accuracy of two tasks on two lines: between their experts (left), and from the pretrained model through the first expert and beyond (right).", "name": "fig-line-two-tasks"}, "image": {"alt": "Left, between the experts: each task is best at its own expert and falls off gently towards the other; the curves cross in the middle, where both tasks are much nearer to their experts than to the pretrained model. Right, from the pretrained model outward: the first task rises steeply and stays level past the expert, while the second task falls slowly."}}
figure, panels = plt.subplots(1, 2, figsize=(7.2, 3.8), sharey=True)
shades = {first: COLOURS["task_arithmetic"], second: COLOURS["cart"]}
for ax, path in zip(panels, (between, outward), strict=True):
    for name, rows in path.groupby("task", sort=False):
        ax.plot(rows["candidate"], 100 * rows["accuracy"], "o-", color=shades[name], label=name)
ends = f"{first} (0) to {second} (1)"
panels[0].set(xlabel=ends, ylabel="test accuracy, %", ylim=(0, 100), title="Between experts")
panels[1].set(xlabel=f"pretrained (0) to {first} (1)", title="Outward")
panels[1].axvline(1, color="#8c8c8c", linestyle=":")
panels[0].legend()
plt.show()

# %% tags=["hide-input"]
middle = between[between["candidate"] == 0.5].set_index("task")["accuracy"]
own = {name: between[(between["task"] == name)]["accuracy"].max() for name in (first, second)}
start = outward[outward["candidate"] == 0].set_index("task")["accuracy"]
table = pd.DataFrame({"pretrained": start, "middle": middle, "best on the line": own})
(100 * table).round(1)

# %% [markdown]
# The middle of the line is one model that knows much of both tasks, at no extra cost. The right
# panel says something about the direction itself: to go from $\theta_0$ towards an expert is to
# learn its task, gradually, and without a cliff at the end. A direction with a meaning deserves a
# name.

# %% [markdown]
# ## Task vectors
#
# The **task vector** of task $t$ is the way that fine-tuning went {cite}`ilharco2023editing`,
#
# $$
# \tau_t = \theta_t - \theta_0 .
# $$ (eq-task-vector)

# %%
vectors = {name: ml.subtract(expert, zoo.pretrained) for name, expert in zoo.experts.items()}
flat = torch.stack([ml.flatten(vector) for vector in vectors.values()])

# %% tags=["nbval-check-output"]
back = ml.add(zoo.pretrained, vectors[first])
same = all(torch.allclose(back[key], zoo.experts[first][key], atol=1e-6) for key in back)
print(f"{flat.shape[0]} task vectors of {flat.shape[1]:,} entries; adding one back:", same)

# %% [markdown]
# How do task vectors of different tasks lie to each other? The cosine of the angle between two of
# them is
#
# $$
# \cos(\tau_s, \tau_t) = \frac{\tau_s^\top \tau_t}{\lVert\tau_s\rVert\,\lVert\tau_t\rVert} .
# $$ (eq-cosine)

# %%
unit = flat / flat.norm(dim=1, keepdim=True)
cosines = pd.DataFrame((unit @ unit.T).cpu().numpy(), index=names, columns=names)

# %% [markdown]
# Small cosines would mean that the tasks move the weights in different directions. But what counts
# for the merged model is what a foreign task vector does to the *features*. To first order in the
# scale $\lambda$, with $J(x)$ the derivative of the features of picture $x$ with respect to the
# weights,
#
# $$
# \begin{aligned}
# & f\Bigl(x;\ \theta_0 + \lambda \sum_s \tau_s\Bigr) \\
# &\quad = f(x;\theta_0) + \lambda \sum_{s} J(x)\,\tau_s + O(\lambda^2) .
# \end{aligned}
# $$ (eq-first-order)
#
# ```{prf:proposition} When task vectors do not disturb each other
# :label: prop-disentangled
# If $J(x)\,\tau_s = 0$ for every picture $x$ of task $t$ and every $s \ne t$, then on task $t$ the
# merged model agrees with the model that carries $\tau_t$ alone,
# $f(x; \theta_0 + \lambda\tau_t)$, up to $O(\lambda^2)$, however many tasks are added.
# ```
#
# ```{prf:proof}
# Both models have the expansion $f(x;\theta_0) + \lambda J(x)\tau_t + O(\lambda^2)$: in
# Equation {eq}`eq-first-order` all other summands vanish.
# ```
#
# This property is called **weight disentanglement** {cite}`ortiz2023task`. Orthogonality in weight
# space, $\tau_s^\top\tau_t = 0$, is a different statement, about no picture at all. So we measure
# both: the cosines, and how far the *full* task vector of task $s$ moves the features of task $t$,
# compared with how far the task's own vector moves them,
#
# $$
# D_{st} = \frac{\sum_{x \in t} \lVert f(x;\theta_0+\tau_s) - f(x;\theta_0) \rVert}
#               {\sum_{x \in t} \lVert f(x;\theta_0+\tau_t) - f(x;\theta_0) \rVert} .
# $$ (eq-disturbance)

# %%
import copy

from mergelib.testbed.heads import features

sample = {name: task.validation.inputs[:100].to(DEVICE) for name, task in suite.tasks.items()}
network = copy.deepcopy(zoo.model)


def seen_by(state):
    """Features of the sample of every task, in one tensor: (tasks, pictures, width)."""
    network.load_state_dict(state)
    return torch.stack([features(network, images, scale_pixels) for images in sample.values()])


origin = seen_by(zoo.pretrained)
moved = torch.stack([(seen_by(e) - origin).norm(dim=2).sum(1) for e in zoo.experts.values()])
disturbance = pd.DataFrame((moved / moved.diagonal()).cpu().numpy(), names, names)

# %% tags=["hide-input"] mystnb={"figure": {"caption": "Two views of how task vectors relate. Top: cosines in weight space. Bottom: how far the task vector in the row moves the features of the task in the column, relative to the column's own task vector.", "name": "fig-task-vectors"}, "image": {"alt": "Two heat maps of tasks against tasks. Top: ones on the diagonal and small cosines everywhere else, so the task vectors are nearly orthogonal. Bottom: ones on the diagonal, but off-diagonal values are large fractions, so nearly orthogonal vectors still move each other's features."}}
from mergelib.plots import heat_map

figure, panels = plt.subplots(2, 1, figsize=(7.6, 11))
heat_map(cosines, panels[0], low=0, high=1, digits=2, bar="cosine")
heat_map(disturbance, panels[1], low=0, high=1, digits=2, bar="movement, own = 1")
panels[0].set_title("Weight space: cosine")
panels[1].set(title="Feature space: disturbance", ylabel="task vector of", xlabel="pictures of")
plt.show()

# %%
off = ~np.eye(len(names), dtype=bool)
pd.Series(
    {
        "mean cosine of two task vectors": cosines.to_numpy()[off].mean(),
        "spread of the cosine of two random vectors": flat.shape[1] ** -0.5,
        "mean disturbance": disturbance.to_numpy()[off].mean(),
    },
    name="value",
).round(4).to_frame()

# %% [markdown]
# Nearly orthogonal they are: the angles are close to ninety degrees. They are not *random*, though;
# random vectors with so many entries would be far closer to ninety degrees still. And the lower
# panel warns us against reading too much into the upper one. A foreign task vector moves the
# features of a task a good part as far as the task's own vector does. The movement is real
# **interference**, and the rest of this book is about reducing it.

# %% [markdown]
# ## Adding: task arithmetic
#
# If task vectors are arrows with a meaning, add them up. **Task arithmetic**
# {cite}`ilharco2023editing` merges $T$ experts as
#
# $$
# \theta(\lambda) = \theta_0 + \lambda \sum_{t=1}^{T} \tau_t
# $$ (eq-task-arithmetic)
#
# with one scale $\lambda$ for all. Here is the rule of the package; it collects the terms of
# $\theta_0$ first, so that nothing is stored twice.

# %% tags=["hide-output"]
import inspect

from mergelib.rules.arithmetic import task_arithmetic

print(inspect.getsource(task_arithmetic))

# %% [markdown]
# ```{prf:proposition} Averaging is task arithmetic at $\lambda = 1/T$
# :label: prop-average
# For all $\theta_0, \theta_1, \dots, \theta_T$ it holds that
# $\theta_0 + \frac1T \sum_t \tau_t = \frac1T \sum_t \theta_t = \theta_{\text{avg}}$.
# In particular the average does not depend on $\theta_0$.
# ```
#
# ```{prf:proof}
# $\theta_0 + \frac1T\sum_t(\theta_t - \theta_0) = \theta_0 + \frac1T\sum_t\theta_t - \theta_0$.
# ```
#
# At $\lambda = 0$ the line $\theta(\lambda)$ starts at the pretrained model, at $1/T$ it passes the
# average, and where it is best is a question for the validation split. First the known value:

# %% tags=["nbval-check-output"]
scaled = ml.merge("task_arithmetic", zoo.experts, pretrained=zoo.pretrained, scale=1 / len(names))
mean = ml.merge("average", zoo.experts)
gap = max((scaled[key] - mean[key]).abs().max().item() for key in mean)
print(f"{len(names)} experts at scale 1/T: the average, up to rounding:", gap < 1e-6)
assert gap < 1e-6

# %% [markdown]
# ### The scale is chosen on validation data
#
# Now we walk along $\lambda$. `added` merges the first few tasks at a given scale, and `sweep`
# judges a whole range of scales. What decides is the mean **validation** accuracy; the test split
# is drawn beside it only to see whether the choice was a good one.

# %%
SCALES = (0.2, 0.3, 0.4, 0.5, 0.7, 0.9, 1.2)


def added(tasks, scale):
    """Task arithmetic with the experts of some tasks."""
    chosen = {name: zoo.experts[name] for name in tasks}
    return ml.merge("task_arithmetic", chosen, pretrained=zoo.pretrained, scale=scale)


def sweep(tasks, split="validation", scales=SCALES):
    """Mean accuracy and loss on the tasks that were added, by scale."""
    candidates = {scale: added(tasks, scale) for scale in scales}
    table = ml.evaluate_many(zoo.model, candidates, zoo.heads, part(tasks), split=split)
    return table.groupby("candidate")[["accuracy", "loss"]].mean()


everything = sorted((0.0, 1 / len(names), *SCALES))
validation, test = (sweep(names, split, everything) for split in ("validation", "test"))
best = validation["accuracy"].idxmax()

# %% tags=["hide-input"] mystnb={"figure": {"caption": "Mean accuracy of task arithmetic with all tasks against the scale. The scale is chosen where validation accuracy peaks (star); the same scale is then judged on test. The plain average is the point at 1/T.", "name": "fig-scale"}, "image": {"alt": "Validation and test accuracy against the scale: both rise from the pretrained model at scale zero, pass the average at one over T, peak at about three times that scale, at nearly the same place for both splits, and fall below the pretrained model for scales near one."}}
figure, ax = plt.subplots()
curves = ((validation, "validation", COLOURS["ties"]), (test, "test", COLOURS["task_arithmetic"]))
for table, name, shade in curves:
    ax.plot(table.index, 100 * table["accuracy"], "o-", color=shade, label=name)
    ax.plot(best, 100 * table.loc[best, "accuracy"], "*", color=shade, markersize=18)
ax.axvline(1 / len(names), color=COLOURS["average"], linestyle=":", label="average, λ = 1/T")
ax.set(xlabel="scale λ", ylabel=f"mean accuracy over {len(names)} tasks, %", ylim=(0, None))
ax.legend()
plt.show()

# %%
from mergelib.studies.comparison import individual

experts = individual(zoo).set_index("task")["accuracy"]
points = {"pretrained": 0.0, "average": 1 / len(names), f"scale {best:g}, from validation": best}
ladder = pd.Series({name: test.loc[scale, "accuracy"] for name, scale in points.items()})
ladder["best scale on test, for comparison"] = test["accuracy"].max()
ladder["individual"] = experts.mean()
(100 * ladder).round(1).rename("mean test accuracy, %").to_frame()

# %% [markdown]
# Never pick the scale on the test split: the maximum over many noisy numbers is too high on
# average, and more so the finer the grid. The row "for comparison" shows what peeking would have
# brought.
#
# ### More tasks, smaller scale
#
# The scale 0.3 that papers recommend is for eight tasks. Why does it depend on the number? A toy
# model gives the answer in closed form. Suppose that the loss of task $t$ is quadratic around its
# expert, that the task's own vector has curvature $h$, that every *foreign* vector has curvature
# $\rho h$ in the loss of task $t$, and that there are no cross terms:
#
# $$
# \tau_t^\top H_t\, \tau_t = h, \qquad
# \tau_s^\top H_t\, \tau_s = \rho\, h, \qquad
# \tau_s^\top H_t\, \tau_{s'} = 0 \quad (s \ne s').
# $$ (eq-toy)
#
# The number $\rho$ says how much task vectors disturb each other: 0 if they are disentangled, 1 if
# a foreign step costs as much as a missing own one.
#
# ```{prf:proposition} The best scale in the toy model
# :label: prop-scale
# Under Equation {eq}`eq-toy` the mean loss over the $T$ tasks of
# $\theta_0 + \lambda\sum_s \tau_s$ is least at
#
# $$
# \lambda^\star(T) = \frac{1}{1 + (T-1)\,\rho} .
# $$
#
# So $\lambda^\star = 1$ for every $T$ if $\rho = 0$, and $\lambda^\star = 1/T$, the plain average,
# if $\rho = 1$.
# ```
#
# ```{prf:proof}
# From the expert's point of view the merged model misses $(1-\lambda)\tau_t$ and carries
# $\lambda\tau_s$ for each $s\ne t$. Hence its excess loss on task $t$ is
# $\tfrac h2 \bigl[(1-\lambda)^2 + (T-1)\,\rho\,\lambda^2\bigr]$, the same for every task. Its
# derivative in $\lambda$ vanishes where $1-\lambda = (T-1)\rho\lambda$.
# ```
#
# Now the measurement. We add the task vectors of the first 1, 2, 4, … tasks, sweep the scale for
# each number, and compare with the toy model. Its one unknown, $\rho$, is fitted to the validation
# losses, whose least scale we read off a parabola through the three lowest points, since the true
# minimum lies between two points of the grid.

# %%
NUMBERS = [number for number in (1, 2, 4, 8, 14, 20) if number <= len(names)]
sweeps = {number: sweep(names[:number]) for number in NUMBERS if number < len(names)}
sweeps |= {len(names): validation.loc[list(SCALES)]}


def least(table):
    """Where the loss is least: the vertex of a parabola through the three points around it."""
    middle = np.clip(table["loss"].argmin(), 1, len(table) - 2)
    nearby = table["loss"].iloc[middle - 1 : middle + 2]
    square, linear, _ = np.polyfit(nearby.index, nearby, 2)
    return float(-linear / (2 * square))


measured = pd.Series({number: least(table) for number, table in sweeps.items()})

# %% [markdown]
# Solving $\lambda^\star = 1/(1+(T-1)\rho)$ for $\rho$ gives $\rho = (1/\lambda^\star - 1)/(T-1)$.
# One number of tasks, the largest, fixes it; the others test it.

# %%
largest = NUMBERS[-1]
rho = (1 / measured[largest] - 1) / (largest - 1)
scales = pd.DataFrame(
    {
        "best scale by loss": measured,
        "best scale by accuracy": {n: t["accuracy"].idxmax() for n, t in sweeps.items()},
        "toy model": {number: 1 / (1 + (number - 1) * rho) for number in NUMBERS},
        "1/T": {number: 1 / number for number in NUMBERS},
    }
).rename_axis("tasks")
print(f"disturbance rho = {rho:.2f}")
scales.round(2)

# %% tags=["hide-input"] mystnb={"figure": {"caption": "The best scale falls with the number of tasks. Left: mean validation loss of the added tasks against the scale, its minimum marked. Right: the minima against the number of tasks, with the toy model fitted at the last point, and 1/T.", "name": "fig-scale-tasks"}, "image": {"alt": "Left, curves of loss against scale for one, two, four and eight tasks: the more tasks, the higher the curve and the farther left its minimum. Right, the best scale falls as tasks are added and stays well above one over T; the toy model's curve, fitted at eight tasks, runs somewhat below the points for fewer."}}
figure, (left, right) = plt.subplots(1, 2, figsize=(7.2, 3.8))
shades = plt.get_cmap("cividis")(np.linspace(0, 0.85, len(NUMBERS)))
for (number, table), shade in zip(sweeps.items(), shades, strict=True):
    label = f"{number} task{'s' * (number > 1)}"
    left.plot(table.index, table["loss"], "o-", color=shade, markersize=4, label=label)
    left.axvline(measured[number], color=shade, linestyle=":", linewidth=1.5)
left.set(xlabel="scale λ", ylabel="nats a picture", title="Validation loss", ylim=(0, None))
left.legend(fontsize=10)
smooth = np.linspace(1, largest, 100)
right.plot(smooth, 1 / (1 + (smooth - 1) * rho), color=COLOURS["ties"], label="toy model")
right.plot(smooth, 1 / smooth, ":", color=COLOURS["average"], label="1/T, the average")
right.plot(measured.index, measured, "o", color="black", label="measured")
right.set(xlabel="number of tasks T", title="Best scale", ylim=(0, None))
right.legend(fontsize=10)
plt.show()

# %% [markdown]
# The toy model is crude, and it is not from the papers, but it has the direction right, and most of
# the size, with one number. What it misses is telling, too. A single task is best *beyond* its
# expert, where the toy model has $\lambda^\star = 1$: fine-tuning stopped while the loss was still
# falling along its way. And the points for fewer tasks lie above the curve, so $\rho$ is smaller
# there; cross terms between foreign vectors, which the toy model leaves out, can do that. Real
# experts lie between the two extremes, "no interference, keep $\lambda = 1$" and "full
# interference, average", and every method of the next chapters can be read as an attempt to make
# $\rho$ smaller.
#
# ### What adding tasks does to accuracy
#
# At each number of tasks we now take the scale that validation prefers, and judge on test: the
# tasks that were added, and those that were not.

# %%
preferred = scales["best scale by accuracy"]
chosen = {number: added(names[:number], preferred[number]) for number in NUMBERS}
judged = ml.evaluate_many(zoo.model, {0: zoo.pretrained, **chosen}, zoo.heads, suite)
judged["normalised"] = ml.normalised_accuracy(judged, experts.reset_index())
judged["role"] = [
    "added" if names.index(task) < number else "not added"
    for task, number in zip(judged["task"], judged["candidate"], strict=True)
]

# %% tags=["hide-input"] mystnb={"figure": {"caption": "Task addition: mean normalised test accuracy (100 % is the expert) of the tasks that were added, of those not added, and of all, against the number of task vectors added.", "name": "fig-addition"}, "image": {"alt": "The accuracy kept on the added tasks starts level with the expert and falls as more are added. The tasks not added fall below the pretrained model. The mean over all tasks stays level with the first task vector and then rises to its highest value with all of them."}}
figure, ax = plt.subplots()
roles = {"added": COLOURS["task_arithmetic"], "not added": COLOURS["pretrained"]}
for role, shade in roles.items():
    means = judged[judged["role"] == role].groupby("candidate")["normalised"].mean()
    ax.plot(means.index, 100 * means, "o-", color=shade, label=f"tasks {role}")
means = judged.groupby("candidate")["normalised"].mean()
ax.plot(means.index, 100 * means, "s-", color=COLOURS["cart"], label="all tasks")
ax.set(xlabel="task vectors added", ylabel="mean normalised accuracy, %", ylim=(0, 105))
ax.set_xticks([0, *NUMBERS])
ax.legend()
plt.show()

# %% [markdown]
# Each further task vector brings in its own task, costs the tasks that are in already, and pushes
# the others below the backbone. That trade is the heart of merging.

# %% [markdown]
# ## Subtracting: making a model forget
#
# If adding $\tau_t$ teaches task $t$, subtracting it should unlearn it,
#
# $$
# \theta = \theta_0 - \lambda\, \tau_t ,
# $$ (eq-negation)
#
# ideally without harm to other tasks, the *control*. {cite:t}`ilharco2023editing` choose the
# largest scale at which the control keeps at least 95 % of the pretrained accuracy, on validation
# data, and we do the same: for each task in turn, all others are its control.

# %%
from mergelib.testbed.tasks import Split

FORGETTING = (0.1, 0.2, 0.3, 0.4)


def short(split, size=100):
    """The first pictures of a split: enough to choose a scale by."""
    return Split(split.inputs[:size], split.labels[:size])


few = {name: replace(task, validation=short(task.validation)) for name, task in suite.tasks.items()}
few = replace(suite, tasks=few)
negated = {("none", 0.0): zoo.pretrained} | {
    (name, scale): ml.add(zoo.pretrained, vectors[name], alpha=-scale)
    for name in names
    for scale in FORGETTING
}
tried = ml.evaluate_many(zoo.model, negated, zoo.heads, few, split="validation")
tried = tried.pivot(index="candidate", columns="task", values="accuracy")

# %% [markdown]
# The choice itself is two lines: the mean of the other tasks, and the largest scale at which it
# keeps its 95 %. (A task for which no scale does is left alone, at scale 0.) The test split then
# judges each forgetful model on all tasks.

# %%
scale_of = {}
for name in names:
    others = tried.drop(columns=name).mean(axis=1)
    kept = [s for s in FORGETTING if others[(name, s)] >= 0.95 * others[("none", 0.0)]]
    scale_of[name] = max(kept, default=0.0)
forgetful = {name: negated[(name, s) if s else ("none", 0.0)] for name, s in scale_of.items()}
after = ml.evaluate_many(zoo.model, forgetful, zoo.heads, suite)
after = after.pivot(index="candidate", columns="task", values="accuracy")
before = judged[judged["candidate"] == 0].set_index("task")["accuracy"]

# %% tags=["hide-input"]
rows = {
    name: {
        "scale": scale_of[name],
        "target before": 100 * before[name],
        "target after": 100 * after.loc[name, name],
        "control before": 100 * before.drop(name).mean(),
        "control after": 100 * after.loc[name].drop(name).mean(),
    }
    for name in names
}
forgotten = pd.DataFrame(rows).T
table = pd.concat([forgotten, forgotten.mean().rename("mean").to_frame().T])
table.round(1).assign(scale=table["scale"].map("{:.2f}".format))

# %% tags=["hide-input"] mystnb={"figure": {"caption": "Task negation: test accuracy of the forgotten task (left) and mean test accuracy of all others, the control (right), before and after its task vector is subtracted from the pretrained model. One line a task.", "name": "fig-negation"}, "image": {"alt": "Two slope charts from before to after. Left, the accuracy of the forgotten tasks falls, by more than ten points on average. Right, the mean of the other tasks falls by no more than a few points in every case."}}
figure, panels = plt.subplots(1, 2, figsize=(7.2, 3.8), sharey=True)
for ax, what in zip(panels, ("target", "control"), strict=True):
    for _, row in forgotten.iterrows():
        ends = [row[f"{what} before"], row[f"{what} after"]]
        ax.plot([0, 1], ends, "o-", color=COLOURS["task_arithmetic"], alpha=0.55)
    means = [forgotten[f"{what} before"].mean(), forgotten[f"{what} after"].mean()]
    ax.plot([0, 1], means, "s-", color=COLOURS["cart"], linewidth=4, label="mean")
    ax.set(xticks=[0, 1], xticklabels=["before", "after"], xlim=(-0.2, 1.2), ylim=(0, None))
panels[0].set(title="The forgotten task", ylabel="test accuracy, %")
panels[1].set_title("All other tasks")
panels[0].legend()
plt.show()

# %% [markdown]
# Forgetting works, in the sense that the target loses several times what the control loses. It is
# partial: the accuracy that remains is above chance for every task. And the direction is not free of side
# effects either; interference, which limits adding, limits subtracting in the same way.

# %% [markdown]
# ## What the papers say and what we measured
#
# The papers worked with CLIP and many more pictures, so we compare statements and not numbers: those
# of model soups {cite}`wortsman2022model`, of the paper that defined the barrier
# {cite}`frankle2020linear`, and of task vectors {cite}`ilharco2023editing`. Each verdict below is
# computed from the tables of this page; it rests on one seed, so it is an illustration and no
# statistic.

# %% tags=["hide-input"]
soup = float(twins.set_index("candidate")["accuracy"][0.5])
parts = float(twins["accuracy"].iloc[[0, -1]].max())
cosine = float(cosines.to_numpy()[off].mean())
low, high = float(before.mean()), float(test.loc[best, "accuracy"])
mean = forgotten.mean()
fall = mean["target before"] - mean["target after"]
harm = mean["control before"] - mean["control after"]
connected, parted = barriers.iloc[0], barriers.iloc[2]
claims = [
    ("soups", "fine-tunes share a basin", f"barrier {connected:.2f} nats", connected < 0.05),
    ("soups", "an average can beat its parts", f"{soup:.1%} after {parts:.1%}", soup > parts),
    ("barriers", "different starts are parted", f"barrier {parted:.2f} nats", parted > 0.5),
    ("vectors", "nearly orthogonal", f"mean cosine {cosine:.2f}", abs(cosine) < 0.2),
    ("vectors", "adding all beats pretrained", f"{high:.1%} after {low:.1%}", high > low),
    ("vectors", "negation forgets its target", f"{fall:.1f} points lost", fall > 10),
    ("vectors", "negation spares the control", f"{harm:.1f} points lost", harm < fall / 4),
]
claims = pd.DataFrame(claims, columns=["paper", "claim", "measured here", "verdict"])
claims["verdict"] = claims["verdict"].map({True: "holds", False: "does not hold here"})
claims.set_index("paper")

# %% tags=["hide-cell"]
# What the text and the figures' descriptions say, held to a tolerance.
if PROFILE == "default" and SUITE == "glyphs8":
    assert error < 0.1 * gain
    assert barriers.iloc[0] < 0.01 < barriers.iloc[1] < barriers.iloc[2] / 3
    assert test.loc[1 / len(names), "accuracy"] + 0.02 < high < experts.mean() - 0.1
    assert measured.is_monotonic_decreasing
    assert (measured > scales["1/T"]).all()
    assert all(after.loc[name, name] > 1 / len(suite.tasks[name].class_names) for name in names)

# %% [markdown]
# In size the effects differ. {cite:t}`ilharco2023editing` report that negation takes 45.8
# percentage points from the target tasks of CLIP ViT-L/14 on average, and Table 1 of
# {cite:t}`choi2025revisiting` has task arithmetic at 69.1 % where the experts of ViT-B/32 have
# 90.5 %, that is 76 % normalised.

# %%
addition = judged[judged["candidate"] == largest]["normalised"].mean()
print(f"task arithmetic, {largest} tasks, here: {addition:.0%} normalised")
print(f"negation here: {fall:.1f} points on average")

# %% [markdown]
# ## When to use it, and when not
#
# * **Average** when all models solve the *same* task, or when you have no validation data at all:
#   there is nothing to choose, and in one basin it does no harm.
# * **Task arithmetic** when experts of different tasks share a start and you can afford to judge a
#   dozen candidates on a little validation data. Without validation data take a scale between $1/T$
#   and 0.3.
# * **Negation** to weaken a skill quickly. It is no guarantee that the skill is gone, so it does
#   not replace a method with one where privacy or safety depends on it.
# * **Neither** for models from different starts, and **not alone** with many or closely
#   related tasks: interference grows with their number, and the methods of the next chapters deal
#   with it.

# %% [markdown]
# ## Exercises
#
# ```{exercise} Merging a model with itself (easy)
# :label: ex-vectors-copies
# Somebody merges three copies of one expert by task arithmetic at scale $\lambda$. For which
# $\lambda$ is the result that expert? What does averaging give? Check both.
# ```

# %% [markdown]
# ````{solution-start} ex-vectors-copies
# :class: dropdown
# ````
# All task vectors are the same $\tau$, so the result is $\theta_0 + 3\lambda\tau$, which is the
# expert for $\lambda = 1/3$. That is $1/T$, so it is the average, too: averaging equal models
# returns them.

# %% tags=["nbval-check-output"]
copies = [zoo.experts[first]] * 3
for scale in (0.3, 1 / 3):
    merged = ml.merge("task_arithmetic", copies, pretrained=zoo.pretrained, scale=scale)
    same = all(torch.allclose(merged[k], copies[0][k], atol=1e-6) for k in merged)
    print(f"scale {scale:.3f} gives the expert back: {same}")

# %% [markdown]
# ````{solution-end}
# ````
#
# ```{exercise} Is any arrow good enough to forget? (medium)
# :label: ex-vectors-random
# Perhaps subtracting *anything* of that size destroys a task. Replace the task vector of the first
# task by random numbers that have, in every tensor, the same length, and compare what the two do to
# the target. (The paper runs the same control.)
# ```

# %% [markdown]
# ````{solution-start} ex-vectors-random
# :class: dropdown
# ````
# The random vector is as long as the task vector in each tensor, but has no relation to the task.

# %%
torch.manual_seed(SEED)
scale = scale_of[first] or FORGETTING[0]
noise = {key: torch.randn_like(value) for key, value in vectors[first].items()}
noise = {key: n * vectors[first][key].norm() / n.norm() for key, n in noise.items()}
arrows = {"task vector": vectors[first], "random vector": noise}
arrows = {name: ml.add(zoo.pretrained, v, alpha=-scale) for name, v in arrows.items()}
table = ml.evaluate_many(zoo.model, arrows, zoo.heads, part([first]))
print(f"{first}, pretrained: {100 * before[first]:.1f} %")
(100 * table.set_index("candidate")["accuracy"]).round(1).rename("accuracy, %").to_frame()

# %% [markdown]
# The random arrow leaves the target nearly alone, as in high dimensions it has almost no component
# along any direction that matters. Length alone does not forget; direction does.
#
# ````{solution-end}
# ````
#
# ```{exercise} The same function, and yet a barrier (hard)
# :label: ex-vectors-permutation
# Take the first perceptron of this chapter and shuffle the units of its first hidden layer, so that
# the network computes exactly the same function. Then walk the line from the perceptron to its
# shuffled copy. What does the barrier say about models from different starts?
# ```

# %% [markdown]
# ````{solution-start} ex-vectors-permutation
# :class: dropdown
# ````
# With a permutation matrix $P$ the network $W_2\, g(W_1 x + b_1)$ equals
# $(W_2 P^\top)\, g(P W_1 x + P b_1)$, since the activation $g$ acts on each unit alone. So we
# permute the rows of the first layer and the columns of the second.

# %%
order = torch.randperm(MLP().width, generator=torch.Generator().manual_seed(SEED))
shuffled = dict(one)
for key in ("layers.0.weight", "layers.0.bias"):
    shuffled[key] = one[key][order]
shuffled["layers.1.weight"] = one["layers.1.weight"][:, order]
line = {position: ml.lerp(one, shuffled, position) for position in POSITIONS}
path = ml.evaluate_many(MLP().to(DEVICE), line, {"chess": head}, chess)
ends = path["correct"].iloc[[0, -1]].tolist()
print("right answers at both ends agree:", ends[0] == ends[1])
print(f"barrier to its own shuffled copy: {barrier(path):.2f} nats")
print(f"barrier to the stranger:          {barriers['MLP, different starts']:.2f} nats")

# %% [markdown]
# A network can be parted by a barrier *from itself*. Hidden units carry no names, and training from
# another start deals them out in another order; the straight line then mixes units that have
# nothing to do with each other. {cite:t}`ainsworth2023git` search for the permutation that lines two
# networks up before they are merged. A shared start makes that unnecessary.
#
# ````{solution-end}
# ````
#
# ## Summary
#
# * On the line between two models, the barrier tells whether they can be merged. A shared start
#   makes it vanish; different starts raise it, even where both models compute the same function.
# * In a convex valley an average is at least as good as its parts are on average, and a quadratic
#   valley is known from three points.
# * A task vector is an expert minus its start. Adding learns, subtracting forgets, and averaging is
#   adding at the scale $1/T$.
# * Task vectors are nearly orthogonal in weight space and still disturb each other's features. So
#   the best scale falls as tasks are added, and is chosen on validation data.
#
# **Next:** [](03-interference) looks at the entries where task vectors quarrel, and at TIES, DARE and
# Consensus, which repair that entry by entry; [](10-cart) works on directions instead.
