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
# # Training for the merge
#
# **In one sentence:** @@ONE@@
#
# All methods so far take experts as they are. Remark 4 of the stability framework {cite}`li2026unified` counts three
# ways to prepare them: flat minima lower the smoothness constant $L$, linearised fine-tuning makes training more
# stable, and Git Re-Basin lowers the heterogeneity $\zeta$. The paper measures none of them. This chapter does.
#
# **After this chapter you can**
#
# * train an expert sharpness-aware, or on a linearised network, and say what each costs;
# * compare such experts with plain ones fairly;
# * say what matching the units of two networks changes, and what it cannot.
#
# **Before you start:** [](40-stability), [](02-averaging-and-task-vectors). **Time:** 10 minutes to read, half a
# minute to run.

# %% tags=["parameters"]
SUITE = "glyphs8"
PROFILE = "default"
SEED = 0
DEVICE = "cpu"

# %% [markdown]
# ## Two ways to train
#
# **Sharpness-aware minimisation** {cite}`foret2021sharpness` lowers the loss at the worst point nearby. Each step takes
# the gradient $g$ at $\theta$, goes up to $\theta + \rho\, g / \lVert g \rVert$, and uses the gradient *there*:
#
# $$
# \theta \leftarrow \theta - \eta\, \nabla \ell\Bigl(\theta + \rho\, \frac{\nabla \ell(\theta)}{\lVert \nabla \ell(\theta) \rVert}\Bigr) .
# $$ (eq-sam)
#
# **Linearised fine-tuning** {cite}`ortiz2023task` replaces the network by its tangent at the pretrained weights,
#
# $$
# f_{\text{lin}}(x; \theta) = f(x; \theta_0) + \nabla_\theta f(x; \theta_0) \cdot (\theta - \theta_0) ,
# $$ (eq-tangent)
#
# and trains that, with a product of Jacobian and vector that `torch.func.jvp` takes in one pass. Features are then linear in $\theta$: the average
# of experts has exactly the average of their features.

# %% tags=["nbval-check-output"]
import torch
from torch.func import functional_call

import mergelib as ml
from mergelib.testbed.models import Linearised

suite = ml.load_suite(SUITE, seed=SEED, profile=PROFILE)
zoo = ml.load_zoo(suite, device=DEVICE)
pictures = next(iter(suite.tasks.values())).test.inputs[:50].to(DEVICE)
batch = next(iter(suite.tasks.values())).transform(pictures)
pair = [{f"net.{key}": value for key, value in e.items()} for e in list(zoo.experts.values())[:2]]
for name, model, ends in (
    ("network", zoo.model, list(zoo.experts.values())[:2]),
    ("tangent", Linearised(zoo.model), pair),
):
    with torch.no_grad():
        outs = [functional_call(model, end, (batch,)) for end in ends]
        middle = functional_call(model, ml.merge("average", ends), (batch,))
    apart = (middle - sum(outs) / 2).norm() / (outs[0] - outs[1]).norm()
    print(f"{name}: average's features differ from the average of features: {apart < 1e-4 and 'no' or 'yes'}")

# %% [markdown]
# Both cost about twice as much per step as plain training. So at equal cost, they get half of the epochs; plain experts of
# that length stand beside them.
#
# ## What they change
#
# `mergelib study remedies` trains eight tasks of small pictures (`vision8`) on the network of 0.4 million
# parameters, from one pretrained start, with the same heads, rates and orders. Scales of task arithmetic are chosen on
# validation pictures for each kind of experts.

# %% tags=["hide-input"] mystnb={"figure": {"caption": "Points of accuracy against plain experts that cost the same, for the experts on their own tasks and for two merges; eight tasks, five seeds. Thick: 95 % intervals over seeds; thin: over seeds and tasks.", "name": "fig-remedies"}, "image": {"alt": "@@ALT@@"}}
import matplotlib.pyplot as plt

from mergelib.plots import forest, label, use_style
from mergelib.studies.analysis.stability import remedies

use_style()
FILE = "vision8-remedies-vit_small"
differences = remedies.gains(FILE)
fig, axes = plt.subplots(1, 3, figsize=(10, 3.4), sharey=True)
for ax, (method, rows) in zip(axes, differences.items()):
    forest({method: rows}, ax, ["#0072b2"] * len(rows))
    ax.axvline(0, color="#8c8c8c", lw=1)
    ax.set(title="experts" if method == "individual" else label(method), xlabel="points")
plt.show()

# %% [markdown]
# @@TEXT@@

# %%
remedies.sharpness(FILE).round(1)

# %% [markdown]
# @@TEXT2@@
#
# ## Networks that start apart
#
# Git Re-Basin {cite}`ainsworth2023git` permutes the hidden units of one network so that they match those of another. In
# Remark 4 it "lowers $\zeta$". It cannot: $\zeta_t$ is a bound of $\lVert \nabla f_t(\theta) - \nabla f(\theta) \rVert$ over *all* $\theta$, and contains the
# tasks' losses, and no expert. What a permutation changes is where the expert stands. Perceptrons of [](02-averaging-and-task-vectors), from two random starts:

# %%
import pandas as pd

from mergelib.align import git_rebasin
from mergelib.statedict import flatten
from mergelib.studies.analysis.lines import loss_barrier, train_trio

chess = ml.load_suite(SUITE, seed=SEED, profile=PROFILE, tasks=["chess"])
rows = {}
for draw in range(3):
    trio = train_trio(chess, ml.Recipe(learning_rate=1e-3, epochs=10), draw=draw, device=DEVICE)
    matched = git_rebasin(trio.one, trio.stranger, trio.model).state
    for name, end in (("as trained", trio.stranger), ("matched", matched), ("same start", trio.sibling)):
        one, other = flatten(trio.one), flatten(end)
        distance = float((one - other).norm() / one.norm())
        rows[f"draw {draw + 1}", name] = {"distance": distance, "barrier": loss_barrier(trio.walk(end))}
table = pd.DataFrame(rows).T.unstack(0).swaplevel(axis=1)
table.round(2)
