"""SAIL's claims (Anonymous, 2025), as far as they are tested; each setting adds its checks."""

from functools import partial

from mergebook.ledger.checks import Check
from mergebook.ledger.verdicts import Claim, Load
from mergebook.sail.claims import arms, diffusion, growing, spirals, text
from mergebook.sail.claims.words import (
    DATA,
    FLAT,
    HALVES,
    LARGER,
    MODELS,
    PICTURED,
    REACHED,
    SETTING,
)

_TEXT_DATA = (
    "blocks of the sources and of the target for the weights; goals are set on other seeds; the "
    "best γ is chosen on one half of a held-out stretch and judged on the other"
)
_spirals_claim = partial(
    Claim,
    paper="anonymous2025structured",
    page="notebooks/52-sail-spirals",
    data=DATA,
    unit="seeds",
)
_vision_claim = partial(
    Claim,
    paper="anonymous2025structured",
    page="notebooks/53-sail-vision",
    data=DATA,
    unit="seeds",
)
_text_claim = partial(
    Claim,
    paper="anonymous2025structured",
    page="notebooks/54-sail-text",
    data=_TEXT_DATA,
    unit="seeds",
)
_larger_claim = partial(_text_claim, page="notebooks/55-sail-larger-gpts")


def _spike(load: Load) -> list[Check]:
    return [*spirals.spike(load), *text.spike(load)]


def _faster(load: Load) -> list[Check]:
    return [*spirals.faster(load), *arms.faster(load)]


def _together(load: Load) -> list[Check]:
    return [*spirals.together(load), *arms.together(load), *arms.merged(load)]


def _better(load: Load) -> list[Check]:
    return [*spirals.better(load), *arms.better(load)]


def _near_ends(load: Load) -> list[Check]:
    return [*spirals.near_ends(load), *text.near_ends(load)]


def _nearer(load: Load) -> list[Check]:
    return [*spirals.nearer(load), *text.nearer(load)]


CLAIMS = (
    _vision_claim(
        key="S1",
        place="Abstract, Proposition 1, Fig. 8",
        statement="SAIL's start reaches a loss faster than scratch",
        reported="curves of the loss against steps, without numbers",
        unit="tasks",
        method=f"{SETTING}. log₂ of FLOPs of scratch over SAIL's to two losses fixed beforehand, "
        f"where only retraining counts (account A), as in the paper's curves. {REACHED}. Larger "
        "networks: GPTs as for S6, for 1,000 steps, SAIL with a shared start and scratch at the "
        f"best rate (and scratch at the best scale of weights) on tuning seeds for width 48; "
        f"{PICTURED}; {HALVES}; halves by BYOL on CIFAR-10, judged by a linear classifier of "
        "features, for 1,600 steps. Targets are a sample of tasks where there are several. "
        "Secondary: what the start takes counted as well (account B), and the sources, too (C); "
        "over random weights as the networks' papers draw them, of pictures on CIFAR-10. Control: "
        "over GPTs with random weights of the usual scale, and with random weights of the grown "
        "network's scale, which separate what was learned from its scale; the nearest source alone",
        test=_faster,
    ),
    _text_claim(
        key="S2",
        place="Section 4.4",
        statement="the best weight is that of Theorem 3, by distances of data",
        reported='γ* = −0.1244 by MMD, which "closely aligns" with the best γ of one sweep',
        method=f"{MODELS}. The paper's own case: thirds of Shakespeare and of WikiText-2 by mean "
        "token value, in characters and in byte pairs; the best γ of a grid less that by MMD² of "
        f"each kind of features, within {text.ALIGNED} of it, which is our reading of closely. "
        f"Where the curve is flat a check stays open: {FLAT}. All but one of eight curves could "
        "only have shown a distance of 0.7 or more. Secondary: 100 steps on mixtures of "
        "Shakespeare and WikiText-2 in five shares, which are fixed points, for which the "
        "theorem's weight is the share: slope of the best γ on it, what it costs against that best "
        "one, and its loss against the even average and the nearest source alone; the same with "
        "mixtures of thirds, and with sources that Git Re-Basin has matched",
        test=text.followed,
    ),
    _text_claim(
        key="S3",
        place="Section 4.4",
        statement="the loss has a spike at γ = 0.5, where two sources are averaged evenly",
        reported="a figure, on a grid that does not have 0.5",
        method=f"{MODELS}, as the paper says it of text. Loss at γ = ½ less the mean of both "
        "ends after its 50 steps: thirds of Shakespeare and of WikiText-2 by mean token value, in "
        "characters and in byte pairs, and thirds that overlap, whose overlaps are fixed points. "
        "The paper does not say whether sources share their initial weights, so both cases are "
        "primary. Secondary: other numbers of steps, sources matched by Git Re-Basin, and two "
        "spirals, where five of six cases have no barrier, since sources there cannot do the task",
        test=_spike,
    ),
    _text_claim(
        key="S4",
        place="Section 4.4, Fig. 2c",
        statement="the more data overlap, the more symmetric is the loss over γ",
        reported="a figure; not all of its overlaps exist",
        method=f"{MODELS}, for 50 steps; thirds of Shakespeare of which sources share α and each "
        "has β in common with the target. Mean |ℓ(γ) − ℓ(1 − γ)| over the range of all curves: "
        "minus its slopes on α and β, where α < 1. These data could only have shown slopes of a "
        "fifth to two fifths of the whole range. Secondary: before retraining",
        test=text.symmetric,
    ),
    _text_claim(
        key="S5",
        place="Section 4.4, Fig. 2d",
        statement="two sources of one corpus, merged, start another better than either alone",
        reported='a curve with "a clear optimal γ"; no comparison with one source',
        method=f"{MODELS}; sources are two thirds of Shakespeare or WikiText-2, the target is the "
        "other one. After 100 steps, the better end of the sweep less the best γ strictly between, "
        "which these data could have shown from 0.02 nats on. "
        "Theorem 3's own γ is 0 or 1 there in every seed, so that it merges nothing. Secondary: "
        "Don Quijote as target, which is in another language",
        test=text.transferred,
    ),
    _larger_claim(
        key="S6",
        place="Section 4.5, Table 2",
        statement="SAIL beats other starts: soups, LiGO, and more",
        reported="best of five starts on six benchmarks; below its own source model on all for "
        "which a figure was found",
        method=f"{LARGER}. Loss of each row of the paper's table less that of SAIL's start, after "
        "as many steps (account A), with rates tuned for each with a shared start, and for SAIL's "
        "with own ones: scratch, LiGO (SAIL's maps of one source), the even average, and the "
        "greedy soup, which is the nearest source alone in every seed. Secondary: after as many "
        "FLOPs as scratch takes, maps, distances and soups counted (account B), against these and "
        "against the nearest source by name, the same at its own size, Net2Net, a stack, "
        "bert2BERT, LiGO as published, and the best of all, chosen by its mean loss on the half "
        "that does not judge; speed by all three accounts; and SAIL with learned maps of singular "
        "vectors and of a stack, as the paper has them",
        test=arms.ahead,
    ),
    Claim(
        unit="seeds",
        key="S7",
        paper="anonymous2025structured",
        place="Section 4.1, appendix F",
        statement="transformed parameters keep what the source has learned",
        reported="no measurement",
        method="an MLP, a ResNet and a GPT, 1.5 times as wide, deeper, and both, of a source that "
        "was trained for 300 steps. Fraction of its learning right after growing, (random − loss)/"
        f"(random − source), above {growing.HALF}: wider, by the paper's two kinds of maps as they "
        "are, random factors and interpolation, and by singular vectors, a scheme in which the "
        "decomposition drops out, so that it is a copy of units. Maps learned by 100 steps of Adam "
        "(with noise that parts copies) have seen the target, so that they are compared with what "
        "as many FLOPs of training from scratch reach. Random projections followed by a "
        "normalisation, which the paper names, are not built. Secondary: learned maps above a "
        "half, what they begin from, two sources, and the loss after 100 more steps, or fewer, "
        "against a start that keeps the function and has as many FLOPs",
        data="target examples for maps and training, validation examples for their rates and for "
        "where to stop; test examples for all shares and losses",
        page="notebooks/50-growing",
        test=growing.kept,
    ),
    Claim(
        unit="seeds",
        key="S8",
        paper="anonymous2025structured",
        place="Appendix J, Table 4",
        statement="with SAIL's start and loss a SiT draws better pictures than with REPA alone",
        reported="FID 67.6, 35.9, 19.8 and 12.2 against REPA's 78.2, 49.5, 33.2 and 24.4 after 50, "
        "100, 200 and 400 thousand steps; what alignment takes before these is not counted",
        method="SiTs of width 64 and four blocks on latents of Fashion-MNIST, aligned to tokens of "
        "the suite's backbone; Fréchet distance of 1,000 drawn pictures from as many test pictures "
        "in features of the task's expert, not those of Inception. Log distance of REPA's less "
        "SAIL's at three reads at equal steps, as in the paper's table, with rates tuned for each "
        "arm. Effects as large as the paper's are excluded at the later two reads. Secondary: "
        "equal FLOPs, where the training of f_P and the alignment beforehand count (account B, and "
        "C, as there are no sources), which are 146 of our 1,000 steps and would be nothing of the "
        "paper's 400,000; equal FLOPs of training alone (A); REPA against the plain "
        "SiT, at equal steps and at equal FLOPs; a SiT grown from a smaller one against REPA, at "
        "equal steps, which are accounts A and B, as its steps cost what REPA's do, and with its "
        "source's training paid for (C); and an unbiased kernel distance; control: the distance of "
        "training pictures",
        data="training pictures with labels for all arms; the backbone's tokens of them for REPA "
        "and for f_P; test pictures, and an expert that no arm has seen, judge",
        page="notebooks/56-sail-diffusion",
        test=diffusion.nearer,
    ),
    Claim(
        unit="facts",
        key="S9",
        paper="anonymous2025structured",
        place="Theorem 4, appendix D",
        statement="a model's risk on the target is bounded by that on its source's examples",
        reported="a bound with the total variation of two samples",
        method="the bound is true, and says nothing: the total variation of two samples of "
        "continuous data is 1, so that it lies above the largest possible loss, C = 1. Secondary, "
        "the bound as we repair it, with the total variation of the laws, once and without "
        "λ: linear classifiers of two Gaussians under a clipped hinge loss, 200 draws of n "
        f"examples for each of five seeds; whether in more than {growing.SURE:.0%} of draws it is "
        "true for all of them, and below C",
        data="source examples for both bounds, the law of the target for its risk",
        page="notebooks/51-proximal-parameters",
        test=growing.risks,
    ),
    _vision_claim(
        key="S10",
        place="Abstract, Fig. 8",
        statement="SAIL ends at least as well as scratch",
        reported="a higher final accuracy; no number",
        method=f"{SETTING}. Test accuracy after 300 epochs, which may be below scratch's by "
        f"{spirals.NEAR_POINTS} points at most. Larger networks, as for S1: accuracy "
        "after as many FLOPs as scratch takes in long trainings (account B): of the halves on "
        "CIFAR-10 at width 12 in 640 steps, which are twelve epochs, and in 1,600 by BYOL, judged "
        "by a linear classifier of features, and of GPTs in 1,000. "
        "Secondary: the same of all in fewer steps, in which scratch has not converged; and that "
        "SAIL is better than scratch",
        test=_better,
    ),
    _vision_claim(
        key="S11",
        place="Section 4.5",
        statement="SAIL gains more where training has labels than where it has none",
        reported="curves without numbers, by different measures for the two",
        method="ResNets whose sources know half of the classes each, as for S1, judged by a linear "
        "classifier of features, the same for both; means over CIFAR-10 at three sizes, of width "
        "12 and eight blocks, width 8 and eight, width 8 and sixteen, and over CIFAR-100 and the "
        "other 20 classes at the first. The loss after as many FLOPs as scratch takes in all its "
        "steps, scratch's less SAIL's, with labels less that without, by BYOL. Speed-ups do not "
        "decide: most of these runs are at any goal of scratch's before the first reading",
        test=arms.labelled,
    ),
    _spirals_claim(
        key="S12",
        place="Appendix K, Fig. 9",
        statement="gradients are smaller early in training",
        reported="curves without numbers",
        method=f"{SETTING}. Mean log ratio of gradient norms over the first tenth of steps. "
        "Secondary: at equal loss, where at least four seeds in five reach it from both starts",
        test=spirals.calmer,
    ),
    _vision_claim(
        key="S13",
        place="Section 4.4, appendix K",
        statement="the advantage shrinks with the distance of the sources from the target",
        reported="stated for two readings of the spirals",
        unit="tasks",
        method=f"{PICTURED} in S1. Minus Spearman's correlation, over the eight sets, of log₂ "
        "speed-up over scratch (account A) and MMD² of pixels from the nearer source, of means "
        "over seeds, with Bonett and Wright's interval. Eight sets could only have shown a "
        "correlation beyond 0.84, so an undecided outcome says little. Secondary: the same in each "
        "seed, with an interval over seeds, which takes these sets as given. Control: the nearest "
        f"source alone. {REACHED}",
        test=arms.fading,
    ),
    _spirals_claim(
        key="S14",
        place="Theorem 1",
        statement="sources are nearer to the target's optimum than random weights",
        reported="a bound, for weights from N(0, I)",
        method=f"{SETTING}. The theorem is about linear models, whose data determine their "
        "parameters; networks are not. Log ratio of squared distances, against weights that "
        "networks start from. The optimum is trained from the sources' start where they share it, "
        "and else from a "
        "fresh one. GPTs of width 32 likewise, on thirds of Shakespeare by mean token value, of "
        "which the last trains the optimum",
        test=_nearer,
    ),
    _text_claim(
        key="S15",
        place="Section 4.4",
        statement="the best weight is near 0 or 1",
        reported="−0.1244",
        method="fraction of curves whose best weight is within 0.15 of 0 or 1, against the "
        f"fraction of such weights in the grid, by the exact binomial test. {MODELS}, for 200 "
        "steps: thirds of Shakespeare and of WikiText-2 by mean token value, in characters and in "
        "byte pairs, and thirds that overlap. Flat curves are "
        f"left out, that is those where {FLAT}. Secondary: spirals",
        test=_near_ends,
    ),
    _vision_claim(
        key="S16",
        unit="tasks",
        place="Sections 1 and 2",
        statement="merging several sources beats one",
        reported="stated as what is new; the nearest source alone is no baseline of the paper",
        method="Test loss of the nearest source alone after retraining, less that of SAIL's start, "
        "at equal cost. GPTs as for S6; "
        f"{PICTURED}; {HALVES}; the same by BYOL, judged by a linear classifier of features. "
        "Targets are a sample of tasks: on vision8 the mean lead is that of one set, GTSRB. "
        "Secondary: two spirals, where the cases that hold are those in which scratch ends below "
        "both; the same by each of several maps, with starts that are shared, "
        "own, or own and matched by Git Re-Basin; and speed over the nearest source alone to what "
        "scratch has near its end, by all three accounts, of which C counts every source used",
        test=_together,
    ),
    _larger_claim(
        key="S17",
        place="Section 4.3",
        statement="SAIL carries over to targets of several sizes",
        reported="curves without numbers",
        unit="tasks",
        method=f"As S1, at the sizes that S1 does not have: GPTs of width 64 and depth 4, which "
        "have 211,000 parameters; ResNets of halves at width 8, with eight blocks and with "
        "sixteen. log₂ of FLOPs of scratch over SAIL's to losses fixed beforehand for each size, "
        f"retraining alone (account A). {REACHED}. Secondary: accounts B and C. Control: over "
        "GPTs with random weights of the grown network's scale",
        test=arms.sizes,
    ),
    _spirals_claim(
        key="S18",
        place="Theorems 2 and 3",
        statement="nearer data give nearer parameters, a lower loss at the start, and a lower one "
        "after training",
        reported="what the theorems need; no measurement",
        method="Spearman's correlation over 30 seeds, within each of three readings of the "
        "spirals: what the first source has above the second one in MMD² to the target, in squared "
        "distance to its optimum, and in the loss before and after retraining. These data could "
        "only have shown correlations of about a half. Secondary: the "
        "order of the three readings, which are three fixed points, in each seed; own starts after "
        "Git Re-Basin, which reorders the second source and the optimum to match the first source",
        test=spirals.chained,
    ),
    _larger_claim(
        key="S19",
        place="Appendix G",
        statement="distillation adds to SAIL",
        reported='stated, not measured: it "could enhance" both efficiency and performance as a '
        "subsequent step",
        method=f"{LARGER}. One recipe: from the first step on, labels are half the answer of the "
        "nearest source, which is smaller than the network that it teaches; another weight, a "
        "larger teacher, or distillation after training is not tried. log₂ of FLOPs of SAIL over "
        "those with distillation to what the nearest source has half-way, with the teacher's "
        "passes counted and without (accounts A and B, as the paper does not say); and the loss "
        f"after equal FLOPs. {REACHED}. Secondary: account C, which adds the same sources to both",
        test=arms.taught,
    ),
    Claim(
        unit="seeds",
        key="S20",
        paper="anonymous2025structured",
        place="Fig. 2a and 4",
        statement="thirds of a corpus by mean token value are three clear clusters",
        reported="pictures by t-SNE",
        method="blocks of 1,024 characters of two texts, another fifth left out in each seed. That "
        "thirds can be told apart: AUC of a cross-validated linear classifier of histograms, mean "
        f"over the three pairs, less that on random thirds, above {growing.CLEAR}; it holds by the "
        "way in which the thirds are made. That they are clusters: their mean silhouette, in two "
        f"spaces, above {growing.GROUPED}. Controls: histograms less their cubic regression on the "
        "mean, which the split is made by; and both texts against each other",
        data="all blocks, each judged by a classifier that has not seen its stretch",
        page="notebooks/54-sail-text",
        test=growing.clusters,
    ),
    _text_claim(
        key="S21",
        place="Section 4.4, Fig. 2d",
        statement="SAIL's start carries over from one corpus to another: faster than scratch",
        reported="a curve; no comparison with scratch",
        method=f"{MODELS}; sources and targets as for S5. log₂ of FLOPs of scratch over those of "
        "SAIL's start (MMD² of histograms), where only retraining counts (account A), to two "
        f"losses fixed beforehand, in 200 steps. {REACHED}. Secondary: accounts B and C, and Don "
        "Quijote as target; control: the nearest source alone",
        test=text.carried,
    ),
)
