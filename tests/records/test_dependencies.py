"""Which edits make a run be measured anew: on a copy of the package, edited line by line."""

import shutil
from pathlib import Path
from typing import Any

import pytest

import mergelib
from mergelib.procedures.common import Adapted
from mergelib.records.dependencies import Sources, code_key, methods_in, module_closure
from mergelib.studies.papers.cart import baselines
from mergelib.studies.papers.cogram import fusion

OWN = Path(mergelib.__file__).parent


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """The package's sources, without git: as good as installed elsewhere."""
    folder = tmp_path / "installed"
    shutil.copytree(OWN, folder, ignore=lambda _, names: [n for n in names if n in ("results",)])
    return folder


def key(folder: Path, methods: list[str] | None) -> str:
    """As a process that starts now would have it."""
    return code_key(baselines, methods, Sources(folder))


def edit(file: Path, old: str, new: str) -> None:
    text = file.read_text()
    assert text.count(old) >= 1, f"{file} has no {old!r}"
    file.write_text(text.replace(old, new, 1))


def test_a_line_of_a_rule_concerns_the_runs_that_use_it(copy: Path) -> None:
    uses, others = key(copy, ["ties", "average"]), key(copy, ["average"])
    assert uses != others
    source = copy / "rules" / "sparse.py"
    source.write_text(source.read_text() + "\n\ndef _scaled() -> float:\n    return 1.0\n")
    first = key(copy, ["ties", "average"])
    assert first != uses
    assert key(copy, ["average"]) == others
    edit(source, "return 1.0", "return 2.0")
    second = key(copy, ["ties", "average"])
    assert len({uses, first, second}) == 3, "a tree that was changed already has another key still"
    edit(source, "return 2.0", "return 1.0")
    assert key(copy, ["ties", "average"]) == first
    assert key(copy, None) not in (uses, first, others), "all methods, where it cannot be told"


def test_what_a_rule_stands_on_concerns_it_too(copy: Path) -> None:
    uses, others = key(copy, ["cart"]), code_key(fusion, [], Sources(copy))
    with (copy / "numerics/linalg.py").open("a") as source:
        source.write("\nTOLERANCE_OF_THE_TEST = 1e-3\n")
    assert key(copy, ["cart"]) != uses
    assert code_key(fusion, [], Sources(copy)) == others


@pytest.mark.parametrize(
    ("file", "old", "new"),
    [
        ("rules/sparse.py", "def ties(", "# said otherwise\ndef ties("),
        ("rules/sparse.py", '"""', '"""Said otherwise. '),
        ("studies/papers/cart.py", '    """Methods with', '    """All methods with'),
        ("ledger/cart_checks.py", "NEAR = ", "OTHERS = NEAR = "),
        ("cli/studies.py", "DEMO = ", "OTHERS = DEMO = "),
        ("plots/charts.py", "import ", "import math\nimport "),
        ("records/provenance.py", "import ", "import math\nimport "),
        ("studies/papers/cogram.py", "STEEPNESSES = ", "OTHERS = STEEPNESSES = "),
        ("studies/papers/cart.py", "RANK_RATIOS = (0.0, ", "RANK_RATIOS = (0.1, "),
    ],
)
def test_what_concerns_no_number_of_a_study(copy: Path, file: str, old: str, new: str) -> None:
    before = key(copy, ["ties", "fisher"])
    edit(copy / file, old, new)
    assert key(copy, ["ties", "fisher"]) == before


@pytest.mark.parametrize(
    ("file", "old", "new"),
    [
        ("studies/papers/cart.py", '"normalised", "loss"', '"loss", "normalised"'),
        ("studies/comparison.py", '"drop_rate": [0.5, 0.9]', '"drop_rate": [0.5]'),
        ("studies/runner.py", '"seed": self.seed', '"seed": 0'),
        ("testbed/evaluation.py", "batch_size: int = 500", "batch_size: int = 400"),
        ("merging/applying.py", "CHUNK = 2**14", "CHUNK = 2**15"),
    ],
)
def test_what_a_study_is_made_of_concerns_it(copy: Path, file: str, old: str, new: str) -> None:
    before = key(copy, [])
    edit(copy / file, old, new)
    assert key(copy, []) != before


def test_a_chapter_is_no_code(copy: Path) -> None:
    before = key(copy, None)
    (copy.parent / "notebooks").mkdir()
    (copy.parent / "notebooks" / "11-cart-experiments.py").write_text("print('new')\n")
    (copy / "results").mkdir()
    (copy / "results" / "new.json").write_text("{}")
    assert key(copy, None) == before


def test_the_key_is_the_same_wherever_the_package_lies(copy: Path) -> None:
    assert key(copy, ["ties"]) == key(OWN, ["ties"]) == code_key(baselines, ["ties"])
    assert len(key(copy, ["ties"])) == 16


def test_names_lead_to_the_modules_they_come_from() -> None:
    """Through packages that only pass them on; imports inside functions count."""
    modules = module_closure(["mergelib.studies.papers.cart"])
    assert {"mergelib.testbed.zoo", "mergelib.merging", "mergelib.numerics.linalg"} <= modules
    assert Adapted.__module__ in modules
    assert not any(name.startswith("mergelib.records.results") for name in modules)
    assert "mergelib.procedures.concrete" not in modules, "a procedure is used by its name"


def test_a_study_from_elsewhere_depends_on_everything(copy: Path) -> None:
    def own(zoo: Any) -> dict[str, Any]:
        return {"test": []}

    before = code_key(own, [], Sources(copy))
    edit(copy / "rules" / "sparse.py", "import ", "import math\nimport ")
    assert code_key(own, [], Sources(copy)) != before


def test_methods_are_found_in_settings() -> None:
    settings = {
        "grids": {"ties": {"scale": [1]}, "nil": {}},
        "only_of": ("fisher", 3),
        "base": "emr",
    }
    assert methods_in(settings) == {"ties", "fisher", "emr"}
    with pytest.raises(ValueError, match="unknown method 'tias'; did you mean 'ties'"):
        code_key(baselines, ["tias"])
