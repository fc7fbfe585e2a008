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
# # From small models to large

# %% tags=["parameters", "remove-cell"]
SUITE = "glyphs8"
PROFILE = "default"
SEED = 0
DEVICE = "cpu"

# %% tags=["remove-cell"]
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import torch
from IPython.display import Markdown, display

from mergebook import plots
from mergebook.lab.results import load_table
from mergebook.lab.statistics import over_seeds, paired, plus_minus
from mergebook.plots import BLACK, BLUE, GREEN, GREY, VERMILION

plots.use_style()
torch.set_num_threads(1)  # networks this small lose more to threads than they gain
EXACT = (PROFILE, SEED) == ("default", 0)


def signed(row, digits=2):
    """Format a mean with its interval across seeds, with true minus signs."""
    mean = round(row["mean"], digits) + 0.0  # no negative zero
    return plus_minus(mean, row["half_width"], digits).replace("-", "−")


# %% tags=["remove-cell"]
files = ("glyphs8-kept", "tinyshakespeare-kept")
KEYS = ["family", "grown", "width", "depth"]
starts, trained = (
    pd.concat([load_table(name, part) for name in files], ignore_index=True)
    for part in ("starts", "trained")
)
trained["gain"] = trained["plain"] - trained["after"]
one, one_trained = (table[table["sources"] == "one"] for table in (starts, trained))
fractions = over_seeds(one, [*KEYS, "mode"], "kept")
gains = over_seeds(one_trained, KEYS, "gain")
after_growing = fractions.xs("grown", level="mode")
learned = fractions.xs("alone", level="mode")

# %% tags=["remove-cell"]
FAMILIES = {"MLP": (BLUE, "o"), "ResNet": (VERMILION, "s"), "GPT": (GREEN, "^")}
WIDER = {
    "replicate": "copies",
    "mean": "mean\npadding",
    "svd": "singular\nvectors",
    "interpolate": "mixed\nunits",
    "svd_random": "random\nfactors",
}
DEEPER = {
    "identity": "closed\nbranches",
    "stack": "stacked",
    "interlace": "repeated\nin place",
    "interpolate": "mixed\nlayers",
}


# %% tags=["remove-cell"]
def panel(ax, grown, axis, schemes, title):
    """Draw the fraction of the source's learning that each scheme keeps, per family."""
    for shift, (family, (shade, mark)) in zip((-0.24, 0, 0.24), FAMILIES.items(), strict=True):
        rows = after_growing.loc[family, grown].groupby(level=axis).first()
        rows = rows[rows.index.isin(list(schemes))]
        ends = rows["mean"] - rows["half_width"], rows["mean"] + rows["half_width"]
        rows = rows.assign(low=ends[0], high=ends[1])[["mean", "low", "high"]].clip(lower=-1)
        plots.dots(ax, rows, (family, shade, mark), [*schemes], shift=shift, capsize=0)
    for line in (0, 1):
        ax.axvline(line, color=GREY, lw=1, ls=":")
    plots.name_axis(ax, [text.replace("\n", " ") for text in schemes.values()])
    ax.set(xlabel="fraction kept", xlim=(-1.15, 1.3))
    ax.set_title(title, fontsize=12)


# %% tags=["remove-input"] mystnb={"figure": {"caption": "Copies, mean padding and closed branches keep all that a network has learned; random factors keep nothing in an MLP and a ResNet. Fraction of the source's learning right after growing, (random loss − loss) / (random loss − source's loss), where 1 is the source's loss and 0 that of the larger network with random weights. Values below −1 are drawn at −1. The GPT has no point for copies, because 1.5 is not a whole multiple, and the MLP has no branches to close. Means and 95 % intervals across five seeds.", "name": "fig-growing-kept"}, "image": {"alt": "Left, wider networks: copies, mean padding and singular vectors lie at one for an MLP, a ResNet and a GPT. Mixed units keep most of the MLP and the GPT and not the ResNet. Random factors are at zero for the MLP, at minus one for the ResNet and at a third for the GPT. Right, deeper networks: closed branches lie at one. Stacked, repeated and mixed layers keep most of the GPT, nothing of the MLP, and the ResNet is at minus one."}}
fig, axes = plt.subplots(1, 2, figsize=(6.9, 3.3))
panel(axes[0], "wider", "width", WIDER, "1.5 times as wide")
panel(axes[1], "deeper", "depth", DEEPER, "Deeper")
plots.legend_outside(fig)
fig.suptitle(
    "Paired maps and closed branches are exact; random factors are not",
    fontsize=13,
    weight="bold",
    x=0.01,
    ha="left",
)
plt.show()

# %% tags=["remove-cell"]
encoders = load_table("sentences8-encoder", "encoders")
answers = load_table("sentences8-encoder", "tasks").groupby(["seed", "way"])
answers = answers[["accuracy", "agreement"]].mean().reset_index()
encoders = encoders.merge(answers, on=["seed", "way"])
encoders["accuracy"] *= 100
exact_ways = encoders[encoders["way"].isin(["replicate", "mean, hidden"])]
millions = encoders.groupby("way")["parameters"].first() / 1e6
single, doubled = millions["source"], millions["replicate"]
assert exact_ways["change"].max() < 1e-5
assert exact_ways["agreement"].min() == 1

# %% tags=["remove-input"]
random_factors = [signed(after_growing.loc[f, "wider", "svd_random", ""]) for f in FAMILIES]
behind = -gains.loc["GPT"]["mean"]
display(
    Markdown(f"""
* **Copies keep every answer.** MiniLM at twice its width, with {doubled:.0f} instead of {single:.0f} million parameters, gives all 800 test
  sentences the same label as before.
* **Random factors, as the paper's appendix F.1 allows, lose the function.** An MLP keeps {random_factors[0]} of its learning,
  a ResNet {random_factors[1]}, a GPT {random_factors[2]}.
* **Learning the maps did not pay.** The same FLOPs of ordinary training from an exact start end {behind.min():.2f} to
  {behind.max():.2f} nats lower in a GPT, and we detect no difference in an MLP and a ResNet.
""")
)

# %% [markdown]
# SAIL {cite}`anonymous2025structured` initialises a large network from small trained ones. It first *transforms* each of
# them to the large shape, which is the topic of this chapter, and then averages the results ([](51-proximal-parameters)).
#
# **Use it when** you have a trained network and want to continue with a wider or deeper one. **Don't use it when** a large
# pretrained network of the same kind exists.
#
# **You need first:** matrix products, layer norms, attention. **Time:** 10 minutes to read, less than a minute to run.
#
# ## A layer of two units becomes one of three
#
# The left network has two hidden units with ReLU. Their values for the inputs 1 and 2 are $1 \cdot 1 + 1 \cdot 2 = 3$ and
# $1 \cdot 1 + 2 \cdot 2 = 5$, and the output is $4 \cdot 3 + 2 \cdot 5 = 22$. We widen the layer by a copy of unit 1. The copy gets the
# same incoming weights. The outgoing weight 4 is divided between both copies, so the output stays at
# $2 \cdot 3 + 2 \cdot 5 + 2 \cdot 3 = 22$.


# %% tags=["remove-cell"]
def draw_network(ax, writers, readers, new, halved):
    """Draw a network with two inputs and one output, with its values for the inputs 1 and 2."""
    inputs = np.array([1.0, 2.0])
    hidden = writers @ inputs
    heights = np.linspace(1.5, -1.5, len(hidden)) if len(hidden) > 2 else np.array([1.0, -1.0])
    sources = [(0.0, 0.9), (0.0, -0.9)]
    for unit, y in enumerate(heights):
        for (x0, y0), weight, at in zip(sources, writers[unit], (0.62, 0.72), strict=True):
            shade = VERMILION if unit in new else BLACK
            ax.plot((x0, 2), (y0, y), color=shade, lw=1.6, zorder=1)
            place = (x0 + 2 * at, y0 + (y - y0) * at)
            ax.text(*place, f"{weight:g}", color=shade, fontsize=11, **LABEL)
        shade = BLUE if unit in halved else BLACK
        ax.plot((2, 4), (y, 0), color=shade, lw=1.6, zorder=1)
        ax.text(3, y / 2, f"{readers[unit]:g}", color=shade, fontsize=12, **LABEL)
    draw_units(ax, sources, inputs, heights, hidden, readers @ hidden)


# %% tags=["remove-cell"]
def draw_units(ax, sources, inputs, heights, hidden, output):
    """Draw the units of a network as circles with their values."""
    values = [*zip(sources, inputs), *(((2, y), h) for y, h in zip(heights, hidden))]
    for (x, y), value in [*values, ((4, 0), output)]:
        ax.plot(x, y, "o", ms=27, mfc="white", mec=BLACK, mew=1.5, zorder=2)
        ax.text(x, y, f"{value:g}", ha="center", va="center", fontsize=13, weight="bold")
    for x, text in zip((0, 2, 4), ("input", "hidden", "output")):
        ax.text(x, -2.25, text, ha="center", fontsize=11)
    ax.set(xlim=(-0.5, 4.5), ylim=(-2.5, 2.1))
    ax.axis("off")


LABEL = {
    "ha": "center",
    "va": "center",
    "bbox": {"facecolor": "white", "edgecolor": "none", "pad": 1},
}

# %% tags=["remove-input"] mystnb={"figure": {"caption": "A hidden unit can be copied without changing the output. Left, a network with two hidden units. Right, with three: the third is a copy of the first (red, incoming weights copied), and both copies share the first one's outgoing weight (blue, 4 becomes 2 and 2). The numbers in circles are the values for the inputs 1 and 2.", "name": "fig-growing-pair"}, "image": {"alt": "Two small networks drawn as circles and lines. Left, inputs 1 and 2, hidden values 3 and 5, outgoing weights 4 and 2, output 22. Right, inputs 1 and 2, hidden values 3, 5 and 3, outgoing weights 2, 2 and 2, output 22."}}
writers = np.array([[1.0, 1.0], [1.0, 2.0]])
expand = np.array([[1.0, 0.0], [0.0, 1.0], [1.0, 0.0]])
divide = np.array([[0.5, 0.0], [0.0, 1.0], [0.5, 0.0]])
readers = np.array([4.0, 2.0])
fig, axes = plt.subplots(1, 2, figsize=(6.9, 3.1))
draw_network(axes[0], writers, readers, (), ())
draw_network(axes[1], expand @ writers, divide @ readers, (2,), (0, 2))
fig.suptitle("Copy what writes a unit, divide what reads it", fontsize=13, weight="bold")
plt.show()

# %% [markdown]
# `ml.grow` takes two modules, a trained one and one of the larger shape:

# %% tags=["nbval-check-output"]
import torch
from torch import nn

import mergelib as ml


def network(width):
    first = nn.Linear(2, width, bias=False)
    return nn.Sequential(first, nn.ReLU(), nn.Linear(width, 1, bias=False))


small = network(2)
weights = {"0.weight": [[1.0, 1], [1, 2]], "2.weight": [[4.0, 2]]}
small.load_state_dict({key: torch.tensor(w) for key, w in weights.items()})
grown = ml.grow(small, network(3))
print({key: w.tolist() for key, w in grown.items()})

# %% [markdown]
# ## The general rule
#
# The paper writes a weight as $\theta \in \mathbb R^{d_{\text{in}} \times d_{\text{out}}}$ and widens it by its Eq. 8,
#
# $$
# \tilde\theta = c_{\text{in}}\, \theta\, c_{\text{out}}^\top .
# $$ (eq-growing-width)
#
# It does not say which $c$ keep the function. The example suggests the answer. A *group* is a set of units
# that grow together: the hidden units of a layer, heads, the dimensions of a head, the residual stream. Some weights *write* a
# group, others *read* it. Let $E$ be the map of everything that writes the group and $R$ the map of everything that reads it, both
# $d' \times d$. In the example
#
# $$
# E = \begin{pmatrix} 1 & 0 \\ 0 & 1 \\ 1 & 0 \end{pmatrix}, \qquad
# R = \begin{pmatrix} \frac12 & 0 \\ 0 & 1 \\ \frac12 & 0 \end{pmatrix}, \qquad R^\top E = I .
# $$
#
# With weights as in PyTorch, outputs × inputs, Eq. 8 becomes
#
# $$
# \tilde W = E_{\text{out}}\, W\, R_{\text{in}}^\top , \qquad \tilde b = E_{\text{out}}\, b .
# $$ (eq-growing-pair)
#
# ```{prf:proposition} Copies keep the function
# :label: prop-growing-copies
# If $R^\top E = I$ for every group, a linear network computes the same as before. So does a network with activations that act on
# each unit alone, and with batch norms, if every row of $E$ has a single 1 and otherwise zeros.
# ```
#
# The large network holds $E h$ where the small one holds $h$, and every reader undoes it ([proof](#growing-proofs)).
# With $R = E (E^\top E)^{-1}$ this is Net2Net {cite}`chen2016net2net`. `mergelib.structure` knows for every axis of every
# parameter which group it belongs to, so one rule covers MLPs, ResNets, GPT-2 and BERT.
#
# ## What is not exact: normalisation and attention
#
# The proposition requires layers that treat each unit alone. A transformer has four that do not, and `ml.grow` handles
# them:
#
# | part | why copying is not enough | what `ml.grow` does |
# |---|---|---|
# | layer norm | mean and variance change if some units have more copies than others | requires whole multiples, or pads with the mean |
# | attention scores | inner products of copies grow by $r = s'/s$, their divisor by $\sqrt r$ | multiplies queries and keys by $r^{-1/4}$ |
# | tied token table | it writes the stream at the bottom and reads it at the top, both with $E$ | maps the gain and bias of the last norm with $R$ |
# | fused queries, keys, values | one axis of 3 × heads × head size | grows each factor of the axis separately |
#
# The next table shows what happens to a small GPT, grown from width 32 to 64 (or 48), if one of them is left out:

# %% tags=["remove-cell"]
from mergebook.sail.measure.training import by_adam
from mergebook.suites.models import GPT
from mergelib.evaluation.tasks import Split


def markov_texts(count, text_seed=0):
    """Return texts of a random chain of second order, (count, 32), and the next symbols."""
    generator = torch.Generator().manual_seed(SEED)
    chain = torch._standard_gamma(torch.full((12, 12, 12), 0.1), generator=generator)
    generator.manual_seed(1000 * SEED + text_seed + 1)
    text = list(torch.randint(12, (2, count), generator=generator))
    for _ in range(31):
        text.append(torch.multinomial(chain[text[-2], text[-1]], 1, generator=generator)[:, 0])
    whole = torch.stack(text, 1)
    return Split(whole[:, :-1], whole[:, 1:])


def untrained_gpt(width, heads=4):
    """Return a GPT of two blocks over the 12 symbols."""
    return GPT(width, 2, heads, vocabulary=12, context=32)


# %% tags=["remove-cell"]
def change(network):
    """Return the largest change of a logit from the source's, over the largest of these."""
    with torch.no_grad():
        expected, logits = (net.eval()(test_texts.inputs) for net in (gpt, network))
    return float((logits - expected).abs().max() / expected.abs().max())


texts, test_texts = markov_texts(512), markov_texts(256, text_seed=1)
torch.manual_seed(SEED)
gpt, count = untrained_gpt(32), 40 if PROFILE == "smoke" else 300
options = {"optimiser": "adamw", "seed": SEED, "batch_size": 64}
gpt.load_state_dict(by_adam(gpt, texts, [count], 3e-3, **options)[count])
double, uneven = untrained_gpt(64), untrained_gpt(48)

# %% tags=["remove-cell"]
from mergelib.sail.growth.width import Widening
from mergelib.structure import structure_of

careful = ml.grow(gpt, double)
sharp = {key: value.clone() for key, value in careful.items()}
for key, value in sharp.items():
    if ".qkv." in key:
        value[: 2 * len(value) // 3] *= 2**0.25  # queries and keys
loud = {key: 2 * v if key.startswith("norm.") else v for key, v in careful.items()}
flat = {key: value.clone() for key, value in careful.items()}
for key, value in flat.items():
    if ".qkv.weight" in key:  # rows copied as one list, not per third and head
        rows = value.view(3, 4, 2, 8, 64)[:, :, 0].reshape(96, 64)
        flat[key] = torch.cat([rows, rows])
sizes = {name: group.size for name, group in structure_of(gpt).groups.items()}
widening = Widening(structure_of(uneven), sizes, "replicate")
copied = {key: widening.apply(key, value) for key, value in gpt.state_dict().items()}

# %% tags=["remove-cell"]
changes = {}
settings = {"norm": (uneven, copied), "scores": (double, sharp), "tied": (double, loud)}
settings |= {"fused": (double, flat), "careful": (double, careful)}
for name, (net, state) in settings.items():
    net.load_state_dict(state)
    changes[name] = change(net)
assert changes["careful"] < 1e-5
assert abs(changes["tied"] - 1) < 1e-5, "twice the logits"
if EXACT:
    assert min(changes.values()) == changes["careful"]
    assert min(changes[name] for name in ("norm", "scores", "fused")) > 0.1

# %% tags=["remove-input"]
rows = {
    "whole multiples under a layer norm": changes["norm"],
    "factor for queries and keys": changes["scores"],
    "R before the tied table": changes["tied"],
    "separate factors of the fused axis": changes["fused"],
    "nothing": changes["careful"],
}
table = pd.Series({name: f"{100 * change:.0f}" for name, change in rows.items()})
table.to_frame("largest change of a logit, % of the largest logit").rename_axis("left out")

# %% [markdown]
# A layer norm allows only whole multiples of the width, unless the new entries leave its mean and variance alone.
# The table adds two entries to $x = (1, 2, 3, 4)$ and shows the normalised value of the first one, without and with a factor
# $\sqrt{d/d'} = \sqrt{4/6}$:

# %% tags=["remove-input"]
from torch.nn.functional import layer_norm

x = torch.tensor([1.0, 2.0, 3.0, 4.0])
added = {"nothing": x[:0], "copies of 1 and 2": x[:2], "zeros": torch.zeros(2)}
added["the mean, 2.5"] = x.mean() + torch.zeros(2)
rows = {}
for name, more in added.items():
    wide = torch.cat([x, more])
    first = float(layer_norm(wide, wide.shape)[0])
    scaled = first * (4 / len(wide)) ** 0.5
    rows[name] = {"first output": first, "times √(d/d′)": scaled}
table = pd.DataFrame(rows).T.map("{:.2f}".format).replace("-", "−", regex=True)
table.rename_axis("added entries")

# %% tags=["remove-cell"]
assert abs(scaled - float(layer_norm(x, x.shape)[0])) < 1e-4, "the mean is exact"

# %% [markdown]
# Only the mean restores the original value, −1.34. This gives a map for every width:
#
# ```{prf:proposition} Mean padding
# :label: prop-growing-mean
# In a transformer whose every reader stands behind a layer norm, let the stream $x$ become
# $\tilde x = c\,(x, m, \dots, m)$, with $m$ the mean of $x$ and $c = \sqrt{d'/d}$. Divide the gains of the norms by $c$, and
# let their new biases be zero. Then every norm returns its old outputs followed by zeros, with the same $\varepsilon$, and the weights
# that read the zeros are free.
# ```
#
# The [proof](#growing-mean-proof) takes four lines. New hidden units and heads begin with random inputs and zero outputs. From width 32 to 48:

# %% tags=["nbval-check-output"]
odd = untrained_gpt(48)
odd.load_state_dict(ml.grow(gpt, odd, width="mean"))
print("same logits to 1e-5:", change(odd) < 1e-5)

# %% [markdown]
# (growing-depth)=
# ## Depth
#
# A new layer changes nothing if its residual branch is closed, which means that its last projection is zero, or the gain and bias of its
# last batch norm. Gradients open it during training. The paper's Eq. 9 does not include this map. It averages layers,
#
# $$
# \tilde\theta^k = \sum_{i=1}^L d_{ki}\, \theta^i , \qquad d_{ki} \ge 0, \quad \sum_i d_{ki} = 1 ,
# $$ (eq-growing-depth)
#
# with a softmax over each row (appendix F.2). An average of layers is one more layer of the same strength. If every layer adds the same
# vector $a$, so does every average, and $L'$ layers add $L' a$ instead of $L a$, whatever the rows. Stacked and mixed
# layers lose all learning of the MLP and the ResNet in the first figure, and up to 15 % of the GPT's.
#
# | option | keeps the function | fails for |
# |---|---|---|
# | `width="replicate"` | MLPs and ResNets at any width; transformers at whole multiples | uneven copies under a layer norm |
# | `width="mean"` | transformers with norms in the branches, at any width; hidden units of all networks | a stream that is normalised itself (BERT), gates (SiT) |
# | `width="svd"` | linear and ReLU layers | GELU, attention |
# | `width="svd_random"` (random factors), `"interpolate"` (mixed units), `"aki"` | never | – |
# | `depth="identity"` | networks with residual branches | norms in the stream, plain MLPs |
# | `depth="stack"`, `"interlace"` (repeated in place), `"interpolate"` (mixed layers) | never | – |
#
# ## A pretrained sentence encoder
#
# MiniLM {cite}`wang2020minilm` is a BERT with 22.6 million parameters. Nothing is trained here. The table compares zero-shot
# accuracy over eight tasks and the correlation of all cosines between 800 sentences with the original:

# %% tags=["remove-cell"]
WAYS = {
    "replicate": "copies, 2 × width",
    "mean, hidden": "mean padding, 1.5 × hidden units",
    "svd": "singular vectors, 2 × width",
    "svd, uneven": "singular vectors, 1.5 × width",
    "stack": "stacked, 2 × depth",
    "interlace": "repeated in place, 2 × depth",
    "svd_random": "random factors, 2 × width",
    "random": "random weights",
}
methods = encoders.rename(columns={"way": "method"})
losses = paired(methods, {way: (way, "source") for way in WAYS}, "accuracy")
correlations = over_seeds(encoders, "way", "correlation")["mean"]
assert list(
    losses.index[losses["mean"].abs() <= losses["half_width"]].drop(
        ["replicate", "mean, hidden"], errors="ignore"
    )
) == ["svd"]

# %% tags=["remove-input"]
rows = {text: (signed(losses.loc[way], 1), correlations[way]) for way, text in WAYS.items()}
columns = ["accuracy minus MiniLM's, points", "correlation"]
table = pd.DataFrame(rows, index=columns).T
table["correlation"] = table["correlation"].map("{:.2f}".format)
table.rename_axis("MiniLM, grown")

# %% [markdown]
# Intervals are across three seeds. Copies and mean padding change no answer. `ml.grow` refuses mean padding, uneven copies and
# closed layers of MiniLM's stream, because its layer norms act on the stream itself.
#
# ## Learning the maps did not pay
#
# The paper learns $c_{\text{in}}$, $c_{\text{out}}$ and $d_{ki}$ on the target's data. `ml.learn_growth` does this, and for one source it
# is LiGO {cite}`wang2023learning`. Most learned maps recover the loss of the source, and even pass it. This alone shows
# little, as a GPT trained from scratch with the same FLOPs has a fraction of 0.9. So we give the FLOPs of 100
# learning steps to ordinary training of an exact start (or the stack, if there is none), and then train both for up to 100 steps:

# %% tags=["remove-input"]
STARTS = {("mean", ""): "wider, mean padding", ("svd", ""): "wider, singular vectors"}
STARTS |= {("", "stack"): "deeper, stacked", ("svd", "stack"): "both"}
ORDER = [(family, *start) for family in FAMILIES for start in STARTS]
rows = {}
for key in sorted(gains.index, key=lambda key: ORDER.index((key[0], *key[2:]))):
    cells = (signed(table.loc[key]) for table in (after_growing, learned, gains))
    rows[key[0], STARTS[key[2:]]] = dict(zip(("kept at first", "kept after", "gain, nats"), cells))
pd.DataFrame(rows).T.rename_axis(["network", "maps start from"])

# %% tags=["remove-cell"]
assert (gains.loc["GPT"]["mean"] + gains.loc["GPT"]["half_width"] < 0).all()
for family in ("MLP", "ResNet"):
    assert (gains.loc[family]["mean"].abs() < gains.loc[family]["half_width"]).all(), "open"
pairs = starts[(starts["sources"] != "one") & (starts["grown"] == "wider")]
pairs = over_seeds(pairs, ["family", "sources", "mode"], "kept")["mean"]
assert (pairs.xs("joint", level="mode") > 0.98).all()
separate = pairs.xs("own", level="sources").unstack("mode")
assert (separate["alone"] - separate["grown"]).max() < 0.01
curve = load_table("tinyshakespeare-kept_scratch", "curve").query("grown == 'wider'")
curve = curve.groupby("step")["kept"].mean()
budget = one_trained.query("family == 'GPT' and grown == 'wider'")["extra"].mean()
scratch = float(np.interp(budget, curve.index, curve))
assert 0.85 < scratch < 0.93, "nine tenths from scratch"
deeper = after_growing.xs("deeper", level="grown")["mean"].drop("identity", level="depth")
assert deeper[["MLP", "ResNet"]].max() < 0
assert 0.84 < deeper["GPT"].min() < 0.855

# %% [markdown]
# The last column is negative if learning the maps was the worse investment (95 % intervals, five seeds). A step on the maps costs as
# much as a training step, but it can change the weights only in the few directions that the maps span. Maps that are learned separately for two
# separately initialised sources do not improve their average. Maps that are learned jointly, on the loss of the
# average, keep at least 98 %.
#
# ## Copies stay equal without noise
#
# Two equal units with equal outgoing weights get equal gradients, so they stay equal for ever, and the large network has the
# small one's capacity. `noise=0.3` adds random numbers to the readers that cancel over the copies. This separates the
# copies and keeps the function. Mean padding has no copies. Ten steps of Adam on the small GPT show the difference:

# %% tags=["hide-input", "nbval-check-output"]
for noise in (0.0, 0.3):
    torch.manual_seed(SEED)
    double.load_state_dict(ml.grow(gpt, double, noise=noise))
    same = change(double) < 1e-5
    trained_gpt = by_adam(double, texts, [10], 1e-3, seed=SEED, batch_size=64)[10]
    first, second = trained_gpt["token_embed.weight"].chunk(2, 1)
    equal = torch.equal(first, second)
    print(f"noise {noise}: same logits {same}, copies equal {equal}")

# %% [markdown]
# ```{admonition} Takeaway: which options to use
# :class: tip
# Use `width="mean"` for GPTs, MLPs and ResNets at any width, `width="replicate", noise=0.3` for BERT at whole multiples, and
# `depth="identity"` for depth.
# Train afterwards; learned maps are not needed.
# ```
#
# `ml.grow_files(source, config, output)` does the same for folders of Hugging Face's GPT-2 and BERT. `ml.shrink(large, small, inputs)` is the
# opposite map, for hidden units, channels and layers. HyperCloning {cite}`samragh2024scaling` is `replicate` at twice the width.
# `width="aki"` is bert2BERT's map {cite}`chen2022bert2bert`, which fills new units from the next layer. Stacking {cite}`gong2019efficient` and
# Knowledge Inheritance {cite}`qin2022knowledge` aim at faster training.
#
# ## What the paper claims and what we found
#
# | paper | claim | found here |
# |---|---|---|
# | Eq. 8 | maps widen a network | true; $R^\top E = I$ keeps the function |
# | Appendix F.1 | gradients of the maps | the stated products have shapes that do not fit ({ref}`check <growing-shapes>`) |
# | Appendix F.1 | singular vectors with random $W$ are a meaningful start | only singular values are kept ({ref}`proof <growing-spectrum>`) |
# | Eq. 9, appendix F.2 | averages of layers deepen a network | no such average keeps the function |
# | Section 4.1 | learned maps (S7 in the [ledger](59-sail-claims)) | recover the loss, but ordinary training is at least as good |
#
# We did not build the random projections followed by a normalisation that section 4.1 mentions.
#
# ## Exercises
#
# ```{exercise} Zeros under another norm (easy)
# :label: ex-growing-rms
# An RMS norm divides by $\sqrt{\frac1d \sum_i x_i^2}$ and subtracts no mean. With which entries must $x$ be padded, and by what
# factor must the gain be multiplied?
# ```

# %% [markdown]
# ````{solution-start} ex-growing-rms
# :class: dropdown
# ````
# With zeros. The sum of squares stays the same and $\frac1d$ becomes $\frac1{d'}$, so the outputs are $\sqrt{d'/d}$ times as large. The gain
# must be multiplied by $\sqrt{d/d'}$.

# %% tags=["nbval-check-output"]
from torch.nn.functional import rms_norm

wide = torch.cat([x, torch.zeros(2)])
print(torch.allclose(rms_norm(wide, (6,))[:4] * (4 / 6) ** 0.5, rms_norm(x, (4,))))

# %% [markdown]
# ````{solution-end}
# ````
#
# ```{exercise} Uneven copies inside a head (medium)
# :label: ex-growing-head
# Heads of size 8 become heads of size 12 by copies, so that four dimensions have two copies and four have one. Which rows of the query and key
# matrices are multiplied by which factor? Check it with a GPT of width 96 and eight heads, grown from ours.
# ```

# %% [markdown]
# ````{solution-start} ex-growing-head
# :class: dropdown
# ````
# A dimension with $n$ copies counts $n$ times in the inner product, so its rows in both matrices are divided by $\sqrt n$. All rows
# are multiplied by $(12/8)^{1/4}$ because of the root of the head size. No norm looks across the dimensions of a head, so uneven copies are allowed here.

# %% tags=["nbval-check-output"]
wider = untrained_gpt(96, 8)
wider.load_state_dict(ml.grow(gpt, wider))
print("same logits to 1e-5:", change(wider) < 1e-5)

# %% [markdown]
# ````{solution-end}
# ````
#
# ```{exercise} All maps that keep a linear network (hard)
# :label: ex-growing-all
# Given $E$ with independent columns, find all $R$ with $R^\top E = I$. Which of them are the $R$ of copies, and which is the shortest?
# ```

# %% [markdown]
# ````{solution-start} ex-growing-all
# :class: dropdown
# ````
# $R = E\,(E^\top E)^{-1} + Z$ with $Z^\top E = 0$. The difference of two solutions has this property, and any such $Z$ may be added. For copies, the
# entries $R_{ji}$ over the copies $j$ of unit $i$ sum to 1, and over the copies of another unit to 0. So the copies may divide the outgoing weight
# in any proportion, which is what the noise uses. The columns of $E\,(E^\top E)^{-1}$ lie in the span of $E$ and those of $Z$ are perpendicular to it, so
# $Z = 0$ is shortest, by Pythagoras, which means equal parts.

# %% tags=["nbval-check-output"]
from mergelib.sail.growth.width import expander

write = expander("replicate", 4, 6)
read = write @ torch.linalg.inv(write.T @ write)
extra = torch.randn(6, 4).double()
extra -= write @ torch.linalg.solve(write.T @ write, write.T @ extra)
print("still undone:", torch.allclose((read + extra).T @ write, torch.eye(4).double()))
print("longer:", bool((read + extra).norm() > read.norm()))

# %% [markdown]
# ````{solution-end}
# ````
#
# ## Summary
#
# * Map what writes a group of units by $E$ and what reads it by $R$ with $R^\top E = I$. Copies then keep the function exactly.
# * Layer norms, attention scores, tied tables and fused matrices need corrections of their own. Mean padding allows any width, and closed
#   branches allow any depth.
# * Random factors and averaged layers lose the function, and learned maps did not repay their cost.
