"""Which axes of which parameters belong together, from the module graph of a model.

One description of axes for all that changes a network's shape or order: alignment permutes groups
(`mergelib.align`), growing widens them, and low-rank methods ask what is a matrix.

>>> from torch import nn
>>> structure = structure_of(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)))
>>> [(member.key, member.axis) for member in structure.members("0")]
[('0.weight', 0), ('0.bias', 0), ('2.weight', 1)]

Supported: chains of linear layers, convolutions (plain, transposed, depthwise), norms, embeddings
and self-attention of ``torch.nn``; torchvision's ResNets and vision transformers; the testbed's
models; BERT and GPT-2 of Hugging Face's transformers, alone and with their usual heads. Anything
else is an error that names the module, and takes a few lines with `describes`. Not supported: other
grouped convolutions, grouped queries, cross-attention. Of the symmetries of attention only the
permutations are known: of heads, and of the dimensions within each.
"""

from mergelib.structure import language as _language
from mergelib.structure import layers as _layers
from mergelib.structure import vision as _vision
from mergelib.structure.groups import Axis, Group, Member, Structure
from mergelib.structure.trace import Features, Scope, describes, structure_of

__all__ = [
    "Axis",
    "Features",
    "Group",
    "Member",
    "Scope",
    "Structure",
    "describes",
    "structure_of",
]

del _language, _layers, _vision
