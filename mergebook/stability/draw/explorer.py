"""The explorer of chapter 43: sliders that redraw exact errors and bounds in a reader's browser."""

import base64
import io
import json
import math
from importlib.resources import files
from string import Template
from typing import Any

import torch

from mergebook import plots
from mergebook.stability.read import quadratics
from mergebook.stability.read.quadratics import USUAL, first, planned
from mergebook.stability.theory import bounds
from mergebook.stability.theory.quadratics import Quadratics, errors
from mergebook.stability.theory.steps import Training

CHOICES: dict[str, list[float]] = {
    "steps": [1, 2, 3, 5, 7, 10, 15, 20, 30, 50, 70, 100, 150, 200, 300, 500, 700, 1000],
    "rate": [0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5],
    "batch": [1, 2, 4, 8, 16],
    "examples": [20, 50, 100, 200, 500, 1000],
    "tasks": [1, 2, 3, 4, 6, 8, 12, 16],
}
SLIDERS = {"steps": "steps K", "rate": "learning rate η", "batch": "batch b"}
SLIDERS |= {"examples": "examples n", "tasks": "tasks T"}
GREEN, ORANGE, YELLOW = plots.GREEN, plots.VERMILION, plots.ORANGE
CURVES = [  # group, part, colour, dashes
    ("exact", "total", "currentColor", ""),
    ("exact", "generalisation", "currentColor", "2 4"),
    ("repaired", "total", GREEN, ""),
    ("printed", "total", ORANGE, ""),
    ("gamma", "total", YELLOW, ""),
]
GROUPS = {
    "exact": ("Exact excess error", "currentColor"),
    "repaired": ("Repaired bound", GREEN),
    "printed": ("Theorem 3, printed", ORANGE),
    "gamma": ("Theorem 3 with γ*", YELLOW),
}
RANGE = (1e-3, 1e6)
SIZES = (1e-4, 1e6)  # of terms, where a bar is empty, and full
ALT = (
    "Excess error against the steps of every expert at the usual setting, logarithmic axes. The "
    "exact error dips and rises again; Theorem 3 lies hundreds of times higher, with its least "
    "value further left; the repaired bound leaves the pretrained model's line upwards, early on."
)


def explorer(*, seed: int = 0) -> str:
    """The explorer as HTML, of `aligned_tasks` with that seed; its static table is by `terms`."""
    tasks = aligned_tasks(seed)
    curvatures = tasks.hessians.diagonal(dim1=1, dim2=2)
    data: dict[str, Any] = {"curvatures": curvatures.tolist(), "centres": tasks.centres.tolist()}
    data |= {"usual": USUAL, "choices": CHOICES, "sliders": [*SLIDERS.items()]}
    data |= {"curves": CURVES, "range": RANGE, "sizes": SIZES}
    data["domains"] = [bounds.PAPERS_DOMAIN, bounds.REPAIRED_DOMAIN]
    usual = ", ".join(f"{SLIDERS[key]} = {value:g}" for key, value in USUAL.items())
    page = files("mergebook.stability.draw").joinpath("assets", "explorer.html").read_text("utf-8")
    values = terms(first(tasks, USUAL["tasks"]), planned(USUAL))
    return Template(page).substitute(
        alt=ALT,
        image=_picture(seed),
        state=f"At {usual}. Where scripts run, sliders change this.",
        table=_table(values),
        data=json.dumps(data, ensure_ascii=False),
    )


def aligned_tasks(seed: int) -> Quadratics:
    """Like `pulled_tasks`, but curvatures share their axes, dealt to them in other orders."""
    tasks, size = 16, 6
    generator = torch.Generator().manual_seed(seed)
    values = torch.linspace(0, 1, size, dtype=torch.float64)
    orders = torch.rand(tasks, size, generator=generator).argsort(1)
    curvatures = (0.05**values)[orders]
    shared = torch.randn(size, generator=generator, dtype=torch.float64)
    single = torch.randn(tasks, size, generator=generator, dtype=torch.float64)
    pulls = (shared + 0.5 * single) / size**0.5
    return Quadratics(
        hessians=torch.diag_embed(curvatures),
        centres=pulls / curvatures,
        covariances=torch.eye(size, dtype=torch.float64).expand(tasks, size, size),
        start=torch.zeros(size, dtype=torch.float64),
    )


def terms(tasks: Quadratics, plan: Training) -> dict[str, dict[str, float]]:
    """Every term of the exact excess error, of the repaired bound and of Theorem 3, by name."""
    exact, known = errors(tasks, plan), quadratics.constants(tasks)
    parts = bounds.descent_bound(tasks.opening(plan, plan.weights), known, plan)
    parts["start"] -= tasks.floor(plan.examples)
    printed, best = quadratics.printed_parts(tasks, plan)
    repaired = quadratics.repaired_parts(tasks, plan)
    return {
        "exact": {"optimisation": exact.optimisation, "generalisation": exact.generalisation},
        "repaired": {**parts, "generalisation": repaired["generalisation"]},
        "printed": printed,
        "gamma": {"total": sum(best.values())},
    }


def _table(values: dict[str, dict[str, float]]) -> str:
    head = '<thead><tr><th scope="col">term</th><th scope="col">value</th>'
    rows = [head + '<th scope="col">size, logarithmic</th></tr></thead><tbody>']
    low, high = map(math.log10, SIZES)
    for group, (title, shade) in GROUPS.items():
        total = [("total", f"<strong>{title}</strong>", sum(values[group].values()))]
        parts = [(name, name, value) for name, value in values[group].items() if name != "total"]
        for key, text, value in total + parts:
            share = (math.log10(abs(value) or SIZES[0]) - low) / (high - low)
            width = 100 * min(1.0, max(0.0, share))
            rows.append(
                f'<tr data-group="{group}" data-part="{key}" data-value="{value!r}">'
                f"<td>{text}</td><td>{value:.3g}</td>"
                f'<td><i style="background: {shade}; width: {width:.0f}%"></i></td></tr>'
            )
    return "\n".join([*rows, "</tbody>"])


def _picture(seed: int) -> str:
    """The curves at the usual setting as a base64 PNG, for where scripts don't run."""
    from matplotlib.figure import Figure

    tasks = first(aligned_tasks(seed), USUAL["tasks"])
    steps = CHOICES["steps"]
    values = [terms(tasks, planned({**USUAL, "steps": count})) for count in steps]
    figure = Figure(figsize=(6.4, 3.0), layout="constrained")
    ax = figure.subplots()
    ax.axhline(values[0]["repaired"]["start"], color=plots.GREY, lw=1.2, ls="--")
    for group, part, shade, dashes in CURVES:
        own = [value[group] for value in values]
        heights = [sum(each.values()) if part == "total" else each[part] for each in own]
        text = GROUPS[group][0] if part == "total" else f"exact {part}"
        colour = plots.BLACK if shade == "currentColor" else shade
        ax.plot(steps, heights, ":" if dashes else "-", color=colour, label=text)
    ax.set(xscale="log", yscale="log", ylim=RANGE, xlabel="steps K of every expert")
    ax.legend(fontsize=8, ncols=2, loc="upper left")
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=100, metadata={"Software": None})
    return base64.b64encode(buffer.getvalue()).decode("ascii")
