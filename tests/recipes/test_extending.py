"""More steps for a run: it ends as one that had them from the start, or it is said why it can't."""

import copy
import dataclasses
import datetime
import gzip
import json
import shutil
from pathlib import Path

import jax
import numpy as np
import pytest

from tests.helpers.complaints import complaint
from tests.helpers.recipes import LOGISTIC, TRANSLATOR, interrupt, start_like, stopped, train
from tlite.cli import commands, main
from tlite.cli.options import Resume
from tlite.data import TextFile
from tlite.experiment import GeneratorExperiment
from tlite.models import FeedForward, GeneratorConfig
from tlite.recipes import RECIPES
from tlite.training import Trainer, TrainingConfig
from tlite.training.checkpoints import Checkpoints, saved_arrays
from tlite.training.loop import fit
from tlite.training.metrics import MetricsFile, read_metrics

pytestmark = pytest.mark.usefixtures("one_device")

BEFORE, AFTER = 5, 9  # no multiples of evaluate_every, which is 2
MODEL = GeneratorConfig(context=8, width=8, num_heads=2, num_blocks=1)
TRAINING = TrainingConfig(
    steps=BEFORE,
    batch_size=4,
    learning_rate=1e-2,
    schedule="inverse_sqrt",
    warmup_steps=3,
    evaluate_every=2,
)


@pytest.fixture
def generator(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("the cat sat on the mat. " * 20)
    return GeneratorExperiment("tiny", TextFile(str(path)), MODEL, TRAINING, prompt="the")


@pytest.fixture(autouse=True)
def no_reports(monkeypatch):
    """What is printed and drawn at the end of training is looked at elsewhere."""
    for kind in RECIPES.values():
        monkeypatch.setattr(kind, "report", lambda *_: None)


def resume(folder, **options):
    commands.resume(Resume(resume=folder, **options))


def with_steps(experiment, steps):
    training = dataclasses.replace(experiment.training, steps=steps)
    return dataclasses.replace(experiment, training=training)


def trained(experiment, folder, steps):
    return train(with_steps(experiment, steps), folder).run.folder


def trained_like(run, folder, steps):
    start_like(run, folder, steps=steps).train()
    return folder


@pytest.fixture(scope="module")
def classifier(tmp_path_factory):
    """A run that had all of the steps from the start."""
    return train(with_steps(LOGISTIC, AFTER), tmp_path_factory.mktemp("runs") / "whole")


@pytest.fixture(scope="module")
def whole(classifier):
    return classifier.run.folder


@pytest.fixture(scope="module")
def before(tmp_path_factory):
    return trained(LOGISTIC, tmp_path_factory.mktemp("runs") / "before", BEFORE)


@pytest.fixture
def ended(before, tmp_path):
    """A classifier of its own for each test, at its end."""
    return shutil.copytree(before, tmp_path / "run")


def records(folder):
    """The score and the bits of all arrays of each checkpoint."""
    found, device = {}, jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
    for path in (folder / "checkpoints").iterdir():
        abstract = jax.tree.map(
            lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=device),
            saved_arrays(path, ["parameters", "optimizer"]),
        )
        step, trees = Checkpoints(folder / "checkpoints").load(abstract, int(path.name))
        score = json.loads((path / "checkpoint.json").read_text())["score"]
        found[step] = score, jax.tree.map(lambda a: np.asarray(a).tobytes(), trees)
    return found


def config(folder):
    """All of it but when the run began, which is not the same for two runs."""
    content = json.loads((folder / "config.json").read_text())
    assert datetime.datetime.fromisoformat(content.pop("began")).tzinfo
    return content


def lines(folder, ended=()):
    return [
        {name: value for name, value in line.items() if name != "tokens_per_second"}
        for line in read_metrics(folder / "metrics.jsonl")
        if line["split"] == "training" or line["step"] not in ended
    ]


def assert_same_runs(folder, whole, ended=()):
    """Also the bits of all arrays; validations where a run had `ended` stay in the metrics."""
    assert records(folder) == records(whole)
    assert lines(folder, ended) == lines(whole)
    assert config(folder) == config(whole)


@pytest.mark.parametrize("kind", ["generator", "classifier", "translator"])
def test_a_run_with_more_steps_ends_as_one_that_had_them_from_the_start(
    kind, generator, tmp_path, request
):
    if kind == "translator":
        pytest.importorskip("tokenizers")
        pytest.importorskip("sacrebleu")
        model = dataclasses.replace(
            TRANSLATOR.model, dropout=0.0, feed_forward=FeedForward(dropout=0.0)
        )
        translator = dataclasses.replace(TRANSLATOR, model=model, bleu_sentences=0)
        run = train(with_steps(translator, AFTER), tmp_path / "whole")
        whole, folder = run.run.folder, trained_like(run, tmp_path / "run", BEFORE)
    elif kind == "classifier":
        whole, folder = map(request.getfixturevalue, ("whole", "ended"))
    else:
        whole = trained(generator, tmp_path / "whole", AFTER)
        folder = trained(generator, tmp_path / "run", BEFORE)
    assert main(["train", "--resume", str(folder), "--steps", str(AFTER)]) == 0
    assert_same_runs(folder, whole, ended=[BEFORE])


def test_an_unfinished_run_may_get_more_steps_or_fewer_that_are_not_done(classifier, tmp_path):
    whole = trained_like(classifier, tmp_path / "whole", 8)
    for name, steps in (("more", 6), ("fewer", 50)):
        with pytest.MonkeyPatch.context() as patch:
            interrupt(patch, 3)
            stopped(trained_like, classifier, tmp_path / name, steps)
        resume(tmp_path / name, steps=8)
        done = [line["step"] for line in lines(tmp_path / name) if line["split"] != "training"]
        assert_same_runs(tmp_path / name, whole, ended={*done} - {2, 4, 6, 8})


@pytest.fixture(scope="module")
def fitted(classifier):
    """Train in a folder; validations find the accuracies given, in turn."""
    trainer, batches = copy.copy(classifier.trainer), classifier.validation()

    def fit_to(folder, steps, accuracies, **changes):
        # None of what changes is compiled.
        changes |= {"steps": steps, "select": "accuracy"}
        trainer.config = dataclasses.replace(classifier.trainer.config, **changes)
        folder.mkdir(exist_ok=True)
        found = iter(accuracies)
        fit(trainer, folder, batches, 8, measure=lambda *_: {"accuracy": np.full(2, next(found))})
        return folder

    return fit_to


def best(folder, end):
    return Checkpoints(
        folder / "checkpoints", TrainingConfig(evaluate_every=2, steps=end)
    ).best_step()


def test_the_best_is_still_there_where_the_end_was_better_and_is_the_end_no_more(fitted, tmp_path):
    run = fitted(tmp_path / "run", 5, [0.5, 0.1, 0.9], keep=1)
    assert best(run, 5) == 5
    fitted(run, 9, [0.1, 0.2, 0.2], keep=1)
    whole = fitted(tmp_path / "whole", 9, [0.5, 0.1, 0.1, 0.2, 0.2], keep=1)
    assert best(run, 9) == best(whole, 9) == 2
    assert records(run) == records(whole)


def test_an_end_that_was_moved_and_moved_back_is_the_end_again(fitted, tmp_path, monkeypatch):
    run = fitted(tmp_path / "run", 5, [0.1, 0.2, 0.9])
    whole = records(run)
    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "train", lambda *_: pytest.exit("killed"))
        with pytest.raises(pytest.exit.Exception):
            fitted(run, 9, [])
    fitted(run, 5, [])
    assert records(run) == whole


def test_a_run_whose_patience_was_out_stays_ended(fitted, tmp_path, capsys):
    run = fitted(tmp_path / "run", 7, [0.5, 0.1, 0.1], patience=2)
    fitted(run, 9, [], patience=2)
    assert capsys.readouterr().out.count("in the last 2: ended at step 6") == 2


def test_patience_does_not_count_where_a_run_had_ended(fitted, tmp_path):
    run = fitted(tmp_path / "run", 5, [0.5, 0.1, 0.1], patience=2)
    fitted(run, 9, [0.1], patience=2)
    assert records(run) == records(fitted(tmp_path / "whole", 9, [0.5, 0.1, 0.1], patience=2))


def test_what_can_t_have_other_steps_is_told_in_one_sentence_and_stays_as_it_is(ended, tmp_path):
    training = dataclasses.replace(LOGISTIC.training, schedule="cosine")
    cosine = trained(dataclasses.replace(LOGISTIC, training=training), tmp_path / "cosine", BEFORE)
    folder, before = ended, (config(cosine), config(ended))
    assert "--steps can't be 9 where a run has 5 with a cosine" in complaint(
        resume, cosine, steps=AFTER
    )
    resume(cosine, steps=BEFORE)
    assert complaint(resume, folder, steps=4) == (
        f"--steps must be at least 5: {folder} has done as many"
    )
    assert complaint(resume, folder, steps=0) == "--steps must be at least 1, not 0"
    with MetricsFile(folder / "metrics.jsonl"):
        assert "is being trained by another process" in complaint(resume, folder, steps=AFTER)
    assert (config(cosine), config(folder)) == before


def test_a_config_whose_writing_is_cut_short_is_the_one_before(ended, whole, monkeypatch):
    folder = ended
    before = (folder / "config.json").read_bytes()
    replace = Path.replace

    def killed(path, target):
        if Path(target).name == "config.json":
            raise KeyboardInterrupt
        return replace(path, target)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", killed)
        with pytest.raises(KeyboardInterrupt):
            resume(folder, steps=AFTER)
    assert (folder / "config.json").read_bytes() == before
    resume(folder, steps=AFTER)
    assert_same_runs(folder, whole, ended=[BEFORE])


def test_a_profile_opens_and_changes_no_bit(classifier, whole, tmp_path, capsys):
    start_like(classifier, tmp_path / "profiled").train(profile=2)
    said = capsys.readouterr().out
    assert_same_runs(tmp_path / "profiled", whole)
    (trace,) = (tmp_path / "profiled" / "profile").rglob("perfetto_trace.json.gz")
    assert f"profile of 2 steps: xprof {tmp_path / 'profiled' / 'profile'}" in said
    assert str(trace) in said
    assert list(trace.parent.glob("*.xplane.pb"))
    assert json.loads(gzip.decompress(trace.read_bytes()))["traceEvents"]
    resume(tmp_path / "profiled", profile=2)
    assert "nothing was profiled" in capsys.readouterr().out
