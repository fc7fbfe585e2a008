"""Data-free methods. Importing this package registers them, in the order `methods` lists them."""

from mergelib.rules.arithmetic import average, slerp, task_arithmetic
from mergelib.rules.low_rank import cart, low_rank_task_arithmetic
from mergelib.rules.sparse import dare, ties

__all__ = [
    "average",
    "cart",
    "dare",
    "low_rank_task_arithmetic",
    "slerp",
    "task_arithmetic",
    "ties",
]
