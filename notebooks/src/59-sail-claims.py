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
# # Claims of SAIL

# %% tags=["parameters", "remove-cell"]
SUITE = "vision8"
PROFILE = "default"
SEED = 0
DEVICE = "cpu"

# %% tags=["remove-cell"]
import matplotlib.pyplot as plt
from IPython.display import Markdown, display

from mergebook import ledger
from mergebook.ledger import drawing
from mergebook.plots import use_style
from mergebook.sail import claims

use_style()
table, checks = ledger.judge(claims.CLAIMS)

# %% tags=["remove-input"]
display(Markdown(f"**The {len(table)} claims of SAIL: {drawing.counted(table)}.**"))

# %% tags=["remove-input"] mystnb={"figure": {"caption": "For each claim, the primary check that speaks most against it, in its own unit and scale. The black line is its bound: an interval wholly to the right of it, or wholly in a grey band, speaks for the claim. Diamonds are the paper's figures, arrows where they lie beyond the scale; grey bands are what counts as equal.", "name": "fig-ledger-sail"}, "image": {"alt": "One interval for each claim: the weakest of its primary checks, drawn as a distance from the bound that it must leave to the right, and its value. The entries below the figure list all checks in words."}}
drawing.forest(table, checks)
plt.show()

# %% [markdown]
# The claims are those of {cite:t}`anonymous2025structured`. Five are decided at least in part on the paper's two spirals, with 30 seeds. What the sources see there can be
# read in three ways, and the paper does not say whether they share their initial weights, so all six cases are primary. The
# other claims are decided on GPTs, ResNets, perceptrons, diffusion models, texts and Gaussians. Our GPTs are 140 to 970 times smaller than the
# paper's nanoGPT, except in {ref}`one run <text-full>`, our SiTs 400 times smaller than SiT-B/2, and our largest text model is 5,000 times smaller than OLMo-1B. A
# speed-up is a bound where more than a fifth of the runs on one side never reach the loss in question, or reach it before the
# first reading.
#
# The [ledger](90-claims-ledger) says what a verdict is, and lists the claims of all five papers.

# %% [markdown]
# ## The claims one by one

# %% tags=["remove-input"]
display(Markdown(drawing.entries(table, checks)))

# %% [markdown]
# ## Check against known values

# %% tags=["hide-input", "nbval-check-output"]
for verdict, group in table.groupby("verdict"):
    print(f"{verdict}: {', '.join(group['claim'])}")

# %% tags=["remove-cell"]
on_spirals = checks[(checks["role"] == "primary") & (checks["modality"] == "spirals")]
assert on_spirals["claim"].nunique() == 5
