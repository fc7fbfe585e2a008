"""Put the files of ``results/`` into the wheel, and the project's addresses into its metadata.

The files become ``mergebook/results``. They lie outside the package, where an editable install
reads them. A symbolic link would not do: a checkout without links would install no results.

No file names the repository. The environment variable ``MERGELIB_REPOSITORY`` does so when a
release is built, as for `tools/stage.py`; without it the metadata contain no addresses.
"""

import os
import re
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py


class BuildWithResults(build_py):
    """The package, and the results in it."""

    def run(self) -> None:
        super().run()
        if self.editable_mode:
            return
        files = sorted(Path(__file__).parent.joinpath("results").glob("*.json"))
        if not files:
            raise FileNotFoundError("results/ holds no results, which the wheel has to contain")
        folder = Path(self.build_lib) / "mergebook" / "results"
        self.mkpath(str(folder))
        for file in files:
            self.copy_file(str(file), str(folder / file.name))


def project_urls() -> dict[str, str]:
    """Return the addresses of the project by name, if the repository is known."""
    name = os.environ.get("MERGELIB_REPOSITORY", "").strip("/")
    if not name:
        return {}
    source = name if "://" in name else f"https://github.com/{name}"
    return {
        "Source": source,
        "Issues": f"{source}/issues",
        "Changelog": f"{source}/blob/main/CHANGELOG.md",
    } | _documentation(source)


def _documentation(source: str) -> dict[str, str]:
    """Return the address of the book, which GitHub serves, as `tools/site_files.py` has it."""
    match = re.fullmatch(r"https://github\.com/([^/]+)/([^/]+)", source)
    if match is None:
        return {}
    host, name = f"{match[1].lower()}.github.io", match[2].removesuffix(".git")
    site = f"https://{host}/" if name.lower() == host else f"https://{host}/{name}/"
    return {"Documentation": site}


setup(cmdclass={"build_py": BuildWithResults}, project_urls=project_urls())
