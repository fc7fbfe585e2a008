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
# # Low-rank merging: CART, TSV and Iso-C

# %% tags=["parameters", "remove-cell"]
SUITE = "glyphs8"
PROFILE = "default"
SEED = 0
DEVICE = "cpu"

# %% tags=["remove-cell"]
import matplotlib.pyplot as plt
import pandas as pd

from mergebook import plots
from mergebook.cart import read

plots.use_style()
planes = {"imagenet8": "EfficientNet, images", "sentences8": "MiniLM, sentences"}

# %% tags=["remove-input"] mystnb={"figure": {"caption": "CART reaches nearly the same accuracy at every rank from 4 % to 16 % of the full one, if its scale grows with the rank. Each number is the mean test accuracy over eight tasks and three merged networks, one per seed; a frame marks the best of the scales that were tried, read off the same test accuracy.", "name": "fig-low-rank-plane"}, "image": {"alt": "Two heat maps of test accuracy, rank ratio from top to bottom and scale from left to right, for EfficientNet on images and MiniLM on sentences. In both a ridge runs from small ranks with a small scale at the top left to large ranks with a large scale at the bottom right. Away from the ridge accuracy falls, most for small ranks with a large scale."}}
fig, axes = plt.subplots(1, 2, figsize=(6.0, 3.3))  # half as large on a phone
for ax, (suite, title) in zip(axes, planes.items()):
    plane = read.plane(suite)
    ax.imshow(plane, aspect="auto", cmap="Blues", vmin=30, vmax=95)
    for i, row in enumerate(plane.to_numpy()):
        best = int(row.argmax())
        for j, value in enumerate(row):
            shade = "white" if value > 68 else "black"
            ax.text(j, i, f"{value:.0f}", ha="center", va="center", color=shade)
        frame = plt.Rectangle((best - 0.48, i - 0.46), 0.96, 0.92)
        frame.set(fill=False, edgecolor=plots.VERMILION, lw=2)
        ax.add_patch(frame)
    ax.set_xticks(range(plane.shape[1]), [f"{scale:g}" for scale in plane])
    ax.set_yticks(range(len(plane)), [f"{ratio:.0%}" for ratio in plane.index])
    ax.set(title=title, xlabel="scale λ")
    ax.grid(visible=False)
axes[0].set_ylabel("rank, % of the full rank")
fig.suptitle("The higher the rank, the larger the best scale", fontweight="bold")
plt.show()

# %% tags=["remove-input"]
from IPython.display import HTML, Markdown, display

from mergebook.chapters import leaderboard

rows = pd.DataFrame(leaderboard.entries())
eight = rows[rows["suite"].isin(["imagenet8", "sentences8", "vision8"])]
kept = eight.pivot(index="method", columns="suite", values="normalised")
ends = {suite: read.plane(suite).loc[0.04:0.16].max(axis=1) for suite in planes}
apart = max(float(values.max() - values.min()) for values in ends.values())
display(
    Markdown(f"""
* **Low-rank rules keep {kept.loc[["cart", "tsv", "iso_c"]].min().min():.0f} to
  {kept.loc[["cart", "tsv", "iso_c"]].max().max():.0f} % of the experts' accuracy** on three networks with eight
  tasks each, task arithmetic {kept.loc["task_arithmetic"].min():.0f} to {kept.loc["task_arithmetic"].max():.0f} %.
* **From 4 % to 16 % of the full rank, the best accuracy changes by at most {apart:.1f} points**, if the scale is chosen
  for each rank.
* **Rank and scale belong together.** At a rank of 2 % on images, a scale of 4 loses
  {read.plane("imagenet8").loc[0.02, 1.0] - read.plane("imagenet8").loc[0.02, 4.0]:.0f} points against a scale of 1.
""")
)

# %% [markdown]
# **Use it when** you merge three or more experts of one pretrained model and want one network for all tasks.
# **Do not use CART** for two experts, where it is the plain average, and fold convolutions into matrices (`is_matrix=ml.is_kernel`). On a small
# model that generates text in four languages, TSV and CART are 2 points below task arithmetic ([](#since-language)).
#
# **You need first:** [](02-averaging-and-task-vectors), and what a singular value decomposition is.
# **Time:** 15 minutes to read, half a minute to run.
#
# ## One layer by hand
#
# Three experts have one weight matrix each. We choose diagonal matrices, so that the singular vectors are the axes
# and every step can be done in the head:
#
# $$
# \theta_1 = \begin{pmatrix} 3 & 0 \\ 0 & 0 \end{pmatrix}, \quad
# \theta_2 = \begin{pmatrix} 0 & 0 \\ 0 & 3 \end{pmatrix}, \quad
# \theta_3 = \begin{pmatrix} 0 & 0 \\ 0 & -3 \end{pmatrix}, \qquad
# \theta_{\text{avg}} = \begin{pmatrix} 1 & 0 \\ 0 & 0 \end{pmatrix} .
# $$
#
# Subtract the average. The differences are $\mathrm{diag}(2, 0)$, $\mathrm{diag}(-1, 3)$ and $\mathrm{diag}(-1, -3)$,
# and their sum is zero: added as they are, they give back the average. Now keep only the larger singular value of each.
# This leaves $\mathrm{diag}(2, 0)$, $\mathrm{diag}(0, 3)$ and $\mathrm{diag}(0, -3)$, and the sum is $\mathrm{diag}(2, 0)$.
# Added to the average, it restores the first expert's weight of 3, which the average had diluted to 1. The conflict
# between the second and third expert still cancels.

# %% tags=["nbval-check-output"]
import torch

import mergelib as ml

experts = [
    {"w": torch.diag(torch.tensor(values))} for values in ([3.0, 0.0], [0.0, 3.0], [0.0, -3.0])
]
for ratio in (0.5, 1.0):  # one of two singular values, then both
    merged = ml.merge("cart", experts, rank_ratio=ratio, scale=1.0)["w"]
    print(f"rank ratio {ratio:.0%}: {merged.diag().abs().round().tolist()}")

# %% [markdown]
# This is CART {cite}`choi2025revisiting`:
#
# $$
# \theta_{\text{CART}} = \theta_{\text{avg}} + \lambda \sum_{t=1}^{T}
# \mathrm{SVD}_k\!\left(\theta_t - \theta_{\text{avg}}\right),
# $$ (eq-low-rank-cart)
#
# where $\mathrm{SVD}_k$ keeps the $k$ largest singular values of a matrix and $\lambda$ is the scale. A few
# directions hold most of an expert's squared length (next figure), and what is dropped would have cancelled them, because
# all differences sum to zero. With all singular values kept, or with none, the result is the average: the useful ranks
# lie between. The higher the rank, the more of the sum cancels, so the larger the best scale.
#
# ## How fast the singular values fall
#
# The figure shows one layer of eight real experts, fine-tuned on eight sets of rendered scripts.

# %% tags=["hide-input"]
from mergebook import load_suite, load_zoo

zoo = load_zoo(load_suite(SUITE, seed=SEED, profile=PROFILE), device=DEVICE)
average = ml.merge("average", zoo.experts)
key = max(
    (name for name, value in average.items() if value.ndim == 2),
    key=lambda name: average[name].numel(),
)
spectra = {
    name: torch.linalg.svdvals(state[key] - average[key]).cpu()
    for name, state in zoo.experts.items()
}

# %% tags=["remove-input"] mystnb={"figure": {"caption": "A few directions hold most of what fine-tuning changes: 8 % of them hold 64 to 73 % of the squared length in this layer, and 16 % in a random matrix (grey). Singular values of the difference between each expert and the average in one layer, and the fraction of the squared length that the largest ones hold.", "name": "fig-low-rank-spectrum"}, "image": {"alt": "Left: eight curves of singular values fall steeply over the first ten of a hundred directions and then slowly. Right: the fraction of squared length rises to more than one half within a tenth of the directions; a dashed line for a random matrix rises slowly."}}
fig, axes = plt.subplots(1, 2, figsize=(9, 3.2))
for values in spectra.values():
    parts = 100 * values.square().cumsum(0) / values.square().sum()
    ranks = 100 * torch.arange(1, len(values) + 1) / len(values)
    axes[0].plot(ranks, values, color=plots.BLUE, lw=1.2, alpha=0.7)
    axes[1].plot(ranks, parts, color=plots.BLUE, lw=1.2, alpha=0.7)
noise = torch.randn(average[key].shape, generator=torch.Generator().manual_seed(SEED))
noise = torch.linalg.svdvals(noise).square().cumsum(0)
axes[1].plot(ranks, 100 * noise / noise[-1], "--", color=plots.GREY)
axes[0].set(xlabel="direction, % of the full rank", ylabel="singular value")
axes[1].set(xlabel="rank, % of the full rank", ylabel="squared length kept, %")
for ax in axes:
    ax.axvline(8, color=plots.VERMILION, lw=1.4)
    ax.set_ylim(0, None)
axes[1].text(9, 8, "rank ratio 8 %", color=plots.VERMILION)
plt.show()

# %% [markdown]
# ## Rank and scale
#
# Move the sliders. The table is measured, and every value is the test accuracy of a merged network.

# %% tags=["hide-input"]
from importlib.resources import files
from string import Template

page = files("mergebook.chapters").joinpath("assets/plane.html")
data = {}
for suite, title in planes.items():
    plane = read.plane(suite)
    single = rows[rows["suite"] == suite].set_index("method")["accuracy"]
    data[title] = {
        "ranks": [*plane.index],
        "scales": [*plane.columns],
        "values": plane.round(1).to_numpy().tolist(),
        "average": round(single["average"], 1),
        "experts": round(single["individual"], 1),
    }
text = page.read_text("utf-8")
display(HTML(Template(text).substitute(data=pd.Series(data).to_json())))

# %% [markdown]
# CART's default is a rank ratio of 8 % with a scale of 1. It loses less than a point against the best setting of the
# table for images, and 6 points for sentences.
#
# ```{admonition} Takeaway
# :class: tip
# If you can try a few settings on labelled examples, fix the rank at 8 % and search the scale from 1 to 4. A search
# over ranks adds little.
# ```
#
# ## TSV and Iso-C
#
# TSV {cite}`gargiulo2025task` and Iso-C {cite}`marczak2025task` start at the pretrained model instead of the average, and change
# the singular values or vectors of a layer's task vectors $\tau_t$ in another way:
#
# | rule | what it does to a layer | hyperparameters |
# |---|---|---|
# | CART | truncates $\theta_t - \theta_{\text{avg}}$ to rank $k$, adds them up | rank, scale |
# | TSV | keeps $1/T$ of the directions of each $\tau_t$ and makes those of all tasks orthogonal, so that no task overwrites another | scale |
# | Iso-C | adds the $\tau_t$ and sets all singular values of the sum to their mean, so that weak directions count as much as strong ones | scale |
#
# All three are one call:

# %%
scores = {}
for method in ("average", "task_arithmetic", "cart", "tsv", "iso_c"):
    pretrained = {} if method in ("average", "cart") else {"pretrained": zoo.pretrained}
    merged = ml.merge(method, zoo.experts, **pretrained)
    table = ml.evaluate(zoo.model, merged, zoo.heads, zoo.suite)
    scores[method] = 100 * table["accuracy"].mean()
pd.Series(scores, name="test accuracy, %").rename(plots.label).round(1).to_frame()

# %% [markdown]
# These are the rules at their default settings, on one seed. On every suite of images and sentences that we measured, the
# three lie within a few points of each other, and above all rules that treat entries one by one
# ([](80-leaderboard)). TSV has one hyperparameter, and its default of 1 loses 0.1 to 2.0 points against the best scale on six suites
# ([](24-choosing-checking-reporting)), so it is the rule to start with.
#
# ## Checks against known values
#
# The method has three special cases in which the result is known.


# %% tags=["nbval-check-output"]
def distance(first, second):
    return max(float((first[name] - second[name]).abs().max()) for name in first)


two = dict(list(zoo.experts.items())[:2])
one = next(iter(zoo.experts.values()))
checks = {
    "CART at full rank, minus the average": (
        ml.merge("cart", zoo.experts, rank_ratio=1.0),
        average,
    ),
    "CART of two experts, minus their average": (
        ml.merge("cart", two, scale=3.0),
        ml.merge("average", two),
    ),
    "TSV of one expert, minus that expert": (
        ml.merge("tsv", [one], pretrained=zoo.pretrained),
        one,
    ),
}
for words, pair in checks.items():
    print(f"{words}: less than 1e-4: {distance(*pair) < 1e-4}")

# %% tags=["remove-cell"]
images, sentences = (read.plane(suite) for suite in planes)
for plane in (images, sentences):
    assert plane.idxmax(axis=1).is_monotonic_increasing
    assert plane.loc[0.32].idxmax() > plane.loc[0.08].idxmax()
assert images.loc[0.08, 1.0] > images.loc[0.08].max() - 1
assert sentences.loc[0.08, 1.0] < sentences.loc[0.08].max() - 3
for suite, plane in zip(planes, (images, sentences)):
    single = rows[rows["suite"] == suite].set_index("method")["accuracy"]
    assert (plane.loc[0.16:, 1.0] > single["average"] - 0.5).all()
assert apart < 4
if PROFILE == "default":
    tenth = [v[: len(v) // 10].square().sum() / v.square().sum() for v in spectra.values()]
    assert min(tenth) > 0.5
    low_rank = min(scores[name] for name in ("cart", "tsv", "iso_c"))
    assert low_rank > scores["task_arithmetic"]

# %% [markdown]
# ## Exercises
#
# ```{exercise} Two experts (easy)
# :label: ex-low-rank-two
#
# Why is CART of two experts the average at every rank and scale?
# ```

# %% [markdown]
# ````{solution-start} ex-low-rank-two
# :class: dropdown
# ````
# The average of two experts lies in the middle, so $\theta_1 - \theta_{\text{avg}} = -(\theta_2 - \theta_{\text{avg}})$.
# Truncation commutes with the sign, and the two truncated matrices cancel at every rank. Use TSV for two experts.
#
# ````{solution-end}
# ````
#
# ```{exercise} Scale by hand (medium)
# :label: ex-low-rank-scale
#
# In the example of three diagonal matrices, what is CART's result at rank 1 with a scale of 2, and why can a scale
# above 1 make sense?
# ```

# %% [markdown]
# ````{solution-start} ex-low-rank-scale
# :class: dropdown
# ````

# %% tags=["nbval-check-output"]
print(ml.merge("cart", experts, rank_ratio=0.5, scale=2.0)["w"].diag().tolist())

# %% [markdown]
# The result is $\mathrm{diag}(1 + 2 \cdot 2, 0)$. Here it overshoots the expert's weight of 3. In a real layer the kept directions of several experts still
# cancel in part, more at a higher rank, and a scale above 1 makes up for it.
#
# ````{solution-end}
# ````
#
# ## Summary
#
# * Low-rank rules keep the strongest directions of each expert and drop what would cancel.
# * The best scale grows with the rank; between 4 and 16 % of the full rank, the best accuracy hardly depends on it.
# * Start with TSV at its default. The theory of CART, and the paper's experiments, are in [](10-cart) and
#   [](11-cart-experiments).
