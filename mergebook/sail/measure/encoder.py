"""A pretrained sentence encoder, grown and not trained (Anonymous, 2025, Eqs. 8 and 9)."""

import copy
from typing import cast

import numpy as np
import torch
from scipy.spatial.distance import pdist
from torch import Tensor, nn

from mergebook.lab.results import Tables
from mergebook.lab.runner import beginning_of, study
from mergebook.suites.families.sentences import SentenceEncoder
from mergebook.suites.heads import features
from mergebook.suites.models import Head
from mergebook.suites.types import Zoo
from mergebook.suites.zoo import make_heads
from mergelib.evaluation.tasks import Suite
from mergelib.sail import grow
from mergelib.sail.growth.depth import Depth
from mergelib.sail.growth.width import Width
from mergelib.training import seeded

# How an encoder is grown: by which `width` and `depth` of `mergelib.sail.grow`, and to how many
# times as many dimensions of the stream, and heads; hidden units in a layer; and layers. `grow`
# refuses the others: uneven copies, the mean of the stream, and identity.
Way = tuple[Width, Depth, float, float, int]
WAYS: dict[str, Way] = {
    "replicate": ("replicate", "identity", 2, 2, 1),
    "mean, hidden": ("mean", "identity", 1, 1.5, 1),
    "svd": ("svd", "identity", 2, 2, 1),
    "svd, uneven": ("svd", "identity", 1.5, 1.5, 1),
    "svd_random": ("svd_random", "identity", 2, 2, 1),
    "stack": ("replicate", "stack", 1, 1, 2),
    "interlace": ("replicate", "interlace", 1, 1, 2),
}


@study(load=beginning_of)
def encoder(zoo: Zoo, *, sentences: int = 100) -> Tables:
    """Accuracies and similarities of an encoder that was grown in every one of `WAYS`.

    ``tasks``: rows of ``way`` (also ``source``, and ``random``: its sizes at a random start),
    ``task``, ``accuracy`` with heads of its own, and ``agreement`` with the source's answers (a
    share). ``encoders``: ``parameters``, ``correlation`` of all cosines with the source's, largest
    ``change``.
    """
    source, seed = cast(SentenceEncoder, zoo.model), zoo.suite.seed
    tables: Tables = {"tasks": [], "encoders": []}
    with seeded(seed):
        encoders = {"source": source, "random": SentenceEncoder(copy.deepcopy(source.bert.config))}
    encoders |= {name: grown(source, way, seed) for name, way in WAYS.items()}
    own, cosines = _read(source, zoo.suite, sentences)
    for name, network in encoders.items():
        found, others = _read(network, zoo.suite, sentences)
        for task, answers in found.items():
            labels = zoo.suite.tasks[task].test.labels[:sentences]
            sides = {"accuracy": labels, "agreement": own[task]}
            row = {key: float((answers == side).double().mean()) for key, side in sides.items()}
            tables["tasks"].append({"way": name, "task": task, **row})
        row = {
            "parameters": sum(parameter.numel() for parameter in network.parameters()),
            "correlation": float(np.corrcoef(cosines, others)[0, 1]),
            "change": float(np.abs(cosines - others).max()),
        }
        tables["encoders"].append({"way": name, **row})
    return tables


def grown(source: SentenceEncoder, way: Way, seed: int) -> SentenceEncoder:
    """A larger encoder, made of a smaller one."""
    width, depth, wider, hidden, deeper = way
    config = copy.deepcopy(source.bert.config)
    config.hidden_size = round(wider * config.hidden_size)
    config.num_attention_heads = round(wider * config.num_attention_heads)
    config.intermediate_size = round(hidden * config.intermediate_size)
    config.num_hidden_layers *= deeper
    with seeded(seed):
        network = SentenceEncoder(config)
    small, large = (  # with a head: `grow` leaves the width of what a model's output shows
        nn.Sequential(net, Head(torch.eye(1, net.width))) for net in (source, network)
    )
    generator = torch.Generator().manual_seed(seed)
    large.load_state_dict(grow(small, large, width=width, depth=depth, generator=generator))
    return network


def _read(network: nn.Module, suite: Suite, sentences: int) -> tuple[dict[str, Tensor], np.ndarray]:
    """Zero-shot answers to the first sentences of each task, and cosines of all pairs."""
    heads = make_heads(network, suite)
    found = {
        name: features(network, task.test.inputs[:sentences], task.transform)
        for name, task in suite.tasks.items()
    }
    answers = {name: heads[name](x).argmax(1) for name, x in found.items()}
    return answers, 1 - pdist(torch.cat([*found.values()]).double(), "cosine")
