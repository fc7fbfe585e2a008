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
# # Claims ledger
#
# **In one sentence:** every claim of the papers that can be tested on this testbed, with the place
# where it stands, what the paper reports, what was measured here, and a verdict that code gives.
#
# A merging paper is a bundle of claims of very different kinds: an order in a table, the shape of
# a curve, a remark in passing. This page takes them apart, tests each by itself on several seeds,
# and says plainly which hold on small networks and small pictures, which hold partly, and which do
# not. A claim that does not hold *here* is not refuted: our networks are about sixty times
# smaller than a CLIP tower. But a reader who wants to rely on it now knows where to look.
#
# **After this page you can**
#
# * find the evidence, here and in the paper, for each claim that a chapter discusses;
# * say what a verdict means, and recompute it;
# * add a claim, with its test, to the ledger.
#
# **Before you start:** [](01-testbed) for the suites and the splits. **Time:** ten minutes to read,
# seconds to run; nothing is trained, all is read from stored results.

# %% tags=["parameters"]
SUITE = "vision8"
PROFILE = "default"
SEED = 0
DEVICE = "cpu"

# %% [markdown]
# ## What a verdict is
#
# A claim is put to the test by one or more *checks*. A check is a difference $\delta$ that the claim
# says is positive: the accuracy of one method minus that of another, say, or a tolerance minus a
# distance. Every seed $s = 1, \dots, n$ gives one value $\delta_s$, in which both sides saw the same
# data, and the check has the 95 % interval of Student's $t$,
#
# $$ \bar\delta \pm t_{0.975,\,n-1} \sqrt{\frac{1}{n (n-1)} \sum_s (\delta_s - \bar\delta)^2}. $$
#
# A check **holds** where the whole interval is positive, **fails** where all of it is negative, and
# is **open** otherwise. A claim *holds* if all its checks do, holds *partly* if some do, and
# *does not hold here* if none does. It is *not tested* while a result that it needs has not
# been measured. The rule is short enough to be shown:

# %%
import inspect

from mergelib import ledger
from mergelib.ledger import cart, cogram, frank_wolfe

print(inspect.getsource(ledger.verdict))

# %% [markdown]
# Seeds redraw the data splits, the heads' examples and the order of training, but not the tasks.
# So an interval tells what to expect on *these* tasks with other data; chapters that compare
# methods add a second interval, which resamples the tasks as well. And checks are not corrected
# for their number: of forty checks that are true by a hair, one or two may come out open by chance.
#
# ## The ledger

# %%
table, checks = ledger.judge([*cart.CLAIMS, *frank_wolfe.CLAIMS, *cogram.CLAIMS])

# %% tags=["nbval-check-output"]
print("\n".join(f"{row.claim}: {row.place}" for row in table.itertuples()))

# %% tags=["hide-input"] mystnb={"figure": {"caption": "Every claim's checks: how many hold, are open, or fail, with the verdict. Claims without a bar are not tested yet.", "name": "fig-ledger"}, "image": {"alt": "A horizontal bar for each claim, divided into the shares of its checks that hold, are open and fail, with the verdict written beside it; bars that are wholly of the first colour belong to claims that hold."}}
import matplotlib.pyplot as plt

from mergelib.plots import use_style

use_style()
fig, ax = plt.subplots(figsize=(7.2, 8.8))
counts = checks.groupby(["claim", "outcome"]).size().unstack(fill_value=0)
shares = counts.div(counts.sum(axis=1), axis=0).reindex(table["claim"], fill_value=0)
left = 0 * shares.sum(axis=1)
for outcome, colour in (("holds", "#0072b2"), ("open", "#c9c9c9"), ("fails", "#d55e00")):
    if outcome in shares:
        ax.barh(shares.index, 100 * shares[outcome], left=left, color=colour, label=outcome)
        left = left + 100 * shares[outcome]
for row, verdict in enumerate(table["verdict"]):
    ax.text(103, row, verdict, va="center", fontsize=11)
ax.invert_yaxis()
ax.set(xlabel="share of the checks, %", xlim=(0, 150), xticks=range(0, 101, 25))
ax.legend(loc="lower center", bbox_to_anchor=(0.4, 1.0), ncols=3)
ax.grid(axis="y", visible=False)
plt.show()

# %% [markdown]
# ## CART, claim by claim
#
# What the paper reports is **the paper's** figure, on CLIP's vision towers and twenty public
# image sets {cite}`choi2025revisiting`. *Here* gives the outcomes of the checks and the span of
# the mean differences.

# %% tags=["hide-input"]
from IPython.display import Markdown, display

entry = """**{claim} · {verdict}** ({place}) {statement}.

* *The paper reports:* {reported}.
* *Tested by:* {method}.
* *Here:* {ours}. Shown in [{page}](../{page}).
"""


def entries(claims):
    """The claims of one paper as a list."""
    rows = table[table["claim"].isin([claim.key for claim in claims])].to_dict("records")
    return Markdown("\n".join(entry.format(**row) for row in rows))


entries(cart.CLAIMS)

# %% [markdown]
# *Why AdaMerging does not raise CART here (C6).* Its coefficients could give more: learned from labels, they do. Entropy
# does not find it, and costs accuracy where it moves them further; see *Adapting the coefficients* in
# [](11-cart-experiments).
#
# ## FW-Merging, claim by claim
#
# The paper's tasks are language benchmarks and twenty image sets with CLIP's towers
# {cite}`chen2025fwmerging`; of its text, the supplement was at hand here, so figures of its main part are
# not quoted.

# %% tags=["hide-input"]
entries(frank_wolfe.CLAIMS)

# %% [markdown]
# ## CoGraM, claim by claim
#
# The paper {cite}`lenz2025cogram` shows two figures over thirty seeds and gives no numbers, so an entry
# here says what the figures are said to show. Its tests are repeated on synthetic data made as it
# describes and on real digits, with networks from common and from own initial weights; the paper does
# not say which of the two its networks had.

# %% tags=["hide-input"]
entries(cogram.CLAIMS)

# %% [markdown]
# ## All checks
#
# Differences are in points of accuracy unless the unit says otherwise; `low` and `high` are the
# ends of the 95 % interval over seeds.

# %% tags=["hide-input"]
import pandas as pd

with pd.option_context("display.max_rows", None, "display.max_colwidth", None):
    display(checks.set_index(["claim", "what"]).round(2))

# %% [markdown]
# ## Where the numbers come from
#
# Each result is a file in `results/`, written by `mergelib study`, that carries the hashes of its
# data, the seeds, the recipe, versions, device and commit; [](../book/how-to-run) says how to make
# them anew. A claim whose file is missing shows as *not tested*, with the name of the file.
#
# ## Add a claim
#
# A claim is a record, and its test a function that reads results and returns checks. Put it beside
# the others of its paper, in `mergelib/ledger`, and it appears on this page at the next build:

# %%
print(inspect.getsource(ledger.Claim).split("Attributes:")[0].strip())
print(inspect.signature(ledger.Claim))

# %% [markdown]
# ## Summary
#
# * A claim's verdict is computed from paired differences over seeds, never typed.
# * It is about these tasks and these networks; the paper's own figures stand beside it.
# * Open is a verdict too: more seeds, or larger networks, may settle it.
#
# **Next:** the chapters that the entries link to, and the [](../book/bibliography).
