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
# # The testbed: what the experiments run on
#
# **In one sentence:** every experiment in this book merges small vision transformers that were
# fine-tuned from one shared backbone on several tasks, under frozen heads, and judges them on
# pictures that nobody chose anything on; this page shows all the parts and tests that they do what
# they claim.
#
# Merging papers work with CLIP models, eight public data sets and a rack of GPUs. We keep the
# shape of that experiment and shrink its size, until it runs on a laptop in a minute. A small
# experiment is only worth its name if one can see through it, so here is the whole apparatus.
#
# One property of the protocol should be known from the start: **every model is told which task a
# picture belongs to.** It is judged under that task's head and never has to find the task itself.
# The papers do so, and we follow them; [](00-what-merging-is) shows how much harder it is without.
#
# **After this page you can**
#
# * say which tasks, splits, model and heads stand behind a number in this book;
# * recompute a head's logits and the model's number of parameters by hand;
# * read "pretrained", "individual" and "normalised" in a table, with the margin of error;
# * tell what this testbed cannot show.
#
# **Before you start:** [](00-what-merging-is). **Time:** 20 minutes to read, about half
# a minute to run once the experts are cached (a minute or two more the first time).

# %% tags=["parameters", "remove-cell"]
SUITE = "glyphs8"
PROFILE = "default"
SEED = 0
DEVICE = "cpu"

# %% [markdown]
# ## The tasks
#
# A **suite** is a named family of tasks. Seven families share one interface:
#
# | suite | what it holds | where it runs |
# |---|---|---|
# | `digits2` | scikit-learn's handwritten digits, cut into two tasks | anywhere, in seconds |
# | `glyphs8`, `14`, `20` | scripts and symbol sets, rendered from fonts | anywhere, without a download |
# | `vision8`, `14`, `20` | real pictures: digits, clothes, signs, satellite images and more | where the data is, or with a network |
# | `imagenet8`, `14`, `20` | the same pictures, for EfficientNet-Lite0 with ImageNet weights ([](#run-real)) | likewise, with the extra `real` |
# | `sentences8` | sentences to classify, for the encoder MiniLM ([](#run-real)) | likewise |
# | `text4` | texts in four languages, for a small GPT ([](#run-text)) | where the data is, or with a network |
# | `clip8`, `14`, `20` | the papers' own tasks and public experts ([](#run-clip)) | with a network and a GPU |
#
# The default of every notebook is `glyphs8`. Its pictures are drawn on the spot from the DejaVu
# fonts that come with matplotlib, so nothing is downloaded, and a seed decides what is drawn.
# Every picture of the first three, rendered or real, is a colour image of $32 \times 32$ pixels.

# %%
import mergelib as ml
from mergebook import Recipe, load_suite, load_zoo
from mergebook.plots import use_style

use_style()
suite = load_suite(SUITE, seed=SEED, profile=PROFILE)

# %% [markdown]
# Each task draws its script in a **medium of its own**: chalk, neon, carved wood, a watermark.
# That matters for merging. Were all tasks drawn alike, one expert would serve them all; as it is,
# tasks differ in *what* is to be told apart and in *how* it looks, as street signs differ from
# satellite images. Glyphs are also turned, sheared, shifted, bent and crowded by neighbours, as
# letters in a line of text are.

# %% tags=["hide-input"] mystnb={"figure": {"caption": "The tasks of the suite: one row per task, each picture from another class. Scripts and symbol sets differ in their shapes, and each has a medium of its own.", "name": "fig-testbed-tasks"}, "image": {"alt": "A contact sheet with one row of twelve small pictures for each of eight tasks: every row shows other characters and is drawn in another material, so that rows are told apart at a glance, while the pictures within a row share their look."}}
import matplotlib.pyplot as plt
import torch

COLUMNS, GAP = 12, 2


def strip(task):
    """A row of pictures: classes in turn, another example when the classes run out."""
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
# ## What is chosen on which split
#
# Three splits of every task have three jobs, and no picture has two of them:
#
# * **train**: the examples behind the frozen heads, and the fine-tuning of the experts;
# * **validation**: every choice a merging method leaves open, such as its scale or rank;
# * **test**: the number that is reported, looked at once the choices are made.
#
# For rendered tasks there is one more hurdle. Where at least three faces of the font have a glyph
# (upright, bold, slanted, …), **one face is kept out of training and validation and joins in the
# test split only.** So some test pictures show a letter shape that the expert has never seen. A
# table below compares validation and test accuracy, task by task.

# %% tags=["nbval-check-output"]
for name, task in suite.tasks.items():
    sizes = [len(part) for part in (task.train, task.validation, task.test)]
    print(f"{name:<10} {len(task.class_names):>3} classes, train/validation/test: {sizes}")

# %% [markdown]
# The suite carries a SHA-256 hash of everything it drew or read, and results are stored with these
# hashes. If two machines show different numbers, the hashes tell whether the data was the same. A
# first test of trust: draw a task again, and compare.

# %% tags=["nbval-check-output"]
first = next(iter(suite.tasks))
again = load_suite(SUITE, seed=SEED, profile=PROFILE, tasks=[first])
print("drawn twice, the same bytes:", set(again.sources.items()) <= set(suite.sources.items()))

# %% [markdown]
# ## The model
#
# The backbone is a small **vision transformer** {cite}`dosovitskiy2021image`. It differs from the
# textbook in one place: the picture is not cut into flat patches but goes through three
# convolutions of stride 2, which turn $32 \times 32$ pixels into $4 \times 4 = 16$ tokens. Such a
# convolutional stem makes small transformers far easier to train {cite}`xiao2021early`. The
# features of a picture are the mean of its 16 normalised tokens. There is no classifier on top:
# heads belong to tasks, and this model is what the tasks share.

# %% tags=["hide-output"]
import inspect

from mergebook.suites.models import Block, VisionTransformer

print(inspect.getsource(Block))
print(inspect.getsource(VisionTransformer))

# %% [markdown]
# How many parameters is that? With width $w$, the convolutions have $w/4$, $w/2$ and $w$ channels
# and $3 \times 3$ kernels. A block has $12 w^2$ entries in its four matrices ($3w^2$ for queries,
# keys and values in one, $w^2$ for the projection, $4w^2$ twice for the multilayer perceptron) and
# $13 w$ in biases and norms. Adding 16 positions and the last norm, a model of depth $d$ has
#
# $$
# n = \underbrace{9\left(3\cdot\tfrac w4 + \tfrac w4\cdot\tfrac w2 + \tfrac w2\cdot w\right)
#     + \tfrac{7}{4} w}_{\text{stem}}
#   + \underbrace{16\,w}_{\text{positions}}
#   + \underbrace{d\,(12 w^2 + 13 w)}_{\text{blocks}}
#   + \underbrace{2w}_{\text{last norm}}
# $$ (eq-testbed-parameters)
#
# parameters. The next cell evaluates the formula and then counts, which is our first check against
# a known value.

# %% tags=["nbval-check-output"]
from mergebook.suites.backbones import load_backbone

backbone = load_backbone("vit", DEVICE)
w, d = backbone.width, len(backbone.blocks)
stem = 9 * (3 * w // 4 + w // 4 * w // 2 + w // 2 * w) + 7 * w // 4
formula = stem + 16 * w + d * (12 * w**2 + 13 * w) + 2 * w
counted = sum(parameter.numel() for parameter in backbone.parameters())
print(f"width {w}, depth {d}: {formula:,} by the formula, {counted:,} counted")
assert formula == counted

# %% [markdown]
# Several methods of this book treat **matrices** in a special way, since only a matrix has singular
# values. `is_matrix` decides: two dimensions, both above 1, and no table of positions or words. The
# next cell lists what it finds. The fused `qkv` weight counts as one matrix, as it does in the
# papers' code; everything else (convolutions, positions, norms, biases) is no matrix.

# %% tags=["hide-input", "nbval-check-output"]
import pandas as pd

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
table["share"] = (table["parameters"] / counted).map("{:.1%}".format)
table.sort_values("parameters", ascending=False).reset_index()

# %% [markdown]
# ## The backbone, and what it has seen
#
# All experts grow from one set of **pretrained weights** $\theta_0$, which ship with the package as
# half-precision numbers. They were made by the project itself: one model, trained on several
# labelled sets at once, with a linear classifier for each set that is thrown away afterwards. The
# record of that run ships beside the weights, and here it is. (Its training loss is measured on
# distorted pictures and with smoothed labels, so it could not fall to zero.)

# %%
import json
from importlib import resources

assets = resources.files("mergebook.suites") / "assets"
record = json.loads((assets / "vit.json").read_text())
log = pd.DataFrame(record["log"]).set_index("epoch")
print("trained on", ", ".join(record["sources"]), "with", record["recipe"]["optimiser"])

# %% tags=["hide-input"] mystnb={"figure": {"caption": "Pretraining of the shipped backbone, from its own log: training loss per epoch (left), and accuracy on held-out pictures of each pretraining set (right), measured every five epochs.", "name": "fig-testbed-pretraining"}, "image": {"alt": "Two panels over the epochs of pretraining. The training loss falls in every epoch and flattens towards the end. Accuracy on held-out pictures rises throughout, to above eighty percent for rendered glyphs and Omniglot, and to about twenty percent for Tiny ImageNet with its two hundred classes."}}
from mergebook.plots import COLOURS

figure, (left, right) = plt.subplots(1, 2, figsize=(7.2, 3.6))
left.plot(log.index, log["loss"], "o-", color=COLOURS["individual"], markersize=4)
left.set(xlabel="epoch", ylabel="nats a picture", title="Training loss", ylim=(0, None))
for column, shade in zip(
    [c for c in log if c.startswith("accuracy/")], ("ties", "task_arithmetic", "cart"), strict=False
):
    seen = log[column].dropna()
    name = column.removeprefix("accuracy/")
    right.plot(seen.index, 100 * seen, "o-", color=COLOURS[shade], label=name)
right.set(xlabel="epoch", ylabel="%", title="Held-out accuracy", ylim=(0, 100))
right.legend(loc="best", fontsize=10)
plt.show()

# %% [markdown]
# None of these sets is a task of a suite, and none of their pictures is in one. That does not make
# every task *wholly* new, and honesty asks for the details:
#
# * the set `glyphs` contains rendered **Latin letters and digits** beside Armenian, Lao, N'Ko and
#   others. So `mnist`, `emnist_letters` and `notmnist` show shapes that the backbone has met in
#   print, though never in handwriting or in these data sets' fonts;
# * `omniglot` is handwriting in other alphabets, which helps with `kmnist` and the glyph suites;
# * Tiny ImageNet {cite}`le2015tiny` has animals and vehicles, as `cifar10` has;
# * the glyph tasks use scripts that pretraining leaves out, and media it has never seen. What it
#   *has* seen is other glyphs of the same fonts, one colour on another, plain, blurred or noisy.
#
# CLIP, the backbone of the papers, has seen far more of its tasks than that
# {cite}`radford2021learning`. In both worlds the shared start is what makes merging possible, a
# point that [](02-averaging-and-task-vectors) tests.

# %% [markdown]
# ## Frozen heads from a few pictures
#
# To classify, features need a head. If every task trained its own, experts could differ in the
# head alone, and it would be unclear what to merge. The papers avoid this by CLIP's text encoder:
# the head is the encoded class names, and it is frozen. We have no text encoder, so we take a few
# pictures instead. Let $f(x;\theta)$ be the features of picture $x$, and let
# $\hat f = f / \lVert f \rVert$. With $K$ pictures $S_c$ of each class $c$, drawn from the training
# split, the weight of class $c$ and its logit for a picture are
#
# $$
# w_c = \frac1K \sum_{x \in S_c} \hat f(x; \theta_0),
# \qquad
# z_c(x;\theta) = s \cdot \cos\bigl(f(x;\theta),\, w_c\bigr).
# $$ (eq-testbed-head)
#
# The class weights are built from the **pretrained** features, once, and never change. The number
# $s$ is an inverse temperature: cosines lie between $-1$ and $1$, too close together for a softmax.
# This is the code that builds and applies a head:

# %% tags=["hide-output"]
from mergebook.suites.heads import few_shot_head
from mergebook.suites.models import Head

print(inspect.getsource(few_shot_head))
print(inspect.getsource(Head))

# %% [markdown]
# The zoo, introduced below, has built these heads already. A second check against a known value:
# build the head of the first task by Equation {eq}`eq-testbed-head` in plain steps, and compare
# its logits on a hundred pictures.

# %%
import torch.nn.functional as F

from mergebook.suites.models import scale_pixels

zoo = load_zoo(suite, device=DEVICE)
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
# From here on three words have a fixed meaning in every table:
#
# * **pretrained**: $\theta_0$ under the frozen heads. It knows a few examples of each class and
#   nothing else, so it is weak, but it is honest: nothing was tuned.
# * **individual**: each expert $\theta_t$ on its own task $t$. It takes $T$ models to get it.
# * **normalised** accuracy: that of a merged model, divided by the expert's on the same task.
#
# Merging tries to reach *individual* with one model. The gap between the first two is the room it
# has.

# %% [markdown]
# ## Fine-tuning, and the zoo
#
# An expert is the backbone, trained further on one task's training split $D_t$ by minimising the
# cross-entropy under the frozen head,
#
# $$
# \theta_t \approx \arg\min_\theta \ell_t(\theta), \qquad
# \ell_t(\theta) = -\frac{1}{|D_t|} \sum_{(x,y)\in D_t}
#   \log \frac{\exp z_y(x;\theta)}{\sum_c \exp z_c(x;\theta)},
# $$ (eq-testbed-loss)
#
# starting at $\theta_0$. All parameters of the backbone move, and the head does not. The recipe is
# AdamW {cite}`loshchilov2019decoupled` with a short warm-up and a cosine decay, the same for every
# task:

# %%
from dataclasses import asdict

pd.Series(asdict(recipe), name="the default recipe").to_frame()

# %% [markdown]
# The learning rate is small on purpose. Experts have to stay near their common start, or their
# weights cannot be combined; [](02-averaging-and-task-vectors) shows what a rougher training does,
# and what happens to models that do not share a start at all.
#
# `load_zoo` returns the backbone, the heads and all experts. It trains what is missing and keeps
# every expert as a file in a cache, named by a **fingerprint**: a hash of the task's training data,
# the backbone, the recipe and the seed. Change any of them and a new expert is trained; change none
# and the file is read. So a cached expert can never belong to another experiment.

# %% tags=["nbval-check-output"]
from mergelib.io import load_state_dict

stored = load_state_dict(zoo.files[first])
same = all(torch.equal(stored[key], zoo.experts[first][key].cpu()) for key in stored)
print(f"{len(zoo.experts)} experts; the file holds the expert, bit for bit: {same}")

# %% [markdown]
# ## Judging models
#
# `evaluate` takes one state dict and returns one row per task: accuracy, loss, and the counts
# behind them. It never touches the model's own weights, and it is deterministic.

# %%
pretrained = ml.evaluate(zoo.model, zoo.pretrained, zoo.heads, suite)
pretrained.set_index("task").round(3)

# %% [markdown]
# `evaluate_many` does the same for a whole grid of candidates, with the pictures kept on the device
# and one network reused for all; every sweep in this book is one call of it. As an example we ask
# of *every* expert how it does on *every* task, on 200 test pictures of each.

# %%
from mergebook.lab import comparison

models = {**zoo.experts, "pretrained": zoo.pretrained}
few = comparison.first(suite, test=200)
everyone = ml.evaluate_many(zoo.model, models, zoo.heads, few)
grid = everyone.pivot(index="candidate", columns="task", values="accuracy")
grid = grid.loc[list(models), list(suite.tasks)]

# %% tags=["hide-input"] mystnb={"figure": {"caption": "Test accuracy in % of every expert (rows) on 200 pictures of every task (columns); the last row is the pretrained backbone. On its own task (the diagonal) an expert is far ahead of the backbone, on the others it is about level or falls behind.", "name": "fig-testbed-experts"}, "image": {"alt": "A square heat map of experts against tasks. The diagonal stands out brightly, far above the pretrained backbone in the last row; off the diagonal accuracies are at about the level of the backbone or below it, in every column."}}
from mergebook.plots import heat_map

figure, ax = plt.subplots(figsize=(7.4, 6.2))
heat_map(100 * grid, ax, low=0, high=100, digits=0, bar="test accuracy, %")
ax.set(xlabel="judged on", ylabel="expert in")
plt.show()

# %% [markdown]
# The diagonal of this table is "individual". The next table has it for all test pictures, and beside
# it the accuracy on validation pictures, what guessing would score, and a **margin of error**. A test split of $n$ pictures is a sample:
# if a model is right with probability $p$ on any picture, the measured share has standard
# deviation $\sqrt{p(1-p)/n}$, so 95 % of the time it is off by less than
#
# $$
# m = 1.96 \sqrt{\frac{p\,(1-p)}{n}} .
# $$ (eq-testbed-margin)

# %%
from mergebook.lab.comparison import individual

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
(100 * summary).round(1)

# %% [markdown]
# Read the margins before you compare methods: on *one* task of this size, a difference of two
# points is within the noise, while a mean over all tasks is much sharper, and paired comparisons
# sharper still. The seeds of training and of the heads are another source of chance, so headline
# results in this book are intervals over seeds.
#
# Do the faces that were kept out trip the experts? The means over tasks are about equal on test and
# validation pictures, but that cannot tell: those faces are only a part of the test split, and
# tasks may cancel. Here is where test accuracy falls behind by more than the margin of the
# difference:

# %%
sizes = {name: len(task.validation) for name, task in suite.tasks.items()}
part = summary.loc[list(sizes)]
spread = part["validation"] * (1 - part["validation"]) / pd.Series(sizes)
margin = (1.96**2 * spread + part["margin"] ** 2) ** 0.5
behind = part["validation"] - part["individual"] > margin
print("behind on test:", ", ".join(part.index[behind]) or "no task", f"(of {len(part)})")

# %% [markdown]
# With eight tasks, one beyond its 95 % margin is weak evidence.

# %% tags=["hide-input"] mystnb={"figure": {"caption": "The room that merging has: from the pretrained backbone (square) to the expert of each task (diamond), on test pictures.", "name": "fig-testbed-gap"}, "image": {"alt": "Dot plot with one row per task. The expert lies far to the right of the pretrained backbone in every task, by fifteen points of accuracy and more; the grey bar between them is the gap that merging has to close."}}
from mergebook.plots import accuracy_by_task

ends = [pretrained.assign(method="pretrained"), own.reset_index().assign(method="individual")]
accuracy_by_task(pd.concat(ends))
plt.show()

# %% tags=["hide-cell"]
# What the text above and the figures' descriptions say, held to a tolerance.
if PROFILE == "default" and SUITE == "glyphs8":
    assert (summary["pretrained"] > summary["chance"]).all()
    assert (summary["individual"] > summary["pretrained"] + 0.1).all()
    assert abs(summary.loc["mean", "validation"] - summary.loc["mean", "individual"]) < 0.03
    others = grid.where(~torch.eye(*grid.shape, dtype=torch.bool).numpy())
    assert (others.sub(grid.loc["pretrained"]).max() < 0.08).all()

# %% [markdown]
# ## Real pictures: `vision8`
#
# Where results count, they come from real data. `vision8` holds eight sets; it needs their prepared
# files, or a network to fetch them once through torchvision.

# %% tags=["hide-input", "nbval-check-output"]
from mergebook.suites.data.prepared import CATALOGUE
from mergebook.suites.registry import known_suites

real = pd.DataFrame([asdict(CATALOGUE[name]) for name in known_suites()["vision8"]]).set_index(
    "name"
)
real[["what", "classes"]]

# %% [markdown]
# A command of the package ran all of the above on it over several seeds. The record, with every
# number and the hashes of the data it came from, ships with the package, and we read it here.

# %% tags=["hide-input"]
from mergebook.lab.results import load_table
from mergebook.lab.statistics import over_seeds

measured = load_table("vision8-baselines").query("method in ['pretrained', 'individual']")
print(f"test accuracy in %, mean over {measured['seed'].nunique()} seeds")
mean = measured.groupby(["method", "task"])["accuracy"].mean().unstack("method")
mean = mean.loc[list(known_suites()["vision8"]), ["pretrained", "individual"]]
(100 * mean).round(1)

# %% tags=["hide-input"]
for method, (centre, half) in (100 * over_seeds(measured, "method")).iterrows():
    print(f"{method}, mean over tasks: {centre:.1f} ± {half:.1f} (95 % over seeds)")

# %% [markdown]
# The pretrained model does best by far on `mnist`: it has seen printed digits, as we warned. The
# experts are furthest from perfect on `cifar10`, whose photographs say little at this size.

# %% [markdown]
# ## What the papers say and what we have
#
# The experiment that the testbed imitates stands in Table 1 of the CART paper
# {cite}`choi2025revisiting`, whose protocol goes back to {cite:t}`ilharco2023editing`: CLIP
# ViT-B/32, eight data sets at $224 \times 224$ pixels.

# %%
paper = pd.Series({"pretrained": 48.0, "individual": 90.5}, name="CLIP ViT-B/32, 8 tasks (paper)")
rendered = 100 * summary.loc["mean", ["pretrained", "individual"]].rename(f"{SUITE}, here")
real = 100 * mean.mean().rename("vision8, here")
pd.DataFrame([paper, rendered, real]).round(1)

# %% [markdown]
# The rows are no contest; they are different tasks. What carries over is the *shape*: a
# pretrained model that is well above chance and well below its experts, experts that know only
# their own task, and one start for all. What does not carry over is said here, once:
#
# **Limits of this testbed**
#
# * *Size.* Our backbone has a little over a million parameters, CLIP ViT-B/32's image encoder 88
#   million. Larger models are easier to merge (in the paper's Table 1 every method keeps more of
#   the larger model), so absolute losses from merging are larger here.
# * *Resolution.* At $32 \times 32$ pixels some tasks are hard for anyone.
# * *One backbone family.* All default results rest on one pretrained transformer. `load_zoo` also
#   takes `model="resnet18"` and `"mlp"`, which are pretrained on the spot, briefly.
# * *Few-shot heads.* Class names encoded by CLIP are better heads than three pictures, so our
#   "pretrained" row depends on which pictures were drawn; seeds average over that.
# * *Rendered data.* Glyph tasks are alike in ways that real tasks are not. An order of methods on
#   `glyphs8` is a hint; the results on `vision8` are what we rely on.
#
# **When to use it:** to understand a method, to compare methods under equal conditions, to test an
# idea within minutes. **When not:** to predict by how many points a method will help your
# checkpoints. For that, merge your checkpoints.

# %% [markdown]
# ## Exercises
#
# ```{exercise} What is guessing worth? (easy)
# :label: ex-testbed-chance
# What accuracy does a model reach on average over the tasks of this suite if it guesses a class at
# random? Why is it not simply one over the mean number of classes?
# ```

# %% [markdown]
# ````{solution-start} ex-testbed-chance
# :class: dropdown
# ````
# A random guess among $C_t$ classes is right with probability $1/C_t$, so the answer is the mean of
# $1/C_t$. The mean of reciprocals is at least the reciprocal of the mean (Jensen's inequality for
# the convex function $1/x$), so tasks with few classes pull chance up.

# %% tags=["nbval-check-output"]
counts = pd.Series({name: len(task.class_names) for name, task in suite.tasks.items()})
print(f"mean of 1/C: {100 * (1 / counts).mean():.2f} %, 1/mean of C: {100 / counts.mean():.2f} %")

# %% [markdown]
# ````{solution-end}
# ````
#
# ```{exercise} More pictures behind the head (medium)
# :label: ex-testbed-shots
# How does "pretrained" change if the heads are built from 1, 3 or 10 pictures per class? Use
# validation pictures, and mind that the backbone's features of a picture need computing only once.
# ```

# %% [markdown]
# ````{solution-start} ex-testbed-shots
# :class: dropdown
# ````
# `make_heads` builds the heads of a whole suite for a given recipe, and `features` computes
# features without gradients. More shots average out the accident of which pictures were drawn, so
# accuracy rises, with diminishing returns: the class means converge, and what remains is the limit
# of a nearest-mean classifier on pretrained features.

# %%
from dataclasses import replace

from mergebook.suites.heads import features, few_shot_heads

pictures = {name: task.validation.inputs.to(DEVICE) for name, task in suite.tasks.items()}
seen = {name: features(zoo.model, images, scale_pixels) for name, images in pictures.items()}
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
# ```{exercise} Where does an expert keep its skill? (hard)
# :label: ex-testbed-skill
# Fine-tuning moves features towards fixed class weights. Has the expert merely learned to hit those
# weights, or are its features better in themselves? Rebuild each head from the same three pictures
# per class, but with the *expert's* features, and judge on test pictures.
# ```

# %% [markdown]
# ````{solution-start} ex-testbed-skill
# :class: dropdown
# ````
# If the expert only fitted the old weights, the new head, which never saw them, would do much
# worse. The comparison with "pretrained" is fair: the same three training pictures per class, the
# same means, other features.

# %%
import copy

expert_model, rebuilt = copy.deepcopy(zoo.model), {}
for name, expert in zoo.experts.items():
    expert_model.load_state_dict(expert)
    one = replace(suite, tasks={name: suite.tasks[name]})
    head = few_shot_heads(expert_model, one, recipe, SEED)
    rebuilt[name] = ml.evaluate(zoo.model, expert, head, one)["accuracy"].item()
table = summary.loc[list(rebuilt), ["pretrained", "individual"]].assign(rebuilt=pd.Series(rebuilt))
(100 * table.mean()).round(1)

# %% [markdown]
# Nearly all of the skill is in the features: a head that is rebuilt from the expert's own features
# does about as well as the one it was trained under. So when a merged model loses accuracy, it has
# lost *features*. (Methods that repair merged features afterwards build on this.)
#
# ````{solution-end}
# ````
#
# ## Summary
#
# * Suites hold tasks; train teaches, validation chooses, test judges, and hashes say which data it
#   was.
# * One pretrained backbone, one frozen few-shot head and one expert per task. Only backbones are
#   trained and merged. Which task a picture belongs to is given, not found.
# * "Pretrained" and "individual" bracket what merging can do; normalised accuracy says how much of
#   the expert is kept.
# * Parameter count and logits agree with their formulas; data and evaluation repeat exactly.
# * It is small, and one family. Orders and mechanisms transfer better than numbers.
