"""What there is to merge: a zoo of experts, and the sets that a backbone was pretrained on."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from torch import Tensor, nn

from mergelib.evaluation.tasks import Split, Suite
from mergelib.messages.brief import Brief
from mergelib.statedict import is_matrix

IsMatrix = Callable[[str, Tensor], bool]


@dataclass(frozen=True, repr=False)
class PretrainingSet(Brief):
    """Labelled data for pretraining, never a task of a suite; `sha256` of the source."""

    name: str
    class_names: tuple[str, ...]
    train: Split
    test: Split
    sha256: str


@dataclass(frozen=True, repr=False)
class Zoo(Brief):
    """What there is to merge on a suite.

    Attributes:
        suite: the tasks.
        model: the architecture, carrying the pretrained weights.
        pretrained: state dict of the backbone, θ_0.
        experts: task to fine-tuned state dict, θ_t.
        heads: task to frozen head.
        files: task to the expert's file in the cache, ready for `merge_files`.
        fingerprint: hash of all that made it, hexadecimal.
        revisions: of what others made: commits on the hub, of the ``pretrained`` model and by task;
            versions of packages and hashes of the weights in them.
        is_matrix: tells from key and tensor what low-rank methods take for a matrix.
    """

    suite: Suite
    model: nn.Module
    pretrained: dict[str, Tensor]
    experts: dict[str, dict[str, Tensor]]
    heads: dict[str, nn.Module]
    files: Mapping[str, Path]
    fingerprint: str
    revisions: Mapping[str, str] = field(default_factory=dict)
    is_matrix: IsMatrix = is_matrix
