"""Execute each NN_name.py, or only the named ones, and write NN_name.ipynb beside it.

A notebook holds cells, printed text and figures. It has no versions or execution counts, and ids
follow from the content of cells, so a rebuild changes only what a reader sees.
"""

import hashlib
import os
import sys
import time
from pathlib import Path

import jupytext
import nbformat

FOLDER = Path(__file__).parent
METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}


def read_source(path: Path) -> nbformat.NotebookNode:
    """Return the notebook of a source, without outputs."""
    notebook = jupytext.read(path)
    notebook.metadata = nbformat.from_dict(METADATA)
    for cell in notebook.cells:
        cell.id, cell.metadata = hashlib.sha256(cell.source.encode()).hexdigest()[:8], {}
    return notebook


def build(path: Path) -> Path:
    """Execute a source and write its notebook; write nothing if a cell fails."""
    from nbclient import NotebookClient  # the tests, which only read sources, do without it

    notebook = read_source(path)
    NotebookClient(
        notebook,
        timeout=1200,
        resources={"metadata": {"path": FOLDER}},
        extra_arguments=["--IPKernelApp.log_level=ERROR"],
    ).execute()
    notebook.metadata = nbformat.from_dict(METADATA)
    for cell in notebook.cells:
        cell.metadata = {}
        if cell.cell_type == "code":
            cell.execution_count = None
            cell.outputs = simplify(cell.outputs)
    notebook_path = path.with_suffix(".ipynb")
    nbformat.write(notebook, notebook_path)
    return notebook_path


def simplify(outputs: list[nbformat.NotebookNode]) -> list[nbformat.NotebookNode]:
    """Join consecutive pieces of printed text, and keep only the PNG of a figure."""
    simplified = []
    for output in outputs:
        if png := output.get("data", {}).get("image/png"):
            output.data, output.metadata = {"image/png": png}, {}
        if "name" in output and simplified and simplified[-1].get("name") == output.name:
            simplified[-1].text += output.text
        else:
            simplified.append(output)
    return simplified


def main(names: list[str]) -> None:
    os.environ["PYTHONPATH"] = str(FOLDER.parent)
    os.environ["PYTHONWARNINGS"] = "ignore:IProgress not found"  # no progress bar is shown
    for path in map(Path, names or sorted(FOLDER.glob("[0-9]*.py"))):
        start = time.perf_counter()
        notebook = build(path)
        seconds, size = time.perf_counter() - start, notebook.stat().st_size / 1000
        print(f"{notebook.name:24} {seconds:4.0f} s {size:4.0f} KB", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
