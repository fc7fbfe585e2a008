"""The one loop that applies rules.

`merge_tensors` checks the tensors, computes in float32 or wider, keeps dtypes, integer buffers and
ties, and passes chunks that fit the cache to element-wise rules. `merge` runs it on models in
memory and `mergelib.merge_files` on files, so both agree bit for bit.
"""

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from mergelib import statedict
from mergelib.inspection.companions import check_all, check_companions, stamped
from mergelib.inspection.kinds import IsMatrix as IsMatrix
from mergelib.inspection.kinds import Matrices, kinds_of
from mergelib.inspection.watch import Watch, check_integers, check_ties
from mergelib.io import Model, Models, as_state, as_states, renamed, resolve_base
from mergelib.merging.applying import (
    NotFinite,
    apply_rule,
    copied,
    not_finite,
    own_seed,
    precision,
    tell_of_factors,
    too_large,
)
from mergelib.merging.reading import Filled, passed
from mergelib.merging.reading import Group as Group
from mergelib.merging.reading import first_pass as first_pass
from mergelib.merging.reading import is_weight as is_weight
from mergelib.merging.reading import weights_of as weights_of
from mergelib.messages.brief import Brief
from mergelib.messages.refusals import as_dtype, check_device
from mergelib.parts import Missing, Nan, Parts, Patterns, Selection, select
from mergelib.registry import Method, get_method
from mergelib.settings import per_expert, settings_at
from mergelib.statedict import StateDict, is_matrix, is_statistic, layout_of


@dataclass(frozen=True, repr=False)
class Source(Brief):
    """Models to be merged, already compared, either in memory or read from files on access.

    Attributes:
        experts: by name.
        pretrained: the base model, if any.
        selection: the keys of the merged model, and which of them are merged.
        aliases: each further name of a tied tensor, with the first name.
        kinds: `mergelib.inspection.kinds.layer_kinds` of a module, if there is one.
        dtype: that of the merged model's floating tensors; None if each keeps the reference's.
    """

    experts: Mapping[str, StateDict]
    pretrained: StateDict | None
    selection: Selection
    aliases: Mapping[str, str]
    kinds: Mapping[str, bool]
    dtype: torch.dtype | None = None

    @property
    def reference(self) -> StateDict:
        """The pretrained model, or else the first expert."""
        return next(iter(self.experts.values())) if self.pretrained is None else self.pretrained

    @property
    def layout(self) -> StateDict:
        """The shapes and dtypes of the merged model."""
        layout, owners = layout_of(self.reference), self.selection.owners
        own = {key: layout_of(self.experts[names[0]])[key] for key, names in owners.items()}
        return {key: own[key] if key in own else layout[key] for key in self}

    @property
    def models(self) -> dict[str, StateDict]:
        """All models by name, the reference first."""
        base = {} if self.pretrained is None else {"pretrained": self.pretrained}
        return {**base, **self.experts}

    def __iter__(self) -> Iterator[str]:
        return iter(self.selection.keys)

    def check(self, *, parts: bool = True) -> None:
        """Raise ``ValueError`` for integers or ties that differ, which cannot be merged."""
        models, merged = self.models, self.selection.merged
        check_integers(models, merged, self.aliases.keys(), parts=parts)
        ties = {name: statedict.tied_keys(model) for name, model in models.items()}
        check_ties(models, ties, merged)

    def look_through(self) -> None:
        """Refuse values that are not finite, and warn about models that are unrelated or equal."""
        watch = Watch([*self.experts], pretrained=self.pretrained is not None)
        for key, kind in layout_of(self.reference).items():
            if not is_weight(key, kind):
                continue
            read = partial(self.read, key)
            if key in self.selection.merged and key not in self.aliases:
                watch.add(read)
            else:
                for number in range(len(self.models)):
                    read(number)
        watch.tell()

    def read(self, key: str, number: int) -> Tensor:
        """Return a model's tensor, the base's last; ValueError, naming it, unless it is finite."""
        name = [*self.experts, "pretrained"][number]
        tensor = self.models[name][key]
        if not statedict.is_finite(tensor):
            raise ValueError(not_finite(f"{name}[{key!r}]", tensor))
        return tensor

    def matrices(self, decide: IsMatrix) -> Matrices:
        """Return the predicate of what low-rank methods treat as a matrix in these models."""
        return Matrices(decide, layout_of(self.reference), self.kinds)

    def written(self, tensor: Tensor) -> torch.dtype:
        """Return the dtype of the merged tensor in the place of one of the reference."""
        return self.dtype if self.dtype and tensor.dtype in statedict.FLOATS else tensor.dtype

    def load(self, key: str) -> Group:
        """Return one key's tensors: the experts' and the pretrained model's."""
        if key in self.selection.owners:
            return [self.experts[name][key] for name in self.selection.owners[key]], None
        pretrained = None if self.pretrained is None else self.pretrained[key]
        return [expert[key] for expert in self.experts.values()], pretrained


def compare(
    experts: Mapping[str, StateDict],
    pretrained: StateDict | None,
    parts: Parts | None = None,
    given: Mapping[str, object] | None = None,
    dtype: torch.dtype | None = None,
) -> Source:
    """Compare models, in memory or files, by keys, shapes and dtypes, and return a `Source`.

    The files beside ``given``, the models as the caller gave them, are compared as well. It raises
    what `mergelib.parts.select` and `mergelib.inspection.companions.check_companions` raise.
    """
    models = {**({} if pretrained is None else {"pretrained": pretrained}), **experts}
    for name, model in models.items():
        statedict.check_mapping(model, name)
        if layout_of(model) is model:
            statedict.check_values(name, model)
    reference = next(iter(models.values()))
    aliases = statedict.tied_keys(reference)
    layouts = {name: layout_of(model) for name, model in experts.items()}
    base = None if pretrained is None else layout_of(pretrained)
    selection = select(layouts, base, parts, tied=aliases)
    if parts and parts.nan == "base" and pretrained is not None:
        fill = partial(Filled, base=pretrained, filled=selection.merged)
        experts, pretrained = {n: fill(model) for n, model in experts.items()}, fill(pretrained)
    known = {name: model for name, model in (given or {}).items() if model is not None}
    source = Source(experts, pretrained, selection, aliases, kinds_of(known.values()), dtype)
    if known:
        merged = selection.merged | selection.owners.keys()
        check_companions(known, {**layout_of(reference), **source.layout}, merged, {*source})
    return source


@torch.no_grad()
def merge(
    method: str,
    experts: Models,
    *,
    pretrained: Model | None = None,
    include: Patterns | None = None,
    exclude: Patterns | None = None,
    missing: Missing = "error",
    rename: Mapping[str, str] | None = None,
    nan: Nan = "error",
    device: torch.device | str | None = None,
    dtype: torch.dtype | str | None = None,
    is_matrix: IsMatrix = is_matrix,
    **hyperparameters: Any,
) -> dict[str, Tensor]:
    """Merge experts into one state dict.

    >>> experts = {"digits": {"w": torch.tensor([1.0])}, "letters": {"w": torch.tensor([3.0])}}
    >>> merge("task_arithmetic", experts, pretrained={"w": torch.zeros(1)}, scale=0.5)
    {'w': tensor([2.])}

    Args:
        method: a name from `methods`. A calibration is added to it: ``"ties+svc"``.
        experts: name to model, or a list of models: state dicts, modules, or paths that
            `load_state_dict` reads, among them LoRA adapters. Keys and shapes must agree, except
            where ``include``, ``exclude`` and ``missing`` allow differences; dtypes may differ.
        pretrained: the base model; most methods need it. By default the one that adapters name.
        include: pattern or patterns (`fnmatch`, case-sensitive) of the keys to merge, e.g.
            ``"bert.*"``; all if None. Other keys are copied from the pretrained model (else the
            first expert), unchecked.
        exclude: patterns of keys that are not merged, e.g. ``"*classifier*"``.
        missing: what happens to a selected key that some model lacks or has in another shape:
            ``"error"``, ``"base"`` (the result has the pretrained tensor), ``"skip"`` (the result
            lacks it) or ``"experts"`` (the plain average over the experts that have it, in one
            shape; the pretrained tensor if none has).
        rename: patterns of keys with their new names, such as ``{"module.*": "*"}``; a ``*`` stands
            for any text. Only keys that the pretrained model (else the first expert) lacks are
            renamed, before anything is compared, by one pair after the other.
        nan: what happens to NaN and Inf: ``"error"``, or ``"base"`` (those of an expert are read as
            the pretrained entries; where these are not finite, the result has them unchanged).
        device: where to compute; by default where the tensors are. The result is on the inputs'
            device.
        dtype: ``"float32"``, ``"float16"`` or ``"bfloat16"``, to which floating tensors are rounded
            once; by default each keeps its dtype in the pretrained model (else the first expert).
        is_matrix: predicate (key, reference tensor) of what low-rank methods treat as a matrix; by
            default two-dimensional weights that are not tables, as a module's layers, biases or
            names show. An accepted convolution is folded, one row per filter: see
            `mergelib.is_kernel`.
        **hyperparameters: the method's own, see `methods`. A list has one value per expert. A
            mapping has one per pattern of keys, and the first that matches decides:
            ``{"*mlp*": 0.5, "*": 0.3}``. The pattern ``"over_layers"`` means all numbered layers,
            and has numbers to interpolate from the first layer to the last:
            ``{"over_layers": [0.2, 0.8], "*": 0.5}``.

    Returns:
        A new state dict with the keys of the pretrained model (else the first expert).
        Floating tensors are merged in float32 or the widest input dtype. BatchNorm's running
        statistics are averaged by every method, with its ``weights`` or ``scale`` per expert if
        there are any (negative ones as 0, scaled to sum 1). Integer buffers are copied, and must
        agree unless they are counters. Tied tensors stay tied. No input is changed. Results are
        bit-identical between runs with one number of threads; another number, or another order of
        experts, may change the last bits.

    Raises:
        ValueError: for an unknown method or device; no experts, or experts that do not match;
            adapters and quantised weights; integers or ties that differ; a pattern without a match,
            or nothing to merge; NaN, Inf, or a sparse, nested or meta tensor; a hyperparameter out
            of range, or with another number of values than experts, or with patterns that leave
            out a key or are not used; values too large for ``dtype``; configurations by which equal
            shapes mean different weights; or a renaming that changes nothing or gives two keys one
            name. The message names expert and key.
        TypeError: for a hyperparameter that the method lacks, or an expert that is not a model.
        FileNotFoundError: if a path does not exist.

    Warns:
        UserWarning: about models that are unrelated or equal; possible matrices that a method for
            matrices merges element by element; keys that ``missing="skip"`` leaves out; and other
            disagreements between configurations and vocabularies.
    """
    check_device(device)
    written = as_dtype(dtype)
    chosen, models = get_method(method), statedict.named(experts)
    stamps = stamped([pretrained, *models.values()])
    pretrained = resolve_base(models, pretrained)
    chosen.check(hyperparameters, pretrained=pretrained is not None)
    base = None if pretrained is None else as_state(pretrained)
    parts = Parts(include, exclude, missing, rename, nan)
    states = renamed(as_states(models, base=base), base, rename)
    source = compare(states, base, parts, {"pretrained": pretrained, **models}, written)
    check_all(stamps)
    return dict(merge_tensors(chosen, source, hyperparameters, device=device, matrices=is_matrix))


@torch.no_grad()
def merge_checked(
    method: str,
    experts: Mapping[str, StateDict],
    pretrained: StateDict | None = None,
    is_matrix: IsMatrix = is_matrix,
    **hyperparameters: Any,
) -> dict[str, Tensor]:
    """Run `merge` without checks and warnings, for state dicts that were checked before."""
    how: Any = {"matrices": is_matrix, "quiet": True}
    return dict(
        merge_tensors(get_method(method), compare(experts, pretrained), hyperparameters, **how)
    )


def merge_tensors(
    method: Method,
    source: Source,
    hyperparameters: Mapping[str, Any],
    *,
    device: torch.device | str | None = None,
    matrices: IsMatrix = is_matrix,
    quiet: bool = False,
    shown: bool = False,
) -> Iterator[tuple[str, Tensor]]:
    """Return pairs ``(key, merged tensor)`` for every key of a source, in order.

    Arguments, errors and warnings (none if ``quiet``) are those of `merge`. Hyperparameters are
    compared with the keys at once, tensors are read as the pairs are. Every pass has a progress bar
    if ``shown``.
    """
    layout, options = layout_of(source.reference), {**method.hyperparameters, **hyperparameters}
    keys = [key for key in source if key in source.selection.merged and key not in source.aliases]
    floating = [key for key in keys if layout[key].is_floating_point()]
    at = settings_at(method.annotations, options, floating, layout, len(source.experts))
    if not quiet:
        tell_of_factors(method, at, len(source.experts))
    return _merged(method, source, at, device, matrices, quiet, shown)


def _merged(
    method: Method,
    source: Source,
    at: Mapping[str, dict[str, Any]],
    device: torch.device | str | None,
    matrices: IsMatrix,
    quiet: bool,
    shown: bool,
) -> Iterator[tuple[str, Tensor]]:
    source.check()
    further: Mapping[str, dict[str, Any]] = {}
    if method.prepare is not None:
        label = f"{method.name}, first pass" if shown else ""
        further = method.prepare(lambda: first_pass(source, device, label), at)
    done: dict[str, Tensor] = {}
    tied = set(source.aliases.values())
    watch = Watch([*source.experts], pretrained=source.pretrained is not None)
    predicate = source.matrices(matrices)
    for key in passed(source, method.name if shown else ""):
        if key in source.aliases:
            merged = done[source.aliases[key]]
        elif key in source.selection.merged:
            group = source.load(key)
            arguments = {**at.get(key, {}), **further.get(key, {})}
            merged = _merge_one(method, source, key, group, arguments, device, predicate)
            if isinstance(source.pretrained, Filled):
                merged = source.pretrained.restored(key, merged)
            if merged.is_floating_point() and not quiet:
                tensors = group[0] if group[1] is None else [*group[0], group[1]]
                watch.add(tensors.__getitem__)
                del tensors
                if not predicate.stacked(key, merged):
                    predicate.note(key, merged)
            del group  # so that it is freed before the next load
        elif key in source.selection.owners:
            average = get_method("average")
            merged = _merge_one(average, source, key, source.load(key), {}, device, predicate)
        else:
            merged = copied(key, tensor := source.reference[key], source.written(tensor))
        if key in tied:
            done[key] = merged
        if key == source.selection.keys[-1]:  # not after the loop, which may be left at its end
            watch.tell()
            calibrates = method.then is not None and method.elsewhere is None
            if substitute := method.function if calibrates else method.elsewhere:
                predicate.tell(method.name, f"leaves to {substitute.__name__}")
        yield key, merged
        del merged


def _merge_one(
    method: Method,
    source: Source,
    key: str,
    group: Group,
    arguments: dict[str, Any],
    device: torch.device | str | None,
    matrices: Matrices,
) -> Tensor:
    """Merge one key: average statistics, copy counters, apply the rule to weights, calibrate."""
    experts, pretrained = group
    reference = experts[0] if pretrained is None else pretrained
    if not is_weight(key, reference):
        return reference.clone()
    if method.then is not None and not is_statistic(key):
        plain, wide = replace(method, then=None), replace(source, dtype=precision(*group))
        merged = _merge_one(plain, wide, key, group, arguments, device, matrices)
        method, experts = method.then, [merged, *experts]
    if method.draws:
        arguments = {**arguments, "seed": own_seed(arguments["seed"], key)}
    chosen, target = method, reference.device if device is None else torch.device(device)
    if is_statistic(key):
        chosen, weights, scale = get_method("average"), *map(arguments.get, ("weights", "scale"))
        if weights is None and isinstance(scale, list) and max(scale) > 0:
            weights = scale
        if weights is not None:
            weights = statedict.proportions(per_expert("weights", weights, len(experts)))
        arguments = {"weights": weights}
    by_tensor = chosen.elementwise or chosen.rowwise or chosen.prepare is not None
    whole = by_tensor or not matrices.stacked(key, reference)
    groups = [(experts, pretrained)]
    if not whole:
        bases = [None] * len(reference) if pretrained is None else pretrained
        groups = [(list(parts), base) for *parts, base in zip(*experts, bases, strict=True)]
    name = key if whole else ""  # whose parts are matrices by their shape alone
    applies = chosen.elsewhere is None or matrices(name, groups[0][0][0])

    def apply(out: torch.dtype) -> Tensor:
        merged = [apply_rule(chosen, applies, *each, arguments, target, out) for each in groups]
        return merged[0] if whole else torch.stack(merged)

    dtype = source.written(reference)
    with contextlib.suppress(NotFinite):
        return apply(dtype)
    owners = source.selection.owners.get(key)
    for number, name in enumerate([*source.experts, "pretrained"][: len(source.models)]):
        if owners is None or name in owners:
            source.read(key, number)
    fault = "is not"
    with contextlib.suppress(NotFinite):
        fault = too_large(apply(torch.float64), dtype)
    raise ValueError(f"merging {key!r} overflowed: its inputs are finite, the result {fault}")
