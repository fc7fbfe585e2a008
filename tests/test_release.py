"""What a release needs: versions that agree, workflows that can run, an sdist that tests itself."""

import ast
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import xml.etree.ElementTree as ET
import zipfile
from datetime import date
from pathlib import Path
from typing import Any

import pytest
import release
import site_files
import stage
import yaml
from browsing import PAGES

import mergelib
from mergelib.version import __version__

ROOT = Path(__file__).parents[1]
GITHUB = ROOT / ".github"
WORKFLOWS = sorted((GITHUB / "workflows").glob("*.yml"))
COMMUNITY = [
    "SECURITY.md",
    "CODE_OF_CONDUCT.md",
    "CONTRIBUTING.md",
    "CITATION.cff",
    "LICENSE",
    ".zenodo.json",
    ".github/PULL_REQUEST_TEMPLATE.md",
    ".github/dependabot.yml",
    *(f".github/ISSUE_TEMPLATE/{name}.yml" for name in ("bug", "wrong-merge", "book", "config")),
]
PLACEHOLDER = re.compile(
    r"\b(TODO|TBD|FIXME|XXX|OWNER|[Yy]our[-_ ]?(name|org|repo)|[Ll]orem)\b|example\.(com|org)"
    r"|\[(insert|INSERT)|<owner>|github\.com/[\w-]+"
)
REPOSITORY = "Some-One/merging"
ADDRESS = "https://some-one.github.io/merging/"
FRONT = 'myst:\n  html_meta:\n    "description lang=en": >-\n      Said. Twice.'


def load(path: Path) -> Any:
    return yaml.safe_load(path.read_text(encoding="utf-8"))


# Versions


def test_versions_agree() -> None:
    assert {*release.versions().values()} == {__version__}
    citation = load(ROOT / "CITATION.cff")
    assert citation["version"] == __version__
    assert isinstance(citation["date-released"], date)
    zenodo = json.loads((ROOT / ".zenodo.json").read_text(encoding="utf-8"))
    for key in ("title", "keywords", "license"):
        assert zenodo[key] == citation[key]
    assert zenodo["description"] == citation["abstract"]
    assert zenodo["creators"] == citation["authors"]


def copy_of_versions(folder: Path, *, heading: str) -> Path:
    (folder / "mergelib").mkdir()
    for name in release.versions():
        shutil.copy(ROOT / name, folder / name)
    changelog = re.sub(r"^## .*", f"## {heading}", "# Changelog\n\n## x\n", flags=re.MULTILINE)
    (folder / "CHANGELOG.md").write_text(changelog, encoding="utf-8")
    return folder


def test_a_tag_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    day = release.dates()["CITATION.cff"]
    root = copy_of_versions(tmp_path, heading=f"{__version__} ({day})")
    assert release.disagreements(f"v{__version__}", root) == []
    assert len(release.disagreements("v9.9.9", root)) == len(release.versions())
    for wrong in ("1999-01-01", "unreleased"):
        (root / "CHANGELOG.md").write_text(f"## {__version__} ({wrong})\n", encoding="utf-8")
        (message,) = release.disagreements(f"v{__version__}", root)
        assert "CHANGELOG.md has" in message
        assert wrong in message


# Workflows and templates


@pytest.mark.parametrize("name", COMMUNITY)
def test_files_exist_without_placeholders(name: str) -> None:
    text = (ROOT / name).read_text(encoding="utf-8")
    assert text.strip()
    found = PLACEHOLDER.search(text)
    assert found is None, found


def test_forms_ask_for_what_is_needed() -> None:
    required = {
        "bug": {"command", "message", "expected", "versions"},
        "wrong-merge": {"models", "command", "numbers", "versions"},
        "book": {"page", "problem"},
    }
    for name, fields in required.items():
        form = load(GITHUB / "ISSUE_TEMPLATE" / f"{name}.yml")
        assert form["name"]
        assert form["description"]
        inputs = [each for each in form["body"] if each["type"] != "markdown"]
        assert all(each["attributes"]["label"] for each in inputs)
        ids = [each["id"] for each in inputs]
        assert len({*ids}) == len(ids)
        must = {each["id"] for each in inputs if each.get("validations", {}).get("required")}
        assert must == fields


def steps() -> list[tuple[str, dict[str, Any]]]:
    return [
        (f"{file.name}, {job}", step)
        for file in WORKFLOWS
        for job, content in load(file)["jobs"].items()
        for step in content["steps"]
    ]


def test_every_action_is_named_by_its_commit() -> None:
    used = [(where, step["uses"]) for where, step in steps() if "uses" in step]
    assert used
    for where, action in used:
        assert re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40}", action), (where, action)
    texts = "".join(file.read_text(encoding="utf-8") for file in WORKFLOWS)
    commented = re.findall(r"uses: (\S+) # (v\d+\.\d+\.\d+)$", texts, re.MULTILINE)
    assert len(commented) == len(used), "each commit has its version in a comment"
    assert len({*commented}) == len({action for action, _ in commented})


def test_workflows_are_whole() -> None:
    """A job waits for jobs that exist, and a step either uses an action or runs a command."""
    for file in WORKFLOWS:
        workflow = load(file)
        assert workflow["name"] == file.stem
        for job in workflow["jobs"].values():
            assert "runs-on" in job
            needs = job.get("needs", [])
            assert {*([needs] if isinstance(needs, str) else needs)} <= {*workflow["jobs"]}
    for where, step in steps():
        assert ("uses" in step) != ("run" in step), where


def test_nothing_is_published_before_all_tests_have_passed() -> None:
    workflow = load(GITHUB / "workflows" / "release.yml")
    jobs = workflow["jobs"]
    assert workflow["permissions"] == {"contents": "read"}
    matrix = jobs["test"]["strategy"]["matrix"]
    assert {*matrix["system"]} == {"ubuntu", "macos", "windows"}
    assert {*matrix["kind"]} == {"wheel", "sdist"}
    assert {*jobs["publish"]["needs"]} == {"build", "test"}
    assert jobs["publish"]["if"] == "github.event_name == 'push'"
    writers = [name for name, job in jobs.items() if "write" in str(job.get("permissions"))]
    assert writers == ["publish"]
    assert jobs["publish"]["permissions"] == {"id-token": "write"}
    assert "secrets." not in str(jobs)
    assert workflow[True]["push"] == {"tags": ["v[0-9]*"]}  # YAML reads `on` as true


def test_the_tested_versions_of_python_are_those_that_are_claimed() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    named = re.findall(r"Python :: (3\.\d+)", "\n".join(project["classifiers"]))
    workflow = load(GITHUB / "workflows" / "release.yml")
    assert workflow["jobs"]["test"]["strategy"]["matrix"]["python"] == named
    assert project["requires-python"] == f">={named[0]}"
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert f"[![Python {named[0]} or newer]" in readme
    assert f"badge/python-{named[0]}%2B-" in readme
    assert f"[![Licence: {project['license']}]" in readme


# What SECURITY.md says


def test_the_oldest_pytorch_is_the_one_that_is_named() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    (torch,) = [each for each in project["dependencies"] if each.startswith("torch>=")]
    text = (ROOT / "SECURITY.md").read_text(encoding="utf-8")
    assert f"requires PyTorch {torch.removeprefix('torch>=')}," in " ".join(text.split())


def test_the_library_opens_no_connection() -> None:
    """But for the module that fetches models by their names on the hub."""
    network = {
        "socket",
        "ssl",
        "http",
        "urllib",
        "urllib3",
        "requests",
        "httpx",
        "aiohttp",
        "ftplib",
    }
    network |= {"huggingface_hub", "datasets", "torch.hub"}
    folder = Path(mergelib.__file__).parent
    for file in folder.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            names = [each.name for each in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom):
                names = [str(node.module), *(f"{node.module}.{each.name}" for each in node.names)]
            found = {each for n in names for each in {n, n.partition(".")[0]} & network}
            allowed = {"huggingface_hub"} if file == folder / "io" / "hub.py" else set()
            assert found <= allowed, file


def test_no_reader_runs_code() -> None:
    """Of pickles, of arrays, of models and data sets on the hub: every call says so."""
    safe = {
        ("torch", "load"): ("weights_only", True),
        ("np", "load"): ("allow_pickle", False),
    }
    seen: set[tuple[str, str] | str] = set()
    for package in ("mergelib", "mergebook"):
        for file in (ROOT / package).rglob("*.py"):
            for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
                if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
                    continue
                options = {each.arg: ast.unparse(each.value) for each in node.keywords}
                called = ast.unparse(node.func.value), node.func.attr
                if node.func.attr == "from_pretrained":
                    assert options["trust_remote_code"] == "False", file
                    seen.add(node.func.attr)
                elif called in safe:
                    key, value = safe[called]
                    assert options[key] == str(value), file
                    seen.add(called)
    assert seen == {*safe, "from_pretrained"}


# Distributions


BUILD = "import setuptools.build_meta as b, sys; getattr(b, f'build_{sys.argv[1]}')(sys.argv[2])"


def build(kind: str, tree: Path, target: Path, **environment: str) -> Path:
    """Build in a copy of the sources, as `python -m build` does, and return the new file."""
    target.mkdir(exist_ok=True)
    inherited = {key: value for key, value in os.environ.items() if key != "MERGELIB_REPOSITORY"}
    command = [sys.executable, "-c", BUILD, kind, str(target)]
    done = subprocess.run(
        command, cwd=tree, env={**inherited, **environment}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    (made,) = target.glob("*.whl" if kind == "wheel" else "*.tar.gz")
    return made


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The unpacked sdist, built from the files that git knows or would know."""
    pytest.importorskip("setuptools", minversion="77")
    tree, made = tmp_path_factory.mktemp("tree"), tmp_path_factory.mktemp("sdist")
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    names = subprocess.run(command, cwd=ROOT, check=True, capture_output=True).stdout
    for name in filter(None, names.decode().split("\0")):
        if (ROOT / name).is_file():
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, tree / name)
    archive = build("sdist", tree, made / "dist")
    assert archive.name == f"mergelib_book-{__version__}.tar.gz"
    with tarfile.open(archive) as content:
        content.extraction_filter = getattr(tarfile, "data_filter", None)  # since Python 3.11.4
        content.extractall(made)
    return made / archive.name.removesuffix(".tar.gz")


def test_an_sdist_holds_all_that_the_librarys_tests_need(sdist: Path) -> None:
    for folder, suffix in (("mergelib", ".py"), ("tests/library", ".py"), ("results", ".json")):
        expected = {str(file.relative_to(ROOT)) for file in (ROOT / folder).rglob(f"*{suffix}")}
        held = {str(file.relative_to(sdist)) for file in (sdist / folder).rglob(f"*{suffix}")}
        assert held == expected
    for name in ("pyproject.toml", "setup.py", "LICENSE", "README.md", "CONTRIBUTING.md"):
        assert (sdist / name).is_file()
    assert not (sdist / "notebooks").exists()
    assert not [*sdist.glob("tests/test_*.py")], "they need the repository"


def test_an_sdist_tests_the_installed_package(sdist: Path, tmp_path: Path) -> None:
    """As the release workflow does: a wheel from the sdist, and tests beside no package."""
    with zipfile.ZipFile(build("wheel", sdist, tmp_path / "dist")) as wheel:
        wheel.extractall(tmp_path / "site")
    (metadata,) = (tmp_path / "site").glob("*.dist-info/METADATA")
    assert "Project-URL" not in metadata.read_text(encoding="utf-8"), "no owner is made up"
    beside = tmp_path / "source"
    ignored = shutil.ignore_patterns("mergelib", "mergebook", "results", "build", "*.egg-info")
    shutil.copytree(sdist, beside, ignore=ignored)
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "site")}
    code = (
        "import mergelib, mergebook, pytest; print(mergelib.__file__, mergebook.__file__);"
        "pytest.main(['-q', '-p', 'no:xdist', 'tests/library/test_hashing.py'])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=beside, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    files, *_, result = done.stdout.splitlines()
    assert all(file.startswith(str(tmp_path / "site")) for file in files.split())
    assert re.match(r"\d+ passed in", result)


def test_addresses_come_from_the_environment(sdist: Path, tmp_path: Path) -> None:
    wheel = build("wheel", sdist, tmp_path / "dist", MERGELIB_REPOSITORY=REPOSITORY)
    with zipfile.ZipFile(wheel) as content:
        (name,) = [name for name in content.namelist() if name.endswith("/METADATA")]
        metadata = content.read(name).decode()
    urls = dict(re.findall(r"^Project-URL: (\w+), (.*)$", metadata, re.MULTILINE))
    source = f"https://github.com/{REPOSITORY}"
    assert urls["Source"] == source
    assert urls.pop("Documentation") == site_files.site_address(source)
    assert {*urls} == {"Source", "Issues", "Changelog"}
    assert all(url.startswith(source) for url in urls.values())


# Files at the root of the site


def test_addresses_of_sites() -> None:
    assert site_files.site_address(f"https://github.com/{REPOSITORY}") == ADDRESS
    assert (
        site_files.site_address("https://github.com/One/one.github.io") == "https://one.github.io/"
    )
    for unknown in ("", "https://example.net/some/where"):
        assert site_files.site_address(unknown) == ""


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("# A\n\nOne is `x`, at 2.5 %. Two.", "One is `x`, at 2.5 %."),
        ("# A\n\n**Bold and\nbroken.** More.", "Bold and broken."),
        ("# A\n\n* **first point**, and more", "First point."),
        ("# A\n\n[5 minutes to read]{.reading-time} · [b](c)\n\nAn *old* one.", "An old one."),
        ("# A\n\n**Bold.**\n\n**In one sentence:** a [b](c.md) is\nd. E.", "A b is d."),
        ("(at)=\n# A\n\n| x |\n|---|\n\n```python\n1\n```\n\nLast {cite}`a`.", "Last."),
        (f"---\n{FRONT}\n---\n# A\n\nB.", "Said. Twice."),
    ],
)
def test_a_sentence_for_each_page(text: str, sentence: str) -> None:
    assert site_files.sentence_of(text) == sentence
    assert site_files.title_of(text) == "A"


def tree_of_pages(folder: Path) -> Path:
    """Prose pages and committed notebooks, as `tools/stage.py` lays them out."""
    for name in ("book", "notebooks"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("src", "_static"))
    return folder


@pytest.mark.parametrize("repository", ["", f"https://github.com/{REPOSITORY}"])
def test_files_at_the_root_of_the_site(tmp_path: Path, repository: str) -> None:
    address, out = site_files.site_address(repository), tmp_path / "extra"
    title = load(ROOT / "_config.yml")["title"]
    pages = site_files.write_site_files(
        out,
        title=title,
        toc=ROOT / "_toc.yml",
        root=tree_of_pages(tmp_path / "tree"),
        repository=repository,
    )
    assert [page.path for page in pages] == PAGES
    text = (out / "llms.txt").read_text(encoding="utf-8")
    listed = re.findall(r"^- \[(.+?)\]\((\S+?)\): (.+)$", text, re.MULTILINE)
    assert [url for _, url, _ in listed] == [f"{address}{page}.html" for page in PAGES]
    assert text.startswith(f"# {title}\n\n> ")
    for _, _, sentence in listed:
        assert re.match(r"[A-Z`].*[.!?]$", sentence), sentence
        assert not re.search(r"\]\(|\{\w+\}`|\*\*", sentence), sentence
    missing = (out / "404.html").read_text(encoding="utf-8")
    assert f'href="{address or "/"}index.html"' in missing
    robots = (out / "robots.txt").read_text(encoding="utf-8")
    assert ("Sitemap:" in robots) == (out / "sitemap.xml").exists() == bool(address)
    if address:
        urls = ET.parse(out / "sitemap.xml").getroot()
        assert [url[0].text for url in urls] == [f"{address}{page}.html" for page in PAGES]


def test_sphinx_copies_these_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MERGELIB_REPOSITORY", raising=False)
    sphinx = stage.configuration()["sphinx"]["config"]
    assert sphinx["html_extra_path"] == [stage.EXTRA]
    assert "html_baseurl" not in sphinx
    monkeypatch.setenv("MERGELIB_REPOSITORY", REPOSITORY)
    assert stage.configuration()["sphinx"]["config"]["html_baseurl"] == ADDRESS
