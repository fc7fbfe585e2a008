"""The claims of the stability framework on measured merges (Li et al., 2026), by their numbers.

They stand in the paper's Section V and Figures 1 to 9; T9 is what its explanation implies and it
did not measure. The bound is about loss: checks of loss decide, those of accuracy are secondary.
"""

from functools import partial

from mergebook.ledger.verdicts import Claim
from mergebook.stability.claims import scaling_checks as checks

_claim = partial(
    Claim,
    paper="li2026unified",
    page="notebooks/42-scaling-laws",
    unit="tasks",
    data="settings of the merging methods are fixed beforehand; experts see labelled training "
    "examples, all settings of a seed the same test examples. A best K or rate is chosen on other "
    "seeds: on validation examples for the transformer's average on eight tasks, on test examples "
    "for other methods and networks, whose validation losses were not kept. All seeds start from "
    "one pretrained network",
)

CLAIMS = (
    _claim(
        key="T1",
        place="Section V-B1; Figures 1, 2, 3 and 5",
        statement="merges improve with their experts' steps K up to a point and then decline",
        reported="K of 1,000 to 4,000; an inverted U for ResNet-18 and -50 in Figure 5, monotone "
        "either way in the text",
        method="test loss of the average at the usual rate: the best K between both ends, chosen "
        "on the other seeds, against the most steps measured, about seven passes over the data "
        "(the paper: 4 to 1,000, by data set). Secondary: accuracy; the best K against 25 steps, "
        "which is nearly certain to hold; other methods, four times the rate, a ResNet-18 with "
        "SGD, narrow and of full width, and twenty tasks of pictures and of scripts",
        test=checks.steps,
    ),
    _claim(
        key="T2",
        place="Section V-B2; Figures 2, 3 and 6",
        statement="larger batches help at small learning rates, and less or not at large ones",
        reported="b of 64, 128 and 256 at a small rate: better with larger batches; no large rate",
        method="test loss at equal K, as in the paper, so that larger batches see more images; "
        "control: equal images. Secondary: accuracy, other methods, fourteen tasks, and a narrow "
        "ResNet-18 with SGD, BatchNorm measured anew",
        test=checks.batch,
    ),
    _claim(
        key="T3",
        place="Section V-B3; Figures 2, 3 and 8",
        statement="large learning rates hurt sharply",
        reported="a collapse of all merges of ResNet-18 at ten times the usual rate",
        method="test loss at eight times the usual rate against the best other one, chosen on "
        "the other seeds. Secondary: accuracy, other methods, fourteen tasks, a narrow ResNet-18 "
        "with SGD, BatchNorm measured anew or not, and sixteen times the rate on twenty scripts. "
        "Controls: whether the merge is worse than the pretrained model, and whether rates with "
        "equal ηK merge alike, which the paper does not say",
        test=checks.rate,
    ),
    _claim(
        key="T4",
        place="Section V-B4; Figures 2, 3 and 9",
        statement="more training data make merges better, strictly",
        reported="α of 0.5, 0.8 and 1: monotone",
        method="test loss with prefixes of every task's training rows, at equal K and at both "
        "steps, as the paper says 'strictly'; control: at equal passes over them. Secondary: "
        "accuracy, other methods, fourteen tasks, and a narrow ResNet-18 with SGD, BatchNorm "
        "measured anew",
        test=checks.data,
    ),
    _claim(
        key="T5",
        unit="seeds",
        place="Section V-B5; Figures 2, 3 and 7",
        statement="merges get worse with the number of tasks",
        reported="N of 6 to 12: a consistent decline",
        method="nested sets of tasks; test loss of the two that all merges hold, so that the tasks "
        "judged stay the same; each seed draws its own two. The weight of a task falls from 1/2 to "
        "1/8 with them, and no merge of two experts at weights 1/8 was measured. Secondary: "
        "accuracy, every step, other methods with AdaMerging "
        "among them, and up to twenty tasks of pictures and of scripts; controls: "
        "perceptrons of one task, trained on halves of its rows, of which many may be "
        f"{checks.MARGINS['accuracy']:g} point or {checks.MARGINS['loss']} nats below two, and of "
        "different tasks, on rendered scripts",
        test=checks.tasks,
    ),
    _claim(
        key="T9",
        place="Figure 1; Sections V-B1 and V-B3",
        statement="where too many steps or too large a rate hurt, the generalisation error "
        "explodes while the optimisation error falls",
        reported="not measured: test losses only",
        method="two halves, each with its own checks: many steps, and a large rate. Of the "
        "average: test minus training loss, and training loss, from the value that is best on "
        "the other seeds to the largest. Secondary: K, by other methods and with a quarter of "
        "the data, a ResNet-18 with SGD, narrow and of full width, and twenty tasks",
        test=checks.explosion,
    ),
    _claim(
        key="T11",
        unit="seeds",
        place="Figure 2; Section V-B",
        statement="sparsifying methods follow the same trends as linear ones",
        reported="shown as curves that closely follow the prediction",
        method="every step of every sweep, on the same groups of tasks: how often the test loss "
        "of a method changes in the same direction as that of the average, less how often that "
        f"of task arithmetic, a linear rule, does; at most {checks.SAME_TREND:g} % of the steps "
        "fewer counts as the same trend. Secondary: accuracy, fourteen tasks. That they agree "
        "more often than by chance says nothing, as merges of the same experts have that in "
        "common whatever the rule",
        test=checks.trends,
    ),
    _claim(
        key="T13",
        unit="seeds",
        place="Section V-B5",
        statement="sparsified merges are needed the more, the more tasks there are",
        reported="said to be justified by the decline of the average",
        method="slope of the lead over the average in test loss against log₂ N, on the merged "
        "tasks. Secondary: accuracy, as printed, DARE at λ = 2/N, and up to twenty tasks",
        test=checks.needed,
    ),
    _claim(
        key="T17",
        place="Remark 5; Appendix A-A1",
        statement="experts should be stopped when they have converged",
        reported="a recommendation",
        method="test loss of the average of experts that each stopped at the least validation "
        "loss, against all experts after the most steps measured. Secondary: accuracy",
        test=checks.stopped,
    ),
    _claim(
        key="T18",
        place="Figures 4 and 5; Table II",
        statement="experts still improve where their merge declines",
        reported="shown as curves of single models beside those of merges",
        method="accuracy, which Table II has, at the most steps against the K that is best for the "
        "average, on the other seeds. Secondary: loss. Not testable here: its premise, that the "
        "average declines, does not occur within the steps measured",
        test=checks.opposite,
    ),
)
