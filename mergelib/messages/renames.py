"""Rename keys by patterns, and find the patterns by which the keys of two models match."""

import re
from collections import Counter
from collections.abc import Collection, Iterable, Sequence

_NORM = "*.parametrizations.weight.original"
# Names of older versions, with those of today.
_RENEWED = [("*.gamma", "*.weight"), ("*.beta", "*.bias")]  # of TensorFlow, in old BERTs
_RENEWED += [("*.weight_g", f"{_NORM}0"), ("*.weight_v", f"{_NORM}1")]  # of weight normalisation
_RENEWED += [(new, old) for old, new in _RENEWED]
_TRIED = 64  # keys that prefixes are taken from
_FEW, _ENOUGH = 4, 0.75  # keys, and a share of them, that have to match
_GAIN = 0.1  # the share that a prefix has to add, so that no head is renamed to another


def rename_keys(keys: Sequence[str], old: str, new: str, known: Collection[str]) -> list[str]:
    """Return the keys, of which those that match ``old`` and are not ``known`` become ``new``."""
    pattern = re.compile("(.*?)".join(map(re.escape, old.split("*"))), re.DOTALL)
    first, *others = new.replace("\\", r"\\").split("*")
    template = first + "".join(rf"\g<{i}>{text}" for i, text in enumerate(others, 1))
    matches = (None if key in known else pattern.fullmatch(key) for key in keys)
    return [m.expand(template) if m else key for m, key in zip(matches, keys, strict=True)]


def explain_names(name: str, actual: Iterable[str], what: str, expected: Iterable[str]) -> str:
    """Return the renaming by which the keys of model ``name`` match ``what``, or an empty text."""
    known, keys = dict.fromkeys(expected), list(actual)

    def matching(names: Sequence[str]) -> int:
        return len({*names} & known.keys()) if len({*names}) == len(names) else -1

    names, best, rename = keys, matching(keys), {}
    while best < len(keys):
        pairs = [p for p in [*_prefixes(names, known), *_RENEWED] if p[0] not in rename]
        options = {pair: rename_keys(names, *pair, known) for pair in pairs}
        gains = {pair: matching(option) - best for pair, option in options.items()}
        pair = max(gains, key=gains.__getitem__)
        if gains[pair] < (1 if pair in _RENEWED else max(1, _GAIN * len(keys))):
            break
        names, best = options[pair], best + gains[pair]
        rename[pair[0]] = pair[1]
    few = best < max(_FEW, _ENOUGH * min(len(keys), len(known))) and best < len(keys)
    if not rename or few:
        return ""
    share = f"all {best}" if best == len(keys) else f"{best} of its {len(keys)}"
    return f"; {share} keys of {name} match those of {what} with rename={rename}"


def _prefixes(keys: Sequence[str], known: Collection[str]) -> list[tuple[str, str]]:
    """Return pairs of prefixes (old, new) as patterns, the most frequent first."""
    endings: dict[str, str] = {}
    for key in known:
        parts = key.split(".")
        for i in range(len(parts)):
            endings.setdefault(".".join(parts[i:]), key)
    counts: Counter[tuple[str, str]] = Counter()
    left = [key for key in keys if key not in known]
    for key in left[:: -(-len(left) // _TRIED) or 1]:
        parts = key.split(".")
        for i in range(len(parts)):
            ending = ".".join(parts[i:])
            if ending in endings:
                old, new = key.removesuffix(ending), endings[ending].removesuffix(ending)
                counts[f"{old}*", f"{new}*"] += 1
                break
    return [pair for pair, _ in counts.most_common(8)]
