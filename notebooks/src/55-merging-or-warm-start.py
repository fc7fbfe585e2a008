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
# # Merging or warm start?
#
# **In one sentence:** ONESENTENCE
#
# SAIL's start {cite}`anonymous2025structured` differs from scratch in three ways at once: something has been learned, two networks are averaged, and maps
# bring them to a larger shape. Chapters [52](52-sail-vision) and [53](53-sail-text) compare such starts as wholes. Here each part varies by itself.
#
# **After this chapter you can**
#
# * say how many steps a warm start saves in theory, and why no factor follows;
# * read a speed-up over all losses aimed at, not at one;
# * tell what merging, maps and shared starts each add.
#
# **Before you start:** [](53-sail-text). **Time:** 7 minutes to read, ten seconds to run.

# %% tags=["parameters"]
SUITE = "tinyshakespeare"
PROFILE = "default"
SEED = 0
DEVICE = "cpu"

# %% [markdown]
# ## What theory promises of a warm start
#
# (warm-theory)=
# Theorem 2 lets the excess loss of gradient descent shrink by $1 - \eta\mu$ a step ([](51-proximal-parameters)). So a start with half of
# another's excess, which is what appendix C derives, saves at most
#
# $$
# \frac{\ln 2}{-\ln(1 - \eta\mu)} \le \kappa \ln 2 \quad \text{steps}, \qquad \kappa = \frac{L}{\mu}, \quad \eta = \frac 1L ,
# $$ (eq-warm-saved)
#
# *whatever* loss is aimed at. A constant number of steps is no constant factor: the longer the way, the less it counts. On quadratics all is
# exact, and excess falls as $(1 - \eta h)^{2T}$ along a direction of curvature $h$, twice as fast as the bound. Here are two directions, and sixty, both with $\kappa = 200$:

# %%
import numpy as np

from mergelib.studies.analysis.sail import factorial as analysis
from mergelib.theory.proximal import steps_saved

losses = {"two curvatures": [1, 0.005], "many curvatures": np.geomspace(0.005, 1, 60)}
theory = analysis.halved(losses, np.geomspace(0.2, 1e-4, 40))
print("bound:", round(steps_saved(0.5, 1.0, 0.005)), "steps; on quadratics half of it")
print(theory[theory["goal"].isin([0.2, 1e-4])].to_string(index=False, float_format="{:.3g}".format))

# %% tags=["hide-input"] mystnb={"figure": {"caption": "Gradient descent on two quadratics, from a start and from one with half its excess loss: steps saved, and the ratio of steps, by the excess aimed at.", "name": "fig-warm-quadratics"}, "image": {"alt": "Left: with two curvatures 69 steps are saved at every goal; with many the number rises from 20 towards the same. Right: both ratios fall from about four to 1.1."}}
import matplotlib.pyplot as plt

from mergelib.plots import use_style
from mergelib.studies.figures import factorial as figures

use_style()
fig, axes = plt.subplots(1, 2, figsize=(8.4, 3.3))
for ax, (value, text) in zip(axes, {"saved": "steps saved", "factor": "ratio of steps"}.items()):
    figures.quadratics(theory, value, ax)
    ax.set_ylabel(text)
axes[0].legend()
plt.show()

# %% tags=["remove-cell"]
whole = steps_saved(0.5, 1.0, 0.005) / 2
two, many = (theory[theory["loss"] == name].set_index("goal") for name in losses)
assert round(2 * whole) == 138
assert (two["saved"] - whole).abs().max() < 0.5
assert many["saved"].is_monotonic_decreasing or many["saved"].diff().dropna().min() > 0
assert 15 < many["saved"].iloc[0] < 22 < 60 < many["saved"].iloc[-1] < whole
for run in (two, many):
    assert 3.3 < run["factor"].iloc[0] < 4.3
    assert 1.05 < run["factor"].iloc[-1] < 1.15

# %% [markdown]
# With two curvatures 69 steps are saved at every goal, half of the bound; with many, fewer at first. In both cases the factor falls from around four to 1.1. One
# goal gives one factor, and the choice of the goal decides how large it is.
#
# ## The factorial
#
# (warm-factorial)=
# The study `factorial` takes the sources, targets and trainings of the study `arms` and crosses
#
# | factor | levels |
# |---|---|
# | sources | the nearest alone; both, with Theorem 3's weight |
# | start of the second | shared with the first; its own; its own, reordered by Git Re-Basin |
# | maps | copies with noise; mean padding; LiGO's, learned for each source alone or jointly; random factors |
#
# Random factors keep a weight's singular values and nothing else ([](50-growing)). There are GPTs twice as wide and deep on characters, and ResNets half wider and twice as deep on
# CIFAR-10, whose batch norms rule out learned maps; five seeds of each. Rates were tuned for each kind of maps on another seed, with a shared
# start. Scratch trains on for three or four times as long as the others, since otherwise it never comes to a loss that they do not begin with.
#
# ## Steps saved
#
# (warm-saved)=

# %% tags=["hide-input"] mystnb={"figure": {"caption": "Steps saved against scratch (left) and log₂ of the ratio of FLOPs by account B (right), by the test loss aimed at, from easy to hard. Means and 95 % intervals over the seeds where both get there, at least four of five; dotted where a start is there already.", "name": "fig-warm-saved"}, "image": {"alt": "ALT1"}}
table = analysis.often_reached(analysis.saved())
fig, axes = plt.subplots(2, 2, figsize=(9.2, 6.4))
for row, (modality, part) in zip(axes, table.groupby("modality", sort=False)):
    for ax, (value, text) in zip(row, {"saved": "steps saved", "B": "log₂ factor"}.items()):
        figures.against_goals(part, value, ax)
        ax.set(title=modality, ylabel=text)
handles, names = axes[0, 0].get_legend_handles_labels()
fig.legend(handles, names, loc="outside lower center", ncols=5, fontsize=10)
plt.show()

# %% [markdown]
# SAVEDTEXT
#
# ## Sources, starts, maps
#
# (warm-effects)=
# At equal cost: each cell's loss when it has spent what scratch spends in as many steps as the others take, distances and learned maps counted (account B).

# %% tags=["hide-input"] mystnb={"figure": {"caption": "Test loss at equal cost (account B) above that of one source by mean padding, same seed. Means and 95 % intervals over five seeds.", "name": "fig-warm-cells"}, "image": {"alt": "ALT2"}}
ends = analysis.ends()
fig, axes = plt.subplots(1, 2, figsize=(9.2, 3.8), width_ratios=(5, 3))
for ax, (modality, part) in zip(axes, ends.groupby("modality", sort=False)):
    figures.cells(part, ax)
    ax.set_title(modality)
axes[0].set_ylabel("nats above")
handles, names = axes[0].get_legend_handles_labels()
fig.legend(handles, names, loc="outside lower center", ncols=4, fontsize=10)
plt.show()

# %% [markdown]
# And what each factor does by itself, with the others averaged over, in nats; below zero is better:

# %%
from mergelib.records.statistics import over_seeds, written

found = analysis.effects()
mean = over_seeds(found, ["modality", "factor", "effect"], "loss")
print(written({"loss": mean}, digits=3).unstack("modality", fill_value="").to_string())

# %% [markdown]
# EFFECTSTEXT
#
# (warm-sources)=
# **Account C.** With its sources paid for, ...

# %%
flops = analysis.curves().groupby(["modality", "sources"])[["source_flops", "step_flops"]].first()
print((flops["source_flops"] / flops["step_flops"]).round().to_string())

# %% [markdown]
# CTEXT
#
# ```
# mergelib study factorial --suite tinyshakespeare --seeds 5 \
#   -o results/tinyshakespeare-factorial.json
# mergelib study factorial --suite vision8 --seeds 5 --set target=cifar10 \
#   --set 'size=half wider' --set steps=100 --set longer=4 -o results/vision8-factorial.json
# ```
#
# ## When to use it, and when not
#
# USE
#
# ## Exercises
#
# ```{exercise} Another goal (easy)
# :label: ex-warm-goal
# A warm start saves 200 steps at every goal. What is its speed-up over scratch where scratch takes 250 steps, and where it takes 4,000?
# ```

# %% [markdown]
# ````{solution-start} ex-warm-goal
# :class: dropdown
# ````
# Five, and 1.05: the ratio of all steps to those that are left.

# %% tags=["nbval-check-output"]
for scratch in (250, 4000):
    print(f"{scratch} steps: a factor of {scratch / (scratch - 200):.2f}")

# %% [markdown]
# ````{solution-end}
# ````
#
# ```{exercise} A law of powers (medium)
# :label: ex-warm-power
# Losses of networks often fall as $J - J^* = T^{-a}$. One start is $T_0$ steps ahead on this curve. Another has half of scratch's excess at every step.
# How many steps does each save, and which has a constant factor?
# ```

# %% [markdown]
# ````{solution-start} ex-warm-power
# :class: dropdown
# ````
# The first saves $T_0$ steps, always. The second comes to an excess $g$ where $\frac12 T^{-a} = g$, at $2^{-1/a}$ of scratch's steps $g^{-1/a}$: a constant factor $2^{1/a}$, and
# steps saved that grow with the way. So steps saved that grow say that the start has another *rate*, and not only a lead.

# %% tags=["nbval-check-output"]
power = 0.5
for goal in (0.1, 0.01):
    scratch, half = goal ** (-1 / power), (2 * goal) ** (-1 / power)
    print(
        f"{scratch:.0f} steps, with half the excess {half:.0f}: {scratch / half:.0f} times as fast"
    )

# %% [markdown]
# ````{solution-end}
# ````
#
# ```{exercise} Never more than on the flattest direction (hard)
# :label: ex-warm-convex
# Show that on a quadratic with curvatures of at least $\mu$, gradient descent with $\eta \le 1/L$ from a start with half of scratch's excess in every direction saves
# at most $\ln 2 / (-2 \ln(1 - \eta\mu))$ steps, and the more the harder the goal is.
# ```

# %% [markdown]
# ````{solution-start} ex-warm-convex
# :class: dropdown
# ````
# Scratch's excess is $E(T) = \sum_i c_i q_i^{2T}$ with $c_i \ge 0$ and $q_i = 1 - \eta h_i \le q = 1 - \eta\mu$. The logarithm of a sum of exponentials is convex, so
# $r(T) = -\frac{d}{dT} \ln E$, a mean of the rates $-2 \ln q_i$, never rises, and is at least $-2 \ln q$. To be at $g$, scratch needs $E(T_1) = g$ and the other
# $\frac12 E(T_2) = g$, so $\ln 2 = \ln E(T_2) - \ln E(T_1) = \int_{T_2}^{T_1} r \ge (T_1 - T_2)(-2 \ln q)$. For a harder goal the interval lies where $r$ is smaller, and must be longer.

# %% tags=["nbval-check-output"]
generator = np.random.default_rng(SEED)
random = {str(i): [1, 0.01, *generator.uniform(0.01, 1, 20)] for i in range(100)}
gaps = analysis.halved(random, np.geomspace(0.2, 1e-3, 20)).groupby("loss")["saved"]
print("rises:", all(gap.diff().dropna().min() > -0.2 for _, gap in gaps))
print("most:", gaps.max().max() < steps_saved(0.5, 1.0, 0.01) / 2 + 0.1)

# %% [markdown]
# ````{solution-end}
# ````
#
# ## Summary
#
# SUMMARY
#
# **Next:** [](90-claims-ledger).
#
# ## References
#
# All sources are in the [](../book/bibliography).
