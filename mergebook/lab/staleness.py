"""Results that other code measured than today's."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mergebook.lab.catalogue import get_study
from mergebook.lab.results import read_result


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
        study.complete(made["settings"])
    except ValueError as error:
        return str(error)
    today = [study.code] * len(made.get("points") or [{}])
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
