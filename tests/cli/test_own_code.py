"""Runs with user code: they use the copy in their folder, and execute it only with consent."""

import shutil
import signal
from types import SimpleNamespace

import pytest

from tlite import load, user_code
from tlite.comparison.study import read_study
from tlite.errors import Interrupted, UserError
from tlite.training.metrics import read_metrics

pytestmark = pytest.mark.usefixtures("one_device")

TEXT = "The quick brown fox jumps over the lazy dog.\n" * 40
TRAINING = (
    "TrainingConfig(steps=4, batch_size=32, learning_rate=0.02, evaluate_every=2, max_to_keep=2, "
    'precision="float32")'
)
FUNCTIONS = '''
import jax
import jax.numpy as jnp
from tlite import functional as F
from tlite.data import TextFile
from tlite.experiment import GeneratorExperiment
from tlite.models import Embedding, FeedForward, GeneratorConfig
from tlite.training import TrainingConfig

def alibi(params, query, key, value, mask=None):
    """ALiBi with a learned temperature for each head."""
    slopes = 2.0 ** -jnp.arange(1, 1 + query.shape[-3])
    scores = jnp.einsum("...tk,...sk->...ts", query, key) / query.shape[-1] ** 0.5
    scores = params.temperature[:, None, None] * scores
    scores += slopes[:, None, None] * jnp.arange(key.shape[-2])
    weights = jax.nn.softmax(scores, where=mask)
    return weights @ value, weights

alibi.init_params = lambda rng, config: {"temperature": jnp.full(config.num_heads, 3.0)}

def squared(x):
    return jax.nn.relu(x) ** 2
'''
EXPERIMENT = """
experiment = GeneratorExperiment("mine", TextFile({text!r}, 0.1), GeneratorConfig(
    context=16, width=8, num_heads=2, num_blocks=1, dropout=0.0, positions="none", block="pre_norm",
    embedding=Embedding(1.0), attention=alibi, feed_forward=FeedForward(activation=squared)
), {training}, prompt="The ")
"""


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


@pytest.fixture
def edited(trained):
    """The user's file with another function, restored at the end."""
    text = trained.file.read_text()
    trained.file.write_text(text.replace("** 2", "** 3"))
    yield trained.file
    trained.file.write_text(text)


@pytest.fixture(scope="module")
def trained(train_without_report, tmp_path_factory, state):
    """A run of a user's experiment file, and the file."""
    folder = tmp_path_factory.mktemp("own")
    (folder / "text.txt").write_text(TEXT)
    file, settings = folder / "mine.py", {"text": str(folder / "text.txt"), "training": TRAINING}
    statement = f"open({str(folder / 'executed')!r}, 'a').write('x')\n"
    file.write_text(statement + FUNCTIONS + EXPERIMENT.format(**settings))
    return SimpleNamespace(file=file, **vars(train_without_report(str(file))))


def contents(folder):
    return {path: path.stat().st_mtime_ns for path in folder.rglob("*")}


def losses(run, split="validation"):
    return [x["loss"] for x in read_metrics(run / "metrics.jsonl") if x["split"] == split]


COMMANDS = ["evaluate {run}", "generate {run}", "inspect {run}", "train --resume {run}"]


@pytest.mark.parametrize("command", COMMANDS)
def test_without_consent_nothing_is_executed(fails, trained, another_user, command):
    assert "attention=alibi of mine.py activation=squared of mine.py " in trained.printed
    executed, before = trained.file.with_name("executed").read_text(), contents(trained.run)
    message = fails(command)
    assert all(word in message for word in ("alibi of mine.py", str(trained.run), "--trust"))
    assert trained.file.with_name("executed").read_text() == executed
    assert contents(trained.run) == before


def test_another_user_s_run_works_with_trust(works, trained, another_user):
    assert works("generate {run} --tokens 5 --trust")
    user_code._programs.clear()
    with pytest.raises(UserError, match="trust=True"):
        load(trained.run)
    assert load(trained.run, trust=True)


def test_a_run_resumes_from_its_copy_bit_for_bit(tlite, works, trained, copied, edited):
    shutil.rmtree(copied / "checkpoints" / "4")
    code, out, err = tlite("train --resume {copied}", copied=copied)
    assert code == 0, err
    assert "step 4 " in out
    for split in ("training", "validation"):
        assert losses(copied, split) == losses(trained.run, split)


def test_a_study_resumes_from_its_copy(tlite, works, trained, request, tmp_path):
    works(f"train {trained.file} --vary learning-rate 0.02 0.01 --run study")
    folder = tmp_path / "study" / read_study(tmp_path / "study").variants[1].run
    expected = losses(folder, "training")
    shutil.rmtree(folder)
    request.getfixturevalue("edited")
    user_code._programs.clear()
    code, _, err = tlite("train --resume study")
    assert code == 0, err
    assert f"{trained.file} has changed" in err
    assert losses(folder, "training") == expected


def test_a_resume_with_trust_can_be_resumed(tlite, works, copied, another_user, monkeypatch):
    def interrupt(*_):
        raise Interrupted("stopped", signal.SIGTERM)

    with monkeypatch.context() as patch:
        patch.setattr("tlite.runs.run.fit", interrupt)
        code, _, err = tlite("train --resume {copied} --trust", copied=copied)
    assert code == 128 + signal.SIGTERM
    user_code._programs.clear()
    assert works(err.partition("to resume: python -m tlite ")[2].strip())


def test_a_printed_command_works_in_a_new_process(works, copied):
    shutil.rmtree(copied / "checkpoints" / "4")
    printed = works("train --resume {copied}", copied=copied).partition("python -m tlite ")[2]
    user_code._programs.clear()
    assert works(f"{printed.strip()} --tokens 5")


def test_the_command_line_replaces_a_function_by_name(train_without_report, works, trained):
    assert "(default: alibi)" in " ".join(works(f"train {trained.file} --help").split())
    run = train_without_report(
        f"{trained.file} --feed-forward.activation gelu --attention exact"
    ).run
    user_code._programs.clear()
    assert works(f"generate {run} --tokens 5")
