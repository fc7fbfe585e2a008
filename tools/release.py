"""Check that a tag may be released: all files that name the version or its date agree.

`python tools/release.py v0.1.0` prints what disagrees, and fails if anything does. The release
workflow runs it before it builds. Before a release, set the version in `mergelib/version.py`,
`CITATION.cff` and `.zenodo.json`, and the date in `CITATION.cff` and in the heading of
`CHANGELOG.md`, which is `## VERSION (YYYY-MM-DD)`.
"""

import json
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def read(name: str, pattern: str, root: Path = ROOT) -> str:
    """Return the first group of a pattern in a file, or "" where it does not occur."""
    match = re.search(pattern, (root / name).read_text(encoding="utf-8"), re.MULTILINE)
    return match.group(1) if match else ""


def versions(root: Path = ROOT) -> dict[str, str]:
    """Return the version that each file names."""
    return {
        "mergelib/version.py": read("mergelib/version.py", r'^__version__ = "(.*)"$', root),
        "CITATION.cff": read("CITATION.cff", r"^version: (.*)$", root),
        ".zenodo.json": json.loads((root / ".zenodo.json").read_text(encoding="utf-8"))["version"],
        "CHANGELOG.md": read("CHANGELOG.md", r"^## (\S+)", root),
    }


def dates(root: Path = ROOT) -> dict[str, str]:
    """Return the date of the newest version that each file names."""
    return {
        "CITATION.cff": read("CITATION.cff", r"^date-released: (.*)$", root),
        "CHANGELOG.md": read("CHANGELOG.md", r"^## \S+ \((.*)\)$", root),
    }


def disagreements(tag: str, root: Path = ROOT) -> list[str]:
    """Return one sentence for each file that does not fit the tag."""
    wrong = [
        f"{name} has the version {version}, and the tag is {tag}"
        for name, version in versions(root).items()
        if f"v{version}" != tag
    ]
    released = dates(root)
    if not re.fullmatch(r"\d{4}-\d\d-\d\d", released["CHANGELOG.md"]):
        wrong.append(f"CHANGELOG.md has the date {released['CHANGELOG.md']!r} for the new version")
    elif len({*released.values()}) > 1:
        wrong.append(" and ".join(f"{name} has {date}" for name, date in released.items()))
    return wrong


def main() -> int:
    if len(sys.argv) != 2:
        print(__doc__)
        return 2
    wrong = disagreements(sys.argv[1])
    print(*wrong or [f"{sys.argv[1]} may be released"], sep="\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
