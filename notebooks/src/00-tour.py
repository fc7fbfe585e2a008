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
# **In one sentence:** two networks, each fine-tuned on one half of the ten digits, become one
# network that reads all ten, by nothing but arithmetic on their weights.
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
same = expert_low.keys() == expert_high.keys() == zoo.pretrained.keys()
print("same keys:", same)

# %% [markdown]
# ## One question for all
#
# We ask every model the same thing: *which of the ten digits is this?* The two heads hold one
# direction for each of their five classes, so stacking them gives a head of ten, and the labels of
# the second task move up by five. Nobody tells the model from which half a picture comes.

# %%
from dataclasses import replace

import torch

from mergelib.testbed.models import Head

low, high = suite.tasks.values()
digits = low.class_names + high.class_names
joint = Head(torch.cat([head.weight for head in zoo.heads.values()]))


def among_ten(task, first):
    """The task with labels among all ten digits instead of its own five."""
    moved = {}
    for name in ("train", "validation", "test"):
        part = getattr(task, name)
        moved[name] = replace(part, labels=part.labels + first)
    return replace(task, class_names=digits, **moved)


# %%
halves = {low.name: among_ten(low, 0), high.name: among_ten(high, 5)}
ten_digits = replace(suite, tasks=halves)
ten = replace(zoo, suite=ten_digits, heads=dict.fromkeys(halves, joint))

# %% [markdown]
# How well does each model answer? `evaluate_many` takes any number of state dicts, and returns a
# table with a row for each of them and each task. We show accuracy on the test pictures of the
# two halves, in per cent.

# %%
before = {"pretrained": zoo.pretrained, **zoo.experts}


def accuracies(candidates):
    """Test accuracy of each candidate on the two halves, and their mean."""
    table = ml.evaluate_many(ten.model, candidates, ten.heads, ten.suite)
    wide = table.pivot(index="candidate", columns="task", values="accuracy")
    wide = wide.loc[list(candidates), list(halves)]
    return wide.assign(mean=wide.mean(axis=1))


(100 * accuracies(before)).round(1)

# %% [markdown]
# Each expert reads its own half nearly without fault, and the other half much *worse* than the
# pretrained model did: while it learned five digits, it came to see them everywhere. So on all ten
# digits both experts do worse than the model that they grew from. Neither can stand in for the
# other, and fine-tuning on one half has cost the whole.

# %% tags=["remove-cell"]
result = accuracies(before)
if PROFILE != "smoke":
    for own, other in ((low.name, high.name), (high.name, low.name)):
        assert result.loc[own, own] > result.loc["pretrained", own] + 0.05, "learned little"
        assert result.loc[own, other] < result.loc["pretrained", other] - 0.05, "forgot little"
        assert result.loc[own, "mean"] < result.loc["pretrained", "mean"] + 0.01

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
a, b = (ml.flatten(vector) for vector in task_vectors.values())
cosine = torch.cosine_similarity(a, b, dim=0).item()
print(f"{a.numel():,} entries each; cosine {cosine:.2f}")

# %% tags=["remove-cell"]
assert abs(cosine) < 0.25, cosine

# %% [markdown]
# They are nearly at a right angle: the two experts changed the network in different ways. That is
# what makes merging possible. If the arrows hardly disturb each other, walking along both keeps
# both.
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
# Three of them have knobs, and those must not be chosen on the test pictures. So `choose` tries a
# grid of settings on the **validation** pictures and returns the best. CART keeps its defaults
# here: with two experts its settings change nothing, as we shall see.

# %%
from mergelib.studies.comparison import GRIDS, choose

tuned = {}
for method in ("task_arithmetic", "ties"):
    tuned[method], _ = choose(ten, method, GRIDS[method])
settings = {"average": {}, **tuned, "cart": {}}
print("chosen on validation data:", tuned)

# %% [markdown]
# A merge is one call. It returns a new state dict and changes no input.

# %%
merged = {
    method: ml.merge(method, zoo.experts, pretrained=zoo.pretrained, **chosen)
    for method, chosen in settings.items()
}

# %% [markdown]
# ## What each merge keeps
#
# Now the same question goes to all seven models: the three that we began with, and the four
# merged ones. The figure shows their accuracy on the two halves and, for each digit, what they
# make of one picture: the first test picture that the expert for the *other* half misreads. So the
# pictures are hard for one expert each, and were picked without a look at the merged models.

# %%
candidates = {**before, **merged}
result = accuracies(candidates)

# %% tags=["hide-cell"]
from torch.func import functional_call

from mergelib.testbed.models import scale_pixels

images = torch.cat([half.test.inputs for half in halves.values()])
labels = torch.cat([half.test.labels for half in halves.values()])


@torch.no_grad()
def answers(state):
    """What a model calls each of the pictures."""
    features = functional_call(ten.model, state, (scale_pixels(images.to(DEVICE)),))
    return joint(features).argmax(1).cpu()


called = {model: answers(state) for model, state in candidates.items()}
other = torch.where(labels < 5, called[high.name], called[low.name])
shown = []
for digit in range(10):
    of_this, misread = labels == digit, other != labels
    chosen = of_this & misread if (of_this & misread).any() else of_this
    shown.append(int(chosen.nonzero()[0]))

# %% tags=["hide-cell"]
import matplotlib.pyplot as plt

from mergelib.plots import COLOURS, label, use_style

use_style()
inks = COLOURS | {low.name: "#009e73", high.name: "#7a5195"}
names = {low.name: "expert 0–4", high.name: "expert 5–9"}


def draw_row(ax, row, model):
    """One model: a box for each picture, filled where the answer is right, and two bars."""
    ink, bold = inks[model], {"va": "center", "weight": "bold", "fontsize": 12}
    light = sum(plt.matplotlib.colors.to_rgb(ink)) > 1.4
    for digit, answer in enumerate(called[model][shown].tolist()):
        right = answer == digit
        corner, face = (digit - 0.4, row - 0.4), ink if right else "white"
        ax.add_patch(plt.Rectangle(corner, 0.8, 0.8, facecolor=face, edgecolor=ink))
        text = "white" if right and not light else "black"
        ax.text(digit, row, str(answer), ha="center", color=text, **bold)
    for start, accuracy in zip((9.9, 13.5), result.loc[model, list(halves)], strict=True):
        ax.barh(row, 1.5, left=start, height=0.5, color="#e8e8e8")
        ax.barh(row, 1.5 * accuracy, left=start, height=0.5, color=ink)
        ax.text(start + 1.62, row, f"{100 * accuracy:.0f} %", va="center", fontsize=11)


# %% tags=["hide-input"] mystnb={"figure": {"caption": "Ten pictures, each misread by the expert for the other half, and what seven models call them (filled: right; white: wrong). The bars are the accuracy on all test pictures of the two halves.", "name": "fig-tour-answers"}, "image": {"alt": "Each expert reads the five pictures of its own half right and those of the other half wrong; the four merged models read all or nearly all ten right, and their accuracy bars are long on both halves."}}
fig, ax = plt.subplots(figsize=(6.2, 3.9))
for digit, picture in enumerate(images[shown]):
    place = (digit - 0.46, digit + 0.46, 0.46, -0.46)
    ax.imshow(picture.permute(1, 2, 0).numpy(), extent=place)
for row, model in enumerate(candidates, 1):
    draw_row(ax, row, model)
ax.set(xlim=(-0.6, 17.0), ylim=(7.6, -0.6), aspect="equal")
ax.set_yticks(range(1, 8), [names.get(model) or label(model) for model in candidates])
ax.set_xticks([4.5, 11.3, 14.9], ["answers", "on 0–4", "on 5–9"])
ax.tick_params(length=0)
ax.grid(visible=False)
ax.spines[:].set_visible(False)
plt.show()

# %%
(100 * result).round(1)

# %% [markdown]
# Every merge reads all ten digits better than any of the three models it was made from. It keeps
# nearly all that each expert knew of its own half, and mends what that expert forgot of the other.
# Nobody trained it: no picture was looked at, except to choose the settings.
#
# Between the four merges there is little to choose here. A difference of half a point is two
# pictures, and no order of methods can be read from that. Some of them even coincide, and the next
# section says why that is no accident.

# %% tags=["remove-cell"]
if PROFILE != "smoke":
    best_before = result.loc[list(before), "mean"].max()
    assert (result.loc[list(merged), "mean"] > best_before + 0.02).all(), result
    for own in halves:
        assert (result.loc[list(merged), own] > result.loc[own, own] - 0.06).all(), result

# %% [markdown]
# ## A check against a known value
#
# Merging code fails silently: a wrong sign still gives a model that runs. So compare with values
# that are known beforehand. At $\lambda = 1/T$ equation {eq}`eq-tour-task-arithmetic` *is* the
# average, since $\theta_0 + \frac1T \sum_t (\theta_t - \theta_0) = \frac1T \sum_t \theta_t$. At
# $\lambda = 0$ it is the pretrained model. And for two experts CART is the average as well, whatever
# its settings: measured from their mean, two task vectors are opposite to each other, and cancel at
# every rank. That is why CART and the average have the same row above; so has task arithmetic,
# if validation chose $\lambda = 1/2$.


# %%
def largest_gap(x, y):
    """The largest difference between two state dicts, in any entry."""
    return max((x[key] - y[key]).abs().max().item() for key in x)


def at_scale(scale):
    return ml.merge("task_arithmetic", zoo.experts, pretrained=zoo.pretrained, scale=scale)


average = merged["average"]
gaps = {
    "scale 1/2 is the average": largest_gap(at_scale(1 / 2), average),
    "scale 0 is the pretrained model": largest_gap(at_scale(0), zoo.pretrained),
    "CART of two is the average": largest_gap(merged["cart"], average),
}

# %% tags=["nbval-check-output"]
for claim, gap in gaps.items():
    print(f"{claim}: {gap < 1e-5}")

# %% [markdown]
# ## When this works, and when not
#
# It worked because both experts grew from the same pretrained weights and did not go far, and
# because there are only two of them. With eight, they get in each other's way much more, merging
# loses more, the methods draw apart, and CART comes into its own: that is the subject of
# [](10-cart). And digits are easy. On real pictures a merge stays well below the experts.
#
# ## Exercises
#
# ```{exercise} Three scales (easy)
# :label: ex-tour-scales
# What does task arithmetic return for a *single* expert at scale 1, at scale 0, and at scale −1?
# Answer first, then let the machine check the first two.
# ```

# %% [markdown]
# ````{solution-start} ex-tour-scales
# :class: dropdown
# ````
# With one expert the sum has one term: scale 1 gives the expert itself, scale 0 the pretrained
# model. Scale −1 walks the same distance the other way, away from what the expert has learned;
# [](02-averaging-and-task-vectors) uses that to make a model forget.

# %%
alone = {"low": expert_low}
for scale, known in ((1.0, expert_low), (0.0, zoo.pretrained)):
    back = ml.merge("task_arithmetic", alone, pretrained=zoo.pretrained, scale=scale)
    assert largest_gap(back, known) < 1e-6

# %% [markdown]
# ````{solution-end}
# ````
#
# ```{exercise} The whole range (medium)
# :label: ex-tour-sweep
# `choose` tried ten scales and showed one. Evaluate task arithmetic on the validation split at
# scales from 0 to 3. Where is it good, where does it break, and why must it?
# ```

# %% [markdown]
# ````{solution-start} ex-tour-sweep
# :class: dropdown
# ````
# `sweep` evaluates a method at every point of a grid, by default on the validation split.

# %%
from mergelib.studies.comparison import score_grid

scales = {"scale": [0.0, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0]}
score_grid(ten, "task_arithmetic", scales).set_index("scale").round(3).T

# %% [markdown]
# At scale 0 we have the pretrained model, around 1/2 the average, and the curve is flat there, so
# the exact scale matters little. Beyond 1 it falls and keeps falling: the merged model goes further
# along every arrow than fine-tuning ever went, into weights that no training has seen. Task
# vectors describe the network near its starting point, not far from it.
#
# ````{solution-end}
# ````
#
# ```{exercise} The easier question (harder)
# :label: ex-tour-told
# The papers tell the model which task a picture belongs to, and so does the rest of this book: each
# task is judged under its own head, with five classes in place of ten. Evaluate all seven models in
# this way. Which of them gain most, and what does that say about what the experts forgot?
# ```

# %% [markdown]
# ````{solution-start} ex-tour-told
# :class: dropdown
# ````
# The zoo as it was loaded has the two heads and the labels of the two tasks.

# %%
table = ml.evaluate_many(zoo.model, candidates, zoo.heads, zoo.suite)
told = table.pivot(index="candidate", columns="task", values="accuracy")
told = told.loc[list(candidates), list(halves)]
(100 * told).round(1)

# %% tags=["remove-cell"]
if PROFILE != "smoke":
    gains = told - result[list(halves)]
    assert gains.loc[low.name, high.name] > gains.loc[list(merged), high.name].max() + 0.05
    assert gains.loc[high.name, low.name] > gains.loc[list(merged), low.name].max() + 0.05
    assert (told.loc["average"] > [told.loc[name, name] - 0.03 for name in told.columns]).all()

# %% [markdown]
# The experts gain most, each on the half that it was not trained on. So much of what they seemed to
# have forgotten was not lost: they still tell these digits from one another, only not from their
# own. What stays below the pretrained model is what fine-tuning truly cost. The merged models come
# out next to the expert on both halves.
#
# ````{solution-end}
# ````
#
# ## Summary
#
# * A merge computes one state dict from several, in a moment and without training.
# * Each expert forgot much of what it was not trained on; every merge of the two keeps both.
# * Settings come from validation data, and identities such as $\lambda = 1/T$ check the code.
#
# **Next:** [](01-testbed) shows where suites, heads and experts come from.
# [](02-averaging-and-task-vectors) explains why the straight line between experts stays good.
# [](10-cart) merges eight experts at once. To merge your own files, see [](#merge-your-own). All
# sources are in the [](../book/bibliography).
