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
# # Why over-trained experts merge badly
#
# **In one sentence:** the first steps of all experts together are one step down the loss that they share, while
# later steps take each expert to its own minimum, and the mean of minima is a bad place wherever tasks differ in
# what they are sensitive to. This is proved for quadratics. On networks, along the number of steps and within seven passes over the data, it is
# the generalisation error that turns the loss, as the paper says ([](42-scaling-laws)).
#
# Merges can get worse when their experts are trained for longer. The stability framework {cite}`li2026unified`
# explains this by *generalisation*: long training makes experts depend on single examples. It derives a bound of
# the merged model's error, and from the bound five laws. This chapter takes tasks on which every error is known
# exactly, reads the theory beside them, repairs what fails, and finds the explanation in another place.
#
# **After this chapter you can**
#
# * split a merged model's error into optimisation and generalisation, and compute both exactly on quadratics;
# * show an over-trained merge without any data, and say when over-training does no harm;
# * bound how well a merge generalises by its stability, with a proof, and say where the printed lemma fails;
# * bound how far merging lowers the loss, from gradients at the pretrained model alone;
# * judge a bound by asking what it says about a model that was never fine-tuned;
# * estimate the constants of a network, and measure how far one training example moves it.
#
# **Before you start:** [](02-averaging-and-task-vectors), what a gradient and a covariance are. **Time:** 45
# minutes to read, a minute to run with experts in the cache.

# %% tags=["parameters", "remove-cell"]
SUITE = "glyphs8"
PROFILE = "default"
SEED = 0
DEVICE = "cpu"

# %% [markdown]
# ## Two errors
#
# There are $T$ tasks (the paper writes $N$). Task $t$ has $n$ training examples; $f_t(\theta)$ is the mean loss on
# them and $F_t(\theta)$ the expected loss on new ones. A merged model should serve all tasks, so we look at the means
# $f = \frac1T\sum_t f_t$ and $F = \frac1T\sum_t F_t$. With $\hat\theta$, which makes $f$ least, the **excess error**
# of a model is
#
# $$
# F(\theta) - f(\hat\theta) = \underbrace{F(\theta) - f(\theta)}_{E_G} + \underbrace{f(\theta) - f(\hat\theta)}_{E_O} .
# $$ (eq-stability-excess)
#
# The **generalisation error** $E_G$ is what is lost between training and new examples; the **optimisation
# error** $E_O$ is what a joint training on all tasks could still gain on the training examples. All are meant in
# expectation over the draw of the examples and the batches.
#
# On networks both can only be measured. So we start where they can be computed. The loss of an example $z$ of task
# $t$ is
#
# $$
# \ell(\theta; z) = \tfrac12 (\theta - z)^\top H_t\, (\theta - z) ,
# $$ (eq-stability-loss)
#
# and examples have the mean $c_t$ and the covariance $C_t$. The task's minimum lies at $c_t$, and its **curvature**
# $H_t$ says which directions it is sensitive to. Any smooth loss looks like this near its minimum.
#
# Each expert takes $K$ steps of plain SGD from $\theta_0$ with learning rate $\eta$, on batches of $b$ examples, drawn
# anew at every step. The update is linear in the examples, and that makes everything known:
#
# ```{prf:proposition} Merges of quadratics, exactly
# :label: prop-stability-exact
# Let $R_t = I - (I - \eta H_t)^K$. Expert $t$ has the mean $c_t + (I - R_t)(\theta_0 - c_t)$. The merge
# $\sum_t w_t \theta_t$ has
#
# $$ E_G = \frac1T \sum_t \frac{w_t}{n} \operatorname{tr}(H_t R_t C_t) . $$
#
# If $\eta$ times the largest eigenvalue of $H_t$ is at most 1, this rises with $K$ towards
# $\frac1T \sum_t \frac{w_t}{n} \operatorname{tr}(H_t C_t)$, and not beyond.
# ```
#
# ```{prf:proof}
# A step is $\theta \mapsto \theta - \eta H_t (\theta - \bar z)$ with the batch's mean $\bar z$. So the distance from
# $c_t$ is multiplied by $I - \eta H_t$ at every step, and the training set's mean $\hat c_t$, whose covariance is
# $C_t/n$, enters the expert with the factor $R_t$. For one task, $F_t - f_t$ is linear in $\theta$ up to terms without
# $\theta$: $F_t(\theta) - f_t(\theta) = \theta^\top H_t (\hat c_t - c_t) + \dots$, so only the covariance of the merge
# with $\hat c_t$ counts, which is $w_t R_t C_t/n$. The terms without $\theta$ have the mean zero, as $F_t$ is the mean
# of $f_t$ at any fixed $\theta$. An eigenvalue $h$ of $H_t$ belongs to $1 - (1 - \eta h)^K$ in $R_t$, which rises
# from $\eta h$ to 1.
# ```
#
# `errors` holds this closed form, those of $E_O$, and more that we shall need. The tests of the package compare
# them with twenty thousand simulated trainings. Our tasks are four, in six dimensions. Their curvatures have the same
# eigenvalues, from 0.05 to 1, along different directions, and their gradients at $\theta_0 = 0$ prefer no
# direction: a shared part, and a part of the task's own that is half as long. Fifty examples of each:

# %%
import numpy as np

from mergebook.stability.read.quadratics import (
    errors_over_steps,
    pulled_tasks,
    two_tasks,
    untouched,
)

tasks = pulled_tasks(seed=SEED)
counts = np.unique(np.geomspace(1, 2048, 10 if PROFILE == "smoke" else 60).round()).astype(int)
steps = counts.tolist()
noisy = errors_over_steps(tasks, steps, 0.05, batch=8, examples=50)
start = untouched(tasks, examples=50)

# %% [markdown]
# The formula for $E_G$, written out for $K = 100$; `covered` gives the matrices $R_t$:

# %% tags=["nbval-check-output"]
import torch

from mergebook.stability.theory.quadratics import Quadratics, covered, errors
from mergebook.stability.theory.steps import Training

plan = Training.alike(4, 100, 0.05, batch=8, examples=50)
reach, _ = covered(tasks, plan)
traces = torch.einsum("tij,tjk,tki->t", tasks.hessians, reach, tasks.covariances)
by_hand = float((plan.weights / 50 * traces).mean())
print(f"by hand {by_hand:.4f}, by the package {errors(tasks, plan).generalisation:.4f}")

# %% [markdown]
# The second example is as small as can be: two tasks on a line, without any noise. One is sharp and is solved at
# $\theta_0 = 0$ already, $f_1 = \frac12\theta^2$; the other is flat and wants to go far,
# $f_2 = \frac12 \cdot 0.1\, (\theta - 4)^2$. All examples of a task are the same, so training and new examples cannot
# differ: $E_G$ is zero at every step.

# %%
pair = two_tasks()
clean = errors_over_steps(pair, steps, 0.1, batch=1, examples=1)
levels = [untouched(pair, examples=1), start]

# %% tags=["hide-input"] mystnb={"figure": {"caption": "Exact errors of the average of experts against the steps that each has taken, logarithmic axes. Left: two tasks on a line, without noise, at learning rate 0.1; their generalisation error is zero, so no curve. Right: four tasks in six dimensions with fifty noisy examples each, at learning rate 0.05.", "name": "fig-stability-u"}, "image": {"alt": "In both panels the optimisation error falls below that of the pretrained model, reaches a minimum and rises far above it again. On the left it is all there is. On the right the generalisation error rises slowly and levels off, more than one order of magnitude below everywhere, and the sum of both cannot be told from the optimisation error."}}
import matplotlib.pyplot as plt

from mergebook import plots

plots.use_style()
parts = {
    "optimisation": ("optimisation error", plots.BLUE, "-"),
    "generalisation": ("generalisation error", plots.VERMILION, "-"),
    "excess": ("their sum", plots.BLACK, ":"),
}
fig, axes = plt.subplots(1, 2, figsize=(7.2, 4.2), sharey=True)
for ax, table, level in zip(axes, (clean, noisy), levels):
    ax.axhline(level, color=plots.GREY, lw=1.2, ls="--", label="pretrained")
    for name, (text, shade, style) in parts.items():
        ax.plot(table["steps"], table[name].where(table[name] > 0), style, color=shade, label=text)
    ax.set(xscale="log", yscale="log", xlabel="steps K of every expert")
axes[0].set(title="two tasks, no noise", ylabel="error", ylim=(2e-4, 10))
axes[1].set(title="four noisy tasks")
plots.legend_outside(fig, ncols=2, fontsize=10)
plt.show()

# %% tags=["hide-input"]
least = noisy.loc[noisy["excess"].idxmin()]
last = noisy.iloc[-1]
print(f"pretrained {start:.2f}, best at K = {least['steps']:.0f}: {least['excess']:.2f}")
for name in ("optimisation", "generalisation"):
    print(f"{name}: {least[name]:.4f} there, {last[name]:.4f} at K = {last['steps']:.0f}")

# %% tags=["remove-cell"]
rise = last - least
assert clean["generalisation"].max() == 0
assert clean["excess"].iloc[-1] > levels[0]
assert least["excess"] < start < last["excess"]
assert rise["generalisation"] < 0.01 * rise["optimisation"]

# %% [markdown]
# Turned upside down, these are the inverted U's that experiments show: a merge improves with its experts' training, and
# then collapses. But look at what rises. On the left there is nothing to generalise over. On the right the
# generalisation error does grow with $K$, as the paper says, and is no more than a hundredth of the harm. **The
# over-trained merge is bad on the training examples themselves.**
#
# ## Where the U comes from
#
# ```{prf:proposition} Early and late merges
# :label: prop-stability-early
# Without noise, and with equal steps and weights $\frac1T$, the merge of quadratics is
# 1. for small $\eta K$: $\theta_0 - \eta K\, \nabla f(\theta_0)$ plus terms of order $(\eta K)^2$, so one step of
#    gradient descent on the shared loss;
# 2. for $K \to \infty$ (if all $H_t$ are positive definite, and $\eta$ is below 2 over the largest curvature): $\frac1T \sum_t c_t$, the plain mean of the
#    minima, while the shared minimum is the mean *weighted by curvature*,
#    $\hat\theta = (\sum_t H_t)^{-1} \sum_t H_t c_t$;
# 3. if all $H_t = H$: for every $K$, the point where $K$ steps of gradient descent on $f$ arrive. Then $E_O$ falls at
#    every step.
# ```
#
# ```{prf:proof}
# The merge is $\frac1T \sum_t [c_t + (I - \eta H_t)^K (\theta_0 - c_t)]$. *1.* Expand:
# $(I - \eta H_t)^K = I - \eta K H_t + \dots$, and $\frac1T \sum_t H_t (\theta_0 - c_t) = \nabla f(\theta_0)$. *2.* The
# powers vanish; $\nabla f(\hat\theta) = 0$ gives $\hat\theta$. *3.* With one $H$ the merge is
# $\bar c + (I - \eta H)^K (\theta_0 - \bar c)$ for $\bar c = \frac1T \sum_t c_t$, which is gradient descent on
# $f(\theta) = \frac12 (\theta - \bar c)^\top H (\theta - \bar c) + \text{const}$.
# ```
#
# Early in training, an expert moves along its *gradient*: far where its loss is steep, little where it is flat. These
# moves are in the right proportion to be added. Late in training it has settled everything, directions that hardly
# matter to it as well, at full length. In the example on the line the flat task goes four units for its own small
# good, the average follows it half way, and the sharp task pays.
#
# So over-training hurts through **differing curvatures**. The third part is the control: with equal curvatures, tasks
# may want to go to different places, and no merge is ever over-trained (exercise {ref}`ex-stability-equal`). A network
# has less simple losses, and long training does more to it than this: up to 800 steps its merge is not over-trained in this sense,
# as the training loss of the average still falls ([](42-scaling-laws)). But an inverted U by itself is no evidence of poor
# generalisation.
#
# (stability-introduction)=
# The paper's introduction has optimisation theory say that more steps are always better, and the caption of its Figure 1
# that this theory alone "cannot explain" what is seen. The two tasks on the line again, at the learning rate 1:

# %% tags=["nbval-check-output"]
whole = errors_over_steps(pair, [2, 50], 1.0, batch=1, examples=1)
print(f"pretrained: E_O = {levels[0]:.4f}")
for row in whole.itertuples():
    print(f"K = {row.steps:2}: E_O = {row.optimisation:.4f}, E_G = {row.generalisation:.0f}")

# %% [markdown]
# $E_O$ alone has the U, and $E_G$ is zero throughout. Nor does the imported theory deny it: its bound
# {ref}`has a term <stability-own-rate>` that grows with $K$.
#
# ## From stability to generalisation
#
# Now the theory. Where the text says Lemma 1 or Theorem 3, the paper's is meant; what stands in boxes is ours. It all
# rests on a classical idea {cite}`hardt2016train`: a training that depends little on each single
# example generalises. Let $\theta^{(tj)}$ be the merge that results when the $j$-th example of task $t$ is
# drawn anew, and everything else, the order of the batches included, stays the same. Its **stability** (the
# smaller the better) is
#
# $$
# S = \frac1T \sum_t \frac1n \sum_j \mathbb E\, \lVert \theta^{(tj)} - \theta \rVert^2 .
# $$ (eq-stability-S)
#
# Let every example's loss be $L$-smooth: its gradient changes by at most $L$ times the distance. The paper's Lemma 1
# states, for every $\gamma > 0$,
#
# $$
# E_G \le \frac{1}{2\gamma}\, \mathbb E \lVert \nabla f(\theta) \rVert^2 + \frac{L + \gamma}{2}\, S .
# \qquad \text{(printed, false)}
# $$ (eq-stability-lemma1)
#
# It is adapted from Lei and Ying {cite}`lei2020fine`, "replacing" their training loss by the squared gradient of $f$. A
# minimiser shows that this cannot be: there $\nabla f = 0$, and with $\gamma \to 0$ only $\frac L2 S$ remains. What
# one example's loss sees is not the mean gradient but its own:
#
# ```{prf:theorem} Stability bounds generalisation
# :label: thm-stability-generalisation
# Let examples be drawn independently, those of a task from one distribution, and the redrawn example from the same. Let the losses, heads of networks
# included, and the randomness of training not depend on the examples. Let every example's loss be $L$-smooth, and let
# $V = \frac1T \sum_t \frac1n \sum_j \mathbb E \lVert \nabla \ell(\theta; z_{tj}) \rVert^2$. Then
# $E_G \le \frac L2 S + \sqrt{S\,V}$. If losses are not negative, $V \le 2 L\, \mathbb E f(\theta)$.
# ```
#
# ```{prf:proof}
# $\theta^{(tj)}$ has not seen $z_{tj}$, so $\mathbb E\, \ell(\theta^{(tj)}; z_{tj}) = \mathbb E F_t(\theta)$, and
# $E_G$ is the mean of $\ell(\theta^{(tj)}; z_{tj}) - \ell(\theta; z_{tj})$ over all $t$ and $j$. By smoothness each is at
# most $\lVert \nabla\ell(\theta; z_{tj}) \rVert\, \lVert d_{tj} \rVert + \frac L2 \lVert d_{tj} \rVert^2$ with
# $d_{tj} = \theta^{(tj)} - \theta$. Cauchy and Schwarz bound the mean of the products by $\sqrt{V S}$. For the last
# claim, a smooth function that is not negative satisfies $\lVert \nabla\ell \rVert^2 \le 2 L\, \ell$: it would become
# negative at $\theta - \nabla\ell/L$ otherwise.
# ```
#
# (stability-lemma-one)=
# Both on the smallest example, the mean of ten numbers of variance one: one task, $H = 1$, trained to the end. Here
# $E_G = 1/n$.

# %%
from mergebook.stability.theory import bounds

one = torch.ones(1, 1, 1, dtype=torch.float64)
mean_of_numbers = Quadratics(one, one[0], one, torch.zeros(1, dtype=torch.float64))
done = errors(mean_of_numbers, Training.alike(1, 400, 0.2, batch=10, examples=10))

# %% tags=["nbval-check-output"]
gammas = [10.0**-k for k in range(9)]
printed = [bounds.printed_generalisation(done.gradient, done.stability, 1.0, g) for g in gammas]
repaired = bounds.generalisation_bound(done.stability, done.second_moment, 1.0)
print(f"exact {done.generalisation:.3f}, Lemma 1 allows at most {min(printed):.3f}")
print(f"repaired bound {repaired:.3f}")

# %% [markdown]
# Ten times too small.
#
# (stability-lemma-late)=
# Nor is it a matter of minimisers. The merge of the four tasks after 60 steps, with batches of four from twenty examples each,
# is far from a minimum of $f$, and the lemma is given the $\gamma$ that suits it best:

# %% tags=["nbval-check-output"]
plan = Training.alike(4, 60, 0.05, batch=4, examples=20)
midway = errors(tasks, plan)
gamma = bounds.best_gamma(midway.gradient, midway.stability)
moments = (midway.gradient, midway.stability)
allowed = bounds.printed_generalisation(*moments, tasks.smoothness, gamma)
holds = bounds.generalisation_bound(midway.stability, midway.second_moment, tasks.smoothness)
print(f"squared gradient {midway.gradient:.2f}, exact E_G {midway.generalisation:.4f}")
print(f"Lemma 1 allows {allowed:.4f}, repaired bound {holds:.4f}")

# %% tags=["remove-cell"]
assert allowed < 0.7 * midway.generalisation
assert midway.generalisation < holds
assert midway.gradient > 0.03

# %% [markdown]
# So the printed lemma does not bound the error, and everything that is built on it, Theorem 3
# included, loses its proof. The repaired bound has a price: $V$ counts how single examples pull, also where their
# mean is zero.
#
# ## How stable is an expert?
#
# (stability-lemma-three)=
# The paper's Lemma 3 states for the squared distance $s_t$ that one expert moves, if $\eta L K \le \frac18$ and no
# batch is larger than half the data,
#
# $$
# s_t \le 16\, K \eta^2 \Big( \frac{\sigma_t^2}{n} + \frac{3 b\, \zeta_t^2}{n} \Big)
# \qquad \text{(printed, false)}
# $$ (eq-stability-lemma3)
#
# where $\sigma_t$ bounds how far an example's gradient is from $\nabla f_t$, and $\zeta_t$ how far $\nabla f_t$ is from
# $\nabla f$. The step that fails says that the gradients at the old and the new example have the same mean, so that
# their difference can be dropped. They would, at a point that has seen neither. But training *has* seen them, and
# moves towards each again and again, every time in the same direction: such moves add up to $K^2$ in the square,
# not to $K$. We take examples $\pm1$ of one task and the largest learning rate that the lemma admits. There
# $\zeta = 0$, and $\sigma = 1$ in the mean square, as the paper's Assumption 2 has it; its proof takes the largest distance,
# $2(n-1)/n$, so we show both:

# %% tags=["nbval-check-output"]
settings = [(2, 5), (2, 200), (10, 10), (10, 1000)]
plans = [Training.alike(1, k, 1 / (8 * k), batch=1, examples=n) for n, k in settings]
truths = [errors(mean_of_numbers, plan).local_stability for plan in plans]
widest = [2 * (plan.examples - 1) / plan.examples for plan in plans]
for (n, k), plan, truth, largest in zip(settings, plans, truths, widest):
    known = [bounds.Losses(1.0, sigma, torch.zeros(1)) for sigma in (torch.ones(1), largest)]
    assert bounds.in_domain(known[0], plan, printed=True)
    ratios = [float(truth / bounds.printed_local_stability(each, plan)) for each in known]
    print(f"n = {n:2}, K = {k:4}: truth / Lemma 3 is {ratios[0]:4.1f}, or {ratios[1]:4.1f}")

# %% [markdown]
# A ratio above 1 is a violation. The law, linear in $K$, is wrong from the first passes on. The *inequality* has a large constant and fails only later:
# for small $\eta L K$ the exact value is about $2 \sigma^2 \eta^2 (K/(bn) + K^2/n^2)$, which exceeds $16 K \eta^2 \sigma^2/n$ once there are more than about 8 steps *per
# example*, $K/n > 8 - 1/b$, and with the shrinking of this example more than about 9, whatever the batch. With $b = 256$ those are more than 2,000 passes, beyond the paper's experiments and ours:

# %% tags=["nbval-check-output"]
for n, b, k in ((4000, 256, 4000), (400, 64, 4000), (400, 64, 8000)):
    plan = Training.alike(1, k, 1 / (8 * k), batch=b, examples=n)
    known = bounds.Losses(1.0, torch.ones(1), torch.zeros(1))
    law = bounds.printed_local_stability(known, plan)
    ratio = float(errors(mean_of_numbers, plan).local_stability / law)
    print(
        f"n = {n}, {k * b // n} passes, {k / n:.0f} steps per example: truth / Lemma 3 {ratio:.2f}"
    )
    assert (ratio > 1) == (k / n > 9)

# %% [markdown]
#
# (stability-bernoulli)=
# A smaller slip on the way: the proof uses $(1 + 4\eta L)^K - 1 \le 4 \eta L K$, which is Bernoulli's inequality the
# wrong way round. The printed constant 16 has room for it, as at most 5.2 are needed.

# %% tags=["nbval-check-output"]
print(f"K = 8, 4 eta L = 1/16: {(1 + 1 / 16) ** 8 - 1:.3f} against {8 / 16:.3f}")
growth = max(((1 + 0.5 / k) ** k - 1) / 0.5 for k in range(1, 10_000))
print(f"at most {growth:.2f} times too large in the domain")

# %% [markdown]
# (stability-two-cases)=
# Another one is in the sum of the proof's two cases, a batch without the redrawn example and one with it, of chance $b/n$.
# Each brings $4\sigma^2/b$ along, so their mean does, too; the proof writes $4\sigma^2/n$:

# %% tags=["nbval-check-output"]
b, n = 64, 4000
cases = {1 - b / n: 4 / b, b / n: 4 / b}
mean_case = sum(chance * part for chance, part in cases.items())
print(f"b = {b}, n = {n}: the two cases give {mean_case:.4f}, written is {4 / n:.4f}")

# %% [markdown]
# The first case should bring nothing: both trainings have the same batch there, and the same noise.
#
# ```{prf:theorem} Stability of SGD
# :label: thm-stability-local
# Let losses be $L$-smooth and $\lVert \nabla\ell(\theta; z) - \nabla f_t(\theta) \rVert \le \sigma_t$ for every example
# and at every $\theta$, both before and after the redraw. Then, with batches of $b$ of $n \ge 2$ examples, drawn without replacement and anew at each of $K$ steps,
#
# $$
# s_t \le (1 + \eta L)^{2(K-1)}\; 4 \sigma_t^2 \Big( \frac{n}{n-1} \Big)^2 \eta^2
# \Big[ \frac{K (1 - b/n)}{b\, n} + \frac{K^2}{n^2} \Big] .
# $$
#
# For whole shuffled epochs, if $b$ divides $n$, the bracket is $K^2/n^2$. For convex losses and $\eta \le 2/L$ the first factor is 1.
# ```
#
# ```{prf:proof}
# The redraw changes $\nabla f_t$ by $\frac1n$ of $g = \nabla\ell(\theta; \tilde z) - \nabla\ell(\theta; z)$, so
# $\lVert g \rVert \le 2\sigma_t + \frac1n \lVert g \rVert$, which is $\lVert g \rVert \le r = 2\sigma_t n/(n-1)$. Run
# both trainings with the same batches. A step with the same gradient function multiplies their distance by at most
# $1 + \eta L$ (by 1 if convex), and where the batch has the redrawn example, another $\eta r/b$ is added. Let $u_k$ be
# 1 at such steps, otherwise 0. The distance after $K$ steps is at most
# $(1 + \eta L)^{K-1}\, \frac{\eta r}{b} \sum_k u_k$, and $\sum_k u_k$ is binomial with mean $K b/n$ and
# variance $K \frac bn (1 - \frac bn)$; in whole epochs it *is* $K b/n$. Square and take the mean.
# ```
#
# The same four trainings, with the largest distance for $\sigma$, and none above 1:

# %% tags=["nbval-check-output"]
for (n, k), plan, truth, largest in zip(settings, plans, truths, widest):
    known = bounds.Losses(1.0, largest, torch.zeros(1))
    ratio = float(truth / bounds.local_stability(known, plan, convex=True))
    print(f"n = {n:2}, K = {k:4}: truth / repaired bound is {ratio:.2f}")

# %% [markdown]
# The ratio is the same for few passes and for many, so this bound has the right law. Two things change with it. In many
# passes stability grows with $K^2$, and falls with $n^2$. And there is neither $\zeta_t$ nor a factor $b$: how much *one*
# task moves when one of its examples is redrawn has nothing to do with how the tasks differ, and a larger batch makes
# training more stable, not less.
#
# (stability-heterogeneity)=
# Where do they come from? The proof bounds the change of $\nabla f_t$ by the redraw by way of $\nabla f$, which brings in
# $\zeta_t$. But that change is $\frac1n$ of the difference of two examples of *one* task. By which factor stability
# changes with eight times the batch, exactly and by the lemma at $\sigma = \zeta$:

# %% tags=["nbval-check-output"]
for k in (25, 800):
    plans = [Training.alike(1, k, 1 / (8 * k), batch=b, examples=4000) for b in (8, 64)]
    exact = [float(errors(mean_of_numbers, plan).local_stability) for plan in plans]
    known = bounds.Losses(1.0, torch.ones(1), torch.ones(1))
    lemma = [float(bounds.printed_local_stability(known, plan)) for plan in plans]
    print(f"K = {k:3}: times {exact[1] / exact[0]:.2f}, Lemma 3 says {lemma[1] / lemma[0]:.1f}")

# %% [markdown]
# ## How stable is the merge?
#
# The paper's Theorem 1 takes the weighted mean of the experts' bounds. But a redrawn example belongs to one task, and
# only that task's expert moves:
#
# ```{prf:proposition} A merge is more stable than its experts
# :label: prop-stability-merge
# Let the merge be $\sum_t w_t \theta_t$ with weights that are fixed beforehand. Then $S = \frac1T \sum_t w_t^2\, s_t$. With equal weights this is $\frac{1}{T^2}$ of the mean of the $s_t$.
# ```
#
# ```{prf:proof}
# A redrawn example of task $t$ moves the merge by $w_t$ times what it moves expert $t$ by.
# ```
#
# Weights that are learned from the examples, as AdaMerging's, and rules that are not linear, as TIES, are not covered.
#
# (stability-merge)=
# For eight equal experts Theorem 1's step is too large by a factor of $T^2$, and hides that generalisation gets
# *better* with more tasks:

# %% tags=["nbval-check-output"]
for number in (1, 2, 4, 8):
    plan = Training.alike(number, 200, 0.05, batch=8, examples=50)
    exact = errors(pulled_tasks(number), plan)
    jensen = bounds.printed_stability(plan, exact.local_stability)
    print(
        f"T = {number}: Theorem 1's S is {jensen / exact.stability:2.0f} times the exact one,",
        end=" ",
    )
    print(f"E_G = {exact.generalisation:.4f}")

# %% [markdown]
# ## How far does merging lower the loss?
#
# The second half of the theory is about optimisation, and comes from federated learning {cite}`wang2020tackling`. Its
# idea is a good one: describe any optimiser by a vector $a_t$, in which $a_{tk}$ says how much the gradient of step $k$
# counts in the end, $\theta_t = \theta_0 - \eta \sum_k a_{tk}\, g_{tk}$. For SGD these are ones; with momentum $\rho$,
# the early ones count $(1 - \rho^{K-k})/(1 - \rho)$, because they go on acting:

# %%
import inspect

from mergebook.stability.theory import steps as optimisers

print(inspect.getsource(optimisers.momentum))

# %% [markdown]
# (stability-adam)=
# The paper's Remark 6 says that Adam only changes this vector. But Adam divides every coordinate by a root of its own
# second moment, so each coordinate has a vector of its own, and a step need not lie in the span of the gradients. Two
# coordinates and one step show it:

# %% tags=["nbval-check-output"]
from mergebook.stability.theory.steps import adam_steps

first_step = adam_steps(torch.tensor([[1.0, 0.01]], dtype=torch.float64))
print(
    f"gradient (1, 0.01), step (1, 1): {first_step.residual:.0%} of its length across the gradient"
)

# %% [markdown]
# With $\lVert a \rVert_1$ the sum of a vector, the merge is $\theta_0 - \eta\, \tau_{\text{eff}} \sum_t \omega_t d_t$, where
# $d_t$ is a mean of gradients of task $t$, $\tau_{\text{eff}} = \sum_t w_t \lVert a_t \rVert_1$ and
# $\omega_t = w_t \lVert a_t \rVert_1 / \tau_{\text{eff}}$. So **a merge is one long step**, and an expert with more steps has
# more say: equal weights merge the *surrogate* loss $\tilde f = \sum_t \omega_t f_t$. Four experts, of which one has
# trained ten times longer:

# %% tags=["nbval-check-output"]
quarter = torch.full((4,), 0.25, dtype=torch.float64)
total, surrogate = optimisers.effective(quarter, [optimisers.sgd(k) for k in (100, 100, 100, 1000)])
print(f"effective steps {total:.0f}, weights in the surrogate", surrogate.numpy().round(2))

# %% [markdown]
# (stability-theorem-two)=
# Theorems 2 and 4 then bound the squared gradient of $\tilde f$ at the merge by four terms $\varepsilon$, with
# $\eta = \sqrt{T/\bar K}$, $\bar K$ being the mean number of steps, and without a condition on $\eta$. In the source the
# bound is for the best of many rounds of averaging, at the *start* of that round. A merge is one round, whose
# start is $\theta_0$. At the merge itself it fails, as on one task $\frac32 \theta^2$ with one step from 1, where
# $\eta = 1$ jumps to $-2$:

# %% tags=["nbval-check-output"]
steep = Quadratics(3 * one, 0 * one[0], 0 * one, torch.ones(1, dtype=torch.float64))
jump = Training.alike(1, 1, 1.0, batch=1, examples=1)
known = bounds.Losses(3.0, torch.zeros(1), torch.zeros(1))
terms = bounds.printed_gradient_terms(known, jump, gap=1.5)
print(
    f"rate {bounds.printed_rate(jump):.0f}: squared gradient {errors(steep, jump).gradient:.0f},",
    end=" ",
)
print(f"Theorem 2 allows {sum(terms.values()):.0f}")

# %% [markdown]
# The steps of that proof give something more useful: how far the *loss* falls, with nothing assumed about the way from
# gradient to loss. The price is a condition on how far the experts go.
#
# ```{prf:theorem} What a merge gains
# :label: thm-stability-descent
# Let losses be $L$-smooth, experts be trained by SGD with any schedule, independently, and
# $\eta L \lVert a_t \rVert_1 \le \frac{1}{2\sqrt3}$ for all $t$. Let $u = \eta\, \tau_{\text{eff}}$ and
# $\kappa^2 = \sum_t \omega_t \lVert \nabla f_t - \nabla \tilde f \rVert^2$ at $\theta_0$, and no entry of any $a_t$ be negative; let stochastic gradients, given all earlier steps,
# be unbiased with variance at most $\sigma_t^2/b$. Then
#
# $$
# \mathbb E \tilde f(\theta_{\text{merged}}) \le \tilde f(\theta_0) - \frac u4 \lVert \nabla \tilde f(\theta_0) \rVert^2
# + u \Big[ u L \sum_t \frac{\omega_t^2 \sigma_t^2 \lVert a_t \rVert_2^2}{b \lVert a_t \rVert_1^2}
# + \frac32 \eta^2 L^2 \sum_t \frac{\omega_t \sigma_t^2}{b} A_t + 3 \eta^2 L^2 \kappa^2 B \Big]
# $$
#
# with $A_t = \lVert a_t \rVert_2^2 - a_{t,\text{last}}^2$ and
# $B = \max_t \lVert a_t \rVert_1 (\lVert a_t \rVert_1 - a_{t,\text{last}})$.
# ```
#
# ```{prf:proof}
# Write $\theta_{\text{merged}} = \theta_0 - u (h + e)$: $h$ has full gradients of the $f_t$ at the experts' iterates in
# place of stochastic ones, $e$ is noise of mean zero. Smoothness gives
# $\tilde f(\theta_{\text{merged}}) \le \tilde f(\theta_0) - u \langle \nabla \tilde f, h + e \rangle + \frac L2 u^2 \lVert h + e
# \rVert^2$, all gradients without argument being at $\theta_0$. The noise of different steps and tasks is uncorrelated,
# so $\mathbb E \lVert e \rVert^2$ is at most the first sum. Use
# $-\langle \nabla \tilde f, h \rangle = -\frac12 \lVert \nabla \tilde f \rVert^2 - \frac12 \lVert h \rVert^2 + \frac12 \lVert
# \nabla \tilde f - h \rVert^2$ and $\lVert h + e \rVert^2 \le 2 \lVert h \rVert^2 + 2 \lVert e \rVert^2$; as $u L \le \frac12$, the
# terms with $\lVert h \rVert^2$ can go. There remains $\frac u2 \mathbb E \lVert \nabla \tilde f - h \rVert^2 \le \frac u2 L^2
# \sum_t \omega_t D_t$, where $D_t$ is the mean of $\mathbb E \lVert \theta_{tk} - \theta_0 \rVert^2$ over the iterates, weighted by
# $a_t$.
#
# An iterate is $\theta_{tk} - \theta_0 = -\eta \sum_{s < k} a_{ts} g_{ts}$. Split noise from full gradients, and each full
# gradient into its value at $\theta_0$ and the change since, at most $L \lVert \theta_{ts} - \theta_0 \rVert$. Twice
# $\lVert x + y \rVert^2 \le 2 \lVert x \rVert^2 + 2 \lVert y \rVert^2$ and the weighted mean over $k$ give
# $D_t \le 2 \eta^2 \frac{\sigma_t^2}{b} A_t + 4 \eta^2 L^2 B\, D_t + 4 \eta^2 B \lVert \nabla f_t \rVert^2$. By the
# condition $4 \eta^2 L^2 B \le \frac13$, so $D_t \le 3 \eta^2 \frac{\sigma_t^2}{b} A_t + 6 \eta^2 B \lVert \nabla f_t \rVert^2$.
# With $\sum_t \omega_t \lVert \nabla f_t \rVert^2 = \lVert \nabla \tilde f \rVert^2 + \kappa^2$, the part with $\lVert \nabla \tilde f \rVert^2$
# is at most $u \cdot 3 \eta^2 L^2 B \lVert \nabla \tilde f \rVert^2 \le \frac u4 \lVert \nabla \tilde f \rVert^2$, and the rest is what is
# claimed.
# ```
#
# Batches that are drawn anew at every step are unbiased in this sense. The shuffled epochs that most of the book's experts are trained with are not, because
# the batches of an epoch that have been drawn determine what is left of it.
#
# Read it from left to right: the merge descends like one step of length $u$; noise costs a little, less so when
# averaged over tasks; and what grows fastest is the last term, with the cube of $\eta K$: **the tasks pull apart**.
# It is about optimisation, and has $\kappa$, the difference of the tasks. Only gradients at $\theta_0$ are needed:

# %%
plan = Training.alike(4, 5, 0.05, batch=8, examples=50)
known = bounds.Losses(tasks.smoothness, tasks.noise, tasks.heterogeneity(tasks.start))
parts = bounds.descent_bound(tasks.opening(plan, plan.weights), known, plan)
for name, value in parts.items():
    print(f"{name:17} {value:+.4f}")
print(f"sum {sum(parts.values()):.4f}, exact loss of the merge {errors(tasks, plan).empirical:.4f}")

# %% [markdown]
# Without noise, and for many equal steps, the bound is least at
#
# $$
# \eta K = \min\Big( \frac{\lVert \nabla f(\theta_0) \rVert}{6 L \kappa},\ \frac{1}{2\sqrt3\, L} \Big) ,
# $$ (eq-stability-progress)
#
# a rule for when to stop: later where tasks agree, earlier where they pull apart, and the number of steps in inverse
# proportion to the learning rate (exercise {ref}`ex-stability-rule`).
#
# ## What Theorem 3 says about a model that was never fine-tuned
#
# (stability-theorem-three)=
# The paper adds Lemma 1, Theorem 1 and Theorem 2 to its Theorem 3. Let $\Delta = f(\theta_0) - f(\hat\theta)$, the excess
# error of the *pretrained* model, whose generalisation error is zero in expectation, as it has seen no data. (Measured on networks it is not zero, since heads are built from
# training examples and some test sets differ from their training sets; [](42-scaling-laws) subtracts it.) Suppose that all lemmas
# were true. How small can the bound become?
#
# ```{prf:theorem} Theorem 3 is vacuous in its domain
# :label: thm-stability-vacuous
# For equal steps and weights, wherever $\eta L K \le \frac18$, as the proof of Lemma 3 requires, the bound of Theorem 3 is at least
# $32\, \Delta$.
# ```
#
# ```{prf:proof}
# The bound contains $2 C \varepsilon$, with $C$ from $E_O \le C \lVert \nabla f \rVert^2$ at the merge. As $f$ is $L$-smooth,
# $E_O \ge \lVert \nabla f \rVert^2 / (2L)$, so $C \ge 1/(2L)$ where the gradient is not zero. The first term of
# $\varepsilon$ is $4 \Delta / (\eta K) \ge 32 L \Delta$. Together, $2 C \varepsilon \ge 32\, \Delta$.
# ```
#
# So the bound certifies nothing: it cannot tell the merge from a model that was never trained. This does not depend on
# $\gamma$.
#
# (stability-own-rate)=
# In the theorem's own $\eta = \sqrt{T/K}$ the domain is $L \le 1/(8 \sqrt{T K})$, which for eight
# tasks and 4,000 steps is $7 \cdot 10^{-4}$; our four tasks have $L = 1$. With this rate the stability term does not even
# grow with $K$, as $\eta^2 K = T$: the "linear" law and the "quadratic" law in $\eta$ need a rate that is held fixed
# while $\varepsilon$ was computed with another. And with $\eta = 1/(8LK)$, the largest rate that Lemma 3 admits, it *falls* as
# $1/K$. The next cell computes that term with both rates:

# %% tags=["nbval-check-output"]
sizes = []
for number, count in ((8, 1000), (8, 4000), (16, 1000)):
    known = bounds.Losses(1.0, torch.ones(number), torch.zeros(number))
    for rate in ((number / count) ** 0.5, 1 / (8 * count)):
        plan = Training.alike(number, count, rate, batch=1, examples=100)
        sizes.append(bounds.printed_stability(plan, bounds.printed_local_stability(known, plan)))
    print(f"T = {number:2}, K = {count}: {sizes[-2]:.2f}, at Lemma 3's rate {sizes[-1]:.2e}")

# %% [markdown]
# Nor does $\varepsilon$ fall with $K$ at the theorem's rate. Two of its four terms fall as $1/\sqrt K$. The third, noise on the way, tends to a
# constant in proportion to $T$, and the last, by which the tasks pull apart, grows as $TK$ and is nearly all of the sum. With
# $L = \sigma = \zeta = 1$:

# %% tags=["hide-input", "nbval-check-output"]
epsilon = []
for number, count in ((8, 1000), (8, 4000), (16, 4000)):
    plan = Training.alike(number, count, 1.0, batch=64, examples=1000)
    known = bounds.Losses(1.0, torch.ones(number), torch.ones(number))
    terms = bounds.printed_gradient_terms(known, plan, gap=1.0)
    epsilon.append([*terms.values(), sum(terms.values())])
print(f"{'':16}  T = 8, K = 1000  T = 8, K = 4000  T = 16, K = 4000")
for name, values in zip([*terms, "sum"], zip(*epsilon)):
    print(f"{name:16}" + "".join(f"{value:17.4g}" for value in values))

# %% tags=["remove-cell"]
same, fewer = (np.array(sizes[place::2]) for place in (0, 1))
assert np.isclose(same[1], same[0])
assert np.isclose(same[2], 2 * same[0])
assert np.isclose(fewer[0], 4 * fewer[1])
short, long, many = np.array(epsilon)
assert np.allclose(long[:2], short[:2] / 2)
assert np.isclose(long[2], 6 * 8 / 64, rtol=1e-3)  # 6 T L² σ² / b
assert np.isclose(many[2], 2 * long[2])
assert np.isclose(long[3], 4 * short[3], rtol=1e-3)
assert np.isclose(many[3], 2 * long[3])
assert short[3] > 0.999 * short[4]

# %% [markdown]
# (stability-gamma)=
# One more thing about its constants. Lemma 1 is weighted by $\gamma$, in the unit of $L$. The paper derives the best one,
# $\gamma^*$, but its Theorem 3, "tight" by name, is what $\gamma = 1$ gives. That depends on the *unit of the weights*: write
# every weight in tenths, and no model changes, but $S$, $C$ and the gradients do.

# %% tags=["nbval-check-output"]
for unit in (1.0, 10.0, 0.1):
    gradient, moved, smooth, constant = 0.8 / unit**2, 0.03 * unit**2, 2 / unit**2, 0.6 * unit**2
    best = bounds.best_gamma(gradient, moved)
    totals = [
        sum(bounds.printed_excess(gradient, moved, smooth, constant, g).values())
        for g in (1.0, best)
    ]
    print(f"unit {unit:4}: Theorem 3 {totals[0]:5.2f}, with the best gamma {totals[1]:.2f}")

# %% [markdown]
# Now all of it on our four tasks, at three learning rates. To be generous, the paper's bounds are drawn with a free
# rate, with $\zeta$ at $\theta_0$ only and $\sigma$ in the mean. The repaired bound adds up
# {prf:ref}`thm-stability-descent`, {prf:ref}`thm-stability-local`, {prf:ref}`prop-stability-merge` and
# {prf:ref}`thm-stability-generalisation`. With $D$ for the right side of the first, and equal steps and weights, it is
#
# $$
# \mathbb E F(\theta_{\text{merged}}) - f(\hat\theta) \le D - f(\hat\theta) + \tfrac L2 S + \sqrt{2 L D\, S} , \qquad S = \tfrac1{T^3} \textstyle\sum_t s_t .
# $$ (eq-stability-repaired)

# %%
from mergebook.stability.read.quadratics import bounds_over_steps

rates = (0.01, 0.05, 0.25)
tables = {rate: bounds_over_steps(tasks, steps, rate, batch=8, examples=50) for rate in rates}

# %% tags=["hide-input"] mystnb={"figure": {"caption": "Excess error of the average and its bounds on four noisy tasks, logarithmic axes. Curves are solid where they are proved (the paper's, if its lemmas held) and dotted beyond; the darker strip is the paper's domain, the lighter one that of the repaired bound. At the largest rate a single step leaves the darker one.", "name": "fig-stability-bounds"}, "image": {"alt": "Three panels. The truth starts just below the dashed line of the pretrained model, dips to a tenth of it and rises again, always far right of both domains. Theorem 3 and its best-gamma form lie at least thirty times higher than the dashed line everywhere. The repaired bound lies on the dashed line within its domain and shoots up right of it."}}
looks = {
    "theorem_3": ("Theorem 3", plots.VERMILION),
    "best_gamma": ("with γ*", plots.ORANGE),
    "repaired": ("repaired", plots.GREEN),
    "truth": ("truth", plots.BLACK),
}
fig, axes = plt.subplots(1, 3, figsize=(7.2, 4.2), sharey=True)
for ax, (rate, table) in zip(axes, tables.items()):
    limits = (bounds.PAPERS_DOMAIN, bounds.REPAIRED_DOMAIN)
    paper, ours = (max(limit / rate / tasks.smoothness, 1) for limit in limits)
    ax.axvspan(1, paper, color=plots.VERMILION, alpha=0.21, lw=0, zorder=0)
    ax.axvspan(paper, ours, color=plots.GREEN, alpha=0.11, lw=0, zorder=0)
    ax.axhline(start, color=plots.GREY, lw=1.2, ls="--", label="pretrained")
    for name, (text, shade) in looks.items():
        proved = table["domain" if name == "repaired" else "papers_domain"] | (name == "truth")
        ax.plot(table["steps"], table[name], ":", color=shade, lw=1.3)
        ax.plot(table["steps"], table[name].where(proved), "-", color=shade, label=text)
    ax.set(xscale="log", yscale="log", xlabel="steps K", title=f"η = {rate}", ylim=(0.05, 2e4))
axes[0].set(ylabel="excess error")
plots.legend_outside(fig, ncols=5, fontsize=10)
plt.show()

# %% tags=["hide-input"]
errors = [t["best_gamma"].where(t["papers_domain"]) for t in tables.values()]
lowest = np.nanmin(errors) / start
print("the paper's bounds in their domain:", end=" ")
print(f"at least {lowest:.0f} times the pretrained model's")
proved = {rate: t[t["domain"]] for rate, t in tables.items() if t["domain"].any()}
for rate, table in proved.items():
    row = table.loc[table["repaired"].idxmin()]
    print(f"rate {rate}, repaired: {row['repaired'] / start:.3f}", end=" ")
    print(f"at K = {row['steps']:.0f},", end=" ")
    print(f"truth {row['truth'] / start:.3f}")

# %% tags=["remove-cell"]
assert lowest >= 32 * start
assert all((table["truth"] <= table["repaired"]).all() for table in proved.values())
assert all((table["truth"] <= table["theorem_3"]).all() for table in tables.values())

# %% [markdown]
# The paper's bounds happen to lie above the truth here, by a factor that says nothing. The repaired bound is right by
# proof, and at the two smaller rates it certifies a gain, of less than a per cent. That is honest, and little: like
# every bound of this kind it holds only while $\eta K \le 0.29/L$. The authors could answer that bounds are for trends, and that this one
# proves hardly more. But their main text leaves out the condition, which stands in Lemma 3 and its proof in the appendix alone.
#
# A bound that is far off could still rank settings rightly. So we follow the curves beyond their domains, where they
# are mere heuristics, and ask where each is least:

# %% tags=["hide-input"]
for rate, table in tables.items():
    names = ("theorem_3", "repaired", "truth")
    places = [rate * table.loc[table[name].idxmin(), "steps"] for name in names]
    print(f"rate {rate}: " + ", ".join(f"{n} {p:.2f}" for n, p in zip(names, places)), "times 1/L")

# %% [markdown]
# Theorem 3 would have us stop several times too early, the repaired bound more than twenty times. **Neither predicts where
# over-training begins.** But all agree on what counts: not the steps and not the learning rate, but the product
# $\eta K$, the length of the one long step that a merge is.
#
# ## Constants of a real network
#
# (stability-everywhere)=
# How large are $L$, $\sigma$ and $\zeta$ of a network? The paper wants them to hold at *every* $\theta$, and counts it
# as an advantage that squared error is covered, as nothing asks for bounded gradients. But where gradients
# are unbounded, their differences are, too. Two examples of a regression, $\frac12 (\theta - 0)^2$ and
# $\frac12 (2\theta - 0)^2$, have gradients whose variance grows with $\theta^2$:

# %% tags=["nbval-check-output"]
for theta in (1.0, 10.0):
    slopes = theta * torch.tensor([1.0, 4.0])
    print(f"theta = {theta:2.0f}: variance {slopes.var(correction=0):.2f}")

# %% [markdown]
# Our quadratics have a finite $\sigma$, because all examples of a task share one curvature, but no finite $\zeta$,
# because tasks do not. A network with ReLU, as the paper's ResNets are, has not even an $L$: its gradient jumps where a unit
# switches on. (Our transformer has GELU.) What can be measured is the value at some points, a lower estimate of what is assumed. We take
# the shipped vision transformer on `glyphs8`, with 32 training pictures of each task, at the pretrained model and at
# the average of the experts. Curvature is found by power iteration, $v \leftarrow H v / \lVert H v \rVert$, on two pictures of each
# task; it is a lower estimate, too. Noise comes from gradients of single examples.
#
# Heterogeneity needs care: the squared distance of two noisy mean gradients contains their noise. Gradients on
# disjoint parts $a \ne b$ of the examples have independent noise, so the products
# $\langle \hat d_a, \hat d_b \rangle$ of two such distances are right on average. "Plugged in" is what comes out
# without this care:

# %%
from mergebook.stability.measure.constants import stability
from mergebook.stability.read.networks import constants, theorem_3
from mergebook.suites.loading import load_suite
from mergebook.suites.zoo import load_zoo

zoo = load_zoo(load_suite(SUITE, seed=SEED, profile=PROFILE), device=DEVICE)
few = {"pictures": 32, "curved": 2, "singles": 1, "products": 12, "adam": 2}
tables = stability(zoo, points=["pretrained", "average"], **few)
measured = {name: [{"seed": SEED, **row} for row in rows] for name, rows in tables.items()}
print(constants(measured).map("{:.3g}".format).to_string())

# %% tags=["hide-input"]
largest = max(row["smoothness"] for row in measured["curvature"])
kappa, half = (measured["points"][0][f"dissimilarity{end}"] for end in ("", "_half_width"))
residual = np.mean([row["residual"] for row in measured["adam"] if row["steps"] == 1])
print(f"kappa squared at the pretrained model: {kappa:.1f} ± {half:.1f}")
print(f"largest curvature {largest:.0f}: at rate 0.001 the domain ends after", end=" ")
print(f"{1 / (8 * 0.001 * largest):.2f} steps")
print(f"Theorem 3 there: {theorem_3(measured)[0]:.0f} times the pretrained model's loss")
print(f"Adam's first step: {residual:.0%} of its length across the gradient")

# %% tags=["remove-cell"]
assert 1 / (8 * 0.001 * largest) < 1
assert largest > 2 * max(r["smoothness"] for r in measured["curvature"] if r["of"] == "mean")
assert theorem_3(measured)[0] >= 32
assert residual > 0.5

# %% [markdown]
# **The domain is empty in practice**: it ends within the first step. What the assumption asks for is the curvature of single
# examples, several times that of the mean loss. Of what is plugged in for heterogeneity at the pretrained model, most is
# noise here, and the interval of $\kappa^2$ says how little so few pictures tell. This is one seed of one network. The study `stability` has
# measured all backbones of this book where they begin, the smaller transformer with five seeds, the others with one, on 64 examples of each task or
# more (of the full ResNet 16, of MiniLM 12). At the rates that they are trained at, after how many steps does the domain end, and what does
# Theorem 3 say there?

# %% tags=["remove-input"]
import pandas as pd

from mergebook.lab.results import load_result
from mergebook.stability.read import networks

kept = {name: load_result(result) for name, (result, _) in networks.BACKBONES.items()}
table = networks.backbones(kept)
print(table.map("{:.2g}".format).to_string())

# %% tags=["remove-cell"]
assert (table["steps"].drop("MiniLM, sentences") < 0.1).all()
assert 1 < table.loc["MiniLM, sentences", "steps"] < 2
assert (table["Theorem 3"] >= 32).all()

# %% [markdown]
# **The paper's domain holds one step of MiniLM, and of the others not a tenth of one.** (Adam's rate stands for that of SGD in the rows of transformers,
# and fewer examples give a smaller $L$.) That is for $L$ of single examples, as the paper's Assumption 1 has it. {prf:ref}`thm-stability-descent` needs only the
# smoothness of the tasks' mean losses. With the curvature of the mean over the tasks, the first column, and both domains, the steps are:

# %% tags=["remove-input"]
domains = {"paper's": bounds.PAPERS_DOMAIN, "corrected": bounds.REPAIRED_DOMAIN}
reach = {name: edge / (table["rate"] * table["L of the mean"]) for name, edge in domains.items()}
for name in table.index:
    print(f"{name:22}", *(f"{domain} {steps[name]:5.2g}  " for domain, steps in reach.items()))

# %% tags=["remove-cell"]
assert 1 < reach["paper's"]["ViT, 0.4 M"] < 3
assert reach["paper's"]["MiniLM, sentences"] > 10

# %% [markdown]
# The last
# assumption is PL: $f - f(\hat\theta) \le C \lVert \nabla f \rVert^2$ at the merge. With a floor of zero the ratio of both sides, along the training of
# the smaller transformer's experts, at their average:

# %% tags=["remove-input"]
record = load_result("vision8-stability-vit_small-after")
points, curved = (pd.DataFrame(record[name]) for name in ("points", "curvature"))
curved = curved[curved["of"] == "mean"].set_index(["point", "seed"])["smoothness"]
points = points.set_index(["point", "seed"]).assign(least=1 / (2 * curved))
points["ratio"] = points["loss"] / points["squared"]
ratios = points.groupby("point", sort=False)[["loss", "ratio", "least"]].mean()
print(ratios.map("{:.2g}".format).to_string())

# %% tags=["remove-cell"]
assert (ratios["ratio"] > 20 * ratios["least"]).all()
assert 0.2 < ratios["ratio"].max() < 0.22

# %% [markdown]
# Smoothness asks for at least $\frac{1}{2L}$, the last column, with $L$ of the mean loss. The ratio lies far above it, and $C = 0.21$ would do
# for these points: of all assumptions PL is the one that does not fail where we looked.
#
# (stability-lemma-four)=
# A slip in this place concerns $\kappa$. Lemma 4 derives $\kappa^2 = \sum_t \omega_t \zeta_t^2$ as an identity. It holds if
# $\zeta_t$ is the distance from $\nabla \tilde f$; Assumption 3 measures it from $\nabla f$, the plain mean. As the second
# moment is least around the weighted mean, the lemma remains true with $\le$:

# %% tags=["nbval-check-output"]
drawn = torch.Generator().manual_seed(SEED)
slopes = torch.randn(1000, 4, 6, generator=drawn, dtype=torch.float64)
shares = torch.softmax(torch.randn(1000, 4, generator=drawn, dtype=torch.float64), 1)
centre = torch.einsum("nt,ntd->nd", shares, slopes)
kappa = (shares * (slopes - centre[:, None]).square().sum(2)).sum(1)
around = (shares * (slopes - slopes.mean(1, keepdim=True)).square().sum(2)).sum(1)
print(
    f"of 1000 random cases {int((kappa < around).sum())} have less, {int((kappa > around).sum())} more"
)

# %% [markdown]
# ## Measured stability
#
# Stability can be measured by its definition: train an expert, replace one training example, train again with the same
# start, batches and head, and take the squared distance. We do it with plain SGD on the first two scripts of
# `glyphs8` and a pretrained perceptron with 0.4 million weights, for 12 replaced examples in each setting and five seeds.
# Usual are $\eta = 0.02$, $b = 8$, $n = 128$; one of them varies at a time. Training twice on the same examples gives
# the same weights bit by bit, and a start that differs by $10^{-7}$ leads to squared distances a million times smaller
# than those measured.

# %% tags=["remove-cell"]
from mergebook.lab.results import load_result
from mergebook.stability.read.networks import moves_with_laws, sweeps

moves = moves_with_laws(load_result("glyphs8-retraining-mlp"))
words = {"steps": "steps K", "rate": "learning rate η"}
words |= {"batch": "batch b", "examples": "training examples n"}
laws = {"printed": ("Lemma 3", plots.VERMILION, "--")}
laws["repaired"] = ("repaired bound", plots.GREEN, ":")

# %% tags=["remove-input"] mystnb={"figure": {"caption": "Squared distance that an expert moves when one training example is replaced, with 95 % intervals over five seeds; logarithmic axes. Lines are the printed and the repaired bound with noise and heterogeneity as measured at the pretrained model. Where b and n vary, the pale series is after one pass over the usual data, the dark one after eight.", "name": "fig-stability-measured"}, "image": {"alt": "Measured stability rises with the steps and the learning rate and falls with the batch and the number of examples. It lies several to a dozen times below the repaired bound and about a hundred times below Lemma 3, whose line rises with the batch where the measured one falls."}}
fig, axes = plt.subplots(2, 2, figsize=(7.2, 5.4), sharey=True)
panels = dict(zip(words, axes.flat))
for name, (column, rows) in sweeps(moves).items():
    if name == "steps, whole epochs":
        continue
    alpha = 0.45 if name in ("batch, one pass", "examples, one pass") else 1.0
    logs = plots.summary(rows.assign(log=np.log(rows["stability"])), column, "log").sort_index()
    mean, half = logs["mean"], logs["half_width"]
    ends = logs.assign(mean=np.exp(mean), low=np.exp(mean - half), high=np.exp(mean + half))
    look, drawn = ("_", plots.BLACK, "o-"), {"ms": 4, "lw": 1.3, "capsize": 0, "alpha": alpha}
    plots.curve(panels[column], ends, look, **drawn)
    for law, (_, shade, style) in laws.items():
        line = np.exp(np.log(rows[law]).groupby(rows[column]).mean())
        panels[column].plot(line.index, line, style, color=shade, alpha=alpha)
for column, ax in panels.items():
    plots.log_axis(ax, moves[moves["sampling"] == "drawn"][column].unique())
    ax.set(yscale="log", xlabel=words[column])
    ax.minorticks_off()
axes[0, 0].plot([], [], "o-", color=plots.BLACK, ms=4, label="measured")
for text, shade, style in laws.values():
    axes[0, 0].plot([], [], style, color=shade, label=text)
for ax in axes[:, 0]:
    ax.set(ylabel="stability s")
plots.legend_outside(fig, ncols=3, fontsize=10)
plt.show()

# %% tags=["remove-input"]
from mergebook.lab.statistics import plus_minus
from mergebook.stability.read.networks import slopes as fitted_slopes

vision = moves_with_laws(load_result("vision8-retraining-vit_small"))
for network, rows in {"perceptron": moves, "transformer": vision}.items():
    print(f"{network + ', slope of log s':28}{'measured':>14}{'Lemma 3':>9}{'repaired':>10}")
    for name, row in fitted_slopes(rows).iterrows():
        text = plus_minus(row["measured"], row["half_width"], 2)
        print(f"  {name:26}{text:>14}{row['printed']:9.2f}{row['repaired']:10.2f}")

# %% [markdown]
# Neither line is a proven bound here: both take the noise at one point and in the mean square, and the repaired one
# has the factor of convex losses. What can be compared are slopes. **On both networks stability falls with the batch, where Lemma 3 rises.** It also falls faster than
# $1/n$ on both, on the corrected side. In $K$ the perceptron's slope after the first pass lies between both laws, nearer to Lemma 3's 1 than to the corrected law's;
# on the transformer all three slopes are below 1, so below either law. For the rate both say the same, and nearly
# what is measured on the perceptron. By the test of the [](90-claims-ledger) (claim T10) only the law for the batch fails for certain; 13 of 14 checks stay open with five seeds.
#
# The repaired law is too steep in $K$ and $n$. Two reasons are likely, and not told apart here: it takes the noise of the
# start for the whole way, while examples that have been learned pull less; and where the loss is curved, a replaced
# example is partly forgotten, as $R_t$ in {prf:ref}`prop-stability-exact` levels off.
#
# The smaller transformer on four sets of pictures, with three replaced examples in each setting, agrees about batch and data: stability falls with the
# batch, and faster than $1/n$. But it grows more slowly than by either law, in the first pass more slowly than $K$, and more slowly than $\eta^2$: it
# moves far in its first steps, and levels off.
#
# For the merge there is nothing to measure: by {prf:ref}`prop-stability-merge` the average of $T$ such experts has
# $\frac{1}{T^2}$ of their mean $s$.
#
# (stability-one-merge)=
# **The bound on a network.** Does {prf:ref}`thm-stability-generalisation` hold for a real merge, and how far off is it? The study `merge_stability` measures all of its terms on the same average
# of four experts, trained by plain SGD on 128 examples each: $S$ from trainings with one example replaced; $V$, $\nabla f$ and $L$ (the largest curvature of 32 training examples, a lower
# estimate) at the merge; and $E_G$ on further rows of the same training sets, up to 1,000 of each task, which no expert has seen and which come from the same draw as the proof demands. From $E_G$ that of the pretrained
# model on the same examples is taken away, whose expectation is zero. Perceptrons on four scripts, and the smaller transformer on four sets of images, five seeds, in nats:

# %% tags=["remove-input"]
from mergebook.lab.results import load_table
from mergebook.stability.read import networks

MERGES = {"perceptron": "glyphs8-merge_stability-mlp"}
MERGES["transformer"] = "vision8-merge_stability-vit_small"
measured_merges = {
    name: networks.bounded(load_table(file, "merged")) for name, file in MERGES.items()
}
words = {"error": "E_G", "half_width": "±", "root": "√(SV)", "lemma_1": "Lemma 1"}
for name, found in measured_merges.items():
    passes = [f"{8 * count / 128:g}" for count in found.index]
    print(name, found.rename(columns=words).round(3).assign(passes=passes), sep="\n", end="\n\n")

# %% tags=["remove-cell"]
mlp, vit = measured_merges.values()
for found in (mlp, vit):
    assert (found["error"] + found["half_width"] < found["root"]).all()
    assert found["error"].is_monotonic_increasing
    assert found["root"].is_monotonic_increasing
early = mlp.loc[[8, 32]]
assert (early["error"] - early["half_width"] > early["lemma_1"]).all()
assert (early["error"] / early["lemma_1"]).round().tolist() == [3, 2]
assert (mlp["root"] / mlp["error"]).between(2.3, 6).all()
assert (vit["root"] / vit["error"]).between(7, 10).all()
growth = [found["error"].iloc[-1] / found["error"].iloc[0] for found in (mlp, vit)]
assert [round(each) for each in growth] == [9, 4]
assert (vit["lemma_1"] > vit["error"]).all()
raw = load_table(MERGES["perceptron"], "merged").query("steps == 8").mean()
needed = early["error"][8] - (raw["stability"] * raw["squared"]) ** 0.5
assert 4 < needed / (raw["smoothness"] / 2 * raw["stability"]) < 6

# %% [markdown]
# **The bound holds at every point, and its main part $\sqrt{SV}$ follows $E_G$:** it is two to six times $E_G$ on perceptrons and seven to ten times on transformers, while $E_G$ grows
# ninefold and fourfold. The other part, $\frac L2 S$, takes over with many steps, as $L$ is large, and makes the whole bound loose. Lemma 1, with the best $\gamma$ and the same $S$ and $L$, lies
# *below* $E_G$ after 8 and 32 steps of the perceptrons, by a factor of three and of two. ($L$ would have to be about five times the largest measured curvature to save it there.) On transformers it lies above $E_G$, by
# its term with $L$.
#
# (stability-count)=
# The paper measures no stability. It has merges, by its abstract of "thousands of finetuning models". The grid in its text
# has four values of $K$ and three each of $b$, $\eta$ and the share of the data, one varied at a time, on twenty tasks and
# four backbones. Its Table II, copied here in its order of tasks, has ResNet-50 below the smaller ResNet-18 on most of
# them, a sign that its experts are not trained to the end:

# %% tags=["hide-input", "nbval-check-output"]
grid = {"K": 4, "b": 3, "eta": 3, "share": 3}
count = 1 + sum(values - 1 for values in grid.values())
print(f"{count} settings: at most {4 * 20 * count} experts")
resnet_18 = """.9404 .7683 .6676 .9485 .9826 .9353 .6553 .7303 .9594 .9696
               .9946 .8613 .7637 .8242 .5211 .9063 .6241 .9408 .4794 .9501"""
resnet_50 = """.9480 .7712 .6984 .9334 .9711 .9084 .5853 .7200 .9174 .9188
               .9878 .9057 .7536 .8357 .5409 .8760 .5769 .9668 .5329 .9262"""
rows = zip(resnet_18.split(), resnet_50.split(), strict=True)
lower = sum(float(large) < float(small) for small, large in rows)
print(f"ResNet-50 below ResNet-18 on {lower} of {len(resnet_18.split())} tasks")

# %% tags=["remove-cell"]
laws = fitted_slopes(moves)
low, high = laws["measured"] - laws["half_width"], laws["measured"] + laws["half_width"]
assert (low[["steps, later passes", "steps, whole epochs"]] > laws["printed"].iloc[0]).all()
assert (high[["batch, one pass", "batch, many"]] < 0).all()
assert (laws["printed"][["batch, one pass", "batch, many"]] > 0).all()
assert (high[["examples, one pass", "examples, many"]] < -1).all()
assert (high[["steps, later passes", "steps, whole epochs"]] < laws["repaired"].iloc[1]).all()
assert abs(laws.loc["rate", "measured"] - 2) < 0.2
assert (moves["chaos"] < 1e-6 * moves["stability"]).all()
settings = moves[moves["sampling"] == "drawn"].groupby(["rate", "batch", "examples", "steps"])
means = settings[["stability", "repaired", "printed"]].mean()
assert (means["stability"] < means["repaired"]).all()
assert (means["stability"] < means["printed"]).all()
other = fitted_slopes(vision)
top = other["measured"] + other["half_width"]
assert (top[["steps, first pass", "steps, whole epochs"]] < 1).all()
assert top["rate"] < 2
assert (top[["batch, one pass", "batch, many"]] < 0).all()
assert (top[["examples, one pass", "examples, many"]] < -1).all()
assert (vision["chaos"] < 1e-4 * vision["stability"]).all()

# %% [markdown]
# ## When to use it, and when not
#
# **Use the split** into $E_O$ and $E_G$ whenever a merge disappoints: evaluate it on *training* examples, too. If it is
# bad there, more data or more regularisation won't help, but fewer steps, a smaller scale, or weights might.
#
# **Use {eq}`eq-stability-progress` for its form**: if a learning rate is halved, the best number of steps about
# doubles. Treat its value as a lower estimate.
#
# **Do not use** Theorem 3 to choose learning rates, batches or the number of tasks. And do not carry over from
# quadratics that generalisation hardly matters: it is a statement about this chapter's tasks, with fifty examples in six
# dimensions. Networks have fewer examples than weights; what they do is a question for measurements.
#
# [](41-corollary-one) looks at masks, [](42-scaling-laws) repeats the paper's scaling experiments, and
# [](43-choosing-by-the-bound) asks whether a bound that is far off can still choose. All errors are listed in the [](../book/errata).
#
# ## Exercises
#
# ```{exercise} Two divergences (easy)
# :label: ex-stability-chi
# The paper measures how far the surrogate's weights are from uniform by
# $\sum_t (\frac1T - \omega_t)^2 / \omega_t^2$; its source divides by $\omega_t$. Which is larger, always? Compute
# both for $\omega = (0.9, 0.1)$.
# ```

# %% [markdown]
# ````{solution-start} ex-stability-chi
# :class: dropdown
# ````
# As $\omega_t \le 1$, every summand of the printed one is at least as large. A bound that contains it stays true, and
# becomes looser: by a factor of nine here.

# %% tags=["nbval-check-output"]
uneven = torch.tensor([0.9, 0.1], dtype=torch.float64)
print(f"divided by the square {optimisers.chi_square_printed(uneven):.2f}", end=", ")
print(f"by the weight {optimisers.chi_square(uneven):.2f}")

# %% [markdown]
# ````{solution-end}
# ````
#
# ```{exercise} When to stop (medium)
# :label: ex-stability-rule
# Derive {eq}`eq-stability-progress` from {prf:ref}`thm-stability-descent`. Then find, on the four tasks, the best $K$ for
# the learning rates 0.01, 0.02, 0.05 and 0.1, and compare $\eta K$ with the rule.
# ```

# %% [markdown]
# ````{solution-start} ex-stability-rule
# :class: dropdown
# ````
# With $\sigma = 0$, $u = \eta K$ and $B \approx K^2$, the bound is $-\frac u4 \lVert \nabla f \rVert^2 + 3 u^3 L^2 \kappa^2$ plus a
# constant; its derivative vanishes at $u = \lVert \nabla f \rVert / (6 L \kappa)$. The measured $\eta K$ is the same for all
# rates, as the rule says, and an order of magnitude larger than its value.

# %%
plan = Training.alike(4, 1, 1.0, batch=8, examples=50)
_, squared, apart = tasks.opening(plan, plan.weights)
print(f"rule: {bounds.best_progress(squared**0.5, apart**0.5, tasks.smoothness):.2f}")
for rate in (0.01, 0.02, 0.05, 0.1):
    grid = np.unique(np.geomspace(1, 4000, 200).round().astype(int)).tolist()
    table = errors_over_steps(tasks, grid, rate, batch=8, examples=50)
    best = int(table.loc[table["excess"].idxmin(), "steps"])
    print(f"rate {rate}: best K = {best}, rate times K = {rate * best:.1f}")

# %% [markdown]
# ````{solution-end}
# ````
#
# ```{exercise} Tasks that may train for ever (hard)
# :label: ex-stability-equal
# Give all four tasks the curvature of the first, leave their minima where they are, and remove the noise. Show that the
# error now falls at every step, however far the minima are from each other. Which other assumption on minima and
# curvatures makes the late merge harmless?
# ```

# %% [markdown]
# ````{solution-start} ex-stability-equal
# :class: dropdown
# ````
# {prf:ref}`prop-stability-early`, part 3: the merge *is* gradient descent on $f$. By part 2, all that is needed for the
# late merge is $\bar c = \hat\theta$, which is $\sum_t H_t (c_t - \bar c) = 0$: where minima lie has nothing to do
# with curvature, on average over the tasks.

# %% tags=["nbval-check-output"]
equal = Quadratics(
    hessians=tasks.hessians[:1].expand(4, 6, 6),
    centres=tasks.centres,
    covariances=0 * tasks.covariances,
    start=tasks.start,
)
table = errors_over_steps(equal, list(range(1, 200)), 0.05, batch=1, examples=1)
print("falls at every step:", bool((table["excess"].diff().dropna() < 0).all()))

# %% [markdown]
# ````{solution-end}
# ````
#
# ## Summary
#
# * The error of a merge splits into optimisation and generalisation. On quadratics both are known exactly.
# * On quadratics the inverted U appears without any generalisation error. Its cause is that early steps of all experts add up to one
#   step down the shared loss, while late experts sit at minima whose plain mean ignores curvature. On networks, along the steps and within seven passes, the paper's
#   sign is right: the training loss still falls, and $E_G$ turns the loss ([](42-scaling-laws)).
# * With equal curvatures, and without noise, there is no over-training.
# * Of the printed theory, Lemma 1 is false, Lemma 3 is false as a law, and as an inequality beyond about nine steps per example, Theorem 2 fails at the merge,
#   the step from Lemma 3 to Theorem 1 is loose by $T^2$, and Theorem 3 is at least 32 times the pretrained model's error wherever it would hold.
# * What holds, and was checked on a perceptron and a transformer: $E_G \le \frac L2 S + \sqrt{SV}$. What also holds: $S = \frac1T \sum_t w_t^2 s_t$, a stability that grows with $K^2$ over many
#   passes, and a descent bound from gradients at $\theta_0$, whose last term says that tasks pull apart.
# * A network's curvature leaves hardly any room for a step in the paper's domain. Measured stability falls with the
#   batch, as the corrected law says; in the steps it lies between both laws, or below.
#
# ## References
#
# All sources are in the [](../book/bibliography).
