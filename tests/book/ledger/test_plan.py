"""Results are planned before they are measured, which git's history shows.

`results/plan.toml` has a table for each result: the claims it is for, and what is primary there.
Every result that is new since `BASELINE` must be committed after its entry, and the entry must be
today what it was then.
"""

import subprocess
import tomllib
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[3]
BASELINE = "ae8ccc37123098cff962f74ac80fd8b59bc454dc"  # before it there was no plan
PLAN = "results/plan.toml"
FIELDS = {"claims", "primary", "secondary", "control", "tolerance"}


def git(folder: Path, *arguments: str) -> str:
    command = ["git", "-C", str(folder), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def plan_at(folder: Path, commit: str) -> dict[str, Any]:
    """The plan in a commit; empty where there is none."""
    if not git(folder, "ls-tree", commit, "--", PLAN):
        return {}
    return tomllib.loads(git(folder, "show", f"{commit}:{PLAN}"))


def blobs_at(folder: Path, commit: str) -> dict[str, str]:
    """Path to the hash of the content, for every result in a commit."""
    lines = git(folder, "ls-tree", commit, "--", "results/").splitlines()
    parts = [line.split(maxsplit=3) for line in lines]
    return {path: blob for _, _, blob, path in parts if path.endswith(".json")}


def new_results(folder: Path, baseline: str) -> dict[str, str]:
    """Path to content of today's results whose content, under any name, is not in the baseline."""
    before = {*blobs_at(folder, baseline).values()}
    today = blobs_at(folder, "HEAD")
    return {path: blob for path, blob in today.items() if blob not in before}


def sources(folder: Path, baseline: str) -> dict[str, dict[str, list[str]]]:
    """Path to the commits that brought today's content, each with its parents.

    Such a commit differs there from all of its parents, so that a merge of a branch is none.
    """
    new = new_results(folder, baseline)
    options = ("--full-history", "-m", "--raw", "--no-abbrev", "--no-renames", "--format=%H %P")
    log = git(folder, "log", *options, f"{baseline}..HEAD", "--", "results/")
    differing: Counter[tuple[str, str]] = Counter()
    parents: dict[str, list[str]] = {}
    commit = ""
    for line in filter(None, log.splitlines()):
        if line.startswith(":"):
            left, path = line.split("\t")
            differing[path, commit] += left.split()[3] == new.get(path)
        else:
            commit, *parents[commit] = line.split()
    return {
        path: {
            commit: parents[commit]
            for (changed, commit), count in differing.items()
            if changed == path and count == len(parents[commit])
        }
        for path in new
    }


def unplanned(folder: Path, baseline: str) -> list[str]:
    """What is wrong with the order of plan and results: a sentence for each result."""
    today, found = plan_at(folder, "HEAD"), []
    plans: dict[str, dict[str, Any]] = {}
    for path, commits in sorted(sources(folder, baseline).items()):
        name = Path(path).stem
        if name not in today:
            found.append(f"{name} has no entry in {PLAN}")
            continue
        for commit, parents in commits.items():
            before = [
                plans.setdefault(parent, plan_at(folder, parent)).get(name) for parent in parents
            ]
            if not any(before):
                found.append(f"{name} was committed in {commit[:7]}, but not planned before")
            elif today[name] not in before:
                found.append(f"the entry of {name} was changed after {commit[:7]} brought it")
    return found


def test_results_were_planned_before_they_were_measured() -> None:
    try:
        top = git(ROOT, "rev-parse", "--show-toplevel", "--is-shallow-repository").splitlines()
        git(ROOT, "merge-base", "--is-ancestor", BASELINE, "HEAD")
    except (OSError, subprocess.CalledProcessError):
        pytest.skip(f"this tree has no git history that goes back to {BASELINE[:7]}")
    if top != [str(ROOT.resolve()), "false"]:
        pytest.skip("this tree is a shallow clone, or part of another repository")
    assert not unplanned(ROOT, BASELINE)


def test_every_entry_says_what_it_is_for() -> None:
    for name, entry in tomllib.loads((ROOT / PLAN).read_text()).items():
        assert {"claims", "primary"} <= set(entry) <= FIELDS, name
        assert isinstance(entry["claims"], list), name
        texts = {key: value for key, value in entry.items() if key != "claims"}
        assert all(isinstance(text, str) and text for text in texts.values()), name


class History:
    """A repository of one's own, for the cases below."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "results").mkdir()
        self.git("init", "-q", "-b", "main")
        self.write("old", "0")
        self.baseline = self.commit()

    def git(self, *arguments: str) -> str:
        who = ("-c", "user.name=N", "-c", "user.email=e@example.org", "-c", "commit.gpgsign=false")
        return git(self.folder, *who, *arguments)

    def write(self, name: str, content: str) -> None:
        (self.folder / "results" / f"{name}.json").write_text(content)

    def plan(self, name: str, primary: str = "p") -> None:
        with open(self.folder / PLAN, "a") as file:
            file.write(f'[{name}]\nprimary = "{primary}"\n')

    def commit(self) -> str:
        self.git("add", "-A")
        self.git("commit", "-q", "-m", "A step")
        return self.git("rev-parse", "HEAD").strip()

    def planned(self, name: str, primary: str = "p") -> None:
        self.plan(name, primary)
        self.commit()

    def measured(self, name: str, content: str = "1") -> None:
        self.write(name, content)
        self.commit()

    def branch(self, name: str, start: str) -> None:
        self.git("checkout", "-q", "-b", name, start)

    def merge(self, name: str) -> None:
        self.git("merge", "-q", "--no-ff", "-m", "Merge", name)


def before(made: History) -> None:
    made.planned("new")
    made.measured("new")
    made.measured("new", "2")


def on_a_branch(made: History) -> None:
    made.branch("side", "main")
    before(made)
    made.git("checkout", "-q", "main")
    made.planned("other")
    made.git("mv", "results/old.json", "results/older.json")
    made.commit()
    made.git("merge", "-q", "--no-commit", "-X", "theirs", "--no-ff", "side", "-m", "Merge")
    (made.folder / PLAN).write_text('[new]\nprimary = "p"\n[other]\nprimary = "p"\n')
    made.commit()


def together(made: History) -> None:
    made.plan("new")
    made.measured("new")


def afterwards(made: History) -> None:
    made.measured("new")
    made.planned("new")


def never(made: History) -> None:
    made.measured("old", "1")


def elsewhere(made: History) -> None:
    """Planned on one branch, measured on another that had not seen it."""
    made.branch("side", "main")
    made.planned("new")
    made.git("checkout", "-q", "main")
    made.measured("new")
    made.merge("side")


def in_a_merge(made: History) -> None:
    """Results of two branches put together by hand, without a word in the plan."""
    before(made)
    made.branch("side", "main")
    made.measured("new", "3")
    made.git("checkout", "-q", "main")
    made.planned("other")
    made.git("merge", "-q", "--no-commit", "--no-ff", "side")
    made.plan("late")
    made.measured("late")


def reworded(made: History) -> None:
    before(made)
    (made.folder / PLAN).write_text('[new]\nprimary = "what came out"\n')
    made.commit()


@pytest.mark.parametrize(
    ("happens", "wrong"),
    [
        (before, None),
        (on_a_branch, None),
        (together, "new was committed"),
        (afterwards, "new was committed"),
        (never, "old has no entry"),
        (elsewhere, "new was committed"),
        (in_a_merge, "late was committed"),
        (reworded, "the entry of new was changed"),
    ],
)
def test_the_order_is_seen(
    happens: Callable[[History], None], wrong: str | None, tmp_path: Path
) -> None:
    made = History(tmp_path)
    happens(made)
    found = unplanned(tmp_path, made.baseline)
    assert [text.startswith(str(wrong)) for text in found] == ([True] if wrong else [])
