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
# # Claims ledger

# %% tags=["parameters", "remove-cell"]
SUITE = "vision8"
PROFILE = "default"
SEED = 0
DEVICE = "cpu"

# %% tags=["remove-cell"]
import matplotlib.pyplot as plt
import pandas as pd
from IPython.display import Markdown, display

from mergebook import ledger
from mergebook.cart import claims as cart
from mergebook.cogram import claims as cogram
from mergebook.frank_wolfe import claims as frank_wolfe
from mergebook.ledger import drawing
from mergebook.plots import BLACK, BLUE, LIGHT, ORANGE, VERMILION, use_style
from mergebook.sail import claims as sail
from mergebook.stability import claims as stability

use_style()
PAPERS = {
    "CART": (cart, "13-cart-claims"),
    "Frank-Wolfe": (frank_wolfe, "25-frank-wolfe-claims"),
    "CoGraM": (cogram, "33-cogram-claims"),
    "stability framework": (stability, "47-stability-claims"),
    "SAIL": (sail, "59-sail-claims"),
}

# %% tags=["remove-cell"]
judged = {name: ledger.judge(module.CLAIMS) for name, (module, _) in PAPERS.items()}
every = pd.concat([table for table, _ in judged.values()])
counts = pd.DataFrame(
    {name: table["verdict"].value_counts() for name, (table, _) in judged.items()}
)
counts = counts.fillna(0).astype(int)

# %% tags=["remove-input"] mystnb={"figure": {"caption": "Verdicts on the claims of five papers, as far as our networks can tell. Facts that are proved or refuted count with the claims that hold or do not hold.", "name": "fig-ledger-verdicts"}, "image": {"alt": "Five horizontal bars, divided into claims that hold, are mixed, are undecided, and do not hold here. CART 1, 2, 7 and 0; Frank-Wolfe 2, 0, 5 and 1; CoGraM 0, 3, 1 and 1; stability framework 5, 1, 7 and 6; SAIL 5, 6, 6 and 4."}}
LOOKS = {
    "hold": (["holds", "proved"], BLUE, "white"),
    "mixed": (["mixed"], ORANGE, BLACK),
    "undecided": (["undecided"], LIGHT, BLACK),
    "do not hold here": (["does not hold here", "refuted by counterexample"], VERMILION, BLACK),
}
grouped = {look: counts.reindex(names).sum() for look, (names, _, _) in LOOKS.items()}
fig, ax = plt.subplots(figsize=(6.9, 3.1))
left = 0 * counts.sum()
for look, (_, shade, ink) in LOOKS.items():
    ax.barh(range(len(left)), grouped[look], left=left, color=shade, height=0.7, label=look)
    for place, (count, start) in enumerate(zip(grouped[look], left)):
        if count:
            ax.text(start + count / 2, place, count, ha="center", va="center", color=ink)
    left = left + grouped[look]
ax.set_yticks(range(len(left)), left.index)
ax.invert_yaxis()
ax.grid(axis="y", visible=False)
ax.set(xlabel="claims", xticks=range(0, 21, 5))
ax.set_title(f"{grouped['hold'].sum()} of {len(every)} claims hold in our tests")
fig.legend(*ax.get_legend_handles_labels(), loc="outside lower center", ncols=4, fontsize=11)
plt.show()

# %% tags=["remove-input"]
total = {look: int(own.sum()) for look, own in grouped.items()}
display(
    Markdown(f"""
* **Of {len(every)} testable claims {total["hold"]} hold here, {(every["verdict"] == "proved").sum()} of them by proof.** {total["do not hold here"]} do not, {total["mixed"]} are mixed
  and {total["undecided"]} undecided.
* **Code computes every verdict** from comparisons with intervals, and a test spoils the data of each primary check to show that it
  can fail.
* **A claim that does not hold *here* is not refuted, except F5.** For CART and Frank-Wolfe our networks are 4 to 60 times smaller than a CLIP tower, and for SAIL
  140 to 5,000 times smaller than the paper's. Heads are frozen except for CoGraM and SAIL.
""")
)

# %% [markdown]
# **Use it when** you want to know how far a sentence of a paper carries. **You need first:** [](01-testbed) for suites and splits.
#
# ## All claims
#
# The letter of a claim tells its paper, whose page has the intervals of all checks, the data, and what is our own choice. In the table, numbers in
# brackets are 95 % intervals of the first primary check, *n* of *m* counts the primary checks that hold, and the networks have millions (M) of
# parameters. A click on a heading sorts by it.

# %% tags=["remove-input"]
letters = {name: judged[name][0]["claim"].iloc[0][0] for name in PAPERS}
links = [f"{letters[name]}: [{name}]({page})" for name, (_, page) in PAPERS.items()]
rows = [drawing.summary(*judged[name], page) for name, (_, page) in PAPERS.items()]
head = ["| claim | verdict | first primary check | networks |", "|---|---|---|---|"]
display(Markdown(", ".join(links) + "."))
display(Markdown("\n".join(['<div class="sortable">\n', *head, *rows, "\n</div>"])))

# %% [markdown]
# ## What a verdict is
#
# A claim is tested by *checks*. A check is a quantity $\delta$ that the claim says lies above a bound.
# Usually it is the accuracy of one method minus that of another, and the bound is 0. Where a paper says
# "about", the quantity must stay within a tolerance on both sides. One rule gives the roles of all checks:
#
# * **primary** checks repeat the paper's own setting, its baselines, its way to count cost and its metric,
#   on every network of the book's main comparison, and only they decide. Where the paper is silent between
#   two readings, both are primary;
# * **secondary** checks ask the same in other settings, or a weaker form of it;
# * **controls** ask what the paper never claimed, our own repairs included.
#
# A result is a table of differences $\delta_{st}$, one per seed $s$ and task $t$. Its interval comes from the
# model
#
# $$ \delta_{st} = \mu + a_s + b_t + \varepsilon_{st} $$
#
# with random seeds and tasks, so it speaks about other seeds *and* other tasks like these. The variance of
# the mean is $(M_a + M_b - M_\varepsilon)/(ST)$, where the $M$ are the mean squares of the analysis of
# variance, and the degrees of freedom are Satterthwaite's. Each entry says what its intervals are about:
# seeds alone, tasks, layers or networks. Points that we chose ourselves, such as the values of a grid, are
# averaged and not treated as a sample, except in claim T6. Fractions have the exact binomial test, rank correlations
# Bonett and Wright's interval, and spreads are compared by their mean absolute deviations.
#
# A check **holds** where $\delta$ is beyond its bound, **fails** where it falls short, and is **open**
# otherwise. A claim **holds** if every primary check does, each tested at 5 %: a claim that needs all its
# checks needs no correction for their number. It **does not hold here** if some primary check fails and none holds; failures
# are corrected by Holm's method. It is **mixed** if some checks hold and
# some fail, both corrected, and **undecided** if nothing fails and not everything holds. Each interval is
# shown at the level at which it decides, so no open check has an interval that excludes its bound. Where runs
# only bound a speed-up, its interval has no end on the other side.
# Statements about a single case are not samples and have no interval: they are **proved** or **refuted by
# counterexample**.
#
# Each open check says what it *could show*: the smallest distance from its bound that data like these
# reveal in four cases out of five. There is no correction across the 63 claims, so about three of them
# may be decided wrongly by chance. [](91-error-rates) measures how often the rules themselves are wrong.
#
# The rule from checks to verdict is short enough to be shown:

# %%
import inspect

print(inspect.getsource(ledger.verdict))

# %% [markdown]

# **Every check can fail.** A test of the package spoils the rows that each primary check compares. Shifted in the
# claim's favour, they must make the check hold; shifted against it, they must make it fail; and with both sides
# exchanged, or shifted against the claim in every other seed, the check must not hold. A statement that is true by
# construction, such as that CART at full rank is the average, is not a check.
#
# **Labels count as data**, also those that chose a scale or a rank: each entry says what was used.

# %% [markdown]
# ## Check against known values

# %% tags=["hide-input", "nbval-check-output"]
for verdict, group in every.groupby("verdict"):
    print(f"{verdict}: {', '.join(group['claim'])}")

# %% tags=["remove-cell"]
# What the text says: intervals are shown as they decide, and there are this many claims.
assert len(every) == 63
told = [[1, 2, 0, 5, 5], [2, 0, 3, 1, 6], [7, 5, 1, 7, 6], [0, 1, 1, 6, 4]]
assert [own.tolist() for own in grouped.values()] == told
checks = pd.concat([checks for _, checks in judged.values()])
sampled = checks[checks["kind"] != "fact"]
beyond = sampled[sampled["tolerance"].isna() & (sampled["outcome"] == "open")]
inside = (beyond["low"] <= beyond["bound"]) & (beyond["bound"] <= beyond["high"])
assert inside.all()

# %% [markdown]
# ## Add a claim
#
# The texts of a claim stand in `mergebook/PAPER/claims.toml`. Its test, in `claims.py` beside it, is a function that
# yields comparisons: which rows of which result the claim says are better than which others. The sentence, the check
# and the ways to spoil it follow from this record, and the claim appears on this page at the next build:

# %%
print("\n".join(ledger.Claim.__annotations__))
