"""The packages as a whole: every module is what its path says."""

import importlib
import pkgutil
from types import ModuleType

import pytest

import mergebook
import mergelib

PACKAGES = {"mergelib": mergelib, "mergebook": mergebook}
MODULES = [
    module.name
    for name, package in PACKAGES.items()
    for module in pkgutil.walk_packages(package.__path__, f"{name}.")
    if not module.name.endswith("__main__")
]


@pytest.mark.parametrize("name", MODULES)
def test_a_path_gives_the_module(name: str) -> None:
    """Also by ``import a.b as c``, which reads attributes: no function hides a module."""
    module = importlib.import_module(name)
    package, *parts = name.split(".")
    found: object = PACKAGES[package]
    for part in parts:
        found = getattr(found, part)
    assert found is module
    assert isinstance(found, ModuleType)


def test_no_export_is_called_like_a_module_beside_it() -> None:
    for name in [*PACKAGES, *MODULES]:
        package = importlib.import_module(name)
        if hasattr(package, "__path__"):
            beside = {module.name for module in pkgutil.iter_modules(package.__path__)}
            for export in beside & set(getattr(package, "__all__", ())):
                assert isinstance(getattr(package, export), ModuleType), f"{name}.{export}"
