"""The book's figure styles: opaque, colour-blind safe, legible on a phone.

Every method keeps its colour and label in every figure. The colours are those of Okabe and Ito
(2008), so no two that meet are told apart by red against green alone.
"""

from collections.abc import Iterable

# One palette for the whole book; no other file holds a colour.
BLACK, GREY = "#000000", "#8c8c8c"
BLUE, SKY, GREEN = "#0072b2", "#56b4e9", "#009e73"
VERMILION, ORANGE, PINK, PURPLE = "#d55e00", "#e69f00", "#cc79a7", "#7b4ea3"
NAVY, BROWN, RUST, TAN, SAND = "#004a75", "#a06a00", "#a34000", "#e8813a", "#f4b183"
DARK, SILVER, LIGHT = "#444444", "#999999", "#dedede"
CYCLE = (BLUE, VERMILION, GREEN, PINK, ORANGE, SKY, BLACK, GREY)
SHAPES = "osD^v<>P"

LABELS = {
    "pretrained": "pretrained",
    "average": "average",
    "task_arithmetic": "task arithmetic",
    "low_rank_task_arithmetic": "low-rank task arithmetic",
    "ties": "TIES",
    "dare": "DARE",
    "fednova": "FedNova",
    "slerp": "SLERP",
    "model_stock": "Model Stock",
    "breadcrumbs": "Breadcrumbs",
    "della": "DELLA",
    "consensus": "Consensus",
    "cart": "CART",
    "tsv": "TSV",
    "iso_c": "Iso-C",
    "iso_cts": "Iso-CTS",
    "individual": "individual",
    "fisher": "Fisher",
    "regmean": "RegMean",
    "uniform_soup": "uniform soup",
    "greedy_soup": "greedy soup",
    "adamerging": "AdaMerging",
    "concrete": "Concrete",
    "surgery": "Surgery",
    "frank_wolfe": "FW",
    "multitask": "multi-task training",
    "cogram": "CoGraM",
}
COLOURS = {
    "pretrained": GREY,
    "average": SKY,
    "task_arithmetic": BLUE,
    "low_rank_task_arithmetic": NAVY,
    "ties": ORANGE,
    "dare": PINK,
    "slerp": "#b8a100",
    "model_stock": "#3a7ca5",
    "breadcrumbs": "#d9a441",
    "della": "#8e5a7e",
    "consensus": BROWN,
    "cart": VERMILION,
    "tsv": GREEN,
    "iso_c": "#4db38f",
    "iso_cts": "#00694d",
    "individual": BLACK,
}
MARKERS = {"pretrained": "s", "individual": "D"}


def use_style() -> None:
    """Set matplotlib's defaults for the book; call once at the top of a notebook."""
    import matplotlib as mpl
    from matplotlib.rcsetup import cycler

    mpl.rcParams.update(
        {
            "figure.figsize": (7.2, 4.2),
            "figure.dpi": 110,
            "figure.facecolor": "white",
            "savefig.facecolor": "white",
            "savefig.bbox": "tight",
            "figure.constrained_layout.use": True,
            "font.size": 12,
            "axes.titlesize": 13,
            "axes.titleweight": "bold",
            "axes.titlelocation": "left",
            "axes.spines.top": False,
            "axes.spines.right": False,
            "axes.grid": True,
            "grid.color": "#e3e3e3",
            "axes.axisbelow": True,
            "lines.linewidth": 2.2,
            "legend.frameon": False,
            "axes.prop_cycle": cycler(color=list(COLOURS.values())[1:]),
        }
    )


def label(method: str) -> str:
    """A method's name as figures write it."""
    return LABELS.get(method, method.replace("_", " "))


def colour(method: str) -> str:
    """A method's colour, the same in every figure."""
    return COLOURS.get(method, PURPLE)


def method_looks(methods: Iterable[str], fmt: str = "o-") -> dict[str, tuple[str, str, str]]:
    """The label, colour and format of every method, as `series` and `intervals` take them."""
    return {method: (label(method), colour(method), fmt) for method in methods}
