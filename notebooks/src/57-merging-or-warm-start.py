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
# # Merging or warm start?

# %% tags=["parameters", "remove-cell"]
SUITE = "tinyshakespeare"
PROFILE = "default"
SEED = 0
DEVICE = "cpu"

# %% tags=["remove-cell"]
import matplotlib.pyplot as plt
import pandas as pd
from IPython.display import Markdown, display

from mergebook import ledger, plots
from mergebook.lab.results import load_result, load_table
from mergebook.lab.statistics import over_seeds, plus_minus
from mergebook.sail import claims as sail
from mergebook.sail.read import arms, factorial, spirals

plots.use_style()


def text(row, digits=2):
    """Format a mean with its interval across seeds."""
    return plus_minus(row["mean"], row["half_width"], digits).replace("-", "−")


# %% tags=["remove-cell"]
pictured, halves, texts = arms.pictured(), arms.halved(), arms.starts()
points = (
    spirals.compared().replace({"method": {"theorem": "SAIL"}}).rename(columns={"method": "arm"})
)
STUDIES = {
    "GPT, width 48": texts[texts["size"] == "half wider"],
    "GPT, width 64": texts[texts["size"] == "twice"],
    "ResNet, two kinds of images": pictured[pictured["size"] == "deeper"],
    "ResNet, halves of classes": halves[halves["size"] == "half wider"],
    "the same, BYOL": arms.unlabelled_lasting(),
    "two spirals, random points": points[points["reading"] == "random"],
}
parts = []
for name, table in STUDIES.items():
    table = table[table["start"] == "shared"]
    where = ["seed", *(["target"] if "target" in table else [])]
    wide = table.pivot(index=where, columns="arm", values="loss")
    whole = wide.columns[wide.notna().all()]
    above = wide[whole].sub(wide["nearest source"], axis=0).groupby("seed").mean()
    parts.append(above.reset_index().melt("seed", value_name="nats").assign(study=name))
verdict = pd.concat(parts)
means = over_seeds(verdict, ["study", "arm"], "nats")

# %% tags=["remove-cell"]
KEYS = ["modality", "factor", "effect"]
both = {
    account: over_seeds(factorial.effects(account), KEYS, "loss").sort_index()
    for account in ("A", "B")
}
effects = both["B"]
leads = factorial.leads()
saved = over_seeds(leads, ["modality", "maps", "sources", "start"], "saved").sort_index()
lead = over_seeds(leads, ["modality", "maps", "sources", "start"], "lead").sort_index()
ONE, ALIKE = ("mean", 1, "shared"), (factorial.ALIKE, 0, "")

# %% tags=["remove-input"] mystnb={"figure": {"caption": "Training from scratch ends far above the nearest source alone, grown to the target's size; SAIL and the uniform average end close to it. Test loss at equal cost above that of the nearest source, in nats; zero is the nearest source. Means and 95 % intervals across seeds (30 for the spirals, 5 else), averaged over targets; all sources of a study share their initialisation. Two descriptions of the spirals, under which sources cannot do the task, are left out ([](52-sail-spirals)).", "name": "fig-warm-verdict"}, "image": {"alt": "Six rows with three marks each. Scratch lies 0.08 to 0.45 nats right of zero. SAIL lies at 0.01 to 0.03 for GPTs and spirals, at 0.06 for ResNets on halves, at 0.01 by BYOL, and at minus 0.03 for ResNets on two kinds of images. The uniform average, where measured, is slightly right of SAIL."}}
looks = {
    "SAIL": ("SAIL", plots.BLUE, "o"),
    "uniform": ("uniform average", plots.SKY, "s"),
    "scratch": ("training from scratch", plots.BLACK, "D"),
}
fig, ax = plt.subplots(figsize=(6.9, 3.4))
style = {"looks": looks, "names": [*STUDIES], "capsize": 2, "gap": 0.22}
plots.intervals(ax, verdict, value="nats", at="study", by="arm", **style)
ax.axvline(0, color=plots.ORANGE, lw=2)
ax.set(xlabel="nats above the nearest source alone", xlim=(-0.12, 0.62))
ax.legend(fontsize=11, loc="lower right")
title = "The warm start helps; averaging in a second source does not"
fig.suptitle(title, fontsize=13, weight="bold", x=0.01, ha="left")
plt.show()

# %% tags=["remove-input"]
display(
    Markdown(f"""
* **The gain comes from the warm start.** At equal cost, training from scratch ends
  {text(means.loc[("GPT, width 48", "scratch")])} nats above the nearest source alone on GPTs and
  {text(means.loc[("ResNet, two kinds of images", "scratch")])} to {text(means.loc[("ResNet, halves of classes", "scratch")])} on ResNets.
* **The second source adds cost, and loss on GPTs.** Over five kinds of growth, two merged sources end
  {text(both["A"].loc[("GPT", "merging", "shared")], 3)} nats above one on GPTs after equal steps.
* **Scale explains little.** Random weights with the scale of the grown network save
  {text(saved.loc[("GPT", *ALIKE)], 0)} steps on GPTs, one trained source {text(saved.loc[("GPT", *ONE)], 0)}.
""")
)

# %% [markdown]
# **Use it when** you decide how to initialise a network from smaller trained ones. **You need first:** [](54-sail-text)
# and [](50-growing). **Time:** 10 minutes to read, a quarter of a minute to run.
#
# ## The question and its scale
#
# SAIL's initialisation {cite}`anonymous2025structured` differs from random weights in three ways: it was trained, two
# networks are averaged, and maps bring them to a larger shape. The paper compares it with random weights, soups and LiGO,
# never with one exactly grown source. We add that baseline everywhere and vary each part alone.
#
# Our GPTs and diffusion models are 140 to 5,000 times smaller than the paper's, our ResNets 28 to 64 times smaller than a
# standard ResNet-18. Only the spirals and {ref}`one run of GPTs <text-full>` have the paper's size. A verdict "does not
# hold here" speaks of these sizes.

# %% tags=["remove-cell"]
from mergebook.sail.measure.training import Plan
from mergebook.suites.models import GPT, ResNet


def size(network):
    return sum(p.numel() for p in network.parameters())


letters = Plan().vocabulary
ours = [size(GPT(w, d, 4, vocabulary=letters, context=64)) for w, d in ((64, 4), (48, 3))]
assert [round(30.4e6 / each, -1) for each in ours] == [140, 320]
assert round(1e9 / ours[0], -3) == 5000
nets = [size(ResNet(w, b)) for w, b in ((12, [2] * 4), (8, [2] * 4))]
assert [round(11.2e6 / each) for each in nets] == [28, 64]
assert (means.xs("scratch", level="arm")["mean"] > 0.07).all()
sure = means.eval("mean > half_width").xs("SAIL", level="arm")
assert sure["GPT, width 48"]
assert sure["GPT, width 64"]
assert sure["two spirals, random points"]

# %% [markdown]
# ## What theory promises
#
# (warm-theory)=
# Theorem 2's bound of the excess loss shrinks by the factor $1 - \eta\mu$ per step ([](51-proximal-parameters)). In this bound an initialisation
# with half of another's excess loss, as in appendix C, saves
#
# $$
# \frac{\ln 2}{-\ln(1 - \eta\mu)} \le \kappa \ln 2 \ \text{steps}, \qquad \kappa = \frac{L}{\mu}, \quad \eta = \frac 1L ,
# $$ (eq-warm-saved)
#
# whatever loss is aimed at. The saving is a number of steps, not a factor, as the appendix says itself: "as T increases, this advantage cannot always
# be relied upon".
#
# ## One factor at a time
#
# (warm-factorial)=
# The study `factorial` crosses the number of sources (the nearest, or both with Theorem 3's weight), their initialisation (the same,
# separate, separate and then matched by Git Re-Basin) and the maps (mean padding, copies, LiGO's learned maps, random factors). The targets are
# GPTs of width 64 on a mixture of two texts, and ResNets of width 12 on CIFAR-10. Their sources learned photographs and rendered scripts, or two
# halves of 180 classes. Losses are compared after equal FLOPs, learned maps and distances included.

# %% tags=["remove-input"] mystnb={"figure": {"caption": "A second source is never detectably better than one, and random factors, which keep singular values but no function, are far worse than maps that keep it. Change in test loss at equal cost, with the other factors averaged over: two sources less one (first three rows), and maps less mean padding (the rest). Right is worse. Means and 95 % intervals over five seeds.", "name": "fig-warm-effects"}, "image": {"alt": "Rows of up to three marks. Second source: GPT at 0.02 to 0.04, ResNet near zero, ResNet halves at 0.01 with the same initialisation and at 0.06 with separate ones. Copies lie 0.01 to 0.02 right of zero, LiGO per source 0.08 for GPT, joint LiGO near 0.01, and random factors at 0.14 to 0.2."}}
EFFECTS = {
    ("merging", "shared"): "2nd source, same init.",
    ("merging", "own"): "2nd source, separate init.",
    ("merging", "re-basin"): "2nd source, Re-Basin",
    ("maps", "replicate"): "copies",
    ("maps", "LiGO joint"): "LiGO, learned jointly",
    ("maps", "LiGO alone"): "LiGO, per source",
    ("maps", "svd_random"): "random factors",
}
shown = factorial.effects()
shown["row"] = [EFFECTS.get(pair) for pair in zip(shown["factor"], shown["effect"])]
networks = {"GPT": "GPT", "ResNet": "ResNet, two kinds", "ResNet, halves": "ResNet, halves"}
shades = (plots.BLUE, plots.ORANGE, plots.VERMILION)
looks = {
    key: (name, shade, mark) for (key, name), shade, mark in zip(networks.items(), shades, "osD")
}
fig, ax = plt.subplots(figsize=(6.9, 3.9))
style = {"looks": looks, "names": [*EFFECTS.values()], "capsize": 2, "gap": 0.2}
plots.intervals(ax, shown.dropna(subset="row"), value="loss", at="row", by="modality", **style)
ax.axvline(0, color=plots.BLACK, lw=1)
ax.set(xlabel="change in test loss, nats")
ax.legend(fontsize=11, loc="upper right")
fig.suptitle("No kind of second source helps", fontsize=13, weight="bold", x=0.01, ha="left")
plt.show()

# %% tags=["remove-input"]
free, paid = both["A"]["mean"]["GPT", "merging"], both["B"]["mean"]["GPT", "merging"]
display(
    Markdown(f"""
**Merging.** Two sources end {paid.min():.2f} to {paid.max():.2f} nats above one on GPTs. After equal steps, with costs ignored, the
difference is {free["re-basin"]:.3f} to {free["own"]:.3f}; the rest is what LiGO's maps cost more for two sources. On the ResNets with two kinds of
sources no difference is detectable ({text(effects.loc[("ResNet", "merging", "shared")])}). On halves it is
{text(effects.loc[("ResNet, halves", "merging", "shared")])} with the same initialisation and
{text(effects.loc[("ResNet, halves", "merging", "own")])} with separate ones. Git Re-Basin brings back
{text(-effects.loc[("GPT", "start", "re-basin less own")] * [1, -1], 3)} nats on GPTs and nothing detectable on ResNets.

**Maps.** Copies end {text(effects.loc[("GPT", "maps", "replicate")], 3)} nats above mean padding on GPTs. LiGO's maps gain
{-both["A"].loc[("GPT", "maps", "LiGO joint"), "mean"]:.3f} nats at equal steps if they are learned jointly, and nothing detectable at equal
cost. Learned for each source alone, they cost {text(effects.loc[("GPT", "maps", "LiGO alone")])} nats.
""")
)

# %% [markdown]
# ## Steps saved
#
# (warm-saved)=
# Against scratch, which trains three to four times as long, the number of steps saved grows as the goal gets harder.

# %% tags=["remove-input"] mystnb={"figure": {"caption": "The harder the goal, the more steps are saved. Steps saved over training from scratch by the test loss aimed at, from easy to hard. Means and 95 % intervals over the seeds in which both reach it, at least four of five; dotted where an initialisation is there by the first reading.", "name": "fig-warm-saved"}, "image": {"alt": "Left, GPTs: steps saved rise ever more steeply to about 700 for one source and 600 for two, to about 380 for random factors, and to about 170 for random weights of the grown scale. Right, ResNets on halves: they rise to about 200 with wide intervals for one and for two sources; random factors stay near zero."}}
looks = {
    (1, "shared", "mean"): ("one source", plots.ORANGE, "-"),
    (2, "shared", "mean"): ("two sources", plots.BLUE, "--"),
    (1, "shared", "svd_random"): ("random factors", plots.GREEN, ":"),
    (0, "", factorial.ALIKE): ("random weights, grown scale", plots.SKY, "-."),
}
cell = ["sources", "start", "maps"]
curves = factorial.saved().query("often")
begun = curves.groupby(["modality", *cell, "goal"])["begun"].transform("mean") > 0.5
dotted = {key: (None, shade, ":") for key, (_, shade, _) in looks.items()}
fig, axes = plt.subplots(1, 2, figsize=(6.9, 3.5))
style = {"x": "goal", "y": "saved", "by": cell}
for ax, modality in zip(axes, ("GPT", "ResNet, halves")):
    own = curves["modality"] == modality
    early = curves[own & begun].groupby([*cell, "goal"])["saved"].mean().reset_index()
    plots.series(ax, early, looks=dotted, lw=1, **style)
    plots.series(ax, curves[own & ~begun], looks=looks, band=True, lw=1.8, **style)
    ax.set(xlabel="test loss aimed at, nats")
    ax.set_title(modality, fontsize=12, weight="normal")
    ax.invert_xaxis()
axes[0].set_ylabel("steps saved")
plots.legend_outside(fig, ncols=2, fontsize=11)
fig.suptitle("A harder goal saves more steps", fontsize=13, weight="bold", x=0.01, ha="left")
plt.show()

# %% tags=["remove-input"]
SHOWN = {
    ("one source", *ONE): "one source",
    ("two sources", "mean", 2, "shared"): "two sources, same initialisation",
    ("two", "mean", 2, "own"): "two sources, separate initialisations",
    ("random", "svd_random", 1, "shared"): "one source, random factors",
    ("scale", *ALIKE): "random weights, scale of the grown network",
    ("usual", factorial.USUAL, 0, ""): "scratch, not tuned",
}
rows = {}
for (_, *where), name in SHOWN.items():
    for modality, words in networks.items():
        key = (modality, *where)
        if key in saved.index:
            rows.setdefault(name, {})[words] = text(saved.loc[key], 0)
pd.DataFrame.from_dict(rows, orient="index").fillna("–").rename_axis(
    "steps saved at the lowest common loss"
)

# %% tags=["remove-input"]
usual = saved.loc[("GPT", factorial.USUAL, 0, "")]
display(
    Markdown(f"""
On GPTs one source starts at the loss that scratch has after {lead.loc[("GPT", *ONE), "mean"]:.0f} steps, and saves
{saved.loc[("GPT", *ONE), "mean"]:.0f} in the end. On ResNets, whose heads are new, it has no lead at the start and still saves about
{saved.loc[("ResNet, halves", *ONE), "mean"]:.0f} to {saved.loc[("ResNet", *ONE), "mean"]:.0f}. What was learned changes the pace of
training, not only the starting point. A speed-up factor therefore depends on the goal and must not be quoted without it.

**Learned features, not the scale of weights.** Random weights with the mean and standard deviation of each grown tensor save
{text(saved.loc[("GPT", *ALIKE)], 0)} steps. Scratch is at its own best scale and learning rate here; untuned, it needs
{-usual["mean"]:.0f} steps more, which SAIL would be credited for. Random factors keep the inner products of token embeddings, which may be why they
save steps on GPTs; on halves they save none detectably.
""")
)

# %% [markdown]
# ## More sources, checkpoints, a larger source
#
# (warm-several)=
# Eq. 12 weighs any number of sources, and the paper's Table 2 merges three checkpoints of one training with a larger network. Here four GPTs of width 32
# are trained on one text each. The target mixes these texts in shares of 40, 30, 20 and 10 %.

# %% tags=["remove-cell"]
several = load_table("tinyshakespeare-several_sources", "curves").query("step == 200")
keys = ["start", "seed"]
nearest = several[several["arm"] == "nearest"].set_index(keys)["judge"].rename("nearest")
several = several.join(nearest, keys)
several["above"] = several["judge"] - several["nearest"]
several["row"] = several["arm"] + several["sources"].astype(str)
above = over_seeds(several, ["start", "row"], "above")
weights = load_table("tinyshakespeare-several_sources", "weights").query("sources == 4")

# %% tags=["remove-input"] mystnb={"figure": {"caption": "Two to four sources end within 0.03 nats of the nearest source alone; training that source as long as all four together gains 0.18. Test loss after 200 steps on a mixture of four texts, less that of the nearest source. Means and 95 % intervals across eight seeds.", "name": "fig-warm-several"}, "image": {"alt": "Ten rows. Two, three and four sources with Theorem 3's weights and with uniform ones lie within 0.02 nats of zero, with the same and with separate initialisations. The mean of three checkpoints is at zero and with a larger source at 0.01; the larger source alone is at 0.04 with a wide interval. The nearest source that is trained longer is at minus 0.18."}}
RULES = {"theorem": "Theorem 3", "uniform": "uniform"}
ROWS = {f"{rule}{n}": f"{n} sources, {RULES[rule]}" for n in (2, 3, 4) for rule in RULES} | {
    "checkpoints3": "three checkpoints, averaged",
    "larger1": "a larger source, shrunk",
    "checkpoints, larger4": "these four, averaged",
    "longer1": "nearest, trained longer",
}
looks = {
    "shared": ("same initialisation", plots.BLUE, "o"),
    "own": ("separate initialisations", plots.ORANGE, "s"),
}
fig, ax = plt.subplots(figsize=(6.9, 4.2))
style = {"looks": looks, "names": ROWS, "capsize": 2, "gap": 0.25}
plots.intervals(ax, several, value="above", at="row", by="start", **style)
ax.axvline(0, color=plots.BLACK, lw=1)
ax.set(xlabel="nats above the nearest source alone")
ax.legend(fontsize=11, loc="center left")
title = "Training one source longer beats merging four"
fig.suptitle(title, fontsize=13, weight="bold", x=0.01, ha="left")
plt.show()

# %% tags=["remove-input"]
off = (weights["theorem"] - weights["share"]).abs()
assert above["mean"].drop(["scratch0", "longer1", "larger1"], level="row").abs().max() < 0.03
display(
    Markdown(f"""
Theorem 3 finds the texts' shares within {off.max():.2f}, and its average of four sources ends {text(above.loc[("shared", "theorem4")], 3)} nats above the nearest
source. The nearest source ends {text(-above.loc[("shared", "longer1")] * [1, -1], 3)} nats lower if it is trained as long as all four together. Checkpoints of one training share
their data, so Theorem 3 does not choose between them.
""")
)

# %% [markdown]
# ## What the initialisation costs
#
# (warm-sources)=
# Sources are free only if somebody else trained them. In steps of the target's training, a GPT source costs 156 and a ResNet source 207. On GPTs one
# source still ends ahead of scratch with its training counted (2.23 against 2.57 nats); two use up the whole budget of 300
# steps. On ResNets one source only breaks even.
#
# (warm-seconds)=
# FLOPs flatter learned maps. On one thread their seconds exceed their FLOPs by factors of 1.2 to 1.7 on ResNets and of 1.7 to 3.2 on GPTs.

# %% tags=["remove-cell"]
flops = factorial.curves().groupby(["modality", "sources"])[["source_flops", "step_flops"]].first()
paid_steps = (flops["source_flops"] / flops["step_flops"]).round()
assert paid_steps["GPT", 1] == 156
assert paid_steps["ResNet", 1] == paid_steps["ResNet, halves", 1] == 207
assert paid_steps["GPT", 2] > 300
ends = factorial.ends()
by_c = ends[ends["modality"] == "GPT"].groupby(["maps", "sources"])["C"].mean().round(2)
assert (by_c["mean", 1], by_c["scratch", 0]) == (2.23, 2.57)
last = factorial.saved().query("often and modality == 'ResNet' and maps == 'mean'")
last = last.groupby(["sources", "start", "goal"])["C"].mean().groupby(["sources", "start"]).first()
assert abs(last[1, "shared"]) < 0.2
timed = (
    pd.DataFrame(load_result("starts-speed")["starts"]).set_index(["modality", "arm"]).sort_index()
)
slower = timed["in_steps"] / timed["flops_in_steps"]
learned = slower[slower.index.get_level_values("arm").str.contains("LiGO|learned|distilled")]
assert learned["GPT"].between(1.7, 3.2).all()
assert learned["ResNet, halves"].between(1.2, 1.7).all()

# %% [markdown]
# ## What to do
#
# * **Start from the nearest source alone**, grown by maps that keep its function ([](50-growing)). If there are two, train each for a
#   few steps before choosing, because the distance can name the wrong one ([](53-sail-vision)).
# * **Merge** only sources that share their initialisation if neither is known to be nearer. Expect no gain.
# * **Report** steps saved over all goals, a tuned scratch, random weights of the same scale, one source alone, and what is
#   counted as cost.
#
# ## What the paper claims and what we measured
#
# | ledger | claim of the paper | verdict here | why |
# |---|---|---|---|
# | S1 | faster than training from scratch | mixed | holds on GPTs and ResNets; fails on spirals whose sources cannot do the task |
# | S17 | carries over to larger targets | holds | three further sizes, all faster |
# | S16 | merging several sources beats one | does not hold here | behind on GPTs and halves; no detectable difference with two kinds of images or BYOL |
# | S6 | beats scratch, soups and LiGO | mixed | after equal steps ahead of scratch and uniform, behind LiGO and greedy soup |
# | S10 | ends at least as well as scratch | mixed | fails on the same spirals |
# | S2 | the best weight is that of Theorem 3 | does not hold here | fails on one of eight curves; the others could not show it |
# | S19 | distillation adds to SAIL | does not hold here | one recipe |
# | S8 | in diffusion, better images than REPA | undecided | no detectable difference at equal steps |
#
# The [ledger](59-sail-claims) has every check with its interval.
#
# ```{admonition} Where each item of the paper is
# :class: dropdown
#
# | paper | here |
# |---|---|
# | Fig. 1, App. K, Fig. 8 and 9 | [](52-sail-spirals) |
# | Section 2, Proposition 1, Eq. 1 | {ref}`one-class sources <spirals-constant>` |
# | Definition 1, Eq. 2–4; Theorems 1–4; Eq. 5–7, 10–13; Lemmas 1, 2; App. A–E | [](51-proximal-parameters), measured: {ref}`spirals <spirals-nearer>`, {ref}`text <text-nearness>` |
# | Eq. 8, 9; App. F | [](50-growing) |
# | Section 4.3, Table 2, Fig. 7, App. I | {numref}`fig-text-arms`, {numref}`fig-text-curves`, {ref}`arithmetic <text-benchmarks>`, {numref}`fig-warm-several` |
# | Section 4.4, Fig. 2a, Fig. 4 | {numref}`fig-text-thirds` |
# | Fig. 2b, γ* = −0.1244 | {numref}`fig-text-sweep`, {numref}`fig-text-kernels` |
# | Fig. 2c | {ref}`overlap <text-overlap>` |
# | Fig. 2d | {ref}`another corpus <text-crossing>` |
# | Table 1 | {ref}`rates <text-rates>` |
# | Section 4.5, Fig. 3, 5, 6 | {numref}`fig-vision-accuracy`, {ref}`labels and BYOL <vision-unlabelled>` |
# | App. G | distillation in {numref}`fig-text-arms` |
# | App. J, Eq. 14–16, Tables 3 and 4 | [](56-sail-diffusion) |
# ```
#
# ## Check against known values
#
# Grown weights that keep the function begin at the source's loss.

# %% tags=["hide-input", "nbval-check-output"]
import torch

from mergelib.sail import grow

small, large = (GPT(*each, vocabulary=20, context=12) for each in ((8, 2, 2), (16, 2, 4)))
grown = grow(small, large, width="mean", generator=torch.Generator().manual_seed(SEED))
large.load_state_dict(grown)
tokens = torch.arange(12)[None]
print("kept:", torch.allclose(small(tokens), large(tokens), atol=1e-5))

# %% tags=["remove-cell"]
HELD = {"S17": "holds", "S8": "undecided"} | dict.fromkeys(("S1", "S6", "S10"), "mixed")
HELD |= dict.fromkeys(("S16", "S2", "S19"), "does not hold here")
found, _ = ledger.judge([claim for claim in sail.CLAIMS if claim.key in HELD])
assert found.set_index("claim")["verdict"].to_dict() == HELD

# %% [markdown]
# ## Exercises
#
# ```{exercise} Another goal (easy)
# :label: ex-warm-goal
# An initialisation saves 200 steps at every goal. What is its speed-up over scratch where scratch takes 250 steps, and where it
# takes 4,000?
# ```

# %% [markdown]
# ````{solution-start} ex-warm-goal
# :class: dropdown
# ````
# Five, and 1.05: the ratio of all steps to those that are left.

# %%
for scratch in (250, 4000):
    print(f"{scratch} steps: {scratch / (scratch - 200):.2f}")

# %% [markdown]
# ````{solution-end}
# ````
#
# ```{exercise} A power law (medium)
# :label: ex-warm-power
# Losses of networks often fall as $J - J^* = T^{-a}$. One initialisation is $T_0$ steps ahead on this curve. Another has half of
# scratch's excess loss at every step. How many steps does each save, and which has a constant factor?
# ```

# %% [markdown]
# ````{solution-start} ex-warm-power
# :class: dropdown
# ````
# The first always saves $T_0$ steps. The second reaches an excess loss $g$ where $\frac12 T^{-a} = g$, after $2^{-1/a}$ of
# scratch's $g^{-1/a}$ steps. So its factor $2^{1/a}$ is constant, and the steps it saves grow with the goal. Savings that grow
# show a faster rate, not only a lead.

# %%
power = 0.5
for goal in (0.1, 0.01):
    scratch, half = goal ** (-1 / power), (2 * goal) ** (-1 / power)
    print(f"{scratch:.0f} steps against {half:.0f}: {scratch / half:.0f} x")

# %% [markdown]
# ````{solution-end}
# ````
#
# ## Summary
#
# * One source, grown and trained on, gives nearly all of what SAIL gives; a second one adds cost and, on GPTs, loss.
# * The gain is learned: random weights of the same scale give a small part of it on GPTs.
# * Steps saved grow with the goal, so a factor needs its goal, and a tuned scratch.
