"""What chapter 03 counts: cases worked by hand, and the control that repairs nothing."""

import torch

from mergebook.chapters import interference
from mergebook.suites.zoo import Zoo
from mergelib.evaluation.loops import evaluate
from mergelib.merging import merge
from mergelib.statedict import flatten


def test_rows_are_merged_as_models_are(tiny_zoo: Zoo) -> None:
    rows = interference.task_vectors(tiny_zoo)
    merged = merge("ties", tiny_zoo.experts, pretrained=tiny_zoo.pretrained, density=0.2)
    ours = interference.merge_rows("ties", rows, density=0.2)
    assert torch.allclose(ours, flatten(merged) - flatten(tiny_zoo.pretrained), atol=1e-6)


def test_a_step_along_the_sum_is_task_arithmetic_at_any_length(tiny_zoo: Zoo) -> None:
    total = interference.task_vectors(tiny_zoo).sum(0)
    both = {"sum": total, "longer": 7 * total}
    table = interference.along(tiny_zoo, both, total, [0.2, 0.6])
    merged = merge("task_arithmetic", tiny_zoo.experts, pretrained=tiny_zoo.pretrained, scale=0.6)
    judged = evaluate(
        tiny_zoo.model, merged, tiny_zoo.heads, tiny_zoo.suite, split="validation", autocast=True
    )
    for name in both:
        row = table.xs(name).xs(0.6)
        assert row.to_dict() == judged.set_index("task")["accuracy"].to_dict()
