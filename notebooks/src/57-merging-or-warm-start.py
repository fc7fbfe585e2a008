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
#
# **In one sentence:** what helps is the warm start, and not the scale of its weights. At equal cost two merged sources end behind one in text, and level with it or behind on
# pictures; and what a start saves is no constant number of steps, as theory suggests.
#
# SAIL's start {cite}`anonymous2025structured` differs from scratch in three ways at once: something has been learned, two networks are averaged, and maps
# bring them to a larger shape. Chapters [53](53-sail-vision) and [55](55-sail-larger-gpts) compare such starts as wholes. Here each part varies by itself.
#
# **After this chapter you can**
#
# * say how many steps a warm start saves in theory, and why no factor follows;
# * read a speed-up over all losses aimed at, not at one;
# * tell what merging, maps and shared starts each add.
#
# **Before you start:** [](55-sail-larger-gpts). **Time:** 7 minutes to read, ten seconds to run.

# %% tags=["parameters", "remove-cell"]
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
# *whatever* loss is aimed at. The appendix says so itself: "as T increases, this advantage cannot always be relied upon". A constant number of steps is no constant factor: the longer the way, the less it counts. On quadratics all is
# exact, and excess falls as $(1 - \eta h)^{2T}$ along a direction of curvature $h$, twice as fast as the bound. Here are two directions, and sixty, both with $\kappa = 200$:

# %%
import numpy as np

from mergebook.sail.measure.arms import MAPS
from mergebook.sail.read import factorial as analysis
from mergebook.sail.theory import steps_saved

losses = {"two curvatures": [1, 0.005], "many curvatures": np.geomspace(0.005, 1, 60)}
theory = analysis.halved(losses, np.geomspace(0.2, 1e-4, 40))
print("bound:", round(steps_saved(0.5, 1.0, 0.005)), "steps; on quadratics half of it")
print(theory[theory["goal"].isin([0.2, 1e-4])].to_string(index=False, float_format="{:.3g}".format))

# %% tags=["hide-input"] mystnb={"figure": {"caption": "Gradient descent on two quadratics, from a start and from one with half its excess loss: steps saved, and the ratio of steps, by the excess aimed at.", "name": "fig-warm-quadratics"}, "image": {"alt": "Left: with two curvatures 69 steps are saved at every goal; with many the number rises from 20 towards the same. Right: both ratios fall from about four to 1.1."}}
import matplotlib.pyplot as plt

from mergebook import plots

plots.use_style()
looks = {"two curvatures": ("two curvatures", plots.BLUE, "-")}
looks |= {"many curvatures": ("many curvatures", plots.VERMILION, "--")}
fig, axes = plt.subplots(1, 2, figsize=(8.4, 3.3))
for ax, (value, text) in zip(axes, {"saved": "steps saved", "factor": "ratio of steps"}.items()):
    plots.series(ax, theory, x="goal", y=value, by="loss", looks=looks, lw=1.8)
    ax.set(xscale="log", xlabel="excess loss aimed at", ylabel=text, ylim=(0, None))
    ax.invert_xaxis()
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
# Random factors keep a weight's singular values ([](50-growing)), and of the tables of tokens and positions, which are mapped on one side alone, the inner products of all rows as well. There are GPTs twice as wide and deep on characters, and ResNets half wider and twice as deep on
# CIFAR-10, once with sources that know photographs and scripts (`ResNet`), and once with the two halves of [](53-sail-vision) (`ResNet, halves`); five seeds of each.
# LiGO's maps are learned for as many steps as the ResNets are trained, so they are tried on GPTs alone. Rates were tuned for each kind of maps on other seeds, with a shared
# start, but for `ResNet`, where all have one, at which scratch was not at its best. GPTs from scratch have the best rate and scale of their initial weights ([](text-lasting)), and a last
# control has random weights with the scale of SAIL's grown ones, tensor by tensor. Scratch trains on for three or four times as long as the others, since else it never
# comes to a loss that they do not begin with.
#
# ## Steps saved
#
# (warm-saved)=
# How far a start's loss lies on scratch's way is its *lead*. Theory promises little more than that. At the lowest loss that both reach, this is what was saved:

# %% tags=["remove-input"]
from mergebook.lab.statistics import over_seeds, written

leads = analysis.leads()
kinds = ["mean", "svd_random", analysis.ALIKE, analysis.USUAL]
shown = leads[leads["maps"].isin(kinds) & (leads["start"] != "re-basin")]
by = ["modality", "maps", "sources", "start"]
columns = {name: over_seeds(shown, by, name) for name in ("lead", "saved", "factor")}
print(written({name: columns[name] for name in ("lead", "saved")}).to_string())

# %% tags=["remove-input"] mystnb={"figure": {"caption": "Steps saved against scratch (left) and log₂ of the ratio of FLOPs by account B (right), by the test loss aimed at, from easy to hard. Means and 95 % intervals over the seeds where both get there, at least four of five; dotted where a start is there already.", "name": "fig-warm-saved"}, "image": {"alt": "Above, GPTs: lines of steps saved rise ever more steeply, from 50 to about 700 steps; random factors to 380; random weights of the grown scale rise to 160 to 190 and stay there. Factors rise to more than twenty and fall after that, for two sources to about four. Below, ResNets with either kind of sources: steps saved rise to about 200, with wide intervals; factors rise to between three and seven and stay. Random factors are near zero."}}
cell = ["sources", "start", "maps"]
looks = {
    (1, "shared", "mean"): ("one source", plots.ORANGE, "-"),
    (2, "shared", "mean"): ("two, shared start", plots.BLUE, "--"),
    (2, "own", "mean"): ("two, own starts", plots.VERMILION, "-."),
    (1, "shared", "LiGO alone"): ("one, LiGO", plots.PINK, "--"),
    (1, "shared", "svd_random"): ("one, random factors", plots.GREEN, ":"),
    (0, "", analysis.ALIKE): ("random weights, grown scale", plots.SKY, "-"),
}
dotted = {key: (None, shade, ":") for key, (_, shade, _) in looks.items()}
table = analysis.saved().query("often")
shares = table.groupby(["modality", *cell, "goal"])["begun"].transform("mean")
table = table.assign(at_once=shares > 0.5)
fig, axes = plt.subplots(3, 2, figsize=(9.2, 9.4))
for row, (modality, part) in zip(axes, table.groupby("modality", sort=False)):
    for ax, (value, text) in zip(row, {"saved": "steps saved", "B": "log₂ factor"}.items()):
        early = part[part["at_once"]].groupby([*cell, "goal"])[value].mean().reset_index()
        plots.series(ax, early, x="goal", y=value, by=cell, looks=dotted, lw=1)
        late = part[~part["at_once"]]
        plots.series(ax, late, x="goal", y=value, by=cell, looks=looks, band=True, lw=1.8)
        ax.axhline(0, color=plots.BLACK, lw=1)
        ax.set(title=modality, xlabel="test loss aimed at, nats", ylabel=text)
        ax.invert_xaxis()
plots.legend_outside(fig, ncols=5, fontsize=10)
plt.show()

# %% tags=["remove-cell"]
import torch

from mergebook.suites.models import GPT
from mergelib.sail import grow

torch.manual_seed(SEED)
small, large = (GPT(*size, vocabulary=20, context=12) for size in ((8, 2, 2), (16, 2, 4)))
state = grow(small, large, width="svd_random", generator=torch.Generator().manual_seed(SEED))
for key in ("token_embed.weight", "pos_embed"):
    own, mapped = small.state_dict()[key], state[key]
    assert torch.allclose(mapped @ mapped.T, own @ own.T, atol=1e-6)
key = "blocks.0.fc1.weight"
own = torch.linalg.svdvals(small.state_dict()[key])
assert torch.allclose(torch.linalg.svdvals(state[key])[: len(own)], own, atol=1e-5)

# %% tags=["remove-cell"]
lead, gain, ratio = (columns[name]["mean"].sort_index() for name in ("lead", "saved", "factor"))
one, random = (("mean", 1, "shared"), ("svd_random", 1, "shared"))
alike = (analysis.ALIKE, 0, "")
assert 455 < lead["GPT"][one] < 465 < 710 < gain["GPT"][one] < 720
for modality in ("ResNet", "ResNet, halves"):
    assert columns["lead"].loc[modality].sum(axis=1).max() < 10
assert 245 < gain["ResNet"][one] < 255
assert 175 < gain["ResNet, halves"][one] < 185
assert gain["ResNet, halves"]["svd_random"].max() < 30
few = columns["saved"].loc["ResNet, halves"].loc["svd_random"]
assert (few["mean"] < few["half_width"]).all()
assert 8.5 < lead["GPT"][random] < 9.5
assert 390 < gain["GPT"][random] < 400
scale = columns["saved"].loc["GPT"].loc[alike]
assert 165 < scale["mean"] < 170
assert scale["mean"] - scale["half_width"] < 5
assert gain["ResNet"]["svd_random"].max() < 65
assert 4 < ratio["GPT"]["mean"][2].min() < ratio["GPT"]["mean"][2].max() < 4.5
usual = columns["saved"].loc["GPT"].loc[analysis.USUAL, 0, ""]
assert usual["mean"] < -150

# %% tags=["remove-cell"]
curve = table.groupby(["modality", "maps", "sources", "start", "goal"])[["saved", "A"]].mean()
curve = curve.sort_index()
for modality, start in [(name, start) for name in analysis.RESULTS for start in ("shared", "own")]:
    part = curve.loc[modality, "mean", 2, start]
    assert part["saved"].reset_index().corr("spearman").iloc[0, 1] < -0.98
    assert modality != "GPT" or 4.3 < part["A"].max() < 5
assert (curve.loc["GPT", "mean", 1, "shared"]["saved"].diff().dropna() < 0).all()
for modality in ("ResNet", "ResNet, halves"):
    late = curve.loc[modality, "mean"].query("goal < 1.7")["A"]
    assert late.between(1.4, 2.8).all()

# %% [markdown]
# **Steps saved are not constant: they grow wherever we look.** On GPTs one source begins where scratch is after 460 steps, and has saved 720 in the end. On ResNets, whose heads are new, no
# start has a lead in loss to speak of, and one source saves about 200 steps. What has been learned changes the pace, not only the place. Factors do not simply fall, either. Below the loss that a start begins with any
# start seems ever faster. Beyond it, factors of two sources fall on GPTs from more than twenty to about four; on ResNets they stay between three and seven, as for a power law (second exercise). Scratch's
# steps end there: what follows is open.
#
# **What helps is what has been learned, not its scale.** Random weights with the scale of SAIL's grown ones save 170 steps against scratch at its best, with an interval that reaches almost to zero, where one source saves 720.
# An untuned scratch would have hidden this: it takes 165 steps more than the tuned one to the lowest loss that both reach. Random factors keep no function, and begin where scratch is after nine steps, but they are more than a scale: they keep
# the inner products of tokens and of positions that the source has learned. They save 400 steps on GPTs. On halves, where heads and inputs are new, they save nothing that five seeds can show.
#
# ## Sources, starts, maps
#
# (warm-effects)=
# At equal cost: each cell's loss when it has spent what scratch spends in as many steps as the others take, distances and learned maps counted (account B).

# %% tags=["remove-input"] mystnb={"figure": {"caption": "Test loss at equal cost (account B) above that of one source by mean padding, same seed. Means and 95 % intervals over five seeds.", "name": "fig-warm-cells"}, "image": {"alt": "GPT: one source by mean padding is lowest, and every pair of maps and start with two sources lies above zero, re-basin nearest to one source; LiGO learned for each source alone is a tenth above for two sources, random factors lie 0.15 above. ResNet: copies and mean padding are within two hundredths of zero, random factors 0.17 above. ResNet, halves: two sources lie above zero, by two hundredths with a shared start and by a tenth with own ones, random factors a quarter above."}}
ends = analysis.ends()
one = ends.query("sources == 1 and maps == 'mean'")[["modality", "seed", "B"]]
above = ends.merge(one, on=["modality", "seed"], suffixes=("", "_one"))
above = above.assign(above=above["B"] - above["B_one"]).dropna(subset="above")
looks = {
    (1, "shared"): ("one source", plots.ORANGE, "D"),
    (2, "shared"): ("two, shared start", plots.BLUE, "o"),
    (2, "own"): ("two, own starts", plots.VERMILION, "s"),
    (2, "re-basin"): ("two, re-basin", plots.GREEN, "^"),
}
words = dict(zip(MAPS, MAPS)) | {"svd_random": "random\nfactors"}
fig, axes = plt.subplots(1, 3, figsize=(9.4, 3.8))
for ax, (modality, part) in zip(axes, above.groupby("modality", sort=False)):
    known = {maps: words[maps] for maps in MAPS if maps in set(part["maps"])}
    style = {"names": known, "upright": True, "gap": 0.16, "ms": 5, "capsize": 2}
    plots.intervals(ax, part, value="above", at="maps", by=cell[:2], looks=looks, **style)
    ax.axhline(0, color=plots.BLACK, lw=1)
    ax.set_title(modality)
    ax.tick_params(axis="x", rotation=40)
axes[0].set_ylabel("nats above")
plots.legend_outside(fig, ncols=4, fontsize=10)
plt.show()

# %% [markdown]
# And what each factor does by itself, with the others averaged over, in nats; below zero is better:

# %% tags=["remove-input"]
found = analysis.effects()
mean = over_seeds(found, ["modality", "factor", "effect"], "loss")
print(written({"loss": mean}, digits=3)["loss"].unstack("modality", fill_value="").to_string())

# %% [markdown]
# **Merging does not help.** On GPTs two sources end 0.02 to 0.04 nats behind one, by every kind of start; on ResNets of two kinds they are level within 0.04. On halves they are level with a shared start,
# and 0.06 behind with own ones, matched or not. Only there does it matter whether the start is shared; on GPTs reordering takes two fifths of the harm away.
#
# How much of this is what merging costs? Its effect by account:

# %% tags=["remove-input"]
merging = {
    account: over_seeds(
        analysis.effects(account).query("factor == 'merging'"), ["modality", "effect"], "loss"
    )
    for account in ("A", "B")
}
print(written(merging, digits=3).sort_index(level=0, sort_remaining=False).to_string())

# %% [markdown]
# At equal steps (A) less than half of the harm on GPTs is left, and with re-basin none that five seeds can show; the rest is what LiGO's maps cost more for two sources than for one.
# On ResNets the two accounts agree. Account C has no row: two sources cost more than all of scratch's steps, and on ResNets one does.
#
# **Maps.** On GPTs copies are a hundredth behind mean padding. On both ResNets five seeds cannot tell them apart; means are one and two hundredths behind.
# LiGO's maps, learned for each source alone, end 0.08 behind. At equal steps they are level; what puts them behind is their cost, for two sources as much as 235 steps.
# Learned *jointly* they gain 0.016 at equal steps, and nothing that five seeds can show once their cost counts. With these maps the second source does no harm at equal steps, and no good.
# This is what the two lie above one:

# %% tags=["remove-input"]
equal = analysis.ends().query("sources > 0 and maps == 'LiGO joint'")
base = equal[equal["sources"] == 1].set_index("seed")["A"]
equal = equal.assign(above=equal["A"] - base.reindex(equal["seed"]).to_numpy())
level = over_seeds(equal[equal["sources"] == 2], "start", "above")
print(level.round(3).to_string())

# %% tags=["remove-cell"]
mean = mean.sort_index()
low, high = (mean["mean"] + sign * mean["half_width"] for sign in (-1, 1))
assert low["GPT", "merging"].min() > 0
assert mean["mean"]["GPT", "merging"].between(0.02, 0.045).all()
assert low["ResNet", "merging"].min() > -0.04
assert high["ResNet", "merging"].max() < 0.04
apart = mean["mean"]["ResNet, halves", "merging"].round(2)
assert apart[["own", "re-basin"]].eq(0.06).all()
assert low["ResNet, halves", "merging"][["own", "re-basin"]].min() > 0
assert low["ResNet, halves", "merging", "shared"] < 0 < apart["shared"] < 0.02
assert low["ResNet, halves", "start", "own less shared"] > 0
assert abs(mean["mean"]["ResNet, halves", "start", "re-basin less own"]) < 0.01
assert low["ResNet", "start", "own less shared"] < 0 < high["ResNet", "start", "own less shared"]

# %% tags=["remove-cell"]
assert low["GPT", "start", "own less shared"] < 0 < high["GPT", "start", "own less shared"]
mended = -mean["mean"]["GPT", "start", "re-basin less own"]
assert 0.35 < mended / mean["mean"]["GPT", "merging", "own"] < 0.45
maps = mean.xs("maps", level="factor")
copies = maps.xs("replicate", level="effect")
assert copies["mean"].round(2).to_dict() == {"GPT": 0.01, "ResNet": 0.01, "ResNet, halves": 0.02}
assert (copies["mean"] > copies["half_width"]).to_dict() == {
    **dict.fromkeys(copies.index, False),
    "GPT": True,
}
assert (level["mean"].abs() < level["half_width"]).all()

# %% tags=["remove-cell"]
wide = ends[ends["sources"] > 0].pivot_table(
    index=["modality", "maps"], columns=["sources", "start"], values="B"
)
above = wide.sub(wide[1, "shared"].xs("mean", level="maps"), axis=0, level="modality")
assert (above.loc["GPT", 2] > 0).all().all()
assert 0.01 < above.loc[("GPT", "LiGO alone"), (1, "shared")] < 0.03
assert above.loc[("GPT", "LiGO alone"), 2].between(0.09, 0.15).all()
assert above.loc[("GPT", "svd_random")].dropna().between(0.13, 0.17).all()
assert above.loc[("ResNet", "svd_random")].dropna().between(0.15, 0.18).all()
assert above.loc["ResNet"].drop("svd_random").abs().max().max() < 0.02
costs = analysis.curves().groupby(["modality", "maps", "sources"])[["added_flops", "step_flops"]]
apart = costs.first().eval("added_flops / step_flops")
added = apart["GPT"].unstack("sources")
assert (added[2] > added[1] + 10).to_dict() == {
    maps: maps.startswith("LiGO") for maps in added.index
}
assert 230 < apart["GPT", "LiGO alone", 2] < 240

# %% tags=["remove-cell"]
both = {name: table.unstack("effect") for name, table in merging.items()}
left = both["A"]["mean"].loc["GPT"] / both["B"]["mean"].loc["GPT"]
assert left[["shared", "own"]].between(0.4, 0.5).all()
sure = merging["A"]["mean"] > merging["A"]["half_width"]
assert sure["GPT"].to_dict() == {"shared": True, "own": True, "re-basin": False}
nets = ["ResNet", "ResNet, halves"]
assert (merging["A"]["mean"] - merging["B"]["mean"]).loc[nets].abs().max() < 0.005
assert analysis.effects("C").empty
assert ends.loc[ends["sources"] == 2, "C"].isna().all()
assert ends.loc[(ends["sources"] == 1) & ends["modality"].isin(nets), "C"].isna().all()
free = over_seeds(analysis.effects("A"), ["modality", "factor", "effect"], "loss").loc["GPT"]
costly = mean.loc["GPT"]
alone, joint = ("maps", "LiGO alone"), ("maps", "LiGO joint")
assert round(costly["mean"][alone], 2) == 0.08
assert costly["mean"][alone] > costly["half_width"][alone]
assert abs(free["mean"][alone]) < free["half_width"][alone] < 0.005
assert round(free["mean"][joint], 3) == -0.016
assert -free["mean"][joint] > free["half_width"][joint]
assert abs(costly["mean"][joint]) < costly["half_width"][joint]

# %% [markdown]
# (warm-sources)=
# **With sources paid for** (account C), in steps of the target's training:

# %% tags=["remove-input"]
flops = analysis.curves().groupby(["modality", "sources"])[["source_flops", "step_flops"]].first()
paid = flops["source_flops"] / flops["step_flops"]
print(paid.round().to_string())

# %% tags=["remove-cell"]
assert 150 < paid["GPT", 1] < 160
assert 200 < paid["ResNet", 1] < 210
assert paid["ResNet, halves", 1] == paid["ResNet", 1]
assert paid["GPT", 2] > 300
by_c = ends[ends["modality"] == "GPT"].groupby(["maps", "sources"])["C"].mean()
assert round(by_c["mean", 1], 2) == 2.23
assert round(by_c["scratch", 0], 2) == 2.57
last = table[(table["modality"] == "ResNet") & (table["maps"] == "mean")]
last = last.groupby(["sources", "start", "goal"])["C"].mean().groupby(["sources", "start"]).first()
assert abs(last[1, "shared"]) < 0.2
assert last[2].between(-0.8, -0.6).all()

# %% [markdown]
# A GPT source costs half of scratch's 300 steps, and one source still ends far ahead: at 2.23 nats against 2.57. After two, nothing is left of the 300. On ResNets a source costs twice the 100 steps; to the lowest loss that is often
# reached, one source is as fast as scratch, two are slower (a factor of 0.6).
#
# ```
# mergebook measure tinyshakespeare-factorial
# mergebook measure vision8-factorial   # halves: vision14-factorial
# ```
#
# ## FLOPs and seconds
#
# (warm-seconds)=
# All accounts are in FLOPs as PyTorch counts them, products of matrices alone. Is that fair? On one thread, every start of the main cells of [](53-sail-vision) and [](55-sail-larger-gpts) was
# made, and a step trained from it, in turn (`benchmarks/starts.py`). What a start takes besides its sources, in steps of its training:

# %% tags=["remove-input"]
import pandas as pd

from mergebook.lab.results import load_result

timed = pd.DataFrame(load_result("starts-speed")["starts"])
told = timed.assign(FLOPs=timed["flops_in_steps"], seconds=timed["in_steps"])
wide = told.pivot(index="arm", columns="modality", values=["FLOPs", "seconds"]).swaplevel(axis=1)
print(wide.sort_index(axis=1).sort_values(("GPT", "FLOPs")).round(1).to_string(na_rep=""))

# %% tags=["remove-cell"]
both = told.set_index(["modality", "arm"])[["FLOPs", "seconds"]]
learned = both[both.index.get_level_values("arm").str.contains("LiGO|learned|distilled")]
slower = learned["seconds"] / learned["FLOPs"]
assert slower["GPT"].between(1.7, 3.2).all()
assert slower["ResNet, halves"].between(1.2, 1.7).all()
plain = both.drop(learned.index)
assert plain["seconds"]["GPT"].max() < 13
assert plain["seconds"]["ResNet, halves"].max() < 4.5
assert 4.5 < both.loc[("GPT", "SAIL"), "seconds"] < 7

# %% [markdown]
# For growing, averages and distances both say little: for SAIL on GPTs five steps of 400 by seconds, and one by FLOPs. Learned maps take a quarter to two thirds more than their FLOPs say on ResNets, and with distillation
# two to three times as much on GPTs, whose steps are so small that what is done around a product counts. So account B is kind to them.
#
# ## When to use it, and when not
#
# **Start from the nearest source**, grown by maps that keep its function. **Merge** only where sources are free and maps are learned jointly; expect no gain. **Report** steps saved over all
# losses aimed at, with a random start of the same scale beside them, and all accounts. **Do not** quote a factor without its goal.
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
# * Theory promises a constant number of steps, at most $\kappa \ln 2$ for half the excess, and so factors that fall to one.
# * Networks save more steps the harder the target is, on GPTs and on ResNets, as far as scratch was trained.
# * Merging two sources ends behind one on GPTs by 0.02 to 0.04 nats at equal cost, whatever the start; on ResNets level with it, or 0.06 behind where halves have their own starts.
# * Mean padding and copies are a hundredth or two apart. Learned maps cost about what they bring if learned jointly, and much more if learned for each source alone.
# * The scale of grown weights alone saves 170 steps on GPTs, where what has been learned saves 720. Random factors, which keep what tokens have in common, save 400, and none on ResNets once scratch has its best rate.
#
# ## References
#
# All sources are in the [](../book/bibliography).
