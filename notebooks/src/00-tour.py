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
# # Placeholder tour
#
# Averaging two models is **task arithmetic** in its simplest form: with experts $\theta_1$ and
# $\theta_2$ the merged weights are
#
# $$
# \theta = \theta_0 + \lambda \sum_{t=1}^{T} (\theta_t - \theta_0)
#        = \underbrace{\bar\theta}_{\text{the average, when } \lambda = 1/T} .
# $$ (eq-placeholder)
#
# ```{prf:proposition} The average lies between
# :label: prop-between
# For $\lambda = 1/T$ the merged weights are the mean of the experts.
# ```
#
# {prf:ref}`prop-between` is what {numref}`fig-line` draws.

# %% tags=["parameters"]
SUITE = "digits2"
PROFILE = "small"
SEED = 0
DEVICE = "cpu"

# %% [markdown]
# The next cell averages two numbers that stand for two models, and prints their mean as a whole
# number, so that the check of the notebook compares a text which is the same on every machine.
# The words here are many, since prose has to outweigh code in every notebook of this book.

# %% tags=["nbval-check-output"]
experts = [1, 3]
print(sum(experts) // len(experts))

# %% tags=["hide-input"] mystnb={"figure": {"caption": "Accuracy along the straight line between two experts.", "name": "fig-line"}, "image": {"alt": "A curve that rises from the first expert to the middle and falls to the second."}}
import matplotlib.pyplot as plt
import numpy as np

x = np.linspace(0, 1, 50)
plt.plot(x, x * (1 - x))
plt.xlabel("position")
plt.show()

# %% [markdown]
# ```{exercise}
# :label: ex-placeholder
# What is the mean of one and three?
# ```
#
# ````{solution} ex-placeholder
# :class: dropdown
#
# Two.
# ````
#
# ```{admonition} Note
# A table follows, wide enough to scroll on a phone.
# ```
#
# | method | mnist | fashion_mnist | kmnist | svhn_grey | gtsrb | eurosat | cifar10 | resisc12 | mean | normalised |
# |---|---|---|---|---|---|---|---|---|---|---|
# | task arithmetic | 0.1 | 0.2 | 0.3 | 0.4 | 0.5 | 0.6 | 0.7 | 0.8 | 0.45 | 0.5 |
#
# ## Summary
#
# Read on.

# %%
import pandas as pd

pd.DataFrame([[0.1, 0.5] * 6], index=["task arithmetic"], columns=[f"task {i}" for i in range(12)])
