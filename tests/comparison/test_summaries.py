"""Rows of a comparison: labels, validations, progress, failures and costs of runs."""

import json
from dataclasses import dataclass, replace
from pathlib import Path

import jax
import numpy as np
import pytest

from tests.helpers.complaints import complaint
from tests.helpers.fake_runs import (
    CLASSIFIER,
    GENERATOR,
    MASKED,
    RATE,
    TRANSLATOR,
    fake_run,
    fake_study,
)
from tests.helpers.runs import varied
from tlite import models as M
from tlite.comparison.comparable import METRICS
from tlite.comparison.flops import base_kind, flops_of_generator
from tlite.comparison.summaries import read_summaries, shares_initial_values
from tlite.config import to_dict
from tlite.experiment import ClassifierExperiment, TranslatorExperiment
from tlite.models.low_rank import LowRank
from tlite.models.parameters import named_arrays
from tlite.training import ParameterGroup
from tlite.training.checkpoints import Checkpoints
from tlite.training.metrics import summarize_seeds

D, F, T, V = 8, 32, 8, 11
BLOCK = 4 * D * D + D + 2 * D * F + F + D + 4 * D  # queries, keys and values have no biases
LOSS = METRICS["loss"]


def read(*folders):
    return read_summaries(folders)[0]


def change_config(run, **fields):
    """Change fields of the experiment in config.json."""
    content = json.loads((run / "config.json").read_text())
    content["experiment"] |= fields
    (run / "config.json").write_text(json.dumps(content))
    return run


# Folders and labels


def test_a_study_stands_for_its_variants(tmp_path):
    study = tmp_path / "study"
    for run in ("base", "rms"):
        fake_run(study / run)
    variants = {"layer": "base", "rms norm": "rms", "later": "later"}
    runs, missing = read_summaries([fake_study(study, variants, failed=["broken"])])
    assert [(r.label, r.folder.name) for r in runs] == [("layer", "base"), ("rms norm", "rms")]
    assert missing == ["later has not begun", "broken failed: it was not finite"]
    content = json.loads((study / "study.json").read_text())
    content["variants"][1] |= {"tuned": {"training.learning_rate": 0.003}}
    (study / "study.json").write_text(json.dumps(content))
    assert read_summaries([study])[1][0] == "rms norm was tuned: learning_rate=0.003"
    content["variants"][1] |= {"tuned": None}
    (study / "study.json").write_text(json.dumps(content))
    runs, missing = read_summaries([study, fake_run(tmp_path / "run")])
    assert [run.label for run in runs] == ["study/layer", "study/rms norm", "run"]
    assert missing[0] == "study/later has not begun"


def test_labels_are_short_unique_and_printable(tmp_path, monkeypatch):
    runs = [fake_run(tmp_path / name) for name in ("a/run", "b/run", "a/other", "a\nb \x1b[31m<i>")]
    assert [r.label for r in read(*runs[:2])] == ["a/run", "b/run"]
    assert [r.label for r in read(runs[0], runs[2])] == ["run", "other"]
    assert [r.label for r in read(runs[0], runs[0])] == ["run", "run"]
    assert read(runs[3])[0].label == "a b ␛[31m<i>"
    monkeypatch.chdir(runs[0])
    assert read(Path("."))[0].label == "run"


def test_folders_without_a_run_are_errors(tmp_path):
    for content in ('{"model_type": "gpt2"}', '{"experiment": '):
        (tmp_path / "config.json").write_text(content)
        assert str(tmp_path) in complaint(read, tmp_path)
    run, training = fake_run(tmp_path / "run"), to_dict(GENERATOR.training)
    assert "steps" in complaint(read, change_config(run, training=training | {"steps": "many"}))
    assert "TrainingConfig" in complaint(read, change_config(run, training=None))
    (tmp_path / "study.json").write_text("{")
    assert "study.json" in complaint(read, tmp_path)


# Validations and progress


def write(folder, *lines):
    """Replace the metrics of a run and read it."""
    text = "".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines)
    (folder / "metrics.jsonl").write_text(text)
    return read(folder)[0]


def validation(step, *losses, **others):
    values = {"loss": np.array(losses)} | {name: np.array(v) for name, v in others.items()}
    return {"step": step, "split": "validation"} | summarize_seeds(values)


def training(step, *losses, rate=RATE):
    line = {"step": step, "split": "training"} | summarize_seeds({"loss": np.array(losses)})
    return line | {"tokens_per_second": rate}


def test_a_finished_run_has_its_last_values_and_its_curve(tmp_path):
    (run,) = read(fake_run(tmp_path / "r", varied(GENERATOR, seed=5), final=[1.0, 2.0, 3.0]))
    assert (run.step, run.finished, run.best_step, run.diverged) == (40, True, 40, None)
    assert run.values(LOSS) == {5: 1.0, 6: 2.0, 7: 3.0}
    steps, values = run.curve(LOSS)
    assert steps.tolist() == [10, 20, 30, 40]
    np.testing.assert_allclose(values[1], np.array([1.0, 2.0, 3.0]) * 1.25)
    for until, best in ((25, 20), (5, None), (0, None)):
        (run,) = read(folder := fake_run(tmp_path / str(until), until=until))
        assert (run.step, run.finished, run.best_step) == (until, False, best)
        assert bool(run.values(LOSS)) == (best is not None)
        assert len(run.minutes) == until
    (folder / "metrics.jsonl").unlink()
    assert read(folder)[0].step == 0


@pytest.mark.parametrize(
    ("lines", "best", "last"),
    [
        # The mean over seeds decides; of two equal steps the first.
        ([(10, 1.0, 5.0), (20, 2.0, 3.0), (30, 3.0, 2.0)], 20, 30),
        # Validations at an interruption do not count, that of the last step does.
        ([(10, 3.0, 3.0), (17, 1.0, 1.0), (20, 2.0, 2.0)], 20, 20),
        ([(10, 3.0, 3.0), (17, 1.0, 1.0), (35, 2.5, 2.5)], 35, 35),
        ([(10, 1.0, 1.0), (20, 2.0, 3.0), (27, 1.5, 1.5)], 10, 20),
        ([(10, 1.0, np.nan), (20, 4.0, 2.0)], 20, 20),
        ([(10, 1.0, 1.0), (20, 2.0, np.nan)], 10, 20),
        ([(10, 2.0, 2.0), (10, 1.0, 1.0)], 10, 10),
    ],
)
def test_scores_are_those_of_the_best_and_last_validation(tmp_path, lines, best, last):
    """The best is that of the best checkpoint; a run's scores are those of the last."""
    folder = fake_run(tmp_path / "r", varied(GENERATOR, seeds=2, steps=35))
    run = write(folder, *(validation(*line) for line in lines))
    assert (run.best_step, run.last_validation) == (best, last)
    losses = {step: dict(enumerate(values)) for step, *values in lines}
    assert run.values(LOSS, best) == losses[best]
    assert run.values(LOSS) == (losses[last] if np.isfinite([*losses[last].values()]).all() else {})


def test_seeds_share_initial_values_of_arrays_of_equal_size(tmp_path):
    changes = {
        "alpha": (True, {"groups": (ParameterGroup("*.bias", learning_rate_factor=0.5),)}),
        "positions": (False, {"positions": "rotary"}),
        "width": (False, {"width": 16}),
        "init": (False, {"init": "gpt2"}),
        "group": (False, {"groups": (ParameterGroup("head.*", init="normal"),)}),
        "low_rank": (False, {"low_rank": LowRank()}),
    }
    folders = [
        fake_run(tmp_path / name, varied(GENERATOR, **change, learning_rate=0.5))
        for name, (_, change) in changes.items()
    ]
    first, *others = read(fake_run(tmp_path / "first"), *folders)
    shared = {run.label: shares_initial_values(run, first) for run in others}
    assert shared == {name: is_same for name, (is_same, _) in changes.items()}


def test_a_run_fails_at_a_training_loss_that_is_not_finite(tmp_path):
    folder, nan = fake_run(tmp_path / "r", varied(GENERATOR, seeds=2)), float("nan")
    run = write(folder, validation(10, 5.0, 1.0), training(11, 5.0, nan), training(12, nan, nan))
    assert (run.diverged, run.values(LOSS), run.best_step) == ((11, [1]), {}, None)
    assert run.failed == "the training loss of seed 1 is not finite at step 11"
    assert len(run.curve(LOSS)[0]) == 0


@pytest.mark.parametrize(
    "line",
    [
        *["", "[1]", "\0\0\0", '{"step": 20, "split": "valid'],
        '{"step": 20, "split": "validation"}',
        '{"step": 20, "split": "test", "loss": 0.1, "loss_replicas": [0.1, 0.1]}',
        '{"step": 20, "split": "validation", "accuracy": 0.1, "accuracy_replicas": [0.1, 0.1]}',
    ],
)
def test_truncated_and_foreign_lines_are_ignored(tmp_path, line):
    folder = fake_run(tmp_path / "r", varied(GENERATOR, seeds=2))
    run = write(folder, line, validation(10, 1.0, 2.0), line, training(11, 1.0, 2.0))
    assert (run.best_step, run.values(LOSS), run.diverged) == (10, {0: 1.0, 1: 2.0}, None)


# Costs


def cost(tmp_path, experiment):
    """Return the number of parameters, and tokens and FLOPs of a step."""
    (run,) = read(fake_run(tmp_path / "r", experiment, until=0))
    shapes = jax.eval_shape(lambda: M.make_model(experiment.model, rng=jax.random.key(0)))
    assert run.parameters == sum(leaf.size for leaf in jax.tree.leaves(shapes))
    return run.parameters, run.tokens_per_step, run.flops_per_step


def test_a_generator_costs_what_the_plan_says(tmp_path):
    attention, head = M.Attention(head_dim=6), M.LMHead(tied=True)
    parts = {"positions": "relative", "attention": attention, "head": head}
    experiment = varied(GENERATOR, **parts, gradient_accumulation_steps=3)
    _, tokens, flops = cost(tmp_path, experiment)
    assert tokens == 3 * 4 * T
    assert flops == tokens * flops_of_generator(experiment.model)


def test_flops_count_the_head_once_per_text_and_sentence(tmp_path):
    experiment = varied(CLASSIFIER, pool=M.Pool("mean"))
    _, tokens, flops = cost(tmp_path, experiment)
    per_token = BLOCK + 12 / 6 * D * T  # weights, and products of queries, keys and values
    per_text = 2 * D + 2
    assert tokens == 4 * T
    assert flops == pytest.approx(6 * 4 * (T * per_token + per_text))
    by_sentence = cost(tmp_path / "sentences", replace(experiment, sentences=5))
    assert by_sentence[1:] == (5 * tokens, 5 * flops)


def test_frozen_matrices_have_no_flops_of_their_gradient(tmp_path):
    *_, tokens, flops = cost(tmp_path / "all", GENERATOR)
    frozen = cost(tmp_path / "frozen", varied(GENERATOR, trainable="head.* embedding.*"))[2]
    assert flops - frozen == tokens * 2 * 2 * BLOCK
    low_rank = {"low_rank": LowRank("*.kernel"), "trainable": "*.bias *.scale"}
    assert cost(tmp_path / "low_rank", varied(GENERATOR, **low_rank))[2] == flops


def test_flops_do_not_count_tables(tmp_path):
    def wide(**sizes):
        return cost(tmp_path / str(sizes), varied(CLASSIFIER, wide=M.Wide(**sizes)))

    parameters, _, flops = wide()
    assert wide(bigrams=100)[::2] == (parameters + 2 * (V + 100) + 2, flops)
    assert wide(num_word_ngrams=50, num_character_ngrams=70)[2] == flops
    logistic = replace(CLASSIFIER, model=M.LogisticConfig(V, 2))
    assert cost(tmp_path / "logistic", logistic) == (2 * V + 2, 4 * 400, None)


@pytest.mark.parametrize("embeddings", ["tied", "shared", "separate"])
def test_a_batch_of_a_translator_counts_tokens(tmp_path, embeddings):
    experiment = varied(TRANSLATOR, head=M.TranslatorHead(embeddings), batch_size=100)
    number, tokens, flops = cost(tmp_path, experiment)
    tables = {"tied": 0, "shared": V * D, "separate": 2 * V * D}[embeddings]
    assert (tokens, flops) == (100, 100 * 6 * (number - tables))


@dataclass(frozen=True)
class MyClassifier(ClassifierExperiment):
    """A class of the user's."""


@dataclass(frozen=True)
class MyTranslator(TranslatorExperiment):
    """A class of the user's."""


def test_a_subclass_costs_what_its_base_does(tmp_path):
    subclasses = [
        (GENERATOR, MASKED),
        (CLASSIFIER, MyClassifier(**vars(CLASSIFIER))),
        (TRANSLATOR, MyTranslator(**vars(TRANSLATOR))),
    ]
    for base, experiment in subclasses:
        folders = [fake_run(tmp_path / type(e).__name__, e) for e in (base, experiment)]
        expected, run = read(*folders)
        assert run.experiment["kind"] == type(experiment).__name__
        assert base_kind(run.experiment) == expected.experiment["kind"] == type(base).__name__
        assert run.tokens_per_step == expected.tokens_per_step


def test_parameters_of_user_code_are_read_from_a_checkpoint(tmp_path):
    """The user's file is not executed: here it does not exist."""
    expected = cost(tmp_path, GENERATOR)
    function = {"kind": "function", "file": "gone.py", "name": "my_norm"}
    function["sha256"] = {"gone.py": "0" * 64}
    model = to_dict(GENERATOR.model) | {"norm": {"kind": "NormFunction", "function": function}}
    folder = change_config(fake_run(tmp_path / "custom"), model=model)
    (run,) = read(folder)
    assert run.parameters is run.flops_per_step is None
    assert run.values(LOSS)
    shapes = jax.eval_shape(lambda: M.make_model(GENERATOR.model, rng=jax.random.key(0)))
    arrays = {name: np.zeros((3, *a.shape), a.dtype) for name, a in named_arrays(shapes).items()}
    state = {"parameters": arrays, "optimizer": {"0": np.zeros(3)}}
    with Checkpoints(folder / "checkpoints", writing=True) as checkpoints:
        checkpoints.save(10, state)
    (run,) = read(folder)
    assert (run.parameters, run.tokens_per_step, run.flops_per_step) == expected
    for path in (folder / "checkpoints" / "10").rglob("*"):
        if path.is_file() and path.name != "metrics":
            path.write_bytes(b"{")
    assert read(folder)[0].parameters is None
