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
# # Choosing, checking, reporting

# %% tags=["parameters", "remove-cell"]
SUITE = "glyphs8"
PROFILE = "default"
SEED = 0
DEVICE = "cpu"

# %% tags=["remove-cell"]
from dataclasses import replace
from functools import partial

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import torch
from IPython.display import Markdown, display

from mergebook import load_suite, load_zoo, plots
from mergebook.chapters.joint_head import one_question
from mergebook.lab.comparison import first, merge_zoo
from mergelib.evaluation.loops import has_bfloat16
from mergelib.tuning import merged_grid

plots.use_style()
zoo = load_zoo(load_suite(SUITE, seed=SEED, profile=PROFILE), device=DEVICE)
zoo = replace(zoo, suite=first(zoo.suite, validation=250))
suite, joint = zoo.suite, one_question(zoo)
TASKS = len(zoo.experts)
SCALES = {
    "task_arithmetic": sorted({2 / TASKS, 0.1, 0.3, 0.4, 0.6, 0.8}),
    "tsv": [0.5, 1.0, 1.25, 1.5, 2.0, 2.5],
}
DEFAULTS = {"task_arithmetic": 0.3, "tsv": 1.0}


# %% tags=["remove-cell"]
@torch.no_grad()
def correct(state, split, names):
    """Return which images are classified correctly, under the task's head and the joint head."""
    rows = {False: [], True: []}
    device = next(iter(state.values())).device
    for name in names:
        inputs = getattr(suite.tasks[name], split).inputs.to(device)
        inputs = suite.tasks[name].transform(inputs)
        with torch.autocast(device.type, torch.bfloat16, enabled=has_bfloat16(device)):
            features = torch.func.functional_call(zoo.model.eval(), dict(state), (inputs,))
        for is_joint, source in ((False, zoo), (True, joint)):
            labels = getattr(source.suite.tasks[name], split).labels
            answers = source.heads[name](features.float()).argmax(1).cpu()
            rows[is_joint].append((answers == labels).numpy())
    return np.stack(rows[False]), np.stack(rows[True])


known, among_all = {}, {}
for method, scales in SCALES.items():
    for i, state in merged_grid(partial(merge_zoo, method, zoo), method, {"scale": scales}):
        for split in ("validation", "test"):
            key = (method, scales[i], split)
            known[key], among_all[key] = correct(state, split, suite.tasks)
own = {name: correct(expert, "test", [name]) for name, expert in zoo.experts.items()}


# %% tags=["remove-cell"]
rng = np.random.default_rng(SEED)


def stacked(method, split):
    """Return correctness as one array: scales, tasks, images."""
    return np.stack([known[method, scale, split] for scale in SCALES[method]])


def sampled(table, count, draws=10_000):
    """Return each scale's accuracy on `count` images per task, drawn with replacement."""
    accuracies = np.zeros((len(table), draws))
    for task in range(TASKS):
        places = rng.integers(table.shape[2], size=(draws, count))
        accuracies += table[:, task][:, places].mean(2) / TASKS
    return accuracies


def choose_at_random(method, count):
    """Return the points lost and the points overstated when `count` images per task choose."""
    by_scale = stacked(method, "test").mean((1, 2))
    validation, test = (sampled(stacked(method, split), count) for split in ("validation", "test"))
    ties = 1e-9 * rng.random(validation.shape)
    lost = by_scale.max() - by_scale[(validation + ties).argmax(0)]
    overstated = test.max(0) - by_scale[(test + ties).argmax(0)]
    return 100 * lost, 100 * overstated


# %% tags=["remove-cell"]
COUNTS = (5, 20, 100)
draws = {(method, n): choose_at_random(method, n) for method in SCALES for n in COUNTS}
lost = pd.Series({key: values[0].mean() for key, values in draws.items()})
unlucky = pd.Series({key: np.quantile(values[0], 0.9) for key, values in draws.items()})
overstated = pd.Series({key: values[1].mean() for key, values in draws.items()})


def accuracy_of(method, scale, table=known):
    """Return mean test accuracy in %."""
    return 100 * table[method, scale, "test"].mean()


def behind_best(method, scale):
    """Return the points of test accuracy that a scale loses against the best scale of the grid."""
    best = max(accuracy_of(method, other) for other in SCALES[method])
    return best - accuracy_of(method, scale)


by_default = {method: behind_best(method, scale) for method, scale in DEFAULTS.items()}
by_rule = behind_best("task_arithmetic", 2 / TASKS)
by_task = known["tsv", 1.0, "test"].mean(1) / [own[name][0].mean() for name in suite.tasks]

# %% tags=["remove-input"] mystnb={"figure": {"caption": "A few labelled examples choose a scale well, but their own accuracy is too high to be reported. Eight experts of `glyphs8` (one seed), means of 10,000 random draws. Bars end at the 90th percentile; dashed and dotted lines are scales chosen without examples.", "name": "fig-choosing"}, "image": {"alt": "Two panels over 5, 20 and 100 labelled examples per task. Left, the test accuracy lost by the chosen scale falls from about 1.6 points to about 0.2 for TSV and task arithmetic. Dashed lines show the default scales: 1.8 points lost for TSV, almost none for task arithmetic; the rule 2/T loses 0.8. Right, the accuracy on the choosing examples is too high by about 3.5 to 4 points with five examples, 1.2 to 1.4 with twenty and 0.5 or less with a hundred."}}
figure, panels = plt.subplots(1, 2, figsize=(6.3, 2.9), sharey=True, width_ratios=[1.4, 1])
places = np.arange(len(COUNTS))
for shift, method in ((-0.06, "task_arithmetic"), (0.06, "tsv")):
    shade, means = plots.colour(method), lost[method].to_numpy()
    bars = np.stack([np.zeros(len(COUNTS)), (unlucky[method] - means).clip(0)])
    panels[0].errorbar(places + shift, means, bars, color=shade, elinewidth=1.3, fmt="o-")
    panels[1].plot(places, overstated[method], "o-", color=shade, label=plots.label(method))
    panels[0].axhline(by_default[method], color=shade, ls="--", lw=1.3)
style = {"ha": "right", "va": "bottom", "fontsize": 12}
shade = plots.colour("task_arithmetic")
panels[0].axhline(by_rule, color=shade, ls=":", lw=1.6)
panels[0].text(3.4, by_default["tsv"], "TSV's default", color=plots.colour("tsv"), **style)
panels[0].text(3.4, by_rule, "scale 2/T", color=shade, **style)
panels[0].text(3.4, by_default["task_arithmetic"], "default 0.3", color=shade, **style)
panels[0].set(xlim=(-0.3, 3.45), ylabel="points", ylim=(0, None))
panels[1].set_xlim(-0.3, 2.3)
panels[1].legend(loc="upper right", fontsize=12, borderaxespad=0, handlelength=1)
for ax, what in zip(panels, ("Accuracy lost", "Accuracy overstated"), strict=True):
    ax.set_xticks(places, COUNTS)
    ax.set_title(what, fontsize=12, weight="normal")
figure.supxlabel("labelled examples per task that choose the scale", fontsize=12)
title = "20 examples per task choose a scale, but overstate its accuracy"
figure.suptitle(title, fontsize=12, weight="bold", x=0.01, ha="left")
plt.show()

# %% tags=["remove-input"]
display(
    Markdown(f"""
* **Twenty labelled examples per task choose TSV's scale well.** The chosen scale is
  {lost["tsv", 20]:.1f} points of test accuracy below the best one, TSV's default scale
  {by_default["tsv"]:.1f} points.
* **The examples that chose the scale overstate its accuracy** by {overstated["tsv", 20]:.1f}
  points with 20 examples per task and by {overstated["tsv", 100]:.1f} with 100.
* **A mean hides the worst task.** TSV keeps {100 * by_task.mean():.0f} % of the experts' accuracy
  on average, but {100 * by_task.min():.0f} % on the worst task.
* **A known task hides a second loss.** TSV's accuracy falls from
  {accuracy_of("tsv", 1.0):.0f} % to {accuracy_of("tsv", 1.0, among_all):.0f} % when the task of each image is unknown.
""")
)

# %% [markdown]
# **Use it when** you have to choose between merged models, or want to publish an accuracy.
# **You need first:** [](02-averaging-and-task-vectors). **Time:** 15 minutes with the exercises, one
# minute to run.
#
# ## Choose the scale on validation examples
#
# Most merging methods have a scale $\lambda$, and the best scale depends on the experts. The cell
# below merges the eight experts with TSV at three scales, and evaluates each merged model on the
# first 20 validation images of each task. The table also shows the accuracy on all test images.

# %%
import mergelib as ml
from mergebook import load_suite, load_zoo
from mergebook.lab.comparison import first

suite = load_suite(SUITE, seed=SEED, profile=PROFILE)
zoo = load_zoo(suite, device=DEVICE)
merges = {
    scale: ml.merge("tsv", zoo.experts, pretrained=zoo.pretrained, scale=scale)
    for scale in (1.0, 1.5, 2.0)
}
few = first(suite, validation=20)
validation = {
    scale: ml.evaluate(zoo.model, merged, zoo.heads, few, split="validation")
    for scale, merged in merges.items()
}
accuracy = {scale: table["accuracy"].mean() for scale, table in validation.items()}
chosen = max(accuracy, key=accuracy.get)

# %% tags=["remove-input"]
shown = {
    "validation accuracy, %": accuracy,
    "test accuracy, %": {scale: known["tsv", scale, "test"].mean() for scale in merges},
}
(100 * pd.DataFrame(shown)).rename_axis(columns="scale of TSV").round(1)

# %% [markdown]
# The choice is 1.5, which is also best on the test images. It ties with 2.0 on these validation images, and others
# might choose another scale. The figure at the top therefore repeats the choice with
# 10,000 random draws of validation images, for six scales of TSV and six of task arithmetic.
# The table shows the mean test accuracy that the chosen scale loses, and in parentheses the loss that
# one draw in ten exceeds:

# %% tags=["remove-input"]
rows = {}
for n in COUNTS:
    texts = [f"{lost[m, n]:.1f} ({unlucky[m, n]:.1f})" for m in SCALES]
    rows[f"chosen on {n} examples per task"] = texts
rows["default scale"] = [f"{by_default[m]:.1f}" for m in SCALES]
rows["λ = 2/T"] = [f"{by_rule:.1f}", ""]
names = [f"{plots.label(m)}, points" for m in SCALES]
pd.DataFrame.from_dict(rows, orient="index", columns=names)

# %% [markdown]
# For task arithmetic, five examples per task lose 1.7 points, where the default scale loses less than 0.1 points and the rule $\lambda = 2/T$ loses
# about 0.8. For TSV, five examples and the default lose about as much. A hundred find a scale within 0.2 points of the best.
#
# What does the default cost elsewhere? The next table answers this from the stored validation results of six suites
# . It shows the points lost against the best setting that was searched, as a mean across seeds. Each row names the network and the number of tasks. Accuracies between two searched scales are interpolated.

# %% tags=["remove-cell"]
from mergebook.chapters.leaderboard import SUITES
from mergebook.lab.results import load_table


def lost_on_validation(name, method, scale, **fixed):
    """Return the mean across seeds of the points a setting loses against the best of its grid."""
    table = load_table(f"{name}-baselines", "validation").query("method == @method")
    losses = []
    for _, runs in table.groupby("seed"):
        best = runs["accuracy"].max()
        for column, value in fixed.items():
            runs = runs[runs[column] == value]
        curve = runs.set_index("scale")["accuracy"].sort_index()
        losses.append(best - np.interp(scale, curve.index, curve))
    return 100 * np.mean(losses)


# %% tags=["remove-input"]
stored = {}
for name in ("imagenet8", "sentences8", "vision8", "glyphs8", "imagenet20", "vision20"):
    count = load_table(f"{name}-baselines", "test")["task"].nunique()
    stored[SUITES[name][1]] = {
        ("task arithmetic", "λ = 0.3"): lost_on_validation(name, "task_arithmetic", 0.3),
        ("task arithmetic", "λ = 2/T"): lost_on_validation(name, "task_arithmetic", 2 / count),
        ("TSV", "default"): lost_on_validation(name, "tsv", 1.0),
        ("CART", "defaults"): lost_on_validation(name, "cart", 1.0, rank_ratio=0.08),
    }
stored = pd.DataFrame(stored).T
stored.rename_axis(columns=["", "points lost"]).round(1)

# %% [markdown]
# TSV's default is the safest: it loses at most 2.0 points on these suites. The scale 0.3 of task arithmetic
# loses 9.4 points with twenty ImageNet experts, where 2/T loses 0.7. CART has two settings to choose, and its defaults lose up to
# 6.7 points, so validation examples pay off most for CART.
#
# ```{admonition} Takeaway: choose on 20 or more labelled examples per task
# :class: tip
# On this suite, with 20 examples per task, TSV's chosen scale loses about 0.7 points on average, and about 2 in one
# draw of ten. With five, a choice is not better than the default.
# ```
#
# ## Report the accuracy on other examples
#
# The chosen scale has the highest accuracy on the choosing examples. It is partly the best scale and
# partly the luckiest one. The difference between its accuracy on these examples and on new examples is the **optimism** of the choice,
# and the right panel of the figure shows it.
#
# The optimism is the reason never to choose on test data. We measured it by choosing and reporting on the same random part
# of the test images. With 20 images per task the reported accuracy is 1.2 points too high for
# TSV, which is more than the 1.1 points that the choice gains over the default scale. With 100 images per
# task it is 0.3 points too high.
#
# The optimism shrinks as the number of examples grows, and it grows with the number of candidates. A method with many
# settings therefore gains more from a choice on test data than the plain average, which has none.
#
# ## Evaluate every task
#
# A mean across tasks can hide a task that the merged model has lost. Divide each task's accuracy by
# that of the task's own expert:

# %%
import pandas as pd

merged = merges[1.0]
table = ml.evaluate(zoo.model, merged, zoo.heads, suite, autocast=True)
known_task = table.set_index("task")["accuracy"]
experts = [
    ml.evaluate(zoo.model, expert, zoo.heads, suite, tasks=[task], autocast=True)
    for task, expert in zoo.experts.items()
]
expert_accuracy = pd.concat(experts).set_index("task")["accuracy"]
kept = 100 * known_task / expert_accuracy
columns = {"test accuracy, %": 100 * known_task, "% of the expert": kept}
table = pd.DataFrame(columns).sort_values("% of the expert").round(1)
table.rename_axis(index=None, columns="task")

# %% [markdown]
# The merged model keeps 63 % or more on seven tasks, but only 38 % on braille. The [leaderboard](80-leaderboard) lists
# the mean and the worst task, in per cent of the experts' accuracy. Its scales are chosen on validation
# data, and its numbers are means across seeds:

# %% tags=["remove-input"]
from mergebook.chapters import leaderboard

entries = pd.DataFrame(leaderboard.entries())
entries = entries[entries["suite"].isin(["imagenet8", "sentences8", "vision8", "glyphs8"])]
entries = entries[entries["method"].isin(["task_arithmetic", "tsv", "cart"])]
worst = entries.pivot(index="suite", columns="method", values=["normalised", "worst"])
worst = worst.swaplevel(axis=1)[["task_arithmetic", "tsv", "cart"]]
worst.index = pd.Index([SUITES[name][1] for name in worst.index])
worst.columns = pd.MultiIndex.from_tuples(
    [(plots.label(m), {"normalised": "mean"}.get(c, c)) for m, c in worst.columns]
)
worst.round(0).astype(int)

# %% [markdown]
# On eight image tasks with EfficientNet, TSV keeps 73 % on average and 52 % on the worst task. If a task falls far
# below the mean, leave its expert out or keep it as a separate model.
#
# ## State whether the task is known
#
# Each number so far assumes that the task of every image is known: the image is classified under its task's
# own **head**, among 12 to 24 classes. Most papers evaluate in this way. An application often has to decide among the classes of
# all tasks. `one_question` stacks the heads into one head with 171 classes, as in [](00-what-merging-is):

# %%
from mergebook.chapters.joint_head import one_question

joint = one_question(zoo)
table = ml.evaluate(joint.model, merged, joint.heads, joint.suite, autocast=True)
unknown_task = table["accuracy"]
means = {"task known": known_task.mean(), "task unknown": unknown_task.mean()}
pd.DataFrame(100 * pd.Series(means), columns=["test accuracy, %"]).round(1)

# %% tags=["remove-input"] mystnb={"figure": {"caption": "The best scale depends on the question. Test accuracy of TSV by scale, on `glyphs8`, with the task of each image known (own head) and unknown (one head for all 171 classes).", "name": "fig-choosing-question"}, "image": {"alt": "Two curves of test accuracy over the scale of TSV from 0.5 to 2.5. With the task known the curve rises to 70 % at a scale of 1.5 and falls slowly. With the task unknown it is highest, at 64 %, at a scale of 1.25 and falls steeply to 47 % at 2.5."}}
figure, ax = plt.subplots(figsize=(6.9, 3.1))
for table, shade, name in (
    (known, plots.colour("tsv"), "task known"),
    (among_all, plots.BLACK, "task unknown"),
):
    curve = pd.Series({scale: accuracy_of("tsv", scale, table) for scale in SCALES["tsv"]})
    ax.plot(curve.index, curve, "o-", color=shade)
    ax.plot(curve.idxmax(), curve.max(), "o", ms=13, mfc="none", mec=shade, mew=2)
    ax.text(2.56, curve.iloc[-1], name, color=shade, va="center")
ax.set(xlabel="scale of TSV", ylabel="test accuracy, %", xlim=(0.4, 3.15))
ax.set_xticks([0.5, 1.0, 1.5, 2.0, 2.5])
ax.set_title("An unknown task costs accuracy and needs a smaller scale")
plt.show()

# %% tags=["remove-cell"]
curves = {
    name: pd.Series({scale: accuracy_of("tsv", scale, table) for scale in SCALES["tsv"]})
    for name, table in (("known", known), ("unknown", among_all))
}
expert_known, expert_unknown = (100 * np.mean([o[i].mean() for o in own.values()]) for i in (0, 1))
loss_at_2 = {name: round(curve.max() - curve[2.0]) for name, curve in curves.items()}

# %% [markdown]
# TSV's best scale is 1.5 when the task is known and 1.25 when it is unknown. A scale of 2 loses
# 2 points of the best accuracy in the first case and 8 points in the second. The experts lose
# even more than the merged model: on images of its own task, an expert falls from 87 to
# 69 % when it has to decide among all classes. So choose the scale with the heads that the application will use.
#
# (choosing-heads)=
# ## Fit the heads before you compare methods
#
# Like most papers, this book judges merged models under **frozen heads**. They are made from features of the pretrained
# model, three examples per class. A merged model can lose accuracy in two ways: its features are worse, or they are good and
# no longer fit the head. **Fitted heads** separate the two. Such a head is a linear classifier: a ridge regression of the labels on the merged
# model's own features. It is fitted to the 500 validation examples per task that also choose the hyperparameters. The control is the pretrained model under fitted heads, without any merging.

# %% tags=["remove-cell"]
from mergebook.lab.statistics import both_intervals

fitted = load_table("vision8-fresh_heads")
fitted["accuracy"] *= 100
judged = {
    "frozen": fitted[(fitted["head"] == "frozen") & (fitted["by"] != "fresh")],
    "fitted": fitted[(fitted["head"] == "validation") & (fitted["by"] != "frozen")],
}
by_head = pd.DataFrame({k: v.groupby("method")["accuracy"].mean() for k, v in judged.items()})
merging = by_head.drop(index=["pretrained", "individual"])
crossed = [
    judged["fitted"].query("method == 'pretrained'").assign(method="no merge"),
    judged["frozen"].query("method == 'cart'"),
]
pairs = {"CART − task arithmetic": ("cart", "task_arithmetic"), "CART − TIES": ("cart", "ties")}
leads = {kind: both_intervals(table, pairs) for kind, table in judged.items()}
no_merge = both_intervals(pd.concat(crossed), {"": ("no merge", "cart")}).iloc[0]
better = both_intervals(judged["fitted"], {"": ("cart", "pretrained")}).iloc[0]

# %% tags=["remove-cell"]
from myst_nb import glue

glue("no_merge_fitted", float(by_head.loc["pretrained", "fitted"]), display=False)
glue("cart_frozen", float(by_head.loc["cart", "frozen"]), display=False)
for kind, rows in leads.items():
    glue(f"lead_{kind}", float(rows.loc["CART − task arithmetic", "mean"]), display=False)

# %% tags=["remove-input"] mystnb={"figure": {"caption": "The unmerged pretrained model with fitted heads is better than every merged model with frozen heads, and the rules hardly differ with fitted heads. Mean test accuracy on `vision8`: eight image tasks with a small vision transformer, five seeds. Hyperparameters are chosen under the heads that judge, on the 500 validation labels per task to which the fitted heads are fitted.", "name": "fig-choosing-heads"}, "image": {"alt": "A slope chart of test accuracy under frozen heads on the left and fitted heads on the right. The pretrained model rises from 45 to 66 %, the average from 51 to 68, task arithmetic from 55 to 70 and CART from 60 to 70. Grey lines of TIES, Consensus, TSV, Iso-C and Iso-CTS end within two points of CART. The experts fall from 80 to 78 %."}}
shown = {
    "individual": "one expert per task",
    "cart": "CART",
    "task_arithmetic": "task arithmetic",
    "average": "average",
    "pretrained": "pretrained, no merge",
}
figure, ax = plt.subplots(figsize=(6.9, 3.6))
for name, row in by_head.iterrows():
    words = shown.get(name, "")
    shade = plots.colour(name) if words else plots.SILVER
    ax.plot([0, 1], row, "o-", color=shade, zorder=2 if words else 1)
    ax.text(-0.04, row["frozen"], words, ha="right", va="center", color=shade)
ax.text(1.04, merging["fitted"].mean(), "eight rules", va="center", color=plots.DARK)
ax.text(1.04, by_head.loc["pretrained", "fitted"] - 1, "no merge", va="center")
ax.set_xticks([0, 1], ["frozen heads", "fitted heads"])
ax.set(xlim=(-0.75, 1.4), ylabel="test accuracy, %")
ax.grid(axis="x", visible=False)
ax.set_title("On eight small image tasks, fitted heads beat every merging rule")
plt.show()


# %% tags=["remove-input"]
def in_words(row):
    """Format a mean difference with its interval across seeds, then across seeds and tasks."""
    text = f"{row['mean']:.1f} ± {row['half_width']:.1f} ({row['low']:.1f} to {row['high']:.1f})"
    return text.replace("-", "−")


table = pd.DataFrame(
    {f"{kind} heads": rows.apply(in_words, axis=1) for kind, rows in leads.items()}
)
table.rename_axis(columns="points, ± across seeds (across seeds and tasks)")

# %% tags=["remove-input"]
display(
    Markdown(f"""
The eight rules span {merging["frozen"].max() - merging["frozen"].min():.1f} points under frozen heads and
{merging["fitted"].max() - merging["fitted"].min():.1f} under fitted ones. Without any merging, fitted heads reach
{by_head.loc["pretrained", "fitted"]:.1f} %. This is {in_words(no_merge)} points more than CART under frozen heads, with the same
labels. Merging still improves the features: CART under fitted heads is {in_words(better)} points better than no merge.
""")
)

# %% [markdown]
# So most of CART's lead on this suite is agreement with a frozen head. {cite:t}`kong2024finetuning` also found that
# merged features no longer fit the classifiers, and propose to evaluate with classifiers that are fitted again.
#
# On EfficientNet, whose pretrained features are further from these tasks, CART keeps more than half of its
# lead, and the pretrained model with fitted heads stays behind CART with frozen heads. On MiniLM, heads fitted to 100 labels lower every accuracy,
# that of CART from 84 to 78 % ([](70-what-five-papers-taught-us)). Each grid of scales was
# widened until its best point lay inside. The other chapters compare methods under frozen heads, as the papers do.
#
# ```{admonition} Takeaway: report the pretrained model with fitted heads
# :class: tip
# If you have labels to tune a merge, try heads fitted to the same labels, also on the pretrained model. On this suite,
# they gain more than any merge under frozen heads; on EfficientNet and on glyphs they do not, and on MiniLM they lose accuracy.
# ```
#
# ## Give the interval that matches the claim
#
# A difference between two methods is measured in a table with one row per seed and one column per
# task. Two intervals answer two questions. The interval **across seeds** holds for *these* tasks.
# The interval **across seeds and tasks** also counts the tasks as a sample, and holds for *other tasks like these*.
#
# Take three seeds and four tasks, with these differences in points:
#
# | | task A | task B | task C | task D | mean |
# |---|---:|---:|---:|---:|---:|
# | seed 1 | 6 | 0 | −1 | 1 | 1.5 |
# | seed 2 | 6 | 1 | −1 | 2 | 2.0 |
# | seed 3 | 6 | 2 | −1 | 3 | 2.5 |
# | mean | 6 | 1 | −1 | 2 | 2.0 |
#
# *Across seeds*, the three row means have a standard deviation of 0.5, so the standard error is
# $0.5/\sqrt 3 = 0.29$. Student's $t$ with two degrees of freedom is 4.30, and the interval is 2.0 ± 1.2.
#
# *Across seeds and tasks*, three mean squares count. Four tasks times the variance of the row means is
# $R = 4 \cdot 0.25 = 1$. Three seeds times the variance of the column means is $C = 3 \cdot 8.67 = 26$. The residuals
# have the mean square $E = 1/3$. With $S = 3$ seeds and $T = 4$ tasks, the variance of the mean is
#
# $$
# \frac{R + C - E}{S\,T} = \frac{26.67}{12} = 2.22 .
# $$ (eq-choosing-variance)
#
# The standard error is 1.49. It has 3.1 degrees of freedom by Satterthwaite's approximation, and the interval is 2.0 ± 4.6. The
# difference is clear for these four tasks, but not for others: task A supplies most of it.
# `crossed` computes the same:

# %%
import numpy as np

from mergebook.lab.statistics import crossed, interval

differences = np.array([[6, 0, -1, 1], [6, 1, -1, 2], [6, 2, -1, 3]])
mean, half_width = interval(differences.mean(axis=1))
low, high = crossed(differences).interval()
ends = {
    "across seeds": [mean - half_width, mean + half_width],
    "across seeds and tasks": [low, high],
}
pd.DataFrame.from_dict(ends, orient="index", columns=["low", "high"]).round(1)

# %% [markdown]
# The same happens with real results. The table lists differences in test accuracy on `vision8`, with five seeds and eight
# tasks, and 95 % intervals:

# %% tags=["remove-input"]
from mergebook.lab.statistics import both_intervals, written

vision = load_table("vision8-baselines", "test")
vision["accuracy"] *= 100
PAIRS = {
    "TSV − task arithmetic": ("tsv", "task_arithmetic"),
    "TIES − task arithmetic": ("ties", "task_arithmetic"),
    "task arithmetic − average": ("task_arithmetic", "average"),
}
both = both_intervals(vision, PAIRS)
shown = written({"across seeds, points": both[["mean", "half_width"]]})
ends = both[["low", "high"]].to_numpy()
shown["across seeds and tasks, points"] = [f"[{low:.1f}, {high:.1f}]" for low, high in ends]
shown

# %% [markdown]
# ```{admonition} Takeaway: name the population of the interval
# :class: tip
# Across seeds, task arithmetic is 3.7 ± 0.5 points better than averaging. Across seeds and tasks, the interval is −1.8 to 9.2 points.
# Only TSV's advantage in this table is clear for other tasks as well. [](91-error-rates) shows how often each interval is wrong.
# ```
#
# ## A checklist to paste into your report
#
# ```text
# Models      [ ] pretrained model and experts: names, revisions, who trained them
# Method      [ ] name, software version, all hyperparameters
#             [ ] which of them were chosen, from how many candidates
# Labels      [ ] labelled examples per task that chose hyperparameters: ___
#             [ ] labelled / unlabelled examples per task used to merge: ___ / ___
#             [ ] no test example was used to choose or to merge
# Compared    [ ] pretrained model, experts, average, task arithmetic
#             [ ] the same labelled examples for every method
# Accuracy    [ ] every task; mean and worst task as % of the expert
#             [ ] task of each input: known / unknown; heads: own / joint
# Uncertainty [ ] number of seeds, and what a seed changes
#             [ ] paired difference, 95 % interval across seeds
#             [ ] the same across seeds and tasks, if you claim other tasks
# ```
#
# ## Check against known values
#
# Three results are known in advance. A choice among one candidate has no optimism. Our counts of correct images must agree with
# `ml.evaluate`. The worked example must agree with `crossed`.

# %% tags=["remove-cell"]
single = stacked("tsv", "test")[:1]
gaps = sampled(single, 20)[0] - single.mean()
counted = known["tsv", 1.0, "test"].mean(1)

# %% tags=["hide-input", "nbval-check-output"]
error = np.std(gaps) / np.sqrt(len(gaps))
print("one candidate, no optimism:", abs(np.mean(gaps)) < 4 * error)
print("counts agree with ml.evaluate:", abs(counted - known_task).max() < 0.02)
print("worked example agrees with crossed:", abs((high - low) / 2 - 4.6) < 0.05)

# %% tags=["remove-cell"]
# What the text and the figures' descriptions say, held to a tolerance.
assert abs(half_width - 1.24) < 0.01
assert 4 * differences.mean(1).var(ddof=1) == 1
assert abs(3 * differences.mean(0).var(ddof=1) - 26) < 1e-9
estimate = crossed(differences)
assert abs(estimate.error**2 - 2.22) < 0.005
assert abs(estimate.freedom - 3.1) < 0.06
assert both.round(1).loc["task arithmetic − average"].tolist() == [3.7, 0.5, -1.8, 9.2]
assert both["low"].gt(0).tolist() == [True, False, False]
assert stored["TSV", "default"].max().round(1) == 2.0
assert stored["TSV", "default"].max() == stored.max().min()
assert stored.loc["EffNet 20"].iloc[:2].round(1).tolist() == [9.4, 0.7]
assert stored["CART", "defaults"].max().round(1) == 6.7
assert worst.loc["EffNet 8", "TSV"].round(0).tolist() == [73, 52]

# %% tags=["remove-cell"]
if (SUITE, PROFILE, SEED) == ("glyphs8", "default", 0):
    # On other processors the experts are a little different.
    assert abs(lost["tsv", 20] - 0.65) < 0.15
    assert abs(unlucky["tsv", 20] - 2.05) < 0.25
    assert lost.xs(5, level=1).sub(1.6).abs().max() < 0.35
    assert overstated.xs(5, level=1).between(3.3, 4.1).all()
    assert overstated.xs(20, level=1).between(1.1, 1.45).all()
    assert overstated.xs(100, level=1).max() < 0.55
    assert abs(lost["task_arithmetic", 5] - 1.65) < 0.2
    assert by_default["task_arithmetic"] < 0.1
    assert abs(by_rule - 0.85) < 0.15
    assert lost.xs(100, level=1).max() < 0.35
    assert 1.05 < overstated["tsv", 20] < 1.35
    assert abs(overstated["tsv", 100] - 0.3) < 0.12
    assert abs(by_default["tsv"] - lost["tsv", 20] - 1.1) < 0.2
    assert kept.idxmin() == "braille"
    assert abs(kept.sort_values().iloc[:2] - [38, 63]).max() < 2
    assert chosen == 1.5
    assert accuracy[1.5] == accuracy[2.0] > accuracy[1.0]
    assert max(merges, key=lambda scale: accuracy_of("tsv", scale)) == 1.5
    assert [len(scales) for scales in SCALES.values()] == [6, 6]

# %% tags=["remove-cell"]
assert by_head.loc["pretrained", "fitted"] > merging["frozen"].max() + 3
language = load_table("sentences8-fresh_heads").query("method == 'cart'")
for head, other, told in (("frozen", "fresh", 84), ("validation", "frozen", 78)):
    rows = language[(language["head"] == head) & (language["by"] != other)]
    assert round(100 * rows["accuracy"].mean()) == told
assert no_merge["low"] > 0
assert better["low"] > 0
assert leads["frozen"].loc["CART − task arithmetic", "mean"] > 4
assert leads["fitted"].loc["CART − task arithmetic", "mean"] < 1.5
assert (merging["fitted"] - merging.loc["cart", "fitted"]).abs().max() < 2.6
assert by_head["frozen"].round()[["pretrained", "average", "individual"]].tolist() == [45, 51, 80]

# %% tags=["remove-cell"]
if (SUITE, PROFILE, SEED) == ("glyphs8", "default", 0):
    assert (curves["known"].idxmax(), curves["unknown"].idxmax()) == (1.5, 1.25)
    assert loss_at_2 == {"known": 2, "unknown": 8}
    assert len(joint.suite.tasks["greek"].class_names) == 171
    assert (round(expert_known), round(expert_unknown)) == (87, 69)
    sizes = [len(task.class_names) for task in suite.tasks.values()]
    assert (min(sizes), max(sizes)) == (12, 24)

# %% [markdown]
# ## Exercises
#
# ```{exercise} Why do 160 images suffice? (easy)
# :label: ex-choosing-paired
# Twenty images for each of eight tasks are 160 images. What is the standard error of an accuracy of 70 %
# on them? Why can they still choose between two scales that differ by two points?
# ```

# %% [markdown]
# ````{solution-start} ex-choosing-paired
# :class: dropdown
# ````
# The standard error of one accuracy is $\sqrt{0.7 \cdot 0.3 / 160}$. Two scales are judged on the same
# images and make mostly the same errors, so their difference varies less:

# %%
single_error = 100 * np.sqrt(0.7 * 0.3 / 160)
difference = known["tsv", 1.5, "test"] * 1.0 - known["tsv", 1.0, "test"]
paired_error = 100 * difference.std() / np.sqrt(160)
print(f"one accuracy {single_error:.1f}, difference {paired_error:.1f} points")

# %% [markdown]
# A wrong choice is also cheap, because the scales that are often confused have nearly the same
# accuracy.
#
# ````{solution-end}
# ````
#
# ```{exercise} The optimism of a choice among equal models (medium)
# :label: ex-choosing-optimism
# Sixteen models all have an accuracy of 70 %, and err independently. Choose the best on
# 160 images. By how much does its accuracy on these images overstate 70 %? Why is the figure's value
# for TSV smaller?
# ```

# %% [markdown]
# ````{solution-start} ex-choosing-optimism
# :class: dropdown
# ````
# The maximum of 16 standard normal variables is 1.77 on average, so expect $1.77 \cdot 3.6 = 6.4$ points.

# %%
generator = np.random.default_rng(SEED)
simulated = generator.binomial(160, 0.7, size=(20000, 16)) / 160
optimism = 100 * (simulated.max(axis=1).mean() - 0.7)
print(f"optimism {optimism:.1f} points")

# %% tags=["remove-cell"]
assert abs(optimism - 6.4) < 0.3
assert abs(single_error - 3.6) < 0.05

# %% [markdown]
# TSV has six scales, and neighbouring scales err on the same images. Candidates from different methods are less alike, and
# choosing among them has more optimism.
#
# ````{solution-end}
# ````
#
# ## Summary
#
# * Choose a scale on 20 or more labelled examples per task, and report its accuracy on other examples.
# * Report each task as a percentage of its expert, and say whether the task of an input is known.
# * Give an interval across seeds for these tasks, or across seeds and tasks for other tasks.
