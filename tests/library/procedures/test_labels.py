"""Labels that are no classes: every procedure that reads labels names their task."""

from typing import Any

import pytest
import torch
from torch import Tensor

METHODS: dict[str, dict[str, Any]] = {
    "adamerging": {"loss": "cross_entropy"},
    "cogram": {},
    "fisher": {"labels": "true"},
    "frank_wolfe": {},
    "greedy_soup": {},
    "multitask": {},
}


def last(labels: Tensor, value: int) -> Tensor:
    """The labels with another last one."""
    return torch.cat([labels[:-1], torch.tensor([value])])


@pytest.mark.parametrize("method", METHODS)
def test_labels_that_are_no_classes(case: Any, method: str) -> None:
    inputs, labels = case.data["b"]
    outputs = case.heads["b"](case.model(inputs))
    classes = outputs.shape[-1]
    for wrong, message in (
        (last(labels, classes), rf"'b' has the label {classes}, expected 0 to {classes - 1}"),
        (last(labels, -1), "'b' has the label -1, expected 0 to"),
        (labels.to(torch.uint8), "labels of task 'b' are torch.uint8, expected torch.int64"),
        (torch.stack([labels, labels], 1), "of task 'b' have shape"),
    ):
        with pytest.raises(ValueError, match=message):
            case.adapt(method, data={**case.data, "b": (inputs, wrong)}, **METHODS[method])
