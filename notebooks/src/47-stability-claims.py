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
# # Claims of the stability framework

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
from mergebook.stability import claims

use_style()
table, checks = ledger.judge(claims.CLAIMS)

# %% tags=["remove-input"]
display(
    Markdown(f"**The {len(table)} claims of the stability framework: {drawing.counted(table)}.**")
)

# %% tags=["remove-input"] mystnb={"figure": {"caption": "For each claim, the primary check that speaks most against it, in its own unit and scale. The black line is its bound: an interval wholly to the right of it, or wholly in a grey band, speaks for the claim. Grey bands are what counts as equal. The paper gives no figures to compare with.", "name": "fig-ledger-stability"}, "image": {"alt": "One interval for each claim: the weakest of its primary checks, drawn as a distance from the bound that it must leave to the right, and its value. The entries below the figure list all checks in words."}}
drawing.forest(table, checks)
plt.show()

# %% [markdown]
# The claims are those of {cite:t}`li2026unified`. T7, T8 and T10 are about the bound itself: whether it ranks settings as merges turn out, whether it chooses well, and
# whether an expert's stability follows its law. T6 and T12 are about masks, T14 to T16 about methods that Remark 4 explains, and
# T19 about Theorem 2's penalty for unequal steps; the paper measures none of these. The others are about scaling laws, from a sweep with five
# seeds; secondary checks have a second network.
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
