"""The one loop that applies rules.

`merge_tensors` walks the tensors, checks them, computes in float32 at least, keeps dtypes, integer
buffers and ties, and feeds element-wise rules chunks that stay in cache. `merge` drives it over
models in memory and `mergelib.streaming.merge_files` over files, so both agree bit for bit.
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
    """Models to be merged, compared already: in memory, or in files and read as asked for.

    Attributes:
        experts: by name.
        pretrained: the model they were fine-tuned from.
        selection: the keys of the merged model, and which of them are merged.
        aliases: tied key -> the key it shares its memory with.
        kinds: of `mergelib.inspection.kinds.layer_kinds`, where there is a module.
    """

    experts: Mapping[str, StateDict]
    pretrained: StateDict | None
    selection: Selection
    aliases: Mapping[str, str]
    kinds: Mapping[str, bool] = field(default_factory=dict)

    @property
    def names(self) -> list[str]:
        """The experts' names, for messages."""
        return list(self.experts)

    @property
    def reference(self) -> StateDict:
        """The pretrained model, else the first expert."""
        return next(iter(self.experts.values())) if self.pretrained is None else self.pretrained

    @property
    def models(self) -> dict[str, StateDict]:
        """All of them by name, the reference first."""
        base = {} if self.pretrained is None else {"pretrained": self.pretrained}
        return {**base, **self.experts}

    def __iter__(self) -> Iterator[str]:
        return iter(self.selection.keys)

    def check(self, *, parts: bool = True) -> None:
        """Raise ``ValueError`` for integers or ties that differ between models.

        Args:
            parts: whether the caller has an ``exclude=`` to speak of.
        """
        check_agreement(self.models, self.selection.merged, self.aliases, parts=parts)

    def check_companions(
        self, experts: Mapping[str, object], pretrained: object | None = None
    ) -> None:
        """Compare the files beside weights, of models as the caller gave them; errors are theirs.

        See `mergelib.inspection.companions.check_companions`.
        """
        models = experts if pretrained is None else {"pretrained": pretrained, **experts}
        layout = layout_of(self.reference)
        check_companions(models, layout, self.selection.merged, {*self.selection.keys})

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


def check_agreement(
    models: Mapping[str, StateDict],
    merged: Set[str],
    aliases: Mapping[str, str],
    *,
    parts: bool = True,
) -> None:
    """Raise ``ValueError`` where models differ in what cannot be merged; arguments of `Source`."""
    check_integers(models, merged, aliases.keys(), parts=parts)
    check_ties(models, {name: tied_keys(model) for name, model in models.items()}, merged)


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
            table, by the layers of a module, by a bias of their own, or by their names. A
            convolution that is accepted is folded, one row per filter: see
            `mergelib.statedict.is_kernel`.
        **hyperparameters: the method's own, see `methods`.

    Returns:
        A new state dict with the keys and dtypes of the pretrained model (else the first expert).
        Floating tensors are merged (in float32 at least, and in the widest dtype of the inputs),
        running means and variances of BatchNorm are averaged by every method (by ``weights``, where
        a method has them, without those below zero and scaled to sum 1), integer buffers are copied
        and must agree but for counters, and tied tensors stay tied. No input is changed. The bits
        are the same on every run with one number of threads; with another number, or with the
        experts in another order, the last bits of methods that factorise, or that sum over experts,
        may differ.

    Raises:
        ValueError: an unknown method or device; experts that are none or do not match (naming
            expert and key); adapters, whose tensors do not merge, and quantised weights;
            integers that differ and are no counters; names that only some models tie; a pattern
            that matches no key, or nothing left to merge; a NaN or Inf, or a tensor that is sparse,
            nested or without values (naming it); a hyperparameter out of range; folders or modules
            whose configurations say that equal shapes mean different weights (another architecture,
            number of heads, or order of tokens or labels).
        TypeError: a hyperparameter that the method does not have; an expert that is no model.
        FileNotFoundError: a path that does not exist.

    Warns:
        UserWarning: once, of models that have nothing in common, or are one and the same; of what
            a method for matrices leaves to an element-wise rule although it may be made of
            matrices, such as convolutions; of keys that ``missing="skip"`` leaves out; of
            configurations and vocabularies that disagree otherwise.
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
    """`merge` of state dicts that were checked and warned of before, so without a warning."""
    source = in_memory(experts, pretrained)
    return dict(merge_tensors(get_method(method), source, hyperparameters, quiet=True))


def watch_in_memory(source: Source) -> None:
    """Warn of models that are unrelated, or one and the same, where no loop of a rule does."""
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
    """Apply a rule to every tensor of a source; yields ``(key, merged tensor)`` in order.

    The loop behind `merge`; arguments, errors and warnings, which there are none of where
    ``quiet``, are described there.
    """
    source.check()
    options = {**method.hyperparameters, **hyperparameters}
    further: Mapping[str, dict[str, Any]] = {}
    if method.prepare is not None:
        further = method.prepare(lambda: _floating(source, device), **options)
    done: dict[str, Tensor] = {}
    tied = set(source.aliases.values())
    watch = Watch(source.names, pretrained=source.pretrained is not None)
    sorted_out = Matrices(matrices, layout_of(source.reference), source.kinds)
    for key in source:
        if key in source.aliases:
            merged = done[source.aliases[key]]
        elif key in source.selection.merged:
            group = source.load(key)
            arguments = {**options, **further.get(key, {})}
            merged = _merge_one(method, source, key, group, arguments, device, sorted_out)
            if merged.is_floating_point() and not quiet:
                watch.add(*group)
                sorted_out.note(key, merged)
            del group  # else it would outlive the next load
        else:
            merged = source.reference[key].clone()
        if key in tied:
            done[key] = merged
        if key == source.selection.keys[-1]:  # not after the loop, which may be left at its end
            watch.tell()
            if method.elsewhere is not None:
                sorted_out.tell(method.name, f"leaves to {method.elsewhere.__name__}")
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
    """Arguments of `average` for running statistics: the method's own weights, if it has any."""
    weights = arguments.get("weights")
    if weights is None or len(weights) != count or not all(map(is_finite_number, weights)):
        return {} if weights is None else {"weights": weights}  # which `average` refuses
    return {"weights": proportions(weights)}


def is_weight(key: str, tensor: Tensor) -> bool:
    """Whether a tensor is merged, as floating ones are, and not copied, as counters are.

    Raises:
        ValueError: for floating and complex dtypes that methods do not compute with.
    """
    if not (tensor.is_floating_point() or tensor.is_complex()):
        return False
    if tensor.dtype not in FLOATS:
        raise ValueError(
            f"{key!r} has dtype {tensor.dtype}, expected float16, bfloat16, float32 or float64: "
            "dequantise or cast the models first"
        )
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
