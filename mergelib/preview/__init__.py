"""Report what a merge would do and refuse, before anything is merged.

Verdicts are those of the checks that `mergelib.merging` runs: the report holds their messages. The
tables add what a message leaves out, because it stops at the first tensor that does not fit.
"""

import json
import os
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from mergelib.inspection.companions import module_weights
from mergelib.inspection.layouts import tied_alike
from mergelib.inspection.tokens import choose_files, match_vocabularies
from mergelib.io import Model, Models, WithAdapter, as_state, as_states, renamed, resolve_base
from mergelib.merging import Source, compare
from mergelib.messages.brief import Brief, as_bytes
from mergelib.messages.warned import advised
from mergelib.parts import Missing, Nan, Parts, Patterns, Selection
from mergelib.preview.fates import attempt, fates_of, patterns_of, table_of
from mergelib.preview.numbers import Numbers
from mergelib.preview.suggesting import command_for, costs_of, listed, suggest
from mergelib.progress import progress
from mergelib.statedict import Misfit, StateDict, is_statistic, named

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, repr=False)
class Inspection(Brief):
    """What a merge would do; ``print`` shows all of it.

    Attributes:
        tensors: a row for each fate and reason: how many tensors, their bytes, and one key.
        models: a row for each model: its size, the norm of its task vector, that norm relative to
            the pretrained model, and the mean cosine and sign agreement with the other task
            vectors. Without a pretrained model these are norms and cosines of the weights.
        layers: the norms per layer, one column for each expert, if asked for.
        refusals: the errors with which a merge would stop, the first one first.
        warnings: what a merge would warn about.
        bytes_to_read: by the command below.
        memory: bytes, at most, of the tensors that the command holds at once.
        command: a command to run next; empty if none would succeed.
        reason: for the command, or for its absence.
    """

    tensors: "pd.DataFrame"
    models: "pd.DataFrame"
    layers: "pd.DataFrame | None"
    refusals: tuple[str, ...]
    warnings: tuple[str, ...]
    bytes_to_read: int
    memory: int
    command: str
    reason: str

    def __str__(self) -> str:
        style: dict[str, Any] = {"na_rep": "", "float_format": "{:.3g}".format}
        style["formatters"] = {"bytes": as_bytes}
        texts = {name: _padded(self.tensors[name]) for name in ("fate", "reason", "first key")}
        tables = [self.tensors.assign(**texts).to_string(index=False, justify="left", **style)]
        tables.append(self.models.to_string(**style))
        if self.layers is not None:
            tables.append(self.layers.to_string(**style))
        lines = [f"refused: {text}" for text in self.refusals]
        lines += [f"warning: {text}" for text in self.warnings]
        lines.append(f"reads {as_bytes(self.bytes_to_read)}, holds {as_bytes(self.memory)} at most")
        lines.append(f"next: {self.command or 'nothing yet'}\n      {self.reason}")
        return "\n\n".join([*tables, "\n".join(lines)])

    def to_json(self) -> str:
        """Return the report as a JSON object."""
        tables = {"tensors": self.tensors, "models": self.models.reset_index()}
        if self.layers is not None:
            tables["layers"] = self.layers.reset_index()
        content = {k: json.loads(t.to_json(orient="records")) for k, t in tables.items()}
        names = ("refusals", "warnings", "bytes_to_read", "memory", "command", "reason")
        return json.dumps(content | {name: getattr(self, name) for name in names}, indent=2)


def _padded(texts: "pd.Series") -> "pd.Series":
    return texts.str.ljust(int(texts.str.len().max()))


@torch.no_grad()
def inspect(
    experts: Models,
    *,
    pretrained: Model | None = None,
    include: Patterns | None = None,
    exclude: Patterns | None = None,
    missing: Missing = "error",
    rename: Mapping[str, str] | None = None,
    nan: Nan = "error",
    tokenizer: str | None = None,
    chat_template: str | None = None,
    layers: bool = False,
) -> Inspection:
    """Report what a merge of these models would do and refuse, and suggest the next command.

    Files are read tensor by tensor, once. Nothing is written.

    >>> base = {"body": torch.zeros(2, 2), "head": torch.zeros(3)}
    >>> experts = [{"body": torch.eye(2), "head": torch.ones(3)}, {"body": torch.ones(2, 2)}]
    >>> report = inspect(experts, pretrained=base)
    >>> report.refusals[0].split(";")[0]
    "expert 1 lacks key 'head' compared with pretrained"
    >>> report.models["norm"].round(2).tolist()  # of the pretrained model, and of task vectors
    [0.0, 1.41, 2.0]

    Args:
        experts: as in `mergelib.merge`, like the next six options.
        pretrained: the base model; by default the one that adapters name.
        include: patterns of keys to merge.
        exclude: patterns of keys not to merge.
        missing: what happens to keys that models do not share.
        rename: patterns of experts' keys with their new names.
        nan: what happens to NaN and Inf.
        tokenizer: whose vocabulary the result has, as in `mergelib.merge_files`, like the next.
        chat_template: whose chat template and end token the result has.
        layers: whether to report norms per layer.

    Raises:
        FileNotFoundError: if a path does not exist.
        ValueError: if an input cannot be read or renamed at all, or there is none.
        TypeError: if an input is not a model.
    """
    given = named(experts)
    pretrained = resolve_base(given, pretrained)
    base = None if pretrained is None else as_state(pretrained, lazy=True)
    parts = Parts(include, exclude, missing, rename, nan)
    states = renamed(as_states(given, lazy=True, base=base), base, rename)
    known = given if pretrained is None else {"pretrained": pretrained, **given}
    refusals: list[ValueError] = []
    left: list[ValueError] = []  # those that remain if the patterns are excluded
    patterns: list[str] = []
    with warnings.catch_warnings(record=True) as notes:
        warnings.simplefilter("always")
        models: Mapping[str, StateDict]
        models = tied_alike(states if base is None else {"pretrained": base, **states})
        paths = {str(m): n for n, m in given.items() if isinstance(m, str | os.PathLike)}
        names, opened, vocabulary = {**paths, **{n: n for n in models}}, models, tokenizer
        union = partial(match_vocabularies, opened, names, "union")
        matching = attempt(lambda: match_vocabularies(opened, names, tokenizer), left)
        models = models if matching is None else matching[0]
        checked = dict[str, object](models if tokenizer else known)
        source = None if left else attempt(lambda: compare(*_apart(models), parts, checked), left)
        if not tokenizer and "tokenizer" in advised(left) and (united := attempt(union, [])):
            refusals, left, matching, vocabulary = left, [], united, "union"
            models, checked = united[0], {**united[0]}
            source = attempt(lambda: compare(*_apart(models), parts, checked), left)
        rows = fates_of(models, parts, source)
        some = any(row.fate in ("merged", "averaged") for row in rows)
        if source is None and some and type(left[0]) is Misfit and (patterns := patterns_of(rows)):
            refusals, left = refusals + left, []
            parts = replace(parts, exclude=[*listed(exclude), *patterns])
            source = attempt(lambda: compare(*_apart(models), parts, checked), left)
        if source is None or matching is None:
            shared = tuple(row.key for row in rows if row.fate in ("merged", "averaged"))
            source = Source(*_apart(models), Selection(shared, frozenset(shared)), {}, {})
        else:
            attempt(source.check, left)
            attempt(lambda: module_weights(opened), left)
            files = (opened, source.selection.owners, matching, names, chat_template)
            attempt(lambda: choose_files(*files), left)
        numbers = Numbers(source)
        for key in progress(source.selection.keys, "inspect"):
            attempt(partial(numbers.add, key), left)
        numbers.watch.tell()
    method, reason = suggest(source, numbers, left)
    options, chat = advised(note.message for note in notes), chat_template
    if not vocabulary and "tokenizer" in options and (united := attempt(union, [])):
        matching, vocabulary = united, "union"
    if matching is not None and not chat and "chat_template" in options:
        proposed = (opened, source.selection.owners, matching, names, "experts")
        chat = "experts" if attempt(lambda: choose_files(*proposed), []) else None
    further = {"tokenizer": vocabulary, "chat-template": chat}
    if method and patterns:
        owner = next(iter(models))
        reason += f"; {', '.join(patterns)} differ, so the result has those of {owner}, if any"
        if "tokenizer" in advised(refusals) and not vocabulary:
            reason += ": pass tokenizer='union' instead of excluding tables with other tokens"
    if method and vocabulary == "union":
        reason += "; tokens that only some models have get rows of their own"
    if method and all(isinstance(state, WithAdapter) for state in states.values()):
        reason += "; mergelib merge-adapters writes an adapter instead of a model"
    if method and any(map(is_statistic, source.selection.merged)):
        reason += "; measure BatchNorm's statistics again afterwards (ml.recalibrate_batchnorm)"
    return Inspection(
        table_of(rows),
        numbers.table(known),
        numbers.layers() if layers else None,
        tuple(dict.fromkeys(map(str, refusals + left))),
        tuple(dict.fromkeys(str(note.message) for note in notes)),
        *costs_of(method or "average", source),
        command_for(method, given, pretrained, parts, source, further) if method else "",
        reason,
    )


def _apart(models: Mapping[str, StateDict]) -> tuple[dict[str, StateDict], StateDict | None]:
    """Return the experts, and the base if there is one."""
    experts = {name: model for name, model in models.items() if name != "pretrained"}
    return experts, models.get("pretrained")
