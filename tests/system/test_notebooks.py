"""Every notebook runs without a warning and is built from its source."""

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
MAX_BYTES = 500_000

# One process runs all notebooks, so that imports and compiled programs are shared.
RUN_EACH = """
import contextlib, io, json, runpy, sys, traceback
import matplotlib.pyplot as plt
for line in sys.stdin:
    errors = io.StringIO()
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(errors):
        try:
            runpy.run_path(line.strip(), run_name="__main__")
        except BaseException:
            traceback.print_exc()
    plt.close("all")
    print(json.dumps(errors.getvalue()), flush=True)
"""


@pytest.fixture(scope="module")
def run_source():
    """Return a function that runs a source and returns its standard error and traceback."""
    # Some notebooks train for hundreds of steps, which needs some of XLA's optimisations.
    environment = os.environ | {
        "JAX_DISABLE_MOST_OPTIMIZATIONS": "false",
        "MPLBACKEND": "Agg",
        "PYTHONPATH": str(ROOT),
        "XLA_FLAGS": f"{os.environ['XLA_FLAGS']} --xla_backend_optimization_level=1",
        "JAX_COMPILATION_CACHE_DIR": str(ROOT / ".pytest_cache" / "notebooks"),
    }
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    command = [sys.executable, "-c", RUN_EACH]
    process = subprocess.Popen(command, env=environment, text=True, **pipes)

    def run(path):
        print(path, file=process.stdin, flush=True)
        return json.loads(process.stdout.readline() or '"the process has ended"')

    with process:
        yield run
        process.stdin.close()


@pytest.fixture(params=SOURCES, ids=lambda path: path.stem)
def source(request):
    return request.param


def test_a_source_runs_without_a_warning(source, run_source):
    assert run_source(source) == ""


def test_a_notebook_is_its_source_with_text_and_figures(source):
    path = source.with_suffix(".ipynb")
    notebook, outputs = nbformat.read(path, as_version=nbformat.NO_CONVERT), []
    for cell in notebook.cells:
        outputs += cell.get("outputs", [])
        if cell.cell_type == "code":
            cell.outputs = []
    assert notebook == read_source(source), f"make notebooks NOTEBOOKS=notebooks/{source.name}"
    kinds = {(o.output_type, o.get("name"), *o.get("data", {})) for o in outputs}
    assert outputs
    assert kinds <= {("stream", "stdout"), ("display_data", None, "image/png")}
    assert path.stat().st_size <= MAX_BYTES
    for link in re.findall(r"\]\((?!https?:)([^)#]+)", source.read_text(encoding="utf-8")):
        assert (source.parent / link).exists(), link
