"""Runs with another number of steps, or a profile, equal undisturbed runs bit for bit."""

import dataclasses
import gzip
import itertools
import json
import shutil
from functools import partial
from pathlib import Path

import pytest

from tests.attack import state as attacked
from tests.helpers.complaints import complaint
from tests.helpers.functions import hinge, sign_momentum, triangle
from tests.helpers.runs import LOGISTIC, interrupt, on_text, start_like, stopped, train, varied
from tlite.cli import commands, main
from tlite.runs import Run
from tlite.training.checkpoints import Checkpoints
from tlite.training.metrics import MetricsFile, eval_scores
from tlite.training.run_dir import summarize_run

pytestmark = pytest.mark.usefixtures("one_device")

BEFORE, AFTER = 5, 9  # no multiples of evaluate_every, which is 2
WARMED_UP = varied(LOGISTIC, schedule="inverse_sqrt", warmup_steps=3)


@pytest.fixture(autouse=True, scope="module")
def commits():
    """Each run is created at another commit of the checkout."""
    commits = map(str, itertools.count())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tlite.training.run_dir._commit", lambda: next(commits))
        yield


@pytest.fixture(autouse=True)
def skip_reports(monkeypatch):
    monkeypatch.setattr(Run, "report", lambda _: None)


def resume(folder, **options):
    commands.Resume(resume=str(folder), **options).execute()


def trained(experiment, folder, steps):
    return train(varied(experiment, steps=steps), folder)


def trained_like(run, folder, steps):
    start_like(run, folder, steps=steps).train()
    return folder


@pytest.fixture(scope="module")
def classifier(tmp_path_factory):
    """A run that had all of the steps from the start."""
    return trained(WARMED_UP, tmp_path_factory.mktemp("runs") / "all", AFTER)


@pytest.fixture(scope="module")
def before(tmp_path_factory):
    return trained(WARMED_UP, tmp_path_factory.mktemp("runs") / "before", BEFORE).dir.path


@pytest.fixture
def ended(before, tmp_path):
    """A copy of a classifier's run that has ended."""
    return shutil.copytree(before, tmp_path / "run")


def config(folder):
    """Return the saved config without the time of creation and the commit of the checkout."""
    content = json.loads((folder / "config.json").read_text())
    del content["created"], content["made_with"]["commit"]
    return content


def lines(folder, ended=()):
    saved = attacked.metrics(folder)["metrics.jsonl"]
    return [line for line in saved if line["split"] == "training" or line["step"] not in ended]


def assert_same_runs(folder, expected, ended=()):
    """Assert equal bits, apart from validations at the steps where the run had `ended`."""
    assert attacked.checkpoints(folder) == attacked.checkpoints(expected)
    assert lines(folder, ended) == lines(expected)
    assert config(folder) == config(expected)


def test_an_extended_run_equals_one_that_had_all_its_steps(classifier, ended):
    assert main(["train", "--resume", str(ended), "--steps", str(AFTER)]) == 0
    assert_same_runs(ended, classifier.dir.path, ended=[BEFORE])


def test_an_extended_run_with_a_users_functions_is_the_same(tmp_path):
    """Its folder is read without them."""
    functions = {"optimizer": sign_momentum, "schedule": triangle, "loss": hinge}
    experiment = on_text(tmp_path / "text.txt", **functions)
    run = trained(experiment, tmp_path / "all", AFTER)
    folder = trained_like(run, tmp_path / "extended", BEFORE)
    assert summarize_run(folder).total == BEFORE
    resume(folder, steps=AFTER)
    assert_same_runs(folder, run.dir.path, ended=[BEFORE])


def test_an_unfinished_run_can_get_more_or_fewer_steps(classifier, tmp_path):
    expected = trained_like(classifier, tmp_path / "all", 8)
    for name, steps in (("more", 6), ("fewer", 50)):
        with pytest.MonkeyPatch.context() as patch:
            interrupt(patch, 3)
            stopped(trained_like, classifier, tmp_path / name, steps)
        resume(tmp_path / name, steps=8)
        done = [line["step"] for line in lines(tmp_path / name) if line["split"] != "training"]
        assert_same_runs(tmp_path / name, expected, ended={*done} - {2, 4, 6, 8})


WSD = varied(LOGISTIC, schedule="wsd", decay_fraction=0.3, average_last=2, ema=0.9)
"""A run that decays from step 7 of 10 or 14 of 20; its averages cross the trunk."""


@pytest.fixture(scope="module")
def trunk(tmp_path_factory):
    return trained(WSD, tmp_path_factory.mktemp("runs") / "trunk", 10).dir.path


def test_a_trunk_serves_several_budgets_bit_for_bit(trunk, tmp_path, monkeypatch, capsys):
    expected, run = trained(WSD, tmp_path / "all", 20), trunk
    assert 7 in Checkpoints(run / "checkpoints").steps()
    before = attacked.checkpoints(run), lines(run), config(run)
    with monkeypatch.context() as patch:
        interrupt(patch, 17)
        assert "tlite train --resume runs/tiny/" in stopped(partial(resume, run, steps=20))
    (folder,) = (tmp_path / "runs" / "tiny").iterdir()
    assert "continues it from step 7" in capsys.readouterr().out
    assert max(Checkpoints(folder / "checkpoints").steps()) < 20
    resume(folder)
    saved = config(folder)
    assert saved.pop("origin") == {"run": str(run.resolve()), "step": 7}
    assert saved == config(expected.dir.path)
    assert lines(folder) == lines(expected.dir.path)
    assert attacked.checkpoints(folder) == attacked.checkpoints(expected.dir.path)
    assert (attacked.checkpoints(run), lines(run), config(run)) == before
    message = complaint(resume, run, steps=9)
    assert message == f"--steps 9 decays from step 6, before the trunk of {run}, step 7"


def test_the_new_run_of_a_trunk_gets_the_named_folder(trunk, tmp_path):
    run = Run.open(trunk, steps=12, new_dir=str(tmp_path / "new"))
    assert (run.dir.path, config(tmp_path / "new")["origin"]["step"]) == (tmp_path / "new", 7)
    message = complaint(Run.open, trunk, steps=10, new_dir=tmp_path / "other")
    assert message.startswith(f"--run {tmp_path / 'other'} has no effect")
    assert not (tmp_path / "other").exists()


def test_patience_does_not_count_where_a_run_had_ended():
    validations = [{"step": step, "loss": 1.0 / step} for step in (2, 4, 5, 6)]
    for end, scores in ((5, [1 / 2, 1 / 4, 1 / 5]), (9, [1 / 2, 1 / 4, 1 / 6])):
        training = dataclasses.replace(LOGISTIC.training, steps=end)
        values = [*eval_scores(training, validations).values()]
        assert values[: len(scores)] == scores


def test_impossible_numbers_of_steps_change_nothing(ended, tmp_path):
    cosine = varied(LOGISTIC, schedule="cosine")
    cosine = trained(cosine, tmp_path / "cosine", BEFORE).dir.path
    before = config(cosine), config(ended)
    message = complaint(resume, cosine, steps=AFTER)
    assert "cannot extend a run with the schedule cosine from 5 to 9 --steps" in message
    resume(cosine, steps=BEFORE)
    message = complaint(resume, ended, steps=4)
    assert message == f"--steps must be at least 5: {ended} is at step 5"
    assert complaint(resume, ended, steps=0).startswith("--steps must be")
    with MetricsFile(ended / "metrics.jsonl"):
        assert "is being trained by another process" in complaint(resume, ended, steps=AFTER)
    assert (config(cosine), config(ended)) == before


def test_a_killed_write_leaves_the_old_config(ended, monkeypatch):
    before, replace = (ended / "config.json").read_bytes(), Path.replace

    def killed(path, target):
        if Path(target).name == "config.json":
            raise KeyboardInterrupt
        return replace(path, target)

    monkeypatch.setattr(Path, "replace", killed)
    with pytest.raises(KeyboardInterrupt):
        resume(ended, steps=AFTER)
    assert (ended / "config.json").read_bytes() == before


def test_a_profile_opens_and_changes_no_bit(classifier, tmp_path, capsys):
    folder = tmp_path / "profiled"
    start_like(classifier, folder).train(profile=2)
    assert f"profile of 2 steps: xprof {folder / 'profile'}" in capsys.readouterr().out
    assert_same_runs(folder, classifier.dir.path)
    Run.open(folder).train(profile=2)
    assert "no profile: " in capsys.readouterr().out  # there was no step left
    (trace,) = (folder / "profile").rglob("perfetto_trace.json.gz")
    assert list(trace.parent.glob("*.xplane.pb"))
    assert json.loads(gzip.decompress(trace.read_bytes()))["traceEvents"]
