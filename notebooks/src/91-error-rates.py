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
# # How often is a verdict wrong?
#
# **In one sentence:** the ledger's interval finds a difference in about one of twenty simulated tables in which
# no method is better, as it should, where the former rule found one in up to one of six.
#
# **After this page you can**
#
# * say which error rate stands behind a verdict of the [](90-claims-ledger);
# * choose between an interval over seeds and one over seeds and tasks.
#
# **Before you start:** [](90-claims-ledger). **Time:** five minutes; the simulation itself is stored.

# %% tags=["parameters", "remove-cell"]
SUITE = "glyphs8"
PROFILE = "default"
SEED = 0
DEVICE = "cpu"

# %% [markdown]
# ## Intervals of a mean difference
#
# A comparison of two methods is a table with a row for each seed and a column for each task. We draw such
# tables with a true mean of zero, so every interval that excludes zero is an error. Seeds, tasks and noise
# have different sizes: in this book tasks usually differ most.

# %% tags=["remove-input"] mystnb={"figure": {"caption": "The crossed model is wrong in 4 to 7 % of cases where tasks or seeds differ, and in less where nothing but noise does or one task is an outlier. An interval over seeds alone answers another question: about other tasks it is wrong in a quarter to a half of the cases, and in up to 98 % where one task is an outlier. Each dot is one shape of table, from 3 seeds and 4 tasks to 5 seeds and 20 tasks; the grey band is 4 to 6 %. The former rule let the wider of a percentile bootstrap and Student's interval decide.", "name": "fig-errors-intervals"}, "image": {"alt": "Five rows of dots, one row for each kind of table, on a logarithmic axis of error rates. Dots of the crossed model lie in the grey band where tasks or seeds differ most, and left of it for pure noise and for an outlying task. The former rule lies right of the band where tasks differ most. Dots of Student's interval over seeds lie far to the right, between twenty and ninety-eight per cent, where tasks differ most or one is an outlier."}}
import matplotlib.pyplot as plt
import pandas as pd

from mergebook.lab.results import load_result
from mergebook.ledger.drawing import COLOURS
from mergebook.plots import use_style

use_style()
simulated = load_result("error-rates")
errors = pd.DataFrame(simulated["intervals"])
kinds, rules = errors["kind"].unique(), errors["rule"].unique()
fig, ax = plt.subplots(figsize=(7.2, 3.6))
ax.axvspan(4, 6, color="#dedede", lw=0)
for i, (rule, marker, colour) in enumerate(zip(rules, "o^s", COLOURS.values())):
    rows = errors[errors["rule"] == rule]
    height = rows["kind"].map({kind: k for k, kind in enumerate(kinds)}) + 0.24 * (i - 1)
    ax.plot(100 * rows["error"].clip(lower=1e-3), height, marker, color=colour, label=rule)
ax.set(xscale="log", xlabel="intervals that exclude the true value, %", xlim=(0.08, 100))
ax.set_xticks([0.1, 1, 5, 20, 80], ["≤ 0.1", "1", "5", "20", "80"])
ax.set_yticks(range(len(kinds)), kinds)
ax.invert_yaxis()
ax.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=3)
plt.show()

# %% [markdown]
# The first row is what most tables of this book look like: standard deviations of 3 points between tasks,
# 1.5 of noise and 0.4 between seeds. There the error rates are, in per cent:

# %% tags=["remove-input", "nbval-check-output"]
usual = errors[errors["kind"] == "tasks differ most"]
wide = 100 * usual.pivot(index=["seeds", "tasks"], columns="rule", values="error")[rules]
wide.round(1)

# %% tags=["remove-cell"]
# What the text and the figure's description say.
worst = 100 * errors.groupby(["kind", "rule"])["error"].agg(["min", "max"])
crossed = worst.xs("crossed model", level="rule")
assert crossed["max"].max() < 7.5
assert crossed.loc[["tasks differ most", "seeds differ most"]].to_numpy().min() > 3.9
assert crossed.loc[["only noise", "one task differs much"], "max"].max() < 3
assert worst.loc[("one task differs much", "Student over seeds"), "max"] > 97
assert 14 < wide["bootstrap (before)"].max() < 17
assert wide["Student over seeds"].between(22, 55).all()

# %% [markdown]
# Student's interval over seeds is right about *these* tasks with other seeds. As a statement about other
# tasks it is wrong in a quarter to a half of the cases, because it ignores that the tasks are a sample, too.
#
# The crossed model leaves out a component that the data do not show. That makes it conservative: with pure
# noise it is wrong in 2 % of cases. With one task that differs from the others by ten of their standard
# deviations it almost never finds a difference, because eight tasks of which one is such an outlier say
# little about a ninth.
#
# ## Spreads, and whole verdicts
#
# Two spreads are compared by the logarithm of the ratio of mean absolute deviations. The classical test of
# Pitman and Morgan needs normal data; on skewed data it is wrong in more than a quarter of cases:

# %% tags=["remove-input"]
spreads = pd.DataFrame(simulated["spreads"])
table = 100 * spreads.pivot(index=["kind", "pairs"], columns="rule", values="error")
table.round(1)

# %% tags=["remove-cell"]
assert table["Pitman and Morgan (before)"].max() > 25
assert table["mean absolute deviations"].max() < 9.5

# %% [markdown]
# A verdict combines several checks. We simulate claims with six primary checks, on tables as in the first row.
# None, five or all six of the checks are true. The table shows how often each verdict results, in per cent:

# %% tags=["remove-input"]
verdicts = pd.DataFrame(simulated["verdicts"])
shares = 100 * verdicts.pivot(index="true", columns="verdict", values="fraction").fillna(0)
shares.rename_axis(index="checks that are true, of 6").round(1)

# %% tags=["remove-cell"]
assert shares.loc[0, "holds"] == 0
assert shares.loc[0, "does not hold here"] < 5
assert shares.loc[5, "holds"] < 5
assert shares.loc[6, "holds"] > 99

# %% [markdown]
# A claim without any true check fails in fewer than 5 % of cases and never holds. A claim of which one check
# is neither true nor false holds in about 2 % of cases and is mixed in as many. All others are undecided, as
# they should be.
#
# ```{exercise} Clear for these tasks, or for others? (easy)
# :label: ex-errors-tasks
#
# A paper compares two methods on eight tasks with five seeds and reports 2.0 ± 0.6 points over seeds. The
# tasks' mean differences have a standard deviation of 3.5 points. Is the difference clear for other tasks?
# ```

# %% [markdown]
# ````{solution-start} ex-errors-tasks
# :class: dropdown
# ````
# It is not. The standard error over tasks is $3.5/\sqrt 8 = 1.24$, so Student's interval with seven degrees
# of freedom is $2.0 \pm 2.36 \cdot 1.24 = 2.0 \pm 2.9$, and it includes zero.
#
# ````{solution-end}
# ````

# %% [markdown]
# ## Summary
#
# * The crossed model's error rate is close to 5 % where tasks or seeds differ, and lower elsewhere.
# * An interval over seeds alone is no statement about other tasks.
# * Numbers come from `python -m benchmarks.error_rates`.
