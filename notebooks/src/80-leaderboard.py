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
# # Leaderboard

# %% tags=["parameters", "remove-cell"]
SUITE = "glyphs8"
PROFILE = "default"
SEED = 0
DEVICE = "cpu"

# %% tags=["remove-cell"]
import matplotlib.pyplot as plt
import pandas as pd

from mergebook import plots
from mergebook.chapters import leaderboard

plots.use_style()
rows = pd.DataFrame(leaderboard.entries())
RULES = "weights; settings on labels"
SHADES = {
    "reference": plots.GREY,
    RULES: plots.BLUE,
    "unlabelled inputs": plots.GREEN,
    "labelled examples": plots.ORANGE,
    "task known": plots.PINK,
}


def kind(row):
    """What a method needs, by the words of the legend."""
    if row.method in leaderboard.REFERENCES:
        return "reference"
    names = [RULES, "unlabelled inputs", "labelled examples"]
    data = [leaderboard.NOTHING, leaderboard.UNLABELLED, leaderboard.LABELLED]
    return "task known" if row.task_known else names[data.index(row.data)]


# %% tags=["remove-cell"]
def legend(fig):
    """A legend beside the axes, or below where the figure is as narrow as a phone."""
    if fig.get_figwidth() > 7:
        fig.legend(loc="outside right center", fontsize=11)
    else:
        size = 12 if fig.get_figwidth() > 5 else 11
        fig.legend(loc="outside lower center", fontsize=size, ncols=3, columnspacing=1)


# %% tags=["remove-cell"]
def bars(methods, size):
    """Bars of the test accuracy on imagenet8, coloured by what a method needs."""
    part = rows[(rows["suite"] == "imagenet8") & rows["method"].isin(methods)]
    part = part.iloc[::-1]
    kinds = [kind(row) for row in part.itertuples()]
    fig, ax = plt.subplots(figsize=size)
    for name, shade in SHADES.items():
        at = [place for place, own in enumerate(kinds) if own == name]
        if at:
            chosen = part.iloc[at]
            ax.barh(at, chosen["accuracy"], color=shade, height=0.72, label=name)
    for place, row in enumerate(part.itertuples()):
        ends = [row.accuracy - row.half_width, row.accuracy + row.half_width]
        ax.plot(ends, [place, place], color="black", lw=1.2)
        ax.text(ends[1] + 0.8, place, f"{row.accuracy:.0f}", va="center")
    ax.set_yticks(range(len(part)), [leaderboard.title(name) for name in part["method"]])
    ax.set(xlim=(0, 90), xlabel="test accuracy, %")
    ax.grid(axis="y", visible=False)
    legend(fig)
    return ax


# %% tags=["remove-input"] mystnb={"figure": {"caption": "CART, TSV and Iso-C are ahead of all older rules that merge weights alone. Settings of all methods are chosen on 800 labels. Eight experts of EfficientNet-Lite0, merged into one network: mean test accuracy over eight image tasks and three seeds, with 95 % intervals across seeds.", "name": "fig-leaderboard"}, "image": {"alt": "Bars of test accuracy from the pretrained network at 40 % to one expert per task at 82 %. Rules for weights: average 46, task arithmetic 48, TIES 52, Iso-C 60, TSV 60, CART 62. AdaMerging reaches 50 with unlabelled inputs, Frank-Wolfe 49 with labelled examples and 64 from CART. Where the task is known, Surgery on CART reaches 66 and CART-Indexing 80."}}
shown = [
    *("pretrained", "average", "task_arithmetic", "ties", "iso_c", "tsv"),
    *("cart", "adamerging", "frank_wolfe", "frank_wolfe+cart"),
    *("surgery+cart", "CART-Indexing, 8%", "individual"),
]
ax = bars(shown, (6.0, 4.2))
experts, cart = (
    rows.query("suite == 'imagenet8' and method == @name")["accuracy"].item()
    for name in ("individual", "cart")
)
title = f"CART keeps {cart:.0f} of {experts:.0f} %, with its settings chosen on 800 labels"
ax.figure.suptitle(title, x=0.02, ha="left", fontsize=13, fontweight="bold")
plt.show()

# %% tags=["remove-cell"]
LOW_RANK = ["cart", "tsv", "iso_c", "iso_cts"]
rules = rows[(rows["data"] == leaderboard.NOTHING) & ~rows["task_known"]]
rules = rules[~rules["method"].isin(leaderboard.REFERENCES)]
rules = rules[rules.groupby("method")["suite"].transform("nunique") > 2]
accuracy = rules.pivot(index="suite", columns="method", values="accuracy")
images = accuracy.drop("text4")
lead = images[LOW_RANK].min(axis=1) - images.drop(columns=[*LOW_RANK, "ace", "wudi"]).max(axis=1)
spread = images[LOW_RANK].max(axis=1) - images[LOW_RANK].min(axis=1)
kept = rows.pivot(index="suite", columns="method", values="normalised")
kept = kept.loc[["imagenet8", "sentences8", "vision8"]]
labelled = kept["frank_wolfe+cart"] - kept["cart"]
repaired = kept["surgery+cart"] - kept["cart"]
everywhere = rules.pivot(index="suite", columns="method", values="normalised")["cart"]
refitted = rows.query("method == 'cart, fitted heads'").set_index("suite")["normalised"]
refitted = (refitted - everywhere).dropna()
text_kept, everywhere = everywhere["text4"], everywhere.drop("text4")
indexed = rows.query("method == 'CART-Indexing, rest averaged, 8%'").set_index("suite")
indexed = (indexed["normalised"] - everywhere).dropna()
languages = rows[rows["suite"] == "text4"].set_index("method")["accuracy"]
best = accuracy.loc["text4"].idxmax()
symerge = rows.query("method == 'symerge'")["normalised"].item()

# %% tags=["remove-input"]
from IPython.display import Markdown, display

display(
    Markdown(f"""
* **Even the weakest of CART, TSV, Iso-C and Iso-CTS is {lead.min():.1f} to {lead.max():.1f}
  points ahead of the best older rule**, on four networks with 8 to 20 tasks. The four differ by {spread.min():.1f} to {spread.max():.1f} points.
  ACE, which is newer, is near them on the three suites where it has a row, and WUDI on two of these.
* **CART keeps {everywhere.min():.0f} to {everywhere.max():.0f} % of the experts' accuracy** on images and sentences, and {text_kept:.0f} % on four languages.
  Frank-Wolfe from CART adds at most {labelled.max():.0f} points. Heads fitted again add {refitted.drop("sentences8").min():.0f} to
  {refitted.max():.0f} on three image networks, and lose {-refitted["sentences8"]:.0f} on MiniLM.
* **Knowing the task of each input adds** {repaired.min():.0f} to {repaired.max():.0f} points with Surgery, and {indexed.min():.0f} to {indexed.max():.0f} with CART-Indexing, which
  stores low-rank matrices for each task. The other tensors are averaged here.
* **New heads, learned on unlabelled test inputs,** let [SyMerge](71-since-cart) keep {symerge:.1f} % on glyphs 8, where CART keeps {everywhere["glyphs8"]:.0f} %.
* **Four languages hardly merge**: the most accurate rule, {leaderboard.title(best)}, predicts
  {languages[best]:.0f} % of the next characters, the pretrained model
  {languages["pretrained"]:.0f} % and the experts {languages["individual"]:.0f} %.
""")
)

# %% [markdown]
# ## All methods, all suites
#
# The table shows one suite at a time. Choose a suite and what a method may need, and sort by any column.

# %% tags=["remove-input"]
from IPython.display import HTML

display(HTML(leaderboard.board()))

# %% [markdown]
# *% of the experts* is the mean over tasks of a method's accuracy divided by that of the task's own expert.
# *Worst task* is the least of these ratios. *Labels* counts the labelled examples that a method was given and those on which its hyperparameters were
# chosen. *Task known* marks methods whose network
# depends on the task of an input; the head does so with all methods. Only glyphs 8 has rows of DOGE, ESM, SVC, subspace boosting, RegMean++ and SyMerge, which adapts to the test inputs;
# [](71-since-cart) has a second, smaller ViT that is not in this table. *Seconds* are given for procedures, on one thread of an AMD EPYC processor, without the choice of
# hyperparameters.
#
# ## Rules that need only weights, side by side
#
# The rules that were measured on three suites or more, in per cent of the experts' accuracy. CART, TSV, Iso-C and Iso-CTS lead in
# every column but the last, together with ACE where it was measured, and with WUDI on MiniLM and glyphs 8. WUDI has no ridge here. ACE and WUDI have other experts of EfficientNet than
# the rows around them; [](71-since-cart) compares them with TSV and CART.

# %% tags=["remove-input"]
table = rules.pivot(index="method", columns="suite", values="normalised")
table = table[list(leaderboard.SUITES)].sort_values("imagenet8", ascending=False)
table.index = pd.Index([leaderboard.title(name) for name in table.index])
short = [name.rsplit(" ", 1) for _, name in leaderboard.SUITES.values()]
table.columns = pd.MultiIndex.from_tuples(short, names=["", "tasks"])
display(HTML(table.to_html(float_format="{:.0f}".format, na_rep="")))

# %% [markdown]
# ## Two experts
#
# `slerp` joins exactly two models. The experts are sentence encoders for TREC and Banking77; every setting is chosen on
# validation examples.

# %% tags=["remove-input"]
from mergebook.lab.results import load_table
from mergebook.lab.statistics import over_seeds, paired, plus_minus, written

pair = load_table("sentences8-pair")
pair["accuracy"] *= 100
means = over_seeds(pair, "method").sort_values("mean", ascending=False)
means.index = pd.Index([leaderboard.title(name) for name in means.index], name="method")
display(HTML(written({"accuracy, %": means}).to_html(index_names=False)))
AGAINST = {name: (name, "average") for name in ("slerp", "task_arithmetic", "tsv", "cart")}
over = paired(pair, AGAINST)
arc, both, spectral = (plus_minus(*row, 1) for row in over.to_numpy()[:3])
display(
    Markdown(f"""
SLERP gains {arc} points over the average of the two. Task arithmetic with scale 1, which adds both
task vectors, gains {both}, and TSV {spectral}. CART equals the average, because the centred task vectors
of two experts cancel.
""")
)

# %% [markdown]
# ## What a rule costs
#
# Each rule merges eight random experts of the shape of CLIP's ViT-B/32 image tower, with 88 million parameters each, on two threads.
# *Additional memory* is what the call adds to the memory of the experts. It includes the merged model of 351 MB.

# %% tags=["remove-input"]
costs = load_table("benchmarks", "rules").query("experts == 8").set_index("rule")
costs = costs.sort_values("warm_seconds")
shown = pd.DataFrame(
    {
        "seconds": costs["warm_seconds"].map("{:.1f}".format),
        "additional memory, MB": (costs["peak_bytes"] / 1e6).map("{:.0f}".format),
    }
)
shown.index = pd.Index([leaderboard.title(name) for name in costs.index])
display(HTML(shown.to_html()))

# %% [markdown]
# ### What a procedure costs
#
# Each procedure adapts eight random experts of the small ViT, with 1.4 million parameters, to 100 inputs of each task, with its default hyperparameters, on two threads.
# AdaRank's 10,000 steps are its paper's number; [](71-since-cart) takes 500 and 2,000. Where a procedure takes more than 20 steps, 20 are timed and the total is extrapolated. Memory is measured as above.

# %% tags=["remove-input"]
costs = load_table("procedures-speed", "procedures").set_index("method").sort_values("seconds")
shown = pd.DataFrame(
    {
        "steps": costs["steps"].map(lambda count: f"{count:,}" if count else "none"),
        "seconds": costs["seconds"].map(lambda s: f"{s:,.0f}" if s > 10 else f"{s:.1f}"),
        "additional memory, MB": (costs["peak_bytes"] / 1e6).map("{:.0f}".format),
    }
)
shown.index = pd.Index([leaderboard.title(name) for name in costs.index])
display(HTML(shown.to_html()))

# %% [markdown]
# ### Beside FusionBench and mergekit
#
# The table compares merges of eight models by this library and by another one, each in a process with one thread and at most 16 GB. Numbers are the
# least of three measurements.
# FusionBench {cite}`tang2024fusionbench` merges modules in memory, here ViT-B/32; mergekit {cite}`goddard2024arcee` merges folders, here of a Llama with 12
# blocks of width 768. MB are what the call adds to the memory. The machine did nothing else meanwhile.

# %% tags=["remove-input"]
peers = load_table("peers-speed").query("program != 'floor'")
peers["side"] = peers["program"].where(peers["program"] == "mergelib", "other")
least = peers.groupby(["case", "method", "side"], sort=False)[["seconds", "peak_bytes"]].min()
ended = peers.groupby(["case", "method"], sort=False)["ended"].first()
shown = pd.DataFrame(index=ended.index)
for words, column, unit in (("s", "seconds", 1), ("MB", "peak_bytes", 1e-6)):
    for where, side in (("here", "mergelib"), ("there", "other")):
        values = (unit * least.xs(side, level="side")[column]).reindex(ended.index)
        texts = values.map(("{:.1f}" if unit == 1 else "{:,.0f}").format)
        shown[f"{words} {where}"] = texts.where(values.notna(), ended)
THERE = {"memory": "modules (FusionBench)", "files": "files (mergekit)"}
shown = shown.rename(index=THERE, level=0).rename(index=plots.label, level=1)
display(HTML(shown.rename_axis([None, None]).to_html()))

# %% tags=["remove-input"]
wide = least.unstack("side")
ratio = wide["peak_bytes"]["other"] / wide["peak_bytes"]["mergelib"]
slower = wide["seconds"]["mergelib"] > wide["seconds"]["other"]
assert slower[slower].index.tolist() == [("files", "average"), ("files", "model_stock")]
display(
    Markdown(f"""
The others need {ratio.min():.0f} to {ratio.max():.0f} times as much memory. mergekit is faster for files in two of five methods: average and Model Stock.
This library hashes every input there, and looks for values that are not finite. It is faster in all other cases that both finish.
""")
)

# %% tags=["remove-cell", "nbval-check-output"]
print(table.head(4).round(0).astype("Int64").to_string())
assert (lead > 0).all()
assert over["mean"].round().tolist() == [0, 5, 7, 0]
assert (
    load_table("sentences8-pair", "chosen")["settings"]
    .map(lambda own: own["task_arithmetic"]["scale"] == 1)
    .all()
)
assert (labelled > -0.5).all()
assert languages[best] - languages["pretrained"] < 2
assert kept["cart"].between(70, 96).all()

# %% tags=["remove-cell"]
from mergebook.suites.models import PICTURE_MODELS

assert round(sum(p.numel() for p in PICTURE_MODELS["vit"]().parameters()) / 1e6, 1) == 1.4

# %% tags=["remove-cell"]
import base64
import io

from myst_nb import glue

EIGHT = ["imagenet8", "sentences8", "vision8"]


def validated(suite, method):
    """Points lost on validation data by the default scale of 1."""
    table = load_table(f"{suite}-baselines", "validation").query("method == @method")
    means = 100 * table.groupby("scale")["accuracy"].mean()
    return means.max() - means[1.0]


# %% tags=["remove-cell"]
pairs = {"average": "average", "sum": "task_arithmetic", "tsv": "tsv", "experts": "individual"}
for key, name in pairs.items():
    glue(f"pair_{key}", float(means["mean"][leaderboard.title(name)]), display=False)
texts = load_table("text4-baselines").groupby("method")[["accuracy", "loss"]].mean()
gains = 100 * (texts["accuracy"] - texts["accuracy"]["pretrained"])
more_loss = texts["loss"] - texts["loss"]["iso_c"]
assert more_loss.drop("individual").min() == 0
numbers = {"stock": gains["model_stock"], "iso": gains["iso_c"], "tsv": -gains["tsv"]}
for key, value in (numbers | {"stock_loss": more_loss["model_stock"]}).items():
    glue(f"text_{key}", float(value), display=False)

# %% tags=["remove-cell"]
KNOWN = ["EMR", "TALL + TIES", "CART-Indexing, 8%", "CART-Indexing, rest averaged, 8%"]
known = rows[rows["suite"].isin(EIGHT) & rows["method"].isin(KNOWN)]["normalised"]
numbers = {
    "lead_low": lead.min(),
    "lead_high": lead.max(),
    "suites": len(lead),
    "fw": kept["frank_wolfe"]["imagenet8"],
    "fw_cart": kept["frank_wolfe+cart"]["imagenet8"],
    "cart": kept["cart"]["imagenet8"],
    "fw_gain": labelled.max(),
    "known_low": known.min(),
    "known_high": known.max(),
    "tsv_lost": max(validated(suite, "tsv") for suite in EIGHT),
}
for key, method in {
    "cart": "cart",
    "tsv": "tsv",
    "surgery": "surgery+cart",
    "ada": "adamerging",
}.items():
    numbers |= {f"{key}_low": kept[method].min(), f"{key}_high": kept[method].max()}

# %% tags=["remove-cell"]
wide = load_table("vision8-symerge-vit_small").pivot(
    index=["seed", "task"], columns="method", values="accuracy"
)
ends = sorted([symerge, 100 * (wide["symerge"] / wide["individual"]).mean()])
numbers |= dict(zip(("symerge_low", "symerge_high"), ends))
tsv = rows.query("suite == 'imagenet8' and method == 'tsv'").iloc[0]
numbers |= {"worst": tsv["worst"], "mean": tsv["normalised"]}
for name, value in numbers.items():
    glue(name, float(value), display=False)


# %% tags=["remove-cell"]
def glue_figure(name, words, draw):
    """Give other pages a figure in two sizes: for a desktop, and for a phone."""
    images = []
    for size in ((7.6, 2.4), (4.0, 3.6)):
        drawn = io.BytesIO()
        draw(size).figure.savefig(drawn, dpi=150, metadata={"Software": None})
        plt.close()
        code = base64.b64encode(drawn.getvalue()).decode()
        images.append(f"data:image/png;base64,{code}")
    source = f'<source media="(max-width: 576px)" srcset="{images[1]}">'
    image = f'<img alt="{words}" src="{images[0]}">'
    figure = f"<figure><picture>{source}{image}</picture></figure>"
    glue(name, HTML(figure), display=False)


# %% tags=["remove-cell"]
methods = ["pretrained", "average", "ties", "tsv", "cart", "individual"]
part = rows.query("suite == 'imagenet8'").set_index("method")["accuracy"]
words = ", ".join(f"{leaderboard.title(name)} {part[name]:.0f}" for name in methods)


def landing(size):
    """What merges keep of eight experts."""
    ax = bars(methods, size)
    title = ["Eight experts in one network", "of the same size"]
    ax.set_title((" " if size[0] > 5 else "\n").join(title))
    return ax


glue_figure("landing", f"Test accuracy in per cent: {words}.", landing)

# %% tags=["remove-cell"]
CHOICES = {
    "average": "average",
    "tsv": "TSV",
    "frank_wolfe+cart": "Frank-Wolfe from CART",
    "surgery+cart": "Surgery on CART",
    "TALL + TIES": "TALL masks",
}
NETWORKS = {"imagenet8": ("EffNet", "o"), "sentences8": ("MiniLM", "^"), "vision8": ("ViT", "s")}
choices = rows[rows["suite"].isin(EIGHT)].pivot(
    index="method", columns="suite", values="normalised"
)
choices = choices.loc[list(CHOICES), EIGHT]
gains = choices.sub(choices.loc["tsv"])
assert gains.loc["TALL + TIES"].min() > 3 > gains.loc["frank_wolfe+cart"].mean()
assert (gains.loc["TALL + TIES"] > gains.loc["frank_wolfe+cart"]).all()


# %% tags=["remove-cell"]
def deciding(size):
    """The accuracy of a few choices on three networks, coloured by what they need."""
    fig, ax = plt.subplots(figsize=size)
    kinds = [kind(rows[rows["method"] == name].iloc[0]) for name in choices.index]
    for suite, (network, marker) in NETWORKS.items():
        shades = [SHADES[name] for name in kinds]
        places = range(len(choices))
        ax.scatter(choices[suite], places, c=shades, marker=marker, s=60, zorder=3)
        ax.scatter([], [], c=plots.DARK, marker=marker, s=60, label=network)
    wide = size[0] > 5
    gap = ": " if wide else "\n"
    names = [f"{CHOICES[name]}{gap}{need}" for name, need in zip(choices.index, kinds)]
    ax.set_yticks(places, names, fontsize=12 if wide else 10)
    ax.invert_yaxis()
    ax.set(xlim=(50, 102), xlabel="% of the experts' accuracy")
    ax.margins(y=0.15)
    title = "One mask per task keeps\nalmost all of the accuracy"
    title = title.replace("\n", " ") if wide else title
    fig.suptitle(title, x=0.02, ha="left", fontsize=13, fontweight="bold")
    legend(fig)
    return ax


# %% tags=["remove-cell"]
listed = "; ".join(
    f"{CHOICES[name]} {row.min():.0f} to {row.max():.0f}" for name, row in choices.iterrows()
)
glue_figure("deciding", f"Per cent of the experts' accuracy on three suites: {listed}.", deciding)

# %% [markdown]
# ## What the leaderboard shows, and what it does not
#
# * **The networks are small**, with 0.5 to 23 million parameters. The ranking of groups agrees
#   across the ten suites of images and sentences; differences within a group of one or two points do not carry over to other networks.
# * **Each task's head is frozen**, as in most papers, unless a row says "fitted heads". With those, CART's lead shrinks
#   on all image networks where it is measured ([why](70-what-five-papers-taught-us)).
# * **The interval is across seeds**, for these tasks. Whether a difference holds for other tasks needs a
#   wider one ([](91-error-rates)). The [ledger](90-claims-ledger) tests the papers' claims with it.
# * **Hyperparameters are chosen on validation data** for every rule that has any. The column of labelled
#   examples says how many this took. [](02-averaging-and-task-vectors) shows what to do without any.
# * **Test accuracy is counted once**: no method was chosen by it.
# * SLERP and CoGraM merge two networks and are not in the table ([](30-cogram)). The uniform soup is the average.
#   FedNova is compared where experts differ in length ([](44-remedies)).
#
# To run a method on these suites yourself, use `mergebook measure baselines --suite imagenet8 --set methods=cart`.
