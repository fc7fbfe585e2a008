"""The tools that run the notebooks and lay out the site."""

import base64
import io
from pathlib import Path

import execute
import jupytext
import nbformat
import numpy as np
import pytest
import stage
from execute import depends_on, differences, merge_streams, read_source, with_outputs
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output
from PIL import Image

BOOTSTRAP = 'import sys\n\nSOURCE = ""\nprint(SOURCE or "none")'


def test_stream_pieces_are_joined_only_with_their_own_kind() -> None:
    pieces = [("stdout", "a"), ("stdout", "b"), ("stderr", "c"), ("stdout", "d")]
    outputs = [new_output("stream", name=name, text=text) for name, text in pieces]
    joined = [(output.name, output.text) for output in merge_streams(outputs)]
    assert joined == [("stdout", "ab"), ("stderr", "c"), ("stdout", "d")]


def test_cell_ids_follow_the_text_and_stay_unique(tmp_path: Path) -> None:
    source = tmp_path / "a.py"
    source.write_text("# %%\nx = 1\n\n# %%\nx = 1\n\n# %%\ny = 2\n")
    ids = [cell.id for cell in read_source(source).cells]
    assert len(set(ids)) == 3
    source.write_text("# %%\nz = 0\n\n# %%\nx = 1\n\n# %%\nx = 1\n\n# %%\ny = 2\n")
    assert [cell.id for cell in read_source(source).cells][1:] == ids


def test_a_notebook_depends_on_the_parameters_that_its_code_uses(tmp_path: Path) -> None:
    source = tmp_path / "a.py"
    text = '# %% [markdown]\n# SEED\n\n# %% tags=["parameters"]\nSEED = 0\nPROFILE = ""\n\n# %%\n'
    source.write_text(f"{text}load(profile=PROFILE, what=SEEDS)\n")
    assert depends_on(read_source(source), ["SEED", "PROFILE"])
    assert not depends_on(read_source(source), ["SEED"])


def test_only_outputs_and_counts_are_taken_from_the_executed_notebook(tmp_path: Path) -> None:
    path = tmp_path / "a.py"
    path.write_text("# %%\nprint(1)\n")
    source, executed = read_source(path), read_source(path)
    executed.cells[0].update(execution_count=1, outputs=[new_output("stream", text="1\n")])
    executed.cells[0].metadata.update(papermill={"duration": 0.1}, tags=[])
    executed.metadata["papermill"] = {}
    result = with_outputs(source, executed)
    assert result.cells[0].execution_count == 1
    assert result.cells[0].outputs[0].text == "1\n"
    assert not result.cells[0].metadata
    assert "papermill" not in result.metadata


def test_the_address_reaches_source_and_notebook_alike(tmp_path: Path) -> None:
    notebook, source = tmp_path / "notebooks/a.ipynb", tmp_path / "notebooks/src/a.py"
    source.parent.mkdir(parents=True)
    source.write_text(f"# %%\n{BOOTSTRAP}\n")
    nbformat.write(new_notebook(cells=[new_code_cell(BOOTSTRAP)]), notebook)
    address = "mergelib-book[lab] @ git+https://example.org/some/where@v1"
    assert stage.fill_address(address, tmp_path) == 2
    expected = BOOTSTRAP.replace('""', f'"{address}"', 1)
    assert nbformat.read(notebook, as_version=4).cells[0].source == expected
    assert jupytext.read(source).cells[0].source == expected
    assert stage.fill_address(address, tmp_path) == 0


def theme_options() -> dict[str, object]:
    options: dict[str, object] = stage.configuration()["sphinx"]["config"]["html_theme_options"]
    return options


@pytest.mark.parametrize("given", ["some/where", "https://github.com/some/where/"])
def test_launch_buttons_need_an_address(monkeypatch: pytest.MonkeyPatch, given: str) -> None:
    monkeypatch.delenv("MERGELIB_REPOSITORY", raising=False)
    monkeypatch.delenv("MERGELIB_BRANCH", raising=False)
    assert "launch_buttons" not in theme_options()
    monkeypatch.setenv("MERGELIB_REPOSITORY", given)
    options = theme_options()
    assert options["launch_buttons"] == stage.LAUNCH_BUTTONS
    assert options["repository_url"] == "https://github.com/some/where"
    assert options["repository_branch"] == "published"


def test_a_page_has_a_line_below_its_title(tmp_path: Path) -> None:
    """Its time to read, and of a notebook a link to Colab."""
    (tmp_path / "toc.yml").write_text("root: b\nparts: [{caption: P, chapters: [{file: a}]}]")
    (tmp_path / "b.md").write_text("# Start\n\nText.\n")
    cells = [new_code_cell("1"), new_markdown_cell("# Title\n\nText."), new_markdown_cell("# B")]
    nbformat.write(new_notebook(cells=cells), tmp_path / "a.ipynb")
    stage.write_heads(tmp_path, tmp_path / "toc.yml", "some/where")
    _, title, other = nbformat.read(tmp_path / "a.ipynb", as_version=4).cells
    link = "https://colab.research.google.com/github/some/where/blob/published/a.ipynb"
    line = f"[1 minute to read]{{.reading-time}} · [Open this page in Colab]({link})"
    assert title.source == f"# Title\n\n{line}\n\nText."
    assert other.source == "# B"
    assert (
        tmp_path / "b.md"
    ).read_text() == "# Start\n\n[1 minute to read]{.reading-time}\n\nText.\n"


def test_a_checked_cell_that_changed_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(execute, "NOTEBOOKS", tmp_path)

    def write(path: Path, checked: str, other: str) -> None:
        cells = [new_code_cell("a", id="a"), new_code_cell("b", id="b")]
        cells[0].metadata["tags"] = ["nbval-check-output"]
        for cell, text in zip(cells, (checked, other), strict=True):
            cell.outputs = [new_output("stream", text=text)]
        nbformat.write(new_notebook(cells=cells), path)

    committed, executed = tmp_path / "one.ipynb", tmp_path / "executed.ipynb"
    write(committed, "412/500\n", "3 s\n")
    write(executed, "412/500\n", "4 s\n")
    assert differences("one", executed) == []
    write(executed, "413/500\n", "3 s\n")
    (difference,) = differences("one", executed)
    assert difference == "one, cell a: committed\n412/500\n\nnow\n413/500\n"


def test_pictures_of_few_colours_get_a_palette() -> None:
    """Lines and letters on white lose nothing that an eye could see; a photograph stays."""
    noise = np.random.default_rng(0).integers(0, 256, (40, 40, 3), dtype=np.uint8)
    drawn = np.full((400, 400, 3), 255, dtype=np.uint8)
    drawn[::7] = np.arange(400, dtype=np.uint8)[:, None] // 2 + 50  # shades of grey
    for pixels, changed in ((noise, False), (drawn, True)):
        file = io.BytesIO()
        Image.fromarray(pixels).save(file, "PNG")
        png = base64.b64encode(file.getvalue()).decode()
        kept = execute.light(png)
        assert (kept != png) == changed
        after = np.asarray(Image.open(io.BytesIO(base64.b64decode(kept))).convert("RGB"))
        assert np.abs(after.astype(int) - pixels).max() <= 4
