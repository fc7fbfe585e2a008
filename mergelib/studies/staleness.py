"""Results that other code measured than today's."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mergelib.records.results import read_result
from mergelib.studies.catalogue import get_study


def stale_results(folder: Path) -> dict[str, str]:
    """File name to why its numbers may differ from what its study measures today.

    The hash of code covers everything that a study imports, so most changes leave the numbers as
    they are. Files without a study, such as benchmarks, have no hash and are left out. Hashes of
    another minor version of Python always differ.
    """
    reasons = {}
    for file in sorted(folder.glob("*.json")):
        reason = _reason(read_result(file)["provenance"])
        if reason:
            reasons[file.name] = reason
    return reasons


def _reason(made: Mapping[str, Any]) -> str:
    if "study" not in made:
        return ""
    if made.get("code") is None:
        return "measured before code was recorded"
    try:
        study = get_study(made["study"])
        points = made.get("points") or [{}]
        plans = [study.complete({**made["settings"], **point}) for point in points]
    except ValueError as error:
        return str(error)
    today = [study.code(plan) for plan in plans]
    code = made["code"]
    by_seed = code if isinstance(code, dict) else {"all": code}
    older = [
        seed
        for seed, recorded in by_seed.items()
        if (recorded if isinstance(recorded, list) else [recorded] * len(today)) != today
    ]
    if not older:
        return ""
    seeds = "" if len(older) == len(by_seed) else f" (seeds {', '.join(older)})"
    return f"measured by other code than today's{seeds}"
