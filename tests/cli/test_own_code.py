"""Runs with functions of user files: without --code they are refused, with it they work."""

import shutil
from types import SimpleNamespace

import pytest

from tlite import user_code
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


@pytest.fixture(autouse=True)
def new_process(monkeypatch):
    """Forget the files that were named and run, as a new process."""
    monkeypatch.setattr(user_code, "_named", [])
    monkeypatch.setattr(user_code, "_programs", {})


@pytest.fixture(scope="module")
def trained(train_without_report, tmp_path_factory):
    """A run of a user's experiment file, and the file."""
    folder = tmp_path_factory.mktemp("own")
    (folder / "text.txt").write_text(TEXT)
    file, settings = folder / "mine.py", {"text": str(folder / "text.txt"), "training": TRAINING}
    file.write_text(FUNCTIONS + EXPERIMENT.format(**settings))
    return SimpleNamespace(file=file, **vars(train_without_report(str(file))))


@pytest.mark.parametrize(
    "command", ["evaluate {run}", "generate {run}", "inspect {run}", "train --resume {run}"]
)
def test_a_run_without_its_code_file_is_refused_and_unchanged(fails, trained, command):
    assert "attention=alibi of mine.py activation=squared of mine.py " in trained.printed
    before = {path: path.stat().st_mtime_ns for path in trained.run.rglob("*")}
    message = "tlite: the run uses alibi of mine.py: name that file, --code mine.py "
    assert fails(command).startswith(message)
    assert {path: path.stat().st_mtime_ns for path in trained.run.rglob("*")} == before


def losses(run, split="validation"):
    return [x["loss"] for x in read_metrics(run / "metrics.jsonl") if x["split"] == split]


def test_a_run_resumes_and_prints_a_next_command_that_works(works, trained, copied):
    shutil.rmtree(copied / "checkpoints" / "4")
    out = works(f"train --resume {{copied}} --code {trained.file}", copied=copied)
    assert "step 4 " in out
    printed = out.partition("python -m tlite ")[2].strip()
    user_code._programs.clear()
    user_code._named.clear()
    assert works(f"{printed} --tokens 5")
    for split in ("training", "validation"):
        assert losses(copied, split) == losses(trained.run, split)


@pytest.mark.parametrize("line", ["--feed-forward.activation alibi", "--attention 3"])
def test_the_command_line_can_t_set_a_function(fails, trained, line):
    message = fails(f"train {trained.file} {line} --run x")
    assert all(word in message for word in line.removeprefix("--").split())


def test_the_command_line_replaces_a_function_by_a_word(train_without_report, works, trained):
    assert "(default: alibi)" in " ".join(works(f"train {trained.file} --help").split())
    run = train_without_report(
        f"{trained.file} --feed-forward.activation gelu --attention exact"
    ).run
    user_code._programs.clear()
    assert works(f"generate {run} --tokens 5")
