"""Checks of SAIL's claims on larger networks: starts compared at all costs but the sources'."""

from collections.abc import Iterator
from itertools import product

import pandas as pd

from mergelib.ledger.checks import Check, Role, above, pick
from mergelib.ledger.verdicts import Load
from mergelib.studies.analysis.sail import arms

WORDS = {"shared": "shared start", "own": "own starts"}
GOALS = ("easy", "hard")
_SEED = ("seed",)


def _cells(table: pd.DataFrame) -> Iterator[tuple[str, dict[str, str]]]:
    """In words and as columns: modality, size and start."""
    keys = ["modality", "size", "start"]
    for names in table[keys].drop_duplicates().itertuples(index=False, name=None):
        modality, size, start = names
        yield f"{modality}, {size}, {WORDS[start]}", dict(zip(keys, names, strict=True))


def _there(table: pd.DataFrame, cell: dict[str, str]) -> set[str]:
    """Arms that were measured in a cell."""
    own = table[(table[list(cell)] == pd.Series(cell)).all(axis=1)]
    return set(own["arm"])


def ahead(load: Load) -> list[Check]:
    """S6: final loss of every baseline less that of SAIL, at equal cost; and its speed."""
    table = load(arms.starts)
    checks = []
    for (words, cell), arm in product([*_cells(table)], ("SAIL", "SAIL, learned")):
        role: Role = "primary" if arm == "SAIL" else "secondary"
        measured = _there(table, cell)
        for rival in arms.BASELINES:
            if {arm, rival} <= measured:
                what = f"{words}: {arm} ends lower than {rival}"
                checks.append(_final(table, cell, arm, rival, what, role))
    for rival in arms.BASELINES:
        rows = arms.speed_ups(table, "late", "B", "SAIL", rival)
        for words, cell in _cells(rows):
            what = f"{words}: SAIL faster than {rival}, late goal"
            checks.append(_speed(what, rows, cell, "secondary"))
    return checks


def sizes(load: Load) -> list[Check]:
    """S17: log₂ speed-up over scratch at every size of the target."""
    table = load(arms.starts)
    checks = []
    for goal in GOALS:
        rows = arms.speed_ups(table, goal, "B", "SAIL")
        for words, cell in _cells(rows):
            checks.append(_speed(f"{words}: SAIL faster, {goal} goal", rows, cell, "primary"))
    return checks


def taught(load: Load) -> list[Check]:
    """S19: log₂ speed-up of SAIL with distillation over SAIL, the teacher's passes counted."""
    table = load(arms.starts)
    rows = arms.speed_ups(table, "late", "B", "SAIL, distilled", "SAIL")
    checks = []
    for words, cell in _cells(rows):
        what = f"{words}: faster with distillation, late goal"
        checks.append(_speed(what, rows, cell, "primary"))
        what = f"{words}: lower in the end with distillation"
        checks.append(_final(table, cell, "SAIL, distilled", "SAIL", what))
    return checks


def _speed(what: str, rows: pd.DataFrame, cell: dict[str, str], role: Role) -> Check:
    values = pick(rows, "speed", keys=_SEED, **cell)
    return above(what, values, 0.0, role=role, unit="log₂ ratio")


def _final(
    table: pd.DataFrame,
    cell: dict[str, str],
    arm: str,
    rival: str,
    what: str,
    role: Role = "secondary",
) -> Check:
    sides = [pick(table, "loss", keys=_SEED, arm=name, **cell) for name in (rival, arm)]
    return above(what, *sides, role=role, unit="nats")
