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
# # Frank-Wolfe merging: a walk inside the hull of experts
#
# **In one sentence:** treat merging as the minimisation of a loss over all weighted averages of the experts, go
# step by step towards the expert that the loss's slope points to, and a single number, the gap, tells how much
# there still is to gain.
#
# The method is from 1956 {cite}`frank1956algorithm`; FW-Merging {cite}`chen2025fwmerging` brings it to model
# merging, in a *hard* variant, the classical one, and a *soft* one with a convergence theorem of its own. This
# chapter explains both, reads that theorem's proof line by line, and repairs it.
#
# **After this chapter you can**
#
# * draw the hull, the vertex that the oracle picks, and the gap, on a real loss;
# * prove that a linear function on a hull is least at a vertex, and that the gap is a certificate;
# * say which lines of the paper's proof hold, and give a counterexample for each of the others;
# * state and prove a rate that soft Frank-Wolfe does have, and say what such bounds are worth;
# * tell when a merge inside the hull is what you want, and when it is not.
#
# **Before you start:** [](02-averaging-and-task-vectors), and what a gradient is. **Time:** 35 minutes to read,
# a minute and a half to run once the experts are cached.

# %% tags=["parameters", "remove-cell"]
SUITE = "glyphs8"
PROFILE = "default"
SEED = 0
DEVICE = "cpu"

# %% [markdown]
# ## A loss that merging can lower
#
# Frank-Wolfe looks at data: a few labelled *calibration* pictures of every task that the merged model shall
# serve. We take three of the eight tasks as targets and fifty training pictures of each. The loss
# $\ell(\theta)$ is the mean over the three tasks of the cross-entropy of the model $\theta$ with each task's
# own frozen head.

# %%
import mergelib as ml
from mergebook import load_suite, load_zoo
from mergebook.suites.models import scale_pixels
from mergelib.procedures.objectives import CalibrationLoss

suite = load_suite(SUITE, seed=SEED, profile=PROFILE)
zoo = load_zoo(suite, device=DEVICE)
targets = list(zoo.experts)[3:6]

# %% tags=["nbval-check-output"]
print("experts:", ", ".join(zoo.experts))
print("targets:", ", ".join(targets))

# %% [markdown]
# Each expert becomes a dictionary of its trained parameters; buffers, if a model has them, stay fixed.
# `CalibrationLoss` turns such a dictionary into a value, or a value and a gradient, which is all that
# Frank-Wolfe asks of an objective.

# %%
keys = [key for key, _ in zoo.model.named_parameters()]
experts = {name: {key: state[key] for key in keys} for name, state in zoo.experts.items()}
triangle = {name: experts[name] for name in targets}
pretrained = {key: zoo.pretrained[key] for key in keys}
fixed = {key: each for key, each in zoo.pretrained.items() if key not in keys}
count = 16 if PROFILE == "smoke" else 50
data = {
    task: (suite.tasks[task].train.inputs[:count], suite.tasks[task].train.labels[:count])
    for task in targets
}
loss = CalibrationLoss(zoo.model, fixed, zoo.heads, data, 200, scale_pixels)

# %% [markdown]
# ## The idea in one picture
#
# Three experts are three points in a space of more than a million dimensions, and three points lie in a plane.
# `Plane` puts coordinates on it that keep all distances. Every point of the plane is a model,
# $\theta = w_1 \theta_1 + w_2 \theta_2 + w_3 \theta_3$ with weights that sum to one, and where no weight is
# negative the point lies in the triangle: **the triangle is the hull** of the three. The loss on a coarse grid
# of models is enough, since on this scale it is smooth; a cubic spline draws the contours between the grid
# points.

# %% tags=["hide-input"]
import numpy as np
from scipy.interpolate import RectBivariateSpline

from mergebook.lab.plane import Plane

plane = Plane.through(list(triangle.values()))
corners = {name: np.array(plane.place(state)) for name, state in triangle.items()}
outline = np.array(list(corners.values()))
low, high = outline.min(0), outline.max(0)
margin = 0.2 * (high - low).max()
xs, ys = (np.linspace(low[i] - margin, high[i] + margin, 9) for i in (0, 1))
grid = np.array([[loss.value(plane.model(float(x), float(y))) for x in xs] for y in ys])
surface = RectBivariateSpline(ys, xs, grid)

# %% [markdown]
# `minimise` walks for any objective, and returns the last point, the coefficients of the walk and a history
# with one row per step. Both walks start at the first expert. The hard variant makes eight steps; the soft one
# mixes the two best vertices and the current point, and stops where the gap is below a tolerance.

# %%
from mergelib.procedures.walk import minimise
from mergelib.statedict import flatten

start = triangle[targets[0]]
options = {
    "hard": {"variant": "hard", "steps": 8},
    "soft": {"variant": "soft", "steps": 3, "top_k": 2},
}
walks = {
    name: minimise(loss, start, triangle, tolerance=1e-3, **each) for name, each in options.items()
}
for name, (_, _, history) in walks.items():
    print(name, history[["vertex", "loss", "gap", "moved"]].round(4), sep="\n")

# %% [markdown]
# What the picture should explain is the first step. From where we stand, the arrow is $-\nabla \ell$, as far as
# it lies in the plane. The dashed lines at right angles to it are level lines of the *linear* picture of the
# loss that the gradient gives. Push such a line ahead as long as it still meets the triangle: it leaves at a
# corner. That corner is the **vertex $s$ that the oracle picks**, and the width of the shaded strip, times the
# length of the gradient, is the **gap**. The step goes from here straight towards $s$, and the line search says
# where to stop.

# %% tags=["hide-input"]
value, slope = loss.gradient(start)
downhill = -(plane.axes @ flatten(slope))
length = float(downhill.norm())
here, chosen = corners[targets[0]], corners[walks["hard"][2]["vertex"][0]]
downhill = (downhill / length).cpu().numpy()
width = float(downhill @ (chosen - here))
print(f"gap {walks['hard'][2]['gap'][0]:.3f}, strip times slope {width * length:.3f}")

# %% tags=["remove-cell"]
import matplotlib.pyplot as plt

from mergebook import plots
from mergebook.plots import BLACK, BROWN, GREY, ORANGE, colour

plots.use_style()
hard, soft = [here], np.array([here, plane.place(walks["soft"][0])])
for vertex, moved in zip(*(walks["hard"][2][name] for name in ("vertex", "moved"))):
    hard.append(hard[-1] + moved * (corners[vertex] - hard[-1]))


def draw_gap(ax):
    """The strip between two level lines of the linear loss, its width, and an arrow downhill."""
    normal = np.array([-downhill[1], downhill[0]])
    near, aside = np.array([here - 20 * normal, here + 20 * normal]), here - 1.8 * normal
    far, across = near + width * downhill, {"arrowstyle": "<|-|>", "color": BROWN}
    ax.fill(*np.concatenate([near, far[::-1]]).T, color=ORANGE, alpha=0.13, lw=0)
    for line in (near, far):
        ax.plot(*line.T, "--", color=BROWN, lw=1.3)
    ax.annotate("", here + 1.7 * downhill, here, arrowprops={"arrowstyle": "-|>", "lw": 2.4})
    ax.text(*(here + 1.6 * downhill + 0.1 * normal), r"$-\nabla\ell$", fontsize=14)
    ax.annotate("", aside + width * downhill, aside, arrowprops=across)
    place = aside + 0.4 * width * downhill - 0.1 * normal
    ax.text(*place, r"$g/\|\nabla\ell\|$", ha="right", fontsize=14)


# %% tags=["hide-input"] mystnb={"figure": {"caption": "A real loss on the plane through three experts. The triangle is their hull. The shaded strip between the dashed level lines of the first step is the gap: its width times the length of the gradient. Hard Frank-Wolfe zigzags to the lowest point, soft Frank-Wolfe gets there in one step.", "name": "fig-fw-plane"}, "image": {"alt": "Contours of a bowl whose lowest point lies inside a triangle of three experts. From the top corner an arrow points downhill; two dashed lines across it bound a shaded strip that reaches to the lower left corner, the vertex s. The hard path goes half way to that corner, then turns towards the right one, and ends at the bottom after ever shorter turns; the soft path goes there at once."}}
fig, ax = plt.subplots(figsize=(7.2, 6.2))
across, upwards = (np.linspace(side[0], side[-1], 160) for side in (xs, ys))
heights = surface(upwards, across)
lines = ax.contour(across, upwards, heights, levels=22, cmap="cividis", linewidths=1.1)
ax.clabel(lines, lines.levels[1::3].tolist(), fmt="%.2f", fontsize=9)
ax.fill(*outline.T, facecolor="none", edgecolor="black", lw=1.8)
for name, corner in corners.items():
    text = f"{name} = s" if np.allclose(corner, chosen) else name
    shift, style = 0.3 if corner[1] > 1 else -0.5, {"fontweight": "bold", "zorder": 6}
    spot = ax.text(corner[0], corner[1] + shift, text, ha="center", **style)
    spot.set_bbox({"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 1.5})
ax.grid(visible=False)
ax.set(aspect="equal", xlim=(xs[0], xs[-1]), ylim=(ys[0], ys[-1]), xlabel="distance in weights")
draw_gap(ax)
ax.plot(*np.array(hard).T, "o-", color=colour("cart"), ms=4, label="hard", zorder=4)
ax.plot(*soft.T, "D-", color=colour("tsv"), ms=7, label="soft", zorder=3)
ax.legend(loc="upper right")
plt.show()

# %% [markdown]
# First, the loss is a bowl: between these experts of one pretrained model there are no ridges, although nothing
# guarantees convexity. Second, the classical step is short-sighted: it goes towards corners only, and when the
# lowest point lies *between* them it has to zigzag. Third, the soft step is not: with two corners and the place
# where it stands it spans the whole triangle, and finds the bottom at once.
#
# ## Hull, oracle, gap
#
# Now the same in symbols, for any number $T$ of experts. The hull is
#
# $$
# \mathcal M = \Big\{ \sum_t w_t \theta_t \;:\; w_t \ge 0,\ \sum_t w_t = 1 \Big\},
# $$ (eq-fw-hull)
#
# and the **linear minimisation oracle** (LMO) finds the point of $\mathcal M$ where the linear picture of the
# loss is lowest. It needs no solver at all:
#
# ```{prf:proposition} A linear function is least at a vertex
# :label: prop-fw-lmo
# For every vector $c$, $\min_{s \in \mathcal M} \langle c, s \rangle = \min_t \langle c, \theta_t \rangle$.
# ```
#
# ```{prf:proof}
# $\langle c, \sum_t w_t \theta_t \rangle = \sum_t w_t \langle c, \theta_t \rangle$ is a weighted mean of the
# values at the vertices, and a mean is not below the least of what it averages. The vertices themselves are in
# $\mathcal M$, so the least is reached.
# ```
#
# So the oracle costs one gradient and $T$ inner products, with experts read from files one after the other.
# With its vertex $s$, the **gap** is
#
# $$
# g(\theta) = \max_{s \in \mathcal M} \langle \nabla\ell(\theta), \theta - s \rangle
# = \langle \nabla\ell(\theta), \theta \rangle - \min_t \langle \nabla\ell(\theta), \theta_t \rangle .
# $$ (eq-fw-gap)
#
# ```{prf:proposition} The gap is a certificate
# :label: prop-fw-certificate
# If $\ell$ is convex, $\ell(\theta) - \min_{\mathcal M} \ell \le g(\theta)$, for $\theta$ inside the hull or
# outside. If it is not, $g(\theta) = 0$ with $\theta \in \mathcal M$ still says that $\theta$ is stationary: to
# first order no direction within the hull goes down.
# ```
#
# ```{prf:proof}
# A convex function lies above its tangents:
# $\ell(s) \ge \ell(\theta) + \langle \nabla\ell(\theta), s - \theta \rangle \ge \ell(\theta) - g(\theta)$ for
# all $s \in \mathcal M$; take the best $s$. The second statement is the definition of $g$.
# ```
#
# The gap needs no knowledge of the minimum. The **hard** step is
# $\theta_{t+1} = \theta_t + \gamma (s - \theta_t)$ with $\gamma \in [0, 1]$, by line search or as $2/(t+2)$.
# The **soft** step mixes the $k$ vertices of lowest $\langle \nabla\ell, \theta_j\rangle$:
#
# $$
# \lambda^* = \arg\min_{\lambda \in \Delta^k} \ell\Big(\theta_t + \sum_{j=1}^k \lambda_j (s_j - \theta_t)
# \Big), \qquad \theta_{t+1} = \theta_t + \sum_j \lambda_j^* (s_j - \theta_t),
# $$ (eq-fw-soft)
#
# where $\Delta^k$ is the simplex of non-negative numbers that sum to one. In practice the minimum is approached
# by a few steps of projected gradient in the $k$ numbers $\lambda$.
#
# We check the certificate against a known value. Within the triangle the minimum can be read off the spline; at
# every step of the hard walk, loss minus gap must lie below it (up to the spline's error), if the loss is
# convex there.

# %% tags=["hide-input"]
weights = np.random.default_rng(SEED).dirichlet(np.ones(3), 4000)
lowest = min(surface.ev(*(weights @ outline).T[::-1]).min(), walks["soft"][2]["loss"].min())
history = walks["hard"][2]
certified = history["loss"] - history["gap"]
if PROFILE != "smoke":
    assert (certified <= lowest + 0.01).all(), "the gap must certify"
print(f"lowest loss in the hull {lowest:.3f}; certified from below {certified.max():.3f}")

# %% [markdown]
# ## What the hull leaves out
#
# Task arithmetic and CART owe their accuracy to *extrapolation*: they go from the pretrained model past the
# average of the experts, and so leave the hull. Their feet, the nearest points in the plane, lie inside the
# triangle; they leave it at a right angle, and so does the pretrained model, on the other side. Frank-Wolfe
# itself can prove it. The squared distance to a given model is a convex function: if half the squared distance
# at the last point is above the gap, the model is outside the hull, and the difference bounds its distance from
# below.

# %%
from mergebook.frank_wolfe.theory import SquaredDistance, diameter

three = {name: zoo.experts[name] for name in targets}
merges = {"pretrained": zoo.pretrained, "average": ml.merge("average", three)}
for scale in (0.5, 0.8):
    merged = ml.merge("task_arithmetic", three, pretrained=zoo.pretrained, scale=scale)
    merges[f"task arithmetic, {scale}"] = merged
merges["CART, scale 2"] = ml.merge("cart", three, scale=2.0)

# %% tags=["hide-input"]
print(f"diameter of the hull: {diameter(triangle, keys):.2f}")
outside = {}
for name, state in merges.items():
    point = {key: state[key] for key in keys}
    _, _, history = minimise(SquaredDistance(point), start, triangle, steps=8)
    half = (history["loss"] - history["gap"]).max()
    outside[name] = max(0.0, 2 * half) ** 0.5
    shares = np.linalg.solve(np.vstack([outline.T, np.ones(3)]), [*plane.place(point), 1])
    foot = "inside the triangle" if shares.min() > 0 else "beside the triangle"
    print(f"{name:20} foot {foot}, {outside[name]:.2f} away, loss {loss.value(point):.3f}")

# %% tags=["remove-cell"]
assert outside["average"] < 0.05 < outside["CART, scale 2"]

# %% [markdown]
# The certificate rightly says nothing about the average. The others are outside, CART by more than half the
# diameter, and the extrapolating ones have a lower loss than any point of the triangle. The next figure shows
# the direction that the hull lacks.

# %%
import numpy as np

centre = {key: merges["average"][key] for key in keys}
shares = np.linspace(0, 3, 13)
ray = [loss.value(ml.lerp(pretrained, centre, float(share))) for share in shares]

# %% tags=["hide-input"] mystnb={"figure": {"caption": "The loss on the ray from the pretrained model through the average of three experts. Only one point of the ray lies in their hull.", "name": "fig-fw-ray"}, "image": {"alt": "A curve that falls from the pretrained model at zero through the average at one and reaches its minimum well beyond it, below the dashed line of the best point of the hull, then rises. A dot marks the average as the only point inside the hull."}}
fig, ax = plt.subplots()
ax.plot(shares, ray, color=colour("task_arithmetic"), marker="o", ms=4)
ax.plot(1, ray[4], "o", ms=12, color=colour("average"), label="average: in the hull")
ax.axhline(lowest, color=colour("tsv"), ls="--", label="lowest loss in the hull")
ax.set(xlabel="way from the pretrained model, average = 1", ylabel="calibration loss")
ax.secondary_xaxis("top", functions=(lambda s: s / 3, lambda s: 3 * s)).set_xlabel(
    "scale of task arithmetic"
)
ax.legend(loc="upper right", bbox_to_anchor=(1, 0.85))
plt.show()

# %% [markdown]
# The lowest point of the ray is at about twice the way from the pretrained model to the average. The more
# experts there are, the nearer their average stays to the pretrained model, and the more there is to lose. A
# remedy within the method is another hull: add task arithmetic's or CART's model as a *vertex*, or scale the
# task vectors first.
#
# ## Proposition 1: the iterates stay inside, and forget
#
# The paper's Proposition 1 says that the soft step stays in the hull. It writes
#
# $$
# \theta_{t+1} = \Big(1 - \sum_j \lambda_j^*\Big)\, \theta_t + \sum_j \lambda_j^* s_j
# $$ (eq-fw-prop)
#
# and concludes from $\sum_j \lambda_j^* = 1$, $\lambda_j^* \ge 0$ and $\theta_t, s_j \in \mathcal M$. The
# conclusion holds. But with $\sum_j \lambda_j^* = 1$ the first term is zero: **the current point is dropped**,
# and the next one depends on it through the choice of the $k$ vertices only. A start outside the hull, such as
# the paper's own (the pretrained model, task arithmetic, AdaMerging), breaks the assumption
# $\theta_0 \in \mathcal M$, and is forgotten after one step. `keep_current=True`, the default in mergelib, lets
# $\theta_t$ itself be one more point of the mixture; the hull is then that of the experts *and the start*. In
# the released code $\lambda$ is free, and the proposition says nothing about it.
#
# (fw-proposition-one)=
# One step both ways, from two starts, with three vertices in the mixture:

# %%
import torch

generator = torch.Generator().manual_seed(SEED)
cloud = torch.randn(20, 10, generator=generator, dtype=torch.float64)
vertices = {f"v{i}": {"w": point} for i, point in enumerate(cloud)}
goal = SquaredDistance({"w": 1.5 * cloud[:5].mean(0)})
starts = [{"w": cloud.mean(0)}, {"w": cloud[7:].mean(0) + 3.0}]

# %% tags=["nbval-check-output"]
for keep in (False, True):
    step = {"steps": 1, "top_k": 3, "keep_current": keep, "inner_steps": 3}
    tables = [minimise(goal, begin, vertices, **step)[1] for begin in starts]
    left_over = [bool(table.loc["start", "w"] > 0) for table in tables]
    print("keeps the current point:", keep, "- something of the start is left:", left_over)

# %% [markdown]
# ## Theorem 1, line by line
#
# The theorem is about the soft variant. Let the gradient of $\ell$ be $L$-Lipschitz on $\mathcal M$, let $D$ be
# the diameter of $\mathcal M$ and $h_0 = \ell(\theta_0) - \min_{\mathcal M} \ell$. Then, says the paper,
#
# $$
# \min_{t \le S} g_t \;\le\; \frac{h_0}{S} + \frac{L D^2}{2}
# $$ (eq-fw-paper)
#
# after $S$ steps ($T$ in the paper; here $T$ counts experts), and it draws the conclusion that soft Frank-Wolfe
# has "a better convergence rate", $O(1/S)$, than the classical $O(1/\sqrt S)$. Its proof in ten steps, with
# $\ell_t = \ell(\theta_t)$ and $d = \theta_{t+1} - \theta_t$:
#
# 1. $g_t^k := \max_{\lambda, s_1 \dots s_k} \sum_j \lambda_j \langle \nabla\ell, \theta_t - s_j\rangle$ is a
#    definition.
# 2. $g_t^k \ge g_t$, as several directions give at least as much descent as one: holds, as an *equality*, so it
#    says nothing about several directions ({ref}`cell A <fw-step-gap>`).
# 3. $\ell_{t+1} \le \ell_t + \langle\nabla\ell, d\rangle + \frac L2 \lVert d\rVert^2$ "from the Lipschitz
#    continuity of $\ell(\theta)$": holds from that of $\nabla\ell$, not of $\ell$
#    ({ref}`cell B <fw-step-lipschitz>`).
# 4. $\langle\nabla\ell, d\rangle = -g_t^k$: does not follow, and is false ({ref}`cell C <fw-step-slope>`).
# 5. $\ell_{t+1} \le \ell_t - g_t^k + \frac L2 \lVert d\rVert^2$: likewise ({ref}`cell C <fw-step-slope>`).
# 6. $\lVert d\rVert \le D$: holds, for $\theta_t \in \mathcal M$.
# 7. $\ell_{t+1} \le \ell_t - g_t^k + \frac L2 D^2$: does not follow from 5; holds for another reason, for
#    $\theta_t \in \mathcal M$ ({prf:ref}`prop-fw-saved`).
# 8. Sum over $t$, with $\ell_0 - \ell_S \le h_0$: holds.
# 9. The minimum is at most the mean: holds.
# 10. The rate is $O(1/S)$, better than $O(1/\sqrt S)$: does not follow, and is false
#     ({ref}`cell D <fw-step-floor>`).
#
# (fw-step-gap)=
# **Step 2.** The two maxima in $g_t^k$ are over a weighted mean of numbers, each of which is at most $g_t$. So
# $g_t^k \le g_t$, and with $\lambda = e_1$ and the oracle's vertex there is equality. For random gradients and
# random tuples of vertices, no mean comes out above the ordinary gap:

# %% tags=["nbval-check-output"]
slopes = torch.randn(500, 10, generator=generator, dtype=torch.float64)
gains = (cloud.mean(0) - cloud) @ slopes.T  # ⟨∇ℓ, θ − s⟩, a row a vertex, a column a gradient
tuples = torch.randint(20, (3, 500), generator=generator)
mixed = torch.rand(3, 500, generator=generator, dtype=torch.float64)
several = (mixed / mixed.sum(0) * gains.gather(0, tuples)).sum(0)
print("above the ordinary gap:", int((several > gains.amax(0) + 1e-12).sum()), "of 500")

# %% [markdown]
# (fw-step-lipschitz)=
# **Step 3.** A slip of the pen, but the constant $L$ has to be the right one. The function $|\theta|$ is
# Lipschitz with constant 1, and the inequality fails for a step across its kink:

# %% tags=["nbval-check-output"]
before, after, slope_before = 0.1, -0.1, 1.0
step_three = before + slope_before * (after - before) + 0.5 * (after - before) ** 2
print("|after| <= right side of step 3:", abs(after) <= step_three)

# %% [markdown]
# (fw-step-slope)=
# **Steps 4 and 5.** $\lambda^*$ minimises $\ell$, not its linear picture. The slope along the step is $-g_t$
# only if the mixture puts all its weight on vertices that tie with the oracle's. Take the vertices 0 and 1 on a
# line, $\ell(\theta) = \frac12 (\theta - 0.3)^2$, so $L = 1$, and stand on $\theta_t = 1$. The gap is $0.7$.
# With $k = 2$ the soft step goes to the minimum, $0.3$: a perfect step. Its slope is not minus the gap, and
# step 5 would promise a loss that no square can have:

# %% tags=["nbval-check-output"]
now, then = 1.0, 0.3
slope_now = now - 0.3
gap = slope_now * (now - 0.0)
right_side = slope_now**2 / 2 - gap + (then - now) ** 2 / 2
print(f"slope along the step {slope_now * (then - now):.2f}, minus the gap {-gap:.2f}")
print(f"loss afterwards {(then - 0.3) ** 2 / 2:.2f}, step 5 allows at most {right_side:.2f}")

# %% [markdown]
# The proof breaks here. What it wants to show survives *inside the hull*, by a comparison with the corner that
# the mixture could have chosen:
#
# ```{prf:proposition} Step 7 is true inside the hull
# :label: prop-fw-saved
# If $\theta_t \in \mathcal M$ and the oracle's vertex is among the $k$, then
# $\ell(\theta_{t+1}) \le \ell(\theta_t) - g_t + \frac L2 D^2$. If $\theta_0 \in \mathcal M$, {eq}`eq-fw-paper`
# follows.
# ```
#
# ```{prf:proof}
# $\lambda = e_1$ is allowed, so $\ell(\theta_{t+1}) \le \ell(s)$ for the oracle's vertex $s$. By step 3 for the
# step to $s$,
# $\ell(s) \le \ell(\theta_t) + \langle \nabla\ell(\theta_t), s - \theta_t\rangle + \frac L2 \|s - \theta_t\|^2 \le \ell(\theta_t) - g_t + \frac L2 D^2$,
# the last because both ends are in $\mathcal M$. The step stays there, and steps 8 and 9 follow.
# ```
#
# Outside it fails: with the vertices 0 and 1, $\ell = \frac12\theta^2$ and $\theta_t = 10$, it promises at most
# $50 - 100 + \frac12$, a negative loss. The paper's own starts are outside; from its second iterate on, the
# printed step is inside, and the bound holds with $h_1$ in place of $h_0$.
#
# (fw-step-floor)=
# **Step 10.** So for a start in the hull the theorem is right as printed. It is its reading as a *rate* that
# fails: as $S$ grows, the right side of {eq}`eq-fw-paper` falls to $L D^2/2$ and no further. That floor says
# little: where $\mathcal M$ has a point with $\nabla\ell = 0$, Lipschitz continuity alone gives $g \le L D^2$
# *everywhere*, without any algorithm. And it can't be proved away, because the method as printed does stand
# still there. Two examples with $\ell = \frac12 \|\theta\|^2$, in which $L = 1$:
#
# * $k = 1$ on the segment from $-1$ to $1$: the step jumps from end to end for ever, at gap $2 = L D^2/2$,
#   **exactly the floor**;
# * $k = 2$ on a regular triangle around the origin: from the middle of one side, the opposite corner is best
#   and the mixture's minimum is the middle of another side; at each, the gap is $\frac34$.

# %% tags=["nbval-check-output"]
from mergebook.frank_wolfe.theory import classical_bound, printed_gaps, soft_bound

segment = torch.tensor([[-1.0], [1.0]], dtype=torch.float64)
angles = 2 * torch.pi * torch.arange(3, dtype=torch.float64) / 3
regular = torch.stack([angles.cos(), angles.sin()], 1)
for corners_of, k in ((segment, 1), (regular, 2)):
    gaps = printed_gaps(corners_of, corners_of[-1], k)
    floor = torch.pdist(corners_of).max().item() ** 2 / 2
    print(f"k = {k}: gap {min(gaps):.2f} at best in 60 steps; the floor L D²/2 is {floor:.2f}")

# %% [markdown]
# The minimum in both examples is the origin, a point of the hull. So soft Frank-Wolfe as printed need not
# converge at all, even on the best-natured convex function: the claim of a better rate does not hold.
#
# ## A theorem that holds
#
# The classical theorem for non-convex losses {cite}`lacostejulien2016convergence` has no floor: with line
# search, $\min_{t \le S} g_t \le \max(2 h_0, C)/ \sqrt{S+1}$ for $C = L D^2$. Soft Frank-Wolfe inherits it the
# moment it keeps the current point, because then the whole segment from $\theta_t$ to the oracle's vertex is
# among the mixtures.
#
# ```{prf:theorem} Soft Frank-Wolfe that keeps the current point
# :label: thm-fw-kept
# Let $\nabla\ell$ be $L$-Lipschitz on $\mathcal M$, $C = L D^2$, and $\theta_0 \in \mathcal M$. Let every step
# do at least as well as a line search,
#
# $$ \ell(\theta_{t+1}) \le \min_{0 \le \gamma \le 1} \ell(\theta_t + \gamma (s_t - \theta_t)), $$
#
# as the exact soft step with $\theta_t$ and the oracle's vertex $s_t$ in the mixture does. Then
# 1. every step brings $\ell(\theta_{t+1}) \le \ell(\theta_t) - \frac{g_t}{2} \min(1, g_t/C)$;
# 2. $\min_{t \le S} g_t \le \max(2 h_0, C)/\sqrt{S+1}$;
# 3. if $\ell$ is convex, $\ell(\theta_t) - \min_{\mathcal M} \ell \le 2C/(t+2)$ for $t \ge 1$, and
#    $\min_{t \le S} g_t \le 4C/(S+2)$ for $S \ge 2$.
# ```
#
# ```{prf:proof}
# *1.* For every $\gamma \in [0, 1]$, $L$-smoothness gives
# $\ell(\theta_{t+1}) \le \ell(\theta_t) - \gamma g_t + \frac{\gamma^2}{2} C$. Put $\gamma = \min(1, g_t/C)$. If
# $g_t \le C$, what is subtracted is $g_t^2/(2C)$; otherwise it is $g_t - C/2 \ge g_t/2$.
#
# *2.* Let $g$ be the least gap. Add up *1* for $t = 0, \dots, S$: $h_0 \ge (S+1) \frac g2 \min(1, g/C)$. If
# $g \le C$, then $g \le \sqrt{2 h_0 C/(S+1)}$, a geometric mean of $2h_0$ and $C$ over $\sqrt{S+1}$, which is
# at most their maximum over $\sqrt{S+1}$. If $g > C$, then $g \le 2 h_0/(S+1)$.
#
# *3.* By {prf:ref}`prop-fw-certificate`, $h_t \le g_t$, so that
# $h_{t+1} \le (1 - \gamma) h_t + \frac{\gamma^2}{2} C$ for every $\gamma$. With $\gamma = 2/(t+2)$ the claim
# follows by induction: $h_1 \le C/2$ from $\gamma = 1$, and
# $\frac{t}{t+2} \cdot \frac{2C}{t+2} + \frac{2C}{(t+2)^2} = \frac{2C(t+1)}{(t+2)^2} \le \frac{2C}{t+3}$. For
# the gap, add up *1* from $m = \lfloor S/2 \rfloor$ to $S$ only:
# $\frac{2C}{m+2} \ge h_m \ge (S - m + 1) \frac g2 \min(1, g/C)$. As $(S-m+1)(m+2) \ge
# (S+2)^2/4 \ge 4$, $g > C$ is impossible, and $g \le 2C/\sqrt{(m+2)(S-m+1)} \le 4C/(S+2)$.
# ```
#
# The first and second parts are Lacoste-Julien's argument, the bound on $h_t$ is Jaggi's
# {cite}`jaggi2013revisiting`; his bound on the gap has the factor $27/4$ where line search allows 4. All three
# hold for the hard variant with line search as well. So the theorem does **not** say that soft is faster; it
# says that soft is no slower, at a higher price a step: $C$ knows nothing of $k$. For a start outside, 1 and 2
# hold with $L$, $D$ and $h_0$ of the hull of experts and start, which the walk does not leave.
#
# The three bounds in the package:

# %%
import inspect

from mergebook.frank_wolfe.theory import convex_bound

for bound in (soft_bound, classical_bound, convex_bound):
    print(inspect.getsource(bound))

# %% [markdown]
# ## The bounds beside the gap: where all is known
#
# The twenty random points in ten dimensions from above, and the squared distance to a point outside their hull.
# It is convex, with $L = 1$ known exactly, and its minimum lies on a face of the hull, the case in which
# Frank-Wolfe zigzags. We run two hundred steps of four variants, soft with $k = 3$.

# %%
STEPS = 200
variants = {
    "hard, 2/(t+2)": {"variant": "hard", "step": "diminishing"},
    "hard, line search": {"variant": "hard"},
    "soft, kept": {"inner_steps": 30},
    "soft, as printed": {"inner_steps": 30, "keep_current": False},
}
runs = {
    name: minimise(goal, starts[0], vertices, steps=STEPS + 1, **each)[2]
    for name, each in variants.items()
}

# %% tags=["hide-input"]
steps = np.arange(2, STEPS + 1)
wide = diameter(vertices, ["w"])
best = runs["soft, kept"]["loss"].min()
excess = runs["soft, kept"]["loss"][0] - best
bounds = {
    "Theorem 1": [soft_bound(excess, 1.0, wide, s) for s in steps],
    "classical": [classical_bound(excess, 1.0, wide, s) for s in steps],
    "convex": [convex_bound(1.0, wide, s) for s in steps],
}

# %% [markdown]
# The theorem's three statements are checked on these runs, step by step:

# %% tags=["hide-input", "nbval-check-output"]
for name in ("hard, line search", "soft, kept"):
    values, gaps = runs[name]["loss"].to_numpy(), runs[name]["gap"].to_numpy()
    t = np.arange(1, len(values))
    promised = gaps[:-1] / 2 * np.minimum(1, gaps[:-1] / wide**2)
    assert (values[1:] <= values[:-1] - promised + 1e-9).all(), "statement 1"
    assert (values[1:] - best <= 2 * wide**2 / (t + 2)).all(), "statement 3, the loss"
    least = runs[name]["gap"].cummin().reindex(steps, method="ffill")
    assert (least <= bounds["classical"]).all(), "statement 2"
    assert (least <= bounds["convex"]).all(), "statement 3, the gap"
    print(name, "- the theorem holds at every step")

# %% tags=["hide-input"] mystnb={"figure": {"caption": "The smallest gap so far on a convex quadratic with known constants, and the three bounds; both axes logarithmic. Solid: measured. Dashed: bounds.", "name": "fig-fw-quadratic"}, "image": {"alt": "Two hard variants fall with a slope of about minus one. Soft with the current point kept drops off the figure within ten steps; soft as printed is level from the second on. Of the dashed bounds the paper's is level near the top; the classical one and the steeper convex one cross it within ten steps."}}
fig, ax = plt.subplots(figsize=(7.2, 5.0))
shades = [colour("task_arithmetic"), colour("average"), colour("tsv"), colour("cart")]
for (name, history), shade in zip(runs.items(), shades):
    least = history["gap"].cummin().clip(lower=1e-6)
    ax.plot(least.index[1:], least[1:], color=shade, label=name)
for (name, bound), shade in zip(bounds.items(), (BLACK, GREY, colour("slerp"))):
    ax.plot(steps, bound, "--", color=shade, label=f"{name} bound")
ax.set(xscale="log", yscale="log", xlabel="steps", ylabel="smallest gap so far", ylim=(3e-3, 200))
ax.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=2)
plt.show()

# %% [markdown]
# Theorem 1's bound is level from the start; the classical one soon lies below it and goes on falling. The hard
# variants follow the convex rate, well below its bound. Soft that keeps the current point is done after a
# handful of steps. Soft as printed never gets below its second gap: it circles between mixtures of three
# vertices.
#
# ## The bounds on the real problem
#
# Now all eight experts are vertices, five of them for tasks that the loss does not know, and we start at their
# average. $D$ is exact. $L$ is not known for a network. `smoothness` gives the largest curvature *along the
# hull* at a given point, by differences of the gradient; but $L$ is the maximum over **all** points, so a few
# points give a lower estimate only.

# %%
from mergebook.frank_wolfe.theory import smoothness

average = {key: state[key] for state in [ml.merge("average", zoo.experts)] for key in keys}
settings = {
    "hard, line search": {"variant": "hard", "steps": 12},
    "soft, kept": {"top_k": 2, "steps": 6, "inner_steps": 5},
    "soft, as printed": {"top_k": 2, "steps": 6, "inner_steps": 5, "keep_current": False},
}
real = {
    name: minimise(loss, average, experts, tolerance=0.02, **each)
    for name, each in settings.items()
}

# %%
wide = diameter(experts, keys)
points = {"the average": average, "an expert": start, "the last point": real["soft, kept"][0]}
curvatures = {name: smoothness(loss, point, experts) for name, point in points.items()}
curvature = max(curvatures.values())
best = min(loss.value(point) for point, _, _ in real.values())
excess = real["soft, kept"][2]["loss"][0] - best
for name, each in curvatures.items():
    print(f"curvature along the hull at {name}: {each:.3f}")
print(f"D = {wide:.2f}, L D² at least {curvature * wide**2:.2f}, h0 at least {excess:.2f}")

# %% tags=["hide-input"] mystnb={"figure": {"caption": "The gap on the real loss, eight experts and three target tasks, and the two bounds that do not need convexity, with a lower estimate of L. Logarithmic vertical axis.", "name": "fig-fw-real"}, "image": {"alt": "The gap of hard Frank-Wolfe falls unevenly by about an order of magnitude, that of soft with the current point faster; soft as printed goes up and down. Both dashed bounds lie far above the first gap."}}
fig, ax = plt.subplots(figsize=(7.2, 4.8))
counts = np.arange(1, 12)
for (name, (_, _, history)), shade in zip(real.items(), shades[1:]):
    ax.plot(history["step"], history["gap"], "o-", ms=4, color=shade, label=name)
for name, bound, shade in (
    ("Theorem 1", soft_bound, BLACK), ("classical", classical_bound, GREY),
):  # fmt: skip
    values = [bound(excess, curvature, wide, int(s)) for s in counts]
    ax.plot(counts, values, "--", color=shade, label=f"{name} bound")
ax.set(yscale="log", xlabel="step", ylabel="gap")
ax.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=2)
plt.show()

# %% tags=["hide-input"]
first_gap = real["soft, kept"][2]["gap"][0]
needed = (max(2 * excess, curvature * wide**2) / first_gap) ** 2
print(f"first gap {first_gap:.2f}; the floor of Theorem 1 is {curvature * wide**2 / 2:.2f}")
print(f"the classical bound falls below the first gap after {needed:.0f} steps")

# %% [markdown]
# On the real problem both bounds are worth nothing as numbers: the floor of Theorem 1 lies several times above
# the gap that we *start* with, and the classical bound needs a three-digit number of steps to say anything,
# though $L$ is, if anything, too small. What is of use in practice is the gap itself, which costs nothing
# extra, and the coefficients. They show which experts matter, here for an oracle over whole models; by layer
# strangers get a share, too ([](22-frank-wolfe-experiments)).

# %% tags=["hide-input"]
coefficients = real["soft, kept"][1].mean(axis=1)
print("share of the three targets' experts:", f"{coefficients[targets].sum():.0%}")
print("share of the five others:", f"{coefficients.drop([*targets, 'start']).sum():.0%}")

# %% [markdown]
# ## Which vertex? Inner product or cosine
#
# The oracle of {eq}`eq-fw-gap`, and of all walks in this book, compares inner products of the whole gradient
# with whole experts. The authors' released code scores an expert by the *sum of the tensors' cosines*, so that
# a bias of ten numbers counts as much as a matrix of ten thousand. (It differs in more:
# [](22-frank-wolfe-experiments) lists what.)
#
# (fw-votes)=
# How often do the two disagree? First with gradients and experts drawn at random, in twenty tensors of very
# different sizes; then with the real loss at random points of the hull.

# %%
from mergelib.procedures.walk import oracle_scores

sizes = torch.logspace(1, 4, 20).int().tolist()
drawn = []
for _ in range(200):
    tensors = [
        {str(i): torch.randn(n, generator=generator) for i, n in enumerate(sizes)} for _ in range(9)
    ]
    drawn.append(oracle_scores(tensors[0], tensors[1:]))

# %% tags=["hide-input"]
seen, kept = [], []
for shares_of in np.random.default_rng(SEED).dirichlet(np.ones(len(experts)), 10).tolist():
    point = {k: sum(w * e[k] for w, e in zip(shares_of, experts.values())) for k in keys}
    products, cosines = oracle_scores(loss.gradient(point)[1], experts.values())
    gains = np.dot(shares_of, products) - np.array(products)  # ⟨∇ℓ, θ − s⟩ of every vertex
    seen.append((products, cosines))
    kept.append(gains[np.argmin(cosines)] / gains.max())
for name, pairs in {"random draws": drawn, "real points": seen}.items():
    other = sum(np.argmin(inner) != np.argmin(cosine) for inner, cosine in pairs)
    print(f"{name}: another vertex in {other} of {len(pairs)}")
print("share of the gap that the cosine's vertex has:", f"{min(kept):.2f} to {max(kept):.2f}")

# %% [markdown]
# On random draws the two are near strangers: of two votes for one of eight that know nothing of each other,
# seven in eight differ. On the real loss they differ at most of the points as well, but there the cosine's
# vertex keeps the larger part of the gap. So it is a fair heuristic, while the gap and every theorem of this
# chapter belong to the inner product. mergelib offers it as `score="cosine"`.
#
# ## What the paper says, and what we measured
#
# All claims and their checks are in the [](90-claims-ledger), the errors of the proof in the
# [](../book/errata).
#
# ## When to use it, and when not
#
# **Use it** when you have labelled pictures for the tasks that matter, a pool of experts of which you do not
# know which ones help, and want an answer that explains itself: a few coefficients, a proof that they are a
# convex combination, and a certificate of how much is left. Memory does not grow with the pool.
#
# **Do not use it** as the last word on accuracy: the best point of the hull of the experts alone is a weighted
# average, and {numref}`fig-fw-ray` shows what lies beyond. And do not trust a run that drops the current point
# because its loss fell once: look at the gap.
#
# ## Exercises
#
# ```{exercise} At the minimum (easy)
# :label: ex-fw-tie
# At a minimum over the hull, let the coefficients of some vertices be positive. What do the inner products
# $\langle \nabla\ell, \theta_j \rangle$ of these vertices have in common? Check it on the quadratic.
# ```

# %% [markdown]
# ````{solution-start} ex-fw-tie
# :class: dropdown
# ````
# They are equal, and equal to the least of all: the gap, which is zero at the minimum, is the weighted mean of
# what each inner product exceeds the least one by.

# %% tags=["nbval-check-output"]
last, table, _ = minimise(goal, starts[0], vertices, steps=3, top_k=20, inner_steps=60)
products = cloud @ goal.gradient(last)[1]["w"]
used = torch.tensor((table["w"].drop("start") > 1e-3).to_numpy())
print("equal:", bool((products[used] - products.min() < 1e-3).all()), "- used:", int(used.sum()))

# %% [markdown]
# ````{solution-end}
# ````
#
# ```{exercise} A larger hull (medium)
# :label: ex-fw-larger
# Give the three target experts a fourth vertex, their CART merge at scale 2, and walk again. How low does the
# loss get, compared with the best point of the triangle?
# ```

# %% [markdown]
# ````{solution-start} ex-fw-larger
# :class: dropdown
# ````
# Lower than the triangle's best point, and than CART itself. The coefficients say how much of the extrapolation
# the loss wants.

# %%
larger = {**triangle, "CART": {key: merges["CART, scale 2"][key] for key in keys}}
last, table, _ = minimise(loss, centre, larger, steps=2, top_k=4, inner_steps=5, tolerance=0.01)
print(f"triangle {lowest:.3f}, CART {loss.value(larger['CART']):.3f}, both {loss.value(last):.3f}")
print(table.mean(axis=1).round(2).to_dict())

# %% [markdown]
# ````{solution-end}
# ````
#
# ```{exercise} A constant that fits (hard)
# :label: ex-fw-curvature
# In the proof of {prf:ref}`thm-fw-kept`, $C$ need only satisfy
# $\ell(\theta + \gamma (s - \theta)) \le \ell(\theta) + \gamma \langle \nabla\ell, s - \theta\rangle + \frac{\gamma^2}{2} C$.
# The least such number is Jaggi's *curvature constant*. Estimate it from below at the average, with
# $\gamma = 1$ and all vertices. How much smaller than $L D^2$ is it, and how much does the classical bound
# gain?
# ```

# %% [markdown]
# ````{solution-start} ex-fw-curvature
# :class: dropdown
# ````
# Solve the inequality for $C$ at every vertex, and take the largest. From the average no vertex is as far away
# as the two furthest are from each other, and the loss curves less towards most of them than in the worst
# direction.

# %%
value, slope = loss.gradient(average)
constants = []
for state in experts.values():
    linear = sum(float((slope[key] * (state[key] - average[key])).sum()) for key in keys)
    constants.append(2 * (loss.value(state) - value - linear))
print(f"curvature constant at least {max(constants):.2f}, L D² at least {curvature * wide**2:.2f}")

# %% [markdown]
# ````{solution-end}
# ````
#
# ## Summary
#
# * Frank-Wolfe minimises a calibration loss over the hull of the experts. Its oracle needs one gradient and one
#   inner product an expert, because a linear function on a hull is least at a vertex.
# * The gap comes for free, and bounds what is left to gain where the loss is convex.
# * The hull excludes extrapolation, which the best merges without data live on; a vertex more repairs it.
# * Theorem 1 of the paper is true for starts in the hull, for another reason than the one given; it is no rate,
#   and the soft step as printed can circle for ever. With the current point kept the classical rates hold.
# * On a network these bounds exceed the gap from which one starts. Look at the gap.
#
# ## References
#
# All sources are in the [](../book/bibliography).
