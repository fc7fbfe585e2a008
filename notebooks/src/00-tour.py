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
# # A five-minute tour
#
# **In one sentence:** two networks that each learned one half of the ten digits become one network
# that knows both halves better than either of the two, by arithmetic on their weights alone.
#
# **After this tour you can**
#
# * load experts, merge them in four ways, and evaluate what comes out;
# * say what a task vector is, and compute one;
# * check a merge against a value that you know beforehand.
#
# **Before you start:** [](../book/what-merging-is) explains the words. **Time:** five minutes to
# read, and less than one to run.

# %% tags=["parameters"]
SUITE = "digits2"
PROFILE = "default"
SEED = 0
DEVICE = "cpu"

# %% [markdown]
# ## Two tasks, two experts
#
# A **suite** is a family of classification tasks. This one cuts scikit-learn's small handwritten
# digits {cite}`alpaydin1998optical` in two: the digits 0 to 4, and the digits 5 to 9. The **zoo**
# of a suite is what there is to merge: one pretrained backbone $\theta_0$, and for each task $t$ an
# **expert** $\theta_t$ that was fine-tuned from it. The first call trains the experts, which takes
# some seconds; later calls read them from a cache.

# %%
import mergelib as ml

suite = ml.load_suite(SUITE, seed=SEED, profile=PROFILE)
zoo = ml.load_zoo(suite, device=DEVICE)

# %% tags=["nbval-check-output"]
for name, task in suite.tasks.items():
    print(f"{name}: {', '.join(task.class_names)}")

# %% [markdown]
# Only backbones are merged. Every task also has a small classifier on top, its **head**, made from
# three pretrained examples of each class and then frozen. So whatever changes below, changes
# because the backbone does. An expert is nothing but a state dict with the same keys as the
# pretrained one:

# %% tags=["nbval-check-output"]
expert_low, expert_high = zoo.experts.values()
print("same keys:", expert_low.keys() == expert_high.keys() == zoo.pretrained.keys())
print("pretrained classifier of", ", ".join(zoo.heads))

# %% [markdown]
# How good is each of them at each task? `evaluate_many` takes any number of state dicts and
# returns a table with a row for each candidate and task.

# %%
before = {"pretrained": zoo.pretrained, **zoo.experts}
table = ml.evaluate_many(zoo.model, before, zoo.heads, suite)
wide = table.pivot(index="candidate", columns="task", values="accuracy").loc[list(before)]
(100 * wide).round(1)

# %% [markdown]
# The table gives test accuracy in per cent. Each expert is far better than the pretrained model at
# its own task, and *worse* than it at the other: while it learned five digits it unlearned
# something that it needs for the rest. Neither of the two can stand in for the other. Five classes
# a task mean that blind guessing scores about 20 %.

# %% tags=["remove-cell"]
low, high = suite.tasks
if PROFILE != "smoke":
    for own, other in ((low, high), (high, low)):
        assert wide.loc[own, own] > wide.loc["pretrained", own] + 0.05, "no better at its own task"
        assert wide.loc[own, other] < wide.loc["pretrained", other], "it forgot nothing"

# %% [markdown]
# ## Task vectors
#
# What an expert has learned is the difference to where it started, its **task vector**
# {cite}`ilharco2023editing`:
#
# $$
# \tau_t = \theta_t - \theta_0 .
# $$ (eq-tour-task-vector)

# %%
task_vectors = {name: ml.subtract(expert, zoo.pretrained) for name, expert in zoo.experts.items()}

# %% [markdown]
# Seen as two long arrows, they could point the same way, against each other, or neither. The
# cosine of the angle between them tells; `flatten` lays a state dict out as one vector.

# %%
import torch

a, b = (ml.flatten(vector) for vector in task_vectors.values())
print(f"{a.numel():,} entries each; cosine {torch.cosine_similarity(a, b, dim=0).item():.2f}")

# %% [markdown]
# They are closer to a right angle than to one direction: the two experts changed the network in
# mostly different ways. That is what makes merging possible at all. If the arrows do not disturb
# each other, walking along both keeps both.
#
# ## Four merges
#
# * The **average** {cite}`wortsman2022model` is the mean of the experts' weights.
# * **Task arithmetic** adds the task vectors, scaled, to the pretrained weights:
#
# $$
# \theta_{\text{merged}} = \theta_0 + \lambda \sum_{t=1}^{T} \tau_t .
# $$ (eq-tour-task-arithmetic)
#
# * **TIES** {cite}`yadav2023ties` first trims every task vector to its largest entries, then lets
#   them vote on the sign of each weight, and averages those that agree.
# * **CART** {cite}`choi2025revisiting` measures from the average and keeps only the strongest
#   directions of every weight matrix.
#
# Three of them have knobs. Their settings must not be chosen on the test data, so `choose` tries a
# grid of settings on the **validation** pictures and returns the best.

# %%
from mergelib.testbed.comparison import GRIDS, choose

methods = ["average", "task_arithmetic", "ties", "cart"]
settings = {method: choose(zoo, method, GRIDS[method])[0] for method in methods}
print(settings)

# %% [markdown]
# A merge is one call. It returns a new state dict and changes no input.

# %%
merged = {
    method: ml.merge(method, zoo.experts, pretrained=zoo.pretrained, **settings[method])
    for method in methods
}

# %% [markdown]
# ## What each merge keeps
#
# We judge all of them on the test pictures, next to the models that they were made from.

# %%
candidates = {**before, **merged}
table = ml.evaluate_many(zoo.model, candidates, zoo.heads, suite)
result = table.pivot(index="candidate", columns="task", values="accuracy").loc[list(candidates)]
result = result[list(suite.tasks)].assign(mean=result.mean(axis=1))

# %% tags=["hide-cell"]
from torch.func import functional_call

from mergelib.testbed.models import normalise


def first_of_each_class(task):
    """The first test picture of every class, in the order of the classes."""
    rows = [(task.test.labels == k).nonzero()[0, 0] for k in range(len(task.class_names))]
    return task.test.images[torch.stack(rows)]


@torch.no_grad()
def answers(state):
    """What a model calls these pictures, each under its task's own head."""
    called = []
    for name, task in suite.tasks.items():
        images = normalise(first_of_each_class(task).to(DEVICE))
        best = zoo.heads[name](functional_call(zoo.model, state, (images,))).argmax(1)
        called += [task.class_names[k] for k in best.tolist()]
    return called


# %% tags=["hide-cell"]
import matplotlib.pyplot as plt

from mergelib.plots import COLOURS, label, use_style

use_style()
inks = COLOURS | dict(zip(suite.tasks, ("#009e73", "#7a5195"), strict=True))
names = dict(zip(suite.tasks, ("expert 0–4", "expert 5–9"), strict=True))
tasks = list(suite.tasks)
truth = [digit for task in suite.tasks.values() for digit in task.class_names]
pictures = torch.cat([first_of_each_class(task) for task in suite.tasks.values()])


def draw_row(ax, row, model):
    """One model: a box for each picture, filled where the answer is right, and two bars."""
    ink, bold = inks[model], {"va": "center", "weight": "bold", "fontsize": 12}
    light = sum(plt.matplotlib.colors.to_rgb(ink)) > 1.4
    for column, called in enumerate(answers(candidates[model])):
        right = called == truth[column]
        corner, face = (column - 0.4, row - 0.4), ink if right else "white"
        ax.add_patch(plt.Rectangle(corner, 0.8, 0.8, facecolor=face, edgecolor=ink))
        text = "white" if right and not light else "black"
        ax.text(column, row, called, ha="center", color=text, **bold)
    for start, accuracy in zip((10.1, 13.8), result.loc[model, tasks], strict=True):
        ax.barh(row, 2, left=start, height=0.5, color="#e8e8e8")
        ax.barh(row, 2 * accuracy, left=start, height=0.5, color=ink)
        ax.text(start + 2.15, row, f"{100 * accuracy:.0f} %", va="center", fontsize=11)


# %% tags=["hide-input"] mystnb={"figure": {"caption": "What seven models call the first test picture of each digit (filled: right; white: wrong), and, as bars, their accuracy on all test pictures of the two tasks.", "name": "fig-tour-answers"}, "image": {"alt": "ALT"}}
fig, ax = plt.subplots(figsize=(7.2, 4.2))
for column, picture in enumerate(pictures):
    place = (column - 0.46, column + 0.46, 0.46, -0.46)
    ax.imshow(picture.permute(1, 2, 0).numpy(), extent=place)
for row, model in enumerate(candidates, 1):
    draw_row(ax, row, model)
ax.set(xlim=(-0.6, 17.3), ylim=(7.6, -0.6), aspect="equal")
ax.set_yticks(range(1, 8), [names.get(model) or label(model) for model in candidates])
ax.set_xticks([4.5, 11.6, 15.3], ["answers", "0–4", "5–9"])
ax.tick_params(length=0)
ax.grid(visible=False)
ax.spines[:].set_visible(False)
plt.show()

# %%
(100 * result).round(1)

# %% [markdown]
# FINDINGS
#
# ## A check against a known value
#
# Merging code fails silently: a wrong sign still gives a model that runs. So compare with values
# that are known beforehand. At $\lambda = 1/T$ equation {eq}`eq-tour-task-arithmetic` *is* the
# average, since $\theta_0 + \frac1T \sum_t (\theta_t - \theta_0) = \frac1T \sum_t \theta_t$. At
# $\lambda = 0$ it is the pretrained model. And for two experts CART is the average as well, whatever
# its settings: their centred task vectors are opposite to each other, and cancel at every rank. That
# is why the two have the same row above.


# %%
def largest_gap(x, y):
    """The largest difference between two state dicts, in any entry."""
    return max((x[key] - y[key]).abs().max().item() for key in x)


half = ml.merge("task_arithmetic", zoo.experts, pretrained=zoo.pretrained, scale=1 / 2)
none = ml.merge("task_arithmetic", zoo.experts, pretrained=zoo.pretrained, scale=0)

# %% tags=["nbval-check-output"]
print("scale 1/2 is the average:   ", largest_gap(half, merged["average"]) < 1e-6)
print("scale 0 is the pretrained:  ", largest_gap(none, zoo.pretrained) < 1e-6)
print("CART of two is the average: ", largest_gap(merged["cart"], merged["average"]) < 1e-5)

# %% [markdown]
# ## When this works, and when not
#
# It worked because both experts grew from the same pretrained weights and did not go far. It was
# also made easy in two ways. Every picture comes with its task, so the right head is known; the
# last exercise takes this away. And there are only two experts: with eight, they get in each
# other's way much more, the methods drift apart, and CART comes into its own.
#
# ## Exercises
#
# ```{exercise} Three scales (easy)
# :label: ex-tour-scales
# What does task arithmetic return for a *single* expert at scale 1, at scale 0, and at scale −1?
# Answer first, then let the machine check the first two.
# ```
#
# ```{exercise} The whole range (medium)
# :label: ex-tour-sweep
# `choose` tried ten scales and showed one. Evaluate task arithmetic on the validation split at
# scales from 0 to 2. Where does it break, and why must it?
# ```
#
# ```{exercise} Nobody tells the task (harder)
# :label: ex-tour-joint
# Join the two heads to one classifier of ten digits, and evaluate the pretrained model, the
# experts and the merges with it. Which of them suffers most?
# ```

# %% [markdown]
# ````{solution-start} ex-tour-scales
# :class: dropdown
# ````
#
# With one expert the sum has one term: scale 1 gives the expert itself, scale 0 the pretrained
# model. Scale −1 walks the same distance the other way, away from what the expert has learned;
# [](02-averaging-and-task-vectors) uses that to make a model forget.

# %%
one = {"low": expert_low}
for scale, known in ((1.0, expert_low), (0.0, zoo.pretrained)):
    back = ml.merge("task_arithmetic", one, pretrained=zoo.pretrained, scale=scale)
    assert largest_gap(back, known) < 1e-6

# %% [markdown]
# ````{solution-end}
# ````
#
# ````{solution-start} ex-tour-sweep
# :class: dropdown
# ````
#
# `sweep` evaluates a method at every point of a grid, by default on the validation split.

# %%
from mergelib.testbed.comparison import sweep

scales = {"scale": [0.0, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0]}
sweep(zoo, "task_arithmetic", scales).set_index("scale").round(3).T

# %% [markdown]
# SWEEP
#
# ````{solution-end}
# ````
#
# ````{solution-start} ex-tour-joint
# :class: dropdown
# ````
#
# The heads are cosine classifiers: a row of unit length for each class. Stacking the rows gives one
# head for all ten, and a suite with a single task of ten classes goes with it.

# %%
from mergelib.testbed.models import Head
from mergelib.testbed.suites import Split

joint = Head(torch.cat([head.weight for head in zoo.heads.values()])).to(DEVICE)
tests = [task.test for task in suite.tasks.values()]
digits = Split(
    images=torch.cat([test.images for test in tests]),
    labels=torch.cat([tests[0].labels, tests[1].labels + 5]),
)

# %%
from dataclasses import replace

whole = replace(suite.tasks[low], name="all ten", test=digits)
ten = replace(suite, tasks={"all ten": whole})
joined = ml.evaluate_many(zoo.model, candidates, {"all ten": joint}, ten)
print((100 * joined.set_index("candidate")["accuracy"]).round(1).to_string())

# %% [markdown]
# JOINT
#
# ````{solution-end}
# ````
#
# ## Summary
#
# * A merge computes one state dict from several, in a moment and without data.
# * Each expert forgets some of what it was not trained on; a merge keeps much of both.
# * Settings come from validation data, and identities such as $\lambda = 1/T$ check the code.
#
# **Next:** [](01-testbed) shows where suites, heads and experts come from.
# [](02-averaging-and-task-vectors) explains why the straight line between experts stays good.
# [](10-cart) merges eight experts at once. To merge your own files, see [](#merge-your-own). All
# sources are in the [](../book/bibliography).
