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
# # Claims of CART

# %% tags=["parameters", "remove-cell"]
SUITE = "vision8"
PROFILE = "default"
SEED = 0
DEVICE = "cpu"

# %% tags=["remove-cell"]
import matplotlib.pyplot as plt
from IPython.display import Markdown, display

from mergebook import ledger
from mergebook.cart import claims
from mergebook.ledger import drawing
from mergebook.plots import use_style

use_style()
table, checks = ledger.judge(claims.CLAIMS)

# %% tags=["remove-input"]
display(Markdown(f"**The {len(table)} claims of CART: {drawing.counted(table)}.**"))

# %% tags=["remove-input"] mystnb={"figure": {"caption": "For each claim, the primary check that speaks most against it, in its own unit and scale. The black line is its bound: an interval wholly to the right of it, or wholly in a grey band, speaks for the claim. Diamonds are the paper's figures, arrows where they lie beyond the scale; grey bands are what counts as equal.", "name": "fig-ledger-cart"}, "image": {"alt": "One interval for each claim: the weakest of its primary checks, drawn as a distance from the bound that it must leave to the right, and its value. The entries below the figure list all checks in words."}}
drawing.forest(table, checks)
plt.show()

# %% [markdown]
# The figures of CART {cite}`choi2025revisiting` are from CLIP's vision towers and twenty public image sets, in C10 from RoBERTa on GLUE. Ours, in primary checks, are from three
# networks, under frozen heads as in the paper ([](70-what-five-papers-taught-us) shows how much of a lead remains under fitted ones):
#
# * a check that names none is of our own small vision transformer on `vision8`, `14` or `20`, with five seeds;
# * *ImageNet network* is EfficientNet-Lite0 with ImageNet's weights, on the images of `vision8`, with three seeds;
# * *sentences* is the encoder MiniLM on `sentences8`, eight sets of sentences to classify, with three seeds.
#
# Where one quantity (named under *Tested by*) was measured on several networks, an entry also shows it pooled, how much it
# differs between them, and what to expect of one more.
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
