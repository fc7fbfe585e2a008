"""What SAIL's claims on larger networks compare: starts, at all costs but the sources'."""

from collections.abc import Iterator
from functools import partial
from itertools import product
from typing import Any, get_args

import pandas as pd

from mergebook.ledger import Comparison, Load, comparison
from mergebook.ledger.checks import SEED, Role
from mergebook.sail.claims import speeds
from mergebook.sail.claims.spirals import WORDS, maintained
from mergebook.sail.costs import Account
from mergebook.sail.read import arms, factorial
from mergebook.sail.read.reached import bounded

GOALS = ("easy", "hard")
HALVES = "ResNet, halves"
LABELS, BYOL = f"{HALVES}, probed", f"{HALVES}, BYOL"  # both judged by a probe
MAIN = {**dict.fromkeys(("GPT", HALVES, BYOL), "half wider"), "ResNet": "deeper"}  # by modality
TABLE = ("scratch", "LiGO", "uniform", "greedy soup")  # the rows of the paper's Table 2
_KEYS = ["modality", "size", "start"]
ALL = (arms.starts, arms.pictured, arms.halved, arms.unlabelled)  # with labels and without
TIMED = (arms.lasting, arms.pictured, arms.halved, arms.unlabelled_lasting)  # where goals are
Cases = list[tuple[str, str, Account, Role]]


def _cells(table: pd.DataFrame) -> Iterator[tuple[str, dict[str, str], pd.DataFrame]]:
    """Modality, size and start in words and as columns, with the rows that have them."""
    for names, rows in table.groupby(_KEYS, sort=False):
        cell = dict(zip(_KEYS, map(str, names), strict=True))
        yield f"{cell['modality']}, {cell['size']}, {WORDS[cell['start']]}", cell, rows


def _of_main_size(table: pd.DataFrame) -> pd.DataFrame:
    """Rows of the `MAIN` sizes; modalities without one, which are controls, are left out."""
    return table[table["size"] == table["modality"].map(MAIN)]


def _keys_of(rows: pd.DataFrame) -> tuple[str, ...]:
    """What identifies an arm's rows in a cell: seeds, and targets, a sample, where it has many."""
    return speeds.TARGETS if rows["target"].nunique() > 1 else SEED


def _speeds(
    table: pd.DataFrame,
    arm: str,
    rival: str,
    goal: str,
    account: Account,
    says: str,
    *,
    pooled: bool = False,  # whether it counts once per network, from a shared start
    **options: Any,
) -> Iterator[Comparison]:
    """How much faster an arm is than a rival, in each cell in which both have such a goal."""
    for words, cell, rows in _cells(arms.speed_ups(table, goal, account, arm, rival)):
        counts = pooled and cell["start"] == "shared" and cell["modality"] != BYOL
        usual: dict[str, Any] = {"keys": _keys_of(rows), "speed_ups": arms.speed_ups, "by": "arm"}
        usual |= {"result": table.copy, "network": cell["modality"] if counts else ""}
        case: Any = (f"{words}: {says}", arm, rival, goal, account)
        yield speeds.faster(*case, where=cell, about=cell, **usual | options)


def _faster(table: pd.DataFrame, cases: Cases, pooled: str = "") -> Iterator[Comparison]:
    """Every case for both goals; the pooled goal from a shared start counts once per network."""
    for (arm, rival, account, role), goal in product(cases, GOALS):
        says = f"{arm} faster" + ("" if rival == "scratch" else f" than {rival}")
        yield from _speeds(table, arm, rival, goal, account, says, role=role, pooled=goal == pooled)


def faster(load: Load) -> Iterator[Comparison]:
    """S1, of larger networks: log₂ speed-up over scratch; targets are a sample of tasks."""
    cases: Cases = [
        *(("SAIL", "scratch", account, role) for account, role in speeds.ROLES.items()),
        ("SAIL", "scratch, published", "A", "secondary"),
        ("SAIL", "scratch, usual scale", "A", "control"),
        ("SAIL", "random, same scale", "A", "control"),
        ("random, same scale", "scratch", "A", "control"),
        ("nearest source", "scratch", "A", "control"),
    ]
    yield from _faster(_of_main_size(pd.concat(map(load, TIMED))), cases, pooled="easy")


def together(load: Load) -> Iterator[Comparison]:
    """S16, of larger networks: SAIL against the nearest source, in loss at equal cost and speed."""
    for words, cell, rows in _cells(_of_main_size(pd.concat(map(load, ALL)))):
        says = f"{words}: lower loss than the nearest source alone, at equal cost"
        yield _final(rows, cell, says, "primary", "SAIL", "nearest source")
        if arms.SAME_RATE in {*rows["arm"]}:
            says = f"{words}: lower loss than the {arms.SAME_RATE}, at equal cost"
            yield _final(rows, cell, says, "secondary", "SAIL", arms.SAME_RATE)
    says = f"GPT of the paper's size, {WORDS['shared']}: lower loss than the nearest source alone"
    about = {"modality": "GPT", "size": "the paper's", "start": "shared", "metric": "loss"}
    full: dict[str, Any] = {"result": ("tinyshakespeare-arms-full", "curves"), "keys": SEED}
    full |= {"where": {"step": 400}, "by": "arm", "value": "judge", "falling": True, "unit": "nats"}
    yield comparison(says, "SAIL", "nearest source", about=about, role="secondary", **full)
    table = _of_main_size(pd.concat(map(load, TIMED)))
    averaged: dict[str, Any] = {"speed_ups": _over_targets, "keys": SEED, "role": "secondary"}
    for account in get_args(Account):
        pair, says = ("SAIL", "nearest source"), "faster than the nearest source alone"
        yield from _speeds(table, *pair, "hard", account, says, **averaged)


def _over_targets(rows: pd.DataFrame, **options: Any) -> pd.DataFrame:
    """Speed-ups, means over targets for each seed."""
    speed = arms.speed_ups(rows, **options)
    return speed.groupby([*_KEYS, "seed"], sort=False)[[*speeds.VALUES]].mean().reset_index()


def merged(load: Load) -> Iterator[Comparison]:
    """S16, of the factorial: loss of one source less that of two by the same maps, equal cost."""
    table = load(factorial.ends)
    pairs = table.loc[table["sources"] == 2, ["modality", "start", "maps"]].drop_duplicates()
    low: dict[str, Any] = {"keys": SEED, "value": "B", "unit": "nats", "falling": True}
    low |= {"result": factorial.ends, "role": "secondary"}
    for modality, start, maps in pairs.itertuples(index=False, name=None):
        sides = [{"sources": 2, "start": start}, {"sources": 1, "start": "shared"}]
        says = f"{modality}, {WORDS[start]}, maps {maps}: two sources end lower than one"
        where = {"modality": modality, "maps": maps}
        yield comparison(says, *sides, where=where, about=where | {"start": start}, **low)


def better(load: Load) -> Iterator[Comparison]:
    """S10, of larger networks: accuracy after as many FLOPs as scratch takes in all its steps."""
    cases: list[tuple[pd.DataFrame, str, Role]] = [(pd.concat(map(load, ALL)), "", "secondary")]
    for longer in map(load, (arms.longer, arms.lasting, arms.unlabelled_lasting)):
        cases.append((longer, f" of {int(longer['last'].max()):,} steps", "primary"))
    for table, end, role in cases:
        for words, cell, rows in _cells(_of_main_size(table)):
            options: dict[str, Any] = {"result": rows.copy, "by": "arm", "keys": _keys_of(rows)}
            about = cell | {"training": end or "usual"}
            yield from maintained(words, "SAIL", end, role, about=about, **options)


def labelled(load: Load) -> Iterator[Comparison]:
    """S11: the gain over scratch with labels less that without; sizes and targets are designed."""
    table = load(arms.unlabelled)
    table = table.assign(cell=table["size"] + ", " + table["target"])
    means = table.groupby(["modality", "arm", "seed", "cell"])["loss"].mean()
    names = {"labels": LABELS, "BYOL": BYOL}
    gains = {name: means[kind, "scratch"] - means[kind, "SAIL"] for name, kind in names.items()}
    says = "ResNet, halves: SAIL gains more with labels than without, in loss"
    about = {"modality": HALVES, "better": "labels", "worse": "BYOL"}
    both: dict[str, Any] = {"worse": {}, "value": ("labels", "BYOL"), "keys": ("seed", "cell")}
    both |= {"result": pd.DataFrame(gains).reset_index, "unit": "nats", "columns": "designed"}
    yield comparison(says, about=about, **both)


def fading(load: Load) -> Iterator[Comparison]:
    """S13: minus the rank correlation of speed-up and distance of data over targets, the units."""
    table = load(arms.pictured)
    for arm, goal in product(("SAIL", "nearest source", arms.SAME_RATE), GOALS):
        rows = arms.speed_ups(table, goal, "A", arm)
        rows = rows[(rows["modality"] == "ResNet") & (rows["start"] == "shared")]
        if rows.empty:  # without that goal
            continue
        main = arm == "SAIL"
        pairs = arms.nearness(rows)
        says = f"ResNet, deeper, {WORDS['shared']}: {arm} gains less from farther away, {goal} goal"
        about = {"modality": "ResNet", "size": "deeper", "start": "shared", "goal": goal}
        about |= {"better": arm, "per": "target"}
        counted = f"{says} (bounds on {bounded(rows, 'target').sum()} of {len(pairs)} sets)"
        compare = partial(comparison, unit="rank correlation")
        both: dict[str, Any] = {"kind": "correlation", "worse": {}, "value": ("speed", "near")}
        both |= {"role": "primary" if main else "control", "keys": ("target",), "about": about}
        yield compare(counted, result=pairs.reset_index, **both)
        each: dict[str, Any] = {"value": "fall", "role": "secondary" if main else "control"}
        each |= {"result": arms.fading(rows).rename("fall").reset_index, "keys": SEED}
        yield compare(f"{says}, these sets", about=about | {"per": "seed"}, **each)


def ahead(load: Load) -> Iterator[Comparison]:
    """S6: final loss of every baseline less that of SAIL; secondary at equal cost, and its speed.

    Account A decides, as in the paper's table. The greedy soup is the nearest source alone.
    """
    table = load(arms.starts)
    for words, cell, rows in _cells(load(arms.finished)):
        for rival in TABLE:
            if {"SAIL", rival} <= {*rows["arm"]}:
                says = f"{words}: SAIL ends lower than {rival}, after as many steps"
                yield _final(rows, cell, says, "primary", "SAIL", rival, account="A")
    for (words, cell, rows), arm in product([*_cells(table)], ("SAIL", "SAIL, learned")):
        for rival in arms.BASELINES:
            if {arm, rival} <= {*rows["arm"]}:
                says = f"{words}: {arm} ends lower than {rival}"
                yield _final(rows, cell, says, "secondary", arm, rival)
    for words, cell, rows in _cells(table):
        if "SAIL" in {*rows["arm"]}:
            best = arms.best_baseline(rows)
            says = f"{words}: SAIL ends lower than the best baseline, {best}"
            yield _final(rows, cell, says, "secondary", "SAIL", best, worse="best")
    for rival, account in product(arms.BASELINES, get_args(Account)):
        pair, says = ("SAIL", rival, "late", account), f"SAIL faster than {rival}"
        yield from _speeds(table, *pair, says, role="secondary", keys=SEED)


def sizes(load: Load) -> Iterator[Comparison]:
    """S17: log₂ speed-up over scratch at the sizes that S1 does not have, of texts and images."""
    table = pd.concat(map(load, (arms.lasting, arms.halved)))
    cases: Cases = [
        *(("SAIL", "scratch", account, role) for account, role in speeds.ROLES.items()),
        ("SAIL", "random, same scale", "A", "control"),
    ]
    yield from _faster(table[table["size"] != table["modality"].map(MAIN)], cases)


def taught(load: Load) -> Iterator[Comparison]:
    """S19: SAIL with distillation against SAIL, by accounts A and B, as the paper names neither."""
    table, pair = load(arms.starts), ("SAIL, distilled", "SAIL")
    for account in get_args(Account):
        options: dict[str, Any] = {"role": "secondary" if account == "C" else "primary"}
        says = "faster with distillation"
        yield from _speeds(table, *pair, "late", account, says, keys=SEED, **options)
    for words, cell, rows in _cells(table):
        if {*pair} <= {*rows["arm"]}:
            says = f"{words}: lower in the end with distillation"
            yield _final(rows, cell, says, "primary", *pair)


def _final(
    rows: pd.DataFrame, cell: dict[str, str], says: str, role: Role, *pair: str, **about: str
) -> Comparison:
    """The final loss of the second of two arms less that of the first, in a cell's rows."""
    options: dict[str, Any] = {"keys": _keys_of(rows), "role": role, "result": rows.copy}
    options |= {"about": cell | {"metric": "loss"} | about, "by": "arm"}
    return comparison(says, *pair, value="loss", falling=True, **options)
