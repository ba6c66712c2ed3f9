"""Execute each NN_name.py and write NN_name.ipynb beside it; or only the sources that are named.

A notebook holds the source's cells, what they print and their figures, and nothing of the machine
or the moment: no versions, no counts of executions, ids that follow from a cell's content. So what
differs after a rebuild is what a reader would see differ.
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
    """The cells of a source, without outputs."""
    notebook, ids = jupytext.read(path), set()
    notebook.metadata = nbformat.from_dict(METADATA)
    for cell in notebook.cells:
        digest, length = hashlib.sha256(cell.source.encode()).hexdigest(), 8
        while digest[:length] in ids:
            length += 1
        cell.id, cell.metadata = digest[:length], {}
        ids.add(cell.id)
    return notebook


def build(path: Path) -> Path:
    """Execute a source and write its notebook.

    Raises:
        nbclient.exceptions.CellExecutionError: a cell fails; nothing is written.
    """
    from nbclient import NotebookClient  # reading sources, as the tests do, needs no kernel

    notebook = read_source(path)
    NotebookClient(
        notebook,
        timeout=600,
        resources={"metadata": {"path": FOLDER}},
        extra_arguments=["--IPKernelApp.log_level=ERROR"],
    ).execute()
    notebook.metadata = nbformat.from_dict(METADATA)
    for cell in notebook.cells:
        cell.metadata = {}
        if cell.cell_type == "code":
            cell.execution_count = None
            cell.outputs = _plain(cell.outputs)
    to = path.with_suffix(".ipynb")
    nbformat.write(notebook, to)
    return to


def _plain(outputs: list[nbformat.NotebookNode]) -> list[nbformat.NotebookNode]:
    """What is printed in one piece; a figure as its PNG alone, not also the text of its size."""
    found = []
    for output in outputs:
        if output.output_type == "stream" and found and found[-1].get("name") == output.name:
            found[-1].text += output.text
            continue
        if "image/png" in output.get("data", {}):
            output.data, output.metadata = {"image/png": output.data["image/png"]}, {}
        found.append(output)
    return found


def main(names: list[str]) -> None:
    os.environ["PYTHONPATH"] = str(FOLDER.parent)
    os.environ["PYTHONWARNINGS"] = "ignore:IProgress not found"  # of a bar that nobody sees
    for path in map(Path, names or sorted(FOLDER.glob("[0-9]*.py"))):
        begun = time.perf_counter()
        to = build(path)
        seconds, size = time.perf_counter() - begun, to.stat().st_size / 1000
        print(f"{to.name:24} {seconds:4.0f} s {size:4.0f} KB", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
