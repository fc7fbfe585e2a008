"""Compare two ways of storing one model: fused or separate experts, tied or separate heads."""

import re
from collections.abc import Mapping, Set

from mergelib.inspection.watch import equal
from mergelib.io.names import Renamed
from mergelib.messages.warned import warn
from mergelib.statedict import Misfit, StateDict, is_stack, layout_of, names_table, tied_keys

# Output layers that some models tie to their table of tokens, and files then leave out.
HEAD = re.compile(
    r"(^|\.)(lm_head|embed_out|output|output_layer|proj_out|decoder|generator)\.weight$"
)
_ALONE = re.compile(r"(^|\.)experts\.\d+\.")


class OtherLayout(Misfit):
    """Models that store the same weights in different ways, so that no key may be left out."""


def check_layouts(
    models: Mapping[str, StateDict], selected: Set[str], tied: Mapping[str, str], *, refuse: bool
) -> None:
    """Compare how models with different keys store mixture experts and output heads.

    Experts that are fused in one model and separate in another are refused with ``refuse``, else a
    warning. A head that only some models have is refused if the others tie theirs to a table.
    """
    every = {key for model in models.values() for key in model if key in selected}
    tied_names = {*tied, *tied.values()}
    partly = {
        key for key in every - tied_names if not all(key in model for model in models.values())
    }
    if partly:
        _check_experts(models, partly, refuse)
        for key in sorted(filter(HEAD.search, partly)):
            _check_head(models, key)


def tied_alike(models: Mapping[str, StateDict]) -> dict[str, StateDict]:
    """Return models with equal names of tied tensors, of which some files hold the first name only.

    A further name that the reference lacks is left out, unless a model has another tensor there.
    Then, and if the reference has it, models without it get the tied tensor under this name, too.
    Models in memory are returned as they are: their names say what they tie.
    """
    reference, *others = layouts = [*map(layout_of, models.values())]
    shared = dict.fromkeys(key for key in reference if all(key in other for other in others))
    result = dict(models)
    if not all(getattr(model, "path", None) for model in models.values()):
        return result
    ties = {key: first for model in models.values() for key, first in tied_keys(model).items()}
    apart = {k: None for layout in layouts for k in layout if k not in shared}
    for key in (k for k in apart if k in ties or HEAD.search(k)):
        owners = [layout for layout in layouts if key in layout]
        tables = [ties[key]] if key in ties else filter(names_table, shared)
        fits = (
            k for k in tables if k in shared and all(o[k].shape == o[key].shape for o in owners)
        )
        if (first := next(fits, None)) is None:
            continue
        own = [n for n, m in models.items() if key in m and not equal(m[key], m[first])]
        if own:
            warn(
                f"{key!r} of {own[0]} differs from {first!r}, to which other models tie theirs: "
                "the merged model has both and must not tie them (tie_word_embeddings: false)"
            )
        for name, model in result.items():
            names = {k: k for k in model if k != key}
            if own or key in reference:
                names = {k: k for k in model} | ({} if key in model else {key: first})
            result[name] = Renamed(model, names)
    return result


def _check_experts(models: Mapping[str, StateDict], keys: Set[str], refuse: bool) -> None:
    held = [(name, key) for name, model in models.items() for key in model if key in keys]
    stacks = [(n, k) for n, k in held if "experts" in k and is_stack(k, models[n][k])]
    fused = next(iter(stacks), None)
    alone = next(((name, key) for name, key in held if _ALONE.search(key)), None)
    if fused is None or alone is None:
        return
    text = (
        f"the models hold the experts of a mixture in different layouts: {alone[0]} a tensor for "
        f"each ({alone[1]!r}), {fused[0]} all in one ({fused[1]!r}); bring them to one layout, for "
        "instance by saving all of them in the same way with one version of their library"
    )
    if refuse:
        raise OtherLayout(text)
    warn(f"{text}, as these keys are left unmerged")


def _check_head(models: Mapping[str, StateDict], key: str) -> None:
    """Refuse a head that only some models have, if another model has a table of its shape."""
    owner = next(name for name, model in models.items() if key in model)
    shape = models[owner][key].shape
    for name, model in models.items():
        common = model.keys() & models[owner].keys()  # else it is another architecture
        table = next(
            (k for k in model if k in common and names_table(k) and model[k].shape == shape), None
        )
        if key not in model and table is not None:
            raise OtherLayout(
                f"{name} lacks {key!r}, which {owner} has, and apparently ties it to {table!r}: a "
                "merge would lose a trained head, so give every model a tensor of "
                f"its own under {key!r} (there a clone of {table!r}), and let the merged model's "
                "configuration not tie them (tie_word_embeddings: false)"
            )
