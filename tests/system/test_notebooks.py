"""Every notebook runs without a warning, shows what its text says, and is built from its source."""

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
MAX_DIFFERENCE = 1e-3  # of printed comparisons of the same number, computed twice

# One process runs all notebooks, so that imports and compiled programs are shared.
RUN_EACH = """
import contextlib, io, json, runpy, sys, traceback
import matplotlib.pyplot as plt
for line in sys.stdin:
    path, claims = json.loads(line)
    output, errors, false = io.StringIO(), io.StringIO(), claims
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(errors):
        try:
            names = runpy.run_path(path, run_name="__main__")
            false = [claim for claim in claims if not eval(claim, names)]
        except BaseException:
            traceback.print_exc()
    plt.close("all")
    print(json.dumps([output.getvalue(), errors.getvalue(), false]), flush=True)
"""

CLAIMS = {
    "01_attention": [
        "derivative[0, -1] < 0.1 * derivative[1, -1]",
        "(unseen == 0).all()",
        "weights[0, 5, 1] > 0.45 and (np.diagonal(weights[1], -1) > 0.9).all()",
        "((depends > 0) == np.asarray(causal)).all()",
        "abs(on_paper - weights[1, 5, 4]) < 1e-4",
    ],
    "02_positions": [
        "jnp.abs(placed).max() > 0.1",
        "jnp.abs(shuffled).max() > 0.1",
        "near > far",
        "((gradient != 0).any(-1) == (np.arange(10) < len(x))).all()",
        "np.ceil(bound) == counted",
    ],
    "03_encoder_block": [
        "abs(dropped.mean() - 1) < 0.02",
        "root / 2 < ratio < 2 * root",
        "stream[-1] > 3 * stream[0]",  # pre-norm
        "count_parameters(params) == by_hand",
        "ratio < post / pre < 2 * ratio",
    ],
    "04_backward": [
        "jnp.abs(by_scores.sum(-1)).max() < 1e-6",
        "(by_scores[..., ~mask] == 0).all() and not mask[0].any()",
        "sizes['key'] < 1e-5 < min(sizes[n] for n in ('query', 'value', 'output'))",
        "jnp.abs(stretching).max() < 1e-4",
        "(by_table[jnp.array([2, 4, 5])] == 0).all()",
        "np.allclose(*curves.values(), rtol=1e-3)",
        "curves['by hand'][-1] < 0.1",
    ],
    "05_generator": [
        "not changed[:20].any() and changed[20:].all()",
        "final < after_one",
        "abs(total / count - final) < 0.1",
        "sample.startswith(tokenizer.decode(prompt))",
        "losses_without[-1] < losses[-1] / 2 and at_last > after_one",
    ],
    "06_classifier": [
        "order_matters.mean - order_matters.half_width > 0.05",
        "sets_matter.mean - sets_matter.half_width > 0",
        "order_matters.mean > sets_matter.mean",
        "(probabilities[:, 0].argmax(-1) == 4).all()",
        "(probabilities[:, 1].argmax(-1) > 1).all()",  # all are wrong, as the text says
        "right_by_order[:, has_not].mean() < 0.5",
    ],
    "07_translator": [
        "min(right.values()) > 0.9",
        "correlation < -0.8",
        "correlation_of_copies > 0.8",
    ],
    "08_inside": [
        "induction.max() > 0.8 and block == 1",
        "without[block, head] > whole + 1",
        "right[-1] > 0.9 > 0.1 > right[1]",
        "best_of_one < 0.3 and losses_of_one[-1] > losses[-1] + 1",
    ],
    "09_change_one_line": [
        "effects['attention'].significant",
        "effects['attention'].mean + effects['attention'].half_width < 0",
        "mean_distance['attention'][0] == mean_distance['attention'].min()",
        "mean_distance['attention'][0] < mean_distance['unchanged'].min()",
        "(np.abs(temperatures - 1) > 0.01).any()",
        "not activation.significant",
    ],
    "10_a_study": [
        "max(final) < bigram_floor - 0.3",
        "all(d.significant and d.mean > EFFECT for r in results.values() for _, d in r.intervals)",
        "early[200].mean < 0",
        "diff.required_seeds(0.02) is None",
    ],
    "11_scaling_law": [
        "0 < law.E < runs.losses.min() and law.alpha > 0 and law.beta > 0",
        "(np.abs(largest.losses.mean(1) / law.loss(*largest[:2]) - 1) < 0.08).all()",
        "abs(by_search / law.optimal(flops)[0] - 1) < 0.01",
    ],
    "12_hugging_face": [
        "f'blocks.{config.num_blocks - 1}.attention.weights' in tap_names(model)",
        "induction.max() > 0.5 and block > 0 and first_block < block",
        "np.allclose(weights.sum(-1), 1, atol=1e-5)",
        "followed.mean() > 0.5",
        "rounds[0][1] < rounds[0][0] - 0.5 and rounds[1][1] > rounds[0][1] + 0.2",
        "right[-1] > 0.5 and right[0] < 0.2",
        "(tokens[-1, :, 0] == np.asarray(model(text)).argmax(-1)).all()",
    ],
}
"""What the text of each notebook says of its results, as expressions of its variables."""


@pytest.fixture(scope="module")
def run_source():
    """Return a function that runs a source: its output, its errors, and the claims that fail."""
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
        print(json.dumps([str(path), CLAIMS[path.stem]]), file=process.stdin, flush=True)
        return json.loads(process.stdout.readline() or '["", "the process has ended", []]')

    with process:
        yield run
        process.stdin.close()


@pytest.fixture(params=SOURCES, ids=lambda path: path.stem)
def source(request):
    return request.param


def test_a_source_runs_and_its_claims_hold(source, run_source):
    output, errors, false = run_source(source)
    assert (errors, false) == ("", [])
    differences = re.findall(r"largest difference (\S+)", output)
    assert all(float(difference) < MAX_DIFFERENCE for difference in differences)


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
    text = "\n".join(cell.source for cell in notebook.cells if cell.cell_type == "markdown")
    for link in re.findall(r"\]\((?!https?:)([^)#]+)", text):
        assert (source.parent / link).exists(), link


def test_a_notebook_has_subject_needs_and_solutions(source):
    text = source.read_text(encoding="utf-8")
    first = text.split("# %% [markdown]\n")[1]
    assert "**Teaches**" in first
    assert "**Needs**" in first
    assert text.index("# ## Exercise") < text.index("# ## Solution")
