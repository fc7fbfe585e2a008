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
# # The testbed of the experiments

# %% tags=["parameters", "remove-cell"]
SUITE = "glyphs8"
PROFILE = "default"
SEED = 0
DEVICE = "cpu"

# %% tags=["remove-cell"]
from dataclasses import asdict, replace

import matplotlib.pyplot as plt
import pandas as pd
import torch
from IPython.display import Markdown, display

import mergelib as ml
from mergebook import Recipe, load_suite, load_zoo, plots
from mergebook.lab import comparison
from mergebook.lab.comparison import individual
from mergebook.lab.results import load_table
from mergebook.lab.statistics import over_seeds, paired, plus_minus
from mergebook.plots import accuracy_by_task
from mergebook.suites.registry import known_suites

plots.use_style()
suite = load_suite(SUITE, seed=SEED, profile=PROFILE)
zoo = load_zoo(suite, device=DEVICE)
pretrained = ml.evaluate(zoo.model, zoo.pretrained, zoo.heads, suite)

# %% tags=["remove-cell"]
base = pretrained.set_index("task")["accuracy"]
own = individual(zoo).set_index("task")
summary = pd.DataFrame(
    {
        "chance": {name: 1 / len(task.class_names) for name, task in suite.tasks.items()},
        "pretrained": base,
        "individual": own["accuracy"],
        "margin": 1.96 * (own["accuracy"] * (1 - own["accuracy"]) / own["n"]) ** 0.5,
        "validation": individual(zoo, "validation").set_index("task")["accuracy"],
    }
).loc[list(suite.tasks)]
summary.loc["mean"] = summary.mean()
summary.loc["mean", "margin"] = (summary["margin"][:-1] ** 2).sum() ** 0.5 / len(suite.tasks)
percent = 100 * summary

# %% tags=["remove-cell"]
measured = load_table("vision8-baselines").query("method in ['pretrained', 'individual']")
mean = measured.groupby(["method", "task"])["accuracy"].mean().unstack("method")
mean = mean.loc[list(known_suites()["vision8"]), ["pretrained", "individual"]]
of_seeds = 100 * over_seeds(measured, "method")
gap = 100 * paired(measured, {"gap": ("individual", "pretrained")}).loc["gap"]
pairs = {name: plus_minus(*row, 1) for name, row in of_seeds.iterrows()}

# %% tags=["remove-input"] mystnb={"figure": {"caption": "A merged model can gain what lies between the pretrained network (square) and the expert of each task (diamond). Test accuracy per task, one seed.", "name": "fig-testbed-gap"}, "image": {"alt": "Dot plot with one row per task. In every row the expert is between 17 and 53 points of accuracy to the right of the pretrained network, and a grey bar joins them."}}
ends = [pretrained.assign(method="pretrained"), own.reset_index().assign(method="individual")]
figure = accuracy_by_task(pd.concat(ends))
figure.set_figheight(1.2 + 0.32 * len(suite.tasks))
points = percent.loc["mean", "individual"] - percent.loc["mean", "pretrained"]
title = f"Experts are {points:.0f} points above the pretrained network"
figure.suptitle(title, x=0.01, ha="left", fontsize=13, weight="bold")
plt.show()

# %% tags=["remove-input"]
display(
    Markdown(f"""
* **The gap between pretrained network and experts is {points:.1f} points on `{SUITE}`**, from
  {percent.loc["mean", "pretrained"]:.1f} to {percent.loc["mean", "individual"]:.1f} ± {percent.loc["mean", "margin"]:.1f} % (one seed, 95 % margin of the test images).
* **On real images (`vision8`) it is {plus_minus(*gap, 1)} points**, from {pairs["pretrained"]} to {pairs["individual"]} % (95 % intervals across
  {measured["seed"].nunique()} seeds).
* **The network has {sum(p.numel() for p in zoo.model.parameters()) / 1e6:.1f} million parameters.** This page runs on a laptop in half a minute, plus one
  or two minutes the first time, when it trains the experts.
""")
)

# %% [markdown]
# **Use it when** you want to understand a method, compare methods under equal conditions, or test an idea within
# minutes. **Don't use it** to predict the gain on your own checkpoints; merge those instead. **You need first:**
# [](00-what-merging-is).
#
# All accuracies assume, as in the papers, that **the task of each image is known**, which determines the head.
# [](00-what-merging-is) shows how much harder merging is otherwise.
#
# The default experiments of this book merge small vision transformers that were fine-tuned from the same pretrained
# weights. This code loads them with their tasks:

# %%
import mergelib as ml
from mergebook import load_suite, load_zoo

suite = load_suite(SUITE, seed=SEED, profile=PROFILE)
zoo = load_zoo(suite, device=DEVICE)
pretrained = ml.evaluate(zoo.model, zoo.pretrained, zoo.heads, suite)

# %% [markdown]
# ## Seven families of tasks share one interface
#
# A **suite** is a named family of tasks:
#
# | suite | tasks | needs |
# |---|---|---|
# | `digits2` | scikit-learn's handwritten digits, split into two tasks | nothing; runs in seconds |
# | `glyphs8`, `14`, `20` | scripts and symbol sets, rendered from fonts | nothing; no download |
# | `vision8`, `14`, `20` | real images: digits, clothes, signs, satellite images and more | prepared data, or a network connection |
# | `imagenet8`, `14`, `20` | the same images, for EfficientNet-Lite0 with ImageNet weights ([](#run-real)) | the same, and the extra `real` |
# | `sentences8` | sentences to classify, for the encoder MiniLM ([](#run-real)) | the same, and the extra `real` |
# | `text4` | texts in four languages, for a small GPT ([](#run-text)) | prepared data, or a network connection |
# | `clip8`, `14`, `20` | the papers' own tasks and public experts ([](#run-clip)) | a network connection and a GPU |
#
# The default is `glyphs8`. Its images are rendered from the DejaVu fonts of matplotlib, and a seed determines them.
# All images of the first three families have three channels and $32 \times 32$ pixels; grey images repeat one channel.
#
# Each task renders its script in a **different medium**, such as chalk, neon, carved wood or a watermark. Tasks
# therefore differ in shapes *and* in appearance, as street signs differ from satellite images. Otherwise one expert
# would serve them all. Glyphs are also rotated, sheared, shifted, bent and crowded by neighbours, as in a line of
# text.

# %% tags=["hide-input"] mystnb={"figure": {"caption": "Tasks differ in their shapes and in their medium. One row per task of the suite, with images of different classes.", "name": "fig-testbed-tasks"}, "image": {"alt": "Eight rows of twelve small images, one row per task. Every row shows other characters in another material."}}
COLUMNS, GAP = 12, 2


def strip(task):
    """Return a row of images: classes in turn, further examples when the classes run out."""
    classes, tiles = len(task.class_names), []
    for column in range(COLUMNS):
        members = (task.train.labels == column % classes).nonzero().flatten()
        tiles.append(task.train.inputs[members[column // classes]])
    tiles = [torch.nn.functional.pad(tile, (0, GAP, 0, 0), value=255) for tile in tiles]
    return torch.cat(tiles, 2).permute(1, 2, 0)


figure, axes = plt.subplots(len(suite.tasks), 1, figsize=(7.6, 0.69 * len(suite.tasks)))
for ax, (name, task) in zip(axes, suite.tasks.items(), strict=True):
    ax.imshow(strip(task), interpolation="nearest", aspect="equal")
    ax.set_ylabel(name, rotation=0, ha="right", va="center", fontsize=12)
    ax.set(xticks=[], yticks=[])
    ax.spines[:].set_visible(False)
plt.show()

# %% [markdown]
# ## Three splits: training, choosing and reporting
#
# Each task has three splits, and no image is in two of them.
#
# * **Training images** build the frozen heads and fine-tune the experts.
# * **Validation images** determine what a merging method leaves open, such as its scale or rank.
# * **Test images** give the reported number, after all choices are made.
#
# Rendered tasks have one more restriction. If at least three faces of the font (upright, bold, slanted, …) have a
# glyph, **one of them occurs in the test split only**. Some test images thus show a shape that the expert has never
# seen.

# %% tags=["nbval-check-output"]
for name, task in suite.tasks.items():
    sizes = [len(part) for part in (task.train, task.validation, task.test)]
    print(f"{name:<10} {len(task.class_names):>3} classes, train/validation/test: {sizes}")

# %% [markdown]
# ## The network: a small vision transformer
#
# The backbone is a **vision transformer** {cite}`dosovitskiy2021image` with a convolutional stem. Three
# convolutions of stride 2, instead of flat patches, turn $32 \times 32$ pixels into $4 \times 4 = 16$ tokens, which
# makes small transformers far easier to train {cite}`xiao2021early`. The features of an image are the mean of its
# 16 normalised tokens. The backbone has no classifier, because heads belong to tasks.

# %% tags=["remove-cell"]
from mergebook.suites.backbones import load_backbone

backbone = load_backbone("vit", DEVICE)
counted = sum(parameter.numel() for parameter in backbone.parameters())

# %% [markdown]
# Several methods treat **matrices** in a special way, because only a matrix has singular values. `is_matrix`
# selects tensors with two dimensions, both above 1, except tables of positions or words. The fused `qkv` weight
# counts as one matrix, as in the papers' code. Convolutions, norms and biases do not count.

# %% tags=["hide-input", "nbval-check-output"]
from mergelib.statedict import is_matrix

rows = [
    {
        "parameter": "blocks.*." + key.split(".", 2)[2] if is_matrix(key, p) else "everything else",
        "shape": " × ".join(map(str, p.shape)) if is_matrix(key, p) else "",
        "full rank": str(min(p.shape)) if is_matrix(key, p) else "",
        "tensors": 1,
        "parameters": p.numel(),
    }
    for key, p in backbone.state_dict().items()
]
table = pd.DataFrame(rows).groupby(["parameter", "shape", "full rank"], sort=False).sum()
table["fraction"] = (table["parameters"] / counted).map("{:.1%}".format)
table.sort_values("parameters", ascending=False).reset_index(["shape", "full rank"])

# %% [markdown]
# ## Pretraining uses related data, but none of the tasks
#
# All experts start from the same **pretrained weights** $\theta_0$, which come with the package in half precision.
# The project trained them in one run on several labelled data sets, each with a linear classifier that was
# discarded afterwards. The record of this run comes with the package, too:

# %%
import json
from importlib import resources

assets = resources.files("mergebook.suites") / "assets"
record = json.loads((assets / "vit.json").read_text())
log = pd.DataFrame(record["log"]).set_index("epoch")
print("trained on", ", ".join(record["sources"]), "with", record["recipe"]["optimiser"])

# %% tags=["hide-input"] mystnb={"figure": {"caption": "Pretraining improves until the last epoch. Training loss per epoch (left), and accuracy on held-out images of each pretraining set every five epochs (right). The loss is measured on distorted images with smoothed labels, so it cannot fall to zero.", "name": "fig-testbed-pretraining"}, "image": {"alt": "The training loss falls in every epoch and flattens. Held-out accuracy rises throughout, to above 80 % for rendered glyphs and Omniglot, and to about 20 % for the two hundred classes of Tiny ImageNet."}}
figure, (left, right) = plt.subplots(1, 2, figsize=(7.2, 3.6))
left.plot(log.index, log["loss"], "o-", color=plots.BLACK, markersize=4)
left.set(xlabel="epoch", ylabel="nats per image", title="Training loss", ylim=(0, None))
for column, shade in zip(
    [c for c in log if c.startswith("accuracy/")], ("ties", "task_arithmetic", "cart"), strict=False
):
    seen = log[column].dropna()
    name = column.removeprefix("accuracy/")
    right.plot(seen.index, 100 * seen, "o-", color=plots.COLOURS[shade], label=name)
right.set(xlabel="epoch", ylabel="%", title="Held-out accuracy", ylim=(0, 100))
right.legend(loc="best", fontsize=10)
plt.show()

# %% [markdown]
# None of these data sets is a task of a suite, and none of their images is in a suite. Some tasks are nevertheless
# related to them.
#
# * `glyphs` has rendered **Latin letters and digits** beside Armenian, Lao, N'Ko and others. The backbone has thus
#   seen the shapes of `mnist`, `emnist_letters` and `notmnist` in print, but never in handwriting or in their fonts.
# * `omniglot` is handwriting in other alphabets, which helps with `kmnist` and the glyph suites.
# * Tiny ImageNet {cite}`le2015tiny` has animals and vehicles, as `cifar10` does.
# * The scripts and media of glyph tasks are not in pretraining. Other glyphs of the same fonts are, in one colour on
#   another, plain, blurred or noisy.
#
# CLIP, the backbone of the papers, has seen far more of its tasks {cite}`radford2021learning`. Merging is possible
# with both because experts share their initial weights, which [](02-averaging-and-task-vectors) tests.
#
# ## Frozen heads are built from three images per class
#
# If every task trained its own head, experts could differ in the head alone, and it would be unclear what to merge.
# The papers therefore freeze the head, which consists of class names encoded by CLIP's text encoder. We have no
# text encoder and use a few images instead. Let $f(x;\theta)$ be the features of image $x$, and $\hat f = f /
# \lVert f \rVert$. The weight of class $c$ and its logit are, with $K$ training images $S_c$ per class,
#
# $$
# w_c = \frac1K \sum_{x \in S_c} \hat f(x; \theta_0),
# \qquad
# z_c(x;\theta) = s \cdot \cos\bigl(f(x;\theta),\, w_c\bigr).
# $$ (eq-testbed-head)
#
# The class weights are computed once, from the **pretrained** features, and never change. The inverse temperature
# $s$ is needed because cosines lie between $-1$ and $1$, too close together for a softmax.

# %% [markdown]
# The next cell builds the head of the first task by Equation {eq}`eq-testbed-head`, in plain steps, and compares
# its logits with the zoo's on a hundred images.

# %%
import torch.nn.functional as F

from mergebook.suites.models import scale_pixels

first = next(iter(suite.tasks))
recipe, task = Recipe(), suite.tasks[first]
shuffled = torch.randperm(len(task.train), generator=torch.Generator().manual_seed(SEED))
with torch.no_grad():
    weight = []
    for label in range(len(task.class_names)):
        shots = [i for i in shuffled.tolist() if task.train.labels[i] == label][: recipe.shots]
        f = zoo.model(scale_pixels(task.train.inputs[shots]).to(DEVICE))
        weight.append((f / f.norm(dim=1, keepdim=True)).mean(0))
    f = zoo.model(scale_pixels(task.test.inputs[:100]).to(DEVICE))
    by_hand = recipe.head_scale * F.cosine_similarity(f[:, None], torch.stack(weight), dim=2)
    by_package = zoo.heads[first](f)
difference = (by_hand - by_package).abs().max().item()

# %% tags=["nbval-check-output"]
print(f"{tuple(by_hand.shape)} logits by hand and by the package agree:", difference < 1e-3)
assert difference < 1e-3

# %% [markdown]
# Three words have a fixed meaning in every table:
#
# * **Pretrained** is $\theta_0$ under the frozen heads. It knows a few examples of each class, and nothing was tuned.
# * **Individual** is each expert $\theta_t$ on its own task $t$, which requires $T$ models.
# * **Normalised** accuracy is a merged model's accuracy divided by the expert's on the same task.
#
# ## Experts are fine-tuned with one recipe
#
# An expert is the backbone, trained from $\theta_0$ on one task's training split $D_t$. Training minimises the
# cross-entropy under the frozen head,
#
# $$
# \theta_t \approx \arg\min_\theta \ell_t(\theta), \qquad
# \ell_t(\theta) = -\frac{1}{|D_t|} \sum_{(x,y)\in D_t}
#   \log \frac{\exp z_y(x;\theta)}{\sum_c \exp z_c(x;\theta)}.
# $$ (eq-testbed-loss)
#
# All parameters of the backbone are trained, and the head is not. Every task uses AdamW
# {cite}`loshchilov2019decoupled` with a short warm-up and a cosine decay:

# %%
pd.Series(asdict(recipe), name="the default recipe").to_frame()

# %% [markdown]
# The learning rate is small because experts must stay close to $\theta_0$ to be combined.
# [](02-averaging-and-task-vectors) shows what happens after rougher training, and without shared initial weights.
#
# `load_zoo` returns the backbone, the heads and all experts. It trains missing experts and caches each under a
# **fingerprint**, a hash of the task's training data, the backbone, the recipe and the seed, so a cached expert
# never belongs to another experiment.
#
# ## Each expert improves on its own task only
#
# `ml.evaluate` takes one state dict and returns accuracy, loss and counts, with one row per task. It leaves the
# model's own weights unchanged and is deterministic.

# %%
pretrained.set_index("task").round(3)

# %% [markdown]
# `ml.evaluate_many` does the same for a grid of candidates, with the images kept on the device and one network
# reused. Every sweep in this book is one such call. The next cell evaluates *every* expert on 200 test images of
# *every* task.

# %%
models = {**zoo.experts, "pretrained": zoo.pretrained}
few = comparison.first(suite, test=200)
everyone = ml.evaluate_many(zoo.model, models, zoo.heads, few)
grid = everyone.pivot(index="candidate", columns="task", values="accuracy")
grid = grid.loc[list(models), list(suite.tasks)]

# %% tags=["hide-input"] mystnb={"figure": {"caption": "An expert is far better than the pretrained backbone (last row) on its own task (the diagonal), and about as good or worse on the others. Test accuracy in %, on 200 images per task (columns).", "name": "fig-testbed-experts"}, "image": {"alt": "Square heat map of experts against tasks. The diagonal is bright, far above the last row. All other values are close to the last row of their column or below it."}}
figure, ax = plt.subplots(figsize=(7.4, 6.2))
plots.heat_map(100 * grid, ax, low=0, high=100, digits=0, bar="test accuracy, %")
ax.set(xlabel="task of the test images", ylabel="task of the expert")
plt.show()

# %% [markdown]
# ## The margin of error is two to four points per task
#
# The next table uses all test images. It adds validation accuracy, the accuracy of guessing (chance), and a
# **margin of error**. If a model is right with probability $p$, the fraction measured on $n$ images has standard
# deviation $\sqrt{p(1-p)/n}$, so in 95 % of samples its error is less than
#
# $$
# m = 1.96 \sqrt{\frac{p\,(1-p)}{n}} .
# $$ (eq-testbed-margin)

# %% tags=["hide-input"]
percent.rename_axis(columns="%").round(1)

# %% [markdown]
# One accuracy on *one* task is thus uncertain by two to four points. Means over all tasks are more precise, and paired comparisons even more so. The seeds of training and of the heads add to the noise, so headline results in
# this book are intervals across seeds.

# %% tags=["hide-cell"]
# What the text above and the figures' descriptions say, held to a tolerance.
if PROFILE == "default" and SUITE == "glyphs8":
    assert (summary["pretrained"] > summary["chance"]).all()
    assert (summary["individual"] > summary["pretrained"] + 0.1).all()
    assert abs(summary.loc["mean", "validation"] - summary.loc["mean", "individual"]) < 0.03
    others = grid.where(~torch.eye(*grid.shape, dtype=torch.bool).numpy())
    assert (others.sub(grid.loc["pretrained"]).max() < 0.08).all()
if PROFILE == "default" and SUITE == "glyphs8" and SEED == 0:
    assert percent["margin"][:-1].between(1.5, 4).all()
    gaps = (percent["individual"] - percent["pretrained"])[:-1]
    assert gaps.between(17, 53).all()

# %% [markdown]
# ## Real images: `vision8`
#
# The results that we rely on come from real data. `vision8` has eight data sets, as prepared files or downloaded
# with torchvision.

# %% tags=["hide-input", "nbval-check-output"]
from mergebook.suites.data.prepared import CATALOGUE

sets = {name: CATALOGUE[name] for name in known_suites()["vision8"]}
real = pd.DataFrame.from_dict(sets, orient="index").rename_axis("name")
real[["what", "classes"]].rename(columns={"what": "images"})

# %% [markdown]
# The package measured all of the above on `vision8`, and ships the record with every number and the hashes of the
# data.

# %% tags=["hide-input"]
(100 * mean).rename_axis(columns="test accuracy, %").round(1)

# %% tags=["remove-input"]
easy, hard = 100 * mean.loc["mnist"], 100 * mean.loc["cifar10"]
display(
    Markdown(f"""
The pretrained network is best on `mnist` ({easy["pretrained"]:.1f} %) by far, probably because it has seen printed digits. The experts are worst on `cifar10` ({hard["individual"]:.1f} %).
""")
)

# %% [markdown]
# ## What the papers use, and the limits of this testbed
#
# The testbed imitates Table 1 of the CART paper {cite}`choi2025revisiting`, whose protocol goes back to
# {cite:t}`ilharco2023editing`: CLIP ViT-B/32, eight data sets, and images of $224 \times 224$ pixels.

# %% tags=["hide-input"]
paper = pd.Series({"pretrained": 48.0, "individual": 90.5}, name="CLIP ViT-B/32, 8 tasks (paper)")
rendered = 100 * summary.loc["mean", ["pretrained", "individual"]].rename(f"{SUITE}, here")
real = 100 * mean.mean().rename("vision8, here")
pd.DataFrame([paper, rendered, real]).rename_axis(columns="test accuracy, %").round(1)

# %% [markdown]
# The numbers cannot be compared, because the tasks differ. The situation is the same: a pretrained model well above
# chance and well below its experts, experts that improve on their own task only, and one initialisation for all. The
# testbed has these limits:
#
# * *Size.* Our backbone has 1.4 million parameters, CLIP ViT-B/32's image encoder 88 million. In the paper's Table 1 every method keeps more of the
# larger model, so merging probably loses more here.
# * *Resolution.* Some tasks are hard for any model at $32 \times 32$ pixels.
# * *One backbone family.* All default results use one pretrained transformer. `load_zoo` also accepts
#   `model="resnet18"` and `"mlp"`, which it pretrains briefly.
# * *Few-shot heads.* Class names encoded by CLIP are better heads than three images. "Pretrained" depends on the
#   images that were drawn, and seeds average over that.
# * *Rendered data.* Glyph tasks are alike in ways that real tasks are not. The order of methods on `glyphs8` is a hint.
#
# ## Exercises
#
# ```{exercise} The accuracy of guessing (easy)
# :label: ex-testbed-chance
# What is the mean accuracy over this suite's tasks of guessing at random? Why is it not one over the mean number of
# classes?
# ```

# %% [markdown]
# ````{solution-start} ex-testbed-chance
# :class: dropdown
# ````
# A random guess among $C_t$ classes is right with probability $1/C_t$, so the answer is the mean of $1/C_t$. The mean of
# reciprocals is at least the reciprocal of the mean (Jensen's inequality for the convex function $1/x$), so tasks with
# few classes raise it.

# %% tags=["nbval-check-output"]
counts = pd.Series({name: len(task.class_names) for name, task in suite.tasks.items()})
print(f"mean of 1/C: {100 * (1 / counts).mean():.2f} %, 1/mean of C: {100 / counts.mean():.2f} %")

# %% [markdown]
# ````{solution-end}
# ````
#
# ```{exercise} More images per head (medium)
# :label: ex-testbed-shots
# How does "pretrained" change with 1, 3 or 10 images per class? Use validation images, and compute their features
# only once.
# ```

# %% [markdown]
# ````{solution-start} ex-testbed-shots
# :class: dropdown
# ````
# Accuracy rises with diminishing returns, because the choice of images matters less and the class means converge. The
# limit is that of a nearest-mean classifier on pretrained features.

# %%
from mergebook.suites.heads import features, few_shot_heads

inputs = {name: task.validation.inputs.to(DEVICE) for name, task in suite.tasks.items()}
seen = {name: features(zoo.model, images, scale_pixels) for name, images in inputs.items()}
for shots in (1, 3, 10):
    heads = few_shot_heads(zoo.model, suite, replace(recipe, shots=shots), SEED)
    right = [
        (heads[name](seen[name]).argmax(1).cpu() == task.validation.labels).float().mean().item()
        for name, task in suite.tasks.items()
    ]
    print(f"{shots:>2} shots: {100 * sum(right) / len(right):.1f} % on validation")

# %% [markdown]
# ````{solution-end}
# ````
#
# ```{exercise} Better features, or a better fit to the head (hard)
# :label: ex-testbed-skill
# Has the expert only fitted the class weights, or are its features better in themselves? Rebuild each head from the
# same three images per class, but with the *expert's* features, and evaluate on test images.
# ```

# %% [markdown]
# ````{solution-start} ex-testbed-skill
# :class: dropdown
# ````
# If the expert had only fitted the old weights, a new head would do much worse. The comparison with "pretrained" is
# fair, because only the features differ.

# %%
import copy

expert_model, rebuilt = copy.deepcopy(zoo.model), {}
for name, expert in zoo.experts.items():
    expert_model.load_state_dict(expert)
    one = replace(suite, tasks={name: suite.tasks[name]})
    head = few_shot_heads(expert_model, one, recipe, SEED)
    rebuilt[name] = ml.evaluate(zoo.model, expert, head, one)["accuracy"].item()
table = summary.loc[list(rebuilt), ["pretrained", "individual"]].assign(rebuilt=pd.Series(rebuilt))
(100 * table.mean()).rename("test accuracy, %").to_frame().round(1)

# %% [markdown]
# The rebuilt heads are about two points less accurate, so most of the skill is in the features. A merged model can lose features or their fit to the
# head ([](24-choosing-checking-reporting)).
#
# ````{solution-end}
# ````
#
# ## Summary
#
# * Training images make heads and experts, validation images make choices, and test images give results.
# * Only backbones are merged, and "pretrained" and "individual" are the ends of what merging can reach.
# * The order of methods on `glyphs8` is a hint; check it on your own models.
