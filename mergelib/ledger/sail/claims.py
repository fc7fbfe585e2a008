"""SAIL's claims (Anonymous, 2025), as far as they are tested; each setting adds its checks."""

from functools import partial

from mergelib.ledger.checks import Check
from mergelib.ledger.sail import arms, diffusion, growing, spirals, text
from mergelib.ledger.verdicts import Claim, Load

_DATA = (
    "inputs of the target and of both sources for the weights; goals are set on other seeds; "
    "on spirals losses on validation points, accuracy and final losses on test points; in pictures "
    "all on test examples"
)
_SETTING = (
    "two spirals, sources on 40 % of the points by three readings, from a shared start or own "
    "ones; SAIL's start is the average with Theorem 3's weights, by MMD of inputs"
)
_TEXT_DATA = (
    "blocks of the sources and of the target for the weights; goals are set on other seeds; the "
    "best γ is chosen on one half of a held-out stretch and judged on the other"
)
_MODELS = (
    "GPTs of width 32 on characters, from a shared start or own ones, retrained with Adam at a "
    "constant rate, the best of three for each start"
)
_LARGER = (
    "GPTs of width 32 and depth 2, trained on Shakespeare and on WikiText-2, grown to width 48 and "
    "depth 3, or 64 and 4, by maps that keep the function, averaged, and trained for 400 steps on "
    "a mixture of three parts Shakespeare and one part WikiText-2"
)
_PICTURED = (
    "ResNets of width 8 with four blocks, trained on Tiny ImageNet and on rendered scripts, grown "
    "to eight blocks by maps that keep the function, averaged, and trained for 160 steps on each "
    "of the eight sets of vision8, whose mean counts; all at one rate, the largest of three tried"
)
_HALVES = (
    "ResNets of width 8 with four blocks, each trained on half of 180 classes of Tiny ImageNet, "
    "grown to width 12 and eight blocks, and trained for 160 steps on CIFAR-10, CIFAR-100 and the "
    "other 20 classes, whose mean counts, with rates tuned on CIFAR-10 for each start and size; "
    "with own starts on CIFAR-10 alone; weights are Theorem 3's even where the halves' pixels "
    "cannot be told apart"
)
_SWEPT = (
    "In text likewise: thirds of Shakespeare and of WikiText-2 by mean token value, in characters "
    "by GPTs of width 32, and in byte pairs by GPTs of width 64"
)
_FLAT = (
    "the loss at the γ at which the other seeds' mean is highest, less that at which it is lowest, "
    "is not above 0 by its 95 % interval over seeds"
)
_spirals_claim = partial(
    Claim,
    paper="anonymous2025structured",
    page="notebooks/52-sail-spirals",
    data=_DATA,
    unit="seeds",
)
_vision_claim = partial(
    Claim,
    paper="anonymous2025structured",
    page="notebooks/53-sail-vision",
    data=_DATA,
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
        reported="curves without numbers",
        method=f"{_SETTING}. log₂ of FLOPs of scratch over SAIL's to a loss fixed beforehand, of "
        "two difficulties, divergences counted (account B). Who never gets there counts as if at "
        "the end, and who is there before any step as if at the first reading; where either is so "
        "of more than a fifth of a side's runs, the speed-up is a bound, undecided where it is one "
        "both ways, and secondary where a side begins there. Larger networks likewise, GPTs with "
        "rates tuned for each start, as for S6, with goals from 1,000 steps of scratch; "
        f"{_PICTURED}; {_HALVES}; halves by BYOL on "
        "CIFAR-10, judged by a linear classifier of features, with goals from 1,600 steps of "
        "scratch. Secondary: retraining alone (A), sources counted (C); over random weights as the "
        "networks' papers draw them, of pictures on CIFAR-10; control: the nearest source alone",
        test=_faster,
    ),
    _text_claim(
        key="S2",
        place="Section 4.4",
        statement="the best weight is that of Theorem 3, by distances of data",
        reported='γ* = −0.1244 by MMD, which "closely aligns" with the best γ of one sweep',
        method=f"{_MODELS}, for 100 steps on mixtures of Shakespeare and WikiText-2 in five "
        "shares, for which the theorem's weight is the share; it is estimated by MMD² of "
        "histograms of characters. Slope of the best γ of a grid on it, what it costs against that "
        "best one, and its loss against the even average and the nearest source alone. Slopes "
        f"leave out shares whose curve is flat: {_FLAT}. Secondary: mixtures of the lowest and the "
        "highest third of Shakespeare by mean token value, sources of both texts that Git Re-Basin "
        "has matched, and the paper's own case, thirds apart, in characters and in byte pairs",
        test=text.followed,
    ),
    _text_claim(
        key="S3",
        place="Section 4.4",
        statement="the loss has a spike at γ = 0.5, where two sources are averaged evenly",
        reported="a figure, on a grid that does not have 0.5",
        method=f"{_SETTING}. Loss at γ = ½ less the mean of both ends, before retraining and on "
        f"the way. {_SWEPT}. Secondary: sources that share their start, and sources matched by Git "
        "Re-Basin",
        test=_spike,
    ),
    _text_claim(
        key="S4",
        place="Section 4.4, Fig. 2c",
        statement="the more data overlap, the more symmetric is the loss over γ",
        reported="a figure; not all of its overlaps exist",
        method=f"{_MODELS}, for 50 steps; thirds of Shakespeare of which sources share α and each "
        "has β in common with the target. Mean |ℓ(γ) − ℓ(1 − γ)| over the range of all curves: "
        "minus its slopes on α and β, where α < 1. Secondary: before retraining",
        test=text.symmetric,
    ),
    _text_claim(
        key="S5",
        place="Section 4.4, Fig. 2d",
        statement="sources of one corpus, merged, carry over to another",
        reported='a curve with "a clear optimal γ"; no comparison with one source or scratch',
        method=f"{_MODELS}; sources are two thirds of Shakespeare or WikiText-2, targets the other "
        "one and Don Quijote. log₂ of FLOPs of scratch over those of SAIL's start (MMD² of "
        "histograms) to a loss fixed beforehand, of two difficulties, in 200 steps, divergences "
        "counted (account B); and, after 100 steps, the better end of the sweep less the best γ "
        "strictly between. Secondary: accounts A and C; control: the nearest source alone",
        test=text.transferred,
    ),
    _larger_claim(
        key="S6",
        place="Section 4.5, Table 2",
        statement="SAIL beats other starts: soups, LiGO, and more",
        reported="best of five starts on six benchmarks; below its own source model on all for "
        "which a figure was found",
        method=f"{_LARGER}. Loss of each other start less that of SAIL's, each after as many FLOPs "
        "as scratch takes in all its steps (account B: maps, distances and soups counted), with "
        "rates tuned for each with a shared start, and for SAIL's with own ones. Others: scratch, "
        "the nearest source alone, the same at its own size, Net2Net, a stack, LiGO (SAIL's maps "
        "of one source), the even average, the greedy soup. Secondary: LiGO as published, "
        "bert2BERT, the best of all of these, which is chosen by its mean loss on the half that "
        "does not judge, speed by all three accounts, and SAIL with learned maps of singular "
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
        "was trained for 300 steps. Share of its learning right after growing, (random − loss)/"
        f"(random − source), above {growing.HALF}: by singular vectors as they are, and learned "
        "from there by 100 steps of Adam (maps and softmax; with noise that parts copies). "
        "Secondary: what they begin from, two sources, and the loss after 100 more steps, or "
        "fewer, against a start that keeps the function and has as many FLOPs; control: random "
        "factors",
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
        "SAIL's at three reads, at equal steps, and at equal FLOPs, where the training of f_P and "
        "the alignment beforehand count (account B, and C, as there are no sources); with rates "
        "tuned for each arm. Secondary: equal FLOPs of training alone (A); REPA against the plain "
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
        unit="seeds",
        key="S9",
        paper="anonymous2025structured",
        place="Theorem 4, appendix D",
        statement="a model's risk on the target is bounded by that on its source's examples",
        reported="a bound with the total variation of two samples",
        method="linear classifiers of two Gaussians under a clipped hinge loss of at most C = 1, "
        "whose total variation is known; 200 draws of n examples for each seed. Share of draws in "
        f"which the bound is true for all of them and below C, above {growing.SURE}. As printed "
        "(without λ); secondary: as repaired; control: whether it is true at all",
        data="source examples for both bounds, the law of the target for its risk",
        page="notebooks/51-proximal-parameters",
        test=growing.risks,
    ),
    _vision_claim(
        key="S10",
        place="Abstract, Fig. 8",
        statement="SAIL ends at least as well as scratch",
        reported="a higher final accuracy; no number",
        method=f"{_SETTING}. Test accuracy after 300 epochs. Larger networks, as for S1: accuracy "
        "after as many FLOPs as scratch takes in long trainings (account B): of the halves on "
        "CIFAR-10 at width 12 in 640 steps, which are twelve epochs, and in 1,600 by BYOL, judged "
        "by a linear classifier of features, and of GPTs in 1,000. "
        "Secondary: the same of all in fewer steps, in which scratch has not converged; and that "
        f"SAIL is not worse by more than {spirals.NEAR_POINTS} points",
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
        "other 20 classes at the first. log₂ of FLOPs of scratch over SAIL's to a loss fixed "
        "beforehand for each, of two difficulties (account B): with labels less without, by BYOL; "
        "bounds as for S1; without CIFAR-10 at the first size, whose goals by BYOL are of longer "
        "trainings. "
        "Secondary: the loss after as many FLOPs as scratch takes in all its steps, scratch's less "
        "SAIL's",
        test=arms.labelled,
    ),
    _spirals_claim(
        key="S12",
        place="Appendix K, Fig. 9",
        statement="gradients are smaller early in training",
        reported="curves without numbers",
        method=f"{_SETTING}. Mean log ratio of gradient norms over the first tenth of steps, and "
        "at equal loss, where at least four seeds in five reach it from both starts",
        test=spirals.calmer,
    ),
    _vision_claim(
        key="S13",
        place="Section 4.4, appendix K",
        statement="the advantage shrinks with the distance of the sources from the target",
        reported="stated for two readings of the spirals",
        method=f"{_PICTURED} in S1. Minus Spearman's correlation, over the eight sets, of log₂ "
        "speed-up over scratch (account B) and MMD² of pixels from the nearer source, of means "
        "over seeds, with Bonett and Wright's interval; factors of sets on which a side seldom "
        "reaches the goal are bounds. Secondary: the nearest source alone, and the same in each "
        "seed, with an interval over seeds, which takes these sets as given",
        test=arms.fading,
    ),
    _spirals_claim(
        key="S14",
        place="Theorem 1",
        statement="sources are nearer to the target's optimum than random weights",
        reported="a bound, for weights from N(0, I)",
        method=f"{_SETTING}. Log ratio of squared distances, against weights that networks start "
        "from. The optimum is trained from the sources' start where they share it, and else from a "
        "fresh one. GPTs of width 32 likewise, on thirds of Shakespeare by mean token value, of "
        "which the last trains the optimum",
        test=_nearer,
    ),
    _text_claim(
        key="S15",
        place="Section 4.4",
        statement="the best weight is near 0 or 1",
        reported="−0.1244",
        method=f"{_SETTING}. Share of seeds whose best of 31 weights after 50 steps is within "
        "0.15 of 0 or 1, less the share of such weights in the grid; undecided and secondary where "
        f"the curve is flat: {_FLAT}. {_SWEPT}, after 200 steps. Secondary: spirals before "
        "retraining, and after 200 steps",
        test=_near_ends,
    ),
    _vision_claim(
        key="S16",
        place="Sections 1 and 2",
        statement="merging several sources beats one",
        reported="stated as what is new; the nearest source alone is no baseline of the paper",
        method=f"{_SETTING}. Test loss of the nearest source alone after retraining, less that of "
        "SAIL's start; both cost the same. Larger networks at equal cost: GPTs as for S6; "
        f"{_PICTURED}; {_HALVES}; the same by BYOL, judged by a linear classifier of features. "
        "Secondary: the same by each of several maps, with starts that are shared, "
        "own, or own and matched by Git Re-Basin; and speed over the nearest source alone to what "
        "scratch has near its end, by all three accounts, of which C counts every source used",
        test=_together,
    ),
    _larger_claim(
        key="S17",
        place="Section 4.3",
        statement="SAIL carries over to targets of several sizes",
        reported="curves without numbers",
        method=f"{_LARGER}; and {_HALVES}; the same at width 8, with eight blocks and with "
        "sixteen. log₂ of FLOPs of scratch over SAIL's to losses fixed beforehand for each size, "
        "account B. Secondary: retraining alone (A), sources counted (C)",
        test=arms.sizes,
    ),
    _spirals_claim(
        key="S18",
        place="Theorems 2 and 3",
        statement="nearer data give nearer parameters, a lower loss at the start, and a lower one "
        "after training",
        reported="what the theorems need; no measurement",
        method="Spearman's correlation, in each seed, over two sources of three readings: MMD² to "
        "the target, squared distance to its optimum, loss before and after retraining. Secondary: "
        "own starts after Git Re-Basin, which reorders the second source and the optimum to match "
        "the first source",
        test=spirals.chained,
    ),
    _larger_claim(
        key="S19",
        place="Appendix G",
        statement="distillation adds to SAIL",
        reported="stated, not measured",
        method=f"{_LARGER}, on labels that are half the nearest source's answer. log₂ of FLOPs of "
        "SAIL over those with distillation to what the nearest source has half-way, the teacher's "
        "passes counted; and the loss after equal FLOPs. Secondary: accounts A and C",
        test=arms.taught,
    ),
    Claim(
        unit="seeds",
        key="S20",
        paper="anonymous2025structured",
        place="Fig. 2a and 4",
        statement="thirds of a corpus by mean token value are three clear clusters",
        reported="pictures by t-SNE",
        method="blocks of 1,024 characters of two texts, another fifth left out in each seed. AUC "
        "of a cross-validated linear classifier, mean over the three pairs of thirds, less that on "
        f"random thirds, above {growing.CLEAR}; of histograms less their cubic regression on the "
        "mean, which the split is made by. Controls: histograms as they are, and both texts "
        "against each other, beside random halves",
        data="all blocks, each judged by a classifier that has not seen its stretch",
        page="notebooks/54-sail-text",
        test=growing.clusters,
    ),
)
