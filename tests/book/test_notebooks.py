"""The committed notebooks agree with their sources, carry outputs, and keep the book's habits."""

import re
from collections import Counter
from functools import cache

import nbformat
import pytest
from execute import NOTEBOOKS, SOURCES, read_source
from nbformat import NotebookNode

NAMES = sorted(path.stem for path in SOURCES.glob("*.py"))
HIDDEN = {"hide-input", "hide-cell", "remove-cell", "remove-input"}
PARAMETERS = ("SUITE", "PROFILE", "SEED", "DEVICE")
LONGEST_CELL = 25
WORDS_PER_LINE = 10
SHORTEST_ALT = 40

each_notebook = pytest.mark.parametrize("name", NAMES)


@cache
def committed(name: str) -> NotebookNode:
    notebook: NotebookNode = nbformat.read(NOTEBOOKS / f"{name}.ipynb", as_version=4)
    return notebook


def code_cells(name: str) -> list[NotebookNode]:
    return [cell for cell in committed(name).cells if cell.cell_type == "code"]


def tags(cell: NotebookNode) -> set[str]:
    return set(cell.metadata.get("tags", ()))


def opening(cell: NotebookNode) -> str:
    """How an assertion names a cell: its first lines."""
    return "\n".join(cell.source.splitlines()[:3])


def has_image(cell: NotebookNode) -> bool:
    kinds = {kind for output in cell.outputs for kind in output.get("data", {})}
    return any(kind.startswith("image/") for kind in kinds)


def test_every_source_has_its_notebook_and_the_other_way_round() -> None:
    assert NAMES
    assert sorted(path.stem for path in NOTEBOOKS.glob("*.ipynb")) == NAMES


@each_notebook
def test_notebook_and_source_hold_the_same_cells(name: str) -> None:
    source, twin = read_source(SOURCES / f"{name}.py"), committed(name)
    assert twin.metadata == source.metadata
    for ours, theirs in zip(twin.cells, source.cells, strict=True):
        for part in ("cell_type", "source", "metadata", "id"):
            assert ours[part] == theirs[part], f"run `make notebooks`: {part} of\n{opening(theirs)}"


@each_notebook
def test_cells_ran_once_and_in_order(name: str) -> None:
    counts = [cell.execution_count for cell in code_cells(name)]
    assert counts == list(range(1, len(counts) + 1))


@each_notebook
def test_outputs_hold_no_error_and_no_warning(name: str) -> None:
    for cell in code_cells(name):
        for output in cell.outputs:
            assert output.output_type != "error", opening(cell)
            assert output.get("name") != "stderr", f"{opening(cell)}\n{output.get('text')}"


@each_notebook
def test_checked_cells_have_a_text_to_compare(name: str) -> None:
    checked = [cell for cell in code_cells(name) if "nbval-check-output" in tags(cell)]
    assert checked, "tag at least one cell nbval-check-output"
    for cell in checked:
        assert cell.outputs, opening(cell)


@each_notebook
def test_outputs_name_no_place_on_a_machine(name: str) -> None:
    for cell in code_cells(name):
        for output in cell.outputs:
            data = output.get("data", {})
            texts = [output.get("text", ""), data.get("text/plain", ""), data.get("text/html", "")]
            found = re.search(r"(/home/|/root/|/tmp/|/Users/|C:\\| at 0x[0-9a-f]+)", "".join(texts))
            assert found is None, f"{found and found.group()} in the output of\n{opening(cell)}"


def test_the_first_cell_is_the_same_everywhere_and_hidden() -> None:
    first = [committed(name).cells[0] for name in NAMES]
    assert len({cell.source for cell in first}) == 1, Counter(cell.source for cell in first)
    assert all(tags(cell) == {"remove-cell"} for cell in first)
    assert first[0].source.count('SOURCE = ""') == 1, "tools/stage.py fills this line in"


@each_notebook
def test_a_title_comes_first_and_alone(name: str) -> None:
    notebook = committed(name)
    assert notebook.cells[1].source.startswith("# ")
    text = "\n".join(c.source for c in notebook.cells if c.cell_type == "markdown")
    prose = re.sub(r"^(`{3,}).*?^\1`*$", "", text, flags=re.DOTALL | re.MULTILINE)
    assert len(re.findall(r"^# ", prose, flags=re.MULTILINE)) == 1


@each_notebook
def test_the_parameters_cell_sets_what_papermill_may_change(name: str) -> None:
    (cell,) = [cell for cell in code_cells(name) if "parameters" in tags(cell)]
    assigned = re.findall(r"^([A-Z]+) = ", cell.source, flags=re.MULTILINE)
    assert assigned == list(PARAMETERS)


@each_notebook
def test_cells_are_short(name: str) -> None:
    for cell in code_cells(name):
        assert len(cell.source.splitlines()) <= LONGEST_CELL, opening(cell)


@each_notebook
def test_prose_outweighs_the_code_that_is_shown(name: str) -> None:
    prose = "\n".join(c.source for c in committed(name).cells if c.cell_type == "markdown")
    words = len(re.findall(r"[^\W\d_]{2,}", re.sub(r"\$\$.*?\$\$|\$.*?\$", "", prose, flags=re.S)))
    shown = [c for c in code_cells(name) if not tags(c) & HIDDEN and not has_image(c)]
    lines = sum(bool(line.strip()) for cell in shown for line in cell.source.splitlines())
    assert words >= WORDS_PER_LINE * lines, f"{words} words for {lines} lines of code"


@each_notebook
def test_every_figure_has_a_caption_a_name_and_an_alternative_text(name: str) -> None:
    for cell in code_cells(name):
        if not has_image(cell):
            continue
        meta = cell.metadata.get("mystnb", {})
        figure = meta.get("figure", {})
        assert figure.get("caption"), f"no caption:\n{opening(cell)}"
        assert re.fullmatch(r"fig-[a-z0-9-]+", figure.get("name", "")), opening(cell)
        alt = meta.get("image", {}).get("alt", "")
        assert len(alt) >= SHORTEST_ALT, f"say in mystnb.image.alt what is to be seen: {alt!r}"


def test_figures_have_names_of_their_own() -> None:
    cells = [cell for name in NAMES for cell in code_cells(name)]
    names = [cell.metadata.get("mystnb", {}).get("figure", {}).get("name") for cell in cells]
    assert not [name for name, count in Counter(filter(None, names)).items() if count > 1]
