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
# # SAIL in diffusion
#
# **In one sentence:** what the paper calls SAIL in diffusion merges nothing: it is a start by alignment alone and one more
# loss, both towards a network that must be frozen. At equal steps, which the
# paper counts, it is level with REPA once each has its own learning rate; at equal cost it hurts.
#
# Appendix J of SAIL {cite}`anonymous2025structured` reports its largest gains: on ImageNet a flow model, SiT
# {cite}`ma2024sit`, has an FID of 12.2 with SAIL and 24.4 with REPA {cite}`yu2025representation`, which it builds
# on. This chapter takes that method apart, and runs it at a size that a laptop can do.
#
# **After this chapter you can**
#
# * tell appendix J from the method of the paper's section 4;
# * train a flow model, and draw with it;
# * show how an alignment collapses, and what keeps it from that;
# * judge drawn pictures by a distance, its floor, and an account of costs.
#
# **Before you start:** [](50-growing). **Time:** 15 minutes to read, a minute to run.

# %% tags=["parameters", "remove-cell"]
SUITE = "digits2"
PROFILE = "default"
SEED = 0
DEVICE = "cpu"

# %% [markdown]
# ## Another method under the same name
#
# SAIL as in section 4 transforms sources to the target's shape, averages them with weights $\gamma$, and trains on. In appendix J
# there is no transformation, no average and no $\gamma$. Let $z$ be the latent of a picture and $h$ the tokens inside a SiT. There is a
# network $f_P$ from latents to representations, pretrained, and a small one, $f_A$, from tokens to the same space. The start is
#
# $$
# \theta^P = \arg\min_\theta \mathcal L_{\text{Align}}(\theta) , \qquad
# \mathcal L_{\text{Align}} = \mathbb E\, \lVert f_P(z_t) - f_A(h_t) \rVert^2 ,
# $$ (eq-diffusion-align)
#
# and training goes on with three losses,
#
# $$
# \mathcal L = \mathcal L_{\text{Velocity}} + \lambda_{\text{REPA}}\, \mathcal L_{\text{REPA}} + \lambda_{\text{Align}}\, \mathcal L_{\text{Align}} .
# $$ (eq-diffusion-total)
#
# REPA is older: it pulls the tokens, by their cosine, to those that a pretrained network has of the *clean picture*. So the
# claim is about {eq}`eq-diffusion-align` and the last term. The other SAIL can be tried here, too: a SiT that is
# *grown* from a smaller one ([](50-growing)). There are four arms:
#
# | arm | start | loss |
# |---|---|---|
# | SiT | random | velocity |
# | REPA | random | velocity + ½ REPA |
# | REPA + J | alignment alone | velocity + ½ REPA + ½ alignment |
# | REPA, grown | a trained smaller SiT, grown | velocity + ½ REPA |
#
# ## A flow and its velocity
#
# (diffusion-flow)=
# At time $t$ a latent $x$ has gone a part of the straight way to a noise $\varepsilon$,
#
# $$
# x_t = (1 - t)\, x + t\, \varepsilon , \qquad \dot x_t = \varepsilon - x .
# $$ (eq-diffusion-flow)
#
# A SiT is a transformer that learns this velocity from $x_t$, $t$ and a class. Many latents pass through the same
# $x_t$, so what it learns is the *mean* velocity there. Following it backwards from pure noise, in small steps, draws a
# new latent. The whole method is two functions:

# %%
import inspect

from mergebook.sail.networks.diffusion import flow

print(inspect.getsource(flow.on_the_way))
print(inspect.getsource(flow.velocity_loss))

# %% [markdown]
# Our pictures are the handwritten digits 0 to 4 that come with scikit-learn. An autoencoder makes latents of $4 \times 8 \times 8$ of
# them. The suite's pretrained backbone is the network whose tokens are aligned to, and $f_P$ learns these tokens from
# latents. All four arms are trained now, on the same batches, times and noise and at one rate, and REPA goes on for as long as what REPA + J costs
# in all:

# %%
from mergebook import load_suite, load_zoo
from mergebook.sail.measure.diffusion import TRAININGS
from mergebook.sail.measure.latents import Plan, drawn, prepare
from mergebook.sail.read import diffusion as analysis

small, task = PROFILE == "smoke", "digits_low"
suite = load_suite(SUITE, seed=SEED, profile=PROFILE, tasks=[task])
zoo = load_zoo(suite, model="vit_small", device=DEVICE)
steps = 10 if small else 150
sizes = {"prepared": steps, "represented": 20 if small else 200, "samples": 200, "euler": 10}
training = {"steps": steps, "aligned": steps // 5, "batch_size": 48}
rates = dict.fromkeys(TRAININGS, 3e-3)
plan = Plan(64, 2, (32, 1), task, rates=rates, **training, **sizes)
world = prepare(zoo, plan)
compared = analysis.compare(world, plan)

# %% tags=["hide-input"] mystnb={"figure": {"caption": "One latent, decoded. Above: on its straight way to a noise. Below: the way back from the same noise of the REPA that was trained longest, with the same digit asked for.", "name": "fig-diffusion-flow"}, "image": {"alt": "Above, a digit fades into blotches from left to right. Below, from the same blotches at the right, strokes form towards the left and end in another shape than the one above."}}
import matplotlib.pyplot as plt

from mergebook import plots

plots.use_style()
there, back = analysis.paths(world, compared.networks[analysis.LONGER], 0, seed=SEED)
fig, ax = plt.subplots(figsize=(6.6, 2.9))
times = [f"t = {place / 4:g}" for place in range(5)]
plots.gallery(ax, {"there": there, "back": back}, times, low=-1)
plt.show()

# %% [markdown]
# The way back does not end where the way there began: the noise does not tell which picture was lost in it.
#
# ## What keeps an alignment from collapsing
#
# (diffusion-collapse)=
# Nothing in {eq}`eq-diffusion-align` says which of its networks is trained; "$\theta$" can be read as all of them. If $f_P$ may move as well,
# $f_P = f_A = \text{const}$ has no loss at all, and says nothing of the picture. Both readings, from the same start:

# %% tags=["hide-input"]
import copy

import torch

from mergebook.sail.measure.diffusion import ALONE, EVERY, Parts
from mergebook.sail.measure.latents import by_rows


def aligned(kind, rows):
    parts, generator = Parts(world, plan.width, plan.depth), torch.Generator()
    represent = copy.deepcopy(world.represent).requires_grad_(kind == "trained")

    def loss(batch):
        x, times = world.latents[batch], torch.rand(len(batch), generator=generator)
        noisy = flow.on_the_way(x, torch.randn(x.shape, generator=generator), times)
        _, tokens = parts.network.with_tokens(noisy, times, world.labels[batch], parts.block)
        return torch.nn.functional.mse_loss(parts.align(tokens), represent(noisy))

    def keep(step, value):
        if step % EVERY == 0:
            spread = float(by_rows(represent, world.latents[:100]).std((0, 1)).mean())
            rows.append({"f_P": kind, "step": step, "loss": value, "spread": spread})

    return torch.nn.ModuleList([parts, represent]), generator.manual_seed(world.seed), loss, keep


# %%
import pandas as pd

from mergelib.training import make_optimiser, shuffled, train

rows = []
for kind in ("frozen", "trained"):
    both, generator, loss, keep = aligned(kind, rows)
    batches = shuffled(len(world.latents), plan.batch_size, generator, steps=61)
    optimiser = make_optimiser(both, "adamw", plan.rates[ALONE], weight_decay=0.0)
    train(both, batches, loss, optimiser, on_step=keep)
fates = pd.DataFrame(rows)

# %% tags=["hide-input"] mystnb={"figure": {"caption": "Alignment alone. Left: its loss. Right: the standard deviation of f_P over pictures and places.", "name": "fig-diffusion-collapse"}, "image": {"alt": "With f_P trained, the loss falls to nearly zero within twenty steps, and so does the spread; with f_P frozen the loss stays far above, and the spread is constant."}}
looks = {
    "frozen": ("f_P frozen", plots.BLUE, "-"),
    "trained": ("f_P trained", plots.VERMILION, "-"),
}
words = {"loss": "alignment loss", "spread": "spread of $f_P$"}
fig, axes = plt.subplots(1, 2, figsize=(8.4, 3.2))
for ax, (column, text) in zip(axes, words.items()):
    plots.points(ax, fates, x="step", y=column, by="f_P", looks=looks)
    ax.set(xlabel="steps of alignment", ylabel=text, ylim=(0, None))
axes[0].legend()
plt.show()

# %% [markdown]
# A trained $f_P$ lowers the loss by telling less. So $f_P$ has to be frozen, here and in what follows. And **a low alignment loss is no
# evidence**: it can be bought.
#
# ## Noisy latents
#
# (diffusion-noisy)=
# Eq. 16 of the paper has $f_P(z_t)$, the *noisy* latent, where REPA has the clean picture. What does $f_P$, which was pretrained on
# clean latents, say of a noisy one? Here is the share of the variance of the backbone's tokens that it explains, by $t$:

# %%
shares = analysis.explained(world, (0.0, 0.25, 0.5, 0.75, 1.0))
print(shares.round(2).to_string())

# %% tags=["remove-cell"]
usual = (SUITE, PROFILE, SEED) == ("digits2", "default", 0)
last = fates[fates["step"] == fates["step"].max()].set_index("f_P")
if not small:
    assert last.loc["trained", "loss"] < 0.1 * last.loc["frozen", "loss"]
    assert last.loc["trained", "spread"] < 0.2 * last.loc["frozen", "spread"]
    assert fates.loc[fates["step"] == 0, "loss"].nunique() == 1, "from the same start"
    assert fates.loc[fates["f_P"] == "frozen", "spread"].nunique() == 1
    assert (shares.diff().dropna() < 0).all()
    assert shares[1.0] < 0
if usual:
    assert 0.4 < shares[0.0] < 0.6
    assert 0.1 < shares[0.5] < 0.3
    assert shares[0.75] < 0

# %% [markdown]
# On clean latents it explains half, in the middle of the way a fifth, and near the noise it is worse than the mean of all pictures. So
# the SiT is asked to imitate answers to inputs that $f_P$ was not made for. And $f_P(z_t)$ is a function of what the SiT
# sees itself: it cannot bring in anything that the noise hides, as REPA's clean tokens do. With `printed=False` the study gives $f_P$
# the clean latent.
#
# ## Four arms
#
# (diffusion-arms)=
# Now the arms that were trained above. For a SiT this is the very beginning. The grown one starts far ahead, as it knows
# what its source has learned, and has lost its lead after 100 steps.

# %% tags=["hide-input"] mystnb={"figure": {"caption": "The loss of velocities over training, means of ten steps, all arms on the same batches, times and noise.", "name": "fig-diffusion-losses"}, "image": {"alt": "The plain SiT, REPA and REPA + J fall together from 1.7 to 0.6 in 150 steps, REPA + J a little below in the end. The grown SiT begins at 1.0 and meets the others after 100 steps. REPA goes on to 360 steps and 0.46."}}
looks = {
    "SiT": ("SiT", plots.BLACK, "-"),
    "REPA": ("REPA", plots.BLUE, "-"),
    "REPA + J": ("REPA + J", plots.VERMILION, "-"),
    "REPA, grown": ("REPA, grown", plots.GREEN, "--"),
}
fig, ax = plt.subplots(figsize=(6.4, 3.4))
plots.points(ax, compared.losses, x="step", y="velocity", by="arm", looks=looks)
ax.set(xlabel="steps of training", ylabel="velocity loss")
ax.legend()
plt.show()

# %% tags=["hide-input"] mystnb={"figure": {"caption": "Each digit: a training picture, the same after the autoencoder, and what each arm draws from the same noise.", "name": "fig-diffusion-drawn"}, "image": {"alt": "Real and decoded digits look alike. All arms draw blotches of strokes in the right places; REPA at equal cost draws a ring for the zero, and the other arms none as clear."}}
first = [int((world.labels == label).nonzero()[0]) for label in range(len(world.names))]
data = suite.tasks[task]
rows = {"real": data.transform(data.train.inputs[first])}
rows["decoded"] = world.picture(world.latents[first])
for name, network in compared.networks.items():
    rows[name] = drawn(world, network, world.labels[first], 20)
fig, ax = plt.subplots(figsize=(5.2, 6.2))
plots.gallery(ax, rows, low=-1)
plt.show()

# %% [markdown]
# ## How drawn pictures are judged
#
# (diffusion-floor)=
# The **Fréchet distance** compares drawn and real pictures as if a network's features of both were Gaussian
# {cite}`heusel2017gans`,
#
# $$
# \lVert \mu_1 - \mu_2 \rVert^2 + \operatorname{tr}\big(\Sigma_1 + \Sigma_2 - 2\, (\Sigma_1 \Sigma_2)^{1/2}\big) .
# $$ (eq-diffusion-frechet)
#
# With the features of an Inception network it is the FID. Ours are those of the task's expert, which no arm sees, so **our numbers
# are no FIDs**, and cannot be compared with the paper's. It also depends on how many pictures there are: even two
# sets of *real* pictures are at a distance. That is the **floor**. The unbiased kernel distance {cite}`binkowski2018demystifying` is around zero there:

# %%
import pandas as pd

from mergebook.sail.distances import frechet_distance, kernel_distance

pairs = {count: world.real[: 2 * count].split(count) for count in (25, 50, 100)}
measures = {"frechet": frechet_distance, "kernel": kernel_distance}
floors = [
    {"count": count} | {name: measure(*halves) for name, measure in measures.items()}
    for count, halves in pairs.items()
]
print(pd.DataFrame(floors).round(3).to_string(index=False))

# %% [markdown]
# So each distance needs its number of pictures and its floor beside it. Here are 200 training pictures, the same decoded, and 200 of
# each arm, against 200 test pictures; `accuracy` is the share that the expert takes for the digit asked for:

# %% tags=["hide-input"]
lowest = pd.DataFrame(world.floor).set_index("pictures")
judged = compared.judged
print(pd.concat([lowest, judged])[["frechet", "kernel", "accuracy"]].round(2).to_string())

# %% tags=["remove-cell"]
frechet = judged["frechet"]
if not small:
    assert frechet.min() > 3 * lowest["frechet"].max()
if usual:
    assert 0.85 * frechet["REPA"] < frechet["REPA + J"] < 0.99 * frechet["REPA"]
    assert frechet[analysis.LONGER] < 0.6 * frechet["REPA + J"]
    assert abs(frechet[["SiT", "REPA, grown"]] / frechet["REPA"] - 1).max() < 0.05
    curve = compared.losses.pivot(index="step", columns="arm", values="velocity")
    assert curve.loc[10, "REPA, grown"] < 0.7 * curve.loc[10, "REPA"]
    assert abs(curve.loc[150, "REPA, grown"] / curve.loc[150, "REPA"] - 1) < 0.05

# %% [markdown]
# After as many steps REPA + J is a little ahead of REPA, in this one training. But **REPA is at half its distance if it trains for as long
# as REPA + J costs**. Next to that, the plain SiT, REPA and the grown SiT hardly differ, and all are far above the floor.
#
# ## What the table leaves out
#
# (diffusion-costs)=
# The paper compares at equal "Iter.", steps of the last training. Before these, SAIL has trained alignment alone, and somebody has
# trained $f_P$; and each of its steps has one more loss. So this book keeps three accounts: A counts training alone, B also what the start
# adds, C also the training of sources. In steps of REPA, counted as FLOPs:

# %% tags=["hide-input"]
print(compared.costs.round(2).to_string())

# %% [markdown]
# Before its first step REPA + J has cost as much as all 150 steps of REPA, most of it for $f_P$, and each of its steps costs 1.4 of
# REPA's. It has no sources, so C is B. The grown SiT trains at REPA's price, and what it took before is its source's training, which C
# alone counts. In a training as long as the paper's the start may weigh little; the factor of a step stays. How large both are there depends on
# the sizes of $f_P$ and $f_A$, which are not given.

# %% tags=["remove-cell"]
if PROFILE == "default":
    costs = compared.costs
    assert 135 < costs.loc["REPA + J", "B"] - costs.loc["REPA + J", "A"] < 165
    assert 1.35 < costs.loc["REPA + J", "step"] < 1.45
    assert costs.loc["REPA + J", "B"] == costs.loc["REPA + J", "C"]
    assert costs.loc["REPA, grown", "B"] == costs.loc["REPA", "B"] < costs.loc["REPA, grown", "C"]

# %% [markdown]
# (diffusion-arrows)=
# There is a slip in the same table, Table 4. An arrow says how far SAIL is below REPA:

# %% tags=["hide-input", "nbval-check-output"]
sfid = {"50K": (11.71, 16.19), "100K": (7.00, 7.02), "200K": (6.68, 6.15), "400K": (6.40, 5.90)}
for iterations, (repa, sail) in sfid.items():
    arrow = "↑" if sail > repa else "↓"
    print(f"{iterations:>4}: {repa:5.2f} -> {sail:5.2f}  {arrow}{abs(sail - repa):.2f}")

# %% [markdown]
# At 100K the paper prints "↓0.02"; sFID rises there, as at 50K, while FID falls. There is one training of each kind and no interval.
#
# ## The measurement that counts
#
# (diffusion-measured)=
# One seed on easy pictures shows how the method works, not whether it is better. The study `diffusion` has five seeds of Fashion-MNIST,
# 1,000 steps, 1,000 drawn pictures at three points of training, rates chosen for each arm by validation pictures of other seeds, and three comparisons: equal steps, as the paper
# has it; equal FLOPs of training (account A), which gives the plain SiT, with one loss less, 1,171 steps and REPA + J 808 for REPA's 1,000; and equal FLOPs
# with all that an arm took before its first step (C; of REPA + J, which has no sources, it is B as well). Steps of the grown SiT cost what REPA's do, so for it equal steps are A and B.
# The log ratio of REPA's distance to an arm's own, on the same seed:

# %% tags=["remove-input"] mystnb={"figure": {"caption": "How much nearer to real pictures than REPA's the other arms' are: log ratio of Fréchet distances after a fifth, a half and all of 1,000 steps of REPA (left to right in each group), at equal steps, at equal FLOPs of training, and at equal FLOPs in all. Above zero is nearer. Means and 95 % intervals over five seeds.", "name": "fig-diffusion-measured"}, "image": {"alt": "Left: REPA + J lies on zero throughout, the plain SiT just below it later on, and the grown SiT starts a little above and ends a third below. Middle: the plain SiT is on zero, REPA + J a fifth below. Right: REPA + J lies below zero throughout, lowest at first, and the grown SiT ends nearly half below."}}
from mergebook.lab.statistics import over_seeds, written

table = analysis.against_repa()
titles = {"steps": "equal steps", "A": "equal FLOPs of training", "cost": "equal FLOPs in all"}
fig, axes = plt.subplots(1, 3, figsize=(9.4, 3.8), sharey=True)
for ax, (account, title) in zip(axes, titles.items()):
    part = table[(table["account"] == account) & (table["arm"] != "REPA")]
    arms = [arm for arm in looks if arm in set(part["arm"])]
    for place, arm in enumerate(arms):
        rows = over_seeds(part[part["arm"] == arm], "read", "nearer")
        rows.index = [place + 0.12 * (turn - 1) for turn in range(len(rows))]
        plots.curve(ax, rows, ("", looks[arm][1], "o-"))
    ax.axhline(0, color=plots.BLUE, lw=1.5)
    plots.name_axis(ax, arms, upright=True)
    ax.set_title(title)
axes[0].set_ylabel("nearer than REPA, log ratio")
plt.show()

# %% tags=["remove-input"]
from mergebook import ledger
from mergebook.ledger import drawing
from mergebook.sail import claims as sail

verdicts, checks = ledger.judge([claim for claim in sail.CLAIMS if claim.key == "S8"])
print(*verdicts["verdict"], drawing.lines(checks, "S8"), sep="\n")

# %% tags=["remove-cell"]
from mergebook.lab.results import load_table

lead = over_seeds(table, ["account", "arm", "read"], "nearer").sort_index()
low, high = (lead["mean"] + sign * lead["half_width"] for sign in (-1, 1))
assert table["seed"].nunique() == 5
prices = load_table(analysis.FILE, "cost").groupby("arm")["step"].first()
assert prices["REPA, grown"] == prices["REPA"]
told = analysis.judged().query("account == 'A' and read == 1.0").groupby("arm")["step"].first()
assert told[["SiT", "REPA + J"]].tolist() == [1171, 808]
own = "REPA + J"
assert (low["steps", own] < 0).all()
assert (high["steps", own] > 0).all()
assert lead["mean"]["steps", own].abs().max() < 0.06
assert (high["A", own] < 0).all()
assert (high["cost", own] < 0).all()
assert low["steps", "REPA, grown", 0.2] > 0
for account in ("steps", "cost"):
    assert (high[account, "REPA, grown"].loc[[0.5, 1.0]] < 0).all()
assert low["cost", "REPA, grown", 0.2] < 0 < high["cost", "REPA, grown", 0.2]
assert (high["steps", "SiT"].loc[[0.5, 1.0]] < 0).all()
assert lead["mean"]["A", "SiT"].loc[[0.5, 1.0]].abs().max() < 0.03
assert verdicts["verdict"].item() == "undecided"

# %% [markdown]
# **At equal steps REPA + J is level with REPA**, within what five seeds can show. **At equal FLOPs it is behind**, of training alone by a sixth and more, and in all most at first, when
# REPA has had the steps that went into $f_P$ and the start. That is mostly a matter of scale: these are 146 of our 1,000 steps, and would be nothing of the
# paper's 400,000. The intervals at equal steps exclude leads as large as the paper's, 0.3 to 0.7, at the later two reads. REPA itself is ahead of the plain SiT at equal steps, and level with it at equal FLOPs.
#
# The grown SiT is a little ahead after a fifth of the training, by accounts A and B, and behind afterwards by all three: a start for those who stop early. All are still far from the
# floor, and the paper's trainings are 400 times as long.
#
# ## A lead that a rate had made
#
# (diffusion-rates)=
# The same study with one rate for all arms, 3e-3, at equal steps:

# %% tags=["remove-input"]
files = {"one rate": analysis.ONE_RATE, "own rates": analysis.FILE}
leads, ends = {}, {}
for name, file in files.items():
    rows = analysis.against_repa(file).query("account == 'steps'")
    leads[name] = over_seeds(rows, ["arm", "read"], "nearer").loc[["REPA + J", "REPA, grown"]]
    ends[name] = rows[rows["read"] == 1.0].groupby("arm")["frechet"].mean()
print(written(leads, digits=2).to_string(), pd.DataFrame(ends).round(1).to_string(), sep="\n\n")

# %% tags=["remove-cell"]
begun = leads["one rate"].loc["REPA + J"].loc[[0.2, 0.5]]
assert (begun["mean"] - begun["half_width"] > 0).all()
assert leads["one rate"].loc[("REPA, grown", 0.2), "mean"] > 0.3
drawn = pd.DataFrame(ends).drop("REPA, grown")
assert (drawn["own rates"] < 0.9 * drawn["one rate"]).all()

# %% [markdown]
# There REPA + J is clearly ahead after a fifth and a half of the steps, and a grown SiT far ahead after a fifth. At three times that rate, which validation pictures choose for SiT, REPA and REPA + J, all three draw
# better pictures, and the leads are gone: they belonged to the slow rate.
#
# ```
# mergebook measure vision8-diffusion-vit_small
# ```
#
# ## When to use it, and when not
#
# **Freeze** $f_P$, or whatever tokens are aligned to. **Count** what it takes to make it, before preferring a start by alignment to more
# steps of REPA. **Report** floor, number of pictures, features and the whole cost with every distance. **Grow** a smaller SiT if there is one:
# this is the SAIL of section 4, and needs no encoder; but look how long its lead lasts.
#
# ## Exercises
#
# ```{exercise} One step (easy)
# :label: ex-diffusion-step
# The data are $-1$ and $1$, each half of the time. What is the exact velocity at $t = 1$? What does one step of Euler's method draw?
# ```

# %% [markdown]
# ````{solution-start} ex-diffusion-step
# :class: dropdown
# ````
# At $t = 1$, $x_1 = \varepsilon$ tells nothing of $x$, so the mean of $\varepsilon - x$ is $\varepsilon - 0$, and one step leads to
# $\varepsilon - \varepsilon = 0$, the mean of the data. In general $\dot x_t = (x_t - \mathbb E[x \mid x_t])/t$ with
# $\mathbb E[x \mid x_t] = \tanh\big((1 - t)\, x_t / t^2\big)$, and many steps find the data.

# %% tags=["nbval-check-output"]


def exact(x, t, labels):
    t = t[:, None]
    return (x - torch.tanh((1 - t) * x / t**2)) / t


for count in (1, 50):
    generator = torch.Generator().manual_seed(SEED)
    points = flow.draw(exact, torch.zeros(500), (1,), steps=count, generator=generator)
    near = float(((points.abs() - 1).abs() < 0.1).float().mean())
    print(f"steps: {count}, largest: {float(points.abs().max()):.1f}, near the data: {near:.0%}")

# %% [markdown]
# ````{solution-end}
# ````
#
# ```{exercise} Does the cosine save it? (medium)
# :label: ex-diffusion-cosine
# REPA uses a cosine, which does not see lengths. Could its target be trained along, then?
# ```

# %% [markdown]
# ````{solution-start} ex-diffusion-cosine
# :class: dropdown
# ````
# No. Equal vectors at all places and for all pictures have a cosine of 1, which is the best there is. What helps is a frozen
# target, or one that follows slowly and is asked through a predictor, as in BYOL.

# %% tags=["nbval-check-output"]
from mergebook.sail.networks.diffusion.alignment import repa_loss

constant = torch.ones(3, 16, 8)
print(f"{float(repa_loss(constant, 2 * constant)):.2f}")

# %% [markdown]
# ````{solution-end}
# ````
#
# ```{exercise} The floor in closed form (hard)
# :label: ex-diffusion-floor
# Two samples of $n$ points each come from $\mathcal N(0, I)$ in $d$ dimensions. Show that their Fréchet distance is about
# $\frac{2d}{n} + \frac{d(d+1)}{2n}$ on average, for large $n$. How many pictures does it take for a floor below 0.1 with $d = 96$?
# ```

# %% [markdown]
# ````{solution-start} ex-diffusion-floor
# :class: dropdown
# ````
# Each mean has the variance $\frac1n$ in each of $d$ dimensions, twice. For covariances $I + A$ and $I + B$ with small $A$ and $B$ the
# second part of {eq}`eq-diffusion-frechet` is $\frac14 \lVert A - B \rVert_F^2$ to second order. Entries of $A$ have variance $\frac1n$ off
# the diagonal and $\frac2n$ on it, together $\frac{d(d - 1) + 2d}{n} = \frac{d(d+1)}{n}$; twice that, times ¼, is the second term. For
# $d = 96$ the sum is $4848/n$: nearly fifty thousand pictures, if features were like that. FIDs are taken with as many.

# %% tags=["nbval-check-output"]
from mergebook.sail.distances import frechet_distance

generator = torch.Generator().manual_seed(SEED)
n, d = 2000, 10
draws = torch.randn(20, 2, n, d, generator=generator)
mean = sum(frechet_distance(*pair) for pair in draws) / 20
print("within a tenth:", abs(mean / (2 * d / n + d * (d + 1) / (2 * n)) - 1) < 0.1)

# %% [markdown]
# ````{solution-end}
# ````
#
# ## Summary
#
# * Appendix J merges nothing and transforms nothing: its start is alignment alone, and its loss has one more term.
# * A flow model learns mean velocities between data and noise, and draws by going back along them.
# * An alignment whose target is trained collapses; a low loss is no evidence.
# * $f_P$, made for clean latents, knows little of the noisy ones that Eq. 16 gives it.
# * A Fréchet distance is one of features, of a number of pictures, and above a floor.
# * At equal steps REPA + J is level with REPA if each has its own rate; at equal cost it is behind throughout. With one rate for all it had seemed ahead.
# * The paper's table counts iterations alone, and marks a rise of sFID as a fall.
#
# ## References
#
# All sources are in the [](../book/bibliography).
