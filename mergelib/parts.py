"""Select which tensors are merged, and what happens to the others.

Only keys, shapes and dtypes are read, so a model may be a state dict or the layout of a
`mergelib.io.Checkpoint`. The *reference* is the pretrained model, or the first expert if there is
none. The merged model has no key that the reference lacks, except with ``missing="experts"``:

* A key that ``include`` and ``exclude`` do not select is copied from the reference, unchecked.
* A selected key that every model has in one shape is merged.
* Any other selected key is an error, or is treated as ``missing`` says.
"""

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from itertools import chain
from typing import Any, Literal, get_args

from mergelib.inspection.layouts import check_layouts
from mergelib.inspection.watch import COUNTERS
from mergelib.messages.brief import Brief
from mergelib.messages.refusals import check_mergeable
from mergelib.messages.renames import explain_names
from mergelib.messages.warned import warn
from mergelib.settings import nearest
from mergelib.statedict import Misfit, StateDict, check_compatible, check_tensor, names_table

Missing = Literal["error", "base", "skip", "experts"]
Nan = Literal["error", "base"]
Patterns = str | Sequence[str]

_HINT = "; where only heads differ, leave them out with exclude="
_TOKENS = "; where vocabularies differ, merge files with tokenizer='base' or tokenizer='union'"
_WIDTHS = "; models of different widths do not come from one: check their paths"
SHOWN = 5  # keys that a message names


@dataclass(frozen=True)
class Parts:
    """Which parts of models are merged; `mergelib.merge` explains the five options.

    Raises:
        ValueError: for another ``missing`` or ``nan``.
        TypeError: if patterns are not text, or ``rename`` does not map patterns to patterns.
    """

    include: Patterns | None = None
    exclude: Patterns | None = None
    missing: Missing = "error"
    rename: Mapping[str, str] | None = None
    nan: Nan = "error"

    def __post_init__(self) -> None:
        for name, kind in (("missing", Missing), ("nan", Nan)):
            if (value := getattr(self, name)) not in get_args(kind):
                names = ", ".join(map(repr, get_args(kind)))
                raise ValueError(f"{name} is {value!r}, expected one of {names}")
        for name in ("include", "exclude"):
            value = getattr(self, name)
            several = isinstance(value, Sequence) and all(isinstance(p, str) for p in value)
            if value is not None and not several:
                raise TypeError(f"{name} is {value!r}, expected a pattern or a list of patterns")
        pairs = self.rename.items() if isinstance(self.rename, Mapping) else [(self.rename, "")]
        if self.rename is not None and not all(map(_is_renaming, pairs)):
            raise TypeError(
                f"rename is {self.rename!r}, expected a mapping of patterns with equally many "
                "stars, such as {'module.*': '*'}"
            )

    def selected(self, keys: Iterable[str]) -> set[str]:
        """Return the keys that are included and not excluded; ValueError for a useless pattern."""
        keys = list(keys)
        included = set(keys) if self.include is None else _matching("include", self.include, keys)
        return included - _matching("exclude", self.exclude or (), keys)


def _is_renaming(pair: tuple[Any, Any]) -> bool:
    texts = all(isinstance(pattern, str) and pattern for pattern in pair)
    return texts and pair[0].count("*") == pair[1].count("*")


ALL = Parts()


@dataclass(frozen=True, repr=False)
class Selection(Brief):
    """The merged model's keys, in the order of the reference, and which of them are merged.

    ``owners`` has the experts of each key that is only averaged over those that have it, or copied.
    """

    keys: tuple[str, ...]
    merged: frozenset[str]
    owners: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


def select(
    experts: Mapping[str, StateDict],
    pretrained: StateDict | None = None,
    parts: Parts | None = None,
    *,
    tied: Mapping[str, str] | None = None,
) -> Selection:
    """Compare models by keys, shapes and dtypes, and return what is merged.

    Floating dtypes may differ; an integer and a floating tensor under one key are always an error.
    Names in ``tied`` are selected together; unless ``missing`` is ``"error"``, an expert may lack
    the further names, as files often do. Without ``parts`` everything must agree, and messages do
    not suggest ``include=``, ``exclude=`` or ``missing=``.

    Raises:
        ValueError: if an expert's key does not fit, a pattern matches nothing, only some names of a
            tied tensor are selected, nothing is left to merge, or adapters or quantised weights are
            selected.
    """
    hint = parts is not None
    parts, tied = parts or ALL, tied or {}
    strict = parts.missing == "error"
    for option in ("missing", "nan"):
        if getattr(parts, option) == "base" and pretrained is None:
            raise ValueError(
                f"{option}='base' takes tensors of the pretrained model: pass pretrained="
            )
    what = "pretrained" if pretrained is not None else next(iter(experts))
    reference = pretrained if pretrained is not None else experts[what]
    for key, tensor in reference.items():
        check_tensor(key, tensor, tensor, what, what)
    if pretrained is not None and "pretrained" in experts:
        raise ValueError(
            "an expert may not be named 'pretrained': that name is reserved for the base model"
        )
    selected = parts.selected(dict.fromkeys(chain(reference, *experts.values())))
    if reference and not selected:
        raise ValueError("nothing to merge: exclude takes every key that include leaves")
    models = {what: reference, **experts}
    integers: dict[str, tuple[str, ...]] = {}
    for key in sorted(key for key in selected if key.rpartition(".")[2] in COUNTERS):
        kinds = {n: getattr(m[key], "dtype", None) for n, m in models.items() if key in m}
        if key in reference and len({*kinds.values()}) > 1:
            whole = (n for n, kind in kinds.items() if not getattr(kind, "is_floating_point", True))
            owner = next(whole, what)
            integers |= {key: (owner,)} if owner != what else {}
            warn(f"{key!r} is copied from {owner}, because its dtype differs between models")
            selected.discard(key)
        elif strict and len(kinds) < len(models):  # versions of a library differ in what they save
            selected.discard(key)
    check_mergeable(models, selected, parts=hint)
    for further, first in tied.items():
        if (further in selected) != (first in selected):
            raise ValueError(
                f"{further!r} is tied to {first!r}: include or exclude both, not one of them"
            )
    renames = {
        name: explain_names(name, _only(selected, expert), what, reference)
        for name, expert in experts.items()
    }
    rename = next(filter(None, renames.values()), "")
    if not rename:
        check_layouts(models, selected, tied, refuse=strict)
    if parts.missing == "base":
        _check_base(selected, experts, reference, rename)
    merged = selected if strict else _agreeing(selected, reference, experts, tied)
    for name, model in experts.items():
        expected = _only(merged if strict else merged & model.keys(), reference)
        try:
            check_compatible(expected, {name: _only(merged, model)}, what, mixed=True)
        except Misfit as error:
            advice = renames[name] or rename
            advice = advice or (_advice(merged, expected, model) if hint else "")
            options = {"tokenizer": "union"} if advice == _TOKENS else {}
            raise Misfit(f"{error}{advice}", **options) from None
    if reference and not merged:
        raise ValueError(f"nothing to merge: no selected key has one shape in all models{rename}")
    if rename:  # and missing= accepts keys that models do not share
        warn(f"only {len(merged)} of {len(selected)} keys are in all models{rename}")
    left_out = selected - merged if parts.missing == "skip" else set()
    if left_out:
        _tell_of_skipped(left_out, len({*chain(*models.values())} & selected))
    owners = _owners(selected - merged, experts, tied) if parts.missing == "experts" else {}
    owners |= integers
    keys = dict.fromkeys(chain((key for key in reference if key not in left_out), owners))
    return Selection(tuple(keys), frozenset(merged), owners)


def _advice(selected: Set[str], expected: StateDict, expert: StateDict) -> str:
    """Return what to do about an expert that does not fit: widths, tokens, or keys to leave out."""
    shared = expected.keys() & expert.keys()
    if 2 * len(shared) < len(expected):
        return (
            f"; only {len(shared)} of {len(expected)} keys are in both, so these are models of "
            "different architectures, which cannot be merged: check the paths"
        )
    shapes = {k: (getattr(expert[k], "shape", (0,)), expected[k].shape) for k in shared}
    tables = [pair for key, pair in shapes.items() if names_table(key)]
    if any(own[1:] != other[1:] for own, other in tables):
        return _WIDTHS
    if any(own != other for own, other in tables):
        return _TOKENS
    differing = {key for key, (own, other) in shapes.items() if own != other}
    differing |= (expected.keys() ^ expert.keys()) & selected
    fitting = {key.rpartition(".")[0] for key in shared - differing}
    modules = {(key.rpartition(".")[0], key) for key in differing}
    patterns = {key if not head or head in fitting else f"{head}.*" for head, key in modules}
    few = len(patterns) <= SHOWN and len(differing) < len(expected)
    return _HINT + (str(sorted(patterns)) if few else "")


def _owners(
    keys: Set[str], experts: Mapping[str, StateDict], tied: Mapping[str, str]
) -> dict[str, tuple[str, ...]]:
    """Return the experts that have each key; Misfit if their shapes differ, or for tied names."""
    owners: dict[str, tuple[str, ...]] = {}
    for key in dict.fromkeys(key for model in experts.values() for key in model if key in keys):
        first, *others = names = [name for name, model in experts.items() if key in model]
        try:
            for name in others:
                check_tensor(key, experts[first][key], experts[name][key], name, first, mixed=True)
            if key in {*tied, *tied.values()}:
                raise Misfit(f"{key!r} is a name of a tied tensor, which not all models share")
        except Misfit as error:
            raise Misfit(f"{error}, so missing='experts' cannot average it{_HINT}") from None
        owners[key] = tuple(names)
    return owners


def _tell_of_skipped(keys: Set[str], total: int) -> None:
    """Warn about keys that the merged model lacks."""
    names = ", ".join(map(repr, sorted(keys)[:SHOWN])) + (", …" if len(keys) > SHOWN else "")
    warn(
        f"missing='skip' leaves {len(keys)} of {total} keys out of the merged model, as some model "
        f"lacks them or has them in another shape ({names}): layers that are loaded without them "
        "are initialised randomly; exclude= keeps the tensors of the pretrained model, else of "
        "the first expert"
    )


def _only(keys: Set[str], model: StateDict) -> StateDict:
    return {key: tensor for key, tensor in model.items() if key in keys}


def _matching(option: str, patterns: Patterns, keys: Sequence[str]) -> set[str]:
    matching: set[str] = set()
    for pattern in [patterns] if isinstance(patterns, str) else patterns:
        matches = {key for key in keys if fnmatchcase(key, pattern)}
        if not matches:
            several = "; several are a list, not one text with commas"
            hint = several if "," in pattern else nearest(pattern, keys)
            raise ValueError(f"{option} pattern {pattern!r} matches no key{hint}")
        matching |= matches
    return matching


def _agreeing(
    selected: Set[str],
    reference: StateDict,
    experts: Mapping[str, StateDict],
    tied: Mapping[str, str],
) -> set[str]:
    """Return the selected keys that every expert has in the reference's shape."""

    def agrees(key: str, expert: StateDict) -> bool:
        if key not in expert:
            return key in tied
        return getattr(expert[key], "shape", None) == reference[key].shape

    unfit = {key for key in reference if not all(agrees(key, e) for e in experts.values())}
    spoilt = {tied.get(key, key) for key in unfit}  # a tensor is merged under all its names or none
    return {key for key in reference if key in selected and tied.get(key, key) not in spoilt}


def _check_base(
    selected: Set[str], experts: Mapping[str, StateDict], pretrained: StateDict, rename: str
) -> None:
    """Refuse ``missing="base"`` if there is no pretrained tensor to take."""
    for name, expert in experts.items():
        for key in (key for key in expert if key in selected and key not in pretrained):
            raise ValueError(
                f"{name} has the extra key {key!r}, which missing='base' cannot take from "
                f"pretrained{rename or ': leave it out with exclude='}"
            )
