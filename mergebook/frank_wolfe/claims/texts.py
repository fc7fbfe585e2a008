"""The claims of FW-Merging (Chen et al., 2025), F1–F8."""

from functools import partial

from mergebook.frank_wolfe.claims import checks
from mergebook.ledger.verdicts import Claim

_claim = partial(
    Claim, paper="chen2025fwmerging", page="notebooks/22-frank-wolfe-experiments", unit="tasks"
)
_OURS = (
    "Whose algorithm: the book's walk, which is the theorem's, repaired (oracle of inner products, "
    "coefficients in the simplex, current point kept); the released code was not run"
)
_LABELS = (
    "100 labelled training examples of each task for Frank-Wolfe on our network, 25 on the "
    "ImageNet network, 16 on the sentence encoder; AdaMerging sees their inputs"
)

CLAIMS = (
    _claim(
        key="F1",
        place="experiments; appendix C.3",
        statement="soft Frank-Wolfe is above hard, and hard above where it starts",
        reported="soft from the pretrained model, hard from AdaMerging, 100 labelled samples",
        method="the paper's pairing on three networks: soft with an oracle by task from the "
        "pretrained model, hard by layer from AdaMerging. The theorem keeps λ in the simplex, the "
        "released code, which made the figures, leaves it free. Free is primary; it is the book's "
        "walk, with one λ per whole model and six steps or fewer, not the released code. Inside "
        "the hull the current point is kept, which is the book's repair, so that is a control: "
        "soft ends 3 to 10 points below hard there in the mean, as hard starts outside the "
        "hull. Soft over hard is pooled over the networks. Secondary: both from the pretrained "
        "model; controls: from CART. AdaMerging takes 200 steps here, 25 larger ones on the real "
        "networks, 500 in the paper",
        data=_LABELS + ". CART's scale is chosen on labelled validation data",
        test=checks.order,
    ),
    _claim(
        key="F2",
        place="abstract; appendix C.4",
        statement="irrelevant experts in the pool leave Frank-Wolfe as it is and hurt other "
        "methods",
        reported="stable with 16 irrelevant experts beside the four of SUN397, Cars, GTSRB and DTD",
        method="four of twenty tasks; soft, by whole models, on entropy, as there. A point is our "
        f"reading of stable. {_OURS}. By entropy it is stable for a trivial reason on three of "
        "five seeds: it hardly leaves the pretrained model, whatever is in the pool. Secondary: "
        "rendered glyphs, and labels, with which the walk is the same to the last digit, a fact; "
        "CART is a control. The pool has four tasks, which makes the intervals wide",
        data="100 unlabelled test inputs of each target for AdaMerging and Frank-Wolfe; settings "
        "of the rules are chosen on 500 labelled validation pictures of each target",
        test=checks.irrelevant,
    ),
    _claim(
        key="F3",
        place="abstract; appendix C.4",
        statement="experts of tasks that are judged help Frank-Wolfe, up to 20, and take it above "
        "AdaMerging",
        reported="15.3 % gained by 16 relevant experts; 8.39 % above AdaMerging with 20",
        method="all 20 tasks judged, pools of 2 to 20 experts in random order; soft, by whole "
        f"models, on entropy. {_OURS}. Secondary: glyphs, other rivals",
        data="25 unlabelled test inputs of each task for AdaMerging and Frank-Wolfe; settings of "
        "the rules are chosen on 250 labelled validation pictures of each task",
        test=checks.relevant,
    ),
    _claim(
        key="F4",
        place="Proposition 1",
        statement="the merged model lies in the convex hull of the experts",
        reported="proved, for a start in the hull and weights that sum to one",
        method="a fact: the step as printed, run from ten starts, five of them outside; the "
        "chapter has the proof. It holds because the step drops the current point altogether. "
        "Controls: the book's walks, which keep it, so that the start, which is no expert, has a "
        "share (they stay in the hull of experts and start); and λ free, as in the released code, "
        "where the proposition does not apply and coefficients are negative",
        data="none; for the controls as in F1",
        unit="facts",
        page="notebooks/21-frank-wolfe",
        test=checks.hull,
    ),
    _claim(
        key="F5",
        place="Theorem 1",
        statement="the gap of soft Frank-Wolfe falls like 1/T, faster than the ordinary 1/√T",
        reported="a bound on the smallest gap after T steps: 1/T and a constant; it concedes that "
        "a step costs more",
        method="a counterexample: the step as printed on a convex function whose minimum is known, "
        "from ten starts, where the gap stops falling (exponent of the fall from step 30 to 60). "
        "Secondary: the bound itself, which is true there. Controls: the book's repaired steps on "
        "three networks, at most six, whose gaps do fall",
        data="none; for the controls as in F1",
        unit="facts",
        page="notebooks/21-frank-wolfe",
        test=checks.rate,
    ),
    _claim(
        key="F6",
        place="Figure 1 of the supplement",
        statement="with few samples Frank-Wolfe is above all other merging methods, and above "
        "multi-task training that has more data",
        reported="above all of them on the language benchmark, eight GLUE tasks, as a figure",
        method="eight sets of sentences against six merging methods. The paper's walk on language "
        "is hard, from task arithmetic; ours is hard, by layer, from AdaMerging, which is about as "
        f"good a start. {_OURS}. Multi-task training with more data was not measured on language, "
        "so this half of the claim is not tested. Secondary: soft on four texts, predicted "
        "character by character, and on pictures, where multi-task training on all data is far "
        "ahead. Multi-task training is untuned. CART on texts is kept at rank 16 % and a scale of "
        "at least 1, so it is a control. The greedy soup is no rival: it chooses on the training "
        "examples here",
        data="16 labelled sentences of each task, 20 labelled windows of each text, 100 labelled "
        "pictures of each task; scales of the rules are chosen on labelled validation data",
        test=checks.samples,
    ),
    _claim(
        key="F7",
        place="abstract; method",
        statement="memory does not grow with the number of experts",
        reported="constant",
        method="peak of a walk over 4 and over 20 files, in fresh processes, five times each; "
        "what differs between the five is the allocator, not a seed. "
        "Holding all experts would need five times as much. 30 % is our reading of constant",
        data="the same for both",
        unit="seeds",
        test=checks.memory,
    ),
    _claim(
        key="F8",
        place="experiments",
        statement="hard goes best with a layer-wise oracle, soft with a task-wise one",
        reported="chosen so",
        method="the four combinations from the pretrained model on three networks; soft is pooled "
        f"over them. {_OURS}. With λ free only the task-wise oracle was measured, so against the "
        "layer-wise one inside the hull it is secondary: it compares two sets as well as two "
        "oracles. Secondary too: texts",
        data=_LABELS,
        test=checks.pairing,
    ),
)
