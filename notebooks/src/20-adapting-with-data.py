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
# # Adapting with data: AdaMerging, Fisher, RegMean, Surgery
#
# **In one sentence:** a hundred unlabelled pictures a task repair a merged model best at its features
# (Surgery), less at each layer's output (RegMean) or in a few coefficients (AdaMerging), where a good
# data-free merge is ahead; and moving every weight by entropy does harm.
#
# The methods so far see weights only. The **procedures** of this chapter see data as well: they are
# given the model, and calibration inputs of every task. Each mends another fault of a merged
# model, so it pays to know the fault before the cure. Frank-Wolfe, the procedure with a theory, has
# the chapters after this one.
#
# **After this chapter you can**
#
# * say which data each procedure needs, and what it repairs with them;
# * derive the gradient of AdaMerging's coefficients without a graph through the experts, RegMean's
#   closed form, and why the Fisher information cannot be had from the gradient of a batch;
# * tell when a falling entropy is a good sign and when it is not;
# * measure the representation bias of a merged model, and what removing it costs and buys.
#
# **Before you start:** [](02-averaging-and-task-vectors); [](11-cart-experiments) for AdaMerging on
# CART. **Time:** 30 minutes to read, a minute and a half to run once the experts are cached.

# %% tags=["parameters"]
SUITE = "glyphs8"
PROFILE = "default"
SEED = 0
DEVICE = "cpu"

# %% [markdown]
# ## Who needs what
#
# `ml.methods()` lists the procedures with what they need. All are called alike:
# `ml.adapt(name, experts, pretrained=..., model=..., heads=..., data=...)`, and return a merged state with,
# where there are some, learned coefficients and a history.

# %%
import time

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import torch
import torch.nn.functional as F
from torch.func import functional_call

import mergelib as ml
from mergelib.plots import colour, heat_map, use_style
from mergelib.problems.calling import features
from mergelib.procedures.fisher import diagonal_fisher
from mergelib.procedures.objectives import entropy
from mergelib.procedures.regmean import layer_grams
from mergelib.testbed.evaluation import has_bfloat16
from mergelib.testbed.models import scale_pixels

use_style()
pd.set_option("display.max_colwidth", None)
ml.methods().query("family == 'procedure'")[["needs"]]

# %% [markdown]
# Three kinds of data occur. **Labelled** examples are the dearest. **Unlabelled** inputs of each task
# are often at hand. And AdaMerging, Surgery and Concrete use, in their papers, the unlabelled *test* inputs
# themselves: they adapt to the very pictures they are then judged on (transductive, or test-time,
# learning). That is legitimate where the inputs to be classified really are there in bulk, and it is not
# the same as having other pictures of the task. Below, everybody gets the same hundred *training*
# pictures of each task; two procedures run a second time on the test inputs, and are marked.

# %%
suite = ml.load_suite(SUITE, seed=SEED, profile=PROFILE)
zoo = ml.load_zoo(suite, device=DEVICE)
calibration = {
    name: (task.train.inputs[:100], task.train.labels[:100]) for name, task in suite.tasks.items()
}
test_inputs = {name: task.test.inputs for name, task in suite.tasks.items()}
first_task = next(iter(suite.tasks))

# %% [markdown]
# Two helpers. `judge` measures accuracy and the mean entropy of the predictions on the test pictures,
# under heads that a procedure may replace. `run` calls a procedure, judges what it made, and notes data,
# seconds and accuracy for the comparison at the end.

# %%
rows = []


@torch.no_grad()
def judge(state, heads=zoo.heads, tasks=suite.tasks):
    """Accuracy (0..1) and entropy (nats) on the test pictures of every task."""
    scores, device = {}, torch.device(DEVICE)
    for name in tasks:
        task = suite.tasks[name]
        with torch.autocast(device.type, torch.bfloat16, enabled=has_bfloat16(device)):
            z = features(zoo.model, state, task.test.inputs, transform=scale_pixels)
        logits = heads[name](z.float())
        right = (logits.argmax(1) == task.test.labels.to(logits.device)).float().mean().item()
        scores[name] = {"accuracy": right, "entropy": entropy(logits).item()}
    return pd.DataFrame(scores).T


# %%
def run(title, method, data, kind, **options):
    """Adapt, judge, note."""
    given = {"pretrained": zoo.pretrained, "model": zoo.model, "heads": zoo.heads, "data": data}
    start = time.perf_counter()
    made = ml.adapt(method, zoo.experts, **given, **options)
    seconds = time.perf_counter() - start
    scores = judge(made.state, {**zoo.heads, **made.heads})
    rows.append({"procedure": title, "data": kind, "seconds": seconds, **scores.mean()})
    return made, scores


soup, scores_of_average = run("average", "uniform_soup", None, "none")
own = pd.concat([judge(expert, tasks=[name]) for name, expert in zoo.experts.items()])
data_free = {"task arithmetic": ("task_arithmetic", {"scale": 0.3})}
data_free["CART"] = ("cart", {"scale": 2.0, "rank_ratio": 0.12})
bases = {}
for title, (method, options) in data_free.items():
    start = time.perf_counter()
    bases[title] = ml.merge(method, zoo.experts, pretrained=zoo.pretrained, **options)
    seconds = time.perf_counter() - start
    scores = judge(bases[title]).mean()
    rows.append({"procedure": title, "data": "none", "seconds": seconds, **scores})
scores = {row["procedure"]: row["accuracy"] for row in rows}
scores["experts, each on its own task"] = own["accuracy"].mean()
(100 * pd.Series(scores, name="accuracy, %")).round(1)

# %% [markdown]
# These are the floor, the usual start, a good data-free merge (CART at scale 2, with the rank that
# [](11-cart-experiments) found for it on other pictures), and the ceiling.
#
# ## AdaMerging: a scale for every expert and layer
#
# Task arithmetic gives all experts and layers one scale. AdaMerging {cite}`yang2024adamerging` gives each
# expert $t$ and tensor $l$ its own, and finds them by making predictions on unlabelled inputs certain:
#
# $$ \theta_l(\lambda) = \theta_{0,l} + \sum_t \lambda_{t,l}\, \tau_{t,l}, \qquad
# \min_\lambda\ \sum_t \mathbb{E}_{x \sim t}\, H\bigl(\mathrm{softmax} f_t(x; \theta(\lambda))\bigr), $$ (eq-adapt-adamerging)
#
# where $f_t$ ends in the head of task $t$ and $H(p) = -\sum_c p_c \ln p_c$. The bet is that certainty and
# accuracy rise together. The gradient needs no graph through the mixture of experts: one ordinary backward
# pass gives $g_l = \partial \ell / \partial \theta_l$, and by the chain rule
# $\partial \ell / \partial \lambda_{t,l} = \langle g_l, \tau_{t,l} \rangle$.
#
# The paper takes 500 steps of Adam at rate $10^{-3}$; we have time for 40, with 8 pictures
# a task instead of 16, and take ten times the rate. A few rates were tried;
# the one kept goes about as far as the paper's, and was not searched for the best outcome.

# %%
short = {"steps": 40, "batch_size": 8, "seed": SEED, "transform": scale_pixels}
ada, _ = run("AdaMerging", "adamerging", calibration, "unlabelled", learning_rate=1e-2, **short)
ada.coefficients.T.describe().loc[["min", "mean", "max"]].round(2)

# %% [markdown]
# All coefficients started at 0.3. The heat map averages those of the matrices, by their place in the
# network.


# %% tags=["hide-input"] mystnb={"figure": {"caption": "AdaMerging's coefficients after 40 steps, averaged over the matrices of each part of the network. All started at 0.3.", "name": "fig-adapt-coefficients"}, "image": {"alt": "A heat map with a row for each of eight experts and a column for each part of the network, from the stem over attention and MLP of four blocks. Coefficients differ far more between experts and parts than a common scale of 0.3 allows: some have risen well above it, others have fallen clearly below."}}
def part(key):
    """Where a matrix sits: the stem, or attention or MLP of a block."""
    if not key.startswith("blocks"):
        return "stem"
    return f"block {key.split('.')[1]} " + ("attention" if "attn" in key else "MLP")


matrices = [key for key, tensor in zoo.pretrained.items() if tensor.dim() > 1]
by_part = ada.coefficients[matrices].T.groupby(part, sort=False).mean().T
fig, ax = plt.subplots(figsize=(9, 4.8))
heat_map(by_part, ax, low=0, high=0.8, digits=2, bar="coefficient")
plt.show()

# %% [markdown]
# A single scale was a compromise: most MLPs have gained weight, attention in the later blocks has mostly
# lost a little, and experts differ within each column.
#
# ## Concrete: a mask for every weight
#
# If a number for each expert and layer helps, why not one for each weight? Concrete task arithmetic
# {cite}`tang2023concrete` learns a mask $m$, shared by all tasks, by the same entropy:
#
# $$ \theta = \theta_0 + m \circ \lambda \sum_t \tau_t, \qquad m = \frac{s}{\mathrm{mean}(s)}, \qquad
# s = \sigma\Bigl(\frac{x + \varepsilon}{T_{\mathrm{relax}}}\Bigr). $$ (eq-adapt-concrete)
#
# A mask entry that is 0 or 1 has no gradient, so while it is learned it is a *relaxed* Bernoulli variable
# $s$ in between: $x$ is its logit, $\varepsilon$ logistic noise, drawn anew at each step, and the
# temperature $T_{\mathrm{relax}} = 0.5$ says how far it leans to either end. Dividing by the mean of each
# tensor keeps the length of the step, as DARE's rescaling does ([](03-interference)); the formula is that of
# the authors' code in FusionBench {cite}`tang2024fusionbench`. The result uses the median, $\varepsilon = 0$.
#
# The gradient is again that of the merged weights, pulled back by hand: with
# $q = \partial \ell / \partial m = g \circ \lambda \sum_t \tau_t$,
#
# $$ \frac{\partial \ell}{\partial x} = \frac{q - \mathrm{mean}(q \circ m)}{\mathrm{mean}(s)} \circ
# \frac{s (1 - s)}{T_{\mathrm{relax}}}. $$
#
# FusionBench takes 2,000 steps at rate $10^{-3}$. Ours are 40 again, at a rate fifty times as large, so
# that logits can move as far. We look in on both methods on the way; a run of fewer steps is the
# beginning of a longer one, as the seed draws the same batches.


# %%
def run_steps(method, steps, rate):
    """State after some steps."""
    options = {**short, "steps": steps, "learning_rate": rate}
    given = {"pretrained": zoo.pretrained, "model": zoo.model, "heads": zoo.heads}
    return ml.adapt(method, zoo.experts, data=calibration, **given, **options).state


paths = {"AdaMerging": ("adamerging", 1e-2), "Concrete": ("concrete", 5e-2)}
run("Concrete", "concrete", calibration, "unlabelled", learning_rate=5e-2, **short)
ways = {title: {0: pd.Series(rows[1])[["accuracy", "entropy"]]} for title in paths}
for title, (method, rate) in paths.items():
    ways[title][20] = judge(run_steps(method, 20, rate)).mean()
    (last,) = [row for row in rows if row["procedure"] == title]
    ways[title][40] = pd.Series({key: last[key] for key in ("accuracy", "entropy")})
pd.concat({t: pd.DataFrame(way).T.astype(float) for t, way in ways.items()}, axis=1).round(3)

# %% tags=["hide-input"] mystnb={"figure": {"caption": "Entropy of the predictions and accuracy on the test pictures after 0, 20 and 40 steps, from task arithmetic on, learned on a hundred training pictures a task.", "name": "fig-adapt-entropy"}, "image": {"alt": "Two panels against the number of steps. Left, the entropy on test pictures falls a little with AdaMerging and steeply with Concrete. Right, the accuracy rises by about two points with AdaMerging, while with Concrete it falls, by several points at 40 steps."}}
shades = {"AdaMerging": "#0072b2", "Concrete": "#d55e00"}
fig, axes = plt.subplots(1, 2, figsize=(9, 3.9))
for title, way in ways.items():
    table = pd.DataFrame(way).T
    style = {"marker": "o", "color": shades[title], "label": title}
    axes[0].plot(table.index, table["entropy"], **style)
    axes[1].plot(table.index, 100 * table["accuracy"], **style)
axes[0].set(xlabel="step", ylabel="entropy on test pictures, nats", xticks=[0, 20, 40])
axes[1].set(xlabel="step", ylabel="mean test accuracy, %", xticks=[0, 20, 40])
axes[0].legend()
plt.show()

# %% [markdown]
# The objective falls for both, and on *unseen* pictures too: neither has merely learned its hundred
# pictures by heart. Yet the one gains accuracy and the other loses it. Entropy does not say which answer is
# right. With a few hundred coefficients the model can only move between experts, each of which is good at
# something, and there certainty and accuracy go together. With a number for each weight it can
# leave them, and becomes certain of wrong answers. A short run with a large rate may be unkind to
# Concrete, whose authors report gains with 2,000 small steps, so [](22-frank-wolfe-experiments) takes these
# steps, too, and finds the same. The objective does not notice when to stop; labelled pictures would be needed to tell.
#
# ## Fisher: a mean weighted by what matters
#
# Fisher merging {cite}`matena2022merging` averages each weight with the experts' own say in it:
#
# $$ \theta = \frac{\sum_t F_t \circ \theta_t}{\sum_t F_t}, \qquad F_t = \mathbb{E}_{x}\,
# \mathbb{E}_{y \sim p_t(\cdot | x)} \Bigl(\frac{\partial \ln p_t(y | x)}{\partial \theta}\Bigr)^2 . $$ (eq-adapt-fisher)
#
# $F_t$ is the diagonal of the Fisher information, the curvature of expert $t$'s predictions: a weight
# that could change without changing them weighs little. Two readings circulate. The label may be drawn from the
# model, as here, or be the true one (the *empirical* Fisher, `labels="true"`). And the square is taken
# for **every example by itself**: a loop, or `vmap(grad)` as in mergelib. Tempting, and wrong, is to square the
# gradient of a batch, which a training loop has at hand.
#
# ```{prf:proposition} The gradient of a batch
# :label: prop-adapt-batch
# Let $g_1, \dots, g_B$ be independent gradients of $\ln p(y|x)$ in one weight, with labels drawn from the model, and
# $\bar g$ their mean. Then $\mathbb{E}\, B \bar g^2 = F$, but $B \bar g^2 / F$ tends in distribution to $\chi^2_1$ as
# $B$ grows: its standard deviation stays near $\sqrt 2$, whatever the size of the batch. The mean of the $g_i^2$
# has the same expectation, and a variance that falls as $1/B$.
# ```
#
# ```{prf:proof}
# With labels from the model $\mathbb{E}\, g_i = \mathbb{E}_x \sum_y p\, \partial \ln p =
# \mathbb{E}_x\, \partial \sum_y p = 0$, so $\mathbb{E}\, \bar g^2 = \mathrm{Var}(\bar g) = F / B$. By the central
# limit theorem $\sqrt{B}\, \bar g \to N(0, F)$, whose square is $F \chi^2_1$, of variance $2 F^2$. The
# last sentence is the variance of a mean.
# ```
#
# So a batch gives the right *sum*, and noise in each weight, which is where Fisher merging needs it. On real
# gradients of one expert:

# %%
expert, head = zoo.experts[first_task], zoo.heads[first_task]
pictures = scale_pixels(calibration[first_task][0].to(DEVICE))
leaves = {key: expert[key].clone().requires_grad_() for key, _ in zoo.model.named_parameters()}
logits = head(functional_call(zoo.model.eval(), {**expert, **leaves}, (pictures,)))
chance = torch.Generator().manual_seed(SEED)
drawn = torch.multinomial(logits.detach().cpu().softmax(1), 1, generator=chance)[:, 0].to(DEVICE)
batch = torch.autograd.grad(F.cross_entropy(logits, drawn), list(leaves.values()))
exact = diagonal_fisher(zoo.model, expert, head, pictures, drawn)
per_example = torch.cat([each.flatten() for each in exact.values()])
from_batch = len(pictures) * torch.cat([each.flatten() for each in batch]).square()
print(f"sums: {from_batch.sum() / per_example.sum():.2f} of the per-example one")
print(f"correlation over weights: {torch.stack([per_example, from_batch]).corrcoef()[0, 1]:.2f}")

# %% tags=["hide-input"] mystnb={"figure": {"caption": "Ratio of the squared batch gradient, times its size of 100, to the per-example Fisher information, over all weights of one expert. A good estimate would lie at 1.", "name": "fig-adapt-fisher-ratio"}, "image": {"alt": "A histogram on a logarithmic axis from one ten-thousandth to ten. The ratios spread over several orders of magnitude, with a long tail to small values, much like the curve of a chi-square distribution with one degree of freedom that is drawn over it, only somewhat narrower around 1."}}
ratios = (from_batch / per_example.clamp(min=1e-30)).clamp(1e-5, 100).log10().cpu().numpy()
fig, ax = plt.subplots(figsize=(7.2, 3.8))
ax.hist(ratios, bins=np.linspace(-4, 1.5, 80), density=True, color="#56b4e9", label="weights")
grid = np.logspace(-4, 1.5, 300)
density = grid * np.log(10) * np.exp(-grid / 2) / np.sqrt(2 * np.pi * grid)
ax.plot(np.log10(grid), density, color="#d55e00", label=r"$\chi^2_1$")
ax.axvline(0, color="black", ls=":", lw=1.5)
ax.set(xlabel="batch estimate / Fisher information", ylabel="density")
ax.set_xticks([-4, -3, -2, -1, 0, 1], ["0.0001", "0.001", "0.01", "0.1", "1", "10"])
ax.legend()
plt.show()

# %% [markdown]
# The ratios follow the limit's shape, long tail to small values included. They are somewhat narrower:
# an expert that is sure of most pictures leaves the gradient to a few, and of a few examples
# the square of the mean is not far from the mean of the squares.
#
# Now the merge, and what it weighs. `shares` repeats {eq}`eq-adapt-fisher` by hand, from the same
# draws as the procedure; the assertion checks one against the other.

# %%
fisher, _ = run("Fisher", "fisher", calibration, "unlabelled", seed=SEED, transform=scale_pixels)
chance = torch.Generator().manual_seed(SEED)
information = {
    name: diagonal_fisher(
        zoo.model,
        each,
        zoo.heads[name],
        calibration[name][0],
        generator=chance,
        transform=scale_pixels,
    )
    for name, each in zoo.experts.items()
}


def shares(information):
    """What each expert weighs in each parameter: key to (T, ...), summing to one."""
    floored = {
        key: torch.stack([each[key] for each in information.values()]).clamp(min=1e-6)
        for key in information[first_task]
    }
    return {key: each / each.sum(0) for key, each in floored.items()}


# %%
def weighted(parts):
    """The experts' mean under such shares."""
    stacks = {key: torch.stack([each[key] for each in zoo.experts.values()]) for key in parts}
    return {**soup.state, **{key: (parts[key] * each).sum(0) for key, each in stacks.items()}}


plain = shares(information)
assert all(torch.allclose(weighted(plain)[k], fisher.state[k], atol=1e-5) for k in plain)
scales = {name: sum(each[k].sum() for k in matrices) for name, each in information.items()}
scales = pd.Series({name: float(total) for name, total in scales.items()}, name="total Fisher")
told = {"total Fisher": scales / scales.min(), "own entropy": own["entropy"]}
pd.DataFrame({**told, "own accuracy": own["accuracy"]}).round(2)

# %% tags=["hide-input"] mystnb={"figure": {"caption": "What each expert weighs in the Fisher merge, mean over the matrices of each part of the network. An equal say would be one eighth, 0.125.", "name": "fig-adapt-fisher-shares"}, "image": {"alt": "A heat map with a row for each expert and a column for each part of the network. One row, that of the expert with the most Fisher information, stands out in every part with around 0.4, while most other entries lie near or below 0.1."}}
told = {
    name: {key: float(plain[key][row].mean()) for key in matrices}
    for row, name in enumerate(zoo.experts)
}
fig, ax = plt.subplots(figsize=(9, 4.8))
by_part = pd.DataFrame(told).groupby(part, sort=False).mean().T
heat_map(by_part, ax, low=0, high=0.5, digits=2, bar="share of the weight")
plt.show()

# %% [markdown]
# The rows differ more than the columns: it is the *experts*, not the layers, that the Fisher information
# tells apart. Their total information differs by an order of magnitude, and follows neither how accurate
# an expert is nor how sure: the least accurate has by far the most, and three times its share of the
# merged weights; the least sure, on the default suite, is among those with least. How steeply predictions
# depend on the weights is another thing than how much an expert deserves to be heard. Dividing each
# expert's information by its own total keeps what it says about *weights* and drops what it says
# about experts:

# %%
normalised = {
    name: {key: value / scales[name] * scales.mean() for key, value in each.items()}
    for name, each in information.items()
}
even = judge(weighted(shares(normalised))).mean()
rows.append({"procedure": "Fisher, normalised", "data": "unlabelled", "seconds": None, **even})
rows[-1]["seconds"] = rows[-2]["seconds"]
for row in (rows[0], *rows[-2:]):
    print(f"{row['procedure']}: {100 * row['accuracy']:.1f} %")

# %% [markdown]
# All three lie within about a point: with a fair say for every expert, the weighting no longer
# hurts, and hardly helps. What the average lacks is not a better mean.
#
# ## RegMean: layers that answer as the experts do
#
# RegMean {cite}`jin2023dataless` asks each linear layer to come close to what the experts' layers answer,
# on the inputs that *these* get. With inputs $X_t$ (rows) of expert $t$'s layer, it minimises
# $\sum_t \lVert X_t W^\top - X_t W_t^\top \rVert_F^2$. Setting the derivative
# $2 \sum_t (W - W_t)\, X_t^\top X_t$ to zero gives, with Gram matrices $G_t = X_t^\top X_t$ divided by the rows,
#
# $$ W = \Bigl(\sum_t W_t G_t\Bigr) \Bigl(\sum_t G_t\Bigr)^{-1} . $$ (eq-adapt-regmean)
#
# Labels play no part, and nothing is iterated: a forward pass of each expert and one linear system a layer. Two
# corrections make it stable with few inputs: entries off the diagonal are scaled by 0.9, and a small ridge is
# added. All that is not a linear layer is averaged. The formula again by hand, on one layer:

# %%
regmean, _ = run("RegMean", "regmean", calibration, "unlabelled", transform=scale_pixels)
grams = {
    name: layer_grams(zoo.model, each, calibration[name][0], transform=scale_pixels)
    for name, each in zoo.experts.items()
}
key = next(iter(grams[first_task]))
shrunk = {n: 0.9 * each[key] + 0.1 * each[key].diagonal().diag() for n, each in grams.items()}
total = sum(shrunk.values())
total += 1e-6 * total.diagonal().mean() * torch.eye(len(total)).to(total)
product = sum(zoo.experts[name][key].double() @ gram for name, gram in shrunk.items())
by_hand = product @ torch.linalg.inv(total)
assert torch.allclose(by_hand.float(), regmean.state[key], atol=1e-4)

# %% [markdown]
# Does each layer really come closer to its experts? The error of a layer, as a share of the output it
# should have, is again in the Gram matrices, $\mathrm{tr}\,(W - W_t) G_t (W - W_t)^\top \big/ \mathrm{tr}\, W_t G_t W_t^\top$;
# it is measured with those of validation pictures, which RegMean has not seen.

# %% tags=["hide-input"] mystnb={"figure": {"caption": "Error of every linear layer against its experts, given the inputs that these get, as a share of the outputs' squares. Mean over the tasks, on validation pictures.", "name": "fig-adapt-regmean"}, "image": {"alt": "Two curves over sixteen linear layers from first to last. The average's error grows with depth, with peaks at the second layers of the later MLPs; RegMean's lies below it in every layer, at about half or less, and has no such peaks."}}
errors = {"average": {}, "RegMean": {}}
for name, each in zoo.experts.items():
    pictures = suite.tasks[name].validation.inputs[:100]
    for key, gram in layer_grams(zoo.model, each, pictures, transform=scale_pixels).items():
        size = ((each[key].double() @ gram) * each[key]).sum()
        for title, state in (("average", soup.state), ("RegMean", regmean.state)):
            gap = (state[key] - each[key]).double()
            errors[title].setdefault(key, []).append(float(((gap @ gram) * gap).sum() / size))
fig, ax = plt.subplots(figsize=(8, 4.2))
for title, shade in (("average", colour("average")), ("RegMean", "#009e73")):
    means = pd.DataFrame(errors[title]).mean()
    ax.plot(range(len(means)), 100 * means, "o-", color=shade, label=title)
names = [key.removeprefix("blocks.").removesuffix(".weight") for key in means.index]
ax.set_xticks(range(len(names)), names, rotation=50, ha="right", rotation_mode="anchor")
ax.set(ylabel="error, % of the output", ylim=(0, None))
ax.legend()
plt.show()

# %% [markdown]
# It does, by about half and most where the average is worst, in every layer and on new pictures. What the figure does not show is that a merged
# model's layers get the inputs of a *merged* model: errors of the layers below change what the layers
# above are given, and no formula for one layer at a time sees that.
#
# ## Surgery: mending the features at the end
#
# Whatever was done to the weights, the features $f$ of the merged model differ from the features $z$ of each
# expert on its task. Yang et al. {cite}`yang2024representation` call the mean $\lvert f - z \rvert$ the
# **representation bias**, and remove a part of it after the fact, with a small module for each task
# between the features and the head:
#
# $$ \hat f = f - U_t\, \mathrm{ReLU}(D_t f), \qquad \min_{U_t, D_t}\ \mathbb{E}_{x \sim t}\, \lVert \hat f(x) - z_t(x) \rVert_1 ,
# $$ (eq-adapt-surgery)
#
# with $D_t$ of 16 rows and $U_t$ zero at the start, so that it starts as the identity. The merged weights stay as
# they are, and no labels are needed: the experts' features are the targets. As no network changes, they
# are computed once, and the training itself is next to free.

# %%
cut, scores_cut = run(
    "Surgery on average", "surgery", calibration, "unlabelled", seed=SEED, transform=scale_pixels
)
bias = {}
for name, module in cut.heads.items():
    merged, wanted = (
        features(zoo.model, state, test_inputs[name], transform=scale_pixels)
        for state in (soup.state, zoo.experts[name])
    )
    after = module[0](merged)
    bias[name] = {"before": F.l1_loss(merged, wanted), "after": F.l1_loss(after, wanted)}
bias = pd.DataFrame(bias).T.astype(float)
bias.mean().round(2)

# %% tags=["hide-input"] mystnb={"figure": {"caption": "The average before and after surgery on a hundred training pictures a task: representation bias (left) and accuracy (right) on the test pictures, by task. Black diamonds: the expert.", "name": "fig-adapt-surgery"}, "image": {"alt": "Two panels with a row for each task. Left, an arrow for each task points from a larger to a smaller L1 distance; the largest biases shrink most. Right, an arrow for each task points from lower to higher accuracy, often about half the way to the expert's diamond."}}
fig, axes = plt.subplots(1, 2, figsize=(9, 4.4), sharey=True)
pairs = (
    (bias["before"], bias["after"], "mean |f - z|"),
    (100 * scores_of_average["accuracy"], 100 * scores_cut["accuracy"], "test accuracy, %"),
)
for ax, (before, after, axis) in zip(axes, pairs):
    ax.hlines(range(len(before)), before, after, color="#c8c8c8", lw=5)
    ax.scatter(before, range(len(before)), s=60, color=colour("average"), label="average", zorder=3)
    ax.scatter(after, range(len(after)), s=60, color="#d55e00", label="after surgery", zorder=3)
    ax.set(xlabel=axis, yticks=range(len(before)), yticklabels=list(before.index), xlim=(0, None))
wanted = 100 * own["accuracy"]
axes[1].scatter(wanted, range(len(bias)), marker="D", color="black", label="expert")
axes[1].set_xlim(0, 100)
axes[1].legend(loc="lower center", bbox_to_anchor=(0.3, 1.0), ncols=3, fontsize=10)
plt.show()

# %% [markdown]
# A part of the bias goes, in every task, and with it goes a good part of the gap to the experts. Note
# what was bought: modules that differ by task. Heads differ by task as well, so nothing new must be known
# when predicting; but the *backbone* alone, handed on to somebody without the modules, is as good as before.
# Surgery goes on top of any merge: `merged=` names the weights to mend. AdaMerging, too, can start from CART,
# with a coefficient for each matrix around its scale.

# %%
mend = {"seed": SEED, "transform": scale_pixels}
onto = {"AdaMerging": ada.state, "CART": bases["CART"]}
for title, state in onto.items():
    run(f"Surgery on {title}", "surgery", calibration, "unlabelled", start=state, **mend)
cart = {"base": "cart", "init": 2.0, "rank_ratio": 0.12, "learning_rate": 1e-2}
run("AdaMerging on CART", "adamerging", calibration, "unlabelled", **cart, **short)
run("AdaMerging", "adamerging", test_inputs, "test inputs", learning_rate=1e-2, **short)
run("Surgery on average", "surgery", test_inputs, "test inputs", **mend)
pd.DataFrame(rows[-5:]).set_index(["procedure", "data"])[["accuracy"]].round(3)

# %% [markdown]
# ## The comparison
#
# Two procedures that use the labels join in. The **greedy soup** {cite}`wortsman2022model` averages those
# experts that do not hurt each other's accuracy on the labelled pictures. **Multi-task training**
# {cite}`caruana1997multitask` is the baseline that merging wants to do without: the pretrained model, trained
# on the labelled pictures of all tasks at once under the same frozen heads. It gets as many steps as
# AdaMerging. On the same pictures with their labels, `fisher` can use the empirical Fisher information.

# %%
run("greedy soup", "greedy_soup", calibration, "labelled", transform=scale_pixels)
run("multi-task training", "multitask", calibration, "labelled", **short)
run("Fisher, true labels", "fisher", calibration, "labelled", labels="true", transform=scale_pixels)
table = pd.DataFrame(rows).set_index(["procedure", "data"])
table["accuracy, %"] = (100 * table["accuracy"]).round(1)
table.sort_values("accuracy")[["accuracy, %"]]

# %% tags=["hide-input"] mystnb={"figure": {"caption": "Accuracy of each procedure, and the seconds it took, at a hundred training pictures a task, or all test inputs where marked. Seconds of surgery do not include the merge that it mends. One seed.", "name": "fig-adapt-cost"}, "image": {"alt": "Two panels that share a row for each procedure, sorted by accuracy. Surgery on any merge stands at the top, above seventy per cent, for few seconds. CART without data comes next, ahead of RegMean and AdaMerging from task arithmetic. Fisher variants, the greedy soup, Concrete and multi-task training end below task arithmetic, close to the average, and are among the slower ones."}}
KINDS = {
    "none": "#8c8c8c",
    "unlabelled": "#0072b2",
    "test inputs": "#d55e00",
    "labelled": "#009e73",
}
order = table.sort_values("accuracy").reset_index()
shades = [KINDS[kind] for kind in order["data"]]
fig, axes = plt.subplots(1, 2, figsize=(9.4, 6.4), sharey=True, width_ratios=(3, 2))
for ax, values in zip(axes, (100 * order["accuracy"], order["seconds"])):
    ax.hlines(range(len(order)), 1e-3, values, color=shades)
    ax.scatter(values, range(len(order)), s=60, color=shades, zorder=3)
axes[0].set(
    yticks=range(len(order)), yticklabels=order["procedure"], xlabel="mean test accuracy, %"
)
axes[1].set(xscale="log", xlabel="seconds on this machine", xlim=(order["seconds"].min() / 2, None))
for row, value in enumerate(100 * order["accuracy"]):
    axes[0].text(value + 0.7, row, f"{value:.1f}", va="center", fontsize=10)
axes[0].set_xlim(100 * order["accuracy"].min() - 3, 100 * order["accuracy"].max() + 5)
for kind, shade in KINDS.items():
    axes[0].scatter([], [], s=60, color=shade, label=kind)
axes[0].legend(title="data", loc="lower right")
plt.show()

# %% [markdown]
# What stands out, on this suite and seed:
#
# * **Surgery** is far ahead of all that changes weights only, at little cost, and what it mends matters:
#   a better merge below gives a better outcome, though CART's lead over AdaMerging is lost. It has the most help: modules of its own for each task,
#   and the experts as teachers.
# * **CART without data** is ahead of everything else. RegMean and AdaMerging improve on task arithmetic by two
#   to three points, and a better data-free merge by more. They were made to repair the average and task arithmetic;
#   on CART, AdaMerging finds little left to do.
# * **RegMean** is level with **AdaMerging**. It needs no steps and no heads, and takes a fraction of the time.
# * **Fisher** and the **greedy soup** do not beat the average, even with labels.
# * **Multi-task training** on a hundred pictures a task, and for so few steps, does not beat the average: the
#   experts have seen fifteen times as many pictures, for longer, and merging inherits it. How much training it
#   takes to catch up is a question for [](22-frank-wolfe-experiments).
# * The **test inputs** in place of training pictures make little difference to AdaMerging, which learns few
#   numbers. Surgery learns more, and has six times as many pictures there.
#
# ## What the papers say, and what we measured
#
# One seed shows a phenomenon and settles no claim. AdaMerging's abstract reports eleven points over task
# arithmetic on eight vision tasks {cite}`yang2024adamerging` (**the paper's figure**); here, as on real pictures in
# [](11-cart-experiments), the size is not reached. That surgery gains on top of any merge, and most in the end on the
# best one, is what its paper reports. Concrete's gain we did not find. Results with several
# seeds on real pictures, with the same procedures at equal data, are in [](22-frank-wolfe-experiments), at the end of this
# part, and verdicts in the [](90-claims-ledger).
#
# ## Which should I choose?
#
# * **One backbone for all:** start with [](10-cart), which needs no data; AdaMerging can start there.
# * **Unlabelled inputs, and nothing to tune with:** RegMean, a closed form without scale, rank or rate.
# * **Task known when predicting, and room for a small module a task:** surgery, on top of the best merge you have.
# * **Labels:** do not spend them on Fisher or on a soup. They are worth more for choosing hyperparameters, or for
#   Frank-Wolfe.
# * **Do not** minimise the entropy over as many numbers as there are weights, unless something else tells
#   you when to stop.
#
# ## Exercises
#
# ```{exercise} How many numbers are learned? (easy)
# :label: ex-adapt-count
# Count what AdaMerging learns (by task and by layer), what Concrete learns, and what surgery learns, for the
# model of this chapter.
# ```

# %% [markdown]
# ````{solution-start} ex-adapt-count
# :class: dropdown
# ````
# One a task; one for each expert and tensor; one for each weight; and two matrices of 16 by the width
# of the features for each task.

# %% tags=["nbval-check-output"]
count = len(zoo.experts)
print("AdaMerging, by task:", count)
print("AdaMerging, by layer:", ada.coefficients.size)
print("Concrete:", sum(p.numel() for p in zoo.model.parameters()))
print("Surgery:", sum(p.numel() for head in cut.heads.values() for p in head.parameters()))

# %% [markdown]
# ````{solution-end}
# ````
#
# ```{exercise} The surer, the lighter (medium)
# :label: ex-adapt-sure
# Take a model with one weight, $p(y = 1 | x) = \sigma(\theta x)$, and inputs $x = 1$. Compute its Fisher
# information. Where does Fisher merging put experts with $\theta_1 = 1$ and $\theta_2 = 4$, and where is their average?
# ```

# %% [markdown]
# ````{solution-start} ex-adapt-sure
# :class: dropdown
# ````
# The gradient of $\ln p(y)$ is $(y - p)\, x$, and under $y \sim p$ its square has the mean
# $p (1 - p)\, x^2$, which vanishes as the model gets sure. The second expert is sure, so the merged weight stays
# close to the first, far from the average 2.5. The procedure draws its labels, and agrees up to that.


# %%
class Against0(torch.nn.Module):
    def forward(self, z):
        return torch.cat([torch.zeros_like(z), z], dim=1)


sure = {name: {"weight": torch.tensor([[value]])} for name, value in (("a", 1.0), ("b", 4.0))}
p = {name: state["weight"].sigmoid().item() for name, state in sure.items()}
weight = {name: each * (1 - each) for name, each in p.items()}
expected = (1.0 * weight["a"] + 4.0 * weight["b"]) / sum(weight.values())
merged = (
    ml.adapt(
        "fisher",
        sure,
        pretrained=sure["a"],
        model=torch.nn.Linear(1, 1, bias=False),
        heads={name: Against0() for name in sure},
        data={name: torch.ones(4000, 1) for name in sure},
        batch_size=4000,
    )
    .state["weight"]
    .item()
)
assert abs(merged - expected) < 0.1
print(f"by hand {expected:.2f}, average {2.5}")

# %% [markdown]
# ````{solution-end}
# ````
#
# ```{exercise} Is the bias a shift? (hard)
# :label: ex-adapt-shift
# "Bias" suggests that features are merely moved, all by the same vector. Replace the module by $f - b_t$, with
# $b_t$ the mean of $f - z$ over the calibration pictures. How much of surgery's gain remains?
# ```

# %% [markdown]
# ````{solution-start} ex-adapt-shift
# :class: dropdown
# ````
# A `Linear` layer that is the identity minus a vector stands in for the module.


# %%
def shifted(name):
    """A head behind the mean shift of its task."""
    merged, wanted = (
        features(zoo.model, state, calibration[name][0], transform=scale_pixels)
        for state in (soup.state, zoo.experts[name])
    )
    move = torch.nn.Linear(merged.shape[1], merged.shape[1]).to(DEVICE).requires_grad_(False)
    move.weight.copy_(torch.eye(len(move.weight)))
    move.bias.copy_(-(merged - wanted).mean(0))
    return torch.nn.Sequential(move, zoo.heads[name])


moved = judge(soup.state, {name: shifted(name) for name in zoo.experts})["accuracy"].mean()
gain = scores_cut["accuracy"].mean() - scores_of_average["accuracy"].mean()
share = (moved - scores_of_average["accuracy"].mean()) / gain
print(f"the mean shift brings {100 * share:.0f} % of surgery's gain")

# %% [markdown]
# Little. What differs between the merged model and an expert depends on the picture, and the module can
# say so, as it looks at $f$.
# ````{solution-end}
# ````
#
# ## Summary
#
# * Procedures need inputs of every task; most need no labels. Test inputs are not the same as other inputs.
# * AdaMerging moves few coefficients by entropy, and certainty brings accuracy. Moving every weight by
#   entropy brings certainty alone.
# * The Fisher information is a mean of squares; the square of a mean is noise. Between tasks its
#   scale differs by an order of magnitude, and says little about who deserves the weight.
# * RegMean halves the error of every layer in closed form.
# * Surgery leaves the weights alone and corrects the features, for each task, in seconds; it gains most.
# * A procedure is worth its data only beside the best method without: here that is CART, and only surgery passes it.
#
# **Next:** Frank-Wolfe, which spends data with a guarantee.
#
# ## References
#
# All sources are in the [](../book/bibliography).
