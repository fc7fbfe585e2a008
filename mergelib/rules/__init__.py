"""Data-free methods. Importing this package registers the rules of all its modules.

A rule is called with ``experts``, T tensors of one shape (matrices in `low_rank`, `spectral` and
`aligned`), and, if it needs the pretrained model, with θ_0 of that shape as ``pretrained``; its
other parameters are hyperparameters. One out of its range raises a ``ValueError`` that names it.
"""

from importlib import import_module
from pkgutil import iter_modules

for _module in iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")
