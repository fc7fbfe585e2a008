"""Which axes of which parameters belong together, derived from the module graph; see README.md.

>>> from torch import nn
>>> structure = structure_of(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)))
>>> [(member.key, member.axis) for member in structure.members("0")]
[('0.weight', 0), ('0.bias', 0), ('2.weight', 1)]
"""

from mergelib.structure import language as _language
from mergelib.structure import layers as _layers
from mergelib.structure import vision as _vision
from mergelib.structure.groups import Axis, Group, Member, Structure
from mergelib.structure.trace import Features, Scope, describes, structure_of

__all__ = ["Axis", "Features", "Group", "Member", "Scope", "Structure", "describes", "structure_of"]

del _language, _layers, _vision
