"""Studies: one measurement on a zoo, repeated over seeds, with its provenance.

Every file in ``results/`` that tells about a suite is written by `measure_study`. A study is a
function of a zoo that returns tables, lists of rows; the loop over seeds adds the seed to every
row, keeps each seed's part in the cache as soon as it is measured, so that a killed run resumes,
and notes what the numbers were made from. Studies that draw their own networks are functions of
the seed, and `measure_pairs` does the same for them.
"""

import hashlib
import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any

import torch

from mergelib.io import cache_folder
from mergelib.progress import progress
from mergelib.provenance import provenance
from mergelib.studies.cart import (
    baselines,
    compression,
    interference,
    kernels,
    ranks,
    task_counts,
)
from mergelib.studies.cogram import SOURCES, fusion, pair_sources, thresholds, tuning
from mergelib.studies.frank_wolfe import (
    Tables,
    adaptation,
    calibration,
    coefficients,
    concrete,
    granular,
    language,
    procedures,
)
from mergelib.studies.pools import irrelevant, relevant
from mergelib.studies.results import read_result, write_result
from mergelib.testbed.suites import load_suite, usual_model
from mergelib.testbed.training import Recipe, usual_recipe
from mergelib.testbed.zoo import Zoo, load_zoo

Study = Callable[..., Tables]


def measure_study(
    study: Study,
    suite_name: str,
    seeds: Sequence[int],
    *,
    model: str | None = None,
    recipe: Recipe | None = None,
    device: torch.device | str = "cpu",
    settings: Mapping[str, Any] | None = None,
    **options: Any,
) -> dict[str, Any]:
    """A study over several seeds, as a JSON-ready record.

    A seed draws the data splits, the heads' examples, the order of training, and all that methods
    and studies draw.

    Args:
        study: one of this module's functions, or any other of a zoo.
        suite_name: a suite of `load_suite`.
        seeds: what to repeat over.
        model: backbone of the zoo; by default the suite's usual one.
        recipe: how experts are fine-tuned.
        device: where to train and evaluate.
        settings: the study's own keyword arguments.
        **options: further arguments of `load_suite`, e.g. ``profile``.

    Returns:
        The study's tables by name, each row with its ``seed``, and ``provenance``.

    Raises:
        ValueError: an unknown suite or model, or what the study refuses.
    """
    recipe = recipe or usual_recipe(suite_name)
    settings = {**_defaults(study), **(settings or {})}
    tables: Tables = {}
    sources = {}
    for seed in progress(seeds, desc="seeds"):
        suite = load_suite(suite_name, seed=seed, **options)
        zoo = load_zoo(suite, model=model, recipe=recipe, device=device)
        for name, rows in _measure_seed(study, zoo, settings).items():
            tables.setdefault(name, []).extend({"seed": seed, **row} for row in rows)
        sources[str(seed)] = suite.sources
    made = provenance(
        study=study.__name__,
        settings=settings,
        suite=suite_name,
        model=model or usual_model(suite_name),
        seeds=list(seeds),
        recipe=None if suite_name.startswith("clip") else asdict(recipe),
        sources=sources,
        device=device,
    )
    return {"provenance": made, **tables}


def _defaults(study: Study) -> dict[str, Any]:
    parameters = inspect.signature(study).parameters.values()
    return {each.name: each.default for each in parameters if each.default is not each.empty}


def measure_pairs(study: Study, seeds: Sequence[int], source: str) -> dict[str, Any]:
    """A study of pairs of networks over several seeds, as `measure_study` gives it.

    Args:
        study: one of `PAIR_STUDIES`.
        seeds: what to repeat over.
        source: of the pairs' data, see `mergelib.studies.cogram.SOURCES`.

    Raises:
        ValueError: an unknown source, or data that cannot be had.
    """
    if source not in SOURCES:
        raise ValueError(f"unknown source {source!r}; known: {', '.join(SOURCES)}")
    settings = {**_defaults(study), "source": source}
    tables: Tables = {}
    for seed in progress(seeds, desc="seeds"):
        measure = partial(study, seed, **settings)
        for name, rows in _kept(f"{source}-{study.__name__}", [settings, seed], measure).items():
            tables.setdefault(name, []).extend({"seed": seed, **row} for row in rows)
    made = provenance(
        study=study.__name__,
        settings=settings,
        suite=source,
        seeds=list(seeds),
        sources=pair_sources(source),
    )
    return {"provenance": made, **tables}


def _measure_seed(study: Study, zoo: Zoo, settings: Mapping[str, Any]) -> Tables:
    """The study's tables on one zoo; from the cache if they are there."""
    suite = zoo.suite
    sizes = {name: (len(task.validation), len(task.test)) for name, task in suite.tasks.items()}
    inputs = [zoo.fingerprint, settings, suite.seed, suite.sources, sizes]
    return _kept(f"{suite.name}-{study.__name__}", inputs, partial(study, zoo, **settings))


def _kept(name: str, inputs: Sequence[Any], measure: Callable[[], Tables]) -> Tables:
    """What a measurement gives; from the cache if the same was measured by the same code."""
    key = [name, provenance()["commit"], *inputs]
    digest = hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()[:16]
    file = cache_folder() / "studies" / f"{name}-{digest}.json"
    if not file.exists():
        write_result(file, measure())
    kept: Tables = read_result(file)
    return kept


STUDIES: dict[str, Study] = {
    each.__name__: each
    for each in (
        baselines,
        ranks,
        task_counts,
        interference,
        compression,
        kernels,
        adaptation,
        coefficients,
        concrete,
        procedures,
        language,
        calibration,
        granular,
        irrelevant,
        relevant,
    )
}
PAIR_STUDIES: dict[str, Study] = {each.__name__: each for each in (fusion, thresholds, tuning)}
