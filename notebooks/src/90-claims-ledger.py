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
#
# **In one sentence:** every claim of the papers that this testbed can test, with the place where it
# stands, the paper's figure, ours with an interval, and a verdict that code gives.
#
# A claim that does not hold *here* is not refuted. Our networks are four to sixty times smaller than a
# CLIP tower; for SAIL they are 140 to 5,000 times smaller than the paper's. Some of what we ran also differs
# from what the authors ran, and each entry says where.
#
# All accuracies of the claims of CART and of Frank-Wolfe merging are measured under **frozen heads**, as in the papers.
# [](70-what-five-papers-taught-us) shows how much of a lead remains under heads that are fitted again.
#
# **After this page you can**
#
# * tell what holds, what does not, and what nobody can tell yet;
# * say what a verdict means, and recompute it;
# * add a claim, with its test, to the ledger.
#
# **Before you start:** [](01-testbed) for the suites and the splits. **Time:** ten minutes to read,
# seconds to run; nothing is trained, all is read from stored results.

# %% tags=["parameters", "remove-cell"]
SUITE = "vision8"
PROFILE = "default"
SEED = 0
DEVICE = "cpu"

# %% [markdown]
# ## All verdicts
#
# C are the claims of CART {cite}`choi2025revisiting`, F those of FW-Merging
# {cite}`chen2025fwmerging`, G those of CoGraM {cite}`lenz2025cogram`, T those of the stability framework
# {cite}`li2026unified`, S those of SAIL {cite}`anonymous2025structured`. In brackets stands the first primary check of
# each, with its interval, and the paper's figure where it gives one.

# %% tags=["remove-input"]
from IPython.display import Markdown, display

from mergebook import ledger
from mergebook.cart import claims as cart
from mergebook.cogram import claims as cogram
from mergebook.frank_wolfe import claims as frank_wolfe
from mergebook.ledger import drawing
from mergebook.sail import claims as sail
from mergebook.stability import claims as stability

claims = [*cart.CLAIMS, *frank_wolfe.CLAIMS, *cogram.CLAIMS, *stability.CLAIMS, *sail.CLAIMS]
table, checks = ledger.judge(claims)
display(Markdown(drawing.summary(table, checks)))

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
# averaged and never treated as a sample. Fractions have the exact binomial test, rank correlations
# Bonett and Wright's interval, and spreads are compared by their mean absolute deviations.
#
# A check **holds** where $\delta$ is beyond its bound, **fails** where it falls short, and is **open**
# otherwise. A claim **holds** if every primary check does, each tested at 5 %: a claim that needs all its
# checks needs no correction for their number. It **does not hold here** if any primary check fails, and
# because any one is enough, failures are corrected by Holm's method. It is **mixed** if some checks hold and
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
# *Not tested* is left for claims that need a result file that is missing. A renamed column is an error.
#
# **Every check can fail.** A test of the package spoils the rows that each primary check compares. Shifted in the
# claim's favour, they must make the check hold; shifted against it, they must make it fail; and with both sides
# exchanged, or shifted against the claim in every other seed, the check must not hold. A statement that is true by
# construction, such as that CART at full rank is the average, is not a check.
#
# **Labels count as data**, also those that chose a scale or a rank: each entry says what was used.

# %% tags=["remove-input", "nbval-check-output"]
for verdict, group in table.groupby("verdict"):
    print(f"{verdict}: {', '.join(group['claim'])}")

# %% [markdown]
# ## CART
#
# Figures of the paper are from CLIP's vision towers and twenty public image sets. Ours, in
# primary checks, are from three networks:
#
# * a check that names none is of our own small vision transformer and `vision8`, `14` or `20`, with five
#   seeds;
# * *ImageNet network* is EfficientNet-Lite0 with ImageNet's weights, on the pictures of `vision8`;
# * *sentences* is the encoder MiniLM on `sentences8`, eight sets of sentences to classify.
#
# The last two are real pretrained networks ([](#run-real)), as the paper's are, so their checks are
# primary too. They have three seeds. Where one quantity was measured on several networks, an entry also
# shows the effect pooled over networks, how much it differs between them, and what to expect of one more.
#
# In the figure each line is a primary check: the black line is its bound, and what lies wholly to the
# right of it speaks for the claim.

# %% tags=["remove-input"] mystnb={"figure": {"caption": "Primary checks of the claims about CART, each with the interval that decides. Diamonds are the paper's figures, arrows where they lie beyond the scale; grey bands are what counts as equal.", "name": "fig-ledger-cart"}, "image": {"alt": "One line for each primary check, grouped by claim: its interval, drawn as a distance from the bound that it must leave to the right, and its value. The entries below the figure list the same numbers in words."}}
import matplotlib.pyplot as plt

from mergebook.plots import use_style

use_style()
paper = {name: table[table["paper"] == name] for name in table["paper"].unique()}
mine = paper["choi2025revisiting"]
drawing.forest(mine, checks)
plt.show()

# %% tags=["remove-input"]
TITLES = {
    "notebooks/11-cart-experiments": "CART: the experiments",
    "notebooks/21-frank-wolfe": "Frank-Wolfe merging: hull, oracle and gap",
    "notebooks/22-frank-wolfe-experiments": "Frank-Wolfe merging: the experiments",
    "notebooks/31-cogram-experiments": "CoGraM: the experiments",
    "notebooks/40-stability": "Why over-trained experts merge badly",
    "notebooks/41-corollary-one": "Corollary 1: what sparse methods do to variance",
    "notebooks/42-scaling-laws": "Scaling laws measured",
    "notebooks/43-choosing-by-the-bound": "Choosing by the bound",
    "notebooks/44-remedies": "Remedies examined",
    "notebooks/50-growing": "From small models to large",
    "notebooks/51-proximal-parameters": "Proximal parameters",
    "notebooks/52-sail-spirals": "SAIL on two spirals",
    "notebooks/53-sail-vision": "SAIL in vision",
    "notebooks/54-sail-text": "SAIL in text",
    "notebooks/56-sail-diffusion": "SAIL in diffusion",
    "notebooks/57-merging-or-warm-start": "Merging or warm start?",
}
display(Markdown(drawing.entries(mine, checks, TITLES)))

# %% [markdown]
# ## FW-Merging
#
# The paper's tasks are language benchmarks and twenty image sets with CLIP's towers. Of its text, the
# abstract and the supplement were at hand, so few figures of its main part are quoted.

# %% tags=["remove-input"] mystnb={"figure": {"caption": "Primary checks of the claims about FW-Merging, drawn as in the figure above.", "name": "fig-ledger-frank-wolfe"}, "image": {"alt": "One line for each primary check, grouped by claim: its interval, drawn as a distance from the bound that it must leave to the right, and its value. The entries below the figure list the same numbers in words."}}
mine = paper["chen2025fwmerging"]
drawing.forest(mine, checks)
plt.show()

# %% tags=["remove-input"]
display(Markdown(drawing.entries(mine, checks, TITLES)))

# %% [markdown]
# ## CoGraM
#
# The paper shows two figures over thirty seeds and gives no numbers, so an entry says what the
# figures are said to show. It says neither whether its features have signs nor whether its networks
# share their initial weights, so all four cases are primary.

# %% tags=["remove-input"] mystnb={"figure": {"caption": "Primary checks of the claims about CoGraM, drawn as above; a ratio of spreads is drawn by its logarithm.", "name": "fig-ledger-cogram"}, "image": {"alt": "One line for each primary check, grouped by claim: its interval, drawn as a distance from the bound that it must leave to the right, and its value. The entries below the figure list the same numbers in words."}}
mine = paper["lenz2025cogram"]
drawing.forest(mine, checks)
plt.show()

# %% tags=["remove-input"]
display(Markdown(drawing.entries(mine, checks, TITLES)))

# %% [markdown]
# ## The stability framework
#
# T7, T8 and T10 are about the bound itself: whether it ranks settings as merges turn out, whether it chooses well, and
# whether an expert's stability follows its law. T6 and T12 are about masks, T14 to T16 and T19 about what Remark 4 says that
# other methods lower; of these the paper reports no measurement. The others are about scaling laws, from a sweep with five
# seeds; secondary checks have a second network.

# %% tags=["remove-input"] mystnb={"figure": {"caption": "Primary checks of the claims of the stability framework, drawn as above; each check in its own unit.", "name": "fig-ledger-stability"}, "image": {"alt": "One line for each primary check, grouped by claim: its interval, drawn as a distance from the bound that it must leave to the right, and its value. The entries below the figure list the same numbers in words."}}
mine = paper["li2026unified"]
drawing.forest(mine, checks)
plt.show()

# %% tags=["remove-input"]
display(Markdown(drawing.entries(mine, checks, TITLES)))

# %% [markdown]
# ## SAIL
#
# Five of its twenty-one claims are decided at least in part on the paper's two spirals, with 30 seeds. What the
# sources see there can be read in three ways, and the paper does not say whether they share their initial
# weights, so all six cases are primary. The other claims are decided on GPTs, ResNets, diffusion models and
# Gaussians. Our GPTs are 140 to 320 times smaller than the paper's nanoGPT, our SiTs 400 times smaller than
# SiT-B/2, and our largest text model is 5,000 times smaller than OLMo-1B. A speed-up is a bound where more
# than a fifth of the runs on one side never reach the loss in question, or reach it before the first reading.

# %% tags=["remove-input"] mystnb={"figure": {"caption": "Primary checks of the claims of SAIL, drawn as above; each check in its own unit.", "name": "fig-ledger-sail"}, "image": {"alt": "One line for each primary check, grouped by claim: its interval, drawn as a distance from the bound that it must leave to the right, and its value. The entries below the figure list the same numbers in words."}}
mine = paper["anonymous2025structured"]
drawing.forest(mine, checks)
plt.show()

# %% tags=["remove-input"]
display(Markdown(drawing.entries(mine, checks, TITLES)))

# %% tags=["remove-cell"]
# What the text says: intervals are shown as they decide, and there are this many claims.
assert len(table) == 63
sampled = checks[checks["kind"] != "fact"]
beyond = sampled[sampled["tolerance"].isna() & (sampled["outcome"] == "open")]
inside = (beyond["low"] <= beyond["bound"]) & (beyond["bound"] <= beyond["high"])
assert inside.all()
on_spirals = checks[(checks["role"] == "primary") & (checks["modality"] == "spirals")]
assert on_spirals["claim"].nunique() == 5

# %% [markdown]
# ## Where the numbers come from
#
# Each result is a file in `results/`, written by `mergebook measure`, that carries the hashes of its
# data, the seeds, the recipe, versions, device and commit; [](../book/how-to-run) says how to make
# them anew.
#
# ## Add a claim
#
# The texts of a claim stand in `mergebook/PAPER/claims.toml`. Its test, in `claims.py` beside it, is a function that
# yields comparisons: which rows of which result the claim says are better than which others. The sentence, the check
# and the ways to spoil it follow from this record, and the claim appears on this page at the next build:

# %%
print("\n".join(ledger.Claim.__annotations__))

# %% [markdown]
# ## Summary
#
# * A verdict is computed from primary checks. All must hold for *holds*; any failure counts after Holm's
#   correction.
# * Each entry says what its intervals generalise over; the paper's own figures stand beside it.
# * Undecided is a verdict too: each open check says what it could have shown.
