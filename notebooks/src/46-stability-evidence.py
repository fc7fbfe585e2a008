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
# # The stability framework: further evidence

# %% tags=["parameters", "remove-cell"]
SUITE = "glyphs8"
PROFILE = "default"
SEED = 0
DEVICE = "cpu"

# %% tags=["remove-cell"]
import matplotlib.pyplot as plt
import pandas as pd
from IPython.display import Markdown, display

from mergebook import plots
from mergebook.lab.results import load_result, load_table
from mergebook.lab.statistics import interval, plus_minus
from mergebook.stability.draw import scaling as figures
from mergebook.stability.read import guides
from mergebook.stability.read import scaling as sweep

plots.use_style()
FULL = "vision8-scaling-resnet18_strided"
NETWORKS = {"narrow ResNet-18": "vision8-scaling-resnet18_narrow", "full ResNet-18": FULL}


def load(result):
    """Return merges and experts of a study, with the two errors apart."""
    return [sweep.apart(load_table(result, part)) for part in ("merged", "experts")]


def shown(mean, half, digits=2):
    """Return a mean with its 95 % interval across seeds and a true minus sign."""
    return plus_minus(round(mean, digits) + 0.0, half, digits).replace("-", "−")


# %% tags=["remove-cell"]
gained = {}
for name, result in NETWORKS.items():
    merges, start = load(result)
    fresh = merges[merges["method"] == "average_recalibrated"].assign(method="average")
    rows = pd.concat([start[start["steps"] > 0].assign(method="individual"), fresh])
    gained[name] = sweep.at(sweep.gained(rows, start), learning_rate=0.01, steps=None)

# %% tags=["remove-input"] mystnb={"figure": {"caption": "The average of ResNet-18 experts improves slowly, without a turn, and its generalisation error stays near zero. Top, loss of the average and its two parts; bottom, accuracy of the experts and of the average. Averages of five tasks, less the pretrained model; SGD, BatchNorm statistics recomputed; means and 95 % intervals across five seeds.", "name": "fig-scaling-backbones"}, "image": {"alt": "Top: on both ResNets training and test loss fall together by a tenth of a nat without a turn, and their difference stays at zero. Bottom: experts rise throughout, by 16 and 29 points; the average gains two points on the narrow ResNet and nothing on the full one."}}
fig, axes = plt.subplots(2, 2, figsize=(6.9, 5.2), sharey="row", sharex="col")
for (above, below), (name, rows) in zip(axes.T, gained.items()):
    figures.loss_parts(rows[rows["method"] == "average"], "steps", above)
    figures.method_curves(rows, "steps", "accuracy", below)
    above.set_title(name, fontsize=12, weight="normal")
    below.set(xlabel="steps K")
axes[0, 0].set_ylabel("nats")
axes[1, 0].set_ylabel("points")
plots.legend_outside(fig, ncols=3, fontsize=11)
fig.suptitle("The average of ResNets improves without a turn", fontsize=13, weight="bold")
plt.show()

# %% tags=["remove-cell"]
net, alone = load(NETWORKS["narrow ResNet-18"])
same = net[net["group"].isin(net.loc[net["method"] != "average", "group"])]
saved = {}
for rate in (0.01, 0.05):
    two = sweep.spread(sweep.at(same, learning_rate=rate, steps=100), "method", "loss")
    saved[rate] = sweep.told(two["average_recalibrated"] - two["average"], 2)
longer = load(f"{FULL}-400")
longer[0] = longer[0][longer[0]["method"] == "average_recalibrated"]
longer = sweep.gained(*longer).groupby("steps")[["loss", "generalisation"]].mean()
sentences = sweep.gained(*load("sentences8-scaling"))
sentences = sentences.groupby(["learning_rate", "steps"])[[*sweep.PARTS]].mean()
slow, fast = sentences.loc[1e-4], sentences.loc[5e-4]

# %% tags=["remove-input"]
display(
    Markdown(
        f"""
* **BatchNorm statistics explain the narrow ResNet's loss at a large rate.** Recomputing them lowers the merge's test loss by {saved[0.05]} nats there and by
  {saved[0.01]} at the usual rate.
* **No ResNet turns within 200 steps.** One seed of the full network on eight tasks stops improving between 200 and 400 steps ({longer["loss"].loc[200]:.2f} and
  {longer["loss"].loc[400]:.2f} nats from the pretrained model), but not by its generalisation error ({longer["generalisation"].loc[400]:.2f}).
* **MiniLM repeats the ViT (one seed).** From 8 to 128 steps its training loss falls by {slow["train_loss"].loc[8] - slow["train_loss"].loc[128]:.2f} nats and
  the generalisation error rises by {slow["generalisation"].loc[128] - slow["generalisation"].loc[8]:.2f}. Five times the rate costs {fast["train_loss"].loc[64] - slow["train_loss"].loc[64]:.2f}
  nats of training loss after 64 steps.
""".replace("(-", "(−").replace(" -0", " −0")
    )
)

# %% [markdown]
# These tables extend [](42-scaling-laws) and [](43-choosing-by-the-bound), which **you need first.**
#
# ## Other tasks, networks and rules
#
# The table extends {numref}`fig-scaling-verdict` with 95 % intervals across five seeds, in nats. Merges hold five of the eight tasks, or eight of fourteen or twenty. ResNets have recomputed
# statistics.

# %% tags=["remove-cell"]
STEPS = "steps: {} → {}"
RESNET = {"learning_rate": 0.01}
CASES = {
    "fourteen tasks": ("vision14-scaling-vit_small", "average", {}, 400, 3.2e-3),
    "twenty image tasks": ("vision20-scaling-vit_small", "average", {}, 400, None),
    "twenty scripts": ("glyphs20-scaling-vit_small", "average", {}, 200, 6.4e-3),
    "task arithmetic": ("vision8-scaling-vit_small", "task_arithmetic", {}, 800, 3.2e-3),
    "TIES": ("vision8-scaling-vit_small", "ties", {}, 800, 3.2e-3),
    "DARE": ("vision8-scaling-vit_small", "dare", {}, 800, 3.2e-3),
    "narrow ResNet-18": (NETWORKS["narrow ResNet-18"], "average_recalibrated", RESNET, 200, 0.05),
    "full ResNet-18": (FULL, "average_recalibrated", RESNET, 200, None),
}


def pairs(steps, rate, usual, grid):
    """Return the first and the last setting of each parameter that a study changed."""
    found = {STEPS.format(steps // 2, steps): ({"steps": steps // 2}, {"steps": steps})}
    if rate:
        name = f"learning rate × {rate / usual.get('learning_rate', 4e-4):g}"
        found[name] = ({"steps": 100}, {"steps": 100, "learning_rate": rate})
    if grid:
        found["batch: 8 → 64"] = tuple({"steps": 100, "batch_size": b} for b in (8, 64))
        found["data: 1/4 → all"] = ({"steps": 200, "share": 0.25}, {"steps": 200})
    return {name: [{**usual, **end} for end in ends] for name, ends in found.items()}


# %% tags=["remove-cell"]
changed = {}
for words, (result, rule, usual, steps, rate) in CASES.items():
    merges = sweep.apart(load_table(result, "merged"))
    merges = merges[merges["method"] == rule]
    grid = merges["batch_size"].nunique() > 1
    for name, ends in pairs(steps, rate, usual, grid).items():
        changed[words, name] = sweep.changes(merges, *ends)
columns = {
    "loss": "test loss",
    "train_loss": "training loss",
    "generalisation": "generalisation error",
}
laws = pd.DataFrame(
    {
        key: {columns[part]: shown(*rows.loc[part, ["mean", "half_width"]]) for part in columns}
        for key, rows in changed.items()
    }
).T

# %% tags=["remove-input"]
laws

# %% [markdown]
# Rate, batch and data move the test loss as for the average on eight tasks; longer training still helps the narrow ResNet. $E_G$ does not rise with the rate in any row. Long training costs task arithmetic, TIES and DARE
# more than the average, and TIES and DARE lose most of it in training loss.
#
# ## The scale chosen again for each setting

# %% tags=["remove-cell"]
tuned, untrained = load("vision8-scaling-validated")
merges = load("vision8-scaling-vit_small")[0]
fixed = merges[(merges["method"] == "task_arithmetic") & merges["seed"].isin(tuned["seed"])]
both = pd.concat([tuned[tuned["group"] < 2], fixed])
both = sweep.gained(sweep.at(both, learning_rate=None, steps=None), untrained)
gain = {}
for rate in (4e-4, 3.2e-3):
    two = sweep.spread(sweep.at(both, learning_rate=rate, steps=100), "method")
    gain[rate] = sweep.told(two["task_arithmetic_tuned"] - two["task_arithmetic"])
below = -sweep.difference(two["task_arithmetic_tuned"])[0]
average = sweep.at(merges.query("method == 'average'"), steps=400)
groups = 100 * average.groupby(["seed", "group"])["accuracy"].mean().unstack()

# %% tags=["remove-input"]
display(
    Markdown(f"""
Scales are fixed in both chapters, as in the paper. Choosing the scale of task arithmetic for each setting on 200 labels per task changes accuracy by {gain[4e-4]} points at the usual rate and
{gain[3.2e-3]} at eight times that rate, where the merge is still {below:.0f} points below the pretrained model. A comparison of rates with scales chosen again partly measures this choice.

**Error bars.** The paper's standard error across groups of the same experts is {groups.sem(axis=1).mean():.1f} points here. The standard deviation across seeds is
{groups.mean(axis=1).std():.1f} points, which those bars do not contain.
""")
)

# %% [markdown]
# ## All ways to choose a setting
#
# Accuracy (points) and test loss (nats) lost against the best of 32 settings with all data, with 95 % intervals across five seeds. Rows on experts judge each alone.

# %% tags=["remove-cell"]
names = ("curvature", "gradients", "points")
record = {name: load_table("vision8-stability-vit_small", name) for name in names}
GUIDES = {
    "theorem_3": "Theorem 3",
    "best_gamma": "Theorem 3 with γ*",
    "printed": "Theorem 3 with its own rate",
    "repaired": "corrected bound",
}
OTHERS = {"default": "our default", "random": "random setting", "elsewhere": "best on other seeds"}
OTHERS |= {"search": "search, training accuracy", "validated": "search, 200 labels per task"}
OTHERS |= {"experts": "experts' validation accuracy", "experts_loss": "experts' validation loss"}
OTHERS |= {"fixed_progress": "best ηK on other seeds"}


def losses(table, guide):
    """Return the two losses of a guide as text."""
    lost = [guides.regrets(table, value)[guide].tolist() for value in ("accuracy", "loss")]
    return [shown(*interval(each), digits) for each, digits in zip(lost, (1, 2), strict=True)]


# %% tags=["remove-cell"]
chosen = {}
for words, suite in {"eight": "vision8", "fourteen": "vision14"}.items():
    sources = [load_table(f"{suite}-scaling-vit_small", part) for part in ("merged", "experts")]
    tables = {L: guides.settings(*sources, record, L) for L in ("example", 1.0)}
    for L, reading in {"example": "L measured", 1.0: "L = 1"}.items():
        for guide, name in GUIDES.items():
            chosen[words, f"{name}, {reading}"] = losses(tables[L], guide)
    if words == "eight":
        judged = load_table("vision8-scaling-validated", "merged")
        tables[1.0] = guides.validated(tables[1.0], judged)
    for guide, name in OTHERS.items():
        if words == "eight" or guide != "validated":
            chosen[words, name] = losses(tables[1.0], guide)
table = pd.DataFrame(chosen, index=["points", "nats"]).T
table = table.unstack(0).swaplevel(axis=1).sort_index(axis=1).fillna("–")
table = table.reindex(dict.fromkeys(name for _, name in chosen))

# %% tags=["remove-input"]
table

# %% [markdown]
# Counts are per seed. Gradients are those of single examples, products are Hessian-vector products, and forward counts examples that judge a
# model.

# %% tags=["remove-input"]
studies = ("vision8-scaling-vit_small", "vision8-stability-vit_small")
sources = [load_table(studies[0], part) for part in ("merged", "experts")]
known = (load_result(name)["provenance"]["settings"] for name in studies)
guides.costs(*sources, *known).rename_axis(None)

# %% [markdown]
# ## Weights and noise
#
# A bound for unequal weights is about the mean loss $f$, not the surrogate $\tilde f$ of {prf:ref}`thm-stability-descent`.
#
# ```{prf:theorem} What any merge gains
# :label: thm-choosing-weighted
# With the conditions of {prf:ref}`thm-stability-descent`, let $\delta = \lVert \nabla f - \nabla \tilde f \rVert$ at
# $\theta_0$, $m^2 = \sum_t \omega_t \lVert \nabla f_t \rVert^2$ there, and
# $P = \eta^2 L^2 \big( 3 \sum_t \frac{\omega_t \sigma_t^2}{b} A_t + 6 m^2 B \big)$. Then
#
# $$
# \mathbb E f(\theta_{\text{merged}}) \le f(\theta_0) - \frac u2 \lVert \nabla f(\theta_0) \rVert^2
# + u^2 L \sum_t \frac{\omega_t^2 \sigma_t^2 \lVert a_t \rVert_2^2}{b \lVert a_t \rVert_1^2} + \frac u2 \big( \delta + \sqrt P \big)^2 .
# $$
# ```
#
# ```{prf:proof}
# The proof of {prf:ref}`thm-stability-descent` applies up to $\frac u2 \mathbb E \lVert \nabla f - h \rVert^2$, with $\nabla f$ in place of
# $\nabla \tilde f$. Split $\nabla f - h = (\nabla f - \nabla \tilde f) + (\nabla \tilde f - h)$. The first part has length $\delta$. The second
# has a mean square of at most $L^2 \sum_t \omega_t D_t \le P$. Roots of mean squares add up at most.
# ```
#
# Equal weights and equal steps give $\delta = 0$. At a fixed rate with equal steps and weights, and with $s = \eta \sigma^2 / b$, the bound of {prf:ref}`thm-stability-descent` is least at the positive root of
#
# $$
# 9 L^2 \kappa^2 u^2 + 3 L^2 s\, u = \tfrac14 \lVert \nabla f(\theta_0) \rVert^2 - \tfrac{L s}{T} ,
# $$ (eq-choosing-noise)
#
# and at $u = \eta K = 0$ where the right side is negative, because noise then costs more than any step gains.
#
# ## Check against known values

# %% tags=["hide-input", "nbval-check-output"]
print("changes of a parameter:", len(changed))
print("ways to choose:", len(table))

# %% tags=["remove-cell"]
last = {name: rows[rows["method"] == "average"] for name, rows in gained.items()}
for rows in last.values():
    curve = rows.groupby("steps")[["loss", "generalisation"]].mean()
    assert curve["loss"].is_monotonic_decreasing
    assert curve["generalisation"].abs().max() < 0.03
assert longer["loss"].loc[400] >= longer["loss"].loc[200] - 0.01
assert slow["train_loss"].is_monotonic_decreasing
assert slow["generalisation"].is_monotonic_increasing
assert (laws.xs("learning rate × 8", level=1)["generalisation error"].str[0] == "−").all()

# %% [markdown]
# ## Exercises
#
# ```{exercise} Which of the two parts? (easy)
# :label: ex-evidence-parts
# In which rows of the first table does the test loss change by more than its half-width, and how often does $E_G$ account for most of that change?
# ```

# %% [markdown]
# ````{solution-start} ex-evidence-parts
# :class: dropdown
# ````
# $E_G$ accounts for most of the change only where data change and, in two rows, steps.

# %%
for key, rows in changed.items():
    test, _, gap = (rows.loc[part] for part in ("loss", "train_loss", "generalisation"))
    if abs(test["mean"]) > test["half_width"]:
        print(*key, f"{gap['mean'] / test['mean']:.1f}", sep=", ")

# %% [markdown]
# ````{solution-end}
# ````
