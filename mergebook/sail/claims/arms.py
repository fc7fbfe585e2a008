"""What SAIL's claims on larger networks compare: starts, at all costs but the sources'."""

from collections.abc import Iterator, Mapping
from functools import partial
from itertools import product
from typing import Any, get_args

import pandas as pd

from mergebook.ledger import Comparison, Load, comparison
from mergebook.ledger.checks import SEED, Role, chosen
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
Cases = list[tuple[str, str, Account, Role]]


def _cells(table: pd.DataFrame) -> Iterator[tuple[str, dict[str, str]]]:
    """In words and as columns: modality, size and start."""
    for names in table[_KEYS].drop_duplicates().itertuples(index=False, name=None):
        modality, size, start = names
        yield f"{modality}, {size}, {WORDS[start]}", dict(zip(_KEYS, names, strict=True))


def _there(table: pd.DataFrame, cell: Mapping[str, str]) -> set[str]:
    """Arms that were measured in a cell."""
    return set(table.loc[chosen(table, cell), "arm"])


def _of_main_size(table: pd.DataFrame) -> pd.DataFrame:
    """Rows of the `MAIN` sizes; modalities without one, which are controls, are left out."""
    rows: pd.DataFrame = table[table["size"] == table["modality"].map(MAIN)]
    return rows


def _keys_of(table: pd.DataFrame, cell: Mapping[str, str]) -> tuple[str, ...]:
    """What identifies an arm's rows in a cell: seeds, and targets, a sample, where it has many."""
    return speeds.TARGETS if table.loc[chosen(table, cell), "target"].nunique() > 1 else SEED


def _all(load: Load) -> pd.DataFrame:
    """Starts of texts and of pictures, with labels and without."""
    parts = (arms.starts, arms.pictured, arms.halved, arms.unlabelled)
    return pd.concat([load(part) for part in parts])


def _timed(load: Load) -> pd.DataFrame:
    """Starts where there are goals: of texts, and of pictures with labels and by BYOL."""
    parts = (arms.lasting, arms.pictured, arms.halved, arms.unlabelled_lasting)
    return pd.concat([load(part) for part in parts])


def _speeds(
    table: pd.DataFrame, goal: str, account: Account, arm: str, rival: str
) -> Iterator[tuple[str, dict[str, str], "partial[Comparison]"]]:
    """Each cell in which both arms have such a goal, in words and as columns; and a comparison."""
    speed_ups = partial(arms.speed_ups, goal=goal, account=account, arm=arm, rival=rival)
    rows = speed_ups(table)
    sides: dict[str, Any] = {"own": arm, "rival": rival, "by": "arm", "goal": goal}
    for words, cell in _cells(rows):
        about = cell | {"goal": goal, "account": account}
        where: dict[str, Any] = {"result": table.copy, "where": cell, "about": about}
        keys: dict[str, Any] = {"keys": _keys_of(rows, cell), "speed_ups": speed_ups}
        yield words, cell, partial(speeds.faster, **sides, **where, **keys)


def _faster(table: pd.DataFrame, cases: Cases, pooled: str = "") -> Iterator[Comparison]:
    """Every case for both goals; the pooled goal from a shared start counts once per network."""
    for (arm, rival, account, role), goal in product(cases, GOALS):
        than = "" if rival == "scratch" else f" than {rival}"
        for words, cell, compare in _speeds(table, goal, account, arm, rival):
            says = f"{words}: {arm} faster{than}, {goal} goal, account {account}"
            counts = (goal, cell["start"]) == (pooled, "shared") and cell["modality"] != BYOL
            yield compare(says, role=role, network=cell["modality"] if counts else "")


def faster(load: Load) -> Iterator[Comparison]:
    """S1, of larger networks: log₂ speed-up over scratch; targets are a sample of tasks."""
    table = _of_main_size(_timed(load))
    cases: Cases = [
        ("SAIL", "scratch", "A", "primary"),
        ("SAIL", "scratch", "B", "secondary"),
        ("SAIL", "scratch", "C", "secondary"),
        ("SAIL", "scratch, published", "A", "secondary"),
        ("SAIL", "scratch, usual scale", "A", "control"),
        ("SAIL", "random, same scale", "A", "control"),
        ("random, same scale", "scratch", "A", "control"),
        ("nearest source", "scratch", "A", "control"),
    ]
    yield from _faster(table, cases, pooled="easy")


def together(load: Load) -> Iterator[Comparison]:
    """S16, of larger networks: loss of the nearest source alone less SAIL's, at equal cost.

    Its speed over that source is told by all accounts: C counts one source there, and here two.
    """
    ends = _of_main_size(_all(load))
    for words, cell in _cells(ends):
        says = f"{words}: lower loss than the nearest source alone, at equal cost"
        yield _final(ends, cell, "SAIL", "nearest source", says, "primary")
    table = _of_main_size(_timed(load))
    for account in get_args(Account):
        for words, _, compare in _speeds(table, "hard", account, "SAIL", "nearest source"):
            says = f"{words}: faster than the nearest source alone, hard goal, account {account}"
            averaged = {"speed_ups": partial(_over_targets, account), "keys": SEED}
            yield compare(says, role="secondary", **averaged)


def _over_targets(account: Account, rows: pd.DataFrame) -> pd.DataFrame:
    """Speed-ups over the nearest source, means over targets for each seed."""
    speed = arms.speed_ups(rows, "hard", account, "SAIL", "nearest source")
    return speed.groupby([*_KEYS, "seed"], sort=False)[[*speeds.VALUES]].mean().reset_index()


def merged(load: Load) -> Iterator[Comparison]:
    """S16, of the factorial: loss of one source less that of two by the same maps, equal cost."""
    table = load(factorial.ends)
    pairs = table.loc[table["sources"] == 2, ["modality", "start", "maps"]].drop_duplicates()
    for modality, start, maps in pairs.itertuples(index=False, name=None):
        sides = [{"sources": 2, "start": start}, {"sources": 1, "start": "shared"}]
        says = f"{modality}, {WORDS[start]}, maps {maps}: two sources end lower than one"
        where = {"modality": modality, "maps": maps}
        options: dict[str, Any] = {"keys": SEED, "value": "B", "unit": "nats", "falling": True}
        options |= {"where": where, "about": where | {"start": start}, "role": "secondary"}
        yield comparison(says, *sides, result=factorial.ends, **options)


def better(load: Load) -> Iterator[Comparison]:
    """S10, of larger networks: accuracy after as many FLOPs as scratch takes in all its steps."""
    cases: list[tuple[pd.DataFrame, str, Role]] = [(_all(load), "", "secondary")]
    for longer in map(load, (arms.longer, arms.lasting, arms.unlabelled_lasting)):
        cases.append((longer, f" of {int(longer['last'].max()):,} steps", "primary"))
    for table, end, role in cases:
        ends = _of_main_size(table)
        for words, cell in _cells(ends):
            options: dict[str, Any] = {"result": ends.copy, "where": cell, "by": "arm"}
            options |= {"keys": _keys_of(ends, cell), "about": cell | {"training": end or "usual"}}
            yield from maintained(words, "SAIL", end, role, **options)


def labelled(load: Load) -> Iterator[Comparison]:
    """S11: the gain over scratch with labels less that without; sizes and targets are designed."""
    table = load(arms.unlabelled)
    table = table.assign(cell=table["size"] + ", " + table["target"])
    means = table.groupby(["modality", "arm", "seed", "cell"])["loss"].mean()
    names = {"labels": LABELS, "BYOL": BYOL}
    gains = {name: means[kind, "scratch"] - means[kind, "SAIL"] for name, kind in names.items()}
    yield comparison(
        "ResNet, halves: SAIL gains more with labels than without, in loss",
        about={"modality": HALVES, "better": "labels", "worse": "BYOL"},
        worse={},
        result=pd.DataFrame(gains).reset_index,
        value=("labels", "BYOL"),
        keys=("seed", "cell"),
        unit="nats",
        columns="designed",
    )


def fading(load: Load) -> Iterator[Comparison]:
    """S13: minus the rank correlation of speed-up and distance of data, over targets.

    Targets are the units: means over seeds make the pairs of the correlation that decides. The
    correlation in each seed says how sure the order of these eight targets is.
    """
    table = load(arms.pictured)
    for arm, goal in product(("SAIL", "nearest source"), GOALS):
        rows = arms.speed_ups(table, goal, "A", arm)
        rows = rows[(rows["modality"] == "ResNet") & (rows["start"] == "shared")]
        if rows.empty:  # without that goal
            continue
        pairs = arms.nearness(rows)
        role: Role = "primary" if arm == "SAIL" else "control"
        says = f"ResNet, deeper, shared start: {arm} gains less from farther away, {goal} goal"
        about = {"modality": "ResNet", "size": "deeper", "start": "shared", "goal": goal}
        about |= {"better": arm, "per": "target"}
        counted = f"bounds on {bounded(rows, 'target').sum()} of {len(pairs)} sets"
        compare = partial(comparison, worse={}, kind="correlation", unit="rank correlation")
        sides: dict[str, Any] = {"value": ("speed", "near"), "keys": ("target",), "role": role}
        yield compare(f"{says} ({counted})", result=pairs.reset_index, about=about, **sides)
        falls = arms.fading(rows).rename("fall").reset_index
        again: dict[str, Any] = {"role": "secondary" if arm == "SAIL" else "control"}
        again |= {"value": "fall", "keys": SEED, "unit": "rank correlation"}
        yield comparison(
            f"{says}, these sets", result=falls, about=about | {"per": "seed"}, **again
        )


def ahead(load: Load) -> Iterator[Comparison]:
    """S6: final loss of every baseline less that of SAIL; secondary at equal cost, and its speed.

    The paper's table has scratch, LiGO and both soups, after equal training, so that account A
    decides. The greedy soup is the nearest source alone in every seed, and counts once.
    """
    table, ends = load(arms.starts), load(arms.finished)
    for words, cell in _cells(ends):
        for rival in TABLE:
            if {"SAIL", rival} <= _there(ends, cell):
                says = f"{words}: SAIL ends lower than {rival}, after as many steps"
                about = {"account": "A"}
                yield _final(ends, cell, "SAIL", rival, says, "primary", **about)
    for (words, cell), arm in product([*_cells(table)], ("SAIL", "SAIL, learned")):
        measured = _there(table, cell)
        for rival in arms.BASELINES:
            if {arm, rival} <= measured:
                says = f"{words}: {arm} ends lower than {rival}"
                yield _final(table, cell, arm, rival, says, "secondary")
    for words, cell in _cells(table):
        if "SAIL" in _there(table, cell):
            best = arms.best_baseline(table, cell)
            says = f"{words}: SAIL ends lower than the best baseline, {best}"
            yield _final(table, cell, "SAIL", best, says, "secondary", worse="best")
    for rival, account in product(arms.BASELINES, get_args(Account)):
        for words, _, compare in _speeds(table, "late", account, "SAIL", rival):
            says = f"{words}: SAIL faster than {rival}, late goal, account {account}"
            yield compare(says, role="secondary", keys=SEED)


def sizes(load: Load) -> Iterator[Comparison]:
    """S17: log₂ speed-up over scratch at the sizes that S1 does not have, of texts and pictures."""
    table = pd.concat([load(arms.lasting), load(arms.halved)])
    table = table[table["size"] != table["modality"].map(MAIN)]
    cases: Cases = [
        ("SAIL", "scratch", "A", "primary"),
        ("SAIL", "scratch", "B", "secondary"),
        ("SAIL", "scratch", "C", "secondary"),
        ("SAIL", "random, same scale", "A", "control"),
    ]
    yield from _faster(table, cases)


def taught(load: Load) -> Iterator[Comparison]:
    """S19: SAIL with distillation against SAIL: speed, and the loss at equal cost.

    The paper does not say whether the teacher counts, so accounts A and B are primary; C adds the
    same sources to both sides.
    """
    table = load(arms.starts)
    cells = []
    for account in get_args(Account):
        role: Role = "secondary" if account == "C" else "primary"
        cells = [*_speeds(table, "late", account, "SAIL, distilled", "SAIL")]
        for words, _, compare in cells:
            says = f"{words}: faster with distillation, late goal, account {account}"
            yield compare(says, role=role, keys=SEED)
    for words, cell, _ in cells:
        says = f"{words}: lower in the end with distillation"
        yield _final(table, cell, "SAIL, distilled", "SAIL", says, "primary")


def _final(
    table: pd.DataFrame,
    cell: dict[str, str],
    arm: str,
    rival: str,
    says: str,
    role: Role,
    **about: str,
) -> Comparison:
    """The final loss of a rival less that of an arm."""
    options: dict[str, Any] = {"keys": _keys_of(table, cell), "where": cell, "role": role}
    options |= {"about": cell | {"metric": "loss"} | about, "by": "arm", "result": table.copy}
    return comparison(says, arm, rival, value="loss", falling=True, **options)
