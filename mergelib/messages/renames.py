"""Explain keys that differ by a prefix or by the names of an older version."""

import re
from collections import Counter
from collections.abc import Iterable, Sequence

_OLD_WORDS = "'weight' and 'bias' in place of 'gamma' and 'beta'"
_TRIED = 64  # keys that prefixes are taken from
_FEW, _ENOUGH = 4, 0.5  # keys, and a share of them, that have to match


def explain_names(name: str, actual: Iterable[str], what: str, expected: Iterable[str]) -> str:
    """Return how the keys of model ``name`` would match those of ``what``, or an empty text."""
    expected_keys, keys = set(expected), list(actual)
    best, changes = sum(key in expected_keys for key in keys), ""
    for names, words in ((keys, ""), ([_renewed(key) for key in keys], _OLD_WORDS)):
        for old, new in [("", ""), *_prefixes(names, expected_keys)]:
            moved = (new + key[len(old) :] for key in names if key.startswith(old))
            count = len({*moved} & expected_keys)
            if count > best:
                best, changes = count, " and ".join(filter(None, (_words(old, new), words)))
    few = best < max(_FEW, _ENOUGH * min(len(keys), len(expected_keys))) and best < len(keys)
    if not changes or few:
        return ""
    share = f"all {best}" if best == len(keys) else f"{best} of its {len(keys)}"
    return f"; {share} keys of {name} match those of {what} with {changes}: rename them first"


def _renewed(key: str) -> str:
    return re.sub(r"\.gamma$", ".weight", re.sub(r"\.beta$", ".bias", key))


def _words(old: str, new: str) -> str:
    if not old:
        return f"the prefix {new!r}" if new else ""
    return f"{new!r} in place of the prefix {old!r}" if new else f"the prefix {old!r} removed"


def _prefixes(keys: Sequence[str], expected_keys: set[str]) -> list[tuple[str, str]]:
    """Return pairs of prefixes (old, new), the most frequent first."""
    endings: dict[str, str] = {}
    for key in expected_keys:
        parts = key.split(".")
        for i in range(len(parts)):
            endings.setdefault(".".join(parts[i:]), key)
    counts: Counter[tuple[str, str]] = Counter()
    step = -(-len(keys) // _TRIED) or 1
    for key in [key for key in keys[::step] if key not in expected_keys]:
        parts = key.split(".")
        for i in range(len(parts)):
            ending = ".".join(parts[i:])
            if ending in endings:
                old, new = key.removesuffix(ending), endings[ending].removesuffix(ending)
                counts[old, new] += 1
                break
    return [pair for pair, _ in counts.most_common(8)]
