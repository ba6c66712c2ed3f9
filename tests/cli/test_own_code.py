"""Runs with user code: they use the copy in their folder, and execute it only with consent."""

import shutil
import signal
from types import SimpleNamespace

import pytest

from tlite import user_code
from tlite.comparison.study import read_study
from tlite.errors import Interrupted
from tlite.runs import GeneratorRun
from tlite.training.metrics import read_metrics

pytestmark = pytest.mark.usefixtures("one_device")

FILE = '''
open({executed!r}, "a").write("x")
import jax
import jax.numpy as jnp
from tlite import functional as F
from tlite.data import TextFile
from tlite.experiment import GeneratorExperiment
from tlite.models import FeedForward, GeneratorConfig
from tlite.training import TrainingConfig

def tempered(params, query, key, value, mask=None):
    """Attention with a learned temperature."""
    return F.scaled_dot_product_attention(query * params.temperature, key, value, mask)

tempered.init_params = lambda rng, config: {{"temperature": jnp.ones(())}}

def squared(x):
    return jax.nn.relu(x) ** 2

experiment = GeneratorExperiment("mine", TextFile({text!r}, 0.1), GeneratorConfig(
    context=16, width=8, num_heads=2, num_blocks=1, attention=tempered,
    feed_forward=FeedForward(activation=squared)
), TrainingConfig(steps=4, batch_size=32, evaluate_every=2, precision="float32"), prompt="The ")
'''


@pytest.fixture(scope="module", autouse=True)
def state(tmp_path_factory):
    """Return the folder with this user's consent."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(folder := tmp_path_factory.mktemp("state")))
        yield folder


@pytest.fixture(autouse=True)
def new_process(monkeypatch):
    """Forget the files that were executed, as a new process."""
    monkeypatch.setattr(user_code, "_programs", {})


@pytest.fixture
def another_user(monkeypatch, tmp_path):
    """Another user, who has not trained with these files."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "another user"))


@pytest.fixture(scope="module")
def trained(train, text, tmp_path_factory, state):
    """A run of a user's experiment file, and the file."""
    file = tmp_path_factory.mktemp("own") / "mine.py"
    file.write_text(FILE.format(executed=str(file.with_name("executed")), text=str(text)))
    return SimpleNamespace(file=file, **vars(train(str(file))))


@pytest.fixture
def copied(trained, tmp_path):
    """A copy of the run that a test may damage."""
    return shutil.copytree(trained.run, tmp_path / "copied")


@pytest.fixture
def edit(trained):
    """Return a function that changes a function in the user's file, restored at the end."""
    text = trained.file.read_text()
    yield lambda: trained.file.write_text(text.replace("** 2", "** 3"))
    trained.file.write_text(text)


def contents(folder):
    return {path: path.stat().st_mtime_ns for path in folder.rglob("*")}


def losses(run):
    return [(x["split"], x["step"], x["loss"]) for x in read_metrics(run / "metrics.jsonl")]


@pytest.mark.parametrize("command", ["evaluate", "generate", "inspect", "train --resume"])
def test_without_consent_nothing_is_executed(fails, trained, another_user, command):
    assert "attention=tempered of mine.py activation=squared of mine.py " in trained.printed
    executed, before = trained.file.with_name("executed").read_text(), contents(trained.run)
    message = fails(f"{command} {{trained}}")
    assert all(word in message for word in ("tempered of mine.py", str(trained.run), "--trust"))
    assert trained.file.with_name("executed").read_text() == executed
    assert contents(trained.run) == before


def test_a_run_resumes_from_its_copy_bit_for_bit(tlite, trained, copied, edit):
    """Where the file has changed; the command that is printed at the end works in a new process."""
    edit()
    shutil.rmtree(copied / "checkpoints" / "4")
    code, out, err = tlite("train --resume {copied}")
    assert code == 0, err
    assert "step 4 " in out
    assert losses(copied) == losses(trained.run)
    user_code._programs.clear()
    code, written, _ = tlite(out.partition("python -m tlite ")[2].strip() + " --tokens 5")
    assert (code, bool(written)) == (0, True)


def test_a_study_resumes_from_its_copy(tlite, works, trained, edit, tmp_path, monkeypatch):
    monkeypatch.setattr(GeneratorRun, "report", lambda *_: None)
    monkeypatch.setattr("tlite.comparison.compare", lambda *_: None)
    works(f"train {trained.file} --vary learning-rate 0.02 0.01 --run study")
    folder = tmp_path / "study" / read_study(tmp_path / "study").variants[1].run
    expected = losses(folder)
    shutil.rmtree(folder)
    edit()
    user_code._programs.clear()
    code, _, err = tlite("train --resume study")
    assert code == 0, err
    assert f"{trained.file} has changed" in err
    assert losses(folder) == expected


def test_a_resume_with_trust_can_be_resumed(tlite, works, another_user, copied, monkeypatch):
    def interrupt(*_):
        raise Interrupted("stopped", signal.SIGTERM)

    with monkeypatch.context() as patch:
        patch.setattr("tlite.runs.run.fit", interrupt)
        code, _, err = tlite("train --resume {copied} --trust")
    assert code == 128 + signal.SIGTERM
    user_code._programs.clear()
    assert works(err.partition("to resume: python -m tlite ")[2].strip())


def test_the_command_line_replaces_a_function_by_name(train, works, trained):
    assert "(default: tempered)" in " ".join(works(f"train {trained.file} --help").split())
    run = train(f"{trained.file} --feed-forward.activation gelu --attention exact").run
    user_code._programs.clear()
    assert works(f"generate {run} --tokens 5")
