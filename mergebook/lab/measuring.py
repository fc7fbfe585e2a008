"""A study over several seeds and points of its settings, as one record with its provenance."""

import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from mergebook.lab import sweep
from mergebook.lab.results import Tables
from mergebook.lab.runner import REGISTERED, Run, Study, beginning_of, zoo_of
from mergebook.suites.families import family_of
from mergebook.suites.training import Recipe
from mergelib.hashing import plain
from mergelib.io import cache_folder


@dataclass(frozen=True)
class Measurement:
    """What is measured: a study on a suite, with every seed at every point of its settings."""

    study: Study | Callable[..., Tables]  # a registered one, or any function of a zoo
    suite: str  # a name of `load_suite`, or a source of pairs
    seeds: Sequence[int]
    model: str | None = None  # backbone of the zoo; by default the suite's usual one
    recipe: Recipe | None = None  # how experts are fine-tuned; by default as usual for the suite
    options: Mapping[str, Any] = field(default_factory=dict)  # of `load_suite`, e.g. ``profile``
    settings: Mapping[str, Any] = field(default_factory=dict)  # the study's own
    # Further settings, each a run of its own with every seed. Its rows have to say at which.
    points: Sequence[Mapping[str, Any]] = ({},)

    def runs(self, device: str = "cpu") -> list[Run]:
        """Its runs, seed by seed; ValueError for a suite, model or setting that is unknown."""
        study, model, recipe = self.study, self.model, self.recipe
        if not isinstance(study, Study):
            known = REGISTERED.get(study.__name__)
            study = known if known is not None and known.function is study else Study(study)
        plans = [study.complete({**self.settings, **point}) for point in self.points]
        if study.load in (zoo_of, beginning_of):
            family = family_of(self.suite)
            model, recipe = model or family.model, recipe or family.recipe
        return [
            Run(study, self.suite, seed, model, recipe, self.options, plan, device, study.code)
            for seed in self.seeds
            for plan in plans
        ]


def measure(plan: Measurement, *, device: str = "cpu", jobs: int = 1) -> dict[str, Any]:
    """The study's tables and ``provenance``; if a run fails, the others are measured first."""
    runs, folder = plan.runs(device), cache_folder() / "studies"
    outcomes = sweep.map(runs, folder=folder, jobs=jobs)
    failures = [outcome.error for outcome in outcomes if outcome.error is not None]
    if failures:
        failures[0].add_note(f"{len(failures)} of {len(runs)} runs failed: see *.txt in {folder}")
        raise failures[0]
    return _assembled(runs, [outcome.record or {} for outcome in outcomes])


def _assembled(runs: Sequence[Run], records: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """One record of all runs: what is the same for all is said once, the rest by seed and point."""
    first = runs[0]
    settings = [plain(run.settings) for run in runs if run.seed == first.seed]
    varying = {n for n, value in settings[0].items() if any(each[n] != value for each in settings)}
    points = [{n: value for n, value in each.items() if n in varying} for each in settings]
    program = Path(sys.argv[0]).name.replace("__main__.py", "mergebook")  # of python -m mergebook
    common = {
        "study": first.study.name,
        "command": shlex.join([program, *sys.argv[1:]]),
        "settings": {n: value for n, value in settings[0].items() if n not in varying},
        **({"points": points} if len(points) > 1 else {}),
        "suite": first.suite,
        "model": first.model,
        "seeds": list(dict.fromkeys(run.seed for run in runs)),
        "recipe": None if first.recipe is None else asdict(first.recipe),
    }
    parts: dict[str, list[dict[str, Any]]] = {}
    for run, record in zip(runs, records, strict=True):
        parts.setdefault(str(run.seed), []).append(record["provenance"])
    made: dict[str, dict[str, Any]] = {}
    for seed, group in parts.items():
        values = {name: [part[name] for part in group] for name in group[0]}
        made[seed] = {n: v[0] if all(each == v[0] for each in v) else v for n, v in values.items()}
    names = dict.fromkeys(name for record in records for name in record if name != "provenance")
    tables = {name: [row for part in records for row in part.get(name, ())] for name in names}
    return {"provenance": {**common, **_said_once(made)}, **tables}


def _said_once(made: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """What stands behind each seed, once where it is the same for all, else by seed."""
    first = next(iter(made.values()))
    by_seed = {name: {seed: part.get(name) for seed, part in made.items()} for name in first}
    return {
        name: values
        if name in ("sources", "zoo") or any(value != first[name] for value in values.values())
        else first[name]
        for name, values in by_seed.items()
    }
