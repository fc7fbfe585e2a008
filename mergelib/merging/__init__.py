"""The one loop that applies rules.

`merge_tensors` checks the tensors, computes in float32 or wider, keeps dtypes, integer buffers and
ties, and passes chunks that fit the cache to element-wise rules. `merge` runs it on models in
memory and `mergelib.merge_files` on files, so both agree bit for bit.
"""

from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from mergelib import statedict
from mergelib.inspection.companions import check_companions
from mergelib.inspection.kinds import IsMatrix as IsMatrix
from mergelib.inspection.kinds import Matrices, kinds_of
from mergelib.inspection.values import check_integers, check_ties
from mergelib.inspection.watch import Watch
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
from mergelib.messages.kinds import is_finite_number
from mergelib.messages.refusals import check_device
from mergelib.parts import Missing, Parts, Patterns, Selection, select
from mergelib.registry import Method, get_method
from mergelib.statedict import (
    FLOATS,
    StateDict,
    is_matrix,
    is_statistic,
    layout_of,
    named,
    proportions,
)

Group = tuple[list[Tensor], Tensor | None]  # one parameter: the experts' tensors, the pretrained


@dataclass(frozen=True, repr=False)
class Source(Brief):
    """Models to be merged, already compared, either in memory or read from files on access.

    Attributes:
        experts: by name.
        pretrained: the base model, if any.
        selection: the keys of the merged model, and which of them are merged.
        aliases: each further name of a tied tensor, with the first name.
        kinds: `mergelib.inspection.kinds.layer_kinds` of a module, if there is one.
    """

    experts: Mapping[str, StateDict]
    pretrained: StateDict | None
    selection: Selection
    aliases: Mapping[str, str]
    kinds: Mapping[str, bool] = field(default_factory=dict)

    @property
    def names(self) -> list[str]:
        """The experts' names."""
        return list(self.experts)

    @property
    def reference(self) -> StateDict:
        """The pretrained model, or else the first expert."""
        return next(iter(self.experts.values())) if self.pretrained is None else self.pretrained

    @property
    def models(self) -> dict[str, StateDict]:
        """All models by name, the reference first."""
        base = {} if self.pretrained is None else {"pretrained": self.pretrained}
        return {**base, **self.experts}

    def __iter__(self) -> Iterator[str]:
        return iter(self.selection.keys)

    def check(self, *, parts: bool = True) -> None:
        """Raise ``ValueError`` for integers or ties that differ between models."""
        check_agreement(self.models, self.selection.merged, self.aliases, parts=parts)

    def check_companions(
        self, experts: Mapping[str, object], pretrained: object | None = None
    ) -> None:
        """Compare the files beside weights, of models as the caller gave them."""
        models = experts if pretrained is None else {"pretrained": pretrained, **experts}
        layout = layout_of(self.reference)
        check_companions(models, layout, self.selection.merged, {*self.selection.keys})

    def load(self, key: str) -> Group:
        """Return one key's tensors: the experts' and the pretrained model's."""
        pretrained = None if self.pretrained is None else self.pretrained[key]
        return [expert[key] for expert in self.experts.values()], pretrained


def in_memory(
    experts: Mapping[str, StateDict], pretrained: StateDict | None, parts: Parts | None = None
) -> Source:
    """Return state dicts in memory as a `Source`; raises what `mergelib.parts.select` raises."""
    reference = next(iter(experts.values())) if pretrained is None else pretrained
    for name, model in {"pretrained": pretrained, **experts}.items():
        if isinstance(model, Mapping):
            statedict.check_values(name, model)
    aliases = tied_keys(reference) if isinstance(reference, Mapping) else {}
    selection = select(experts, pretrained, parts, tied=aliases)
    return Source(experts, pretrained, selection, aliases)


def check_agreement(
    models: Mapping[str, StateDict],
    merged: Set[str],
    aliases: Mapping[str, str],
    *,
    parts: bool = True,
) -> None:
    """Raise ``ValueError`` if models differ in integers or ties, which cannot be merged."""
    check_integers(models, merged, aliases.keys(), parts=parts)
    check_ties(models, {name: tied_keys(model) for name, model in models.items()}, merged)


def tied_keys(state: StateDict) -> dict[str, str]:
    """Map each further name of a tied tensor to its first name, in memory or in files."""
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

    >>> experts = {"digits": {"w": torch.tensor([1.0])}, "letters": {"w": torch.tensor([3.0])}}
    >>> merge("task_arithmetic", experts, pretrained={"w": torch.zeros(1)}, scale=0.5)
    {'w': tensor([2.])}

    Args:
        method: a name from `methods`.
        experts: name to model, or a list of models: state dicts, modules, or paths that
            `load_state_dict` reads. Keys and shapes must agree, except where ``include``,
            ``exclude`` and ``missing`` allow differences; floating dtypes may differ.
        pretrained: the base model; most methods need it.
        include: pattern or patterns (`fnmatch`, case-sensitive) of the keys to merge, e.g.
            ``"bert.*"``; all if None. Other keys are copied from the pretrained model (else the
            first expert), unchecked.
        exclude: patterns of keys that are not merged, e.g. ``"*classifier*"``.
        missing: what happens to a selected key that some model lacks or has in another shape:
            ``"error"``, ``"base"`` (the result has the pretrained tensor) or ``"skip"`` (the result
            lacks it).
        device: where to compute; by default where the tensors are. The result is on the inputs'
            device.
        is_matrix: predicate (key, reference tensor) of what low-rank methods treat as a matrix; by
            default two-dimensional weights that are not tables, as a module's layers, biases or
            names show. An accepted convolution is folded, one row per filter: see
            `mergelib.is_kernel`.
        **hyperparameters: the method's own, see `methods`.

    Returns:
        A new state dict with the keys and dtypes of the pretrained model (else the first expert).
        Floating tensors are merged in float32 or the widest input dtype. BatchNorm's running
        statistics are averaged by every method, with the method's ``weights`` if it has any
        (negative ones as 0, scaled to sum 1). Integer buffers are copied, and must agree unless
        they are counters. Tied tensors stay tied. No input is changed. Results are bit-identical
        between runs with one number of threads; another number, or another order of experts, may
        change the last bits.

    Raises:
        ValueError: for an unknown method or device; no experts, or experts that do not match;
            adapters and quantised weights; integers or ties that differ; a pattern without a match,
            or nothing to merge; NaN, Inf, or a sparse, nested or meta tensor; a hyperparameter out
            of range; or configurations by which equal shapes mean different weights. The message
            names expert and key.
        TypeError: for a hyperparameter that the method lacks, or an expert that is not a model.
        FileNotFoundError: if a path does not exist.

    Warns:
        UserWarning: about models that are unrelated or equal; possible matrices that a method for
            matrices merges element by element; keys that ``missing="skip"`` leaves out; and other
            disagreements between configurations and vocabularies.
    """
    check_device(device)
    chosen = get_method(method)
    chosen.check(hyperparameters, pretrained=pretrained is not None)
    base = None if pretrained is None else as_state(pretrained)
    models = named(experts)
    source = in_memory(as_states(models), base, Parts(include, exclude, missing))
    source.check_companions(models, pretrained)
    source = replace(source, kinds=kinds_of([pretrained, *models.values()]))
    return dict(merge_tensors(chosen, source, hyperparameters, device=device, matrices=is_matrix))


@torch.no_grad()
def merge_checked(
    method: str,
    experts: Mapping[str, StateDict],
    pretrained: StateDict | None = None,
    **hyperparameters: Any,
) -> dict[str, Tensor]:
    """Run `merge` without checks and warnings, for state dicts that were checked before."""
    source = in_memory(experts, pretrained)
    return dict(merge_tensors(get_method(method), source, hyperparameters, quiet=True))


def watch_in_memory(source: Source) -> None:
    """Warn about models that are unrelated or equal, for methods outside the loop."""
    watch = Watch(source.names, pretrained=source.pretrained is not None)
    for key in source:
        merged = key in source.selection.merged and key not in source.aliases
        if merged and source.reference[key].is_floating_point():
            watch.add(*source.load(key))
    watch.tell()


def merge_tensors(
    method: Method,
    source: Source,
    hyperparameters: Mapping[str, Any],
    *,
    device: torch.device | str | None = None,
    matrices: IsMatrix = is_matrix,
    quiet: bool = False,
) -> Iterator[tuple[str, Tensor]]:
    """Yield ``(key, merged tensor)`` for every key of a source, in order.

    Arguments, errors and warnings (none if ``quiet``) are those of `merge`.
    """
    source.check()
    options = {**method.hyperparameters, **hyperparameters}
    further: Mapping[str, dict[str, Any]] = {}
    if method.prepare is not None:
        further = method.prepare(lambda: _floating(source, device), **options)
    done: dict[str, Tensor] = {}
    tied = set(source.aliases.values())
    watch = Watch(source.names, pretrained=source.pretrained is not None)
    predicate = Matrices(matrices, layout_of(source.reference), source.kinds)
    for key in source:
        if key in source.aliases:
            merged = done[source.aliases[key]]
        elif key in source.selection.merged:
            group = source.load(key)
            arguments = {**options, **further.get(key, {})}
            merged = _merge_one(method, source, key, group, arguments, device, predicate)
            if merged.is_floating_point() and not quiet:
                watch.add(*group)
                predicate.note(key, merged)
            del group  # so that it is freed before the next load
        else:
            merged = source.reference[key].clone()
        if key in tied:
            done[key] = merged
        if key == source.selection.keys[-1]:  # not after the loop, which may be left at its end
            watch.tell()
            if method.elsewhere is not None:
                predicate.tell(method.name, f"leaves to {method.elsewhere.__name__}")
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
    """Merge one key: average statistics, copy counters, apply the rule to weights."""
    experts, pretrained = group
    reference = experts[0] if pretrained is None else pretrained
    if not is_weight(key, reference):
        return reference.clone()
    if method.draws:
        arguments = {**arguments, "seed": own_seed(arguments["seed"], key)}
    target = reference.device if device is None else torch.device(device)
    chosen = method
    if is_statistic(key):
        chosen = get_method("average")
        arguments = _for_statistics(arguments, len(experts))
    applies = chosen.elsewhere is None or matrices(key, reference)
    try:
        return apply_rule(chosen, applies, experts, pretrained, arguments, target)
    except NotFinite:
        raise ValueError(explain_not_finite(key, source.names, experts, pretrained)) from None


def _for_statistics(arguments: Mapping[str, Any], count: int) -> dict[str, Any]:
    """Return `average`'s arguments for running statistics: the method's own weights, if any."""
    weights = arguments.get("weights")
    if weights is None or len(weights) != count or not all(map(is_finite_number, weights)):
        return {} if weights is None else {"weights": weights}  # which `average` refuses
    return {"weights": proportions(weights)}


def is_weight(key: str, tensor: Tensor) -> bool:
    """Whether a tensor is floating, so that it is merged; ValueError for unsupported dtypes."""
    if not (tensor.is_floating_point() or tensor.is_complex()):
        return False
    if tensor.dtype not in FLOATS:
        raise ValueError(
            f"{key!r} has dtype {tensor.dtype}, expected float16, bfloat16, float32 or float64: "
            "dequantise or cast the models first"
        )
    return True


def _floating(source: Source, device: torch.device | str | None) -> Iterator[tuple[str, Group]]:
    """Yield the weights that a first pass reads, on the device of the merge."""
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
