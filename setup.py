"""Puts the files of ``results/`` into the wheel as ``mergebook/results``; the rest is pyproject's.

They lie outside the package, where an editable install reads them. A symbolic link would not do:
a checkout without links would install no results.
"""

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


setup(cmdclass={"build_py": BuildWithResults})
