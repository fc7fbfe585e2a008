"""Execute the notebooks: sources in, fresh outputs out, the same bytes on every run.

A notebook's text lives in `notebooks/src/NAME.py`. This tool reads it, gives every cell an id that
follows from its text, runs it with papermill in a scratch folder, and copies back the outputs and
execution counts alone: papermill's timings and injected tags never reach a file that is kept.
"""

import argparse
import base64
import hashlib
import io
import os
import re
import shutil
import sys
import time
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path

import jupytext
import kernels
import nbformat
import papermill
import yaml
from nbformat import NotebookNode
from papermill.exceptions import PapermillExecutionError
from PIL import Image

ROOT = Path(__file__).resolve().parents[1]
NOTEBOOKS = ROOT / "notebooks"
SOURCES = NOTEBOOKS / "src"
BUILD = ROOT / "_build"
CHECKED = "nbval-check-output"
FEW_COLOURS = 512  # of which 256 are enough

# Bars would land in stderr with a machine's paths; threads and hashing change the last digits.
QUIET = {
    "TQDM_DISABLE": "1",
    "OMP_NUM_THREADS": "1",  # two notebooks run at a time
    "PYTHONHASHSEED": "0",
    "PYDEVD_DISABLE_FILE_VALIDATION": "1",
    # What would land on a page with a machine's path: tqdm's word where ipywidgets is not; what
    # chapters say in their own words, about convolutions, networks that are strangers and networks
    # trained from one random start; and PyTorch's, of its own first forward derivative.
    "PYTHONWARNINGS": "ignore:IProgress,ignore:not factorised,ignore:unrelated models,"
    "ignore:the task vectors are nearly parallel,"
    "ignore:`torch.jit.script` is deprecated",
}
METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python", "pygments_lexer": "ipython3"},
}


def read_source(path: Path) -> NotebookNode:
    """The notebook of a py:percent source, with stable cell ids and a fixed kernel."""
    notebook: NotebookNode = jupytext.read(path, fmt="py:percent")
    notebook.metadata = nbformat.from_dict(METADATA)
    notebook.nbformat, notebook.nbformat_minor = 4, 5
    seen: dict[str, int] = {}
    for cell in notebook.cells:
        digest = hashlib.sha256(f"{cell.cell_type}\n{cell.source}".encode()).hexdigest()[:8]
        repeat = seen[digest] = seen.get(digest, -1) + 1
        cell.id = f"{digest}-{repeat}" if repeat else digest
        cell.metadata = {k: v for k, v in cell.metadata.items() if k in ("tags", "mystnb")}
    return notebook


def depends_on(notebook: NotebookNode, parameters: Iterable[str]) -> bool:
    """Whether the code of a notebook uses one of these beside the cell that sets them."""
    used = [
        cell.source
        for cell in notebook.cells
        if cell.cell_type == "code" and "parameters" not in cell.metadata.get("tags", ())
    ]
    return bool(re.search(rf"\b({'|'.join(parameters)})\b", "\n".join(used)))


def merge_streams(outputs: Iterable[NotebookNode]) -> list[NotebookNode]:
    """Join neighbouring pieces of one stream: where the kernel cut them is chance."""
    merged: list[NotebookNode] = []
    for output in outputs:
        last = merged[-1] if merged else None
        if last and output.output_type == "stream" == last.output_type and output.name == last.name:
            last.text += output.text
        else:
            merged.append(output)
    return merged


def light(png: str) -> str:
    """A picture in base64; with a palette, a third of the bytes, where it has few colours."""
    picture = Image.open(io.BytesIO(base64.b64decode(png))).convert("RGB")
    if picture.getcolors(FEW_COLOURS) is None:
        return png
    file = io.BytesIO()
    picture.quantize(256, dither=Image.Dither.NONE).save(file, "PNG", optimize=True)
    return base64.b64encode(file.getvalue()).decode()


def with_outputs(source: NotebookNode, executed: NotebookNode) -> NotebookNode:
    """`source` with the outputs and execution counts of `executed`, and nothing else of it."""
    fresh = {cell.id: cell for cell in executed.cells}
    for cell in source.cells:
        if cell.cell_type == "code":
            cell.outputs = merge_streams(fresh[cell.id].outputs)
            for output in cell.outputs:
                if png := output.get("data", {}).get("image/png"):
                    output.data["image/png"] = light(png)
            cell.execution_count = fresh[cell.id].execution_count
    return source


def checked_outputs(notebook: NotebookNode) -> dict[str, str]:
    """What the cells tagged ``nbval-check-output`` print or show as text, by the id of the cell."""
    return {
        cell.id: "".join(
            output.get("text", "") or output.get("data", {}).get("text/plain", "")
            for output in cell.outputs
        )
        for cell in notebook.cells
        if cell.cell_type == "code" and CHECKED in cell.metadata.get("tags", ())
    }


def differences(name: str, executed: Path) -> list[str]:
    """The checked cells whose output is not that of the committed notebook, as text to read."""
    fresh, committed = (
        checked_outputs(nbformat.read(path, as_version=4))
        for path in (executed, NOTEBOOKS / f"{name}.ipynb")
    )
    return [
        f"{name}, cell {cell}: committed\n{committed.get(cell)}\nnow\n{fresh.get(cell)}"
        for cell in dict.fromkeys([*committed, *fresh])
        if committed.get(cell) != fresh.get(cell)
    ]


def execute(name: str, output: Path, parameters: dict[str, object]) -> tuple[str | None, float]:
    """Run one notebook and write it, cleaned, to `output/NAME.ipynb`: its error, and seconds."""
    start = time.perf_counter()
    source = read_source(SOURCES / f"{name}.py")
    raw = BUILD / "papermill" / f"{name}.ipynb"
    raw.parent.mkdir(parents=True, exist_ok=True)
    try:
        executed = papermill.execute_notebook(
            source, raw, parameters, kernel_name="python3", cwd=NOTEBOOKS, progress_bar=False
        )
    except PapermillExecutionError as error:
        return str(error), time.perf_counter() - start
    target = output / f"{name}.ipynb"
    target.parent.mkdir(parents=True, exist_ok=True)
    nbformat.write(with_outputs(source, executed), target)
    return None, time.perf_counter() - start


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "names",
        nargs="*",
        help="notebooks to run, such as 10-cart (all, or all that use a parameter of -p)",
    )
    parser.add_argument("--write", action="store_true", help="refresh the committed notebooks too")
    parser.add_argument(
        "--compare", action="store_true", help="fail where a checked cell is not as committed"
    )
    parser.add_argument("--output", type=Path, default=BUILD / "executed", help="where they go")
    parser.add_argument("--jobs", type=int, default=2, help="how many run at once (2)")
    parser.add_argument(
        "-p", nargs=2, action="append", default=[], metavar=("NAME", "VALUE"), help="a parameter"
    )
    args = parser.parse_args()
    parameters = {name: yaml.safe_load(value) for name, value in args.p}
    if (args.write or args.compare) and parameters:
        parser.error("--write and --compare keep the default parameters: leave -p out")
    known = sorted(path.stem for path in SOURCES.glob("*.py"))
    names = [Path(name).stem for name in args.names] or [
        name
        for name in known
        if not parameters or depends_on(read_source(SOURCES / f"{name}.py"), parameters)
    ]
    if unknown := sorted(set(names) - set(known)):
        parser.error(f"no such notebook: {', '.join(unknown)}; there are {', '.join(known)}")

    os.environ.update(QUIET)
    failed = []
    # In processes, as papermill has one event loop in each.
    with ProcessPoolExecutor(args.jobs, initializer=kernels.use) as pool:
        running = {pool.submit(execute, name, args.output, parameters): name for name in names}
        for done in as_completed(running):
            name, (error, seconds) = running[done], done.result()
            if error:
                failed.append(name)
                print(f"{name}: failed\n{error}", file=sys.stderr, flush=True)
                continue
            target = args.output / f"{name}.ipynb"
            for difference in differences(name, target) if args.compare else []:
                failed.append(name)
                print(difference, file=sys.stderr, flush=True)
            if args.write:
                shutil.copyfile(target, NOTEBOOKS / target.name)
            print(f"{name}: {seconds:.0f} s", flush=True)
    if failed:
        print(f"failed: {', '.join(dict.fromkeys(failed))}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
