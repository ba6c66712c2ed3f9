"""Every notebook runs from its first cell to its last, and the one to look at is its source's."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest

from notebooks.build import read_source

ROOT = Path(__file__).parents[2]
SOURCES = sorted((ROOT / "notebooks").glob("[0-9]*.py"))
LARGEST = 500_000  # bytes of a notebook

# One process runs all of them: what one has imported and compiled, the next need not.
RUN_EACH = """
import contextlib, io, json, runpy, sys, traceback
import matplotlib.pyplot as plt
for line in sys.stdin:
    told = io.StringIO()
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(told):
        try:
            runpy.run_path(line.strip(), run_name="__main__")
        except BaseException:
            traceback.print_exc()
    plt.close("all")
    print(json.dumps(told.getvalue()), flush=True)
"""


@pytest.fixture(scope="module")
def run_source():
    """Run a source; what comes is what it wrote to standard error, its traceback too."""
    kept = {name: value for name, value in os.environ.items() if "MOST_OPTIMIZATIONS" not in name}
    # Some train for hundreds of steps: programs are compiled better than those of other tests, not
    # with all that XLA can do.
    environment = kept | {
        "MPLBACKEND": "Agg",
        "PYTHONPATH": str(ROOT),
        "XLA_FLAGS": f"{kept['XLA_FLAGS']} --xla_backend_optimization_level=1",
        "JAX_COMPILATION_CACHE_DIR": str(ROOT / ".pytest_cache" / "notebooks"),
    }
    process = subprocess.Popen(
        [sys.executable, "-c", RUN_EACH],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )

    def run(path):
        print(path, file=process.stdin, flush=True)
        return json.loads(process.stdout.readline() or '"the process has ended"')

    with process:
        yield run
        process.stdin.close()


@pytest.fixture(params=SOURCES, ids=lambda path: path.stem)
def source(request):
    return request.param


@pytest.fixture
def notebook(source):
    return nbformat.read(source.with_suffix(".ipynb"), as_version=nbformat.NO_CONVERT)


def test_a_source_runs_without_a_warning(source, run_source):
    assert run_source(source) == ""


def test_a_notebook_is_its_source_and_nothing_of_the_machine(source, notebook):
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs = []
    assert notebook == read_source(source), f"make notebooks NOTEBOOKS=notebooks/{source.name}"


def test_a_notebook_shows_what_is_printed_and_figures_alone(source, notebook):
    assert source.with_suffix(".ipynb").stat().st_size <= LARGEST
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    outputs = [output for cell in code for output in cell.outputs]
    kinds = {(o.output_type, o.get("name"), *o.get("data", {})) for o in outputs}
    assert kinds <= {("stream", "stdout"), ("display_data", None, "image/png")}
    assert outputs


def test_links_of_a_notebook_lead_to_files(source, notebook):
    for link in re.findall(r"\]\((?!https?:)([^)#]+)", "".join(c.source for c in notebook.cells)):
        assert (source.parent / link).exists(), link
