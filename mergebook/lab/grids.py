"""The hyperparameters that are searched on validation data, by method."""

from mergelib.tuning import Grid

# Searched on validation data. The ranges contain the papers' own and go beyond their ends.
GRIDS: dict[str, Grid] = {
    "average": {},
    "task_arithmetic": {"scale": [round(0.1 * i, 1) for i in range(1, 11)]},
    "model_stock": {},
    "ties": {
        "density": [0.05, 0.1, 0.2, 0.5, 1.0],
        "scale": [0.5, 0.75, 1.0, 1.25, 1.5, 1.75, 2.0, 2.5, 3.0],
    },
    "dare": {"drop_rate": [0.5, 0.9], "scale": [0.2, 0.3, 0.4]},
    "breadcrumbs": {"scale": [0.2, 0.3, 0.4, 0.5]},
    "della": {"drop_rate": [0.5, 0.7], "scale": [0.75, 1.0, 1.5, 2.0]},
    "consensus": {"mask_scale": [0.2, 0.4, 0.6], "scale": [0.3, 0.4, 0.5, 0.7]},
    "low_rank_task_arithmetic": {"rank_ratio": [0.08, 0.16, 0.32], "scale": [0.3, 0.5, 0.7]},
    "cart": {"rank_ratio": [0.04, 0.08, 0.16, 0.32], "scale": [1.0, 1.5, 2.0, 2.5, 3.0, 4.0]},
    **{name: {"scale": [0.5, 0.75, 1.0, 1.25, 1.5, 2.0]} for name in ("tsv", "iso_c", "iso_cts")},
}

# What `choose_wide` begins with.
FIRST_GRIDS: dict[str, Grid] = {
    "average": {},
    "task_arithmetic": {"scale": [0.2, 0.3, 0.45]},
    "model_stock": {},
    "ties": {"density": [0.1, 0.2, 0.4], "scale": [0.7, 1.0, 1.4]},
    "dare": {"drop_rate": [0.5, 0.9], "scale": [0.2, 0.3, 0.45]},
    "breadcrumbs": {"scale": [0.2, 0.3, 0.45]},
    "della": {"drop_rate": [0.5, 0.7], "scale": [0.7, 1.0, 1.4]},
    "consensus": {"mask_scale": [0.2, 0.4, 0.6], "scale": [0.3, 0.45, 0.7]},
    "low_rank_task_arithmetic": {"rank_ratio": [0.08, 0.16, 0.32], "scale": [0.3, 0.45, 0.7]},
    "cart": {"rank_ratio": [0.04, 0.08, 0.16], "scale": [1.0, 1.5, 2.2]},
    **{name: {"scale": [0.7, 1.0, 1.4]} for name in ("tsv", "iso_c", "iso_cts")},
}

# What AdaMerging starts from, and what `choose_wide` begins with for the start.
ADAPTED: dict[str, Grid] = {
    "task_arithmetic": FIRST_GRIDS["task_arithmetic"],
    "ties": {"scale": FIRST_GRIDS["task_arithmetic"]["scale"], "reduce": ["sum"]},
    "cart": FIRST_GRIDS["cart"],
}

# Data-free methods to compare with, at hyperparameters that `choose_wide` finds.
REFERENCES = {name: FIRST_GRIDS[name] for name in ("average", "task_arithmetic", "cart")}

# Rules that merge a part of the experts, and what is searched for it on validation data: the grids
# of CART's appendix D.
POOL_GRIDS: dict[str, Grid] = {
    "average": {},
    "task_arithmetic": {"scale": [0.1, 0.2, 0.3]},
    "ties": {"density": [0.05, 0.1, 0.2]},
    "cart": {"rank_ratio": [0.08, 0.12, 0.16]},
}

# What the paper's appendix D searches for every subset of tasks, and CART with its scale searched.
SUBSET_GRIDS: dict[str, tuple[str, Grid]] = {
    **{name: (name, grid) for name, grid in POOL_GRIDS.items()},
    "cart, scale searched": ("cart", {"rank_ratio": [0.08, 0.16], "scale": [1.0, 2.0, 3.0]}),
}
