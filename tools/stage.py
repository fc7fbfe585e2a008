"""Lay out the sources of the site in `_build/stage`, so that a build never touches the work tree.

Taken are the prose pages, completed by `reference.py`, the notebooks as freshly executed in
`_build/executed`, a local copy of MathJax, the two configuration files, and files for the root of
the site (`site_files`). Every page gets its time to read (`reading`). The repository's address is
known only at publication: it comes from `MERGELIB_REPOSITORY` (`owner/name`, or a full address) and
`MERGELIB_BRANCH`. Without it the book has no launch buttons. `--address SOURCE` writes what pip
installs into the first cell of every notebook instead; the publishing workflow does so on the
branch that Colab opens.
"""

import argparse
import importlib.util
import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import yaml
from reading import LOOKED_UP, write_head
from site_files import contents, find_page, site_address, write_site_files

ROOT = Path(__file__).resolve().parents[1]
EXECUTED = ROOT / "_build" / "executed"
STAGE = ROOT / "_build" / "stage"

LAUNCH_BUTTONS = {
    "colab_url": "https://colab.research.google.com",
    "binderhub_url": "https://mybinder.org",
    "notebook_interface": "jupyterlab",
}
# What the pages load, out of everything that MathJax ships.
MATHJAX = (
    *("startup.js", "core.js", "input/tex.js", "input/tex/extensions"),
    *("output/chtml.js", "output/chtml/fonts", "a11y/assistive-mml.js"),
)
GITHUB = "https://github.com/"
NO_ADDRESS = 'SOURCE = ""'
EXTRA = "extra"  # the folder whose files go to the root of the site


def configuration() -> dict[str, Any]:
    """`_config.yml`, with the repository and its buttons if the environment names one."""
    config: dict[str, Any] = yaml.safe_load((ROOT / "_config.yml").read_text())
    for name, folder in config["sphinx"]["local_extensions"].items():
        config["sphinx"]["local_extensions"][name] = str(ROOT / folder)
    address = repository()
    config["sphinx"]["config"]["html_extra_path"] = [EXTRA]
    if site_address(address):
        config["sphinx"]["config"]["html_baseurl"] = site_address(address)
    if address:
        config["sphinx"]["config"]["html_theme_options"] |= {
            "repository_url": address,
            "repository_branch": branch(),
            "use_repository_button": True,
            "launch_buttons": LAUNCH_BUTTONS,
        }
    return config


def repository() -> str:
    """The repository's address, or "" before it is known."""
    name = os.environ.get("MERGELIB_REPOSITORY", "").strip("/")
    return name if not name or "://" in name else GITHUB + name


def branch() -> str:
    """The branch that Colab and Binder open."""
    return os.environ.get("MERGELIB_BRANCH", "published")


def write_heads(root: Path, toc: Path, name: str) -> None:
    """Put a line below the title of every page: minutes to read, and a link to Colab.

    ``name`` is the repository's on GitHub, or "", which leaves the link out.
    """
    address = f"{LAUNCH_BUTTONS['colab_url']}/github/{name}/blob/{branch()}"
    for _, path in contents(yaml.safe_load(toc.read_text(encoding="utf-8"))):
        file = find_page(root, path)
        colab = bool(name) and file.suffix == ".ipynb"
        links = [f"[Open this page in Colab]({address}/{path}.ipynb)"] if colab else []
        write_head(file, *links, timed=path not in LOOKED_UP)


def copy_mathjax(target: Path) -> None:
    """MathJax from its Python package: the book needs no network, neither built nor read."""
    spec = importlib.util.find_spec("sphinx-mathjax-offline")
    if spec is None or spec.origin is None:
        raise SystemExit("MathJax is missing: pip install sphinx-mathjax-offline")
    source = Path(spec.origin).parent / "static" / "mathjax"
    for name in MATHJAX:
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        if (source / name).is_dir():
            shutil.copytree(source / name, target / name)
        else:
            shutil.copy2(source / name, target / name)


def stage() -> None:
    """Write `_build/stage` from nothing."""
    from reference import fill_pages  # which imports the packages; `--address` needs none

    missing = {path.stem for path in (ROOT / "notebooks" / "src").glob("*.py")}
    missing -= {path.stem for path in EXECUTED.glob("*.ipynb")}
    if missing:
        raise SystemExit(f"not executed yet: {', '.join(sorted(missing))}; run tools/execute.py")
    shutil.rmtree(STAGE, ignore_errors=True)
    shutil.copytree(ROOT / "book", STAGE / "book")
    fill_pages(STAGE / "book")
    shutil.copytree(EXECUTED, STAGE / "notebooks")
    title = configuration()["title"]
    write_site_files(
        STAGE / EXTRA, title=title, toc=ROOT / "_toc.yml", root=STAGE, repository=repository()
    )
    on_github = repository().startswith(GITHUB)
    name = repository().removeprefix(GITHUB) if on_github else ""
    write_heads(STAGE, ROOT / "_toc.yml", name)
    copy_mathjax(STAGE / "book" / "_static" / "mathjax")
    shutil.copy2(ROOT / "_toc.yml", STAGE)
    (STAGE / "_config.yml").write_text(yaml.safe_dump(configuration(), sort_keys=False))


def fill_address(source: str, root: Path = ROOT) -> int:
    """Name `source` in the first cell of every notebook under `root`; how many files changed."""
    changed = 0
    for path in sorted((root / "notebooks").glob("*.ipynb")) + sorted(
        (root / "notebooks" / "src").glob("*.py")
    ):
        text = path.read_text(encoding="utf-8")
        old, new = NO_ADDRESS, f"SOURCE = {json.dumps(source)}"
        if path.suffix == ".ipynb":  # there the line is itself a JSON string
            old, new = (json.dumps(line)[1:-1] for line in (old, new))
        if old in text:
            path.write_text(text.replace(old, new, 1), encoding="utf-8")
            changed += 1
    return changed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--address", metavar="SOURCE", help="write what pip installs, and stop")
    address = parser.parse_args().address
    if address is None:
        stage()
        return 0
    changed = fill_address(address)
    print(f"{changed} files now install {address}")
    return 0 if changed else 1


if __name__ == "__main__":
    sys.exit(main())
