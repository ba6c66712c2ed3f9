"""Folders of runs that were never trained: a config, and metrics or scores that a test chooses."""

import dataclasses
import datetime
import json
import os
from pathlib import Path

import numpy as np

from experiments.masked_language_model import MaskedExperiment
from tlite.config import to_dict
from tlite.data import BuiltinText, CopyTask, SyntheticReviews
from tlite.experiment import ClassifierExperiment, GeneratorExperiment, TranslatorExperiment
from tlite.models import ClassifierConfig, GeneratorConfig, MaskedConfig, Seq2SeqConfig
from tlite.training import TrainingConfig
from tlite.training.metrics import save_example_scores, summarize_seeds
from tlite.training.run_dir import METRICS

TRAINING = TrainingConfig(steps=40, batch_size=4, evaluate_every=10, seeds=3)
GENERATOR = GeneratorExperiment(
    "fake",
    BuiltinText(),
    GeneratorConfig(vocabulary_size=11, context=8, width=8, num_heads=2, num_blocks=2),
    TRAINING,
)
MASKED = MaskedExperiment(  # a class that is not tlite's
    "fake",
    BuiltinText(),
    MaskedConfig(vocabulary_size=11, context=8, width=8, num_heads=2, num_blocks=2),
    TRAINING,
)
CLASSIFIER = ClassifierExperiment(
    "fake",
    SyntheticReviews(),
    model=ClassifierConfig(vocabulary_size=11, num_classes=2, context=8, width=8, num_heads=2),
    training=dataclasses.replace(TRAINING, best_metric="accuracy"),
)
TRANSLATOR = TranslatorExperiment(
    "fake",
    CopyTask(),
    model=Seq2SeqConfig(
        vocabulary_size=11, source_vocabulary_size=11, context=8, width=8, num_heads=2
    ),
    training=dataclasses.replace(TRAINING, best_metric="bleu"),
)
DATA = {"characters": 1000, "sha256": "d" * 64}
RATE = 1000


def write(path, content):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content if isinstance(content, str) else json.dumps(content))


def fake_run(
    folder: Path,
    experiment=GENERATOR,
    final=None,
    *,
    data=None,
    tokens="t",
    until=None,
    others=(),
    examples=None,
) -> Path:
    """Write a run of M seeds whose measure reaches `final` (M,) at its last step.

    Args:
        tokens: SHA-256 of the tokenizer.
        until: Step at which the run was stopped.
        others: Names of further measures with the same numbers.
        examples: Scores of examples (M, N), used in place of `final`.
    """
    content = {
        "experiment": to_dict(experiment),
        "data": data or DATA,
        "tokenizer": {"file": "tokenizer.json", "sha256": tokens},
        "made_with": {"jax": "0.10.2", "commit": "c"},
    }
    write(folder / "config.json", content)
    training = experiment.training
    if examples is not None:
        final = examples.mean(1)
        sums = {training.best_metric: examples, "count": np.ones_like(examples)}
        save_example_scores(folder, training.steps if until is None else until, sums)
    if final is None:
        final = np.linspace(1.0, 1.1, training.seeds)
    lines = [
        line
        for step in range(1, (training.steps if until is None else until) + 1)
        for line in metrics_lines(training, step, np.asarray(final, float), others)
    ]
    write(folder / "metrics.jsonl", "".join(json.dumps(line) + "\n" for line in lines))
    return folder


def fake_study(folder: Path, variants: dict, failed=(), later=None) -> Path:
    """Write a study of variants (name: run).

    Args:
        failed: Names of variants without a run, which failed before it was created.
        later: Reasons of failures after the run was created, by name.
    """
    reasons = dict.fromkeys(failed, "it was not finite") | (later or {})
    runs = variants | {name: name for name in failed}
    common = {"experiment": {}, "data": {}, "parameters": 1}
    entries = [
        {"name": name, "run": run, "failed": reasons.get(name)} | common
        for name, run in runs.items()
    ]
    write(folder / "study.json", {"name": folder.name, "variants": entries})
    return folder


def metrics_lines(training, step, final, others):
    """Return the training line of a step, and the line of a validation after it."""
    sign = 1 if training.best_metric == "loss" else -1
    values = final * (1 + sign * 0.5 * (training.steps - step) / training.steps)
    line = {"step": step, "split": "training"} | summarize_seeds({"loss": abs(values)})
    yield line | {"tokens_per_second": RATE}
    if training.is_eval_step(step):
        means = {"loss": abs(values)} | dict.fromkeys([training.best_metric, *others], values)
        yield {"step": step, "split": "validation"} | summarize_seeds(means)


def make_run(
    folder, age, *, scores=(), kind="GeneratorExperiment", best_metric="loss", steps=9, created=None
):
    """Write what `tlite runs` reads of a run: validations every 3 steps, checkpoints (step, score).

    Args:
        age: seconds since config.json was written.
        created: seconds since the time that config.json records; None: it records none.
    """
    training = to_dict(TrainingConfig(steps=steps, best_metric=best_metric, evaluate_every=3))
    content = {"experiment": {"kind": kind, "name": "tiny", "training": training}, "data": {}}
    if created is not None:
        content["created"] = str(datetime.datetime.fromtimestamp(1e9 - created))
    write(folder / "config.json", content)
    for step, score in scores:
        write(folder / "checkpoints" / str(step) / METRICS, {"step": step, "score": score})
    os.utime(folder / "config.json", (1e9 - age, 1e9 - age))
    return folder
