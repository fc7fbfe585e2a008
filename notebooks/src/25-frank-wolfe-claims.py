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
# # Claims of Frank-Wolfe merging

# %% tags=["parameters", "remove-cell"]
SUITE = "vision8"
PROFILE = "default"
SEED = 0
DEVICE = "cpu"

# %% tags=["remove-cell"]
import matplotlib.pyplot as plt
from IPython.display import Markdown, display

from mergebook import ledger
from mergebook.frank_wolfe import claims
from mergebook.ledger import drawing
from mergebook.plots import use_style

use_style()
table, checks = ledger.judge(claims.CLAIMS)

# %% tags=["remove-input"]
display(Markdown(f"**The {len(table)} claims of Frank-Wolfe merging: {drawing.counted(table)}.**"))

# %% tags=["remove-input"] mystnb={"figure": {"caption": "For each claim, the primary check that speaks most against it, in its own unit and scale. The black line is its bound: an interval wholly to the right of it, or wholly in a grey band, speaks for the claim. Diamonds are the paper's figures, arrows where they lie beyond the scale; grey bands are what counts as equal.", "name": "fig-ledger-frank-wolfe"}, "image": {"alt": "One interval for each claim: the weakest of its primary checks, drawn as a distance from the bound that it must leave to the right, and its value. The entries below the figure list all checks in words."}}
drawing.forest(table, checks)
plt.show()

# %% [markdown]
# The tasks of Frank-Wolfe merging {cite}`chen2025fwmerging` are language benchmarks and twenty image sets with CLIP's towers. Of its text, the abstract and the
# supplement were at hand, so few figures of its main part are quoted. All accuracies are under frozen heads, of the networks named in [](13-cart-claims).
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
