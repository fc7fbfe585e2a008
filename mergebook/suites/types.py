"""What there is to merge: a zoo of experts; and labelled sets, for tasks and pretraining."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from torch import Tensor, nn

from mergelib.evaluation.tasks import Split, Suite
from mergelib.merging import IsMatrix
from mergelib.messages.brief import Brief
from mergelib.statedict import is_matrix


@dataclass(frozen=True, repr=False)
class LabelledSet(Brief):
    """Labelled data with their own parts, from which tasks are cut, or for pretraining."""

    name: str
    class_names: tuple[str, ...]
    train: Split
    test: Split
    sha256: str  # of the file or whatever else they were made from


@dataclass(frozen=True, repr=False)
class Zoo(Brief):
    """What there is to merge on a suite."""

    suite: Suite
    model: nn.Module  # carries the pretrained weights
    pretrained: dict[str, Tensor]  # θ_0
    experts: dict[str, dict[str, Tensor]]  # task to θ_t
    heads: dict[str, nn.Module]  # frozen
    files: Mapping[str, Path]  # task to the expert's file in the cache, ready for `merge_files`
    fingerprint: str  # hash of all that made it, hexadecimal
    # Commits on the hub, of the ``pretrained`` model and by task; versions and hashes of packages.
    revisions: Mapping[str, str] = field(default_factory=dict)
    is_matrix: IsMatrix = is_matrix  # what low-rank methods take for a matrix
