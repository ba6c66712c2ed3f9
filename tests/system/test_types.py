"""Types: pyright finds no fault in the models, nor in what a user's file asks of tlite."""

import json
import os
import sys

import pytest

from tests.documents import ROOT
from tests.helpers.python import python
from tests.system.test_readme import BLOCKS

pytest.importorskip("basedpyright")
USED = """
import tlite
from tlite import functional as F
from tlite.comparison import compare
from tlite.data import LabelledText
from tlite.decoding import generate
from tlite.experiment import GeneratorExperiment
from tlite.inspection import run
from tlite.models import GeneratorConfig, CausalLM
from tlite.pictures import plot_attention
from tlite.pretrained import load_pretrained
from tlite.runs import Run
from tlite.report import inspect_run
from tlite.text import CharTokenizer
from tlite.training import TrainingConfig

mask = tlite.functional.causal_mask(9) & F.causal_mask(9)
experiment = tlite.load_experiment("demo")
"""
"""What the rooms offer: a name that a file imports is a user's only where it is offered."""


def faults(folder, *contents: str, packages=()) -> list[str]:
    """What pyright says in its basic mode of packages, or of files that are written into a folder.

    tlite is found as an installed package is: then py.typed makes private what is not offered.
    """
    for number, content in enumerate(contents):
        (folder / f"own_{number}.py").write_text(content)
    paths = [ROOT / "tlite" / name for name in packages] or [folder]
    include = [os.path.relpath(path, folder) for path in paths]
    settings = {"typeCheckingMode": "basic", "include": include}
    (folder / "pyrightconfig.json").write_text(json.dumps(settings))
    words = ["--outputjson", "--project", folder, "--pythonpath", sys.executable]
    done = python("-m", "basedpyright", *words)
    said = json.loads(done.out)
    assert said["summary"]["filesAnalyzed"] >= max(len(contents), 1)
    found = said["generalDiagnostics"]
    return [f"{f['file']}: {f['message']}" for f in found if f["severity"] == "error"]


def test_the_models_and_their_tools_have_no_fault(tmp_path):
    assert faults(tmp_path, packages=["functional", "models", "decoding", "inspection"]) == []


def test_files_that_use_the_readme_s_names_have_no_fault_and_a_wrong_call_has(tmp_path):
    wrong = "import tlite\ntlite.functional.causal_mask('ten')\n"
    (fault,) = faults(tmp_path, USED, *BLOCKS, wrong)
    assert f"own_{1 + len(BLOCKS)}.py" in fault
    assert "causal_mask" in fault
