"""Tiny runs of classifiers and translators, and functions to interrupt and compare them."""

import contextlib
import copy
import dataclasses
import json
import signal
from pathlib import Path

import jax
import numpy as np
import pytest

from tlite.data import BuiltinText, CopyTask, LabelledText, SyntheticReviews, TextFile
from tlite.errors import Interrupted
from tlite.experiment import (
    ClassifierExperiment,
    GeneratorExperiment,
    PairSubwords,
    TranslatorExperiment,
    Words,
)
from tlite.models import (
    ClassifierConfig,
    Embedding,
    GeneratorConfig,
    LogisticConfig,
    Pool,
    Seq2SeqConfig,
)
from tlite.runs import ClassifierRun, Run
from tlite.training import Trainer, TrainingConfig
from tlite.training.checkpoints import Checkpoints
from tlite.training.loop import restore
from tlite.training.metrics import read_example_scores, read_metrics

STEPS = 6
TRAINING = TrainingConfig(
    steps=STEPS, batch_size=8, learning_rate=1e-2, evaluate_every=2, seeds=2, precision="float32"
)
SMALL = {"width": 8, "num_heads": 2}
TRANSFORMER = ClassifierExperiment(
    "tiny",
    SyntheticReviews(reviews=60),
    Words(min_document_frequency=1),
    ClassifierConfig(context=12, **SMALL, embedding=Embedding(word_dropout=0.1), pool=Pool("mean")),
    TRAINING,
)
LOGISTIC = dataclasses.replace(TRANSFORMER, model=LogisticConfig(context=12))
TRANSLATOR = TranslatorExperiment(
    "tiny",
    CopyTask(letters=4, longest=5, sequences=60),
    PairSubwords(num_subwords=20),
    Seq2SeqConfig(context=8, **SMALL, num_blocks=1),
    dataclasses.replace(TRAINING, batch_size=128, max_to_keep=3),
    buckets=1,
    beam=2,
    bleu_sentences=2,
)
GENERATOR = GeneratorExperiment(
    "tiny",
    BuiltinText(),
    GeneratorConfig(context=8, **SMALL, num_blocks=1),
    TrainingConfig(steps=4, batch_size=4, evaluate_every=2, learning_rate=1e-2),
    prompt="the",
)
LABELS = {"1": "negative", "3": "", "5": "positive"}
TEXTS = [
    ("It is good. I like it! Very good sound", "5"),
    ("Bad. The sound is bad? I do not like it", "1"),
    ("It is there. It is fine", "3"),
    ("A good camera", "5"),
    ("A bad lamp. It broke", "1"),
]


def on_text(path: Path, text: str = "the cat sat on the mat. " * 20, **fields):
    """Write a text, and return the experiment of a generator on it with other fields."""
    path.write_text(text)
    return varied(GENERATOR, data=TextFile(str(path)), **fields)


def labelled(path: Path, rows=TEXTS, **settings) -> LabelledText:
    """Write texts into a file and return it as both splits."""
    path.write_text("".join(json.dumps({"text": t, "label": v}) + "\n" for t, v in rows))
    files = {"training": (str(path),), "validation": (str(path),)}
    files |= {"text_column": "text", "label_column": "label"}
    return LabelledText(**{"labels": LABELS} | files | settings)


def varied(experiment, **fields):
    """Return the experiment with other fields of itself or of its data, model or training."""
    changes = {name: fields.pop(name) for name in [*fields] if hasattr(experiment, name)}
    experiment = dataclasses.replace(experiment, **changes)
    for component in ("data", "model", "training"):
        config = getattr(experiment, component)
        changes = {name: fields.pop(name) for name in [*fields] if hasattr(config, name)}
        config = dataclasses.replace(config, **changes)
        experiment = dataclasses.replace(experiment, **{component: config})
    assert not fields, fields
    return experiment


def without_report(run):
    """Return the run without the report at its end, which takes longer than training."""
    run.report = lambda: None
    return run


def train(experiment: ClassifierExperiment, folder: Path) -> ClassifierRun:
    """Create a run and train it to its end."""
    run = without_report(Run.create(experiment, folder))
    run.train()
    return run


def start_like(run, folder: Path, **training):
    """Create another run of the experiment with the compiled programs of this one.

    The number of steps does not change them.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Trainer, "compile", lambda *_: None)
        new = Run.create(varied(run.experiment, **training), folder)
    new.trainer = with_programs_of(run.trainer, new.trainer)
    return without_report(new)


def with_programs_of(trainer: Trainer, other: Trainer) -> Trainer:
    """Return `other` with the compiled programs of `trainer`, whose shapes are the same."""
    shared = copy.copy(trainer)
    shared.config, shared.loader = other.config, other.loader
    return shared


class Killed(BaseException):
    """Simulates a killed process: no handler catches it."""


@contextlib.contextmanager
def killed_at(owner, name: str, time: int = 1):
    """Kill the process at call number `time` of the function `owner.name`, and expect that."""
    calls, original = [], getattr(owner, name)

    def called(*arguments, **settings):
        calls.append(name)
        if len(calls) == time:
            raise Killed
        return original(*arguments, **settings)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(owner, name, called)
        with pytest.raises(Killed):
            yield


def stopped(train, *arguments) -> str:
    """Return the message of an interrupted run."""
    with pytest.raises(Interrupted) as stop:
        train(*arguments)
    assert stop.value.exit_code == 128 + signal.SIGINT
    return str(stop.value)


def interrupt(monkeypatch, step: int, pretraining: bool = False) -> None:
    """Send Ctrl-C while `step` is computed, of the run or of its pretraining."""
    dispatch = Trainer.dispatch

    def interrupted(trainer, state, first, num_steps):
        if trainer.task.has_perplexity == pretraining and first < step <= first + num_steps:
            signal.raise_signal(signal.SIGINT)
        return dispatch(trainer, state, first, num_steps)

    monkeypatch.setattr(Trainer, "dispatch", interrupted)


def interrupted(run, folder: Path, step: int, pretraining: bool = False):
    """Return another run of the experiment, stopped by Ctrl-C at `step` or a little later.

    Args:
        pretraining: True while the task has a perplexity, as those of all but classifiers.
    """
    new = start_like(run, folder)
    with pytest.MonkeyPatch.context() as patch:
        interrupt(patch, step, pretraining)
        assert stopped(new.train).endswith(f"tlite train --resume {folder}")
    return new


def resume(folder: Path) -> ClassifierRun:
    run = without_report(Run.open(folder))
    run.train()
    return run


def assert_same_state(run: ClassifierRun, other: ClassifierRun) -> None:
    """Assert equal bits of the state at the end, and equal losses of steps and validations."""
    states, losses, validations, examples = [], [], [], []
    for one in (run, other):
        with Checkpoints(one.dir.checkpoints) as checkpoints:
            replicas, step = restore(one.trainer, checkpoints)
        assert step == one.experiment.training.steps
        states.append((replicas.parameters, replicas.optimizer, replicas.ema))
        lines = read_metrics(one.dir.metrics)
        # Bits per byte are a multiple of the loss, and unknown for a corpus of numbers.
        validations.append([
            {name: value for name, value in line.items() if "bits_per_byte" not in name}
            for line in lines
            if line["split"] == "validation"
        ])  # fmt: skip
        lines = [line for line in lines if line["split"] == "training"]
        assert [line["step"] for line in lines] == list(range(1, step + 1))
        losses.append([line["loss"] for line in lines])
        examples.append(read_example_scores(one.dir.path))
    jax.tree.map(np.testing.assert_array_equal, *states)
    assert losses[0] == losses[1]
    assert validations[0] == validations[1]
    assert examples[0].step == examples[1].step
    np.testing.assert_array_equal(*(saved.sums["loss"] for saved in examples))


def assert_has_examples(run) -> None:
    """Assert that the saved scores of examples have the means of the last validation by seed."""
    scores, step = read_example_scores(run.dir.path), run.parameters("last")[1]
    assert scores.step == step
    lines = {line["step"]: line for line in read_metrics(run.dir.metrics) if "accuracy" in line}
    totals = {name: sums.sum(1) for name, sums in scores.sums.items()}
    means = {name: totals[name] / scores.count.sum() for name in ("loss", "accuracy")}
    if "bytes" in totals:
        means["bits_per_byte"] = totals["loss"] / np.log(2) / totals["bytes"]
    for name, values in means.items():
        right = lines[step].get(f"{name}_replicas", [lines[step][name]])
        np.testing.assert_allclose(values, right, rtol=1e-5)
