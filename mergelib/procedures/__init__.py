"""Procedures: merging methods that use data. Importing this package registers all its methods.

Besides experts they take the model and its heads. `mergelib.methods` lists the data that each
needs. CoGraM has a package of its own, `mergelib.cogram`.
"""

from importlib import import_module
from pkgutil import iter_modules

from mergelib.procedures.adapting import adapt
from mergelib.procedures.common import Adapted

__all__ = ["Adapted", "adapt"]

for _module in iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")
