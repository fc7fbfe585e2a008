"""Task vectors as rows: merging them gives what merging the models gives."""

import torch

from mergebook.chapters import interference
from mergebook.suites.zoo import Zoo
from mergelib.merging import merge
from mergelib.statedict import flatten


def test_rows_are_merged_as_models_are(tiny_zoo: Zoo) -> None:
    rows = interference.task_vectors(tiny_zoo)
    merged = merge("ties", tiny_zoo.experts, pretrained=tiny_zoo.pretrained, density=0.2)
    ours = interference.merge_rows("ties", rows, density=0.2)
    assert torch.allclose(ours, flatten(merged) - flatten(tiny_zoo.pretrained), atol=1e-6)
