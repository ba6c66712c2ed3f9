"""Pyright finds no type error in the models and in files that use tlite."""

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
"""Imports of the public names of each package."""


def type_errors(folder, *contents: str, packages=()) -> list[str]:
    """Return pyright's errors in basic mode for packages, or for files written into a folder.

    tlite is found as an installed package, so that py.typed makes other names private.
    """
    for number, content in enumerate(contents):
        (folder / f"file_{number}.py").write_text(content)
    paths = [ROOT / "tlite" / name for name in packages] or [folder]
    include = [os.path.relpath(path, folder) for path in paths]
    settings = {"typeCheckingMode": "basic", "include": include}
    (folder / "pyrightconfig.json").write_text(json.dumps(settings))
    words = ["--outputjson", "--project", folder, "--pythonpath", sys.executable]
    done = python("-m", "basedpyright", *words)
    output = json.loads(done.out)
    assert output["summary"]["filesAnalyzed"] >= max(len(contents), 1)
    errors = (e for e in output["generalDiagnostics"] if e["severity"] == "error")
    return [f"{error['file']}: {error['message']}" for error in errors]


def test_the_models_and_their_tools_have_no_type_error(tmp_path):
    assert type_errors(tmp_path, packages=["functional", "models", "decoding", "inspection"]) == []


def test_only_a_wrong_call_of_public_names_is_a_type_error(tmp_path):
    wrong = "import tlite\ntlite.functional.causal_mask('ten')\n"
    (error,) = type_errors(tmp_path, USED, *BLOCKS, wrong)
    assert f"file_{1 + len(BLOCKS)}.py" in error
    assert "causal_mask" in error
