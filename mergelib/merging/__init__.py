"""The one loop that applies rules.

`merge_tensors` walks the tensors, checks them, computes in float32 at least, keeps dtypes, integer
buffers and ties, and feeds element-wise rules chunks that stay in cache. `merge` drives it over
models in memory and `mergelib.streaming.merge_files` over files, so both agree bit for bit.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mergelib import statedict
from mergelib.inspection.kinship import Kinship
from mergelib.io import Model, Models, as_state, as_states
from mergelib.merging.applying import (
    NotFinite,
    apply_rule,
    dtypes,
    explain_not_finite,
    own_seed,
    precision,
)
from mergelib.messages.brief import Brief
from mergelib.messages.refusals import check_device
from mergelib.messages.warned import tell_of_convolutions
from mergelib.parts import Missing, Parts, Patterns, Selection, select
from mergelib.registry import Method, get_method
from mergelib.statedict import FLOATS, StateDict, is_kernel, is_matrix, is_statistic

Group = tuple[list[Tensor], Tensor | None]  # one parameter: the experts' tensors, the pretrained
IsMatrix = Callable[[str, Tensor], bool]


@dataclass(frozen=True, repr=False)
class Source(Brief):
    """Models to be merged, compared already: in memory, or in files and read as asked for.

    Attributes:
        experts: by name.
        pretrained: the model they were fine-tuned from.
        selection: the keys of the merged model, and which of them are merged.
        aliases: tied key -> the key it shares its memory with.
    """

    experts: Mapping[str, StateDict]
    pretrained: StateDict | None
    selection: Selection
    aliases: Mapping[str, str]

    @property
    def names(self) -> list[str]:
        """The experts' names, for messages."""
        return list(self.experts)

    @property
    def reference(self) -> StateDict:
        """The pretrained model, else the first expert."""
        return next(iter(self.experts.values())) if self.pretrained is None else self.pretrained

    def __iter__(self) -> Iterator[str]:
        return iter(self.selection.keys)

    def load(self, key: str) -> Group:
        """The tensors of a key that is merged."""
        pretrained = None if self.pretrained is None else self.pretrained[key]
        return [expert[key] for expert in self.experts.values()], pretrained


def in_memory(
    experts: Mapping[str, StateDict], pretrained: StateDict | None, parts: Parts | None = None
) -> Source:
    """State dicts in memory as a `Source`; errors are those of `mergelib.parts.select`."""
    reference = next(iter(experts.values())) if pretrained is None else pretrained
    for name, model in {"pretrained": pretrained, **experts}.items():
        if isinstance(model, Mapping):
            statedict.check_values(name, model)
    aliases = tied_keys(reference) if isinstance(reference, Mapping) else {}
    selection = select(experts, pretrained, parts, tied=aliases)
    return Source(experts, pretrained, selection, aliases)


def tied_keys(state: StateDict) -> dict[str, str]:
    """Keys whose tensors are one and the same as an earlier key's, in memory or in files.

    Files say so themselves: what is read from them lies apart in memory.
    """
    tied: dict[str, str] | None = getattr(state, "tied", None)
    return statedict.memory_aliases(state) if tied is None else tied


@torch.no_grad()
def merge(
    method: str,
    experts: Models,
    *,
    pretrained: Model | None = None,
    include: Patterns | None = None,
    exclude: Patterns | None = None,
    missing: Missing = "error",
    device: torch.device | str | None = None,
    is_matrix: IsMatrix = is_matrix,
    **hyperparameters: Any,
) -> dict[str, Tensor]:
    """Merge experts into one state dict.

    Args:
        method: a name from `methods`.
        experts: mapping of name to model, or a list of models, each a state dict, a module or a
            path that `load_state_dict` reads. Of one set of keys and shapes, but for what
            ``include``, ``exclude`` and ``missing`` leave out; floating dtypes may differ.
        pretrained: the model they were fine-tuned from; needed by all but a few methods.
        include: pattern or patterns of the keys to merge, e.g. ``"bert.*"``; by default all. Other
            keys are the pretrained model's (else the first expert's), unchecked.
        exclude: patterns of keys not to merge, e.g. ``"*classifier*"``; they are the pretrained
            model's too.
        missing: what happens with a selected key that some model lacks or has in another shape:
            ``"error"``, ``"base"`` (the result has the pretrained model's tensor) or ``"skip"``
            (the result does not have the key). See `mergelib.parts`.
        device: where to compute; by default where the tensors are, for files on the CPU. The
            result lies where the inputs lie.
        is_matrix: tells from a key and the pretrained tensor (else the first expert's) what
            low-rank methods take for a matrix; by default two-dimensional weights that are no
            table. A convolution that is accepted is folded, one row per filter: see
            `mergelib.statedict.is_kernel`.
        **hyperparameters: the method's own, see `methods`.

    Returns:
        A new state dict with the keys and dtypes of the pretrained model (else the first expert).
        Floating tensors are merged (in float32 at least, and in the widest dtype of the inputs),
        running means and variances of BatchNorm are averaged by every method, integer buffers are
        copied, and tied tensors stay tied. No input is changed. The bits are the same on every run
        with one number of threads; with another number, or with the experts in another order, the
        last bits of methods that factorise, or that sum over experts, may differ.

    Raises:
        ValueError: an unknown method or device; experts that are none or do not match (naming
            expert and key); low-rank adapters, whose factors do not merge, and quantised weights;
            a pattern that matches no key, or nothing left to merge; a NaN or Inf, or a tensor that
            is sparse, nested or without values (naming it); a hyperparameter out of range.
        TypeError: a hyperparameter that the method does not have; an expert that is no model.
        FileNotFoundError: a path that does not exist.

    Warns:
        UserWarning: once, of models that have nothing in common, and of convolutions that a method
            for matrices leaves to an element-wise rule.
    """
    check_device(device)
    chosen = get_method(method)
    chosen.check(hyperparameters, pretrained=pretrained is not None)
    base = None if pretrained is None else as_state(pretrained)
    source = in_memory(as_states(experts), base, Parts(include, exclude, missing))
    return dict(merge_tensors(chosen, source, hyperparameters, device=device, matrices=is_matrix))


def merge_tensors(
    method: Method,
    source: Source,
    hyperparameters: Mapping[str, Any],
    *,
    device: torch.device | str | None = None,
    matrices: IsMatrix = is_matrix,
) -> Iterator[tuple[str, Tensor]]:
    """Apply a rule to every tensor of a source; yields ``(key, merged tensor)`` in order.

    The loop behind `merge`; arguments and errors are described there.
    """
    options = {**method.hyperparameters, **hyperparameters}
    further: Mapping[str, dict[str, Any]] = {}
    if method.prepare is not None:
        further = method.prepare(lambda: _floating(source, device), **options)
    done: dict[str, Tensor] = {}
    tied = set(source.aliases.values())
    names = [*source.names, *([] if source.pretrained is None else ["pretrained"])]
    kinship = Kinship(names, pretrained=source.pretrained is not None)
    unfolded = method.elsewhere is not None and matrices is is_matrix
    convolutions: list[str] = []
    for key in source:
        if key in source.aliases:
            merged = done[source.aliases[key]]
        elif key in source.selection.merged:
            group = source.load(key)
            arguments = {**options, **further.get(key, {})}
            merged = _merge_one(method, source, key, group, arguments, device, matrices)
            if merged.is_floating_point():
                kinship.add([*group[0], *([] if group[1] is None else [group[1]])])
                if unfolded and merged.dim() > 2 and is_kernel(key, merged):
                    convolutions.append(key)
            del group  # else it would outlive the next load
        else:
            merged = source.reference[key].clone()
        if key in tied:
            done[key] = merged
        if key == source.selection.keys[-1]:  # not after the loop, which may be left at its end
            kinship.tell()
            tell_of_convolutions(method.name, convolutions)
        yield key, merged
        del merged


def _merge_one(
    method: Method,
    source: Source,
    key: str,
    group: Group,
    arguments: dict[str, Any],
    device: torch.device | str | None,
    matrices: IsMatrix,
) -> Tensor:
    """One key's merged tensor: averaged for statistics, copied for counters."""
    experts, pretrained = group
    reference = experts[0] if pretrained is None else pretrained
    if not is_weight(key, reference):
        return reference.clone()
    if method.draws:
        arguments = {**arguments, "seed": own_seed(arguments["seed"], key)}
    target = reference.device if device is None else torch.device(device)
    chosen = get_method("average") if is_statistic(key) else method
    applies = chosen.elsewhere is None or matrices(key, reference)
    try:
        return apply_rule(chosen, applies, experts, pretrained, arguments, target)
    except NotFinite:
        raise ValueError(explain_not_finite(key, source.names, experts, pretrained)) from None


def is_weight(key: str, tensor: Tensor) -> bool:
    """Whether a tensor is merged, as floating ones are, and not copied, as counters are.

    Raises:
        ValueError: for floating and complex dtypes that methods do not compute with.
    """
    if not (tensor.is_floating_point() or tensor.is_complex()):
        return False
    if tensor.dtype not in FLOATS:
        kinds = "float16, bfloat16, float32, float64"
        raise ValueError(f"{key!r} has dtype {tensor.dtype}, expected one of {kinds}")
    return True


def _floating(source: Source, device: torch.device | str | None) -> Iterator[tuple[str, Group]]:
    """What a first pass reads: every weight that is merged, where and as it will be merged."""
    for key in source:
        if key in source.selection.merged and key not in source.aliases:
            experts, pretrained = source.load(key)
            if is_weight(key, experts[0]) and experts[0].numel() and not is_statistic(key):
                target = experts[0].device if device is None else device
                # Of one dtype they are left in it, as what reads them casts piece by piece.
                mixed = len(dtypes(experts, pretrained)) > 1
                dtype = precision(experts, pretrained) if mixed else None
                moved = None if pretrained is None else pretrained.to(target, dtype)
                yield key, ([expert.to(target, dtype) for expert in experts], moved)
