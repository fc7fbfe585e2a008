"""Data-free methods. Importing this package registers them, in the order `methods` lists them."""

from mergelib.rules.arithmetic import average, model_stock, slerp, task_arithmetic
from mergelib.rules.low_rank import cart, low_rank_task_arithmetic
from mergelib.rules.masks import breadcrumbs, consensus, della
from mergelib.rules.sparse import dare, ties
from mergelib.rules.spectral import iso_c, iso_cts, tsv

__all__ = [
    "average",
    "breadcrumbs",
    "cart",
    "consensus",
    "dare",
    "della",
    "iso_c",
    "iso_cts",
    "low_rank_task_arithmetic",
    "model_stock",
    "slerp",
    "task_arithmetic",
    "ties",
    "tsv",
]
