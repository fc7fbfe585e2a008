"""Checks of SAIL's claims on larger networks: starts compared at all costs but the sources'."""

from collections.abc import Iterator, Sequence
from itertools import product
from typing import get_args

import pandas as pd

from mergebook.ledger.checks import SEED, Check, Role, above, pick
from mergebook.ledger.verdicts import Load
from mergebook.sail.claims import speeds
from mergebook.sail.claims.spirals import maintained
from mergebook.sail.costs import Account
from mergebook.sail.read import arms, factorial
from mergebook.sail.read.reached import bounded

WORDS = {"shared": "shared start", "own": "own starts", "re-basin": "own starts, re-basin"}
GOALS = ("easy", "hard")
HALVES = "ResNet, halves"
LABELS, BYOL = f"{HALVES}, probed", f"{HALVES}, BYOL"  # both judged by a probe
MAIN = {  # sizes by modality
    "GPT": "half wider",
    "ResNet": "deeper",
    **dict.fromkeys((HALVES, BYOL), "half wider"),
}
TABLE = ("scratch", "LiGO", "uniform", "greedy soup")  # the rows of the paper's Table 2
_KEYS = ["modality", "size", "start"]
_PAIR = ("SAIL", "scratch")


def _cells(table: pd.DataFrame) -> Iterator[tuple[str, dict[str, str]]]:
    """In words and as columns: modality, size and start."""
    for names in table[_KEYS].drop_duplicates().itertuples(index=False, name=None):
        modality, size, start = names
        yield f"{modality}, {size}, {WORDS[start]}", dict(zip(_KEYS, names, strict=True))


def _there(table: pd.DataFrame, cell: dict[str, str]) -> set[str]:
    """Arms that were measured in a cell."""
    own = table[(table[list(cell)] == pd.Series(cell)).all(axis=1)]
    return set(own["arm"])


def _main(table: pd.DataFrame, values: Sequence[str], *columns: str) -> pd.DataFrame:
    """Values in the `MAIN` sizes, means over targets for each seed and of further columns."""
    return _means(_of_main_size(table), values, *_KEYS, *columns)


def _of_main_size(table: pd.DataFrame) -> pd.DataFrame:
    """Rows of the `MAIN` sizes; modalities without one, which are controls, are left out."""
    rows: pd.DataFrame = table[table["size"] == table["modality"].map(MAIN)]
    return rows


def _keys_of(table: pd.DataFrame, cell: dict[str, str]) -> tuple[str, ...]:
    """What identifies an arm's rows in a cell: seeds, and targets, a sample, where it has many."""
    own = table[(table[list(cell)] == pd.Series(cell)).all(axis=1)]
    return speeds.TARGETS if own["target"].nunique() > 1 else SEED


def _all(load: Load) -> pd.DataFrame:
    """Starts of texts and of pictures, with labels and without."""
    parts = (arms.starts, arms.pictured, arms.halved, arms.unlabelled)
    return pd.concat([load(part) for part in parts])


def _timed(load: Load) -> pd.DataFrame:
    """Starts where there are goals: of texts, and of pictures with labels and by BYOL."""
    parts = (arms.lasting, arms.pictured, arms.halved, arms.unlabelled_lasting)
    return pd.concat([load(part) for part in parts])


def faster(load: Load) -> list[Check]:
    """S1, of larger networks: log₂ speed-up over scratch; targets are a sample of tasks."""
    table = _timed(load)
    table = _of_main_size(table)
    cases: list[tuple[str, str, Account, Role]] = [
        ("SAIL", "scratch", "A", "primary"),
        ("SAIL", "scratch", "B", "secondary"),
        ("SAIL", "scratch", "C", "secondary"),
        ("SAIL", "scratch, published", "A", "secondary"),
        ("SAIL", "scratch, usual scale", "A", "control"),
        ("SAIL", "random, same scale", "A", "control"),
        ("random, same scale", "scratch", "A", "control"),
        ("nearest source", "scratch", "A", "control"),
    ]
    checks = []
    for (arm, rival, account, role), goal in product(cases, GOALS):
        rows = arms.speed_ups(table, goal, account, arm, rival)
        than = "" if rival == "scratch" else f" than {rival}"
        for words, cell in _cells(rows):
            what = f"{words}: {arm} faster{than}, {goal} goal, account {account}"
            pooled = (goal, cell["start"]) == ("easy", "shared") and cell["modality"] != BYOL
            checks.append(_speed(what, rows, cell, role, cell["modality"] if pooled else ""))
    return checks


def _speed(
    what: str, rows: pd.DataFrame, cell: dict[str, str], role: Role, network: str = ""
) -> Check:
    """`speeds.faster` of a cell, over its targets if it has several."""
    keys = _keys_of(rows, cell)
    return speeds.faster(what, rows, cell, role, keys=keys, network=network)


def together(load: Load) -> list[Check]:
    """S16, of larger networks: loss of the nearest source alone less SAIL's, at equal cost.

    Its speed over that source is told by all accounts: C counts one source there, and here two.
    """
    ends = _of_main_size(_all(load))
    checks = []
    for words, cell in _cells(ends):
        what = f"{words}: lower loss than the nearest source alone, at equal cost"
        checks.append(_final(ends, cell, "SAIL", "nearest source", what, "primary"))
    table = _timed(load)
    for account in get_args(Account):
        found = arms.speed_ups(table, "hard", account, "SAIL", "nearest source")
        rows = _main(found, speeds.VALUES)
        for words, cell in _cells(rows):
            what = f"{words}: faster than the nearest source alone, hard goal, account {account}"
            checks.append(speeds.faster(what, rows, cell, "secondary"))
    return checks


def merged(load: Load) -> list[Check]:
    """S16, of the factorial: loss of one source less that of two by the same maps, equal cost."""
    table = load(factorial.ends)
    pairs = table.loc[table["sources"] == 2, ["modality", "start", "maps"]].drop_duplicates()
    checks = []
    for modality, start, maps in pairs.itertuples(index=False, name=None):
        one, two = (
            pick(table, "B", keys=SEED, modality=modality, maps=maps, sources=count, start=own)
            for count, own in ((1, "shared"), (2, start))
        )
        what = f"{modality}, {WORDS[start]}, maps {maps}: two sources end lower than one"
        checks.append(above(what, one, two, role="secondary", unit="nats"))
    return checks


def better(load: Load) -> list[Check]:
    """S10, of larger networks: accuracy after as many FLOPs as scratch takes in all its steps."""
    checks = []
    cases: list[tuple[pd.DataFrame, str, Role]] = [(_all(load), "", "secondary")]
    for longer in map(load, (arms.longer, arms.lasting, arms.unlabelled_lasting)):
        cases.append((longer, f" of {int(longer['last'].max()):,} steps", "primary"))
    for table, end, role in cases:
        ends = _of_main_size(table)
        for words, cell in _cells(ends):
            keys = _keys_of(ends, cell)
            own, scratch = (pick(ends, "accuracy", keys=keys, arm=arm, **cell) for arm in _PAIR)
            checks += maintained(words, own, scratch, end, role)
    return checks


def labelled(load: Load) -> list[Check]:
    """S11: the gain over scratch with labels less that without; sizes and targets are designed."""
    table = load(arms.unlabelled)
    means = table.groupby(["modality", "arm", "seed", "size", "target"])["loss"].mean()
    gains = [
        means[name, "scratch"].unstack(["size", "target"])
        - means[name, "SAIL"].unstack(["size", "target"])
        for name in (LABELS, BYOL)
    ]
    what = "ResNet, halves: SAIL gains more with labels than without, in loss"
    values = (gains[0] - gains[1]).to_numpy()
    return [Check(what, values, unit="nats", columns="designed")]


def _means(table: pd.DataFrame, values: Sequence[str], *columns: str) -> pd.DataFrame:
    """Of values, over all that is neither a seed nor one of the columns."""
    return table.groupby([*columns, "seed"], sort=False)[[*values]].mean().reset_index()


def fading(load: Load) -> list[Check]:
    """S13: minus the rank correlation of speed-up and distance of data, over targets.

    Targets are the units: means over seeds make the pairs of the correlation that decides. The
    correlation in each seed says how sure the order of these eight targets is.
    """
    table = load(arms.pictured)
    checks = []
    for arm, goal in product(("SAIL", "nearest source"), GOALS):
        rows = arms.speed_ups(table, goal, "A", arm)
        rows = rows[(rows["modality"] == "ResNet") & (rows["start"] == "shared")]
        if rows.empty:  # without that goal
            continue
        pairs = arms.nearness(rows)
        role: Role = "primary" if arm == "SAIL" else "control"
        what = f"ResNet, deeper, shared start: {arm} gains less from farther away, {goal} goal"
        counted = f"bounds on {bounded(rows, 'target').sum()} of {len(pairs)} sets"
        unit = "rank correlation"
        sets = Check(f"{what} ({counted})", pairs.to_numpy(), "correlation", role, unit=unit)
        again: Role = "secondary" if arm == "SAIL" else "control"
        seeds = above(f"{what}, these sets", arms.fading(rows), 0.0, role=again, unit=unit)
        checks += [sets, seeds]
    return checks


def ahead(load: Load) -> list[Check]:
    """S6: final loss of every baseline less that of SAIL; secondary at equal cost, and its speed.

    The paper's table has scratch, LiGO and both soups, after equal training, so that account A
    decides. The greedy soup is the nearest source alone in every seed, and counts once.
    """
    table, ends = load(arms.starts), load(arms.finished)
    checks = []
    for words, cell in _cells(ends):
        for rival in TABLE:
            if {"SAIL", rival} <= _there(ends, cell):
                what = f"{words}: SAIL ends lower than {rival}, after as many steps"
                checks.append(_final(ends, cell, "SAIL", rival, what, "primary"))
    for (words, cell), arm in product([*_cells(table)], ("SAIL", "SAIL, learned")):
        measured = _there(table, cell)
        for rival in arms.BASELINES:
            if {arm, rival} <= measured:
                what = f"{words}: {arm} ends lower than {rival}"
                checks.append(_final(table, cell, arm, rival, what, "secondary"))
    for words, cell in _cells(table):
        if "SAIL" in _there(table, cell):
            best = arms.best_baseline(table, cell)
            what = f"{words}: SAIL ends lower than the best baseline, {best}"
            checks.append(_final(table, cell, "SAIL", best, what, "secondary"))
    for rival, account in product(arms.BASELINES, get_args(Account)):
        rows = arms.speed_ups(table, "late", account, "SAIL", rival)
        for words, cell in _cells(rows):
            what = f"{words}: SAIL faster than {rival}, late goal, account {account}"
            checks.append(speeds.faster(what, rows, cell, "secondary"))
    return checks


def sizes(load: Load) -> list[Check]:
    """S17: log₂ speed-up over scratch at the sizes that S1 does not have, of texts and pictures."""
    table = pd.concat([load(arms.lasting), load(arms.halved)])
    table = table[table["size"] != table["modality"].map(MAIN)]
    cases: list[tuple[str, Account, Role]] = [
        ("scratch", "A", "primary"),
        ("scratch", "B", "secondary"),
        ("scratch", "C", "secondary"),
        ("random, same scale", "A", "control"),
    ]
    checks = []
    for (rival, account, role), goal in product(cases, GOALS):
        rows = arms.speed_ups(table, goal, account, "SAIL", rival)
        than = "" if rival == "scratch" else f" than {rival}"
        for words, cell in _cells(rows):
            what = f"{words}: SAIL faster{than}, {goal} goal, account {account}"
            checks.append(_speed(what, rows, cell, role))
    return checks


def taught(load: Load) -> list[Check]:
    """S19: SAIL with distillation against SAIL: speed, and the loss at equal cost.

    The paper does not say whether the teacher counts, so accounts A and B are primary; C adds the
    same sources to both sides.
    """
    table = load(arms.starts)
    checks = []
    for account in get_args(Account):
        rows = arms.speed_ups(table, "late", account, "SAIL, distilled", "SAIL")
        role: Role = "secondary" if account == "C" else "primary"
        for words, cell in _cells(rows):
            what = f"{words}: faster with distillation, late goal, account {account}"
            checks.append(speeds.faster(what, rows, cell, role))
    for words, cell in _cells(rows):
        what = f"{words}: lower in the end with distillation"
        checks.append(_final(table, cell, "SAIL, distilled", "SAIL", what, "primary"))
    return checks


def _final(
    table: pd.DataFrame,
    cell: dict[str, str],
    arm: str,
    rival: str,
    what: str,
    role: Role,
) -> Check:
    keys = _keys_of(table, cell)
    sides = [pick(table, "loss", keys=keys, arm=name, **cell) for name in (rival, arm)]
    return above(what, *sides, role=role, unit="nats")
